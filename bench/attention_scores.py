# SPDX-License-Identifier: Apache-2.0
"""The cells of the grid scores of compare_peers.py, and what is made of their times. Needs neither a GPU nor PyTorch.

A row is {"feature", "head_dim", "seqlen", "batch", "heads", "causal", "us", "left_out"}. us: microseconds of each side
that ran, the mean of its turns' medians; left_out: side -> why it did not. Sides of flashjit: flashjit, text (the same
as a text), mma (that family's default), and plain and plain_mma, which are causal attention alone and run beside
these."""

import itertools
import statistics
import typing

from attention_features import FEATURES
from attention_grid import paper_cell
from attention_peers import FLEX

HEAD_DIMS = (64, 128)
SEQLENS = (1024, 4096, 16384)
SHARES_AT = 16384  # the length of which shares of plain kernels are told, and the only one for the mma family
MOST = 3.0  # a cell's ratio counts as so much at most: nobody wins by one cell
OURS = ("flashjit", "plain", "text", "mma", "plain_mma")
PLAIN = {"flashjit": "plain", "mma": "plain_mma"}  # what the share of a side is of
CUDNN = ("cudnn", "cudnn_mask")  # the latter with a causal mask in the bias
FAMILIES = {"flashjit": "default", "mma": "mma"}


class ScoreCell(typing.NamedTuple):
    """A feature on a shape of the FlashAttention-3 paper."""

    name: str
    shape: typing.Any  # a Cell of attention_grid

    @property
    def feature(self):
        return FEATURES[self.name]

    @property
    def plain(self):
        """What its sides without the feature compute."""
        return FEATURES["plain"]

    def __str__(self):
        return f"d{self.shape.head_dim:<3} {self.name:<9} {self.shape.seqlen:>5} b{self.shape.batch:<2}"


def score_grid(names=tuple(FEATURES), head_dims=HEAD_DIMS, seqlens=SEQLENS):
    """Features in the order of the list, the largest head dim first: what a cut-off run lacks is asked for last."""
    shapes = itertools.product(names, sorted(head_dims, reverse=True), seqlens)
    return [ScoreCell(name, paper_cell(head_dim, "causal", seqlen)) for name, head_dim, seqlen in shapes]


def score_row(cell, us, left_out):
    shape = cell.shape
    return {"feature": cell.name, "head_dim": shape.head_dim, "causal": True, "seqlen": shape.seqlen,
            "batch": shape.batch, "heads": shape.heads, "us": us, "left_out": left_out}


def ratio(row, slower, faster="flashjit"):
    """Time of one side over that of another; None when one of them did not run."""
    us = row["us"]
    return us[slower] / us[faster] if slower in us and faster in us else None


def share_of_plain(row, side="flashjit"):
    """The rate of a side as a share of the same family's causal kernel without the feature."""
    return ratio(row, PLAIN[side], side)


def over_cudnn(row):
    """By the faster of cuDNN's ways, where there are several."""
    return min((value for side in CUDNN if (value := ratio(row, side))), default=None)


def statistics_of(named):
    """Of (name, ratio) pairs: the geometric mean, in which a ratio counts as MOST at most, and the smallest one."""
    if not named:
        return None
    smallest = min(named, key=lambda pair: pair[1])
    return {"geometric_mean": statistics.geometric_mean(min(value, MOST) for _, value in named),
            "minimum": smallest[1], "smallest": smallest[0], "cells": len(named)}


def label(row):
    return f"{row['feature']}, head dim {row['head_dim']}, {row['seqlen']}"


def statistics_over(rows, measure, name=label):
    return statistics_of([(name(row), value) for row in rows if (value := measure(row))])


def over_flex(row):
    return ratio(row, FLEX)


def summarise_over_flex(rows):
    """Over all cells that count, by feature, and by head dim."""
    counted = [row for row in rows if FEATURES[row["feature"]].counted and over_flex(row)]
    if not counted:
        return None

    def by(key):
        values = dict.fromkeys(row[key] for row in counted)
        return {str(value): statistics_over([row for row in counted if row[key] == value], over_flex)
                for value in values}

    return {**statistics_over(counted, over_flex), "at_most": MOST, "by_feature": by("feature"),
            "by_head_dim": by("head_dim")}


def shares_of_plain(rows):
    """family -> feature -> head dim -> share, at the length for which shares are told."""
    shares = {}
    for row in rows:
        for side, family in FAMILIES.items():
            if row["seqlen"] == SHARES_AT and (share := share_of_plain(row, side)):
                shares.setdefault(family, {}).setdefault(row["feature"], {})[str(row["head_dim"])] = share
    return shares


