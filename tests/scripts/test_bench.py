# SPDX-License-Identifier: Apache-2.0
"""The Python beside the library, without a GPU and without PyTorch."""

import collections
import contextlib
import ctypes
import io
import itertools
import json
import math
import pathlib
import re
import sys
import tempfile
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench"))

import attention_backward  # noqa: E402
import attention_decode  # noqa: E402
import attention_large  # noqa: E402
import attention_features  # noqa: E402
import attention_gallery  # noqa: E402
import attention_peers  # noqa: E402
import attention_ragged  # noqa: E402
import attention_scores  # noqa: E402
import attention_scores_run  # noqa: E402
import compare_peers  # noqa: E402
import context_parallel_cells  # noqa: E402
import flashjit_c  # noqa: E402
import readme_table  # noqa: E402
import tuning_check  # noqa: E402
from attention_features import FEATURES, Inputs, checked_heads, checked_rows  # noqa: E402
from attention_grid import SEQLENS, SERVING, Cell, PeerFigures, grid, paper_cell, parse_variants  # noqa: E402
from attention_grid import result, slug, summarise  # noqa: E402
from sources_digest import sources_digest  # noqa: E402


class FakeGpu:
    """PyTorch with a GPU as Stopwatch uses it, whose launches take what they are told to."""

    int8 = None

    def __init__(self):
        self.now, self.launched, self.waits = 0.0, [], []
        self.cuda = types.SimpleNamespace(Event=self.event, synchronize=lambda: self.waits.append(len(self.launched)))

    def empty(self, *_, **__):
        return unittest.mock.Mock()

    def event(self, enable_timing):
        event = types.SimpleNamespace(elapsed_time=lambda later: later.at - event.at)
        event.record = lambda: setattr(event, "at", self.now)
        return event

    def launcher(self, name, milliseconds):
        """milliseconds: of each launch."""
        left = iter(milliseconds)

        def launch():
            self.launched.append(name)
            self.now += next(left)

        return launch


class TuningCheck(unittest.TestCase):
    @staticmethod
    def record(chosen, **times):
        candidates = [{"variant": name, "outcome": "measured" if us > 0 else "stopped", "median_us": abs(us)}
                      for name, us in times.items()]
        return {"chosen": chosen, "candidates": candidates}

    def test_another_choice_agrees_when_it_is_as_good_by_the_second_tuning(self):
        a, b, c = "fwd.a", "fwd.b", "fwd.c"
        first = {a: self.record("x", x=100), b: self.record("x", x=100, y=101), c: self.record("x", x=100)}
        second = {a: self.record("x", x=90), b: self.record("y", x=100.5, y=100), c: self.record("y", x=-100, y=100)}
        result = tuning_check.compare(first, second)
        self.assertEqual((result["cells"], result["same"]), (3, 1))
        self.assertAlmostEqual(result["agreement"], 2 / 3)
        self.assertAlmostEqual(result["differing"][b], 0.005)
        self.assertIsNone(result["differing"][c])
        second[b] = self.record("y", x=102, y=100)
        self.assertAlmostEqual(tuning_check.compare(first, second)["agreement"], 1 / 3)

    @staticmethod
    def good_result():
        cell = {"problem": "fwd", "bucket": "qmore", "state": "tuned", "complete": True, "seconds": 8.5}
        counters = {"compiles": 0, "tunings": 0, "timed_launches": 0, "bundle_hits": 3, "records_used": 3}
        return {"cells": [cell], "twice": {"agreement": 0.96}, "tuned": {"smallest_speedup": 0.995},
                "builtin": {"smallest_speedup": 1.0}, "shipped": {"calls": 3, "counters": counters}}

    def test_whatever_is_not_as_it_must_be_is_named(self):
        self.assertEqual(tuning_check.troubles(self.good_result()), [])
        changes = {
            "took 21 s": lambda result: result["cells"][0].update(seconds=21),
            "not complete": lambda result: result["cells"][0].update(complete=False),
            "failed": lambda result: result["cells"][0].update(state="failed", complete=False),
            "only 0.94": lambda result: result["twice"].update(agreement=0.94),
            "tuned: 0.980": lambda result: result["tuned"].update(smallest_speedup=0.98),
            "builtin: 0.980": lambda result: result["builtin"].update(smallest_speedup=0.98),
            "compiles: 1": lambda result: result["shipped"]["counters"].update(compiles=1),
            "timed_launches: 9": lambda result: result["shipped"]["counters"].update(timed_launches=9),
            "records_used: 0": lambda result: result["shipped"]["counters"].update(records_used=0),
        }
        for text, change in changes.items():
            result = self.good_result()
            change(result)
            found = tuning_check.troubles(result)
            self.assertEqual(len(found), 1, text)
            self.assertIn(text, found[0])


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


class AttentionGrid(unittest.TestCase):
    def test_the_grid_is_that_of_the_paper(self):
        cells = grid()
        self.assertEqual(len(cells), 36)
        for cell in cells:
            self.assertEqual(cell.batch * cell.seqlen, 16384)
            self.assertEqual(cell.heads * cell.head_dim, 2048)
        full, causal = (paper_cell(128, mask, 16384).flops() for mask in ("full", "causal"))
        self.assertEqual(full, 4 * 16384 * 16384 * 128 * 16)
        self.assertEqual(causal * 2, full)

    def test_decoding_counts_the_bytes_of_keys_that_it_reads(self):
        cell = Cell(128, "full", 8192, batch=16, heads=32, heads_kv=8, seqlen_q=1)
        self.assertIn(cell, SERVING)
        self.assertEqual((cell.shape(), cell.shape_of_keys()), ((16, 1, 32, 128), (16, 8192, 8, 128)))
        self.assertEqual(cell.flops(), 4 * 16 * 32 * 8192 * 128)
        self.assertEqual(cell.bytes_of_keys(), 2 * 16 * 8192 * 8 * 128 * 2)
        tflops = cell.flops() / 100 / 1e6  # in 100 µs
        self.assertAlmostEqual(cell.microseconds(tflops), 100)
        self.assertAlmostEqual(cell.gigabytes_per_second(tflops), cell.bytes_of_keys() / 100e-6 / 1e9)

    def test_a_row_names_its_cell(self):
        for cell in (*SERVING, *grid()):
            self.assertEqual(Cell.of(json.loads(json.dumps(result(cell, {"default": 1.0}, ["default"])))), cell)

    def test_the_name_of_a_file_is_that_of_the_device(self):
        self.assertEqual(slug("NVIDIA GeForce RTX 5090"), "nvidia-geforce-rtx-5090")


