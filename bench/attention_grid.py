# SPDX-License-Identifier: Apache-2.0
"""The cells that compare_peers.py measures, what bench/peers and bench/variants say of each, and what is made of the
results. Needs neither a GPU nor PyTorch."""

import itertools
import json
import math
import re
import statistics
import typing

TOKENS = 16384
HIDDEN = 2048
HEAD_DIMS = (64, 128, 256)
MASKS = ("full", "causal")
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)
QUICK_SEQLENS = (1024, 8192)
BEST = "best"  # stands among the peers for the best of them
BYTES = 2  # of an element


class Cell(typing.NamedTuple):
    """One shape of a grid. seqlen is that of the keys."""

    head_dim: int
    mask: str
    seqlen: int
    batch: int
    heads: int
    heads_kv: int
    seqlen_q: int

    @classmethod
    def of(cls, row):
        """That of a row that result() made."""
        return cls(mask="causal" if row["causal"] else "full", **{key: row[key] for key in cls._fields if key != "mask"})

    @property
    def causal(self):
        return self.mask == "causal"

    @property
    def decodes(self):
        return self.seqlen_q == 1

    def flops(self):
        full = 4 * self.batch * self.heads * self.seqlen_q * self.seqlen * self.head_dim
        return full / 2 if self.causal else full

    def bytes_of_keys(self):
        """K and V, which is nearly all that decoding reads."""
        return 2 * math.prod(self.shape_of_keys()) * BYTES

    def bytes_of_tensors(self):
        return self.bytes_of_keys() + 2 * math.prod(self.shape()) * BYTES

    def microseconds(self, tflops):
        return self.flops() / tflops / 1e6

    def gigabytes_per_second(self, tflops):
        """Of K and V, at this rate."""
        return self.bytes_of_keys() / self.microseconds(tflops) / 1e3

    def shape(self):
        return (self.batch, self.seqlen_q, self.heads, self.head_dim)

    def shape_of_keys(self):
        return (self.batch, self.seqlen, self.heads_kv, self.head_dim)

    def __str__(self):
        heads = f"h{self.heads}" if self.heads == self.heads_kv else f"h{self.heads}/{self.heads_kv}"
        what = "decode" if self.decodes else self.mask
        return f"d{self.head_dim:<3} {what:<6} {self.seqlen:>6} b{self.batch:<2} {heads:<6}"


