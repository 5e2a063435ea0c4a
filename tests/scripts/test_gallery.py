# SPDX-License-Identifier: Apache-2.0
"""The grid gallery of bench/compare_peers.py, without a GPU, PyTorch and flashjit: that its functions are those of the
page, its cells, and what is made of what they give."""

import ast
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import math
import pathlib
import re
import sys
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench"))

import attention_gallery  # noqa: E402
import attention_gallery_run  # noqa: E402
import attention_scores_run  # noqa: E402
from attention_gallery import GALLERY, MASKS, SCORES, GalleryCell, GalleryInputs, gallery_grid, gallery_row  # noqa: E402
from attention_grid import HIDDEN, grid, paper_cell  # noqa: E402

PAGE = ROOT / "docs" / "masks-and-scores.md"
STRINGS = r'(?:"(?:[^"\\]|\\.)*"\s*)+'
ENTRY = re.compile(rf'\b(score|mask)\(({STRINGS}),\s*({STRINGS})(?:,\s*{{({{.*?}})}})?\)')
CAPTURE = re.compile(r'{"(\w+)", ([\w.]+)}')


def joined(literals):
    """C++ literals that follow each other: the escapes that there are, Python has, too."""
    return "".join(ast.literal_eval(literal) for literal in re.findall(r'"(?:[^"\\]|\\.)*"', literals))


def functions_of(page):
    """(kind, title, text, captured name -> number or name of a tensor) of each in the page's gallery."""
    body = page.partition("std::vector<Entry> gallery(")[2].partition("int main()")[0]
    for kind, title, text, captures in ENTRY.findall(body):
        values = {name: float(value) if "." in value else int(value) if value.isdigit() else value
                  for name, value in CAPTURE.findall(captures)}
        yield kind, joined(title), joined(text), values


class Scalars:
    """Of GalleryInputs: no arrays, but nested lists, for functions of single positions."""

    library = types.SimpleNamespace(tanh=math.tanh, log=math.log, log2=math.log2,
                                    where=lambda condition, yes, no: yes if condition else no)
    whole = int

    class Array(list):
        def __getitem__(self, index):
            item = self
            for number in index if isinstance(index, tuple) else (index, ):
                item = list.__getitem__(item, number)
            return item

    @classmethod
    def array(cls, values, _):
        return cls.Array(values)

    @classmethod
    def normal(cls, shape, _):
        return cls.Array([[row + column / 1000 for column in range(shape[1])] for row in range(shape[0])])


class Page(unittest.TestCase):
    def test_the_grid_has_the_pages_functions(self):
        """Kind, title, text, and what is captured, number by number."""
        known = []
        for kind, functions in (("score", SCORES), ("mask", MASKS)):
            for function in functions.values():
                numbers = {name: number.in_gallery for name, number in function.numbers.items()}
                captured = {name: name for name in function.tensors} | function.captured_numbers(numbers)
                known.append((kind, function.title, function.text_with(numbers), captured))
        found = list(functions_of(PAGE.read_text()))
        self.assertEqual(len(found), len(re.findall(r"^ {6}(?:score|mask)\(", PAGE.read_text(), re.M)))
        self.assertEqual(found, known)

    def test_a_number_is_of_the_same_type_on_the_page(self):
        for _, title, _, values in functions_of(PAGE.read_text()):
            function = next(function for function in GALLERY.values() if function.title == title)
            for name, number in function.numbers.items():
                self.assertIs(type(values.get(name, number.in_gallery)), type(number.at(4096)), (title, name))


