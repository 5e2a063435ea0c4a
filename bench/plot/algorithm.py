# SPDX-License-Identifier: Apache-2.0
"""The pictures of docs/algorithm.md, in docs/figures/algorithm. What they show of figures they take from the page's
code, which a test runs, or compute here."""

import ast
import pathlib
import re

import numpy as np
from matplotlib.patches import FancyBboxPatch, Polygon, Rectangle
from style import BLUE, GREEN, GREY, INK, PALE, VERMILION, WIDTH, add_axes, new_figure, to_svg

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "algorithm.md"
# Fills that dark text is read on.
LIGHT_BLUE, LIGHT_VERMILION, LIGHT_GREEN, LIGHT_GREY = "#cfe4f5", "#fbdcc4", "#cdeadf", "#eef1f4"
LIGHT_PURPLE, LIGHT_YELLOW = "#e9d9ee", "#f5e6a8"
TILES = 4  # in a picture, along either side


class Canvas:
    """A figure to draw on in points, from its upper left corner."""

    def __init__(self, height, title, subtitle="", width=WIDTH):
        self.title = title
        self.figure = new_figure(height, title if subtitle else "", subtitle, width=width)
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_xlim(0, width)
        self.axes.set_ylim(height, 0)
        self.axes.axis("off")

    def svg(self):
        return to_svg(self.figure, self.title)

    def box(self, x, y, width, height, fill="white", edge=INK, **style):
        style = {"linewidth": 0.8, **style}
        self.axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=edge, **style))

    def polygon(self, points, fill, edge="none"):
        self.axes.add_patch(Polygon(points, closed=True, facecolor=fill, edgecolor=edge, linewidth=0.8))

    def panel(self, x, y, width, height):
        """Rounded, behind what belongs together."""
        self.axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=6",
                                           facecolor=LIGHT_GREY, edgecolor="none", zorder=0))

    def text(self, x, y, words, **style):
        style = {"horizontalalignment": "center", "verticalalignment": "center", **style}
        self.axes.text(x, y, words, **style)

    def arrow(self, start, end, colour=INK, style="-|>", bend=0.0, width=1.1):
        self.axes.annotate("", end, start, arrowprops={
            "arrowstyle": style, "color": colour, "linewidth": width, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 8,
            "connectionstyle": f"arc3,rad={bend}"})

    def stack(self, x, y, width, tile, fills, names=(), across=False):
        """Tiles of a matrix below each other, or beside each other when it is shown transposed."""
        for index, fill in enumerate(fills):
            at = (x + index * tile, y) if across else (x, y + index * tile)
            size = (tile, width) if across else (width, tile)
            self.box(*at, *size, fill)
            if names:
                self.text(at[0] + size[0] / 2, at[1] + size[1] / 2, names[index])

    def grid(self, x, y, tile, rows=TILES, columns=TILES, fill=lambda i, j: "white", **style):
        for i in range(rows):
            for j in range(columns):
                self.box(x + j * tile, y + i * tile, tile, tile, fill(i, j), **style)


def numbered(letter, count=TILES):
    return [letter + "₁₂₃₄"[index] for index in range(count)]


def plain():
    canvas = Canvas(206, "Plain attention", "three kernels; between them S and P, n by n, go out to the GPU's memory "
                    "and come back", width=606)
    top, tile, thin = 64, 24, 24
    long = TILES * tile
    middle = top + long / 2

    def matrix(x, width, name, size, fill):
        canvas.box(x, top, width, long, fill)
        canvas.text(x + width / 2, middle, name, fontsize=12)
        canvas.text(x + width / 2, top - 9, size, color=GREY, fontsize=7.5)

    matrix(16, thin, "Q", "n × d", LIGHT_BLUE)
    canvas.text(52, middle, "×", fontsize=12)
    canvas.box(64, middle - thin / 2, long, thin, LIGHT_VERMILION)
    canvas.text(64 + long / 2, middle, "Kᵀ", fontsize=12)
    canvas.text(64 + long / 2, middle - thin / 2 - 9, "d × n", color=GREY, fontsize=7.5)
    canvas.text(174, middle, "=", fontsize=12)
    for x, name in ((188, "S"), (372, "P")):
        canvas.box(x, top, long, long, "white", VERMILION, linewidth=1.8)
        canvas.text(x + long / 2, middle, name, fontsize=14)
        canvas.text(x + long / 2, top - 9, "n × n", color=VERMILION, fontsize=7.5)
        canvas.text(x + long / 2, top + long + 11, "written, then read", color=VERMILION)
    canvas.arrow((292, middle), (364, middle))
    canvas.text(328, middle - 10, "softmax")
    canvas.text(328, middle + 11, "of each row", fontsize=7.5, color=GREY)
    canvas.text(484, middle, "×", fontsize=12)
    matrix(502, thin, "V", "n × d", LIGHT_VERMILION)
    canvas.text(546, middle, "=", fontsize=12)
    matrix(566, thin, "O", "n × d", LIGHT_GREEN)
    for left, right, words in ((16, 284, "kernel 1"), (292, 364, "kernel 2"), (372, 590, "kernel 3")):
        canvas.axes.plot([left, left, right, right], [188, 192, 192, 188], color=GREY, linewidth=0.9)
        canvas.text((left + right) / 2, 198, words, color=GREY, fontsize=7.5)
    return canvas.svg()