def text_over_part(rows):
    """The time of a text over that of the library's part, by feature."""
    names = dict.fromkeys(row["feature"] for row in rows if ratio(row, "text"))
    summary = {}
    for name in names:
        ratios = [value for row in rows if row["feature"] == name and (value := ratio(row, "text"))]
        summary[name] = {"geometric_mean": statistics.geometric_mean(ratios), "maximum": max(ratios),
                         "cells": len(ratios)}
    return summary


def over_fa4(row, figures):
    """flashjit over FlashAttention-4 with the same feature. FlashAttention-4's figures (PeerFigures) are of another run,
    with flashjit's plain kernel in it: what the feature costs is compared, and what the plain kernels gave there."""
    feature = figures and figures.fa4_feature(row["feature"], row["head_dim"], row["seqlen"])
    share = share_of_plain(row)
    if not feature or not share:
        return None
    return share * feature["flashjit_over_fa4"] * feature["plain_tflops"] / feature["tflops"]


def summarise_scores(rows, figures=None):
    """What is told of the rows; parts that nothing is known of are missing."""
    summary = {
        "over_flex": summarise_over_flex(rows),
        "share_of_plain": shares_of_plain(rows),
        "text_over_part": text_over_part(rows),
        "bias_over_cudnn": statistics_over([row for row in rows if FEATURES[row["feature"]].bias], over_cudnn),
        "over_fa4": {
            f"{row['feature']} d{row['head_dim']} {row['seqlen']}": value
            for row in rows if (value := over_fa4(row, figures))
        },
    }
    return {name: value for name, value in summary.items() if value}


def block_mask_shares(us):
    """What it costs to make a block mask over dense attention by the same side, by mask of that attention."""
    pairs = {"flashjit": "dense", "text": "dense", FLEX: "flex_dense"}
    return {side: {mask: us[side] / us[f"{dense}_{mask}"] for mask in ("causal", "full") if f"{dense}_{mask}" in us}
            for side, dense in pairs.items() if side in us}


# --- Text --------------------------------------------------------------------------------------------------------


def format_score_row(cell, row):
    us = row["us"]
    parts = [f"{side} {us[side]:.1f} us" for side in us]
    for title, value in (("of plain", share_of_plain(row)), ("mma of plain", share_of_plain(row, "mma")),
                         ("text", ratio(row, "text")), ("/flex", over_flex(row)),
                         ("/cudnn", over_cudnn(row))):
        if value:
            parts.append(f"{title} {value:.3f}")
    text = f"{cell}  " + ", ".join(parts)
    return text + "".join(f"\n{'':{len(str(cell))}}  {side}: {why}" for side, why in row["left_out"].items())


def format_statistics(title, values):
    return (f"{title}: geometric mean {values['geometric_mean']:.3f}, smallest {values['minimum']:.3f} "
            f"({values['smallest']}), {values['cells']} cells")


def format_score_summary(summary):
    lines = []
    if flex := summary.get("over_flex"):
        lines.append(format_statistics(f"flashjit / FlexAttention, a cell counts as {MOST:g} at most", flex))
        lines += [format_statistics(f"  {name}", values) for name, values in flex["by_feature"].items()]
    for family, features in summary.get("share_of_plain", {}).items():
        lines.append(f"of the plain causal kernel at {SHARES_AT}, {family} family:")
        lines += [f"  {name}: " + ", ".join(f"d{head_dim} {share:.3f}" for head_dim, share in shares.items())
                  for name, shares in features.items()]
    for name, values in summary.get("text_over_part", {}).items():
        lines.append(f"time of {name} as a text over the library's: geometric mean {values['geometric_mean']:.3f}, "
                     f"largest {values['maximum']:.3f}")
    if bias := summary.get("bias_over_cudnn"):
        lines.append(format_statistics("bias: flashjit / cuDNN", bias))
    for name, value in summary.get("over_fa4", {}).items():
        lines.append(f"{name}: flashjit / FlashAttention-4 of another run {value:.3f}")
    return "\n".join(lines)


def format_block_masks(masks):
    shares = ", ".join(f"{side} {masks['us'][side]:.0f} us ("
                       + ", ".join(f"{value:.3f} of {mask}" for mask, value in by_mask.items()) + ")"
                       for side, by_mask in masks["of_dense"].items())
    return f"block mask of documents at {masks['seqlen']}, over dense attention by the same side: {shares}"


def format_first_calls(calls):
    each = ", ".join(f"{kind} d{head_dim} {1e3 * values['median_s']:.0f} ms"
                     for kind, by_head_dim in calls["kinds"].items() for head_dim, values in by_head_dim.items())
    return f"first call with a new text, median of {calls['texts']}, on {calls['cores']} cores: {each}"


def format_compiles(compiles):
    each = ", ".join(f"{what} {count}" for what, count in compiles.items())
    return f"compiles for what is new: {each}"
