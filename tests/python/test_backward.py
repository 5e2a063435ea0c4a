# SPDX-License-Identifier: Apache-2.0
"""flashjit.attention_backward on an engine that emulates: arrays are in host memory. Needs NVRTC."""

import unittest

import flashjit
import numpy as np
from support import emulating_engine, make_inputs

TOLERANCE = 6e-3  # of gradients of about 1, whose factors are rounded to float16


def gradients_in_double(dout, q, k, v, dlse=None, added=0.0):
    """dq, dk and dv, heads of keys with the sums of their groups."""
    group = q.shape[2] // k.shape[2]
    q, dout, k, v = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, dout, k, v))
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    scale = q.shape[3]**-0.5
    scores = q @ k.swapaxes(2, 3) * scale + added
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    sums = (dout * (p @ v)).sum(-1, keepdims=True) - (0 if dlse is None else dlse[..., None])
    ds = p * (dout @ v.swapaxes(2, 3) - sums)
    dq, dk, dv = ds @ k * scale, ds.swapaxes(2, 3) @ q * scale, p.swapaxes(2, 3) @ dout
    dk, dv = (x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2) for x in (dk, dv))
    return tuple(x.transpose(0, 2, 1, 3) for x in (dq, dk, dv))


def causal(queries, keys):
    return np.where(np.arange(keys) <= np.arange(queries)[:, None] + keys - queries, 0.0, -np.inf)


class Preparation(unittest.TestCase):

    def test_of_calls_that_compile_nothing_then(self):
        q, k, v = make_inputs((1, 16, 2, 64), 40, 2)
        slopes = np.array([0.1, 0.2], np.float32)
        for deterministic in (False, True):
            engine = emulating_engine()
            engine.prepare("float16", 64, causal=True, alibi=True)
            engine.prepare_backward("float16", 64, causal=True, alibi=True, dslopes=True, deterministic=deterministic)
            before = engine.counters()["compiles"]
            out, lse = engine.attention(q, k, v, causal=True, alibi_slopes=slopes, lse=True)
            engine.attention_backward(np.ones_like(out), q, k, v, out, lse, causal=True, alibi_slopes=slopes,
                                      dslopes=True, deterministic=deterministic)
            self.assertEqual(engine.counters()["compiles"], before)

    def test_refuses_what_is_no_problem_of_gradients(self):
        engine = emulating_engine()
        for options, message in (({"dslopes": True}, "^dslopes: must be false without alibi"),
                                 ({"deterministic": 1}, "^deterministic: must be True or False"),
                                 ({"causal": None}, "^causal: must be True or False")):
            with self.subTest(options), self.assertRaisesRegex(flashjit.InvalidArgument, message):
                engine.prepare_backward("float16", 64, **options)