def online():
    """One row of scores, in blocks of two, with the values that the algorithm has after each block."""
    canvas = Canvas(216, "The online softmax", "one row of scores, block by block: a larger score (orange) rescales "
                    "what was summed before it")
    scores = np.array([[1.0, 2.0], [4.0, 3.0], [2.0, 0.0], [5.0, 3.0]])
    left, step, cell = 152, 130, 34
    heads = {"scores": 70, "m, the largest so far": 110, "factor for the sum before": 136, "l, the sum so far": 162}
    for words, y in heads.items():
        canvas.text(left - 12, y, words, horizontalalignment="right")
    maximum, total = -np.inf, 0.0
    for index, block in enumerate(scores):
        x = left + index * step
        for place, score in enumerate(block):
            raises = score > maximum and score == block.max()
            canvas.box(x + place * cell, 70 - cell / 2, cell, cell, LIGHT_VERMILION if raises else LIGHT_BLUE)
            canvas.text(x + place * cell + cell / 2, 70, f"{score:.0f}", fontsize=11)
        raised = max(maximum, block.max())
        factor = np.exp(maximum - raised)
        total = total * factor + np.exp(block - raised).sum()
        power = "" if index == 0 else f"exp({maximum:.0f} − {raised:.0f}) = {factor:.3g}"
        maximum = raised
        canvas.text(x + cell, 110, f"{maximum:.0f}", fontsize=11)
        canvas.text(x + cell, 136, power or "–", color=VERMILION if factor < 1 and power else GREY)
        canvas.text(x + cell, 162, f"{total:.4f}", fontsize=10)
        if index:
            canvas.arrow((x - step + 2 * cell + 14, 162), (x - 12, 162), GREY)
    whole = np.exp(scores - scores.max()).sum()
    canvas.text(left - 12, 196, "all at once", horizontalalignment="right", color=GREY)
    canvas.text(left + 3 * step + cell, 196, f"{whole:.4f}", fontsize=10, color=GREY)
    canvas.text(left, 196, "sum of exp(score − 5) over the eight scores", color=GREY, horizontalalignment="left")
    return canvas.svg()


