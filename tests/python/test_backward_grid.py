# SPDX-License-Identifier: Apache-2.0
"""What flashjit.compare --pass backward measures: its cells and the arithmetic of its results; and, where PyTorch is, the
way from cells to a record, with flashjit in the emulator, and how the peers' operators are called."""

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
import numpy
from support import Stopwatch, emulating_engine

sys.path.insert(0, str(pathlib.Path(flashjit.__file__).with_name("bench")))

import attention_backward  # noqa: E402
import attention_peers  # noqa: E402
from attention_backward import DETERMINISTIC, LARGE, PAPER, BackwardCell, backward_grid, backward_row  # noqa: E402
from attention_backward import format_backward_row, format_backward_summary, share_of_pairs, summarise_backward  # noqa: E402
from attention_backward_run import BackwardComparison, BackwardKernels, compare_backward, require_close  # noqa: E402
from attention_grid import Cell, PeerFigures, grid, paper_cell  # noqa: E402


def figures(**changes):
    cell = {"pass": "backward", "head_dim": 256, "mask": "causal", "seqlen": 512, "best": "fa3", "best_over_cudnn": 1.25}
    cell |= {"cudnn_tflops": 400.0, "fa3_tflops": 500.0, "fa4_over_cudnn": 0.8}
    description = {"date": "some day", "conditions": "", "peers": {}}
    return PeerFigures(json.dumps({"cells": [cell | changes], **description}), "backward")


