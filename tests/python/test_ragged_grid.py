# SPDX-License-Identifier: Apache-2.0
"""What the grid ragged of flashjit.compare measures: its batches and the arithmetic of its results; and, where PyTorch is,
the grid's way from a cell to its row, with flashjit in the emulator."""

import functools
import importlib.util
import pathlib
import sys
import unittest
from unittest import mock

import flashjit
from support import Stopwatch, emulating_engine

sys.path.insert(0, str(pathlib.Path(flashjit.__file__).with_name("bench")))

import attention_ragged  # noqa: E402
from attention_grid import Cell  # noqa: E402
from attention_ragged import RaggedCell, dense_microseconds, lengths_of, ragged_grid, ragged_row  # noqa: E402
from attention_ragged_run import RaggedComparison, RaggedKernels  # noqa: E402


class Batches(unittest.TestCase):

    def test_sequences_have_all_tokens_together(self):
        for name in attention_ragged.BATCHES:
            lengths = lengths_of(name)
            self.assertEqual(sum(lengths), attention_ragged.TOKENS)
            self.assertEqual(lengths, lengths_of(name))
            self.assertGreaterEqual(min(lengths), 1)
        self.assertEqual(lengths_of("of_4096"), [4096] * 16)
        tail = sorted(lengths_of("long_tailed"))
        self.assertGreater(tail[-1], 5 * tail[len(tail) // 2])
        self.assertEqual([(cell.shape.head_dim, cell.shape.heads) for cell in ragged_grid(("of_512", ))], [(128, 16), (64, 32)])

    def test_dense_time_goes_by_pairs_of_tokens(self):
        tokens = attention_ragged.TOKENS
        # Time for each pair is the same at all lengths.
        us_at = {length: 1e-6 * (tokens // length) * length**2 for length in (512, 1024, 4096)}
        for lengths in ([512], [1024, 4096], [700, 100, 9000]):
            self.assertAlmostEqual(dense_microseconds(lengths, us_at), sum(1e-6 * length**2 for length in lengths), places=5)
        # Half as long for each pair at twice the length.
        halved = {512: us_at[512], 2048: us_at[512]}
        self.assertAlmostEqual(dense_microseconds([1024], halved), dense_microseconds([512], us_at) * 2, places=5)

    def test_shares_are_of_the_dense_kernel_and_ratios_of_the_peer(self):
        us_at = {4096: 100.0}
        row = ragged_row(ragged_grid(("of_4096", ), (128, ))[0], {"flashjit": 125.0, "mma": 160.0, "fa2": 250.0}, {}, us_at)
        self.assertAlmostEqual(attention_ragged.of_dense(row), 0.8)
        summary = attention_ragged.summarise_ragged([row])
        self.assertAlmostEqual(summary["over_fa2"]["minimum"], 2.0)
        self.assertAlmostEqual(summary["mma_over_fa2"]["geometric_mean"], 1.5625)
        self.assertIn("of the dense kernel: geometric mean 0.800", attention_ragged.format_ragged_summary(summary))


class ShortCell(RaggedCell):
    lengths = [70, 1, 129]


@unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
class Runs(unittest.TestCase):

    def test_a_cell_becomes_a_row(self):
        import torch

        emulated = functools.partial(flashjit.attention, engine=emulating_engine())
        patch = mock.patch.object(flashjit, "attention", emulated)
        self.addCleanup(patch.stop)
        patch.start()
        cell = ShortCell("of_512", Cell(64, "causal", 129, 3, 2, 2, 129))
        comparison = RaggedComparison(RaggedKernels(torch, flashjit, [], "cpu", tokens=200), Stopwatch(), [cell])
        with torch.no_grad():
            row = comparison.run(cell)
        self.assertEqual((row["us"], row["left_out"]), ({"flashjit": 1e3, "mma": 2e3}, {}))
        self.assertEqual((row["sequences"], row["tokens"]), (3, 200))
        self.assertGreater(row["dense_us"], 0)
        comparison.require_no_failure()


if __name__ == "__main__":
    unittest.main()
