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


def reference(q, k, v, scale=None, softcap=None, alibi_slopes=None, sinks=None, bias=None, change=None, hidden=None,
              **masks):
    """(out, lse) in float64. change makes other scores of [batch, heads, queries, keys]; hidden is bool of that."""
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
    return np.moveaxis(weights / np.where(total == 0, 1, total) @ v, 1, 2), lse