def tiles():
    canvas = Canvas(294, "Tiling", "a tile of queries stays on the chip, and all tiles of keys and values pass by")
    left, top, tile, thin, row = 92, 112, 40, 22, 1
    side = TILES * tile
    canvas.stack(left - 44, top, thin, tile, [BLUE if i == row else LIGHT_BLUE for i in range(TILES)])
    for i, name in enumerate(numbered("Q")):
        canvas.text(left - 44 + thin / 2, top + (i + 0.5) * tile, name, color="white" if i == row else INK)
    for letter, y in (("K", top - 58), ("V", top - 32)):
        canvas.stack(left, y, thin, tile, [VERMILION if j == 2 else LIGHT_VERMILION for j in range(TILES)], across=True)
        for j, name in enumerate(numbered(letter)):
            canvas.text(left + (j + 0.5) * tile, y + thin / 2, name, color="white" if j == 2 else INK)
    canvas.grid(left, top, tile, edge=PALE, fill=lambda i, j: LIGHT_PURPLE if (i, j) == (row, 2) else "white")
    canvas.text(left + 2.5 * tile, top + (row + 0.5) * tile, "S", fontsize=11)
    canvas.arrow((left + 6, top + (row + 0.82) * tile), (left + side - 6, top + (row + 0.82) * tile), VERMILION)
    canvas.stack(left + side + 22, top, thin, tile, [GREEN if i == row else LIGHT_GREEN for i in range(TILES)])
    for i, name in enumerate(numbered("O")):
        canvas.text(left + side + 22 + thin / 2, top + (i + 0.5) * tile, name, color="white" if i == row else INK)
    canvas.text(left + side / 2, top + side + 9, "scores: 16 tiles, of which none is ever written", color=GREY,
                fontsize=7.5)
    canvas.panel(348, 90, 312, 162)
    canvas.text(504, 108, "one thread block, on one SM", fontweight="bold")
    canvas.text(362, 130, "stays for the whole row of tiles", horizontalalignment="left", color=GREY)
    canvas.box(362, 140, 62, 34, BLUE, "none")
    canvas.text(393, 157, "Q₂", color="white", fontsize=10)
    canvas.box(432, 140, 62, 34, GREEN, "none")
    canvas.text(463, 157, "O₂", color="white", fontsize=10)
    canvas.box(502, 140, 62, 34, "white")
    canvas.text(533, 157, "m and l")
    canvas.text(362, 192, "read from memory, used once, replaced by the next", horizontalalignment="left", color=GREY)
    for x, name in ((362, "K₃"), (432, "V₃")):
        canvas.box(x, 202, 62, 34, VERMILION, "none")
        canvas.text(x + 31, 219, name, color="white", fontsize=10)
    canvas.box(502, 202, 62, 34, LIGHT_PURPLE, "none")
    canvas.text(533, 219, "S, then P")
    canvas.text(612, 157, "O₂ is written\nat the end", fontsize=7.5, color=GREEN)
    canvas.text(612, 219, "never leaves\nthe chip", fontsize=7.5, color=GREY)
    return canvas.svg()


def causal():
    canvas = Canvas(276, "The causal mask", "tiles of 64 by 64; query i sees the keys up to i + keys − queries")

    def panel(x, y, rows, tile, words):
        diagonal = TILES - rows  # in tiles
        canvas.grid(x, y, tile, rows, fill=lambda i, j: "white" if j > i + diagonal else LIGHT_BLUE if j < i + diagonal
                    else LIGHT_GREY, edge=GREY)
        for i in range(rows):
            at = (x + (i + diagonal) * tile, y + i * tile)
            canvas.polygon([at, (at[0] + tile, at[1] + tile), (at[0], at[1] + tile)], LIGHT_VERMILION)
            canvas.box(*at, tile, tile, "none", VERMILION, linewidth=1.2)
            canvas.text(at[0] + tile * 0.36, at[1] + tile * 0.68, "mask", color=VERMILION, fontsize=7.5)
            for j in range(TILES):
                if j < i + diagonal:
                    canvas.text(x + (j + 0.5) * tile, y + (i + 0.5) * tile, "clean", fontsize=7.5, color=BLUE)
                if j > i + diagonal:
                    canvas.text(x + (j + 0.5) * tile, y + (i + 0.5) * tile, "skip", fontsize=7.5, color=GREY)
            canvas.text(x - 8, y + (i + 0.5) * tile, numbered("Q")[i + diagonal], horizontalalignment="right")
        for j, name in enumerate(numbered("K")):
            canvas.text(x + (j + 0.5) * tile, y - 9, name)
        canvas.text(x + 2 * tile, y + rows * tile + 13, words, color=GREY)

    panel(40, 76, 4, 42, "256 queries, 256 keys")
    panel(278, 76, 2, 42, "the last 128 queries, 256 keys")
    canvas.arrow((446, 212), (282, 212), GREY)
    canvas.text(364, 200, "the kernel's order: last keys first", color=GREY, fontsize=7.5)
    for y, fill, edge, words in ((84, LIGHT_BLUE, GREY, "clean: every row sees every key;\nthe loop has no mask code"),
                                 (128, LIGHT_VERMILION, VERMILION,
                                  "masked: on the diagonal;\nscores above it become −∞"),
                                 (172, "white", GREY, "skipped: no row sees a key;\nneither read nor computed")):
        canvas.box(488, y, 26, 26, fill, edge)
        canvas.text(524, y + 13, words, horizontalalignment="left")
    return canvas.svg()


