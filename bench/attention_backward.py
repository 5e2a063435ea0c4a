# SPDX-License-Identifier: Apache-2.0
"""The cells of compare_peers.py --pass backward, and what is made of their times. Needs neither a GPU nor PyTorch.

A row is {"group", "head_dim", "causal", "seqlen", "seqlen_q", "batch", "heads", "heads_kv", "window", "us", "left_out",
"tflops", "over"}. us: microseconds of each side that ran, the mean of its turns' medians; left_out: side -> why it did not;
tflops and over: of flashjit and its peers, as result() of attention_grid has them, and in the group paper also of the best
peer."""

import typing

from attention_grid import BEST, Cell, described, grid, paper_cell, prefill, result, summarise, summary_by
from attention_peers import ALL_BACKWARD_PEERS, BACKWARD_PEERS, LARGE_PEERS

OVER_FORWARD = 2.5  # five products of matrices where forward has two
WINDOW = 1024  # keys before the query's own
PAPER, DETERMINISTIC, LARGE = "paper", "deterministic", "large"
LARGE_HEAD_DIM = 512  # which of PyTorch's back ends the memory-efficient one alone has
# By head dim: the mma family's defaults where shared memory is large, and what may be faster, by the counting in
# docs/kernels/backward.md.
MMA = {64: "mma-q128-kv128-w8-r1-s1", 128: "mma-q64-kv128-w8-r1-s1", 256: "mma-q64-kv64-w8-r1-s1"}
VARIANTS = {
    64: (MMA[64], "mma-q64-kv128-w4-r2-s2", "mma-q128-kv128-w8-r2-s1"),
    128: (MMA[128], "mma-q64-kv128-w8-r2-s1", "mma-q64-kv64-w4-r2-s1"),
    256: (MMA[256], "mma-q64-kv64-w8-r2-s1"),
}


class Problem(typing.NamedTuple):
    """What a side of flashjit computes."""

    shape: Cell
    window: typing.Optional[int] = None
    dtype_kv: str = "bfloat16"  # of dk and dv
    variant: typing.Optional[str] = None  # None: the library chooses
    deterministic: bool = False


class BackwardCell(typing.NamedTuple):
    group: str
    shape: Cell

    @property
    def window(self):
        return WINDOW if self.group == "window" else None

    @property
    def ours(self):
        """side -> Problem. Beside flashjit stands what its group compares it with."""
        ours = Problem(self.shape, self.window, deterministic=self.group == DETERMINISTIC)
        return {"flashjit": ours, **OTHER_SIDES[self.group](self.shape)}

    @property
    def peers(self):
        return PEERS_OF_GROUP[self.group]

    @property
    def reference(self):
        """The peer whose gradients others are compared with."""
        return "efficient" if self.group == LARGE else "fa2"

    def flops(self):
        """Of the pairs that are seen."""
        return OVER_FORWARD * self.shape.flops() * share_of_pairs(self.shape.seqlen, self.window)

    def __str__(self):
        return f"{self.group:<8} {self.shape}"


OTHER_SIDES = {
    PAPER: lambda shape: {"mma": Problem(shape, variant=MMA[shape.head_dim])},
    "grouped": lambda shape: {"equal_heads": Problem(shape._replace(heads_kv=shape.heads))},
    "window": lambda shape: {"plain": Problem(shape)},
    "f32": lambda shape: {"f32": Problem(shape, dtype_kv="float32")},
    DETERMINISTIC: lambda shape: {"any_order": Problem(shape)},
    "variants": lambda shape: {name: Problem(shape, variant=name) for name in VARIANTS[shape.head_dim]},
    LARGE: lambda shape: {},
}
PEERS_OF_GROUP = {PAPER: tuple(BACKWARD_PEERS), "grouped": tuple(BACKWARD_PEERS), "window": ("fa2", ), "f32": (),
                  DETERMINISTIC: tuple(BACKWARD_PEERS), "variants": (), LARGE: tuple(LARGE_PEERS)}
GROUPS = {
    PAPER: grid,
    "grouped": lambda: [prefill(seqlen, 32, 8) for seqlen in (1024, 4096, 16384)],
    "window": lambda: [paper_cell(head_dim, "causal", 16384) for head_dim in (64, 128)],
    "f32": lambda: [paper_cell(head_dim, "causal", 4096) for head_dim in (64, 128, 256)],
    DETERMINISTIC: grid,
    "variants": lambda: [paper_cell(head_dim, mask, 4096) for head_dim in VARIANTS for mask in ("full", "causal")],
    LARGE: lambda: [paper_cell(LARGE_HEAD_DIM, mask, seqlen) for mask in ("full", "causal")
                    for seqlen in (1024, 2048, 4096, 8192, 16384)],
}


def backward_grid(names=tuple(GROUPS)):
    return [BackwardCell(name, shape) for name in names for shape in GROUPS[name]()]


def pairs(seqlen, window):
    """Of a query and a key that it sees, in a causal head."""
    seen = seqlen if window is None else min(window + 1, seqlen)
    return seen * (seen + 1) // 2 + (seqlen - seen) * seen


