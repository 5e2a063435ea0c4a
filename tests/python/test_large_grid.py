# SPDX-License-Identifier: Apache-2.0
"""What the grid large of flashjit.compare measures of MLA's caches: where PyTorch is, the grid's way from a cell to its row,
with flashjit in the emulator."""

import functools
import importlib.util
import pathlib
import sys
import unittest
from unittest import mock

import flashjit
from support import emulating_engine

sys.path.insert(0, str(pathlib.Path(flashjit.__file__).with_name("bench")))

from attention_large import LargeCell  # noqa: E402
from attention_large_run import LargeComparison, LargeKernels  # noqa: E402


class Stopwatch:

    def microseconds(self, sides):
        for launches in sides.values():
            for launch in launches:
                launch()
        return {side: float(number) for number, side in enumerate(sides, 1)}


@unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
class Runs(unittest.TestCase):

    def row(self, group):
        import torch

        engine = emulating_engine()
        for name in ("attention", "plan"):
            patch = mock.patch.object(flashjit, name, functools.partial(getattr(flashjit, name), engine=engine))
            self.addCleanup(patch.stop)
            patch.start()
        comparison = LargeComparison(LargeKernels(torch, flashjit, [], "cpu"), Stopwatch(), [])
        cell = LargeCell(group, 2, 16, 1, 128, 1)
        with torch.no_grad(), mock.patch.object(LargeKernels, "cache_count", lambda kernels, cell: 2):
            row = comparison.run(cell)
        comparison.require_no_failure()
        self.assertEqual(row["left_out"], {})
        return row

    def test_a_cache_of_mla_becomes_a_row(self):
        self.assertEqual(list(self.row("mla")["us"]), ["flashjit", "pages_64", "pairs", "read"])

    def test_a_cache_of_mla_in_e4m3_becomes_a_row(self):
        row = self.row("mla_e4m3")
        self.assertEqual(list(row["us"]), ["flashjit", "pages_64", "read"])
        self.assertEqual(row["cache_bytes"], 2 * 128 * 644)


if __name__ == "__main__":
    unittest.main()