def paper_cell(head_dim, mask, seqlen):
    """A shape of the FlashAttention-3 paper."""
    heads = HIDDEN // head_dim
    return Cell(head_dim, mask, seqlen, TOKENS // seqlen, heads, heads, seqlen)


def grid(head_dims=HEAD_DIMS, masks=MASKS, seqlens=SEQLENS):
    """The paper's shapes."""
    return [paper_cell(*values) for values in itertools.product(head_dims, masks, seqlens)]


def prefill(seqlen, heads, heads_kv):
    return Cell(128, "causal", seqlen, TOKENS // seqlen, heads, heads_kv, seqlen)


def decode(batch, seqlen, heads, heads_kv):
    return Cell(128, "full", seqlen, batch, heads, heads_kv, 1)


# Grouped heads as models of 8 and 70 billion parameters have them: prompts, then one query on a cache of keys.
SERVING = (
    *(prefill(seqlen, 32, 8) for seqlen in (1024, 4096, 16384)),
    prefill(4096, 64, 8),
    *(decode(batch, 8192, 32, 8) for batch in (1, 16, 64)),
    decode(16, 32768, 32, 8),
    decode(1, 131072, 32, 8),
    decode(64, 4096, 64, 8),
)
GRIDS = {"full": tuple(grid()), "quick": tuple(grid(seqlens=QUICK_SEQLENS)), "serving": SERVING}


class ListedVariant(typing.NamedTuple):
    """A line of a variants file: a spelling and the cells that it is for."""

    head_dim: int
    mask: str
    spelling: str
    shortest: int
    longest: int

    def is_for(self, cell):
        return (self.head_dim, self.mask) == (cell.head_dim, cell.mask) and self.shortest <= cell.seqlen <= self.longest


VARIANT_LINE = re.compile(
    r"(?P<head_dim>\d+)\s+(?P<mask>\w+)\s+(?P<spelling>[a-z0-9-]+)(\s+(?P<shortest>\d+)-(?P<longest>\d+))?"
)


def parse_variants(text, name):
    """The variants that the file called name lists: head_dim mask variant [shortest-longest], # begins a comment.
    ValueError names the line."""
    listed = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = VARIANT_LINE.fullmatch(line)
        if not match:
            raise ValueError(f"{name}:{number}: must be 'head_dim mask variant [shortest-longest]', was '{line}'")
        if match["mask"] not in MASKS:
            raise ValueError(f"{name}:{number}: mask must be full or causal, was '{match['mask']}'")
        lengths = (int(match["shortest"]), int(match["longest"])) if match["shortest"] else (SEQLENS[0], SEQLENS[-1])
        listed.append(ListedVariant(int(match["head_dim"]), match["mask"], match["spelling"], *lengths))
    return listed


def slug(device):
    """The name of a device's files: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


class PeerFigures:
    """A file of bench/peers: how the best peer of each cell compares with cuDNN, measured once, because not every peer
    can be run wherever this can. A rate moves by some percent with power and clocks; a ratio of two much less.
    of_pass: forward, backward or e4m3, each of which has cells of its own."""

    def __init__(self, text, of_pass="forward"):
        self.record, self.of_pass = json.loads(text), of_pass
        self.cells = {
            paper_cell(cell["head_dim"], cell["mask"], cell["seqlen"]): cell
            for cell in self.record["cells"]
            if cell["pass"] == of_pass
        }

    def best(self, cell, cudnn_tflops):
        """Name and rate of the best peer, given the rate of cuDNN now; None for a cell that the file does not have."""
        known = self.cells.get(cell)
        return known and {"name": known["best"], "tflops": cudnn_tflops * known["best_over_cudnn"]}


    def ratios(self, row):
        """flashjit over the peers that the file knows beside cuDNN: FlashAttention-3 by its ratio to cuDNN, which the row
        has too; FlashAttention-4 as it was measured beside flashjit, backward by its ratio to cuDNN, too."""
        known = self.cells.get(paper_cell(row["head_dim"], "causal" if row["causal"] else "full", row["seqlen"]))
        if known is None or "cudnn" not in row["over"]:
            return {}
        over_cudnn = row["over"]["cudnn"]
        fa4 = over_cudnn / known["fa4_over_cudnn"] if self.of_pass == "backward" else known["flashjit_over_fa4"]
        return {"fa3": over_cudnn * known["cudnn_tflops"] / known["fa3_tflops"], "fa4": fa4}

    def fa4_feature(self, name, head_dim, seqlen):
        """FlashAttention-4 with a score, causal, and what is known of the plain kernels of that run; None if it was not
        measured."""
        rates = self.record.get("fa4", {}).get("features", {}).get(name, {}).get(str(head_dim), {})
        plain = self.cells.get(paper_cell(head_dim, "causal", seqlen))
        if str(seqlen) not in rates or plain is None:
            return None
        return {"tflops": rates[str(seqlen)], "plain_tflops": plain["fa4_tflops"],
                "flashjit_over_fa4": plain["flashjit_over_fa4"]}


def described(cell):
    """What a row says of its cell."""
    return {name: value for name, value in cell._asdict().items() if name != "mask"} | {"causal": cell.causal}


def result(cell, tflops, ours, figures=None):
    """The row of a cell. tflops: rates of all that ran; ours: which of them are flashjit's; figures: PeerFigures."""
    fastest = max(ours, key=tflops.get)
    peers = {name: rate for name, rate in tflops.items() if name not in ours}
    row = described(cell) | {"variant": fastest, "tflops": {"flashjit": tflops[fastest], **peers}}
    if len(ours) > 1:
        row["variants"] = {name: tflops[name] for name in sorted(ours, key=tflops.get, reverse=True)}
    best = figures.best(cell, peers["cudnn"]) if figures and "cudnn" in peers else None
    if best:
        row["best_peer"] = best["name"]
        row["tflops"][BEST] = best["tflops"]
    row["over"] = {name: tflops[fastest] / rate for name, rate in row["tflops"].items() if name != "flashjit"}
    return row


def summarise(rows):
    """For each peer the geometric mean of flashjit / peer over the cells that it ran, of all and by head dim, and the
    minimum."""
    summary = {}
    for peer in dict.fromkeys(peer for row in rows for peer in row["over"]):
        ratios = {}
        for row in rows:
            if peer in row["over"]:
                ratios.setdefault(row["head_dim"], []).append(row["over"][peer])
        values = [value for some in ratios.values() for value in some]
        summary[peer] = {
            "geometric_mean": statistics.geometric_mean(values),
            "by_head_dim": {str(head_dim): statistics.geometric_mean(some) for head_dim, some in ratios.items()},
            "minimum": min(values),
            "cells": len(values),
        }
    return summary


def summary_by(measures, rows):
    """measure -> geometric mean, smallest and largest value over the rows that have it. measures: name -> of a row its value,
    or None."""
    summary = {}
    for name, measure in measures.items():
        if values := [value for row in rows if (value := measure(row))]:
            summary[name] = {"geometric_mean": statistics.geometric_mean(values), "minimum": min(values),
                             "maximum": max(values), "cells": len(values)}
    return summary
