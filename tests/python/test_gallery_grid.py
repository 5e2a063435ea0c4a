# SPDX-License-Identifier: Apache-2.0
"""What the grid gallery of flashjit.compare measures: each of its functions by flashjit, in the emulator, beside the
reference that the grid checks with; and, where PyTorch is, the grid's way from a cell to its row."""

import functools
import importlib.util
import pathlib
import sys
import unittest
from unittest import mock

import flashjit
import numpy as np
from support import NumpyArrays, Stopwatch, emulating_engine, make_inputs

sys.path.insert(0, str(pathlib.Path(flashjit.__file__).with_name("bench")))

from attention_features import attended_rows  # noqa: E402
from attention_gallery import GALLERY, GalleryCell, GalleryInputs, feature_of, share_seen  # noqa: E402
from attention_gallery_run import GalleryComparison, GalleryKernels  # noqa: E402
from attention_grid import Cell  # noqa: E402

SHAPE = (2, 130, 2, 64)  # batch, seqlen, heads, head_dim
TOLERANCE = 3e-3  # of values near 1, relative above: roundings to float16, and instructions that are not exact


class Functions(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.engine = emulating_engine()
        cls.tensors = make_inputs(SHAPE, seqlen_kv=SHAPE[1])

    def out(self, name, feature, inputs):
        """With the text, and with a block mask for a mask."""
        q, k, v = self.tensors
        if not feature.predicate:
            return self.engine.attention(q, k, v, causal=GALLERY[name].causal, score=feature.text(flashjit, inputs))
        mask = feature.predicate(flashjit, inputs)
        blocks = self.engine.block_mask(q, k, mask=mask)
        return self.engine.attention(q, k, v, causal=GALLERY[name].causal, mask=mask, block_mask=blocks)

    def test_every_text_is_what_its_function_says(self):
        for name, function in GALLERY.items():
            with self.subTest(name):
                numbers = {key: number.in_gallery for key, number in function.numbers.items()}
                inputs, feature = GalleryInputs(NumpyArrays, SHAPE[0], SHAPE[2], SHAPE[1], numbers), feature_of(name)
                out = self.out(name, feature, inputs)
                for batch, head in ((0, 0), (1, 1)):
                    single = (tensor[batch, :, head].astype(np.float32) for tensor in self.tensors)
                    wanted = attended_rows(feature, inputs, *single, batch, head, np.arange(SHAPE[1]))
                    np.testing.assert_allclose(out[batch, :, head], wanted, atol=TOLERANCE, rtol=TOLERANCE)

    def test_pairs_are_counted_over_all_heads(self):
        def share(name, **numbers):
            return share_seen(feature_of(name), GalleryInputs(NumpyArrays, 1, 4, 1100, numbers))

        self.assertEqual(share("t5"), 1)
        self.assertAlmostEqual(share("alibi"), 1101 / 2 / 1100)
        self.assertAlmostEqual(share("blocks", size=100), 1 / 11)
        reaches = (1, 2, 4, 8)
        seen = sum(min(query, reach) + 1 for query in range(1100) for reach in reaches) / len(reaches)
        self.assertAlmostEqual(share("heads", reach=1), seen / 1100**2)


@unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
class Runs(unittest.TestCase):

    def test_a_cell_becomes_a_row(self):
        """FlexAttention as it is without the compiler, whose work on a CPU takes long."""
        import torch

        for name in ("attention", "block_mask"):
            emulated = functools.partial(getattr(flashjit, name), engine=emulating_engine())
            patch = mock.patch.object(flashjit, name, emulated)
            self.addCleanup(patch.stop)
            patch.start()
        cells = [GalleryCell(name, Cell(64, "causal" if GALLERY[name].causal else "full", 130, 2, 2, 2, 130))
                 for name in ("t5", "decay", "bigbird", "heads")]
        comparison = GalleryComparison(GalleryKernels(torch, flashjit, ["flex"], "cpu"), Stopwatch(), cells)
        with torch.no_grad(), mock.patch.object(torch, "compile", lambda function, **_: function):
            for cell in cells:
                row = comparison.run(cell)
                self.assertEqual((row["us"], row["left_out"]), ({"flashjit": 1e3, "plain": 2e3, "flex": 3e3}, {}))
        comparison.require_no_failure()


if __name__ == "__main__":
    unittest.main()
