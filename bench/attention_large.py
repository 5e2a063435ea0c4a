# SPDX-License-Identifier: Apache-2.0
"""The cells of the grid large of compare_peers.py, head dims above 256: prompts of head dim 512, MLA's absorbed decode, the
same with latent columns of e4m3 beside 16-bit rotary ones, and decode with 8 query heads to one; and what is made of their
times. Needs neither a GPU nor PyTorch.

A row is {"group", "batch", "heads", "heads_kv", "context", "queries", "mask", "cache_bytes", "us", "left_out"}, us as in the
grid decode."""

import typing

from attention_grid import Cell, summary_by

ELEMENT_BYTES = 2
HIDDEN, TOKENS = 2048, 16384
PROMPTS, MLA, MLA_E4M3, DECODE = "prompts", "mla", "mla_e4m3", "decode"
HEAD_DIMS = {PROMPTS: (512, 512), MLA: (576, 512), MLA_E4M3: (576, 512), DECODE: (512, 512)}  # of q and k, and of v
SCALE_BYTES = 4  # of each token of a cache of e4m3
EFFICIENT, READ = "efficient", "read"  # PyTorch's memory-efficient back end, and a plain read of the cache
# Sides of flashjit: the default, that over pages of 64, and pairs of blocks that share keys, which are asked for.
DEFAULT, PAGES, PAIRS = "flashjit", "pages_64", "pairs"
PAGE_SIZE, PAIRS_VARIANT = 64, "hopper-q64-kv64-s1-ppoff-cl2-rare-single-splitkv"


class LargeCell(typing.NamedTuple):
    group: str
    batch: int
    heads: int
    heads_kv: int
    context: int
    queries: int
    mask: str = "full"

    @property
    def head_dims(self):
        return HEAD_DIMS[self.group]

    @property
    def shape(self):
        """As cells of other grids have it."""
        return Cell(self.head_dims[0], self.mask, self.context, self.batch, self.heads, self.heads_kv, self.queries)

    @property
    def row_bytes(self):
        """Of keys and values of a token: of MLA the values are columns of the keys."""
        head_dim, head_dim_v = self.head_dims
        if self.group == MLA_E4M3:
            return head_dim_v + (head_dim - head_dim_v) * ELEMENT_BYTES + SCALE_BYTES
        return (head_dim + (0 if self.group == MLA else head_dim_v)) * ELEMENT_BYTES

    @property
    def cache_bytes(self):
        """What has to be read once."""
        return self.batch * self.context * self.heads_kv * self.row_bytes

    @property
    def has_pairs(self):
        """Whether a kernel serves it whose blocks come in pairs."""
        return self.group in (MLA, DECODE)

    @property
    def operations(self):
        whole = 2 * self.batch * self.heads * self.queries * self.context * sum(self.head_dims)
        return whole / 2 if self.mask == "causal" else whole

    def __str__(self):
        return (f"{self.group:<8} {self.mask:<6} batch {self.batch:>3} heads {self.heads}/{self.heads_kv} "
                f"context {self.context:>5} queries {self.queries}")


def prompts():
    heads = HIDDEN // HEAD_DIMS[PROMPTS][0]
    return [LargeCell(PROMPTS, TOKENS // seqlen, heads, heads, seqlen, seqlen, mask) for mask in ("full", "causal")
            for seqlen in (1024, 2048, 4096, 8192, 16384)]


def mla():
    return [LargeCell(MLA, batch, 128, 1, context, 1)
            for batch, context in ((64, 4096), (64, 8192), (128, 4096), (128, 8192), (8, 8192), (1, 8192))]


def mla_e4m3():
    return [LargeCell(MLA_E4M3, batch, 128, 1, context, 1) for batch in (64, 128) for context in (4096, 8192)]


def decode():
    return [LargeCell(DECODE, 64, 8, 1, 8192, 1)]


GROUPS = {PROMPTS: prompts, MLA: mla, MLA_E4M3: mla_e4m3, DECODE: decode}


def large_grid(names=tuple(GROUPS)):
    return [cell for name in names for cell in GROUPS[name]()]


def large_row(cell, us, left_out):
    return {"group": cell.group, "batch": cell.batch, "heads": cell.heads, "heads_kv": cell.heads_kv,
            "context": cell.context, "queries": cell.queries, "mask": cell.mask, "cache_bytes": cell.cache_bytes,
            "us": us, "left_out": left_out}


def cell_of(row):
    return LargeCell(*(row[name] for name in ("group", "batch", "heads", "heads_kv", "context", "queries", "mask")))


def ours(row):
    """Microseconds of the default."""
    return row["us"].get(DEFAULT)


def rates(row):
    """TFLOPS of each side."""
    return {side: cell_of(row).operations / us / 1e6 for side, us in row["us"].items()}


def tflops(row):
    return rates(row).get(DEFAULT)


def over(side, group):
    """How many times the side's time is ours."""

    def measure(row):
        return row["us"][side] / ours(row) if row["group"] == group and side in row["us"] and ours(row) else None

    return measure


def of_16_bits(row, rows):
    """How many times as many tokens a second the same cache of MLA gives with latent columns of e4m3."""
    if row["group"] != MLA_E4M3 or not ours(row):
        return None
    whole = next((ours(other) for other in rows if cell_of(other) == cell_of(row)._replace(group=MLA)), None)
    return whole / ours(row) if whole else None


def summarise_large(rows):
    """As summary_by has it."""
    measures = {f"{group}_tflops": lambda row, group=group: tflops(row) if row["group"] == group else None for group in GROUPS}
    measures |= {"prompts_over_efficient": over(EFFICIENT, PROMPTS)}
    measures |= {f"{group}_of_read": over(READ, group) for group in (MLA, MLA_E4M3, DECODE)}
    measures |= {f"{group}_of_pages": over(PAGES, group) for group in (MLA, MLA_E4M3)}
    measures["mla_e4m3_of_16_bits"] = lambda row: of_16_bits(row, rows)
    return summary_by(measures, rows)


def format_large_row(cell, row):
    parts = [f"{side} {us:.1f}" for side, us in row["us"].items()]
    if ours(row):
        parts.append(f"{tflops(row):.0f} TFLOPS, {cell.cache_bytes / ours(row) / 1e3:.0f} GB/s")
    return f"{cell}  us: " + ", ".join(parts) + "".join(f"\n  {side}: {why}" for side, why in row["left_out"].items())
