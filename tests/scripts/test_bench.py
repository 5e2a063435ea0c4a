# SPDX-License-Identifier: Apache-2.0
"""The Python beside the library, without a GPU and without PyTorch."""

import ctypes
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench"))

import compare_peers  # noqa: E402
import readme_table  # noqa: E402
from sources_digest import sources_digest  # noqa: E402


class SourcesDigest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.directory.name)
        for name in ("templates/ptx/a.cuh", "generator/b.cpp", "cache/c.cpp"):
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        self.before = sources_digest(self.root)

    def tearDown(self):
        self.directory.cleanup()

    def test_a_changed_template_changes_it(self):
        (self.root / "templates/ptx/a.cuh").write_text("changed")
        self.assertNotEqual(sources_digest(self.root), self.before)

    def test_a_renamed_source_changes_it(self):
        (self.root / "generator/b.cpp").rename(self.root / "generator/d.cpp")
        self.assertNotEqual(sources_digest(self.root), self.before)

    def test_other_files_do_not_count(self):
        (self.root / "cache/c.cpp").write_text("changed")
        (self.root / "generator/notes.md").write_text("new")
        self.assertEqual(sources_digest(self.root), self.before)


class ComparePeers(unittest.TestCase):
    def test_the_grid_is_that_of_the_paper(self):
        cells = compare_peers.grid()
        self.assertEqual(len(cells), 36)
        for cell in cells:
            self.assertEqual(cell.batch * cell.seqlen, 16384)
            self.assertEqual(cell.heads * cell.head_dim, 2048)
        full, causal = (compare_peers.Cell(128, mask, 16384).flops() for mask in (False, True))
        self.assertEqual(full, 4 * 16384 * 16384 * 128 * 16)
        self.assertEqual(causal * 2, full)

    def test_summary_counts_only_cells_that_the_peer_ran(self):
        rows = [{"over": {"fa2": 2.0, "cudnn": 0.5}}, {"over": {"fa2": 0.5}}]
        summary = compare_peers.summarise(rows, ["fa2", "cudnn"])
        self.assertAlmostEqual(summary["fa2"]["geometric_mean"], 1.0)
        self.assertEqual(summary["fa2"]["minimum"], 0.5)
        self.assertEqual(summary["cudnn"]["cells"], 1)

    def test_structures_have_the_layout_of_the_c_header(self):
        view, options = compare_peers.TensorView, compare_peers.Options
        self.assertEqual((view.dtype.offset, view.shape.offset, view.strides.offset), (8, 16, 48))
        self.assertEqual(ctypes.sizeof(view), 80)
        self.assertEqual((options.lse.offset, options.variant.offset, ctypes.sizeof(options)), (16, 32, 40))


class ReadmeTable(unittest.TestCase):
    def setUp(self):
        row = {"head_dim": 64, "causal": True, "seqlen": 512, "tflops": 100.4, "share_of_ceiling": 0.25}
        jit = {"compile_ms": 150.0, "cold_ms": 160.0}
        step = {"step": "v1", "median_us": 12.0, "tflops": 3.0, "share_of_ceiling": 0.5, "variant": "mma-q64"}
        peers = {"torch": "2.11", "summary": {"fa2": {"geometric_mean": 1.25, "minimum": 1.1}}}
        peers["rows"] = [row | {"tflops": {"flashjit": 321.0}, "over": {"fa2": 1.234}}]
        bench = {"forward": {"rows": [row]}, "jit": {"rows": [jit]}, "5090": {"rows": [step]}}
        self.record = {"device": "D", "driver": "13.0", "nvrtc": "13.0", "date": "today", "sources": "0123456789abcdef"}
        self.record["steps"] = {"bench": bench, "peers": peers}

    def fill(self, name, old=""):
        text = f"before\n<!-- table:d/{name} -->\n{old}<!-- /table -->\nafter\n"
        return readme_table.filled(text, lambda device: self.record)

    def test_every_table_shows_its_figures(self):
        for name, figure in {"forward": "25 %", "5090": "50.0 %", "jit": "150.00 ms", "peers": "1.23"}.items():
            with self.subTest(name):
                text = self.fill(name)
                self.assertIn(figure, text)
                self.assertIn("0123456789ab.", text)
                self.assertTrue(text.startswith("before\n") and text.endswith("after\n"))

    def test_filling_twice_changes_nothing(self):
        once = self.fill("peers")
        self.assertEqual(readme_table.filled(once, lambda device: self.record), once)

    def test_an_old_figure_is_replaced(self):
        self.assertNotIn("999", self.fill("forward", old="| 999 |\n"))


if __name__ == "__main__":
    unittest.main()