class Grid(unittest.TestCase):

    def test_cells_are_those_of_forward_and_some_of_each_comparison(self):
        self.assertEqual([cell.shape for cell in backward_grid((PAPER, ))], grid())
        self.assertEqual({(cell.shape.heads, cell.shape.heads_kv) for cell in backward_grid(("grouped", ))}, {(32, 8)})
        self.assertEqual({cell.shape.seqlen for cell in backward_grid(("window", ))}, {16384})
        self.assertEqual(len(set(backward_grid())), 36 + 3 + 2 + 3 + 36 + 6 + 10)

    def test_each_group_has_its_sides(self):
        cells = {cell.group: cell for cell in backward_grid()}
        sides = {group: (list(cell.ours), list(cell.peers)) for group, cell in cells.items()}
        self.assertEqual(sides, {PAPER: (["flashjit", "mma"], ["cudnn", "fa2"]),
                                 "grouped": (["flashjit", "equal_heads"], ["cudnn", "fa2"]),
                                 "window": (["flashjit", "plain"], ["fa2"]), "f32": (["flashjit", "f32"], []),
                                 DETERMINISTIC: (["flashjit", "any_order"], ["cudnn", "fa2"]),
                                 "variants": (["flashjit", *attention_backward.VARIANTS[256]], []),
                                 LARGE: (["flashjit"], ["efficient"])})
        grouped, window, f32 = (cells[group].ours for group in ("grouped", "window", "f32"))
        self.assertEqual([problem.shape.heads_kv for problem in grouped.values()], [8, 32])
        self.assertEqual([problem.window for problem in window.values()], [1024, None])
        self.assertEqual([problem.dtype_kv for problem in f32.values()], ["bfloat16", "float32"])
        ordered = cells[DETERMINISTIC].ours.values()
        self.assertEqual([problem.deterministic for problem in ordered], [True, False])

    def test_variants_are_kernels_of_the_head_dim(self):
        for head_dim, variants in attention_backward.VARIANTS.items():
            rows = numpy.zeros((1, 16, 1, head_dim), numpy.float16)
            lse = numpy.zeros((1, 1, 16), numpy.float32)
            for variant in variants:
                with self.subTest(variant, head_dim=head_dim):
                    emulating_engine().attention_backward(rows, rows, rows, rows, rows, lse, variant=variant)

    def test_flops_are_of_five_products_over_the_pairs_that_are_seen(self):
        full, causal = (BackwardCell(PAPER, paper_cell(128, mask, 4096)) for mask in ("full", "causal"))
        self.assertEqual(full.flops(), 10 * 4 * 16 * 4096**2 * 128)
        self.assertEqual(causal.flops(), full.flops() / 2)
        self.assertEqual(share_of_pairs(4, 1), (1 + 2 + 2 + 2) / 10)
        self.assertEqual(share_of_pairs(4, 100), 1)
        windowed = BackwardCell("window", paper_cell(128, "causal", 16384))
        self.assertAlmostEqual(windowed.flops() / BackwardCell(PAPER, windowed.shape).flops(), 0.1211, places=3)

    def test_the_best_peer_is_cudnn_now_times_its_ratio_of_this_pass(self):
        cell = BackwardCell(PAPER, paper_cell(256, "causal", 512))
        us = {"flashjit": 1000.0, "cudnn": 1200.0, "fa2": 2000.0}
        row = backward_row(cell, us, {}, figures())
        self.assertAlmostEqual(row["tflops"]["flashjit"], cell.flops() / 1e9)
        for peer, ratio in (("cudnn", 1.2), ("fa2", 2.0), ("best", 0.96)):
            self.assertAlmostEqual(row["over"][peer], ratio)
        self.assertEqual((row["best_peer"], row["window"]), ("fa3", None))
        self.assertEqual(Cell.of(json.loads(json.dumps(row))), cell.shape)
        for others in (figures(**{"pass": "forward"}), None):
            self.assertNotIn("best", backward_row(cell, us, {}, others)["over"])
        for group in ("window", "f32"):  # of the same shapes
            self.assertNotIn("best", backward_row(BackwardCell(group, cell.shape), us, {}, figures())["over"])
        ratios = figures().ratios(row)
        self.assertAlmostEqual(ratios["fa3"], 0.96)
        self.assertAlmostEqual(ratios["fa4"], 1.5)

    def test_without_a_right_result_of_flashjit_there_is_no_ratio(self):
        cell = BackwardCell(PAPER, paper_cell(64, "full", 1024))
        row = backward_row(cell, {"cudnn": 10.0}, {"flashjit": "dq is nan"}, figures())
        self.assertEqual((row["over"], list(row["tflops"])), ({}, ["cudnn"]))
        self.assertEqual(Cell.of(row), cell.shape)
        self.assertEqual(summarise_backward([row]), {PAPER: {}, DETERMINISTIC: {}})
        self.assertIn("\n  flashjit: dq is nan", format_backward_row(cell, row))

    def test_the_summary_has_the_means_and_the_smallest_cell(self):
        shapes = paper_cell(256, "causal", 512), paper_cell(64, "full", 512)
        paper = [BackwardCell(PAPER, shape) for shape in shapes]
        rows = [backward_row(cell, {"flashjit": 100.0, "cudnn": us, "fa2": 200.0}, {}, figures())
                for cell, us in zip(paper, (100.0, 400.0))]
        others = {"grouped": {"flashjit": 100.0, "equal_heads": 96.0, "fa2": 1.0},
                  "window": {"flashjit": 13.0, "plain": 100.0}, "f32": {"flashjit": 100.0, "f32": 103.0},
                  DETERMINISTIC: {"flashjit": 100.0, "any_order": 92.0, "cudnn": 110.0}}
        rows += [backward_row(backward_grid((group, ))[0], us, {}) for group, us in others.items()]
        summary = json.loads(json.dumps(summarise_backward(rows)))
        of_cudnn = summary[PAPER]["cudnn"]
        self.assertAlmostEqual(of_cudnn["geometric_mean"], 2)
        self.assertEqual((of_cudnn["minimum"], of_cudnn["smallest"]), (1, "head dim 256, causal, 512"))
        self.assertAlmostEqual(of_cudnn["by_head_dim"]["64"], 4)
        self.assertEqual(summary[PAPER]["fa2"]["cells"], 2)
        self.assertEqual(summary[PAPER]["best"]["cells"], 1)
        self.assertAlmostEqual(summary[PAPER]["best"]["minimum"], 0.8)
        self.assertAlmostEqual(summary["of_equal_heads"]["minimum"], 0.96)
        self.assertAlmostEqual(summary["over_share"]["maximum"], 0.13 / share_of_pairs(16384, 1024))
        self.assertAlmostEqual(summary["f32_over_16_bits"]["geometric_mean"], 1.03)
        self.assertAlmostEqual(summary["of_any_order"]["geometric_mean"], 0.92)
        self.assertAlmostEqual(summary[DETERMINISTIC]["cudnn"]["geometric_mean"], 1.1)
        text = format_backward_summary(summary)
        self.assertIn("the best peer: geometric mean 0.800 (d256 0.800), smallest 0.800 (head dim 256, causal, 512), 1 cells",
                      text)
        self.assertIn("of the rate with equal heads: geometric mean 0.960", text)
        self.assertIn("flashjit / cudnn, both deterministic: geometric mean 1.100", text)
        shown = format_backward_row(paper[0], rows[0])
        for part in ("flashjit 100.0 us", "(fa3)", "/fa2 2.000", "/best 0.800"):
            self.assertIn(part, shown)


