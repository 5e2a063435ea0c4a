# SPDX-License-Identifier: Apache-2.0
"""Caches of float8_e4m3fn and float8_e5m2, written by flashjit.append and read by flashjit.attention, in the emulator."""

import unittest

import flashjit
import numpy as np
from support import emulating_engine

try:
    import torch
except ImportError:
    torch = None


class Stored(np.ndarray):
    """Bytes as ml_dtypes has float8_e4m3fn: NumPy tells its name, and has no word of DLPack for it."""

    @property
    def dtype(self):
        return "float8_e4m3fn"


def stored(shape):
    return np.zeros(shape, np.uint8).view(Stored)


def numbers(array):
    """What bytes of e4m3 mean."""
    bits = np.asarray(array).view(np.uint8).astype(np.int32)
    sign, exponent, mantissa = 1 - 2 * (bits >> 7), bits >> 3 & 15, bits & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0**(exponent - 10))
    return sign * magnitude


def attend(q, k, v):
    """In float64; one key/value head for each query head."""
    scores = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), k) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)


class Caches(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.engine = emulating_engine()
        random = np.random.default_rng(5)
        cls.q, cls.k, cls.v = (random.standard_normal((1, rows, 2, 64)).astype(np.float16) for rows in (3, 40, 40))
        cls.used = np.int32([40])

    def check(self, k_scale, v_scale, scaled=lambda scale: scale[..., None]):
        k_cache, v_cache = stored((1, 48, 2, 64)), stored((1, 48, 2, 64))
        scales = {} if k_scale is None else {"k_scale": k_scale, "v_scale": v_scale}
        self.engine.append(self.k, self.v, k_cache, v_cache, seqused_kv=self.used, **scales)
        keys, values = numbers(k_cache)[:, :40], numbers(v_cache)[:, :40]
        if k_scale is not None:
            keys, values = keys * scaled(k_scale), values * scaled(v_scale)
        np.testing.assert_allclose(keys, self.k, rtol=1 / 16, atol=1e-2)
        out = self.engine.attention(self.q, k_cache, v_cache, seqused_kv=self.used, **scales)
        np.testing.assert_allclose(out, attend(self.q, keys, values), atol=4e-3)

    def test_no_scales(self):
        self.check(None, None)

    def test_scales_of_all_and_of_heads(self):
        self.check(np.float32([0.01]), np.float32([0.02]))
        self.check(np.float32([0.01, 0.03]), np.float32([0.02, 0.05]))

    def test_scales_of_tokens_are_written(self):
        k_scale, v_scale = np.zeros((1, 48, 2), np.float32), np.zeros((1, 48, 2), np.float32)
        self.check(k_scale, v_scale, lambda scale: scale[:, :40, :, None])
        np.testing.assert_allclose(k_scale[:, :40], np.abs(self.k.astype(np.float32)).max(-1) / 448, rtol=1e-6)
        self.assertFalse(k_scale[:, 40:].any())

    def test_bad_input(self):
        k_cache = stored((1, 48, 2, 64))
        one = np.float32([1])
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^v: dtype must be e4m3 like that of k, was f16$"):
            self.engine.attention(self.q, k_cache, np.zeros((1, 48, 2, 64), np.float16))
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^v_scale: must be given beside k_scale, was not$"):
            self.engine.attention(self.q, k_cache, k_cache, k_scale=one)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^k_scale: must not be given unless k is of e4m3"):
            self.engine.attention(self.q, self.k, self.v, k_scale=one, v_scale=one)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^k: dtype must be e4m3 like that of q, was f16$"):
            self.engine.attention(stored((1, 3, 2, 64)), self.k, self.v, out=self.q.copy())

    def test_prepare(self):
        self.engine.prepare("float16", 64, ragged=True, e4m3=True)
        before = self.engine.counters()["compiles"]
        self.check(None, None)
        self.assertLessEqual(self.engine.counters()["compiles"], before + 1)  # but for append's
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^token_scales: must not be true without e4m3"):
            self.engine.prepare("float16", 64, token_scales=True)

    @unittest.skipUnless(torch, "PyTorch cannot be imported")
    def test_pytorch(self):
        q, k, v = (torch.from_numpy(rows).to(torch.bfloat16) for rows in (self.q, self.k, self.v))
        caches = [torch.zeros(1, 48, 2, 64).to(torch.float8_e4m3fn) for _ in range(2)]
        scales = {name: torch.zeros(1, 48, 2) for name in ("k_scale", "v_scale")}
        used = torch.from_numpy(self.used)
        self.engine.append(k, v, *caches, seqused_kv=used, **scales)
        keys, values = (cache.float()[:, :40] * scale[:, :40, :, None]
                        for cache, scale in zip(caches, scales.values()))
        torch.testing.assert_close(keys, k.float(), rtol=1 / 16, atol=1e-2)
        out = self.engine.attention(q, *caches, seqused_kv=used, **scales)
        wanted = attend(q.float().numpy(), keys.double().numpy(), values.double().numpy())
        np.testing.assert_allclose(out.float().numpy(), wanted, atol=2e-2)


@unittest.skipUnless(torch, "PyTorch cannot be imported")
class E5m2(unittest.TestCase):
    """float8_e5m2 in place of float8_e4m3fn: caches, products, and what is refused."""

    @classmethod
    def setUpClass(cls):
        cls.engine = emulating_engine()
        torch.manual_seed(3)
        cls.q, cls.k, cls.v = (torch.randn(1, rows, 2, 64).to(torch.bfloat16) for rows in (3, 40, 40))

    def check(self, out, q, k, v):
        wanted = attend(*(rows.double().numpy() for rows in (q, k, v)))
        np.testing.assert_allclose(out.float().numpy(), wanted, atol=6e-2)

    def test_a_cache_that_append_writes(self):
        caches = [torch.zeros(1, 48, 2, 64).to(torch.float8_e5m2) for _ in range(2)]
        scales, used = {name: torch.zeros(1, 48, 2) for name in ("k_scale", "v_scale")}, torch.tensor([40]).int()
        self.engine.append(self.k, self.v, *caches, seqused_kv=used, **scales)
        keys, values = (cache.float()[:, :40] * scale[:, :40, :, None]
                        for cache, scale in zip(caches, scales.values()))
        torch.testing.assert_close(keys, self.k.float(), rtol=1 / 8, atol=1e-2)
        torch.testing.assert_close(scales["k_scale"][:, :40], self.k.float().abs().amax(-1) / 57344)
        out = self.engine.attention(self.q, *caches, seqused_kv=used, **scales)
        self.check(out, self.q, keys, values)

    def test_products_of_what_quantize_makes(self):
        made = [self.engine.quantize(rows, dtype=torch.float8_e5m2) for rows in (self.q, self.k, self.v)]
        self.assertEqual({out.dtype for out, _ in made}, {torch.float8_e5m2})
        (q, q_scale), (k, k_scale), (v, v_scale) = made
        out = self.engine.attention(q, k, v, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)
        self.assertEqual(out.dtype, torch.bfloat16)
        self.check(out, *(rows.float() * scale[:, None, :, None] for rows, scale in made))
        exact, _ = flashjit.reference(q, k, v, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)
        np.testing.assert_allclose(out.float().numpy(), exact, atol=6e-2)

    def test_quantize_into_memory_of_either_format(self):
        given = torch.empty(1, 3, 2, 64, dtype=torch.float8_e5m2)
        out, scale = self.engine.quantize(self.q, out=given)
        self.assertIs(out, given)
        torch.testing.assert_close(out.float() * scale[:, None, :, None], self.q.float(), rtol=1 / 8, atol=1e-3)
        array = self.q.float().numpy().astype(np.float16)
        bits, _ = self.engine.quantize(array, dtype="float8_e5m2")
        bits_of_it, _ = self.engine.quantize(torch.from_numpy(array), dtype="float8_e5m2")
        np.testing.assert_array_equal(np.asarray(bits).view(np.uint8), bits_of_it.view(torch.uint8).numpy())
        given = torch.empty(1, 3, 2, 64, dtype=torch.uint8)
        self.engine.quantize(torch.from_numpy(array), out=given, dtype="float8_e5m2")
        np.testing.assert_array_equal(given.numpy(), bits_of_it.view(torch.uint8).numpy())

    def test_bad_input(self):
        e4m3, e5m2 = (torch.zeros(1, 8, 2, 64).to(dtype) for dtype in (torch.float8_e4m3fn, torch.float8_e5m2))
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^k: dtype must be e4m3 like that of q, was e5m2$"):
            self.engine.attention(e4m3, e5m2, e5m2)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^v: dtype must be e5m2 like that of k, was e4m3$"):
            self.engine.attention(self.q, e5m2, e4m3)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^dtype: must be float8_e4m3fn or float8_e5m2, was"):
            self.engine.quantize(self.q, dtype=torch.float16)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^dtype: must be float8_e4m3fn like that of out, was"):
            self.engine.quantize(self.q, out=torch.empty(1, 3, 2, 64, dtype=torch.float8_e4m3fn), dtype="float8_e5m2")
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^e5m2: must not be true without e4m3"):
            self.engine.prepare("float16", 64, e5m2=True)

    def test_prepare(self):
        self.engine.prepare("bfloat16", 64, e4m3=True, e5m2=True)
        before = self.engine.counters()["compiles"]
        keys = self.k.to(torch.float8_e5m2)
        self.engine.attention(self.q, keys, self.v.to(torch.float8_e5m2))
        self.assertEqual(self.engine.counters()["compiles"], before)


class Products(unittest.TestCase):
    """Queries of float8_e4m3fn, too."""

    @classmethod
    def setUpClass(cls):
        cls.engine = emulating_engine()
        random = np.random.default_rng(6)
        rows = (random.standard_normal((1, count, 2, 64)).astype(np.float16) for count in (70, 90, 90))
        (cls.q, cls.q_scale), (cls.k, cls.k_scale), (cls.v, cls.v_scale) = (cls.stored(x) for x in rows)

    @classmethod
    def stored(cls, rows):
        bits, scale = cls.engine.quantize(rows)
        return np.asarray(bits).view(np.uint8).view(Stored), scale

    def check(self, out, rtol, q_scale, k_scale, v_scale):
        of = [numbers(rows) * np.reshape(scale, (-1, 1)) for rows, scale in
              ((self.q, q_scale), (self.k, k_scale), (self.v, v_scale))]
        np.testing.assert_allclose(np.asarray(out, np.float64), attend(*of), atol=rtol * 1.5)

    def test_scales_of_heads(self):
        for accumulate in ("exact", "fast", None):
            out = np.empty((1, 70, 2, 64), np.float16)
            scales = {"q_scale": self.q_scale, "k_scale": self.k_scale, "v_scale": self.v_scale}
            result = self.engine.attention(self.q, self.k, self.v, out=out, accumulate=accumulate, **scales)
            self.assertIs(result, out)
            self.check(out, 0.04, **scales)
            exact, _ = flashjit.reference(self.q, self.k, self.v, **scales)
            np.testing.assert_allclose(out, exact, atol=0.06)

    def test_no_scales(self):
        out = np.empty((1, 70, 2, 64), np.float16)
        self.engine.attention(self.q, self.k, self.v, scale=1e-9, out=out)
        mean = numbers(self.v).mean(1, keepdims=True)
        self.assertLess(np.abs(out - mean).max(), 0.05 * np.abs(numbers(self.v)).max())

    def test_bad_input(self):
        out = np.empty((1, 70, 2, 64), np.float16)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^out: must be given beside q of float8_e4m3fn"):
            self.engine.attention(self.q, self.k, self.v)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^out: dtype must be bf16, which is out_dtype, was f32$"):
            self.engine.attention(self.q, self.k, self.v, out=np.empty((1, 70, 2, 64), np.float32))
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^accumulate: must be 'exact' or 'fast', or None, was 1$"):
            self.engine.attention(self.q, self.k, self.v, out=out, accumulate=1)
        with self.assertRaisesRegex(flashjit.InvalidArgument, r"^q_scale: must be \[1\], \[2\] or \[1, 2\]"):
            self.engine.attention(self.q, self.k, self.v, out=out, q_scale=np.ones(3, np.float32))
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^q_scale: must not be given unless q is of e4m3"):
            self.engine.attention(out, out, out, q_scale=self.q_scale)

    def test_prepare(self):
        self.engine.prepare("float16", 64, e4m3=True, e4m3_queries=True, fast_sums=True)
        before = self.engine.counters()["compiles"]
        self.engine.attention(self.q, self.k, self.v, accumulate="fast", out=np.empty((1, 70, 2, 64), np.float16))
        self.assertEqual(self.engine.counters()["compiles"], before)
        self.engine.prepare("float16", 64, e4m3=True, e4m3_queries=True, block_scales=True)
        before = self.engine.counters()["compiles"]
        outs = [self.engine.attention(self.q, self.k, self.v, q_scale=scale, out=np.empty((1, 70, 2, 64), np.float16))
                for scale in (np.full((1, 2, 1), 1.5, np.float32), np.full((1, 2, 1), 0.25, np.float32))]
        self.assertEqual(self.engine.counters()["compiles"], before)
        self.assertFalse(np.array_equal(*outs))

    def test_output(self):
        scales = {"q_scale": self.q_scale, "k_scale": self.k_scale, "v_scale": self.v_scale}
        wide, narrow = np.empty((1, 70, 2, 64), np.float16), stored((1, 70, 2, 64))
        out_scale = np.float32([0.01])
        self.engine.prepare("bfloat16", 64, e4m3=True, e4m3_queries=True, out_e4m3=True)
        before = self.engine.counters()["compiles"]
        self.engine.attention(self.q, self.k, self.v, out=narrow, out_scale=out_scale, **scales)
        self.assertEqual(self.engine.counters()["compiles"], before)
        self.engine.attention(self.q, self.k, self.v, out=wide, **scales)
        np.testing.assert_allclose(numbers(narrow) * 0.01, wide, rtol=1 / 16 + 1 / 256, atol=1e-4)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^out_scale: must not be given unless out_dtype is e4m3"):
            self.engine.attention(self.q, self.k, self.v, out=wide, out_scale=out_scale)

    def test_transposed_values(self):
        memory = stored((1, 2, 64, 96))
        memory[..., :90] = np.asarray(self.v).view(np.uint8).transpose(0, 2, 3, 1)
        transposed = memory[..., :90].transpose(0, 3, 1, 2)
        scales = {"q_scale": self.q_scale, "k_scale": self.k_scale, "v_scale": self.v_scale}
        self.engine.prepare("float16", 64, e4m3=True, e4m3_queries=True, values_transposed=True)
        before = self.engine.counters()["compiles"]
        outs = [self.engine.attention(self.q, self.k, v, out=np.empty((1, 70, 2, 64), np.float16), **scales)
                for v in (transposed, self.v)]
        self.assertLessEqual(self.engine.counters()["compiles"], before + 1)
        np.testing.assert_array_equal(*outs)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^v: the stride of head_dim must be a multiple of 16"):
            odd = stored((1, 2, 64, 90)).transpose(0, 3, 1, 2)
            self.engine.attention(self.q, self.k, odd, out=np.empty((1, 70, 2, 64), np.float16))

    @unittest.skipUnless(torch, "PyTorch cannot be imported")
    def test_pytorch(self):
        q, k, v = (torch.from_numpy(np.asarray(rows).view(np.uint8)).view(torch.float8_e4m3fn)
                   for rows in (self.q, self.k, self.v))
        scales = {name: torch.from_numpy(np.array(scale)) for name, scale in
                  (("q_scale", self.q_scale), ("k_scale", self.k_scale), ("v_scale", self.v_scale))}
        out, lse = self.engine.attention(q, k, v, lse=True, **scales)
        self.assertEqual((out.dtype, lse.dtype), (torch.bfloat16, torch.float32))
        # The keys of each dim one after the other, with room behind them.
        memory = torch.zeros(1, 2, 64, 96, dtype=torch.uint8).view(torch.float8_e4m3fn)
        transposed = memory[..., :90].permute(0, 3, 1, 2)
        transposed.copy_(v)
        self.assertTrue(torch.equal(self.engine.attention(q, k, transposed, **scales), out))
        self.check(out.float().numpy(), 0.04, **{name: scale.numpy() for name, scale in scales.items()})


class LatentCaches(unittest.TestCase):
    """As MLA's absorbed decode reads them: latent columns of e4m3, which are the values too, and rotary ones beside."""

    def setUp(self):
        self.engine = emulating_engine()
        random = np.random.default_rng(11)
        self.q = random.standard_normal((1, 2, 8, 272)).astype(np.float16)
        self.latent = (random.integers(0, 120, (1, 70, 1, 256)) + 128 * random.integers(0, 2, (1, 70, 1, 256)))
        self.latent = self.latent.astype(np.uint8).view(Stored)
        self.k_rotary = random.standard_normal((1, 70, 1, 16)).astype(np.float16)
        self.options = {"k_rotary": self.k_rotary, "scale": 0.0078125}

    def expected(self, scales):
        latent = numbers(self.latent) * scales
        keys = np.concatenate([latent, self.k_rotary.astype(np.float64)], -1)
        scores = np.einsum("bqhd,bkd->bhqk", self.q.astype(np.float64), keys[:, :, 0]) * 0.0078125
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("bhqk,bkd->bqhd", weights / weights.sum(-1, keepdims=True), latent[:, :, 0])

    def check(self, scale, scales):
        given = {} if scale is None else {"k_scale": scale, "v_scale": scale}
        out = self.engine.attention(self.q, self.latent, self.latent, **self.options, **given)
        self.assertEqual((out.shape, out.dtype), ((1, 2, 8, 256), np.float16))
        expected = self.expected(scales)
        np.testing.assert_allclose(out, expected, rtol=0.01, atol=0.005 * np.abs(expected).max())
        exact, _ = self.engine.reference(self.q, self.latent, self.latent, **self.options, **given)
        np.testing.assert_allclose(exact, expected, rtol=1e-9, atol=1e-9)

    def test_scales(self):
        self.check(None, 1)
        self.check(np.float32([0.02]), np.float64(np.float32(0.02)))
        of_tokens = np.exp2(np.arange(70) % 7 - 8.0).astype(np.float32).reshape(1, 70, 1)
        self.check(of_tokens, of_tokens[..., None].astype(np.float64))

    def test_pages(self):
        pages = [5, 0, 3, 1, 4]
        table, used = np.int32([pages]), np.int32([70])
        latent, rotary = np.zeros((6, 14, 1, 256), np.uint8), np.zeros((6, 14, 1, 16), np.float16)
        for entry, page in enumerate(pages):
            latent[page] = np.asarray(self.latent)[0, 14 * entry:14 * entry + 14]
            rotary[page] = self.k_rotary[0, 14 * entry:14 * entry + 14]
        latent = latent.view(Stored)
        out = self.engine.attention(self.q, latent, latent, k_rotary=rotary, scale=0.0078125, page_table=table,
                                    seqused_kv=used)
        np.testing.assert_array_equal(out, self.engine.attention(self.q, self.latent, self.latent, **self.options))

    def test_of_16_bits(self):
        latent = numbers(self.latent).astype(np.float16)
        out = self.engine.attention(self.q, latent, latent, **self.options)
        np.testing.assert_allclose(out, self.expected(1), rtol=0.01, atol=0.5)

    def test_what_is_refused(self):
        def refused(message, q=self.q, k=self.latent, v=self.latent, **options):
            with self.assertRaisesRegex(flashjit.InvalidArgument, message):
                self.engine.attention(q, k, v, **{**self.options, **options})

        refused("^k_rotary: dtype must be f16 like that of q, was f32$", k_rotary=self.k_rotary.astype(np.float32))
        refused("^k_rotary: seqlen must be 70 like that of k, was 69$", k_rotary=self.k_rotary[:, 1:])
        refused("^q: head_dim must be 264, the 256 of k and the 8 of k_rotary, was 272$",
                k_rotary=np.ascontiguousarray(self.k_rotary[..., :8]))
        refused("^q: head_dim must be above 256 beside k_rotary, was 256$", q=self.q[..., :256],
                k=self.latent[..., :240], v=self.latent[..., :240])

    def test_append(self):
        random = np.random.default_rng(12)
        new, rows, queries = (random.standard_normal((1, 40, heads, dim)).astype(np.float16)
                              for heads, dim in ((1, 256), (1, 16), (8, 16)))
        latent, scale = stored((1, 48, 1, 256)), np.zeros((1, 48, 1), np.float32)
        rotary = np.full((1, 48, 1, 16), np.nan, np.float16)
        angles = np.arange(48, dtype=np.float32)[:, None] / 100**(np.arange(8, dtype=np.float32) / 8)
        cos, sin = np.cos(angles), np.sin(angles)
        options = {"k_scale": scale, "v_scale": scale, "seqused_kv": np.int32([40])}
        returned = self.engine.append(new, new, latent, latent, k_rotary=rows, k_rotary_cache=rotary, q=queries,
                                      q_out=queries, rotary_cos=cos, rotary_sin=sin, **options)
        self.assertIs(returned, queries)
        np.testing.assert_allclose(numbers(latent)[:, :40] * scale[:, :40, :, None], new, rtol=1 / 16, atol=1e-2)
        x, y, cos, sin = rows[0, ..., :8], rows[0, ..., 8:], cos[:40, None], sin[:40, None]
        np.testing.assert_allclose(rotary[0, :40], np.concatenate([x * cos - y * sin, y * cos + x * sin], -1), atol=4e-3)
        self.assertTrue(np.isnan(rotary[:, 40:]).all())
        out = self.engine.attention(self.q, latent, latent, k_rotary=rotary, **options)
        exact, _ = self.engine.reference(self.q, latent, latent, k_rotary=rotary, **options)
        np.testing.assert_allclose(out, exact, atol=4e-3)

    def test_append_refuses(self):
        latent, rows, used = stored((1, 48, 1, 256)), np.zeros((1, 40, 1, 16), np.float16), np.int32([40])
        new, rotary = np.zeros((1, 40, 1, 256), np.float16), np.zeros((1, 48, 1, 16), np.float16)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^k_rotary_cache: must be given beside k_rotary, was not$"):
            self.engine.append(new, new, latent, latent, k_rotary=rows, seqused_kv=used)
        rotary.setflags(write=False)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^k_rotary_cache: .*read-?only"):
            self.engine.append(new, new, latent, latent, k_rotary=rows, k_rotary_cache=rotary, seqused_kv=used)

    def test_prepare(self):
        self.engine.prepare("float16", 272, 256, e4m3=True, k_rotary=True)
        before = self.engine.counters()["compiles"]
        self.engine.attention(self.q, self.latent, self.latent, **self.options)
        self.assertEqual(self.engine.counters()["compiles"], before)

    @unittest.skipUnless(torch, "PyTorch cannot be imported")
    def test_pytorch(self):
        q, k_rotary = torch.from_numpy(self.q), torch.from_numpy(self.k_rotary)
        latent = torch.from_numpy(np.asarray(self.latent).view(np.uint8)).view(torch.float8_e4m3fn)
        scale = torch.full((1, 70, 1), 0.5)
        out = self.engine.attention(q, latent, latent, k_rotary=k_rotary, scale=0.0078125, k_scale=scale, v_scale=scale)
        expected = self.expected(0.5)
        np.testing.assert_allclose(out.numpy(), expected, rtol=0.01, atol=0.005 * np.abs(expected).max())


if __name__ == "__main__":
    unittest.main()