def share_of_pairs(seqlen, window):
    """That of a causal mask with a window in those of the causal mask."""
    return pairs(seqlen, window) / pairs(seqlen, None)


def backward_row(cell, us, left_out, figures=None):
    """figures: PeerFigures of this pass. Without a right result of flashjit there is no ratio."""
    rates = {side: cell.flops() / us[side] / 1e6 for side in ("flashjit", *ALL_BACKWARD_PEERS) if side in us}
    if "flashjit" in rates:
        row = result(cell.shape, rates, ["flashjit"], figures if cell.group == PAPER else None)
        del row["variant"]
    else:
        row = described(cell.shape) | {"tflops": rates, "over": {}}
    return {"group": cell.group, **row, "window": cell.window, "us": us, "left_out": left_out}


def ratio(row, side, other):
    us = row["us"]
    return us[side] / us[other] if side in us and other in us else None


def of_equal_heads(row):
    """The rate of grouped heads as a share of that with a head of keys for each head of queries."""
    return ratio(row, "equal_heads", "flashjit")


def over_share(row):
    """The time with a window over the share of the pairs that it leaves of the time without one."""
    of_plain = ratio(row, "flashjit", "plain")
    return of_plain and of_plain / share_of_pairs(row["seqlen"], row["window"])


def f32_over_16_bits(row):
    """Times."""
    return ratio(row, "f32", "flashjit")


def mma_over_fa2(row):
    """Their rates."""
    return ratio(row, "fa2", "mma")


def of_any_order(row):
    """The rate of deterministic gradients as a share of that of others."""
    return ratio(row, "any_order", "flashjit")


def of_fastest_variant(row):
    """The fastest variant's time over that of the default."""
    us = row["us"]
    return min(us.values()) / us["flashjit"] if row["group"] == "variants" and "flashjit" in us else None


MEASURES = {"mma_over_fa2": mma_over_fa2, "of_equal_heads": of_equal_heads, "over_share": over_share,
            "f32_over_16_bits": f32_over_16_bits, "of_any_order": of_any_order, "of_fastest_variant": of_fastest_variant}
TITLES = {"mma_over_fa2": "mma / fa2", "of_equal_heads": "of the rate with equal heads",
          "over_share": "time over the window's share", "f32_over_16_bits": "time with dk and dv in f32",
          "of_any_order": "of the rate in any order", "of_fastest_variant": "time by the fastest variant"}


def label(row):
    return f"head dim {row['head_dim']}, {'causal' if row['causal'] else 'full'}, {row['seqlen']}"


def summarise_peers(rows):
    """peer -> what summarise() of attention_grid says of it, and the cell of the smallest ratio."""
    summary = summarise(rows)
    for peer, values in summary.items():
        values["smallest"] = label(min((row for row in rows if peer in row["over"]), key=lambda row: row["over"][peer]))
    return summary


def summarise_backward(rows):
    """The shapes of the paper by peers, likewise of deterministic gradients, and of each measure the geometric mean, the
    smallest and the largest value."""
    groups = PAPER, DETERMINISTIC, *({LARGE} & {row["group"] for row in rows})
    summary = {group: summarise_peers([row for row in rows if row["group"] == group]) for group in groups}
    return summary | summary_by(MEASURES, rows)


def format_backward_row(cell, row):
    parts = [f"{side} {us:.1f} us" for side, us in row["us"].items()]
    rates = [f"{side} {rate:.1f}" for side, rate in row["tflops"].items()]
    if rates:
        parts.append("TFLOPS " + ", ".join(rates) + (f" ({row['best_peer']})" if "best_peer" in row else ""))
    parts += [f"/{peer} {value:.3f}" for peer, value in row["over"].items()]
    parts += [f"{TITLES[name]} {value:.3f}" for name, measure in MEASURES.items() if (value := measure(row))]
    return f"{cell}  " + ", ".join(parts) + "".join(f"\n  {side}: {why}" for side, why in row["left_out"].items())


def format_backward_summary(summary):
    lines = []
    for group, how in ((PAPER, ""), (DETERMINISTIC, ", both deterministic"), (LARGE, "")):
        for peer, values in summary.get(group, {}).items():
            by_head_dim = ", ".join(f"d{head_dim} {mean:.3f}" for head_dim, mean in values["by_head_dim"].items())
            lines.append(f"flashjit / {'the best peer' if peer == BEST else peer}{how}: geometric mean "
                         f"{values['geometric_mean']:.3f} ({by_head_dim}), smallest {values['minimum']:.3f} "
                         f"({values['smallest']}), {values['cells']} cells")
    for name in MEASURES:
        if values := summary.get(name):
            lines.append(f"{TITLES[name]}: geometric mean {values['geometric_mean']:.3f}, from {values['minimum']:.3f} to "
                         f"{values['maximum']:.3f}, {values['cells']} cells")
    return "\n".join(lines)
