# SPDX-License-Identifier: Apache-2.0
"""flashjit.attention on arrays of JAX in host memory, in the emulator. Needs JAX and NVRTC."""

import os
import unittest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
try:
    import jax
except ImportError as error:
    raise unittest.SkipTest(f"JAX cannot be imported: {error}") from error

import flashjit
import numpy as np
from support import emulating_engine, make_inputs, reference


class Jax(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.engine = emulating_engine()

    def setUp(self):
        self.arrays = make_inputs()
        self.inputs = [jax.numpy.asarray(array) for array in self.arrays]

    def test_a_call_makes_arrays_of_jax(self):
        out, lse = self.engine.attention(*self.inputs, causal=True, lse=True)
        self.assertIsInstance(out, jax.Array)
        for result, wanted in zip((out, lse), reference(*self.arrays, causal=True)):
            np.testing.assert_allclose(np.asarray(result), wanted, atol=2e-3)

    def test_slopes(self):
        slopes = np.float32([0.5, -0.25])
        out = self.engine.attention(*self.inputs, alibi_slopes=jax.numpy.asarray(slopes))
        np.testing.assert_allclose(np.asarray(out), reference(*self.arrays, alibi_slopes=slopes)[0], atol=2e-3)

    def test_masks_and_functions(self):
        table, documents = np.float32([0.5, 2]), np.int32([[0] * 20 + [1] * 12])
        shown = np.arange(32).reshape(1, 1, 1, 32) % 5 != 2
        options = {"boolean_mask": jax.numpy.asarray(shown), "documents": jax.numpy.asarray(documents)}
        blocks = self.engine.block_mask(*self.inputs[:2], **options)
        self.assertIsInstance(blocks, jax.Array)
        self.assertEqual((blocks.shape, blocks.dtype), ((1, 1, 1, 2, 1), np.int32))
        score = flashjit.Score("score * table(head) * two", table=jax.numpy.asarray(table), two=2)
        out = self.engine.attention(*self.inputs, score=score, block_mask=blocks, **options)
        wanted = reference(*self.arrays, boolean_mask=shown, documents=documents,
                           change=lambda scores: scores * 2 * table[:, None, None])[0]
        np.testing.assert_allclose(np.asarray(out), wanted, atol=2e-3)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^into: must not be an array of JAX"):
            self.engine.block_mask(*self.inputs[:2], **options, into=blocks)

    def test_bfloat16(self):
        inputs = [array.astype(jax.numpy.bfloat16) for array in self.inputs]
        out = self.engine.attention(*inputs)
        self.assertEqual(out.dtype, jax.numpy.bfloat16)
        np.testing.assert_allclose(np.asarray(out, np.float64), reference(*self.arrays)[0], atol=2e-2)

    def test_outputs_of_the_caller_are_refused(self):
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^out: must not be an array of JAX"):
            self.engine.attention(*self.inputs, out=self.inputs[0])

    def test_streams_of_the_caller_are_refused(self):
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^stream: must be None for arrays of JAX"):
            self.engine.attention(*self.inputs, stream=1)

    def test_errors_of_the_library(self):
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^v: num_heads must be 2"):
            self.engine.attention(*self.inputs[:2], self.inputs[2][:, :, :1])

    def test_tracing(self):
        with self.assertRaisesRegex(flashjit.Unsupported, "^q: must be an array with values.* outside jax.jit"):
            jax.jit(self.engine.attention)(*self.inputs)


if __name__ == "__main__":
    unittest.main()
