# SPDX-License-Identifier: Apache-2.0
"""bench/plot: that figures show the records' figures, and that the committed ones are of the committed records."""

import importlib.util
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PLOT = ROOT / "bench" / "plot"
sys.dont_write_bytecode = True
sys.path.insert(0, str(PLOT))

import figures  # noqa: E402
from chart import Scale, spread  # noqa: E402

specification = importlib.util.spec_from_file_location("plot_main", PLOT / "__main__.py")
plot_main = importlib.util.module_from_spec(specification)
specification.loader.exec_module(plot_main)


def texts(svg):
    return [element.text for element in xml.etree.ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]


class Charts(unittest.TestCase):
    def test_a_scale_goes_from_end_to_end(self):
        x = Scale(1, 100, 10, 30, logarithmic=True)
        self.assertEqual([round(x(value), 9) for value in (1, 10, 100)], [10, 20, 30])
        self.assertEqual(Scale(0, 10, 100, 0)(2.5), 75)

    def test_labels_keep_their_order_and_distance(self):
        moved = spread([10, 12, 50], distance=10)
        self.assertGreaterEqual(moved[1] - moved[0], 10 - 1e-9)
        self.assertAlmostEqual(sum(moved), 72)
        self.assertEqual(spread([30, 0]), [30, 0])

    def test_times_are_spoken_in_their_unit(self):
        self.assertEqual([figures.spoken(seconds) for seconds in (4.44e-6, 5.76e-5, 1.35e-3, 1.371, 300, 7200)],
                         ["4.44 µs", "57.6 µs", "1.35 ms", "1.37 s", "5 min", "2 h"])


class Figures(unittest.TestCase):
    def setUp(self):
        cell = {"head_dim": 64, "causal": True}
        rows = [cell | {"seqlen": length, "tflops": {"flashjit": 500.0, "cudnn": 400.0, "best": 450.0}}
                for length in (512, 1024)]
        jit = {"problem": "fwd-bf16-d64", "variant": "mma-q64-kv64", "call_us": 4.0, "bare_launch_us": 3.0,
               "user_look_up_us": 50.0, "first_call_ms": 0.9, "cold_ms": 650.0}
        step = {"step": "v1", "tflops": 55.3, "share_of_ceiling": 0.094}
        bench = {"date": "today", "jit": {"rows": [jit]}, "5090": {"rows": [step], "mma_ceiling_tflops": 587.0}}
        peers = {"date": "today", "default": {"rows": rows, "gemm_tflops": 742.0},
                 "mma": {"rows": rows, "mma_ceiling_tflops": 555.0}}
        self.record = {"device": "D", "driver": "13.0", "nvrtc": "13.0", "sources": "0123456789abcdef",
                       "steps": {"bench": bench, "peers": peers}}

    def test_every_figure_shows_its_figures_and_where_they_come_from(self):
        expected = {"throughput": ["flashjit", "best peer", "cuDNN", "bf16 GEMM", "1k", "head dim 64, causal"],
                    "throughput-mma": ["mma.sync"], "ladder": ["55", "v1, 9 %", "mma.sync: 587"],
                    "compile-time": ["50 µs to 50 µs", "650 ms to 650 ms", "15 min"], "host-cost": ["d64, mma", "4.0"]}
        self.assertEqual(set(expected), set(figures.FIGURES))
        for name, words in expected.items():
            with self.subTest(name):
                found = texts(figures.FIGURES[name](self.record))
                for word in words:
                    self.assertIn(word, found)
                self.assertTrue(any("today, kernel sources 0123456789ab." in text for text in found))

    def test_what_was_not_measured_has_no_figure(self):
        for steps in ({}, {"bench": {"failed": "why"}, "peers": {"skipped": "why"}}, {"bench": {"jit": {"rows": []}}}):
            self.record["steps"] = steps
            self.assertEqual(plot_main.drawn({"d": self.record}), {})

    def test_old_figures_are_replaced_and_removed(self):
        with tempfile.TemporaryDirectory() as name:
            directory = pathlib.Path(name)
            plot_main.write({"d/a.svg": "1", "d/b.svg": "2"}, directory)
            self.assertEqual(plot_main.differences({"d/a.svg": "new"}, directory), ["d/a.svg", "d/b.svg"])
            plot_main.write({"d/a.svg": "new"}, directory)
            self.assertEqual(plot_main.differences({"d/a.svg": "new"}, directory), [])

    def test_every_reported_build_has_a_source(self):
        for build in figures.json.loads((ROOT / "bench" / "builds.json").read_text())["builds"]:
            for report in build["reports"]:
                self.assertTrue(report["source"].startswith("https://"))
                self.assertLessEqual(*report["seconds"])


if __name__ == "__main__":
    unittest.main()