def merge():
    canvas = Canvas(188, "Merging", "two results for the same queries, over different keys, make the result over all "
                    "keys", width=620)
    for y, half, names, fill in ((60, "a", ("₁", "₂"), LIGHT_VERMILION), (124, "b", ("₃", "₄"), LIGHT_YELLOW)):
        canvas.box(16, y, 46, 46, LIGHT_BLUE)
        canvas.text(39, y + 23, "Q", fontsize=11)
        for index, name in enumerate(names):
            canvas.box(76 + 50 * index, y, 48, 21, fill)
            canvas.text(100 + 50 * index, y + 10.5, f"K{name}")
            canvas.box(76 + 50 * index, y + 25, 48, 21, fill)
            canvas.text(100 + 50 * index, y + 35.5, f"V{name}")
        canvas.arrow((182, y + 23), (232, y + 23))
        canvas.text(206, y + 13, "attention", fontsize=7.5, color=GREY)
        canvas.box(240, y, 46, 46, LIGHT_GREEN)
        canvas.text(263, y + 23, f"O{half}", fontsize=11)
        canvas.box(290, y, 18, 46, "white")
        canvas.text(299, y + 23, f"L{half}", fontsize=8)
        canvas.text(372, y + 23, f"× exp(L{half} − L)", fontsize=10)
        canvas.arrow((426, y + 23), (480, 115 + (-10 if half == "a" else 10)))
    canvas.text(494, 115, "+", fontsize=14)
    canvas.text(516, 115, "=", fontsize=12)
    canvas.box(534, 92, 46, 46, GREEN, "none")
    canvas.text(557, 115, "O", fontsize=11, color="white")
    canvas.box(584, 92, 18, 46, "white")
    canvas.text(593, 115, "L", fontsize=8)
    canvas.text(556, 158, "L = log(exp La + exp Lb)", color=GREY)
    return canvas.svg()


def backward():
    canvas = Canvas(286, "The backward", "P is not stored but computed again, tile by tile; each tile adds to three "
                    "gradients")
    left, top, tile, thin, row, column = 110, 114, 38, 22, 2, 1
    side = TILES * tile
    canvas.grid(left, top, tile, edge=PALE,
                fill=lambda i, j: LIGHT_PURPLE if (i, j) == (row, column) else LIGHT_GREY if j == column else "white")
    canvas.text(left + (column + 0.5) * tile, top + (row + 0.5) * tile, "P", fontsize=11)
    canvas.arrow((left + (column + 0.84) * tile, top + 6), (left + (column + 0.84) * tile, top + side - 6), VERMILION)
    for x, letter, dark, light in ((left - 84, "Q", BLUE, LIGHT_BLUE), (left - 58, "L", GREY, LIGHT_GREY),
                                   (left - 32, "dO", GREEN, LIGHT_GREEN)):
        canvas.stack(x, top, thin, tile, [dark if i == row else light for i in range(TILES)])
        for i, name in enumerate(numbered(letter)):
            canvas.text(x + thin / 2, top + (i + 0.5) * tile, name, color="white" if i == row else INK, fontsize=7.5)
    for y, letter in ((top - 58, "K"), (top - 32, "V")):
        canvas.stack(left, y, thin, tile, [VERMILION if j == column else LIGHT_VERMILION for j in range(TILES)],
                     across=True)
        for j, name in enumerate(numbered(letter)):
            canvas.text(left + (j + 0.5) * tile, y + thin / 2, name, color="white" if j == column else INK)
    canvas.stack(left + side + 20, top, thin, tile, [BLUE if i == row else LIGHT_BLUE for i in range(TILES)])
    for i, name in enumerate(numbered("dQ")):
        canvas.text(left + side + 20 + thin / 2, top + (i + 0.5) * tile, name, fontsize=7.5,
                    color="white" if i == row else INK)
    canvas.panel(346, 54, 314, 214)
    canvas.text(503, 72, "one thread block, for one column of tiles", fontweight="bold")
    lines = ((100, "stays", "K₂, V₂, and the sums dK₂ and dV₂", VERMILION),
             (126, "comes by", "Q₃, dO₃, L₃, and Δ₃, the row sums of dO ∘ O", BLUE),
             (158, "again", "P = exp(Q₃K₂ᵀ · scale − L₃)", INK),
             (182, "dV₂ +=", "Pᵀ dO₃", VERMILION),
             (206, "dS =", "P ∘ (dO₃V₂ᵀ − Δ₃) · scale", INK),
             (230, "dK₂ +=", "dSᵀ Q₃", VERMILION),
             (254, "dQ₃ +=", "dS K₂, in memory: other blocks add to it too", BLUE))
    for y, what, words, colour in lines:
        canvas.text(404, y, what, horizontalalignment="right", color=GREY)
        canvas.text(414, y, words, horizontalalignment="left", color=colour)
    return canvas.svg()