def by_autograd(torch, dout, q, k, v, causal, window=None):
    """Stands for a peer, in f32."""
    with torch.enable_grad():
        given = [tensor.float().requires_grad_() for tensor in (q, k, v)]
        rows, keys, values = (tensor.transpose(1, 2) for tensor in given)
        keys, values = (tensor.repeat_interleave(q.shape[2] // k.shape[2], 1) for tensor in (keys, values))
        scores = rows @ keys.transpose(2, 3) * q.shape[3]**-0.5
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
        seen = seen.tril() if causal else seen
        seen = seen.triu(-window) if window is not None else seen
        out = (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ values).transpose(1, 2)
        gradients = torch.autograd.grad(out, given, dout.float())
    return lambda: tuple(gradient.to(q.dtype) for gradient in gradients)


CELLS = [BackwardCell(PAPER, Cell(64, "causal", 128, 2, 2, 2, 128)),
         BackwardCell(PAPER, Cell(128, "full", 128, 1, 1, 1, 128)),
         BackwardCell("grouped", Cell(64, "causal", 128, 1, 4, 2, 128)),
         BackwardCell("window", Cell(64, "causal", 128, 1, 1, 1, 128)),
         BackwardCell("f32", Cell(64, "causal", 128, 1, 2, 2, 128)),
         BackwardCell(LARGE, Cell(264, "causal", 128, 1, 1, 1, 128))]
MAKERS = {"cudnn": by_autograd, "fa2": by_autograd, "efficient": by_autograd}


@unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
class Runs(unittest.TestCase):

    def setUp(self):
        import torch

        self.torch = torch
        engine = emulating_engine()
        for name in ("attention", "attention_backward"):
            self.patch(flashjit, name, functools.partial(getattr(flashjit, name), engine=engine))
        self.patch(attention_backward, "WINDOW", 40)
        self.patch(torch.cuda, "get_device_name", lambda _: "emulated")

    def patch(self, *of_what):
        patch = mock.patch.object(*of_what)
        self.addCleanup(patch.stop)
        patch.start()

    def compare(self, cells, path=None, figures=None):
        """What is printed."""
        arguments, printed = types.SimpleNamespace(cells=cells, json=path), io.StringIO()
        with contextlib.redirect_stdout(printed):
            compare_backward(self.torch, flashjit, Stopwatch(), ["cudnn", "fa2", "efficient"], arguments, figures, device="cpu",
                             makers=MAKERS)
        return printed.getvalue()

    def test_cells_become_a_record(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "record.json"
            printed = self.compare(CELLS, path, figures(head_dim=64, seqlen=128))
            record = json.loads(path.read_text())
        self.assertEqual([row["left_out"] for row in record["rows"]], [{}] * len(CELLS))
        self.assertEqual([list(row["us"]) for row in record["rows"]],
                         [["flashjit", "mma", "cudnn", "fa2"]] * 2 + [["flashjit", "equal_heads", "cudnn", "fa2"],
                                                                      ["flashjit", "plain", "fa2"], ["flashjit", "f32"],
                                                                      ["flashjit", "efficient"]])
        self.assertEqual((record["failures"], record["best_peers"]["date"]), ([], "some day"))
        self.assertEqual(record["summary"][PAPER]["fa2"]["cells"], 2)
        for text in ("backward, bf16", "flashjit / cudnn: geometric mean 3.000", "time with dk and dv in f32",
                     "mma / fa2: geometric mean 2.000"):
            self.assertIn(text, printed)

    def test_what_is_wrong_is_not_timed_and_fails_when_it_is_ours(self):
        right = flashjit.attention_backward

        def wrong(*tensors, **options):
            gradients = right(*tensors, **options)
            gradients[2][0, 70, 0] *= 0 if "window" in options else 1
            return gradients

        self.patch(flashjit, "attention_backward", wrong)
        with self.assertRaisesRegex(RuntimeError, "^window .*: flashjit: dv is 0.* not timed$"):
            self.compare([cell for cell in CELLS if cell.group == "window"])
        makers = {"fa2": by_autograd, "cudnn": lambda *_: lambda: [self.torch.full((2, 128, 2, 64), float("nan"))] * 3}
        kernels = BackwardKernels(self.torch, flashjit, ["cudnn"], CELLS, "cpu", makers)
        comparison = BackwardComparison(kernels, Stopwatch(), CELLS)
        row = comparison.run(CELLS[0])
        self.assertEqual((list(row["us"]), list(row["left_out"])), (["flashjit", "mma"], ["cudnn"]))
        comparison.require_no_failure()

    def test_one_wrong_row_is_found(self):
        self.torch.manual_seed(1)
        right = [self.torch.randn(1, 256, 2, 64) / 100 for _ in range(3)]
        require_close([gradient.bfloat16() for gradient in right], right, "fa2")
        wrong = [gradient.clone() for gradient in right]
        wrong[1][0, 200, 1] = 0
        with self.assertRaisesRegex(RuntimeError, "^dk is 0.1"):
            require_close(wrong, right, "fa2")

    def test_the_operators_of_pytorch_take_what_peers_give_them(self):
        for sizes in ((2, 256, 4, 64), (1, 128, 2, 256)):
            tensors = [self.torch.empty(sizes, dtype=self.torch.bfloat16, device="meta") for _ in range(4)]
            for name, make in attention_peers.BACKWARD.items():
                for options in ({}, {"window": 32})[: 2 if name == "fa2" else 1]:
                    with self.subTest(name, **options), self.torch.no_grad():
                        gradients = make(self.torch, *tensors, True, **options)()
                        self.assertEqual([tuple(gradient.shape) for gradient in gradients], [sizes] * 3)


if __name__ == "__main__":
    unittest.main()
