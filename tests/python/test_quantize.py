# SPDX-License-Identifier: Apache-2.0
"""flashjit.quantize in the emulator: NumPy with and without ml_dtypes, PyTorch."""

import unittest

import flashjit
import numpy as np
from support import emulating_engine

try:
    import torch
except ImportError:
    torch = None
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None


def numbers(array):
    """What bytes of e4m3 mean."""
    bits = np.asarray(array).view(np.uint8).astype(np.int32)
    sign, exponent, mantissa = 1 - 2 * (bits >> 7), bits >> 3 & 15, bits & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0**(exponent - 10))
    return sign * magnitude


class Quantizes(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.engine = emulating_engine()
        random = np.random.default_rng(1)
        cls.q, cls.k = (random.standard_normal((2, 37, 3, 64)).astype(np.float16) for _ in range(2))

    def check(self, x, out, scale, shape):
        self.assertEqual(tuple(out.shape), x.shape)
        self.assertEqual(scale.shape, shape)
        np.testing.assert_allclose(numbers(out) * self.by_rows(scale, x.shape), x, rtol=1 / 16, atol=1e-4)

    @staticmethod
    def by_rows(scale, shape, block=16):
        """[batch, heads, ...] as [batch, seqlen, heads, 1]."""
        if scale.ndim == 1:
            return scale
        rows = scale[..., None] if scale.ndim == 2 else np.repeat(scale, block, axis=2)[:, :, :shape[1]]
        return rows.transpose(0, 2, 1)[..., None]

    def test_scales(self):
        for scale_of, block_size, shape in (("tensor", 0, (1, )), ("head", 0, (2, 3)), ("block", 16, (2, 3, 3))):
            out, scale = self.engine.quantize(self.q, scale_of=scale_of, block_size=block_size)
            self.check(self.q, out, scale, shape)
        np.testing.assert_allclose(scale[1, 2, 0], np.abs(self.q[1, :16, 2]).max() / 448, rtol=1e-6)

    def test_given_scales_and_memory(self):
        out, scale = np.zeros(self.q.shape, np.uint8), np.full((2, 3), 0.02, np.float32)
        results = self.engine.quantize(self.q, out=out, scale=scale, scale_is_given=True)
        self.assertIs(results[0], out)
        self.assertIs(results[1], scale)
        self.check(self.q, out, np.full((2, 3), 0.02, np.float32), (2, 3))

    def test_rotation_keeps_products(self):
        (q, q_scale), (k, k_scale) = (self.engine.quantize(x, rotation_seed=2**63 + 5) for x in (self.q, self.k))
        q, k = numbers(q) * self.by_rows(q_scale, q.shape), numbers(k) * self.by_rows(k_scale, k.shape)
        scores, rotated = (np.einsum("bqhd,bkhd->bhqk", a.astype(np.float64), b.astype(np.float64))
                           for a, b in ((self.q, self.k), (q, k)))
        np.testing.assert_allclose(rotated, scores, atol=2)
        self.assertGreater(np.abs(q - self.q).max(), 1)

    def test_packed_rows_turn(self):
        x = self.q.reshape(74, 3, 64)
        angles = np.arange(40)[:, None] / 100**(np.arange(32) / 32)
        tables = {"rotary_cos": np.cos(angles).astype(np.float32), "rotary_sin": np.sin(angles).astype(np.float32)}
        positions = np.arange(74) % 37
        out, scale = self.engine.quantize(x, positions=positions, **tables)
        self.assertEqual(scale.shape, (3, ))
        first, second = x[..., :32].astype(np.float32), x[..., 32:].astype(np.float32)
        cos, sin = (tables[name][positions][:, None] for name in ("rotary_cos", "rotary_sin"))
        turned = np.concatenate((first * cos - second * sin, second * cos + first * sin), -1)
        np.testing.assert_allclose(numbers(out) * scale[None, :, None], turned, rtol=1 / 15, atol=1e-3)

    def test_bad_input(self):
        q = self.q
        for message, options in (
            ("scale_of: must be one of 'head', 'tensor', 'block', was 'row'", {"scale_of": "row"}),
            ("block_size: must be at least 1 for scales of blocks, was 0", {"scale_of": "block"}),
            ("block_size: must be a whole number, was 1.5", {"scale_of": "block", "block_size": 1.5}),
            ("rotation_seed: must be from 0 to 2\\*\\*64 - 1, was -1", {"rotation_seed": -1}),
            ("scale: must be given with scale_is_given=True, was not", {"scale_is_given": True}),
            ("scale: shape must be \\[2, 3\\], was \\[2\\]", {"scale": np.zeros(2, np.float32)}),
            ("out: dtype must be float8_e4m3fn, float8_e5m2 or uint8, was float16", {"out": np.zeros_like(q)}),
            ("rotary_sin: must be given beside rotary_cos, was not", {"rotary_cos": np.zeros((40, 32), np.float32)}),
        ):
            with self.assertRaisesRegex(flashjit.InvalidArgument, f"^{message}"):
                self.engine.quantize(q, **options)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^x: head_dim must be a multiple of 16"):
            self.engine.quantize(np.zeros((1, 1, 1, 8), np.float16))
        with self.assertRaisesRegex(flashjit.Unsupported, "^out: dtype e4m3 takes compute capability 8.9 or more"):
            flashjit.Engine(emulate="sm_80", cache_directory="").quantize(q)

    @unittest.skipUnless(ml_dtypes, "ml_dtypes cannot be imported")
    def test_ml_dtypes(self):
        out, scale = self.engine.quantize(self.q)
        self.assertEqual(out.dtype, ml_dtypes.float8_e4m3fn)
        into = np.zeros(self.q.shape, ml_dtypes.float8_e4m3fn)
        self.engine.quantize(self.q, out=into)
        np.testing.assert_array_equal(into.view(np.uint8), out.view(np.uint8))
        self.check(self.q, out, scale, (2, 3))

    @unittest.skipUnless(torch, "PyTorch cannot be imported")
    def test_pytorch(self):
        x = torch.from_numpy(self.q).to(torch.bfloat16)
        out, scale = self.engine.quantize(x, rotation_seed=1)
        self.assertEqual((out.dtype, scale.dtype), (torch.float8_e4m3fn, torch.float32))
        into = torch.zeros(x.shape, dtype=torch.uint8)
        self.assertIs(self.engine.quantize(x, rotation_seed=1, out=into)[0], into)
        self.assertTrue(torch.equal(into, out.view(torch.uint8)))


if __name__ == "__main__":
    unittest.main()
