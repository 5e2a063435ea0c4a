# SPDX-License-Identifier: Apache-2.0
"""bench/plot: that figures show the records' figures, and that a figure which shows something else is told from one of
another matplotlib."""

import importlib.util
import pathlib
import re
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PLOT = ROOT / "bench" / "plot"
sys.dont_write_bytecode = True
sys.path.insert(0, str(PLOT))
sys.path.append(str(ROOT / ".deps" / "python"))

try:
    import matplotlib  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(str(error)) from error
import algorithm  # noqa: E402
import figures  # noqa: E402
from style import content, new_figure, same_content, spread, to_svg  # noqa: E402

specification = importlib.util.spec_from_file_location("plot_main", PLOT / "__main__.py")
plot_main = importlib.util.module_from_spec(specification)
specification.loader.exec_module(plot_main)


def texts(svg):
    return [element.text for element in xml.etree.ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]


class Charts(unittest.TestCase):
    def test_labels_keep_their_order_and_distance(self):
        moved = spread([10, 12, 50], distance=10)
        self.assertGreaterEqual(moved[1] - moved[0], 10 - 1e-9)
        self.assertAlmostEqual(sum(moved), 72)
        self.assertEqual(spread([30, 0], distance=10), [30, 0])

    def bar(self, height=20.0, colour="#0072b2", words="20"):
        figure = new_figure(100, "title")
        axes = figure.add_axes((0.1, 0.1, 0.8, 0.6))
        axes.set_ylim(0, 40)
        axes.bar([0], [height], color=colour)
        axes.text(0, 30, words)
        return to_svg(figure, "title")

    def test_equal_data_give_equal_bytes(self):
        self.assertEqual(self.bar(), self.bar())

    def test_a_figure_that_shows_something_else_is_told(self):
        drawn = self.bar()
        self.assertTrue(same_content(drawn, self.bar()))
        for other in (self.bar(height=20.2), self.bar(colour="#d55e00"), self.bar(words="21"), self.bar(words="")):
            self.assertFalse(same_content(drawn, other))

    def test_how_matplotlib_writes_a_figure_does_not_matter(self):
        drawn = self.bar()
        rewritten = re.sub(r'id="[^"]*"', "", drawn.replace("\nL", " L"))
        rewritten = re.sub(r"(<text [^>]*) y=\"(\d+)", lambda text: f'{text[1]} y="{int(text[2]) + 1}', rewritten)
        self.assertNotEqual(rewritten, drawn)
        self.assertTrue(same_content(drawn, rewritten))
        self.assertGreater(len(content(drawn)), 8)

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
        ran = {"date": "today", "sources": "0123456789abcdef"}
        bench = ran | {"jit": {"rows": [jit]}, "5090": {"rows": [step], "mma_ceiling_tflops": 587.0}}
        peers = ran | {"default": {"rows": rows, "gemm_tflops": 742.0},
                       "mma": {"rows": rows, "mma_ceiling_tflops": 555.0}}
        self.record = {"device": "D", "driver": "13.0", "nvrtc": "13.0", "steps": {"bench": bench, "peers": peers}}

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
            self.assertEqual(plot_main.measurements({"d": self.record}), {})

    def test_old_figures_are_replaced_and_removed(self):
        one, other = ('<svg xmlns="http://www.w3.org/2000/svg"><text x="1">{}</text></svg>'.format(x) for x in (1, 2))
        with tempfile.TemporaryDirectory() as name:
            directory = pathlib.Path(name)
            plot_main.write({"d/a.svg": one, "d/b.svg": one}, directory)
            self.assertEqual(plot_main.differences({"d/a.svg": other}, directory), ["d/a.svg", "d/b.svg"])
            plot_main.write({"d/a.svg": other}, directory)
            self.assertEqual(plot_main.differences({"d/a.svg": other}, directory), [])

    def test_a_figure_of_the_same_content_keeps_its_bytes(self):
        drawn = algorithm.online()
        with tempfile.TemporaryDirectory() as name:
            file = pathlib.Path(name) / "d" / "a.svg"
            file.parent.mkdir()
            file.write_text(drawn + "<!-- by another matplotlib -->")
            plot_main.write({"d/a.svg": drawn}, pathlib.Path(name))
            self.assertIn("another matplotlib", file.read_text())

    def test_every_reported_build_has_a_source(self):
        for build in figures.json.loads((ROOT / "bench" / "builds.json").read_text())["builds"]:
            for report in build["reports"]:
                self.assertTrue(report["source"].startswith("https://"))
                self.assertLessEqual(*report["seconds"])


class Algorithm(unittest.TestCase):
    def test_the_page_shows_every_picture_and_only_these(self):
        shown = re.findall(r"\(figures/algorithm/(\w+)\.svg\)", algorithm.PAGE.read_text())
        self.assertEqual(sorted(shown), sorted(algorithm.PICTURES))

    def test_figures_in_pictures_are_those_that_the_page_asserts(self):
        blocks = algorithm.page_constant("BLOCKS")
        self.assertIn(f"{blocks['FlashAttention-1']} thread blocks: {blocks['FlashAttention-1']} of "
                      f"{algorithm.page_constant('SMS')} SMs work", texts(algorithm.sms()))
        totals = [f"{sum(arrays.values()) / 1e6:.2f}" for arrays in algorithm.page_constant("MOVED").values()]
        self.assertEqual([text for text in texts(algorithm.traffic()) if text in totals], totals)
        self.assertRaisesRegex(KeyError, "has no NO_SUCH", algorithm.page_constant, "NO_SUCH")


if __name__ == "__main__":
    unittest.main()
