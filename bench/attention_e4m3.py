# SPDX-License-Identifier: Apache-2.0
"""The cells of compare_peers.py --dtype e4m3, and what is made of their times. Needs neither a GPU nor PyTorch.

A cell gives a row for each kind of sums, {"group", "sums", "head_dim", "causal", "seqlen", "seqlen_q", "batch", "heads",
"heads_kv", "us", "left_out", "tflops", "over"}: as in attention_backward, but that flashjit is the side of these sums. Peers
compute in bf16; the best peer is FlashAttention-3 in e4m3, where the file of figures has it."""

import typing

from attention_backward import summarise_peers
from attention_grid import BEST, HIDDEN, Cell, described, grid, result

SUMS = ("fast", "exact")
PAPER, LONGER = "paper", "longer"
BATCHES = {4224: 4, 8448: 2, 16896: 1}  # of the lengths of e4m3 in the FlashAttention-3 paper
WIDE = 256  # the head dim whose ratios stand by themselves


class E4m3Cell(typing.NamedTuple):
    group: str
    shape: Cell

    def __str__(self):
        return f"{self.group:<6} {self.shape}"


def longer_grid():
    shapes = [(head_dim, mask, seqlen) for head_dim in (64, 128, 256) for mask in ("full", "causal") for seqlen in BATCHES]
    return [Cell(head_dim, mask, seqlen, BATCHES[seqlen], HIDDEN // head_dim, HIDDEN // head_dim, seqlen)
            for head_dim, mask, seqlen in shapes]


GROUPS = {PAPER: grid, LONGER: longer_grid}


def e4m3_grid(names=tuple(GROUPS)):
    return [E4m3Cell(name, shape) for name in names for shape in GROUPS[name]()]


def e4m3_rows(cell, us, left_out, figures=None):
    """figures: PeerFigures of e4m3. A kind of sums without a right result has no row, but where none has, one tells why."""
    rates = {side: cell.shape.flops() / time / 1e6 for side, time in us.items()}
    peers = {side: rate for side, rate in rates.items() if side not in SUMS}
    rows = []
    for sums in SUMS:
        if sums in rates:
            row = result(cell.shape, {sums: rates[sums], **peers}, [sums], figures)
            del row["variant"]
            rows.append({"group": cell.group, "sums": sums, **row, "us": us, "left_out": left_out})
    if rows:
        return rows
    return [{"group": cell.group, "sums": None, **described(cell.shape), "tflops": peers, "over": {}, "us": us,
             "left_out": left_out}]


def summarise_e4m3(rows):
    """sums -> the paper's cells of head dims 64 and 128, those of 256, and the longer ones, each by peers."""
    summary = {}
    for sums in SUMS:
        of_sums = [row for row in rows if row["sums"] == sums]
        paper = [row for row in of_sums if row["group"] == PAPER]
        summary[sums] = {"narrow": summarise_peers([row for row in paper if row["head_dim"] != WIDE]),
                         "wide": summarise_peers([row for row in paper if row["head_dim"] == WIDE]),
                         LONGER: summarise_peers([row for row in of_sums if row["group"] == LONGER])}
    return summary


def format_e4m3_rows(cell, rows):
    lines = []
    for row in rows:
        rates = ", ".join(f"{side} {rate:.1f}" for side, rate in row["tflops"].items())
        best = f" ({row['best_peer']})" if "best_peer" in row else ""
        over = "".join(f", /{peer} {value:.3f}" for peer, value in row["over"].items())
        lines.append(f"{cell}  {row['sums'] or '-'}: TFLOPS {rates}{best}{over}")
    return "\n".join(lines + [f"  {side}: {why}" for side, why in rows[0]["left_out"].items()])


TITLES = {"narrow": "head dims 64 and 128", "wide": "head dim 256", LONGER: "the longer ones"}


def format_e4m3_summary(summary):
    lines = []
    for sums, groups in summary.items():
        for group, peers in groups.items():
            for peer, values in peers.items():
                name = "FlashAttention-3 in e4m3" if peer == BEST else f"{peer} in bf16"
                lines.append(f"flashjit with {sums} sums / {name}, {TITLES[group]}: geometric mean "
                             f"{values['geometric_mean']:.3f}, smallest {values['minimum']:.3f} ({values['smallest']}), "
                             f"{values['cells']} cells")
    return "\n".join(lines)