class Functions(unittest.TestCase):
    def inputs(self, name, seqlen=64, heads=16):
        numbers = {key: number.in_gallery for key, number in GALLERY[name].numbers.items()}
        return GalleryInputs(Scalars, 2, heads, seqlen, numbers)

    def score(self, name, query, key, head=3):
        inputs = self.inputs(name)
        return inputs, GALLERY[name].same(inputs)(2.0, 1, head, query, key)

    def sees(self, name, query, key, head=3, **options):
        return attention_gallery.feature_of(name).mask(self.inputs(name, **options))(1, head, query, key)

    def test_scores_are_what_their_texts_say(self):
        expected = {
            "alibi": lambda inputs: 2 - 2**-2 * 30, "softcap": lambda inputs: 20 * math.tanh(0.1),
            "relative": lambda inputs: 32, "distance": lambda inputs: 2 + 3.094, "t5": lambda inputs: 2 + 3.011,
            "decay": lambda inputs: 2 + math.log2(1 - 2**-5.75) * 30, "length": lambda inputs: 2 * math.log(42),
            "temperature": lambda inputs: 2 * (1 - 2**-5.75), "checkerboard": lambda inputs: 1,
            "tables": lambda inputs: 2 + 2**-2 + 3.01,
        }
        self.assertEqual(set(expected), set(SCORES))
        for name, wanted in expected.items():
            inputs, found = self.score(name, 40, 10)
            self.assertAlmostEqual(found, wanted(inputs), msg=name)

    def test_the_buckets_of_t5_are_exact_to_8_and_end_with_the_last(self):
        buckets = [round(1000 * (self.score("t5", distance, 0, head=0)[1] - 2)) for distance in range(64)]
        self.assertEqual(buckets[:17], [*range(8), 8, 8, 8, 8, 9, 9, 9, 9, 10])
        self.assertEqual((buckets[32], buckets[63]), (12, 13))
        self.assertEqual(round(1000 * (self.score("t5", 0, 63, head=0)[1] - 2)), 13)

    def test_masks_show_what_their_texts_say(self):
        pairs = {  # name: pairs that are seen, pairs that are not
            "causal": (((5, 5), ), ((5, 6), )), "window": (((20, 4), (4, 20)), ((20, 3), (3, 20))),
            "dilated": (((40, 0), (4, 8)), ((5, 0), (44, 0))), "longformer": (((60, 52), (3, 60), (60, 3)), ((60, 51), )),
            "prefix": (((5, 19), (30, 30)), ((5, 20), )), "blocks": (((16, 31), ), ((16, 32), )),
            "natten": (((22, 0), (22, 44), (22, 4)), ((22, 5), (22, 52))),
            "strided": (((20, 13), (20, 7)), ((20, 12), (20, 21))), "bigbird": (((20, 27), ), ()),
        }
        for name, (seen, hidden) in pairs.items():
            for pair in seen:
                self.assertTrue(self.sees(name, *pair), (name, pair))
            for pair in hidden:
                self.assertFalse(self.sees(name, *pair), (name, pair))
        document = self.inputs("documents").document
        for query, key in ((5, 60), (60, 5), (0, 1), (63, 62)):
            self.assertEqual(self.sees("documents", query, key), document[query] == document[key])
            self.assertEqual(self.sees("documents-causal", query, key), key <= query and document[query] == document[key])

    def test_windows_by_head_come_again_and_fit_an_int(self):
        for head, reach in ((0, 8), (2, 32), (8, 8), (10, 32)):
            self.assertTrue(self.sees("heads", 63, 63 - reach, head=head))
            self.assertFalse(self.sees("heads", 63, 62 - reach, head=head))
        self.assertLess(GALLERY["heads"].numbers_at(16384)["reach"] << 7, 16384)

    def test_a_quarter_of_bigbirds_blocks_is_chosen(self):
        chosen = [attention_gallery.block_hash(row, column) >> 30 == 0 for row in range(256) for column in range(256)]
        self.assertAlmostEqual(sum(chosen) / len(chosen), 1 / 4, delta=0.02)

    def test_texts_get_the_numbers_and_tensors_of_the_grid(self):
        flashjit = types.SimpleNamespace(Mask=lambda text, **captures: (text, captures),
                                         Score=lambda text, **captures: (text, captures))

        def made(name, feature_text):
            cell = GalleryCell(name, paper_cell(64, "full", 16384))
            inputs = GalleryInputs(Scalars, 1, 32, 40, cell.numbers())
            return getattr(cell.feature, feature_text)(flashjit, inputs), inputs

        self.assertEqual(made("softcap", "text")[0], ("cap * tanh(score / cap)", {"cap": 50.0}))
        (text, captures), inputs = made("tables", "text")
        self.assertEqual(captures, {"slope": inputs.slope, "table": inputs.table})
        text, captures = made("natten", "predicate")[0]
        self.assertTrue(text.startswith("const int width = 128;\n") and "<= 3 &&" in text and not captures)
        self.assertEqual(made("prefix", "predicate")[0], ("query >= key || key < prefix", {"prefix": 4096}))
        for name in GALLERY:
            feature = attention_gallery.feature_of(name)
            self.assertEqual((bool(feature.text), bool(feature.predicate)), (name in SCORES, name in MASKS))
            self.assertIs(attention_gallery.feature_of(name), feature)


