# SPDX-License-Identifier: Apache-2.0
"""bench/context_parallel.py without a GPU and without PyTorch: its cells, what it makes of times, and its record."""

import contextlib
import importlib.machinery
import importlib.util
import io
import itertools
import json
import pathlib
import sys
import tempfile
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench"))

import context_parallel  # noqa: E402
import context_parallel_cells as cells  # noqa: E402
from context_parallel_cells import ParallelCell, missed, pairs, parallel_grid, parallel_row, share_of_linear  # noqa: E402
from context_parallel_cells import wrong  # noqa: E402
from context_parallel_record import begin_part, keep, part_of, read_record, write_record  # noqa: E402

VERSIONS = {"version": "1", "torch": "2", "nccl": "2.28", "sources": "0123"}


def row_of(cell, left_out=None, checks=None, **ms):
    model = {"ring": {"ms": 80.0, "bytes": 1 << 20, "calls": 4}}
    return parallel_row(cell, {"alone": 100.0, "automatic": 101.0, "ring": 101.0, **ms}, left_out or {}, "ring", model,
                        checks or {})


class Cells(unittest.TestCase):
    causal = ParallelCell(2, "forward", "causal", 128 << 10)

    def test_the_grid_is_that_of_the_issue(self):
        def tokens(gpus, *of):
            return sorted(cell.tokens >> 10 for cell in parallel_grid(gpus) if (cell.of_pass, cell.mask) == of)

        for of_pass, mask in itertools.product(("forward", "backward"), ("causal", "full")):
            self.assertEqual(tokens(2, of_pass, mask), [8, 16, 32, 128, 512])
            for gpus in (4, 8):
                longest = [1024] if (of_pass, mask) == ("forward", "causal") else []
                self.assertEqual(tokens(gpus, of_pass, mask), [32, 128, 512, *longest])
        self.assertEqual((tokens(2, "forward", "window"), tokens(8, "forward", "window")), ([128], []))
        self.assertEqual({cell.heads for cell in parallel_grid(2)}, {(32, 8)})
        self.assertEqual({cell.heads for cell in parallel_grid(4) + parallel_grid(8)}, {(64, 8)})
        work = [cell.flops() for cell in parallel_grid(8)]
        self.assertEqual(work, sorted(work))
        self.assertEqual(parallel_grid(2, ("forward", ), ("causal", ), [128 << 10]), [self.causal])

    def test_pairs_are_those_that_the_mask_leaves(self):
        for tokens in (1, 5, 40):
            positions = list(itertools.product(range(tokens), repeat=2))
            with unittest.mock.patch.object(cells, "WINDOW", 7):
                self.assertEqual(pairs(tokens, "window"), sum(0 <= query - key <= 7 for query, key in positions))
            self.assertEqual(pairs(tokens, "causal"), sum(key <= query for query, key in positions))
            self.assertEqual(pairs(tokens, "full"), len(positions))

    def test_one_gpu_has_the_work_that_each_gpu_has(self):
        for gpus in (2, 4, 8):
            for cell in parallel_grid(gpus):
                self.assertAlmostEqual(cell.flops(cell.alone_tokens) / (cell.flops() / gpus), 1, delta=0.05)
                self.assertEqual(cell.alone_tokens % cells.STEP, 0)

    def test_samples_are_long_enough_and_a_run_is_short_enough(self):
        for cell in parallel_grid(2):
            self.assertGreaterEqual(cell.calls * cell.seconds, cells.SAMPLE_SECONDS)
            self.assertLess(len(cell.sides) * cell.rounds * cell.calls * cell.seconds, 240)

    def test_pytorch_runs_beside_causal_cells_alone(self):
        for cell in parallel_grid(2):
            self.assertEqual(bool(cell.peers), cell.mask == "causal" and cell.tokens in (32 << 10, 128 << 10))

    def test_lengths_are_read_as_they_are_written(self):
        for text in ("8k", "1024k", "100"):
            self.assertEqual(cells.length(cells.parse_length(text)), text)
        self.assertEqual(cells.parse_length("32k"), 32768)


