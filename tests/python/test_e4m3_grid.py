# SPDX-License-Identifier: Apache-2.0
"""What flashjit.compare --dtype e4m3 measures: its cells and the arithmetic of its results; and, where PyTorch is, the way
from cells to a record, with flashjit in the emulator."""

import contextlib
import functools
import importlib.util
import io
import json
import pathlib
import sys
import tempfile
import types
import unittest
from unittest import mock

import flashjit
from support import Stopwatch, emulating_engine

sys.path.insert(0, str(pathlib.Path(flashjit.__file__).with_name("bench")))

import compare_peers  # noqa: E402
from attention_e4m3 import LONGER, PAPER, E4m3Cell, e4m3_grid, e4m3_rows, format_e4m3_rows  # noqa: E402
from attention_e4m3 import format_e4m3_summary, summarise_e4m3  # noqa: E402
from attention_e4m3_run import compare_e4m3  # noqa: E402
from attention_grid import Cell, PeerFigures, grid, paper_cell  # noqa: E402


def figures(head_dim=128, mask="causal", seqlen=4096):
    cell = {"pass": "e4m3", "head_dim": head_dim, "mask": mask, "seqlen": seqlen, "best": "fa3", "best_over_cudnn": 1.6}
    return PeerFigures(json.dumps({"cells": [cell], "date": "some day", "conditions": "", "peers": {}}), "e4m3")


class Grid(unittest.TestCase):

    def test_cells_are_the_papers_and_its_lengths_of_e4m3(self):
        self.assertEqual([cell.shape for cell in e4m3_grid((PAPER, ))], grid())
        self.assertEqual({cell.shape.seqlen * cell.shape.batch for cell in e4m3_grid((LONGER, ))}, {16896})
        self.assertEqual(len(set(e4m3_grid())), 36 + 18)

    def test_a_row_for_each_kind_of_sums(self):
        cell = E4m3Cell(PAPER, paper_cell(128, "causal", 4096))
        rows = e4m3_rows(cell, {"fast": 100.0, "exact": 125.0, "cudnn": 200.0}, {}, figures())
        self.assertEqual([row["sums"] for row in rows], ["fast", "exact"])
        self.assertEqual([round(row["over"]["cudnn"], 6) for row in rows], [2.0, 1.6])
        self.assertEqual([round(row["over"]["best"], 6) for row in rows], [1.25, 1.0])
        shown = format_e4m3_rows(cell, rows)
        for text in ("fast: TFLOPS flashjit", "exact: TFLOPS", "(fa3)", "/cudnn 2.000", "/best 1.250"):
            self.assertIn(text, shown)
        lone = e4m3_rows(cell, {"cudnn": 200.0}, {"fast": "why not", "exact": "why not"})
        self.assertEqual([(row["sums"], row["over"]) for row in lone], [(None, {})])
        self.assertIn("fast: why not", format_e4m3_rows(cell, lone))

    def test_the_summary_has_wide_heads_by_themselves(self):
        times = {"fast": 100.0, "exact": 125.0, "cudnn": 200.0}
        rows = [row for cell in e4m3_grid() for row in e4m3_rows(cell, times, {}, figures())]
        summary = summarise_e4m3(rows)
        counts = {group: summary["fast"][group]["cudnn"]["cells"] for group in ("narrow", "wide", LONGER)}
        self.assertEqual(counts, {"narrow": 24, "wide": 12, LONGER: 18})
        self.assertEqual(summary["exact"]["narrow"]["best"]["cells"], 1)
        text = format_e4m3_summary(summary)
        self.assertIn("with exact sums / FlashAttention-3 in e4m3, head dims 64 and 128: geometric mean 1.000, smallest 1.000 "
                      "(head dim 128, causal, 4096), 1 cells", text)
        self.assertIn("with fast sums / cudnn in bf16, head dim 256: geometric mean 2.000", text)

    def test_options_that_do_not_go_together_are_refused(self):
        for options, why in ((["--pass", "backward"], "--dtype e4m3 is of --pass forward"),
                             (["--grid", "scores"], "--grid scores is not for --dtype e4m3"),
                             (["--cells", "window"], "--cells must be of paper, longer, was 'window'")):
            told = io.StringIO()
            with contextlib.redirect_stderr(told), self.assertRaises(SystemExit):
                compare_peers.parse_arguments(["--dtype", "e4m3", *options])
            self.assertIn(why, told.getvalue())

    def test_the_file_of_figures_knows_flashattention_3(self):
        known, _ = compare_peers.read_figures(None, "NVIDIA H200", "e4m3")
        self.assertEqual(set(known.cells), set(grid()))
        self.assertEqual(known.best(paper_cell(128, "full", 4096), 602)["name"], "fa3")


def in_f32(torch, name, q, k, v, causal):
    """Stands for a peer."""
    rows, keys, values = (tensor.float().transpose(1, 2) for tensor in (q, k, v))
    attention = torch.nn.functional.scaled_dot_product_attention
    return lambda: attention(rows, keys, values, is_causal=causal).transpose(1, 2)


CELLS = [E4m3Cell(PAPER, Cell(64, "causal", 130, 1, 2, 2, 130)), E4m3Cell(LONGER, Cell(32, "full", 96, 2, 1, 1, 96))]


@unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
class Runs(unittest.TestCase):

    def setUp(self):
        import torch

        self.torch = torch
        self.attention = functools.partial(flashjit.attention, engine=emulating_engine())
        self.patch(flashjit, "attention", self.attention)
        self.patch(torch.cuda, "get_device_name", lambda _: "emulated")

    def patch(self, *of_what):
        patch = mock.patch.object(*of_what)
        self.addCleanup(patch.stop)
        patch.start()

    def compare(self, path=None, launcher=in_f32):
        """What is printed."""
        arguments, printed = types.SimpleNamespace(cells=CELLS, json=path), io.StringIO()
        with contextlib.redirect_stdout(printed):
            compare_e4m3(self.torch, flashjit, Stopwatch(), ["cudnn", "fa2"], arguments, figures(64, "causal", 130),
                         device="cpu", launcher=launcher)
        return printed.getvalue()

    def test_cells_become_a_record(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "record.json"
            printed = self.compare(path)
            record = json.loads(path.read_text())
        self.assertEqual([row["left_out"] for row in record["rows"]], [{}] * 4)
        self.assertEqual([row["sums"] for row in record["rows"]], ["fast", "exact"] * 2)
        self.assertEqual(list(record["rows"][0]["us"]), ["cudnn", "fa2", "fast", "exact"])
        self.assertEqual(record["best_peers"]["date"], "some day")
        self.assertIn("flashjit with fast sums / cudnn in bf16", printed)

    def test_what_is_wrong_is_not_timed_and_fails_when_it_is_ours(self):
        def wrong(*tensors, **options):
            out = self.attention(*tensors, **options)
            if options["accumulate"] == "exact":
                out[0, 60:, 0] = 0
            return out

        self.patch(flashjit, "attention", wrong)
        with self.assertRaisesRegex(RuntimeError, "exact: a head is 0.* of its length from that of a peer: not timed"):
            self.compare()

    def test_without_a_peer_nothing_is_compared(self):
        with self.assertRaisesRegex(RuntimeError, "there is none here"):
            compare_e4m3(self.torch, flashjit, Stopwatch(), [], types.SimpleNamespace(cells=CELLS, json=None))


if __name__ == "__main__":
    unittest.main()
