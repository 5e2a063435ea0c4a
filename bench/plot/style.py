# SPDX-License-Identifier: Apache-2.0
"""How every figure looks, and what is compared of two of them. matplotlib draws; equal data give equal figures."""

import io
import re
import xml.etree.ElementTree

import matplotlib
from matplotlib.figure import Figure

WIDTH = 675  # points: 900 pixels in a browser
INK, GREY, PALE = "#1f2328", "#6e7781", "#d8dee4"
# Okabe and Ito's colours, which people with any colour vision tell apart; each series has a dash of its own too.
BLUE, VERMILION, GREEN = "#0072b2", "#d55e00", "#00795a"

matplotlib.rcParams.update({
    "svg.fonttype": "none",  # text stays text, in whatever font the reader has
    "svg.hashsalt": "flashjit",  # else names of clip paths are random
    "path.simplify": False,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that it is the same everywhere
    "font.size": 8.5,
    "text.color": INK,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "hatch.color": PALE,
})


def new_figure(height, title="", subtitle="", footer="", width=WIDTH):
    """On white, which is readable on a page of any colour. Sizes are in points."""
    figure = Figure(figsize=(width / 72, height / 72), dpi=72, facecolor="white")
    if title:
        figure.text(12 / width, 1 - 20 / height, title, fontsize=11.5, fontweight="bold")
        figure.text(12 / width, 1 - 34 / height, subtitle, color=GREY)
    figure.text(12 / width, 8 / height, footer, color=GREY, fontsize=7.5)
    return figure


def add_axes(figure, left, top, right, bottom):
    """Axes whose frame has these distances from the figure's left, upper, left and upper edge."""
    width, height = figure.get_size_inches() * 72
    axes = figure.add_axes((left / width, 1 - bottom / height, (right - left) / width, (bottom - top) / height))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
    return axes


def spread(positions, distance):
    """Positions in the same order and with the same mean, at least that far from each other."""
    order = sorted(range(len(positions)), key=positions.__getitem__)
    moved = list(positions)
    for above, below in zip(order, order[1:]):
        moved[below] = max(moved[below], moved[above] + distance)
    excess = sum(moved[i] - positions[i] for i in order) / max(len(order), 1)
    return [position - excess for position in moved]


def to_svg(figure, title):
    """The text of an SVG file, without what differs from day to day."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Title": title, "Date": None, "Creator": None})
    return re.sub(r"[ \t]+$", "", file.getvalue(), flags=re.MULTILINE)


# --- Comparing -----------------------------------------------------------------------------------------------------

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
COLOUR = re.compile(r"(?:fill|stroke): (#[0-9a-f]{6})")
PLACES = ("d", "x", "y", "width", "height", "transform")
# Points by which versions of matplotlib (3.6 to 3.11 were tried) differ: they measure text a little differently.
TOLERANCE = {"path": 0.1, "use": 0.1, "text": 3.0}


def content(svg):
    """What a reader sees: for each shape and text its kind, words, colours and coordinates."""
    root = xml.etree.ElementTree.fromstring(svg)
    parents = {child: parent for parent in root.iter() for child in parent}
    shown = []
    for element in root.iter():
        kind = element.tag.rpartition("}")[2]
        if kind not in TOLERANCE or parents[element].tag.endswith(("defs", "clipPath")):
            continue
        numbers = [float(number) for name in PLACES for number in NUMBER.findall(element.get(name, ""))]
        if kind == "path" and numbers[:2] == numbers[-2:]:
            del numbers[-2:]  # closed by a line back to its start, or not: both look the same
        shown.append((kind, (element.text or "").strip(), COLOUR.findall(element.get("style", "")), numbers))
    return shown


def same_content(one, other):
    """Whether two figures show the same. Their bytes may differ: that is matplotlib's version."""
    ones, others = content(one), content(other)
    return len(ones) == len(others) and all(
        a[:3] == b[:3] and len(a[3]) == len(b[3])
        and all(abs(x - y) <= TOLERANCE[a[0]] for x, y in zip(a[3], b[3])) for a, b in zip(ones, others))