class Rows(unittest.TestCase):
    cell = ParallelCell(2, "forward", "full", 1024)  # one GPU does half of it with 724 tokens; here with 768

    def test_linear_scaling_is_the_rate_of_one_gpu(self):
        row = row_of(self.cell)
        self.assertEqual(row["alone_tokens"], 768)
        self.assertAlmostEqual(share_of_linear(row, "ring"), (1024**2 / 2 / 101) / (768**2 / 100))
        self.assertIsNone(share_of_linear(row, "all_gather"))
        double = row_of(self.cell, alone=50.0)
        self.assertAlmostEqual(share_of_linear(double, "ring"), share_of_linear(row, "ring") / 2)
        self.assertAlmostEqual(cells.over_model(row, "ring"), 101 / 80)

    def test_the_rule_is_compared_with_the_fastest_scheme(self):
        row = row_of(self.cell, all_gather=95.0)
        self.assertEqual(cells.fastest(row), "all_gather")
        self.assertAlmostEqual(cells.of_fastest(row), 101 / 95)
        self.assertTrue(any("the rule's ring takes 1.063 times as long as all_gather" in text for text in missed(row)))

    def test_pytorch_counts_by_its_faster_way(self):
        causal = ParallelCell(2, "forward", "causal", 128 << 10)
        row = row_of(causal, torch_allgather=150.0, torch_alltoall=111.1)
        self.assertAlmostEqual(cells.over_peer(row), 1.1)
        self.assertEqual(missed(row), [f"{causal}: 1.100 times PyTorch's throughput, which must be 1.2"])
        self.assertIsNone(cells.over_peer(row_of(causal)))

    def test_shares_are_asked_of_two_gpus(self):
        least = {(cell.of_pass, cell.mask, cell.tokens >> 10): cell.least_share for cell in parallel_grid(2)}
        self.assertEqual(least["forward", "causal", 8], 0.85)
        self.assertEqual(least["backward", "full", 32], 0.80)
        self.assertEqual(least["forward", "full", 128], 0.97)
        self.assertEqual(least["backward", "causal", 512], 0.95)
        self.assertEqual(least["backward", "window", 128], 0.80)
        self.assertIsNone(ParallelCell(8, "forward", "causal", 128 << 10).least_share)
        causal = ParallelCell(2, "forward", "causal", 128 << 10)
        self.assertEqual(missed(row_of(causal)), [])
        self.assertIn("of linear scaling, which must be 0.97", missed(row_of(causal, automatic=110.0, ring=110.0))[0])

    def test_what_is_wrong_is_told(self):
        good = {"of_bound": 0.5, "from_alone": 0.1, "same_bits": True}
        bad = {"of_bound": 1.5, "from_alone": 9, "same_bits": False}
        nan = {**good, "of_bound": float("nan")}
        self.assertEqual(wrong(row_of(self.cell, {"torch_allgather": "why"}, {"ring": good})), [])
        self.assertEqual(len(wrong(row_of(self.cell, {"ring": "why"}, {"ring": bad, "all_gather": nan}))), 4)
        text = cells.format_parallel_row(row_of(self.cell, {"torch_allgather": "why"}, {"ring": bad}))
        for part in ("ring 101.000 (", "1.26 of the model", "OTHER BITS", "left out: torch_allgather: why", "1.0 MB in 4"):
            self.assertIn(part, text)


class Record(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name, "gpu.json")
        write_record(self.path, {"device": "D", "steps": {"test": {"cases": 1}}})

    def begun(self, gpus, **changes):
        record = read_record(self.path)
        part = begin_part(record, gpus, {**VERSIONS, **changes})
        write_record(self.path, record)
        return part

    def test_rows_stay_until_the_sources_are_others(self):
        first, second = (ParallelCell(gpus, "forward", "causal", 32 << 10) for gpus in (2, 8))
        for cell in (first, second):
            self.begun(cell.gpus)
            keep(self.path, row_of(cell))
        keep(self.path, row_of(first, ring=7.0))
        self.assertEqual([row["ms"]["ring"] for row in self.begun(2)["rows"]], [7.0])
        self.assertEqual(self.begun(2, sources="9")["rows"], [])
        record = read_record(self.path)
        self.assertEqual(len(part_of(record, 8)["rows"]), 1)
        self.assertEqual(record["steps"]["test"], {"cases": 1})

    def test_hosts_and_records_that_do_not_fit_are_refused(self):
        for count, asked, why in ((1, None, "needs 2 GPUs or more, found 1"), (4, [8], "must be at most 4")):
            torch = types.SimpleNamespace(cuda=types.SimpleNamespace(device_count=lambda count=count: count))
            with self.assertRaisesRegex(RuntimeError, why):
                context_parallel.require_gpus(torch, asked)
        torch = types.SimpleNamespace(cuda=types.SimpleNamespace(device_count=lambda: 7))
        self.assertEqual(context_parallel.require_gpus(torch, None), [4])
        self.assertEqual(context_parallel.require_gpus(torch, [2, 4]), [2, 4])
        with self.assertRaisesRegex(RuntimeError, "there is no record; scripts/gpu-check --steps distributed begins one"):
            read_record(self.path.with_name("other.json"))

    def test_what_is_left_is_told_and_wrong_results_fail(self):
        self.begun(2)
        cell = parallel_grid(2)[0]
        arguments = context_parallel.parse_arguments(["--tokens", "8k", "--mask", cell.mask])
        for bits in (True, False):
            check = {"of_bound": 0.5, "from_alone": 0.1, "same_bits": bits}
            keep(self.path, row_of(cell, checks={"ring": check}))
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                self.assertEqual(context_parallel.report(read_record(self.path), [2], arguments), bits)
            self.assertEqual(printed.getvalue().count("not measured yet"), 1)  # the other pass


class GpuCheck(unittest.TestCase):

    def setUp(self):
        loader = importlib.machinery.SourceFileLoader("gpu_check", str(ROOT / "scripts" / "gpu-check"))
        self.module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
        loader.exec_module(self.module)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.check = self.module.Check.__new__(self.module.Check)
        self.check.record = pathlib.Path(folder.name, "gpu.json")
        self.step = {"date": "then", "sources": "0123", "gpus": {"2": {"rows": []}}}
        self.check.record.write_text(json.dumps({"steps": {"distributed": self.step}}))
        self.addCleanup(unittest.mock.patch.stopall)
        unittest.mock.patch.object(self.module.Check, "without_package", lambda _: None).start()

    def with_gpus(self, count, run):
        self.check.system = {"devices": [{}] * count}
        self.check.run = run
        return self.check.distributed()

    def test_a_host_with_one_gpu_leaves_what_others_measured(self):
        self.assertEqual(self.with_gpus(1, self.fail), {"skipped": "there are fewer than 2 GPUs", **self.step})

    def test_what_was_measured_stays_where_the_run_fails(self):
        def fail(*_):
            raise self.module.StepFailed("ended")

        self.assertEqual(self.with_gpus(2, lambda *_: ""), self.step)
        with self.assertRaises(self.module.StepFailed) as caught:
            self.with_gpus(2, fail)
        self.assertEqual((str(caught.exception), caught.exception.kept), ("ended", self.step))


if __name__ == "__main__":
    unittest.main()