class Peers(unittest.TestCase):
    cell = paper_cell(64, "full", 512)

    def figures(self, **changes):
        cell = {"pass": "forward", "head_dim": 64, "mask": "full", "seqlen": 512}
        cell |= {"best": "fa3", "best_over_cudnn": 1.25}
        return PeerFigures(json.dumps({"cells": [cell | changes]}))

    def test_the_best_peer_is_cudnn_now_times_the_ratio(self):
        row = result(self.cell, {"default": 600.0, "cudnn": 400.0, "fa2": 300.0}, ["default"], self.figures())
        self.assertEqual(row["best_peer"], "fa3")
        self.assertEqual(row["tflops"], {"flashjit": 600.0, "cudnn": 400.0, "fa2": 300.0, "best": 500.0})
        self.assertEqual(row["over"], {"cudnn": 1.5, "fa2": 2.0, "best": 1.2})

    def test_without_cudnn_or_the_cell_there_is_no_best_peer(self):
        only_fa2 = result(self.cell, {"default": 600.0, "fa2": 300.0}, ["default"], self.figures())
        self.assertEqual(only_fa2["over"], {"fa2": 2.0})
        rates = {"default": 600.0, "cudnn": 400.0}
        for figures in (None, self.figures(mask="causal"), self.figures(**{"pass": "backward"})):
            self.assertEqual(result(self.cell, rates, ["default"], figures)["over"], {"cudnn": 1.5})

    def test_other_peers_stand_by_what_they_ran_beside(self):
        """FlashAttention-3 ran beside cuDNN, FlashAttention-4 beside flashjit."""
        figures = self.figures(cudnn_tflops=400.0, fa3_tflops=500.0, flashjit_over_fa4=1.375)
        row = result(self.cell, {"default": 600.0, "cudnn": 300.0}, ["default"])
        self.assertEqual(figures.ratios(row), {"fa3": 1.6, "fa4": 1.375})
        self.assertEqual(figures.ratios(row | {"head_dim": 128}), {})
        self.assertEqual(figures.ratios(row | {"over": {"fa2": 2.0}}), {})

    def test_the_fastest_variant_stands_for_flashjit(self):
        ours = {"hopper-q64": 300.0, "hopper-q128": 450.0}
        row = result(self.cell, ours | {"cudnn": 400.0}, list(ours))
        self.assertEqual((row["variant"], row["tflops"]["flashjit"]), ("hopper-q128", 450.0))
        self.assertEqual(list(row["variants"].items()), [("hopper-q128", 450.0), ("hopper-q64", 300.0)])
        self.assertEqual(row["over"], {"cudnn": 1.125})

    def test_summary_counts_only_cells_that_the_peer_ran(self):
        rows = [
            {"head_dim": 64, "over": {"fa2": 4.0, "cudnn": 0.5}},
            {"head_dim": 64, "over": {"fa2": 1.0}},
            {"head_dim": 128, "over": {"fa2": 0.25}},
        ]
        summary = summarise(rows)
        self.assertAlmostEqual(summary["fa2"]["geometric_mean"], 1.0)
        self.assertAlmostEqual(summary["fa2"]["by_head_dim"]["64"], 2.0)
        self.assertAlmostEqual(summary["fa2"]["by_head_dim"]["128"], 0.25)
        self.assertEqual((summary["fa2"]["minimum"], summary["fa2"]["cells"]), (0.25, 3))
        self.assertEqual((summary["cudnn"]["minimum"], summary["cudnn"]["cells"]), (0.5, 1))

    def test_every_file_of_figures_is_of_the_whole_grid(self):
        files = list((ROOT / "bench" / "peers").glob("*.json"))
        self.assertTrue(files)
        for path in files:
            figures, backward = (PeerFigures(path.read_text(), of_pass) for of_pass in ("forward", "backward"))
            self.assertEqual(slug(figures.record["device"]), path.stem)
            self.assertEqual(set(figures.cells), set(grid()))
            self.assertEqual(set(backward.cells), set(grid()))
            for cell in backward.cells.values():
                over_cudnn = {"cudnn": 1, "fa3": cell["fa3_tflops"] / cell["cudnn_tflops"], "fa4": cell["fa4_over_cudnn"]}
                self.assertEqual(cell["best"], max(over_cudnn, key=over_cudnn.get))
                self.assertAlmostEqual(cell["best_over_cudnn"], over_cudnn[cell["best"]], delta=0.001)
            for cell in figures.cells.values():
                best = max(cell["cudnn_tflops"], cell["fa3_tflops"])
                self.assertEqual(cell[f"{cell['best']}_tflops"], best)
                self.assertAlmostEqual(cell["best_over_cudnn"], best / cell["cudnn_tflops"], delta=0.001)
                self.assertGreater(cell["flashjit_over_fa4"], 0)


class Array(list):
    """Nested lists that are indexed as arrays are."""

    def __getitem__(self, index):
        item = self
        for number in index if isinstance(index, tuple) else (index, ):
            item = list.__getitem__(item, number)
        return item


class Lists:
    """Of Inputs, without any library of arrays: for functions of single positions."""

    library = math

    @staticmethod
    def array(values, _):
        return Array(values)

    @staticmethod
    def normal(shape, _):
        return Array([[row + column / 1000 for column in range(shape[1])] for row in range(shape[0])])


class AttentionFeatures(unittest.TestCase):
    batch, heads, seqlen = 2, 4, 40

    def inputs(self, **options):
        return Inputs(Lists, self.batch, self.heads, self.seqlen, **options)

    def visible(self, name, inputs):
        """(batch, query) -> the keys that it sees."""
        sees = FEATURES[name].mask(inputs)
        return {(batch, query): [key for key in range(self.seqlen) if sees(batch, 0, query, key)]
                for batch in range(self.batch) for query in range(self.seqlen)}

    def score(self, name, inputs, *position):
        return FEATURES[name].score(inputs)(3.0, *position)

    def test_masks_show_what_their_names_say(self):
        inputs = self.inputs()
        with unittest.mock.patch.object(Inputs, "window", 5):
            windows = self.visible("window", inputs)
        for (batch, query), keys in windows.items():
            self.assertEqual(keys, list(range(max(0, query - 5), query + 1)))
        for (batch, query), keys in self.visible("plain", inputs).items():
            self.assertEqual(keys, list(range(query + 1)))
        for (batch, query), keys in self.visible("prefix", inputs).items():
            self.assertEqual(keys, list(range(max(query + 1, min(self.seqlen, inputs.prefix[batch])))))
        for (batch, query), keys in self.visible("documents", inputs).items():
            numbers = inputs.documents[batch]
            self.assertEqual(keys, [key for key in range(query + 1) if numbers[key] == numbers[query]])

    def test_documents_fill_the_sequence_and_differ_by_batch_entry(self):
        documents = self.inputs().documents
        for numbers in documents:
            self.assertEqual(sorted(set(numbers)), list(range(attention_features.DOCUMENT_COUNT)))
            self.assertEqual(sorted(numbers), numbers)
        self.assertNotEqual(documents[0], documents[1])

    def test_scores_are_what_their_names_say(self):
        inputs = self.inputs()
        self.assertAlmostEqual(self.score("softcap", inputs, 0, 0, 9, 4), 50 * math.tanh(3 / 50))
        self.assertAlmostEqual(self.score("alibi", inputs, 1, 2, 9, 4), 3 - 5 * 2**-6)
        self.assertAlmostEqual(self.score("bias", inputs, 1, 2, 9, 4), 3 + 9.004)
        self.assertAlmostEqual(self.score("function", inputs, 1, 2, 9, 4), inputs.gate[2] * 3 + 2.045)

    def test_other_inputs_are_others_of_the_same_form(self):
        first, other = self.inputs(), self.inputs(other=True)
        for name in ("cap", "window", "slopes", "sinks", "documents", "prefix", "gate"):
            self.assertNotEqual(getattr(first, name), getattr(other, name), name)
            self.assertIs(type(getattr(first, name)), type(getattr(other, name)))
        self.assertEqual(self.inputs().sinks, first.sinks)

    def test_every_feature_but_the_plain_one_is_asked_of_flashjit(self):
        for name, feature in FEATURES.items():
            self.assertEqual(bool(feature.options or feature.text), name != "plain")
            if feature.blocks:
                self.assertTrue(set(feature.blocks) <= set(feature.options(self.inputs())))

    def test_rows_on_both_sides_of_what_may_go_wrong_are_checked(self):
        for seqlen in (1, 128, 1024, 16384):
            rows = checked_rows(seqlen)
            self.assertEqual(rows, sorted(set(rows)))
            self.assertTrue({0, seqlen - 1} <= set(rows) <= set(range(seqlen)))
            self.assertLessEqual(len(rows), 70)
        self.assertTrue({1024, 1025} <= set(checked_rows(4096)))
        self.assertEqual(checked_heads(1, 1), [(0, 0)])
        self.assertEqual(checked_heads(16, 32), [(0, 0), (8, 16), (15, 31)])


