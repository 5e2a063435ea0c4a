# SPDX-License-Identifier: Apache-2.0
"""The cells of the grid decode of compare_peers.py, one or a few new queries against caches of keys, and what is made of
their times. Needs neither a GPU nor PyTorch.

A row is {"group", "batch", "heads", "heads_kv", "context", "queries", "cache_bytes", "us", "left_out"}. us: microseconds of
each side that ran, of a launch in a graph whose launches read other caches by turns, so that none is found in L2."""

import typing

from attention_grid import Cell, summary_by

HEAD_DIM = 128
ELEMENT_BYTES = 2
PAGE_SIZES = (16, 64, 256)
PEER_SIDES = ("cudnn", "cudnn_heads_first", "fa2", "fa2_heads_first")
E4M3_SIDES = ("e4m3", "e4m3_token_scales")  # the same cache in 8 bits, with a scale for each head, or token and head
PAGED_BYTES = 100e6  # of a cache from which on pages are compared with none
HEADS = ((32, 8), (32, 32), (64, 8))


class DecodeCell(typing.NamedTuple):
    group: str
    batch: int
    heads: int
    heads_kv: int
    context: int
    queries: int = 1

    @property
    def shape(self):
        """As cells of other grids have it."""
        return Cell(HEAD_DIM, "causal", self.context, self.batch, self.heads, self.heads_kv, self.queries)

    @property
    def cache_bytes(self):
        """Of keys and values of 16 bits."""
        return 2 * self.batch * self.context * self.heads_kv * HEAD_DIM * ELEMENT_BYTES

    @property
    def page_sizes(self):
        return PAGE_SIZES if self.group in ("large", "queries") else ()

    @property
    def has_peers(self):
        return self.group in ("large", "small")

    def __str__(self):
        return (f"{self.group:<7} batch {self.batch:>2} heads {self.heads}/{self.heads_kv:<2} context {self.context:>6} "
                f"queries {self.queries}")


def large():
    return [DecodeCell("large", *sizes) for sizes in ((64, 32, 8, 8192), (16, 32, 8, 32768), (1, 32, 8, 131072),
                                                      (64, 64, 8, 4096))]


def small():
    return [DecodeCell("small", batch, *heads, context) for heads in HEADS for batch in (1, 2, 4, 8)
            for context in (1024, 4096, 16384, 65536, 131072)]


def queries():
    return [DecodeCell("queries", 64, 32, 8, 8192, count) for count in (1, 2, 4)]


def e4m3():
    sizes = ((64, 32, 8, 8192), (16, 32, 8, 32768), (1, 32, 8, 131072), (64, 64, 8, 4096), (8, 32, 8, 4096),
             *((1, 32, 8, context) for context in (1024, 4096, 16384)))
    return [DecodeCell("e4m3", *of_cell) for of_cell in sizes]


GROUPS = {"large": large, "small": small, "queries": queries, "e4m3": e4m3}


def decode_grid(names=tuple(GROUPS)):
    return [cell for name in names for cell in GROUPS[name]()]


def decode_row(cell, us, left_out):
    return {"group": cell.group, "batch": cell.batch, "heads": cell.heads, "heads_kv": cell.heads_kv,
            "context": cell.context, "queries": cell.queries, "cache_bytes": cell.cache_bytes, "us": us,
            "left_out": left_out}


def best_peer(row):
    return min((row["us"][side] for side in PEER_SIDES if side in row["us"]), default=None)


def over_best(row):
    """Of the best peer's time to ours: above 1, flashjit is faster."""
    best = best_peer(row)
    return best / row["us"]["flashjit"] if best and "flashjit" in row["us"] else None


def of_contiguous(row, page_size):
    us = row["us"]
    side = f"pages_{page_size}"
    return us["flashjit"] / us[side] if row["cache_bytes"] > PAGED_BYTES and {"flashjit", side} <= us.keys() else None


def of_one_query(row, rows):
    """The time of some queries as a multiple of that of one."""
    one = next((other for other in rows if other["group"] == "queries" and other["queries"] == 1), None)
    if row["group"] != "queries" or row["queries"] == 1 or not one or not {"flashjit"} <= row["us"].keys() & one["us"].keys():
        return None
    return row["us"]["flashjit"] / one["us"]["flashjit"]


def of_16_bits(row, side):
    """How many times as many tokens a second a cache of 8 bits gives."""
    return row["us"]["flashjit"] / row["us"][side] if {"flashjit", side} <= row["us"].keys() else None


def summarise_decode(rows):
    """As summary_by has it."""
    measures = {f"{group}_over_best": lambda row, group=group: over_best(row) if row["group"] == group else None
                for group in ("large", "small")}
    measures |= {f"pages_{size}_of_contiguous": lambda row, size=size: of_contiguous(row, size) for size in PAGE_SIZES}
    measures["queries_of_one"] = lambda row: of_one_query(row, rows)
    measures |= {f"{side}_of_16_bits": lambda row, side=side: of_16_bits(row, side) for side in E4M3_SIDES}
    return summary_by(measures, rows)


def format_decode_row(cell, row):
    parts = [f"{side} {us:.1f}" for side, us in row["us"].items()]
    if ratio := over_best(row):
        parts.append(f"/best {ratio:.3f}")
    if "flashjit" in row["us"]:
        parts.append(f"{row['cache_bytes'] / row['us']['flashjit'] / 1e3:.0f} GB/s")
    return f"{cell}  us: " + ", ".join(parts) + "".join(f"\n  {side}: {why}" for side, why in row["left_out"].items())


def format_decode_summary(summary):
    return "\n".join(f"{name.replace('_', ' ')}: geometric mean {values['geometric_mean']:.3f}, from "
                     f"{values['minimum']:.3f} to {values['maximum']:.3f}, {values['cells']} cells"
                     for name, values in summary.items())
