# SPDX-License-Identifier: Apache-2.0
"""The cells of the grid ragged of compare_peers.py, packed sequences of different lengths, and what is made of their
times. Needs neither a GPU nor PyTorch.

A row is {"batch", "head_dim", "heads", "sequences", "longest", "tokens", "us", "dense_us", "left_out"}. us: microseconds of
each side that ran, the mean of its turns' medians; dense_us: what the same sequences take by the dense kernel's time for
each FLOP at their lengths, measured in the same run."""

import math
import random
import statistics
import typing

from attention_grid import HIDDEN, Cell

TOKENS = 65536
HEAD_DIMS = (64, 128)
DENSE_AT = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # lengths at which the dense kernel is timed
SEED = 7
SHORTEST, LONGEST = 16, 16384


def long_tailed():
    """Log-normal, as prompts are: half of them below 545 tokens, one in twenty above 3900."""
    draw = random.Random(SEED)
    while True:
        yield max(SHORTEST, min(LONGEST, int(math.exp(draw.gauss(6.3, 1.2)))))


def equal(length):
    while True:
        yield length


BATCHES = {"long_tailed": long_tailed, "of_512": lambda: equal(512), "of_1024": lambda: equal(1024),
           "of_4096": lambda: equal(4096)}


def lengths_of(name):
    """So many sequences that they have TOKENS tokens together; the last one is cut."""
    lengths, left = [], TOKENS
    for length in BATCHES[name]():
        lengths.append(min(length, left))
        left -= lengths[-1]
        if left == 0:
            return lengths


class RaggedCell(typing.NamedTuple):
    name: str
    shape: Cell  # of the longest sequence

    @property
    def lengths(self):
        return lengths_of(self.name)

    def __str__(self):
        return f"d{self.shape.head_dim:<3} {self.name:<11} {self.shape.batch:>3} sequences, longest {self.shape.seqlen:>5}"


def ragged_grid(names=tuple(BATCHES), head_dims=HEAD_DIMS):
    cells = []
    for name in names:
        lengths = lengths_of(name)
        for head_dim in sorted(head_dims, reverse=True):
            heads = HIDDEN // head_dim
            cells.append(RaggedCell(name, Cell(head_dim, "causal", max(lengths), len(lengths), heads, heads, max(lengths))))
    return cells


def dense_microseconds(lengths, us_at):
    """us_at: length -> microseconds of TOKENS tokens in sequences of it. Between two the time for each FLOP follows a power of
    the length."""
    known = sorted(us_at)

    def per_pair(length):
        return us_at[length] / (TOKENS // length * length**2)

    def us(length):
        below = max((at for at in known if at <= length), default=known[0])
        above = min((at for at in known if at >= length), default=known[-1])
        share = 0 if below == above else math.log(length / below) / math.log(above / below)
        return length**2 * per_pair(below)**(1 - share) * per_pair(above)**share

    return sum(us(length) for length in lengths)


def ragged_row(cell, us, left_out, us_at):
    lengths = cell.lengths
    return {"batch": cell.name, "head_dim": cell.shape.head_dim, "heads": cell.shape.heads, "sequences": len(lengths),
            "longest": max(lengths), "tokens": sum(lengths), "us": us,
            "dense_us": dense_microseconds(lengths, us_at), "left_out": left_out}


def of_dense(row):
    """The rate as a share of the dense kernel's."""
    return row["dense_us"] / row["us"]["flashjit"] if "flashjit" in row["us"] else None


def over(row, peer, side="flashjit"):
    us = row["us"]
    return us[peer] / us[side] if peer in us and side in us else None


def summarise_ragged(rows):
    """measure -> geometric mean and smallest value over the rows that have it."""
    measures = {"of_dense": of_dense, "over_fa2": lambda row: over(row, "fa2"),
                "mma_over_fa2": lambda row: over(row, "fa2", "mma")}
    summary = {}
    for name, measure in measures.items():
        if values := [value for row in rows if (value := measure(row))]:
            summary[name] = {"geometric_mean": statistics.geometric_mean(values), "minimum": min(values),
                             "cells": len(values)}
    return summary


def format_ragged_row(cell, row):
    parts = [f"{side} {us:.1f} us" for side, us in row["us"].items()] + [f"dense {row['dense_us']:.1f} us"]
    for title, value in (("of dense", of_dense(row)), ("/fa2", over(row, "fa2")), ("mma /fa2", over(row, "fa2", "mma"))):
        if value:
            parts.append(f"{title} {value:.3f}")
    return f"{cell}  " + ", ".join(parts) + "".join(f"\n  {side}: {why}" for side, why in row["left_out"].items())


def format_ragged_summary(summary):
    titles = {"of_dense": "of the dense kernel", "over_fa2": "flashjit / FlashAttention-2",
              "mma_over_fa2": "mma / FlashAttention-2"}
    return "\n".join(f"{titles[name]}: geometric mean {values['geometric_mean']:.3f}, smallest {values['minimum']:.3f}, "
                     f"{values['cells']} cells" for name, values in summary.items())