class AttentionScores(unittest.TestCase):
    @staticmethod
    def row(name="alibi", head_dim=128, seqlen=16384, **us):
        cell = attention_scores.ScoreCell(name, paper_cell(head_dim, "causal", seqlen))
        return attention_scores.score_row(cell, us, {})

    def test_the_grid_is_that_of_the_forward_with_every_feature(self):
        cells = attention_scores.score_grid()
        self.assertEqual(len(cells), len(FEATURES) * 6)
        self.assertEqual([cell.shape.head_dim for cell in cells[:6]], [128] * 3 + [64] * 3)
        for cell in cells:
            self.assertIn(cell.shape, grid())
            self.assertTrue(cell.shape.causal)

    def test_a_share_is_of_the_same_familys_plain_kernel(self):
        row = self.row(flashjit=200.0, plain=180.0, mma=400.0, plain_mma=380.0)
        self.assertAlmostEqual(attention_scores.share_of_plain(row), 0.9)
        self.assertAlmostEqual(attention_scores.share_of_plain(row, "mma"), 0.95)
        self.assertIsNone(attention_scores.share_of_plain(self.row("plain", flashjit=200.0)))
        rows = [row, self.row(seqlen=1024, flashjit=20.0, plain=10.0)]
        self.assertEqual(attention_scores.shares_of_plain(rows),
                         {"default": {"alibi": {"128": 0.9}}, "mma": {"alibi": {"128": 0.95}}})

    def test_a_cell_counts_as_three_at_most(self):
        rows = [self.row(flashjit=100.0, flex=2700.0), self.row("softcap", 64, flashjit=100.0, flex=100.0),
                self.row("bias", flashjit=100.0, flex=900.0), self.row("window", flashjit=100.0)]
        summary = attention_scores.summarise_over_flex(rows)
        self.assertAlmostEqual(summary["geometric_mean"], 9 ** (1 / 3))
        self.assertEqual((summary["minimum"], summary["smallest"], summary["cells"]),
                         (1.0, "softcap, head dim 64, 16384", 3))
        self.assertAlmostEqual(summary["by_feature"]["alibi"]["geometric_mean"], 3)
        self.assertEqual(summary["by_feature"]["alibi"]["minimum"], 27)
        self.assertEqual(set(summary["by_head_dim"]), {"64", "128"})

    def test_features_that_do_not_count_are_not_in_the_mean(self):
        rows = [self.row(name, flashjit=100.0, flex=200.0) for name in FEATURES]
        summary = attention_scores.summarise_over_flex(rows)
        self.assertEqual(set(FEATURES) - set(summary["by_feature"]), {"plain", "sinks", "dropout"})
        self.assertIsNone(attention_scores.summarise_over_flex([self.row("plain", flashjit=1.0, flex=2.0)]))

    def test_cudnn_counts_by_its_faster_way(self):
        row = self.row("bias", flashjit=100.0, cudnn=150.0, cudnn_mask=300.0)
        self.assertEqual(attention_scores.over_cudnn(row), 1.5)
        self.assertEqual(attention_scores.over_cudnn(self.row("bias", flashjit=100.0, cudnn_mask=300.0)), 3)
        self.assertIsNone(attention_scores.over_cudnn(self.row("bias", flashjit=100.0)))
        summary = attention_scores.summarise_scores([row, self.row("plain", flashjit=100.0, cudnn=100.0)])
        self.assertEqual(summary["bias_over_cudnn"]["cells"], 1)

    def test_a_text_stands_by_its_time_over_the_librarys(self):
        rows = [self.row(flashjit=100.0, text=101.0), self.row(seqlen=1024, flashjit=100.0, text=104.0)]
        summary = attention_scores.text_over_part(rows)
        self.assertEqual((summary["alibi"]["maximum"], summary["alibi"]["cells"]), (1.04, 2))
        self.assertAlmostEqual(summary["alibi"]["geometric_mean"], math.sqrt(1.01 * 1.04))

    def test_flashattention_4_is_compared_by_what_the_feature_costs(self):
        cell = {"pass": "forward", "head_dim": 128, "mask": "causal", "seqlen": 16384, "fa4_tflops": 600.0}
        fa4 = {"features": {"alibi": {"128": {"16384": 400.0}}}}
        figures = PeerFigures(json.dumps({"cells": [cell | {"flashjit_over_fa4": 1.1}], "fa4": fa4}))
        row = self.row(flashjit=100.0, plain=90.0)
        self.assertAlmostEqual(attention_scores.over_fa4(row, figures), 0.9 * 1.1 * 600 / 400)
        for other in (self.row("softcap", flashjit=1.0, plain=1.0), self.row(flashjit=1.0),
                      self.row(seqlen=4096, flashjit=1.0, plain=1.0)):
            self.assertIsNone(attention_scores.over_fa4(other, figures))
        self.assertIsNone(attention_scores.over_fa4(row, None))

    def test_a_block_mask_stands_beside_the_same_sides_attention(self):
        us = {"flashjit": 300.0, "flex": 9000.0, "dense_causal": 1000.0, "dense_full": 2000.0, "flex_dense_causal": 1800.0}
        self.assertEqual(attention_scores.block_mask_shares(us),
                         {"flashjit": {"causal": 0.3, "full": 0.15}, "flex": {"causal": 5.0}})

    def test_the_summary_tells_what_there_is(self):
        self.assertEqual(attention_scores.summarise_scores([]), {})
        self.assertEqual(attention_scores.format_score_summary({}), "")
        row = self.row(flashjit=200.0, plain=180.0, text=202.0, flex=500.0)
        text = attention_scores.format_score_summary(attention_scores.summarise_scores([row]))
        for part in ("geometric mean 2.500", "alibi: d128 0.900", "time of alibi as a text over the library's: "):
            self.assertIn(part, text)
        cell = attention_scores.ScoreCell("alibi", paper_cell(128, "causal", 16384))
        shown = attention_scores.format_score_row(cell, row | {"left_out": {"fa2": "refused"}})
        for part in ("flashjit 200.0 us", "of plain 0.900", "text 1.010", "/flex 2.500", "fa2: refused"):
            self.assertIn(part, shown)

    def test_a_run_that_is_cut_off_leaves_what_it_has(self):
        with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()) as printed:
            path = pathlib.Path(directory) / "scores.json"
            progress = attention_scores_run.Progress({"rows": []}, path)
            for rows in (1, 2):
                progress.record["rows"].append({"feature": "alibi"})
                progress.keep("text")
                self.assertEqual(len(json.loads(path.read_text())["rows"]), rows)
            self.assertEqual(printed.getvalue().count("text"), 2)

    def test_new_lengths_are_even_and_between_those_of_the_grid(self):
        for cell in attention_scores.score_grid(["plain"]):
            length = attention_scores_run.new_length(cell).shape.seqlen
            self.assertTrue(cell.shape.seqlen < length < 2 * cell.shape.seqlen and length % 2 == 0)

    def test_an_engine_without_kernels_names_the_variant(self):
        class CacheMiss(Exception):
            pass

        flashjit = unittest.mock.Mock(CacheMiss=CacheMiss, Score=int)
        torch = unittest.mock.Mock(Tensor=str)
        torch.empty_like = lambda value, device: f"{value} on {device}"
        attention = flashjit.Engine.return_value.attention
        attention.side_effect = CacheMiss("fwd-bf16-d64-causal.mma-q128-kv64-rare-longest.sm_80: must be in the cache")
        mma = attention_scores_run.MmaDefaults(torch, flashjit)
        self.assertEqual(mma.variant(["q", "k", "v", "out"], {"documents": "ids", "window": (5, 0)}),
                         "mma-q128-kv64-rare-longest")
        attention.assert_called_once_with("q on cpu", "k on cpu", "v on cpu", causal=True, documents="ids on cpu",
                                          window=(5, 0))