def orders():
    canvas = Canvas(306, "The order of tiles in FlashAttention-1 and FlashAttention-2, and what each writes back")
    tile, thin, top = 42, 20, 84
    side = TILES * tile

    def panel(x, name, words, outer_keys):
        canvas.text(x - 30, 22, name, horizontalalignment="left", fontweight="bold", fontsize=10)
        canvas.text(x - 30, 38, words, horizontalalignment="left", color=GREY)
        canvas.stack(x - 30, top, thin, tile, [LIGHT_BLUE] * TILES, numbered("Q"))
        canvas.stack(x, top - 28, thin, tile, [LIGHT_VERMILION] * TILES, numbered("K"), across=True)
        for i in range(TILES):
            for j in range(TILES):
                at = (x + j * tile, top + i * tile)
                last = outer_keys or j == TILES - 1
                canvas.box(*at, tile, tile, LIGHT_GREEN if last else "white", GREY)
                number = 1 + (j * TILES + i if outer_keys else i * TILES + j)
                canvas.text(at[0] + 10, at[1] + 10, str(number), color=GREY, fontsize=7.5)
                if last:
                    middle = at[0] + tile / 2 - (3 if outer_keys else 0)
                    written = "O, m, l" if outer_keys else "O, L"
                    canvas.text(middle, at[1] + tile / 2 + 4, written, color=GREEN, fontsize=8)
        for line in range(TILES):
            at = (line + 0.82) * tile
            if outer_keys:
                canvas.arrow((x + at + 3, top + 8), (x + at + 3, top + side - 5), BLUE, width=0.8)
            else:
                canvas.arrow((x + 8, top + at), (x + side - 5, top + at), VERMILION, width=0.8)

    panel(46, "FlashAttention-1", "keys outside, queries inside", True)
    panel(390, "FlashAttention-2", "queries outside, keys inside", False)
    for x, words in ((46, "each step reads O, m and l of its rows\nand writes them back (green): 16 times"),
                     (390, "O and L of a row of tiles are written\nonce, at its end (green): 4 times")):
        canvas.text(x + side / 2, top + side + 16, words, color=GREEN, verticalalignment="top")
    canvas.text(46 + side + 16, top + side / 2, "one thread block\ndoes all of it:\nits columns need\neach other's O",
                horizontalalignment="left", color=GREY)
    canvas.text(390 + side + 16, top + side / 2, "each row of tiles\nis a thread block\nof its own",
                horizontalalignment="left", color=GREY)
    return canvas.svg()


WARP_FILLS = (LIGHT_BLUE, LIGHT_VERMILION, LIGHT_GREEN, LIGHT_YELLOW)


def warps():
    canvas = Canvas(236, "How four warps share a tile: by keys, or by queries")
    tile, part, top = 128, 32, 66

    def panel(x, name, words, by_keys):
        canvas.text(x, 22, name, horizontalalignment="left", fontweight="bold", fontsize=10)
        canvas.text(x, 38, words, horizontalalignment="left", color=GREY)
        left = x + 34
        if by_keys:
            canvas.box(x, top, 24, tile, "white")
            canvas.text(x + 12, top + tile / 2, "Q")
        else:
            canvas.stack(x, top, 24, part, WARP_FILLS, numbered("Q"))
        for index, fill in enumerate(WARP_FILLS):
            at = (left + index * part, top) if by_keys else (left, top + index * part)
            size = (part, tile) if by_keys else (tile, part)
            canvas.box(*at, *size, fill)
            canvas.text(at[0] + size[0] / 2, at[1] + size[1] / 2, f"warp {index}", rotation=90 if by_keys else 0)
        return left + tile

    end = panel(14, "FlashAttention-1: by keys", "every warp has a part of every row", True)
    canvas.stack(48, top + tile + 8, 20, part, WARP_FILLS, numbered("K"), across=True)
    for index, fill in enumerate(WARP_FILLS):
        canvas.box(end + 34, top + index * 34 - 3, 54, 26, fill)
        canvas.text(end + 61, top + index * 34 + 10, "m, l, O")
        canvas.arrow((end + 6, top + tile / 2), (end + 32, top + index * 34 + 10), GREY, width=0.8)
    canvas.text(end + 61, top + tile + 18, "through shared\nmemory, and added", fontsize=7.5, color=VERMILION)
    end = panel(372, "FlashAttention-2: by queries", "every row belongs to one warp", False)
    canvas.box(406, top + tile + 8, tile, 20, "white")
    canvas.text(406 + tile / 2, top + tile + 18, "K")
    for index, fill in enumerate(WARP_FILLS):
        canvas.box(end + 34, top + index * part + 3, 54, 26, fill)
        canvas.text(end + 61, top + index * part + 16, "m, l, O")
        canvas.arrow((end + 4, top + (index + 0.5) * part), (end + 32, top + (index + 0.5) * part), GREY, width=0.8)
    canvas.text(end + 61, top + tile + 18, "each in the registers\nof its warp", fontsize=7.5, color=GREEN)
    return canvas.svg()