class Cells(unittest.TestCase):
    def test_the_grid_is_every_function_on_shapes_of_the_forward(self):
        cells = gallery_grid()
        self.assertEqual(len(cells), 4 * len(GALLERY))
        self.assertEqual(len(set(map(str, cells))), len(cells))
        self.assertEqual([cell.name for cell in cells[: len(GALLERY)]], list(GALLERY))
        self.assertEqual({(cell.shape.head_dim, cell.shape.seqlen) for cell in cells[: len(GALLERY)]}, {(128, 16384)})
        for cell in cells:
            self.assertIn(cell.shape, grid())
            self.assertEqual(cell.shape.heads * cell.shape.head_dim, HIDDEN)
            self.assertEqual(cell.shape.causal, cell.function.causal)
            self.assertEqual(cell.plain.mask is not None, cell.function.causal)

    def test_an_image_has_the_whole_sequence(self):
        for seqlen in attention_gallery.SEQLENS:
            self.assertEqual(GALLERY["natten"].numbers_at(seqlen)["width"]**2, seqlen)
            strides = GALLERY["strided"].numbers_at(seqlen)
            self.assertEqual(strides["last"], strides["step"] - 1)


class Results(unittest.TestCase):
    cell = GalleryCell("window", paper_cell(128, "full", 16384))

    def row(self, name="window", seen=0.125, left_out=None, **us):
        return gallery_row(GalleryCell(name, self.cell.shape), seen, us, left_out or {})

    def test_tflops_count_the_pairs_that_are_seen(self):
        row = self.row(flashjit=1000.0)
        self.assertAlmostEqual(attention_gallery.tflops(row), self.cell.shape.flops() / 8 / 1000e-6 / 1e12)
        self.assertIsNone(attention_gallery.tflops(self.row(plain=1.0)))

    def test_ratios_are_times_of_others_over_that_of_the_function(self):
        row = self.row(flashjit=100.0, plain=700.0, flex=250.0)
        self.assertEqual((attention_gallery.over_plain(row), attention_gallery.over_flex(row)), (7, 2.5))
        self.assertIsNone(attention_gallery.over_flex(self.row(flashjit=100.0)))

    def test_scores_and_masks_have_means_of_their_own(self):
        rows = [self.row(flashjit=100.0, flex=200.0), self.row("heads", flashjit=100.0, flex=800.0),
                self.row("alibi", flashjit=100.0, flex=110.0), self.row("t5", flashjit=100.0)]
        summary = attention_gallery.summarise_gallery(rows)
        self.assertAlmostEqual(summary["masks"]["geometric_mean"], math.sqrt(6))
        self.assertEqual((summary["scores"]["smallest"], summary["scores"]["cells"]), ("alibi, head dim 128, 16384", 1))
        self.assertEqual(attention_gallery.summarise_gallery([]), {})
        text = attention_gallery.format_gallery_summary(summary)
        self.assertIn("masks: flashjit / FlexAttention, a cell counts as 3 at most: geometric mean 2.449", text)

    def test_a_row_shows_what_ran_and_what_did_not(self):
        row = self.row(left_out={"flex": "refused"}, flashjit=500.0, plain=4000.0)
        text = attention_gallery.format_gallery_row(self.cell, row)
        for part in ("flashjit 500.0 us", "plain 4000.0 us", "seen 12.5 %", "TFLOPS 550", "/plain 8.000", "flex: refused"):
            self.assertIn(part, text)
        self.assertNotIn("/flex", text)
        nothing = attention_gallery.format_gallery_row(self.cell, self.row(left_out={"flashjit": "wrong"}))
        self.assertIn("flashjit: wrong", nothing)


class FakeKernels:
    """Sides that write their name, or raise."""

    torch = peers = None
    flashjit = types.SimpleNamespace(counters=lambda: {"compiles": 3, "disk_hits": 0})

    def __init__(self, failing, tries=False):
        self.failing, self.tries = failing, tries

    def inputs(self, cell):
        return types.SimpleNamespace(seqlen=cell.shape.seqlen)

    def tensors(self, shape):
        return [shape]

    def side(self, name):
        def make():
            if name in self.failing:
                raise RuntimeError(f"{name} refuses\nat length")
            return lambda: name

        return make

    def ours(self, cell, inputs, tensors):
        return {name: self.side(name) for name in ("flashjit", "plain")}

    def tried(self, cell, inputs, tensors):
        return {"q64": self.side("q64")} if self.tries else {}

    def theirs(self, cell, inputs, tensors):
        return {"flex": self.side("flex")}


class FakeChecker:
    """Whose answers are told by the features that were asked for."""

    asked = []

    def __init__(self, *_):
        self.asked.clear()

    def checked(self, launch, feature):
        self.asked.append((launch(), feature))
        return launch


