# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share: an engine that emulates, inputs, and attention in double precision."""

from __future__ import annotations

import functools
import os
import unittest

import flashjit
import numpy as np


@functools.lru_cache(maxsize=None)
def emulating_engine() -> flashjit.Engine:
    """One for all tests, so that each kernel is compiled once. Skips the test where there is no NVRTC."""
    engine = flashjit.Engine(emulate="sm_90a", cache_directory="")
    try:
        engine.prepare("float16", 64)
    except flashjit.NoCompiler as error:
        if os.environ.get("FLASHJIT_REQUIRE_NVRTC"):
            raise
        raise unittest.SkipTest(str(error)) from error
    return engine


def make_inputs(shape_q=(1, 16, 2, 64), seqlen_kv=32, heads_kv=2, seed=0):
    """q, k and v in float16."""
    random = np.random.default_rng(seed)
    shape_kv = (shape_q[0], seqlen_kv, heads_kv, shape_q[3])
    return tuple(random.standard_normal(shape).astype(np.float16) for shape in (shape_q, shape_kv, shape_kv))


class RaggedBatch:
    """Sequences of these numbers of queries and keys: packed one behind the other, and one by one."""

    def __init__(self, queries=(5, 0, 17, 3), keys=(9, 4, 33, 0), heads=4, heads_kv=2, head_dim=64, head_dim_v=32):
        random = np.random.default_rng(3)
        shapes = (heads, head_dim), (heads_kv, head_dim), (heads_kv, head_dim_v)
        totals = sum(queries), sum(keys), sum(keys)
        self.packed = tuple(random.standard_normal((total, *shape)).astype(np.float16)
                            for total, shape in zip(totals, shapes))
        self.cu_seqlens_q = np.cumsum((0, *queries), dtype=np.int32)
        self.cu_seqlens_kv = np.cumsum((0, *keys), dtype=np.int32)
        self.offsets = {"cu_seqlens_q": self.cu_seqlens_q, "cu_seqlens_kv": self.cu_seqlens_kv}

    def sequences(self):
        """q, k and v of each, with a batch of 1 in front."""
        q, k, v = self.packed
        for b in range(len(self.cu_seqlens_q) - 1):
            of_q, of_kv = (slice(*offsets[b:b + 2]) for offsets in (self.cu_seqlens_q, self.cu_seqlens_kv))
            yield q[None, of_q], k[None, of_kv], v[None, of_kv]

    def in_pages(self, page_size, heads_first=False):
        """k and v in pages in any order, whose memory has rows of heads or heads of rows, and what says where keys are.
        What no key needs is NaN, or the number of no page."""
        counts = np.diff(self.cu_seqlens_kv)
        entries = -(-counts // page_size)
        table = np.full((len(counts), max(entries) + 2), -1, np.int32)
        table[:, ::2] = 2**30
        order = np.random.default_rng(4).permutation(sum(entries) + 2)
        pages = [np.full((len(order), page_size, *array.shape[1:]), np.nan, np.float16) for array in self.packed[1:]]
        free = iter(order)
        for b, (_, *of_sequence) in enumerate(self.sequences()):
            for entry in range(entries[b]):
                table[b, entry] = page = next(free)
                for paged, array in zip(pages, of_sequence):
                    rows = array[0, entry * page_size:(entry + 1) * page_size]
                    paged[page, :len(rows)] = rows
        if heads_first:
            pages = [np.ascontiguousarray(paged.swapaxes(1, 2)).swapaxes(1, 2) for paged in pages]
        return pages, {"page_table": table, "seqused_kv": counts}

    def one_by_one(self, engine, **options):
        """(out, lse), packed, of a call for each."""
        results = [engine.attention(*sequence, lse=True, **options) for sequence in self.sequences()]
        return np.concatenate([out[0] for out, _ in results]), np.concatenate([lse[0] for _, lse in results], axis=1)


class NumpyArrays:
    """Of the inputs of the grids scores and gallery."""

    library = np

    @staticmethod
    def array(values, dtype):
        return np.array(values, dtype)

    @staticmethod
    def normal(shape, dtype):
        name = "float16" if dtype == "bfloat16" else dtype
        return np.random.default_rng(7).standard_normal(shape).astype(name)

    @staticmethod
    def arange(size):
        return np.arange(size)

    @staticmethod
    def whole(values):
        return values.astype(np.int32)


def visible_keys(queries, keys, causal=False, window=None, chunk=None, boolean_mask=None, documents=None, prefix=None,
                 tree=None):
    """What the masks show together: bool, to be broadcast to [batch, heads, queries, keys]."""
    own = np.arange(queries)[:, None] + keys - queries
    key = np.arange(keys)
    left, right = (keys if side == -1 else side for side in window or (-1, -1))
    visible = (key - own >= -left) & (key - own <= (0 if causal and prefix is None else right))
    if chunk is not None:
        visible = visible & (key // chunk == own // chunk)
    if prefix is not None:
        visible = visible & ((key <= own) | (key < prefix[:, None, None, None]))
    if boolean_mask is not None:
        visible = visible & boolean_mask
    if documents is not None:
        own_documents = documents[:, np.maximum(own[:, 0], 0)]
        visible = visible & (own >= 0) & (own_documents[:, None, :, None] == documents[:, None, None, :])
    if tree is not None:
        node = np.maximum(key - (keys - queries), 0)
        bits = np.take(tree, node // 64, axis=2) >> node % 64 & 1
        visible = visible & ((key < keys - queries) | (bits[:, None] == 1))
    return visible


def philox(counter, key):
    """Philox4x32 with seven rounds, of arrays of uint64 below 2**32."""
    low = np.uint64(0xffffffff)
    for _ in range(7):
        first, second = np.uint64(0xd2511f53) * counter[0], np.uint64(0xcd9e8d57) * counter[2]
        counter = ((second >> np.uint64(32)) ^ counter[1] ^ key[0], second & low,
                   (first >> np.uint64(32)) ^ counter[3] ^ key[1], first & low)
        key = (key[0] + np.uint64(0x9e3779b9)) & low, (key[1] + np.uint64(0xbb67ae85)) & low
    return counter


def random_halves(shape, seed, offset):
    """The float16 that dropout compares, of (batch, heads, queries, keys), by the words of dropout.h."""
    batch, head, query, key = (index.astype(np.uint64) for index in np.indices(shape))
    words = (np.full(shape, word, np.uint64) for word in (offset & 0xffffffff, seed & 0xffffffff, seed >> 32 ^ offset >> 32))
    offset_low, *keys = words
    block = philox((query, key & ~np.uint64(25), batch * np.uint64(shape[1]) + head, offset_low), tuple(keys))
    word = np.choose((key >> np.uint64(3) & np.uint64(3)).astype(int), block)
    return (word >> np.uint64(16) * (key & np.uint64(1))).astype(np.uint16).view(np.float16)


def reference(q, k, v, scale=None, softcap=None, alibi_slopes=None, sinks=None, bias=None, change=None, hidden=None,
              kept=None, share=1.0, **masks):
    """(out, lse) in float64. change makes other scores of [batch, heads, queries, keys]; hidden is bool of that, and so
    is kept, a share of all."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (np.moveaxis(array.astype(np.float64), 2, 1) for array in (q, k, v))
    k, v = (np.repeat(array, group, axis=1) for array in (k, v))
    scores = (q @ k.swapaxes(2, 3)) * (q.shape[3]**-0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    rows, columns = scores.shape[2:]
    if alibi_slopes is not None:
        behind = np.arange(columns) - (np.arange(rows)[:, None] + columns - rows)
        scores = scores - alibi_slopes.astype(np.float64)[..., None, None] * np.abs(behind)
    if bias is not None:
        scores = scores + bias.astype(np.float64)
    if change is not None:
        scores = change(scores)
    scores = np.where(visible_keys(rows, columns, **masks), scores, -np.inf)
    if hidden is not None:
        scores = np.where(hidden, -np.inf, scores)
    top = scores.max(axis=3, keepdims=True)
    weights = np.exp(scores - np.where(top == -np.inf, 0, top))
    total = weights.sum(axis=3, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks.astype(np.float64)[..., None, None] - top)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    weights = weights / np.where(total == 0, 1, total)
    if kept is not None:
        weights = weights * kept / share
    return np.moveaxis(weights @ v, 1, 2), lse


class Stopwatch:
    """Stands for that of bench/compare_peers.py where there is no GPU: the n-th side takes n milliseconds."""

    def milliseconds(self, launchers, rounds=1):
        return {name: float(number) for number, name in enumerate(launchers, 1)}

    def gemm_tflops(self):
        return 700.0

    def wait(self):
        pass
