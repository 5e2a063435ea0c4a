# SPDX-License-Identifier: Apache-2.0
"""What the grid scores of flashjit.compare measures: each of its features by flashjit, in the emulator, beside the
reference that the grid checks with, and the grid's way to the defaults of the mma family."""

import pathlib
import sys
import types
import unittest

import flashjit
import numpy as np
from support import NumpyArrays, emulating_engine, make_inputs

sys.path.insert(0, str(pathlib.Path(flashjit.__file__).with_name("bench")))

from attention_features import FEATURES, Inputs, attended_rows  # noqa: E402
from attention_scores_run import MmaDefaults  # noqa: E402

SHAPE = (2, 200, 2, 64)  # batch, seqlen, heads, head_dim
TOLERANCE = 3e-3  # of values near 1: roundings to float16, and tanh


class ShortWindow(Inputs):
    window = 50


class Features(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.engine = emulating_engine()

    def inputs(self, other=False):
        return ShortWindow(NumpyArrays, SHAPE[0], SHAPE[2], SHAPE[1], other)

    def calls(self, feature, inputs):
        """Keywords of each of flashjit's ways to the feature."""
        calls = [feature.options(inputs)] if feature.options else []
        calls += [{"score": feature.text(flashjit, inputs)}] if feature.text else []
        if feature.blocks:
            q, k = self.tensors[:2]
            masks = {name: calls[0][name] for name in feature.blocks}
            calls.append(calls[0] | {"block_mask": self.engine.block_mask(q, k, **masks)})
        return calls or [{}]

    @property
    def tensors(self):
        return make_inputs(SHAPE, seqlen_kv=SHAPE[1])

    def check(self, feature, inputs):
        q, k, v = self.tensors
        rows = np.arange(SHAPE[1])
        for options in self.calls(feature, inputs):
            out = self.engine.attention(q, k, v, causal=True, **options)
            for batch, head in ((0, 0), (1, 1)):
                single = (tensor[batch, :, head].astype(np.float32) for tensor in (q, k, v))
                wanted = attended_rows(feature, inputs, *single, batch, head, rows)
                if feature.random:  # right on average only
                    along = (out[batch, :, head] * wanted).sum(axis=1) / (wanted * wanted).sum(axis=1)
                    self.assertAlmostEqual(along.mean(), 1, delta=0.1)
                else:
                    np.testing.assert_allclose(out[batch, :, head], wanted, atol=TOLERANCE)

    def test_every_feature_is_what_the_reference_says_and_other_inputs_compile_nothing(self):
        for name, feature in FEATURES.items():
            with self.subTest(name):
                self.check(feature, self.inputs())
                before = self.engine.counters()["compiles"]
                self.check(feature, self.inputs(other=True))
                self.assertEqual(self.engine.counters()["compiles"], before)

    def test_an_engine_without_kernels_names_the_default_of_the_mma_family(self):
        library = types.SimpleNamespace(Tensor=np.ndarray, empty_like=lambda array, device: np.empty_like(array))
        mma = MmaDefaults(library, flashjit)
        for name in ("plain", "documents", "function"):
            for options in self.calls(FEATURES[name], self.inputs()):
                variant = mma.variant(self.tensors, options)
                self.assertRegex(variant, r"^mma-q\d+-kv\d+-.*-(longest|natural)$")
                out = self.engine.attention(*self.tensors, causal=True, variant=variant, **options)
                np.testing.assert_allclose(out, self.engine.attention(*self.tensors, causal=True, **options),
                                           atol=TOLERANCE)


if __name__ == "__main__":
    unittest.main()
