# SPDX-License-Identifier: Apache-2.0
"""What the grid decode of flashjit.compare measures: its cells and the arithmetic of its results; and, where PyTorch is,
the grid's way from a cell to its row, with flashjit in the emulator."""

import functools
import importlib.util
import pathlib
import sys
import unittest
from unittest import mock

import flashjit
from support import emulating_engine

sys.path.insert(0, str(pathlib.Path(flashjit.__file__).with_name("bench")))

import attention_decode  # noqa: E402
from attention_decode import DecodeCell, decode_grid, decode_row  # noqa: E402
from attention_decode_run import DecodeComparison, DecodeKernels  # noqa: E402


class Grid(unittest.TestCase):

    def test_cells_are_those_of_the_issue(self):
        self.assertEqual(len(decode_grid(("large", ))), 4)
        self.assertEqual(len(set(decode_grid(("small", )))), 60)
        self.assertEqual([cell.queries for cell in decode_grid(("queries", ))], [1, 2, 4])
        self.assertEqual(decode_grid(("large", ))[0].cache_bytes, 64 * 8192 * 8 * 128 * 2 * 2)

    def test_ratios_are_of_the_best_peer_of_our_own_cache_and_of_one_query(self):
        large, (one, two, _) = decode_grid(("large", ))[0], decode_grid(("queries", ))
        rows = [decode_row(large, {"flashjit": 100.0, "cudnn": 120.0, "fa2_heads_first": 110.0, "pages_16": 125.0}, {}),
                decode_row(one, {"flashjit": 100.0}, {}), decode_row(two, {"flashjit": 103.0}, {})]
        summary = attention_decode.summarise_decode(rows)
        self.assertAlmostEqual(summary["large_over_best"]["minimum"], 1.1)
        self.assertAlmostEqual(summary["pages_16_of_contiguous"]["minimum"], 0.8)
        self.assertAlmostEqual(summary["queries_of_one"]["maximum"], 1.03)
        self.assertNotIn("small_over_best", summary)
        self.assertIn("pages 16 of contiguous: geometric mean 0.800", attention_decode.format_decode_summary(summary))
        self.assertIn("/best 1.100", attention_decode.format_decode_row(large, rows[0]))
        stored = decode_row(decode_grid(("e4m3", ))[0], {"flashjit": 100.0, "e4m3": 50.0}, {})
        self.assertAlmostEqual(attention_decode.summarise_decode([stored])["e4m3_of_16_bits"]["minimum"], 2.0)
        # Of a small cache pages say little.
        tiny = decode_row(DecodeCell("small", 1, 32, 8, 1024), {"flashjit": 1.0, "pages_16": 2.0}, {})
        self.assertIsNone(attention_decode.of_contiguous(tiny, 16))


class Stopwatch:

    def microseconds(self, sides):
        return {side: float(number) for number, side in enumerate(sides, 1)}


@unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
class Runs(unittest.TestCase):

    def sides_of(self, group, queries):
        import torch

        engine = emulating_engine()
        for name in ("attention", "plan"):
            patch = mock.patch.object(flashjit, name, functools.partial(getattr(flashjit, name), engine=engine))
            self.addCleanup(patch.stop)
            patch.start()
        cell = DecodeCell(group, 2, 4, 2, 512, queries)
        kernels = DecodeKernels(torch, flashjit, [], "cpu")
        kernels.caches = lambda cell: [tuple(kernels.normal(2, 512, 2, 128) for _ in range(2))]
        comparison = DecodeComparison(kernels, Stopwatch(), [cell])
        with torch.no_grad():
            row = comparison.run(cell)
        comparison.require_no_failure()
        self.assertEqual(row["left_out"], {})
        return list(row["us"])

    def test_a_cell_becomes_a_row(self):
        self.assertEqual(self.sides_of("queries", 2), ["flashjit", "pages_16", "pages_64", "pages_256"])
        self.assertEqual(self.sides_of("e4m3", 1), ["flashjit", "e4m3", "e4m3_token_scales"])


if __name__ == "__main__":
    unittest.main()