class AttentionLarge(unittest.TestCase):

    def test_prompts_have_the_tokens_of_the_other_grids(self):
        cells = attention_large.large_grid(["prompts"])
        self.assertEqual({(cell.batch * cell.context, cell.heads * cell.head_dims[0]) for cell in cells}, {(16384, 2048)})
        self.assertEqual(len({str(cell) for cell in cells}), 10)

    def test_values_of_mla_are_no_bytes_of_their_own(self):
        groups = "mla", "mla_e4m3", "decode"
        mla, e4m3, decode = (attention_large.LargeCell(group, 2, 8, 1, 1000, 1).cache_bytes for group in groups)
        self.assertEqual((mla, e4m3, decode), (2 * 1000 * 576 * 2, 2 * 1000 * (512 + 64 * 2 + 4), 2 * 1000 * 1024 * 2))

    def test_a_causal_prompt_is_half_the_work(self):
        full, causal = (attention_large.LargeCell("prompts", 1, 1, 1, 64, 64, mask) for mask in ("full", "causal"))
        self.assertEqual((full.operations, causal.operations), (2 * 64 * 64 * 1024, 64 * 64 * 1024))

    def test_the_default_is_compared(self):
        cell = attention_large.LargeCell("mla", 64, 128, 1, 4096, 1)
        rows = [attention_large.large_row(cell, {"flashjit": 160.0, "pages_64": 240.0, "pairs": 150.0, "read": 80.0}, {})]
        summary = attention_large.summarise_large(rows)
        self.assertEqual(summary["mla_of_read"], {"geometric_mean": 0.5, "minimum": 0.5, "maximum": 0.5, "cells": 1})
        self.assertAlmostEqual(summary["mla_tflops"]["minimum"], 2 * 64 * 128 * 4096 * 1088 / 160e-6 / 1e12)
        self.assertEqual(summary["mla_of_pages"]["minimum"], 1.5)
        self.assertNotIn("prompts_over_efficient", summary)
        rows.append(attention_large.large_row(cell._replace(group="mla_e4m3"), {"flashjit": 100.0, "read": 50.0}, {}))
        summary = attention_large.summarise_large(rows)
        self.assertEqual((summary["mla_e4m3_of_16_bits"]["minimum"], summary["mla_e4m3_of_read"]["minimum"]), (1.6, 0.5))


class Variants(unittest.TestCase):
    def test_a_line_names_its_cells(self):
        text = "# comment\n\n 64 full mma-q64 512-1024 # short ones\n128  causal  hopper-q128-kv80\n"
        listed = parse_variants(text, "list.txt")
        self.assertEqual([variant.spelling for variant in listed], ["mma-q64", "hopper-q128-kv80"])
        for variant, cells in zip(listed, ((64, "full", 512, 1024), (128, "causal", *SEQLENS))):
            head_dim, mask, *seqlens = cells
            self.assertEqual([cell for cell in grid() if variant.is_for(cell)], grid([head_dim], [mask], seqlens))

    def test_an_error_names_the_line(self):
        for line, part in {"64 half mma-q64": "mask must be full or causal, was 'half'", "64 full": "was '64 full'",
                           "64 full mma 512": "was '64 full mma 512'", "d64 full mma": "was 'd64 full mma'"}.items():
            with self.subTest(line), self.assertRaises(ValueError) as caught:
                parse_variants(f"\n{line}\n", "list.txt")
            self.assertIn("list.txt:2: ", str(caught.exception))
            self.assertIn(part, str(caught.exception))

    def test_each_family_has_a_variant_of_its_own_for_every_cell(self):
        for family in ("mma", "hopper"):
            path = ROOT / "bench" / "variants" / f"{family}.txt"
            listed = parse_variants(path.read_text(), path)
            self.assertTrue(all(variant.spelling.startswith(f"{family}-") for variant in listed))
            for cell in grid():
                self.assertTrue(any(variant.is_for(cell) for variant in listed), f"{family}: {cell}")