class Backward(unittest.TestCase):

    def setUp(self):
        self.engine = emulating_engine()
        self.qkv = make_inputs((2, 16, 4, 64), 40, 2)
        random = np.random.default_rng(4)
        self.dout = random.standard_normal(self.qkv[0].shape).astype(np.float16)
        self.dlse = random.standard_normal((2, 4, 16)).astype(np.float32)

    def forward(self, **options):
        return self.engine.attention(*self.qkv, lse=True, **options)

    def assert_close(self, gradients, expected):
        for name, gradient, exact in zip(("dq", "dk", "dv"), gradients, expected):
            np.testing.assert_allclose(gradient.astype(np.float64), exact, atol=TOLERANCE, rtol=TOLERANCE, err_msg=name)

    def test_gradients_are_those_of_the_formula(self):
        gradients = self.engine.attention_backward(self.dout, *self.qkv, *self.forward())
        self.assertEqual([x.dtype for x in gradients], [np.float16] * 3)
        self.assert_close(gradients, gradients_in_double(self.dout, *self.qkv))

    def test_of_a_mask_and_of_the_log_sum_exp(self):
        gradients = self.engine.attention_backward(self.dout, *self.qkv, *self.forward(causal=True), dlse=self.dlse,
                                                   causal=True)
        self.assert_close(gradients, gradients_in_double(self.dout, *self.qkv, self.dlse, causal(16, 40)))

    def test_of_packed_sequences_with_rows_that_belong_to_none(self):
        q, k, v, dout = (array.reshape(-1, *array.shape[2:]) for array in (*self.qkv, self.dout))  # of 32 and 80 rows
        starts_q, starts_kv = [0, 10, 10, 30], [0, 33, 40, 75]
        ragged = {"cu_seqlens_q": np.array(starts_q, np.int32), "cu_seqlens_kv": np.array(starts_kv, np.int32)}
        out, lse = self.engine.attention(q, k, v, causal=True, lse=True, **ragged)
        dq, dk, dv = self.engine.attention_backward(dout, q, k, v, out, lse, causal=True, **ragged)
        self.assertEqual((dq.shape, dk.shape, dv.shape), (q.shape, k.shape, v.shape))
        for first_q, end_q, first, end in zip(starts_q, starts_q[1:], starts_kv, starts_kv[1:]):
            queries, keys = slice(first_q, end_q), slice(first, end)
            got = dq[queries], dk[keys], dv[keys]
            if end_q == first_q:
                self.assertFalse(got[1].any() or got[2].any())
                continue
            parts = (array[None, of] for array, of in ((dout, queries), (q, queries), (k, keys), (v, keys)))
            expected = gradients_in_double(*parts, added=causal(end_q - first_q, end - first))
            self.assert_close(got, [array[0] for array in expected])
        self.assertFalse(dq[30:].any() or dk[75:].any() or dv[75:].any())

    def test_into_memory_of_the_caller_in_float32(self):
        q, k, v = self.qkv
        dq = np.full_like(q, np.nan)
        dk, dv = (np.full(x.shape, np.nan, np.float32) for x in (k, v))
        given = self.engine.attention_backward(self.dout, *self.qkv, *self.forward(), dq=dq, dk=dk, dv=dv)
        self.assertTrue(all(one is other for one, other in zip(given, (dq, dk, dv))))
        self.assert_close(given, gradients_in_double(self.dout, *self.qkv))

    def test_a_new_one_has_the_dtype_of_the_other(self):
        _, k, _ = self.qkv
        dk = np.empty(k.shape, np.float32)
        self.assertEqual(self.engine.attention_backward(self.dout, *self.qkv, *self.forward(), dk=dk)[2].dtype, np.float32)

    def test_any_of_them(self):
        out, lse = self.forward()
        every = self.engine.attention_backward(self.dout, *self.qkv, out, lse)
        for wanted in range(8):
            left_out = {name: False for i, name in enumerate(("dq", "dk", "dv")) if not wanted >> i & 1}
            with self.subTest(left_out=list(left_out)):
                gradients = self.engine.attention_backward(self.dout, *self.qkv, out, lse, **left_out)
                for name, gradient, expected in zip(("dq", "dk", "dv"), gradients, every):
                    if name in left_out:
                        self.assertIsNone(gradient)
                    else:
                        np.testing.assert_array_equal(gradient, expected)

    def options(self):
        random = np.random.default_rng(6)
        return {"bias": random.standard_normal((1, 4, 1, 40)).astype(np.float16),
                "alibi_slopes": random.uniform(-0.1, 0.1, (2, 4)).astype(np.float32),
                "sinks": random.standard_normal(4).astype(np.float32)}  # yapf: disable

    def test_of_options(self):
        options = {**self.options(), "softcap": 3.0, "causal": True}
        exact = self.engine.reference_backward(self.dout, *self.qkv, dlse=self.dlse, dbias=True, dslopes=True,
                                               dsinks=True, **options)
        self.assertEqual([x.shape for x in exact[3:]], [(1, 4, 1, 40), (2, 4), (4, )])
        call = (self.dout, *self.qkv, *self.forward(**options))
        given = self.engine.attention_backward(*call, dlse=self.dlse, dbias=True, dslopes=True, dsinks=True, **options)
        self.assertEqual([x.dtype for x in given[3:]], [np.float16, np.float32, np.float32])
        into = np.full((1, 4, 1, 40), np.nan, np.float32)
        dbias, dsinks = self.engine.attention_backward(*call, dlse=self.dlse, dq=False, dk=False, dv=False, dbias=into,
                                                       dsinks=True, **options)[3:]
        self.assertIs(dbias, into)
        for one, other in zip((*given, dbias, dsinks), (*exact, exact[3], exact[5])):
            np.testing.assert_allclose(one, other, atol=TOLERANCE * abs(other).max(), rtol=TOLERANCE)

    def test_in_the_same_order_each_time(self):
        options = {"causal": True, "bias": self.options()["bias"]}
        call = (self.dout, *self.qkv, *self.forward(**options))
        one, other = (flashjit.Engine(emulate="sm_80").attention_backward(*call, deterministic=True, **options)
                      for _ in range(2))
        for first, second in zip(one, other):
            np.testing.assert_array_equal(first, second)
        self.assert_close(one, self.engine.reference_backward(self.dout, *self.qkv, **options))
        with self.assertRaisesRegex(flashjit.Unsupported, "^deterministic: must be false for the gradient of a bias"):
            self.engine.attention_backward(*call, deterministic=True, dbias=True, **options)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^deterministic: must be True or False, was array"):
            self.engine.attention_backward(*call, deterministic=np.zeros(2), **options)

    def test_of_options_by_the_formula(self):
        for name, gradient in (("bias", "dbias"), ("alibi_slopes", "dslopes"), ("sinks", "dsinks")):
            option = {name: self.options()[name].astype(np.float32)}
            at, step = (0, ) * option[name].ndim, 2.0**-10
            option[name][at] = 0.5

            def loss(value):
                changed = option[name].copy()
                changed[at] = value
                return (self.engine.reference(*self.qkv, **{name: changed})[0] * self.dout).sum()

            made = self.engine.reference_backward(self.dout, *self.qkv, **option, **{gradient: True})[3]
            self.assertAlmostEqual(made[at], (loss(0.5 + step) - loss(0.5 - step)) / (2 * step), delta=1e-3)

    def test_through_a_text(self):
        q, k, v = self.qkv
        gains = np.array([1.0, 1.5, 2.0, 0.5], np.float32)
        for score, times in (("2 * score", 2 + 0 * gains), (flashjit.Score("score * gain(head)", gain=gains), gains)):
            out, lse = self.forward(score=score)
            made = self.engine.attention_backward(self.dout, q, k, v, out, lse, score=score)
            scaled = q.astype(np.float64) * times[:, None]
            dq, dk, dv = gradients_in_double(self.dout, scaled, k, v)
            self.assert_close(made, (dq * times[:, None], dk, dv))
        bent = flashjit.Score("query == key ? -infinity : cap * tanh(score / cap)", cap=2.0)
        made = self.engine.attention_backward(self.dout, q, k, v, *self.forward(score=bent), score=bent)
        self.assert_close(made, self.engine.reference_backward(self.dout, q, k, v, score=bent))
        none = "cbrtf(score)"
        with self.assertRaisesRegex(flashjit.CompileFailed, "^score: line 1, column 7: no suitable conversion function"):
            self.engine.attention_backward(self.dout, q, k, v, *self.forward(score=none), score=none)

    def test_by_a_variant(self):
        expected = gradients_in_double(self.dout, *self.qkv)
        for variant in ("mma-q64-kv64-w8-r1-s2", "q32-kv64-w4-r2"):
            self.assert_close(self.engine.attention_backward(self.dout, *self.qkv, *self.forward(), variant=variant),
                              expected)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^variant: row_tiles must be 1 or 2, was 3$"):
            self.engine.attention_backward(self.dout, *self.qkv, *self.forward(), variant="r3")

    def test_the_reference_is_the_formula(self):
        out, lse = self.engine.reference(*self.qkv, causal=True)
        rounded, rounded_lse = self.forward(causal=True)
        np.testing.assert_allclose(out, rounded, atol=2e-3)
        np.testing.assert_allclose(lse, rounded_lse, atol=2e-3)
        gradients = self.engine.reference_backward(self.dout, *self.qkv, dlse=self.dlse, causal=True)
        for gradient, exact in zip(gradients, gradients_in_double(self.dout, *self.qkv, self.dlse, causal(16, 40))):
            np.testing.assert_allclose(gradient, exact, rtol=1e-12, atol=1e-12)

    def test_the_reference_takes_doubles_and_texts(self):
        q, k, v = (x.astype(np.float64) + 1e-9 for x in self.qkv)  # which no smaller type tells from q, k, v
        gradients = self.engine.reference_backward(self.dout, q, k, v, score="2 * score")
        for gradient, exact in zip(gradients, gradients_in_double(self.dout, 2 * q, k, v)):
            scale = 2 if gradient.shape == q.shape else 1
            np.testing.assert_allclose(gradient, scale * exact, rtol=1e-8, atol=1e-8)
        for call, message in (
            (lambda: self.engine.reference(q, k.astype(np.float32), v), "^k: dtype must be f64 like that of q, was f32$"),
            (lambda: self.engine.reference(q.astype(np.int32), k, v), "^q: dtype must be f16, bf16, f32, f64, e4m3 or e5m2, was i32$"),
            (lambda: self.engine.reference(q[0], k, v), "^q: rank must be 4, was 3"),
            (lambda: self.engine.reference_backward(self.dout[:, 1:], q, k, v), "^dout: must have the shape"),
            (lambda: self.engine.reference_backward(self.dout.astype(np.int32), q, k, v), "^dout: dtype must be f16"),
            (lambda: self.engine.reference_backward(self.dout, q, k, v, dlse=self.dout), "^dlse: must be f32 or f64"),
        ):  # yapf: disable
            with self.subTest(message), self.assertRaisesRegex(flashjit.InvalidArgument, message):
                call()

    def test_refuses_by_name(self):
        out, lse = self.forward()
        read_only = np.empty_like(self.qkv[0])
        read_only.flags.writeable = False
        for arguments, options, message in (
            ((self.dout.astype(np.float32), *self.qkv, out, lse), {}, "^dout: dtype must be f16, was f32$"),
            ((self.dout, *self.qkv, out, lse.astype(np.float64)), {}, "^lse: "),
            ((self.dout, *self.qkv, out, None), {}, "^lse: must be an array"),
            ((self.dout[0], *self.qkv, out, lse), {}, "^dout: rank must be 4, was 3"),
            ((self.dout, *self.qkv, out, lse), {"dq": read_only}, "^dq: must be writable, was read-only$"),
            ((self.dout, *self.qkv, out, lse), {"dk": np.empty_like(self.qkv[1]), "dv": np.empty(2)}, "^dv: "),
            ((self.dout, *self.qkv, out, lse), {"dv": True}, "^dv: must be an array .* was bool"),
            ((self.dout, *self.qkv, out, lse), {"dsinks": True}, "^dsinks: must not be given without sinks, of which"),
            ((self.dout, *self.qkv, out, lse), {"dbias": out}, "^dbias: must not be given without bias, of which"),
            ((self.dout, *self.qkv, out, lse), {"sinks": np.zeros(4, np.float32), "dsinks": np.zeros(3, np.float32)},
             r"^dsinks: shape must be \[4\] like that of sinks, was \[3\]$"),
            ((self.dout, *self.qkv, out, lse), {"dlse": lse[0]}, "^dlse: rank must be 3, was 2"),
            ((self.dout, *self.qkv, out, lse), {"variant": "v3"}, "^variant: 'v3' must be like mma-q64-kv128-w8-r1-s1"),
            ((self.dout, *self.qkv, out, lse), {"window": 3}, "^window: "),
        ):  # yapf: disable
            with self.subTest(message), self.assertRaisesRegex(flashjit.InvalidArgument, message):
                self.engine.attention_backward(*arguments, **options)
        with self.assertRaisesRegex(TypeError, "unknown argument 'plan'"):
            self.engine.attention_backward(self.dout, *self.qkv, out, lse, plan=None)
        entries = np.zeros(1, np.int32)
        with self.assertRaisesRegex(flashjit.Unsupported, "^batch_indices_kv: "):
            self.engine.attention_backward(self.dout, *self.qkv, out, lse, batch_indices_kv=entries)
        self.assert_close(self.engine.attention_backward(self.dout, *self.qkv, out, lse),
                          gradients_in_double(self.dout, *self.qkv))


if __name__ == "__main__":
    unittest.main()
