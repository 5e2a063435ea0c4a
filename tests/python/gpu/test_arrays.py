# SPDX-License-Identifier: Apache-2.0
"""flashjit.attention on arrays of CuPy and JAX in a GPU's memory. Each is skipped where it is not installed."""

import os
import unittest

import numpy

import flashjit

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # JAX would take most of the memory from its neighbours

SHAPE = (2, 256, 4, 64)
ROUNDING = {"float16": 2e-3, "bfloat16": 1.6e-2}  # of P and of the output, for outputs below 1


def make_inputs(seed=7):
    """q, k and v in f32, as numbers that bf16 has."""
    random = numpy.random.default_rng(seed)
    return tuple((random.integers(-16, 17, SHAPE) / 16).astype(numpy.float32) for _ in range(3))


def exact(q, k, v, causal):
    """(out, lse) in f64."""
    q, k, v = (array.astype(numpy.float64) for array in (q, k, v))
    scores = numpy.einsum("bqhd,bkhd->bhqk", q, k) / 8
    if causal:
        scores[..., numpy.triu(numpy.ones(scores.shape[-2:], dtype=bool), 1)] = -numpy.inf
    lse = numpy.logaddexp.reduce(scores, axis=-1)
    return numpy.einsum("bhqk,bkhd->bqhd", numpy.exp(scores - lse[..., None]), v), lse


class Arrays(unittest.TestCase):
    def assert_close(self, actual, expected, dtype):
        self.assertEqual(actual.shape, expected.shape)
        self.assertLess(numpy.abs(actual.astype(numpy.float64) - expected).max(), ROUNDING[dtype])


class Cupy(Arrays):
    @classmethod
    def setUpClass(cls):
        try:
            import cupy
        except ImportError as error:
            raise unittest.SkipTest(f"CuPy cannot be imported: {error}") from error
        cls.cupy = cupy

    def make_arrays(self):
        return tuple(self.cupy.asarray(array).astype(self.cupy.float16) for array in make_inputs())

    def test_gives_arrays_of_cupy(self):
        for causal in (False, True):
            out, lse = flashjit.attention(*self.make_arrays(), causal=causal, lse=True)
            self.assertIsInstance(out, self.cupy.ndarray)
            self.assertIsInstance(lse, self.cupy.ndarray)
            expected = exact(*make_inputs(), causal)
            self.assert_close(out.get(), expected[0], "float16")
            self.assert_close(lse.get(), expected[1], "float16")

    def test_runs_on_the_current_stream(self):
        arrays = self.make_arrays()
        expected = exact(*make_inputs(), False)[0]
        with self.cupy.cuda.Stream(non_blocking=True) as stream:
            late = tuple(array.copy() for array in arrays)
            out = flashjit.attention(*late)
        stream.synchronize()
        self.assert_close(out.get(), expected, "float16")

    def test_writes_into_an_array_of_the_caller(self):
        arrays = self.make_arrays()
        mine = self.cupy.full(SHAPE, self.cupy.nan, dtype=self.cupy.float16)
        flashjit.attention(*arrays, out=mine)
        self.assert_close(mine.get(), exact(*make_inputs(), False)[0], "float16")


class Jax(Arrays):
    @classmethod
    def setUpClass(cls):
        try:
            import jax
        except ImportError as error:
            raise unittest.SkipTest(f"JAX cannot be imported: {error}") from error
        if jax.default_backend() != "gpu":
            raise unittest.SkipTest(f"JAX has no GPU here but {jax.default_backend()}")
        cls.jax = jax

    def make_arrays(self, dtype, seed=7):
        return tuple(self.jax.numpy.asarray(array, dtype=dtype) for array in make_inputs(seed))

    def test_gives_arrays_of_jax(self):
        for dtype in ("float16", "bfloat16"):
            for causal in (False, True):
                with self.subTest(dtype=dtype, causal=causal):
                    out, lse = flashjit.attention(*self.make_arrays(dtype), causal=causal, lse=True)
                    self.assertIsInstance(out, self.jax.Array)
                    self.assertIsInstance(lse, self.jax.Array)
                    expected = exact(*make_inputs(), causal)
                    self.assert_close(numpy.asarray(out.astype("float32")), expected[0], dtype)
                    self.assert_close(numpy.asarray(lse), expected[1], dtype)

    def test_waits_for_what_jax_still_computes_and_jax_waits_for_the_result(self):
        for seed in range(20):
            q, k, v = self.make_arrays("bfloat16", seed)
            big = self.jax.numpy.ones((2048, 2048), dtype="bfloat16")
            late = self.jax.jit(lambda q, big: q + 0 * (big @ big @ big)[0, 0].astype(q.dtype))(q, big)
            out = flashjit.attention(late, k, v)
            doubled = numpy.asarray((2 * out).astype("float32"))
            self.assert_close(doubled / 2, exact(*make_inputs(seed), False)[0], "bfloat16")

    def test_refuses_to_write_into_an_array_of_the_caller(self):
        q, k, v = self.make_arrays("bfloat16")
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^out: .*immutable"):
            flashjit.attention(q, k, v, out=q)


if __name__ == "__main__":
    unittest.main()
