# SPDX-License-Identifier: Apache-2.0
"""flashjit.merge on NumPy arrays, in the emulator."""

import unittest

import flashjit
import numpy as np
from support import emulating_engine, make_inputs, reference


class Merges(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.engine = emulating_engine()

    def attend(self, q, k, v, first, end):
        return self.engine.attention(q, k[:, first:end], v[:, first:end], lse=True)

    def test_parts_of_the_keys_give_attention_over_all_of_them(self):
        q, k, v = make_inputs()
        keys = k.shape[1]
        cuts = [0, 1, keys // 2, keys]
        parts = [self.attend(q, k, v, first, end) for first, end in zip(cuts, cuts[1:])]
        out, lse = self.engine.merge(parts)
        wanted, wanted_lse = reference(q, k, v)
        self.assertEqual((out.dtype, lse.dtype), (np.float16, np.float32))
        np.testing.assert_allclose(out, wanted, atol=3e-3)
        np.testing.assert_allclose(lse, wanted_lse, atol=2e-3)
        exact, _ = self.engine.merge(parts, out=np.empty(out.shape, np.float32))
        self.assertEqual(exact.dtype, np.float32)
        np.testing.assert_allclose(exact, wanted, atol=3e-3)

    def test_in_place_and_many(self):
        random = np.random.default_rng(1)
        outs = random.standard_normal((20, 1, 5, 2, 16)).astype(np.float32)
        lses = random.standard_normal((20, 1, 2, 5)).astype(np.float32)
        lses[3:] = -np.inf
        outs[3:] = np.nan
        weights = np.exp(lses[:3])
        wanted = (outs[:3] * weights.transpose(0, 1, 3, 2)[..., None]).sum(0)
        wanted /= weights.sum(0).transpose(0, 2, 1)[..., None]
        wanted_lse = np.log(weights.sum(0))
        out, lse = self.engine.merge(list(zip(outs, lses)), out=outs[1], lse=lses[1])
        self.assertTrue(np.shares_memory(out, outs[1]) and np.shares_memory(lse, lses[1]))
        np.testing.assert_allclose(out, wanted, atol=1e-5)
        np.testing.assert_allclose(lse, wanted_lse, atol=1e-5)

    def test_bad_parts(self):
        out, lse = np.zeros((1, 4, 2, 16), np.float16), np.zeros((1, 2, 4), np.float32)
        for parts, message in (
                ([], "parts: must have at least 1, had 0"),
                (5, "parts: must be pairs of out and lse"),
                ([out], "parts: must be pairs of out and lse"),
                ([(out, lse), (out, "x")], r"parts\[1\].lse: must be an array"),
                ([(out[0], lse)], r"parts\[0\].out: rank must be 4, was 3"),
                ([(out, lse[:, :1])], r"parts\[0\].lse: num_heads must be 2 like that of out, was 1"),
                ([(out, lse.astype(np.float64))], r"parts\[0\].lse: dtype must be f32"),
                ([(out, lse), (out.astype(np.float32), lse)], r"parts\[1\].out: dtype must be f16 like that of parts"),
        ):
            with self.subTest(message=message), self.assertRaisesRegex(flashjit.InvalidArgument, message):
                self.engine.merge(parts)
        with self.assertRaisesRegex(flashjit.InvalidArgument, r"parts\[0\].out: head_dim must be 8 like that of out"):
            self.engine.merge([(out, lse)], out=np.zeros((1, 4, 2, 8), np.float16))
        merged, sums = self.engine.merge([(out, lse)])
        self.assertEqual((merged.shape, sums.shape), (out.shape, lse.shape))


if __name__ == "__main__":
    unittest.main()