class ComparePeers(unittest.TestCase):
    def test_the_options_choose_variants_and_cells(self):
        parse = compare_peers.parse_arguments
        self.assertIsNone(parse([]).variants)
        self.assertEqual(parse(["--family", "mma"]).variants, ROOT / "bench" / "variants" / "mma.txt")
        self.assertEqual(parse([]).cells, grid())
        self.assertEqual(parse(["--grid", "quick", "--head-dim", "64"]).cells, grid([64], seqlens=[1024, 8192]))
        self.assertEqual(parse(["--grid", "quick", "--seqlen", "512"]).cells, grid(seqlens=[512]))
        self.assertEqual(parse(["--grid", "serving"]).cells, list(SERVING))
        decoding = parse(["--grid", "serving", "--mask", "full"]).cells
        self.assertTrue(decoding and all(cell.decodes for cell in decoding))
        with self.assertRaises(SystemExit), unittest.mock.patch("sys.stderr"):
            parse(["--grid", "serving", "--head-dim", "64"])

    def test_the_grid_of_scores_has_options_of_its_own(self):
        parse = compare_peers.parse_arguments
        names = [cell.name for cell in parse(["--grid", "scores"]).cells]
        self.assertEqual(list(dict.fromkeys(names)), list(FEATURES))
        chosen = parse(["--grid", "scores", "--cells", "softcap,alibi", "--seqlen", "4096", "--head-dim", "64"]).cells
        self.assertEqual([(cell.name, cell.shape) for cell in chosen],
                         [(name, paper_cell(64, "causal", 4096)) for name in ("softcap", "alibi")])
        self.assertEqual(parse(["--grid", "scores", "--peer", "flex"]).peer, ["flex"])
        tried = ROOT / "bench" / "variants" / "scores.txt"
        self.assertEqual(parse(["--grid", "scores", "--variants", str(tried)]).variants, tried)
        self.assertTrue(parse_variants(tried.read_text(), tried))
        for wrong in (["--grid", "scores", "--cells", "x"], ["--grid", "gallery", "--variants", str(tried)], ["--cells", "alibi"], ["--peer", "flex"],
                      ["--grid", "scores", "--peer", "fa3"], ["--grid", "scores", "--family", "mma"],
                      ["--grid", "scores", "--mask", "full"], ["--grid", "scores", "--head-dim", "256"]):
            with self.subTest(wrong), self.assertRaises(SystemExit), unittest.mock.patch("sys.stderr"):
                parse(wrong)

    def test_candidates_are_tried_with_the_feature_and_with_its_text(self):
        kernels = attention_scores_run.Kernels.__new__(attention_scores_run.Kernels)
        kernels.variants = parse_variants("128 causal hopper-kv64\n64 causal hopper-kv32\n128 full hopper-kv16", "list")
        kernels.flashjit = types.SimpleNamespace(Score=lambda text, **_: text, attention=print)
        kernels.options = lambda *_: {"alibi_slopes": 1}
        cell = attention_scores.ScoreCell("alibi", paper_cell(128, "causal", 4096))
        tried = kernels.tried(cell, unittest.mock.MagicMock(), [None] * 4)
        self.assertEqual(list(tried), ["hopper-kv64", "text hopper-kv64"])
        for name, option in (("hopper-kv64", "alibi_slopes"), ("text hopper-kv64", "score")):
            keywords = tried[name]().keywords
            self.assertEqual(keywords["variant"], "hopper-kv64")
            self.assertIn(option, keywords)

    def test_the_grid_of_ragged_batches_has_names_and_head_dims(self):
        parse = compare_peers.parse_arguments
        chosen = parse(["--grid", "ragged", "--cells", "of_512,long_tailed", "--head-dim", "64"]).cells
        self.assertEqual([(cell.name, cell.shape.head_dim) for cell in chosen], [("of_512", 64), ("long_tailed", 64)])
        with contextlib.redirect_stderr(io.StringIO()):
            for wrong in (["--cells", "t5"], ["--variants", "x"], ["--library", "x"], ["--peer", "cudnn"]):
                with self.assertRaises(SystemExit):
                    parse(["--grid", "ragged", *wrong])

    def test_the_command_has_the_lengths_of_the_long_tailed_batch(self):
        cells = (ROOT / "cli" / "bench" / "cells.cpp").read_text()
        lengths = re.search(r"kLongTailed\[\] = \{([\d,\s]+)\}", cells)[1]
        self.assertEqual([int(length) for length in lengths.split(",")], attention_ragged.lengths_of("long_tailed"))

    def test_the_grid_of_the_gallery_has_options_of_its_own(self):
        parse = compare_peers.parse_arguments
        self.assertEqual(parse(["--grid", "gallery"]).cells, attention_gallery.gallery_grid())
        chosen = parse(["--grid", "gallery", "--cells", "t5,alibi,heads", "--seqlen", "4096", "--head-dim", "128"]).cells
        self.assertEqual([(cell.name, cell.shape.mask) for cell in chosen],
                         [("t5", "full"), ("alibi", "causal"), ("heads", "causal")])
        causal = parse(["--grid", "gallery", "--mask", "causal"]).cells
        self.assertTrue(causal and all(cell.shape.causal for cell in causal))
        for wrong in (["--cells", "plain"], ["--peer", "cudnn"], ["--family", "mma"], ["--seqlen", "512"]):
            with self.subTest(wrong), self.assertRaises(SystemExit), unittest.mock.patch("sys.stderr"):
                parse(["--grid", "gallery", *wrong])

    def test_backward_has_the_grids_full_and_quick(self):
        parse = compare_peers.parse_arguments
        self.assertEqual(parse(["--pass", "forward"]).cells, grid())
        self.assertEqual(parse(["--pass", "backward"]).cells, attention_backward.backward_grid())
        self.assertEqual([cell.shape for cell in parse(["--pass", "backward", "--cells", "paper"]).cells], grid())
        quick = parse(["--pass", "backward", "--grid", "quick", "--head-dim", "256"]).cells
        self.assertEqual([cell.shape for cell in quick], grid([256], seqlens=[1024, 8192]))
        windows = parse(["--pass", "backward", "--cells", "window", "--head-dim", "64", "--peer", "fa2"])
        self.assertEqual([str(cell).split() for cell in windows.cells], [["window", "d64", "causal", "16384", "b1", "h32"]])
        with contextlib.redirect_stderr(io.StringIO()):
            for wrong in (["--grid", "serving"], ["--cells", "t5"], ["--variants", "x"], ["--family", "mma"], ["--peer", "fa3"],
                          ["--library", "x"], ["--grid", "backward"]):
                with self.subTest(wrong), self.assertRaises(SystemExit):
                    parse(["--pass", "backward", *wrong])

    def test_a_peer_that_is_not_here_is_told_and_is_an_error_when_asked_for(self):
        def here(name):
            return "No module named 'x'" if name == "fa4" else None

        printed = io.StringIO()
        with unittest.mock.patch("attention_peers.missing", here), contextlib.redirect_stdout(printed):
            self.assertEqual(compare_peers.find_peers(None), [name for name in compare_peers.PEERS if name != "fa4"])
            self.assertEqual(printed.getvalue(), "FlashAttention-4 is not here: No module named 'x'\n")
            self.assertEqual(compare_peers.find_peers(["fa3", "cudnn"]), ["fa3", "cudnn"])
            self.assertEqual(compare_peers.find_peers([]), [])
            with self.assertRaisesRegex(RuntimeError, "--peer fa4: No module named 'x'"):
                compare_peers.find_peers(["cudnn", "fa4"])

    def test_a_cell_that_does_not_fit_is_left_out_and_told(self):
        """With room for a peer that copies its tensors."""
        cell, told = Cell(128, "full", 8192, batch=64, heads=32, heads_kv=8, seqlen_q=1), io.StringIO()
        comparison = unittest.mock.Mock()
        for free, fits in ((2 * cell.bytes_of_tensors() + 1, True), (2 * cell.bytes_of_tensors(), False)):
            comparison.torch.cuda.mem_get_info.return_value = (free, 1 << 40)
            with contextlib.redirect_stderr(told):
                self.assertEqual(compare_peers.Comparison.fits(comparison, cell), fits)
        self.assertEqual(told.getvalue(), f"{cell}: left out: the GPU has 4098 MiB left\n")

    def test_a_package_of_the_name_without_the_function_is_not_the_peer(self):
        """flash-attn-4 makes a namespace flash_attn, which is not FlashAttention-2."""
        with unittest.mock.patch("importlib.import_module", lambda name: sys):
            self.assertIn("flash_attn_func", attention_peers.missing("flash_attn"))
        self.assertIsNone(attention_peers.missing("cudnn"))
        with unittest.mock.patch("importlib.import_module", side_effect=AssertionError):
            self.assertEqual(attention_peers.missing("fa4"), "AssertionError")

    def test_packages_are_called_with_grouped_heads_as_they_are(self):
        q, k = unittest.mock.Mock(shape=(16, 1, 32, 128)), unittest.mock.Mock(shape=(16, 8192, 8, 128))
        for name, output, options in (("fa3", "out", {"num_splits": 0}), ("fa4", ("out", "lse"), {})):
            attention = unittest.mock.Mock(return_value=output)
            with unittest.mock.patch("attention_peers.function", lambda name: attention):
                self.assertEqual(attention_peers.launcher(None, name, q, k, k, False)(), "out")
            attention.assert_called_once_with(q, k, k, causal=False, **options)

    def test_a_turn_takes_its_share_of_the_time(self):
        for milliseconds in (0.1, 1.0, 4.0):
            uncounted, counted = compare_peers.turn_length(milliseconds, seconds=0.25)
            total = compare_peers.TURNS * (uncounted + counted) * milliseconds
            self.assertAlmostEqual(total, 250, delta=250 * 0.05)
            self.assertLess(uncounted, counted)
        self.assertEqual(compare_peers.turn_length(1000.0, seconds=0.25), (1, 1))

    def test_each_turn_has_every_side_once_in_an_order_of_its_own(self):
        for sides in range(1, 13):
            names = [f"side {number}" for number in range(sides)]
            orders = compare_peers.turn_orders(names, compare_peers.TURNS)
            self.assertEqual(orders, compare_peers.turn_orders(names, compare_peers.TURNS))
            self.assertEqual([sorted(order) for order in orders], compare_peers.TURNS * [sorted(names)])
            self.assertEqual(len(set(map(tuple, orders))), min(compare_peers.TURNS, math.factorial(sides)))
            if sides > 1:  # two or three cannot have eight orders, but need not repeat one at once
                self.assertTrue(all(order != later for order, later in zip(orders, orders[1:])))

    def test_no_side_comes_mostly_after_the_same_one(self):
        """Of two sides, each comes after itself and after the other in half of the turns."""
        for sides in range(2, 13):
            order = list(itertools.chain(*compare_peers.turn_orders(list(range(sides)), compare_peers.TURNS)))
            times = collections.Counter(zip(order, order[1:]))
            self.assertLessEqual(max(times.values()), compare_peers.TURNS // 2 if sides == 2 else 3)

    def test_in_four_rounds_each_side_comes_after_each_and_after_itself(self):
        """What heats the GPU is not always before the same ones, as it would be in the orders of one round repeated."""
        for sides in range(2, 6):
            order = list(itertools.chain(*compare_peers.turn_orders(list(range(sides)), 4 * compare_peers.TURNS)))
            self.assertEqual(len(set(zip(order, order[1:]))), sides**2)

    def test_a_cell_is_queued_as_a_whole_and_has_the_mean_of_its_turns(self):
        """Also where they are in two power states, of which a median over all launches would be one or the other."""
        uncounted, counted = compare_peers.turn_length(4.0, seconds=0.25)
        gpu = FakeGpu()
        stopwatch = compare_peers.Stopwatch(gpu, seconds=0.25)
        turns = {"steady": 8 * [2.0], "changing": 5 * [1.0] + 3 * [1.5]}
        launches = {name: [ms for turn in turns[name] for ms in uncounted * [9.0] + [turn + 5] + (counted - 1) * [turn]]
                    for name in turns}
        launchers = {name: gpu.launcher(name, milliseconds) for name, milliseconds in launches.items()}
        with unittest.mock.patch.object(stopwatch, "estimate", lambda launch: 4.0):
            self.assertEqual(stopwatch.milliseconds(launchers), {"steady": 2.0, "changing": 1.1875})
        order = itertools.chain(*compare_peers.turn_orders(list(turns), compare_peers.TURNS))
        self.assertEqual(gpu.launched, [name for name in order for _ in range(uncounted + counted)])
        self.assertEqual(gpu.waits, [len(gpu.launched)])

    def test_what_is_to_be_told_more_finely_has_its_turns_in_rounds(self):
        counted = sum(compare_peers.turn_length(4.0, seconds=0.25))
        gpu = FakeGpu()
        stopwatch = compare_peers.Stopwatch(gpu, seconds=0.25)
        turns = 8 * [1.0] + 8 * [2.0]
        launcher = gpu.launcher("side", [ms for turn in turns for ms in counted * [turn]])
        with unittest.mock.patch.object(stopwatch, "estimate", lambda launch: 4.0):
            self.assertEqual(stopwatch.milliseconds({"side": launcher}, rounds=2), {"side": 1.5})

    def test_a_row_shows_the_peers_that_ran(self):
        row = {"tflops": {"flashjit": 600.0, "cudnn": 400.0}, "over": {"cudnn": 1.5}, "variant": "default"}
        cell = paper_cell(64, "full", 512)
        text = compare_peers.format_row(cell, row, ["cudnn", "best"], ceiling=800.0)
        shown = ["114.5", "600.0", "75.0%", "400.0", "-", "1.500", "-"]
        self.assertEqual(text.split(), ["d64", "full", "512", "b32", "h32", *shown])
        titles = compare_peers.format_header(cell, ["cudnn", "best"])
        self.assertEqual(len(titles), len(text))
        self.assertEqual(titles.split()[-4:], ["cudnn", "best", "/cudnn", "/best"])

    def test_a_row_of_decoding_shows_the_rate_of_reading(self):
        cell = Cell(128, "full", 8192, batch=16, heads=32, heads_kv=8, seqlen_q=1)
        tflops = cell.flops() / 200 / 1e6
        row = {"tflops": {"flashjit": tflops, "cudnn": 2 * tflops}, "over": {"cudnn": 0.5}, "variant": "default"}
        text = compare_peers.format_row(cell, row, ["cudnn"], ceiling=800.0)
        shown = ["200.0", "2684", "-", "5369", "0.500"]
        self.assertEqual(text.split(), ["d128", "decode", "8192", "b16", "h32/8", *shown])

    def test_structures_have_the_layout_of_the_c_headers(self):
        view, options = flashjit_c.TensorView, flashjit_c.Options
        self.assertEqual((view.ndim.offset, view.code.offset, view.shape.offset, view.byte_offset.offset),
                         (16, 20, 24, 40))
        self.assertEqual(ctypes.sizeof(view), 48)
        names = ("softmax_scale", "lse", "variant", "window", "alibi_slopes", "sinks", "chunk", "softcap", "reserved")
        offsets = tuple(getattr(options, name).offset for name in names)
        self.assertEqual(offsets, (16, 24, 40, 48, 56, 64, 72, 80, 84))
        self.assertEqual(options().struct_size, 88)

    def test_a_view_is_of_the_tensor(self):
        answers = {"data_ptr": 4096, "get_device": 1, "dim": 4, "stride": (2560, 64, 320, 1)}
        tensor = unittest.mock.Mock(shape=(2, 5, 8, 64), **{f"{name}.return_value": answers[name] for name in answers})
        view = flashjit_c.TensorView.of(tensor)
        self.assertEqual((view.data, view.device_type, view.device_id, view.ndim), (4096, 2, 1, 4))
        self.assertEqual((view.code, view.bits, view.lanes), (4, 16, 1))
        self.assertEqual((view.shape[:4], view.strides[:4]), ([2, 5, 8, 64], [2560, 64, 320, 1]))


class ReadmeTable(unittest.TestCase):
    def setUp(self):
        shape = {"head_dim": 64, "causal": True, "seqlen": 512}
        jit = {"compile_ms": 150.0, "cold_ms": 160.0, "user_look_up_us": 95.0}
        step = {"step": "v1", "median_us": 12.0, "tflops": 3.0, "share_of_ceiling": 0.5, "variant": "mma-q64"}
        ablation = {"step": "2-stage", "ping_pong": "GEMM", "tflops": 655.4, "variant": "hopper-q128"}
        ablation["fa3_paper_tflops"] = 661
        mma = {"torch": "2.11", "mma_ceiling_tflops": 642.0}
        mma["rows"] = [shape | {"tflops": {"flashjit": 321.0}, "over": {"fa2": 1.234}}]
        best = {"date": "yesterday", "peers": {"fa3": "FlashAttention-3"}}
        default = {"torch": "2.11", "gemm_tflops": 700.0, "best_peers": best}
        default["rows"] = [shape | {"tflops": {"flashjit": 525.0}, "over": {"cudnn": 1.345, "best": 1.999}}]
        sides = {"default": 3.0, "fa2": 1.5, "cudnn": 4.0}
        served = (Cell(128, "causal", 8192, 4, 32, 8, 8192), Cell(128, "full", 8192, 16, 32, 8, 1))
        serving = {"date": "today", "torch": "2.11", "rows": [result(cell, sides, ["default"]) for cell in served]}
        bench = {"date": "today", "jit": {"rows": [jit]}, "5090": {"rows": [step]}, "ablation": {"rows": [ablation]}}
        peers = {"date": "today", "mma": mma, "default": default}
        cost = {"torch": "2.11", "python": "3.12", "shape": [1, 2, 3, 4]}
        cost["calls"] = {"flashjit.attention": {"median_us": 7.89, "min_us": 6.78}}
        self.record = {"device": "D", "driver": "13.0", "nvrtc": "13.0"}
        self.record["steps"] = {"bench": bench, "peers": peers, "host_cost": {"date": "today", **cost}}
        self.record["steps"]["serving"] = serving
        self.record["steps"]["decode"] = self.decode()
        self.record["steps"]["backward"] = self.backward()
        self.record["steps"]["large"] = self.large()
        family = {"plain_us": 1000.4, "window_us": 165.2, "share_of_blocks": 0.15, "over_share": 1.101}
        row = {"head_dim": 64, "choice_us": 165.0, "flex_us": 330.0, "over_flex": 2.0, "families": {"mma": family}}
        window = {"date": "today", "seqlen": 16384, "window": 1024, "torch": "2", "rows": [row]}
        self.record["steps"]["window"] = window
        self.record["steps"]["scores"] = self.scores()
        self.record["steps"]["gallery"] = self.gallery()
        self.record["steps"]["distributed"] = self.distributed()
        for step in self.record["steps"].values():
            step["sources"] = "0123456789abcdef"
        cell = {"pass": "forward", "head_dim": 64, "mask": "causal", "seqlen": 512, "cudnn_tflops": 400.0}
        cell |= {"fa3_tflops": 500.0, "flashjit_over_fa4": 1.254, "best": "fa3", "best_over_cudnn": 1.25}
        fa4 = {"date": "some day", "version": "4.0", "conditions": "beside flashjit: in turns"}
        backward = {**cell, "pass": "backward", "fa4_over_cudnn": 1.28, "best": "fa4", "best_over_cudnn": 1.28}
        figures = {"date": "yesterday", "peers": {"fa3": "FlashAttention-3"}, "fa4": fa4, "cells": [cell, backward]}
        self.figures = PeerFigures(json.dumps(figures))
        self.figures_of_backward = PeerFigures(json.dumps(figures), "backward")

    @staticmethod
    def backward():
        us = {"flashjit": 1000.0, "cudnn": 1280.0, "fa2": 1500.0}
        others = {"grouped": {"flashjit": 1000.0, "equal_heads": 980.0}, "window": {"flashjit": 160.0, "plain": 1000.0},
                  "f32": {"flashjit": 1000.0, "f32": 1030.0}}
        cells = {attention_backward.BackwardCell("paper", paper_cell(64, "causal", 512)): us}
        cells |= {attention_backward.backward_grid([group])[0]: of_group for group, of_group in others.items()}
        rows = [attention_backward.backward_row(cell, of_cell, {}) for cell, of_cell in cells.items()]
        return {"date": "today", "torch": "2", "gemm_tflops": 700.0, "rows": rows,
                "summary": attention_backward.summarise_backward(rows)}

    @staticmethod
    def large():
        us = {"prompts": {"flashjit": 1000.0, "efficient": 4000.0}, "mla": {"flashjit": 130.0, "pages_64": 185.0, "read": 97.5},
              "mla_e4m3": {"flashjit": 100.0, "read": 55.5}}
        rows = [attention_large.large_row(cell, us[cell.group], {}) for cell in attention_large.large_grid(tuple(us))]
        gradients = [attention_backward.backward_row(cell, {"flashjit": 5000.0, "efficient": 40000.0}, {})
                     for cell in attention_backward.backward_grid(["large"])]
        return {"date": "today", "torch": "2", "rows": rows, "summary": attention_large.summarise_large(rows),
                "gradients": {"torch": "2", "rows": gradients}}

    @staticmethod
    def decode():
        cells = attention_decode.decode_grid(["small", "large"])
        us = {"flashjit": 1000.0, "pages_64": 1250.0, "cudnn": 1200.0, "fa2_heads_first": 1100.0}
        rows = [attention_decode.decode_row(cell, us, {}) for cell in cells]
        return {"date": "today", "torch": "2", "rows": rows, "summary": attention_decode.summarise_decode(rows)}

    @staticmethod
    def scores():
        cells = attention_scores.score_grid(["plain", "alibi"], [128], [4096, 16384])
        us = {"plain": {"flashjit": 900.0, "cudnn": 1100.0},
              "alibi": {"flashjit": 1000.0, "plain": 900.0, "text": 1010.0, "mma": 2000.0, "plain_mma": 1900.0,
                        "flex": 2150.0}}
        rows = [attention_scores.score_row(cell, us[cell.name], {}) for cell in cells]
        masks = {"seqlen": 16384, "us": {"flashjit": 250.0, "flex": 9000.0, "dense_causal": 900.0, "dense_full": 1700.0}}
        calls = {"cores": 2, "kinds": {"score": {"128": {"median_s": 0.7}}, "mask": {"128": {"median_s": 0.9}}}}
        return {"date": "today", "torch": "2", "rows": rows, "summary": attention_scores.summarise_scores(rows),
                "block_masks": masks, "first_calls": calls, "compiles": {"lengths": 0}}

    @staticmethod
    def gallery():
        us = {"alibi": {"flashjit": 1000.0, "plain": 900.0, "flex": 2150.0}, "natten": {"flashjit": 100.0, "plain": 1500.0}}
        left_out = {"alibi": {}, "natten": {"flex": "out of memory."}}
        cells = attention_gallery.gallery_grid(tuple(us), [128])
        rows = [attention_gallery.gallery_row(cell, 0.125, us[cell.name], left_out[cell.name]) for cell in cells]
        return {"date": "today", "torch": "2", "rows": rows, "summary": attention_gallery.summarise_gallery(rows)}

    @staticmethod
    def distributed():
        """At 128k each of two GPUs has what one does in 100 ms with 2**-0.5 of the tokens."""
        sides = {"alone": 100.0, "automatic": 102.0, "ring": 102.0, "all_gather": 125.0, "torch_alltoall": 153.0}
        model = {"ring": {"ms": 85.0, "bytes": 3 << 20, "calls": 4}, "all_gather": {"ms": 100.0, "bytes": 1, "calls": 2}}
        checks = {"ring": {"of_bound": 0.5, "from_alone": 0.01, "same_bits": True}}
        rows = [context_parallel_cells.parallel_row(context_parallel_cells.ParallelCell(2, "forward", mask, 131072), sides, {},
                                                    "ring", model, checks) for mask in ("window", "causal")]
        part = {"version": "1", "torch": "2", "nccl": "2.28", "sources": "0123", "date": "then"}
        return {"date": "today", "gpus": {"8": {**part, "rows": []}, "2": {**part, "rows": rows}}}

    def fill(self, name, old=""):
        text = f"before\n<!-- table:d/{name} -->\n{old}<!-- /table -->\nafter\n"
        figures = {"forward": self.figures, "backward": self.figures_of_backward}
        with unittest.mock.patch("readme_table.known_figures", lambda device, of_pass="forward": figures[of_pass]):
            return readme_table.filled(text, lambda device: self.record)

    def test_every_table_shows_its_figures(self):
        expected = {"5090": ["50.0 %"], "jit": ["150.00 ms", "95.00 µs"], "ablation": ["655", "661", "GEMM"]}
        expected["mma"] = ["1.23", "50 %", "÷ FA2"]
        expected["summary"] = ["÷ cuDNN", "1.34", "÷ FA3 (another run)", "1.08", "75 %", "yesterday (FlashAtt"]
        expected["hopper"] = ["÷ cuDNN", "1.34", "÷ FA4 (some day)", "1.25", "75 %", "1.25 at 64", "beside flashjit."]
        expected["serving"] = ["| 8192 | 4 | 32 / 8 | 733008 µs | 3 | 0.75 | 2.00 |", "÷ cuDNN | ÷ FA2 |"]
        expected["backward"] = ["| 64 | causal | TFLOPS | 86 |", "÷ cuDNN | 1.28 |", "÷ FA2 | 1.50 |", "÷ best peer | 1.00 |",
                                "÷ FA3 (another run) | 1.02 |", "÷ FA4 (some day) | 1.00 |", "FA4 was measured in another run, "
                                "on some day (4.0), and stands here by its ratio to cuDNN", "of queries: 0.98, from 0.98 to "
                                "0.98. A window", "time without one: 1.32,", "16 bits: 1.03,"]
        expected["decode"] = ["| 1024 | 1 | 32 / 8 | 1000.0 µs | 4 GB/s | 1.10 |",
                              "| 131072 | 1 | 32 / 8 | 1000.0 µs | 537 GB/s | 1.10 |\n| 8192 | 64 | 32 / 8 |",
                              "geometric mean of 4 large caches 1.10, from 1.10 to 1.10; geometric mean of 60 small",
                              "Of the rate without pages: 0.80 in pages of 64. PyTorch 2."]
        expected["large"] = ["| mask |  | 1024 | 2048 | 4096 | 8192 | 16384 |", "| full | the default | 137 | 275 |",
                             "| causal | PyTorch's memory-efficient back end | 17 | 34 |"]
        expected["mla"] = ["| 16 bits | 64 | 4096 | 130.0 µs | 562 | 185.0 µs |  | 97.5 µs |",
                           "| latent columns of e4m3 | 128 | 8192 | 100.0 µs | 2921 |  |  | 55.5 µs |",
                           "1.30 times the tokens a second, from 1.30 to 1.30 in 4 caches."]
        expected["largebackward"] = ["| full | the default | 69 | 137 |", "| causal | PyTorch's memory-efficient back end | 4 |"]
        expected["window"] = ["| 64 | `mma` | 1000 µs | 165 µs | 15.0 % | 1.10 |", "2.00 times as long"]
        expected["scores"] = ["| 128 | ALiBi | 1000 µs | 0.90 | 0.95 | 1.01 |  | 2.15 | 2.15 |",
                              "| 128 | plain | 900 µs |  |  |  | 1.22 |  |  |", "smallest 2.15 (alibi, head dim 128, 4096)",
                              "250 µs by the option, 9000 µs by FlexAttention", "700 to 900 ms", "lengths 0."]
        expected["gallery"] = ["| 128 | ALiBi | causal | 12.5 % | 1000 µs | 275 | 0.90 | 2.15 | 2.15 |",
                               "| 128 | neighbourhood of an image (NATTEN): width 128, reach 3 | full | 12.5 % | 100 µs | "
                               "2749 | 15.00 |  |  |", "÷ FlexAttention, 4096 | ÷ FlexAttention, 16384 |",
                               "÷ FlexAttention, scores: geometric mean 2.15", "Left out: FlexAttention of natten, head "
                               "dim 128, 16384; natten, head dim 128, 4096: out of memory. PyTorch 2."]
        expected["python"] = ["| `flashjit.attention` | 7.9 µs | 6.8 µs |", "(1, 2, 3, 4)"]
        expected["distributed"] = ["2 GPUs, 32 heads on 8:", "| forward | causal | 128k | ring | 102.00 ms | 0.98 | 0.80 (1.25) | "
                                   "0.98 (1.20) |  | 1.50 |\n| forward | window | 128k |", "bound: 0.50; the same bits in a "
                                   "second run: 2 of 2. With the window a rank receives forward 3.0 MiB."]
        self.assertEqual(set(expected), set(readme_table.TABLES))
        for name, figures in expected.items():
            with self.subTest(name):
                text = self.fill(name)
                for figure in figures:
                    self.assertIn(figure, text)
                self.assertIn("today, kernel sources 0123456789ab.", text)
                self.assertTrue(text.startswith("before\n") and text.endswith("after\n"))

    def test_the_best_peer_is_the_closest_wherever_it_was_measured(self):
        self.assertIn("| 64 | causal | ÷ best peer | 1.08 |", self.fill("hopper"))
        row = self.record["steps"]["peers"]["default"]["rows"][0]
        row["over"] = {"cudnn": 1.345, "fa3": 1.5, "fa4": 1.005}  # now they ran
        text = self.fill("hopper")
        for line in ("÷ FA3 | 1.50", "÷ FA4 | 1.00", "÷ best peer | 1.00"):
            self.assertIn(line, text)
        self.assertNotIn("another run", text)
        self.figures = None
        row["over"] = {"cudnn": 1.345}
        self.assertNotIn("best peer", self.fill("hopper"))

    def test_what_was_not_measured_has_no_table(self):
        for steps in ({}, {"bench": {"failed": "why"}, "peers": {"skipped": "why"}}, {"bench": {"jit": {"rows": []}}}):
            self.record["steps"] = steps
            for name in readme_table.TABLES:
                with self.subTest(name, steps=steps):
                    empty = f"before\n<!-- table:d/{name} -->\n<!-- /table -->\nafter\n"
                    self.assertEqual(self.fill(name, old="| 999 |\n"), empty)

    def test_a_record_of_large_heads_without_gradients_or_caches_of_e4m3_shows_what_it_has(self):
        large = self.record["steps"]["large"]
        del large["gradients"]
        large["rows"] = [row for row in large["rows"] if row["group"] != "mla_e4m3"]
        large["summary"] = attention_large.summarise_large(large["rows"])
        self.assertEqual(self.fill("largebackward", old="| 999 |\n"),
                         "before\n<!-- table:d/largebackward -->\n<!-- /table -->\nafter\n")
        self.assertNotIn("e4m3", self.fill("mla"))
        self.assertIn("| 16 bits | 1 | 8192 |", self.fill("mla"))

    def test_what_decodes_is_in_the_table_of_decoding_alone(self):
        self.assertNotIn("| 8192 | 16 | 32 / 8 |", self.fill("serving"))
        self.assertNotIn("| 8 | 32 / 8 |", self.fill("decode"))

    def test_a_gallery_that_was_cut_off_shows_what_it_has(self):
        gallery = self.record["steps"]["gallery"]
        gallery["rows"] = [row for row in gallery["rows"] if (row["function"], row["seqlen"]) != ("natten", 16384)]
        self.assertIn("(NATTEN): width 64, reach 3 | full |  |  |  |  |  |  |", self.fill("gallery"))

    def test_filling_twice_changes_nothing(self):
        once = self.fill("hopper")
        body = once.partition("-->\n")[2].partition("<!--")[0]
        self.assertEqual(self.fill("hopper", old=body), once)

    def test_an_old_figure_is_replaced(self):
        self.assertNotIn("999", self.fill("jit", old="| 999 |\n"))


if __name__ == "__main__":
    unittest.main()
