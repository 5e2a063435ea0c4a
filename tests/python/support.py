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


def reference(q, k, v, causal=False, window=None, chunk=None, scale=None, softcap=None, alibi_slopes=None, sinks=None):
    """(out, lse) in float64; each query must see a key."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (np.moveaxis(array.astype(np.float64), 2, 1) for array in (q, k, v))
    k, v = (np.repeat(array, group, axis=1) for array in (k, v))
    scores = (q @ k.swapaxes(2, 3)) * (q.shape[3]**-0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    rows, columns = scores.shape[2:]
    own = np.arange(rows)[:, None] + columns - rows
    behind = np.arange(columns) - own
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.astype(np.float64)[..., None, None] * np.abs(behind)
    left, right = (columns if keys == -1 else keys for keys in window or (-1, -1))
    hidden = (behind < -left) | (behind > (0 if causal else right))
    if chunk is not None:
        hidden |= np.arange(columns) // chunk != own // chunk
    scores = np.where(hidden, -np.inf, scores)
    top = scores.max(axis=3, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(axis=3, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks.astype(np.float64)[..., None, None] - top)
    return np.moveaxis(weights / total @ v, 1, 2), (top + np.log(total))[..., 0]