class FakeStopwatch:
    def wait(self):
        pass

    def __init__(self):
        self.rounds = []

    def milliseconds(self, launchers, rounds=1):
        self.rounds.append(rounds)
        return {name: float(number) for number, name in enumerate(launchers, 1)}


class Runs(unittest.TestCase):
    cells = gallery_grid(["relative", "softcap"], [64], [4096])

    def run_grid(self, *failing, tries=False):
        """The record, the comparison, and what was printed."""
        kernels = FakeKernels(failing, tries)
        comparison = attention_gallery_run.GalleryComparison(kernels, FakeStopwatch(), self.cells)
        record = {"rows": []}
        with contextlib.ExitStack() as stack:
            stack.enter_context(unittest.mock.patch.object(attention_scores_run, "Checker", FakeChecker))
            stack.enter_context(unittest.mock.patch.object(attention_gallery_run, "share_seen", lambda *_: 0.5))
            printed = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            attention_gallery_run.run_gallery(comparison, attention_scores_run.Progress(record, None))
        return json.loads(json.dumps(record)), comparison, printed.getvalue()

    def test_each_side_is_checked_against_what_it_computes_and_timed(self):
        record, comparison, printed = self.run_grid()
        self.assertEqual([row["us"] for row in record["rows"]], 2 * [{"flashjit": 1000, "plain": 2000, "flex": 3000}])
        cell = self.cells[-1]
        self.assertEqual(FakeChecker.asked, [("flashjit", cell.feature), ("plain", cell.plain), ("flex", cell.feature)])
        self.assertEqual(record["summary"]["scores"]["cells"], 2)
        self.assertIn("3 kernels of flashjit", printed)
        comparison.require_no_failure()

    def test_a_feature_that_must_be_free_is_timed_in_more_rounds(self):
        cell = self.cells[0]
        free = type("FreeCell", (type(cell),), {"feature": cell.feature._replace(free=True)})(*cell)
        comparison = attention_scores_run.Comparison(FakeKernels((), False), FakeStopwatch(), [cell, free])
        with unittest.mock.patch.object(attention_scores_run, "Checker", FakeChecker):
            for each in comparison.cells:
                comparison.sides(each, None)
        self.assertEqual(comparison.stopwatch.rounds, [1, attention_scores_run.FREE_ROUNDS])

    def test_a_peer_that_refuses_is_left_out_and_told(self):
        record, comparison, printed = self.run_grid("flex")
        for row in record["rows"]:
            self.assertEqual((set(row["us"]), row["left_out"]), ({"flashjit", "plain"}, {"flex": "flex refuses"}))
        self.assertEqual((record["summary"], record["failures"]), ({}, []))
        self.assertIn("flex: flex refuses", printed)
        comparison.require_no_failure()

    def test_a_variant_that_is_tried_is_timed_beside_the_default_and_may_be_illegal(self):
        record, comparison, _ = self.run_grid(tries=True)
        self.assertEqual(set(record["rows"][0]["us"]), {"flashjit", "plain", "q64", "flex"})
        record, comparison, printed = self.run_grid("q64", tries=True)
        self.assertEqual(set(record["rows"][0]["us"]), {"flashjit", "plain", "flex"})
        self.assertIn("q64: q64 refuses", printed)
        comparison.require_no_failure()

    def test_where_flashjit_refuses_the_run_goes_on_and_fails_in_the_end(self):
        record, comparison, _ = self.run_grid("flashjit")
        self.assertEqual(len(record["rows"]), 2)
        self.assertEqual(len(record["failures"]), 2)
        with self.assertRaisesRegex(RuntimeError, "softcap.*: flashjit: flashjit refuses"):
            comparison.require_no_failure()


class GpuCheck(unittest.TestCase):
    def test_the_step_is_skipped_visibly_where_something_is_missing(self):
        loader = importlib.machinery.SourceFileLoader("gpu_check", str(ROOT / "scripts" / "gpu-check"))
        gpu_check = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
        loader.exec_module(gpu_check)
        for missing, why in (("torch", "PyTorch is not installed"), ("flashjit", "the Python package is not installed")):
            check = gpu_check.Check.__new__(gpu_check.Check)
            find = unittest.mock.patch("importlib.util.find_spec", lambda name, missing=missing: name != missing or None)
            with find, unittest.mock.patch.object(gpu_check.Check, "run", side_effect=AssertionError):
                for step in ("gallery", "training"):
                    self.assertIn(why, gpu_check.STEPS[step](check)["skipped"])


if __name__ == "__main__":
    unittest.main()
