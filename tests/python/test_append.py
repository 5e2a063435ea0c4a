# SPDX-License-Identifier: Apache-2.0
"""flashjit.append on NumPy arrays, in the emulator."""

import unittest

import flashjit
import numpy as np
from support import emulating_engine


def turned(rows, cos, sin, positions, interleaved):
    """[total, heads, head_dim], each row by its position."""
    half = cos.shape[1]
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half),
                                                                                       slice(half, 2 * half))
    out, rows = rows.copy(), rows.astype(np.float32)
    cosines, sines = cos[positions][:, None], sin[positions][:, None]
    out[..., first] = rows[..., first] * cosines - rows[..., second] * sines
    out[..., second] = rows[..., second] * cosines + rows[..., first] * sines
    return out


class Appends(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.engine = emulating_engine()
        random = np.random.default_rng(0)
        cls.k, cls.v, cls.q = (random.standard_normal((7, heads, dim)).astype(np.float16)
                               for heads, dim in ((2, 64), (2, 32), (6, 64)))
        angles = np.arange(50)[:, None] / 100**(np.arange(16) / 16)
        cls.cos, cls.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def caches(self, *shape):
        return np.full((*shape, 2, 64), np.nan, np.float16), np.full((*shape, 2, 32), np.nan, np.float16)

    def test_slots(self):
        slots = np.array([17, 3, -1, 0, 11, 12, 4])
        for dtype in (np.int32, np.int64):
            k_cache, v_cache = self.caches(5, 4)
            self.assertIsNone(self.engine.append(self.k, self.v, k_cache, v_cache, slots=slots.astype(dtype)))
            for rows, cache in ((self.k, k_cache), (self.v, v_cache)):
                wanted = np.full_like(cache, np.nan)
                wanted.reshape(20, *rows.shape[1:])[slots[slots >= 0]] = rows[slots >= 0]
                np.testing.assert_array_equal(cache, wanted)

    def test_pages_and_rotary_embedding(self):
        starts, used = np.int32([0, 3, 3, 7]), np.int32([9, 2, 5])
        table = np.int32([[4, 0, 2], [-1, -1, -1], [1, 3, 5]])
        places = [(table[b, row // 4], row % 4) for b in (0, 2)
                  for row in range(used[b] - (starts[b + 1] - starts[b]), used[b])]
        positions = np.array([6, 7, 8, 1, 2, 3, 4])
        for interleaved in (False, True):
            k_cache, v_cache = self.caches(6, 4)
            q = self.engine.append(self.k, self.v, k_cache, v_cache, seqused_kv=used, cu_seqlens=starts,
                                   page_table=table, rotary_cos=self.cos, rotary_sin=self.sin,
                                   rotary_interleaved=interleaved, q=self.q)
            keys = turned(self.k, self.cos, self.sin, positions, interleaved)
            for token, (page, row) in enumerate(places):
                np.testing.assert_allclose(k_cache[page, row], keys[token], atol=2e-3)
                np.testing.assert_array_equal(v_cache[page, row], self.v[token])
            self.assertEqual(np.isfinite(k_cache).sum(), keys.size)
            np.testing.assert_allclose(q, turned(self.q, self.cos, self.sin, positions, interleaved), atol=4e-3)

    def test_batch_entries_and_queries_in_place(self):
        k, v, q = (rows[:6].reshape(3, 2, *rows.shape[1:]) for rows in (self.k, self.v, self.q))
        k_cache, v_cache = self.caches(4, 8)
        positions = np.int64([9, 8, 7, 6, 5, 4])
        out = q.copy()
        returned = self.engine.append(k, v, k_cache, v_cache, seqused_kv=np.int32([2, 8, 5]),
                                      batch_indices_kv=np.int32([3, 0, 1]), rotary_cos=self.cos, rotary_sin=self.sin,
                                      positions=positions, q=out, q_out=out)
        self.assertIs(returned, out)
        wanted = turned(self.q[:6], self.cos, self.sin, positions, False)
        np.testing.assert_allclose(out.reshape(wanted.shape), wanted, atol=4e-3)
        np.testing.assert_array_equal(v_cache[3, :2], v[0])
        np.testing.assert_array_equal(v_cache[0, 6:], v[1])
        np.testing.assert_array_equal(v_cache[1, 3:5], v[2])
        self.assertEqual(np.isfinite(v_cache).sum(), v.size)

    def test_bad_arguments(self):
        k_cache, v_cache = self.caches(5, 4)
        slots = np.arange(7)
        for options, message in (
                ({}, "seqused_kv: must be given without slots, was not"),
                ({"slots": slots.astype(np.float32)}, "slots: dtype must be i32 or i64, was f32"),
                ({"slots": "x"}, "slots: must be an array"),
                ({"slots": slots[:5]}, "slots: must have 7 elements, one for each token of k, had 5"),
                ({"slots": slots, "q": self.q}, "q: must not be given without rotary_cos"),
                ({"slots": slots, "rotary_cos": self.cos, "rotary_sin": self.sin},
                 "positions: must be given beside slots with rotary_cos, was not"),
        ):
            with self.subTest(message=message), self.assertRaisesRegex(flashjit.InvalidArgument, message):
                self.engine.append(self.k, self.v, k_cache, v_cache, **options)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "v_cache: head_dim must be 32 like that of v, was 64"):
            self.engine.append(self.k, self.v, k_cache, k_cache.copy(), slots=slots)
        k_cache.setflags(write=False)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "k_cache: .*read-?only"):
            self.engine.append(self.k, self.v, k_cache, v_cache, slots=slots)
        self.assertTrue(np.isnan(k_cache).all() and np.isnan(v_cache).all())


if __name__ == "__main__":
    unittest.main()