# --- Figures from the page -----------------------------------------------------------------------------------------


def page_constant(name):
    """A constant of the page's code, which the page asserts."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    for statement in ast.parse(code).body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", None) == name:
            return ast.literal_eval(statement.value)
    raise KeyError(f"{PAGE.name} has no {name}")


def sms():
    blocks, count = page_constant("BLOCKS"), page_constant("SMS")
    canvas = Canvas(176, "A batch of one", f"16 heads, 4096 tokens; each square is one of the {count} SMs of an H200")
    across, cell = 22, 13
    for x, (name, number) in zip((16, 360), blocks.items()):
        busy = min(number, count)
        for sm in range(count):
            place = (x + sm % across * cell, 72 + sm // across * cell)
            canvas.box(*place, cell - 2.5, cell - 2.5, BLUE if sm < busy else PALE, "none")
        canvas.text(x, 58, name, horizontalalignment="left", fontweight="bold")
        canvas.text(x, 162, f"{number} thread blocks: {busy} of {count} SMs work" if busy < count else
                    f"{number} thread blocks: all {count} SMs work", horizontalalignment="left",
                    color=VERMILION if busy < count else GREEN)
    return canvas.svg()


def traffic():
    """Bytes that each algorithm moved, by array."""
    moved = page_constant("MOVED")
    parts = {"Q": (("q",), BLUE), "K and V": (("k", "v"), VERMILION), "S and P": (("s", "p"), "#9a5ba5"),
             "O": (("o",), GREEN), "m, l, L": (("m", "l", "lse"), GREY)}
    title = "Bytes moved between the chip and the GPU's memory"
    figure = new_figure(74 + 34 * len(moved), title, "one head of 1024 tokens, head dim 64, tiles of 128 by 128, in MB "
                        "(counted by the page's code)")
    axes = add_axes(figure, 118, 62, WIDTH - 70, 58 + 34 * len(moved))
    starts = np.zeros(len(moved))
    for index, (label, (names, colour)) in enumerate(parts.items()):
        axes.annotate("■ " + label, (72 * index, 1.04), xycoords=("axes points", "axes fraction"), color=colour)
        widths = np.array([sum(arrays.get(name, 0) for name in names) for arrays in moved.values()]) / 1e6
        axes.barh(range(len(moved)), widths, left=starts, color=colour, height=0.6, edgecolor="white", linewidth=0.6)
        starts = starts + widths
    for index, total in enumerate(starts):
        axes.annotate(f"{total:.2f}", (total, index), (6, 0), textcoords="offset points", verticalalignment="center",
                      fontweight="bold", annotation_clip=False)
    axes.set_yticks(range(len(moved)), moved, color=INK)
    axes.set_ylim(len(moved) - 0.5, -0.5)
    axes.set_xlim(0, max(starts))
    axes.grid(axis="x", color=PALE, linewidth=0.8)
    return to_svg(figure, title)


PICTURES = {
    "plain": plain,
    "online": online,
    "tiles": tiles,
    "causal": causal,
    "merge": merge,
    "backward": backward,
    "orders": orders,
    "warps": warps,
    "sms": sms,
    "traffic": traffic,
}
