# SPDX-License-Identifier: Apache-2.0
"""How bench/context_parallel.py measures: its way from a cell to its row, with a process for each rank over gloo and flashjit
in the emulator. What it makes of times is in tests/scripts."""

import json
import os
import pathlib
import sys
import tempfile
import time
import unittest
from unittest import mock

try:
    import torch
    import torch.multiprocessing
except ImportError as error:
    raise unittest.SkipTest("torch is not there") from error

from support import emulating_engine

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
if not BENCH.is_dir():
    raise unittest.SkipTest("the sources are not there")
sys.path.insert(0, str(BENCH))

import context_parallel_run  # noqa: E402
from context_parallel_cells import ALONE, BACKWARD, PEERS, RULE, SCHEMES, ParallelCell, missed, wrong  # noqa: E402
from context_parallel_record import begin_part, part_of, read_record, write_record  # noqa: E402

RANKS = 2


class SmallCell(ParallelCell):
    heads, head_dim, alone_tokens, rounds, calls, is_checked = (4, 2), 16, 48, 1, 2, True
    peers = tuple(PEERS)[:1]


class HostRanks(context_parallel_run.Ranks):

    def __init__(self, rank, size, store):
        self.rank, self.size, self.device = rank, size, torch.device("cpu")
        self.join("gloo", store)

    def milliseconds(self, launch, calls):
        self.largest(0)
        began = time.perf_counter()
        for _ in range(calls):
            launch()
        return 1e3 * (time.perf_counter() - began) / calls

    def forget(self):
        pass


def measure_on_host(rank, run):
    """In each process."""
    torch.set_num_threads(1)
    ranks = HostRanks(rank, RANKS, run.store)
    context_parallel_run.measure(ranks, run)
    ranks.close()


class MeasuredTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        emulating_engine()

    def rows_of(self, cells, seconds=3600.0):
        """What the record has of them."""
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(
                os.environ, FLASHJIT_DEVICE="emulate", CUDA_VISIBLE_DEVICES="", FLASHJIT_CACHE_DIR=folder):
            path = pathlib.Path(folder, "record.json")
            record = {"device": "emulated", "steps": {}}
            begin_part(record, RANKS, {"sources": "0"})
            write_record(path, record)
            run = context_parallel_run.Run(cells, os.path.join(folder, "store"), path, time.time() + seconds)
            torch.multiprocessing.spawn(measure_on_host, (run, ), RANKS)
            return part_of(read_record(path), RANKS)["rows"]

    def test_cells_become_rows(self):
        rows = self.rows_of([SmallCell(RANKS, "forward", "full", 64), SmallCell(RANKS, BACKWARD, "causal", 64)])
        self.assertEqual([(row["pass"], row["mask"]) for row in rows], [(BACKWARD, "causal"), ("forward", "full")])
        for row in rows:
            self.assertEqual(set(row["ms"]), {ALONE, RULE, *SCHEMES})
            self.assertTrue(all(ms > 0 for ms in row["ms"].values()))
            self.assertEqual(set(row["model"]), set(SCHEMES))
            self.assertEqual(row["rule"], next(iter(row["model"])))
            self.assertEqual(set(row["checks"]), set(SCHEMES))
            self.assertEqual(wrong(row), [])
            self.assertTrue(all(0 < check["of_bound"] <= 1 for check in row["checks"].values()))
            # Context parallelism over cuDNN is not on a CPU, where it is left out on all ranks alike.
            self.assertIn(tuple(PEERS)[0], row["left_out"])
            missed(row)
            json.dumps(row)

    def test_no_cell_begins_that_would_not_end_in_time(self):
        self.assertEqual(self.rows_of([SmallCell(RANKS, "forward", "causal", 64)], seconds=5.0), [])


if __name__ == "__main__":
    unittest.main()
