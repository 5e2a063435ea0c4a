# SPDX-License-Identifier: Apache-2.0
"""bench/training.py: its models, its text, its criterion, and tiny models on the CPU, with flashjit's reference, whose
wrong gradients are found. Needs PyTorch."""

import contextlib
import io
import json
import math
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"PyTorch cannot be imported: {error}") from error

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

import training  # noqa: E402
from training import CURVES, LIMIT, OURS, Decoder, is_within_noise, judge, make_text, parse_arguments  # noqa: E402

TINY = ("--device cpu --steps 40 --span 5 --starts 3 --batch 8 --seqlen 32 --vocabulary 64 --letters 3 --layers 2 "
        "--hidden 64 --intermediate 96 --heads 4 --heads-kv 2 --head-dim 16 --learning-rate 1e-2 "
        "--timed-batch 1 --timed-steps 1 --rounds 1").split()
SPANS = 5


def setUpModule():
    """What is tiny has no work for several threads."""
    unittest.addModuleCleanup(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(1)


class Model(unittest.TestCase):

    def test_has_100_million_parameters(self):
        for like in ("llama", "gemma"):
            with torch.device("meta"):
                model = Decoder(parse_arguments(["--like", like]))
            self.assertAlmostEqual(sum(parameter.numel() for parameter in model.parameters()) / 1e8, 1, places=2)

    def test_gemma_has_windows_in_five_of_six_layers(self):
        with torch.device("meta"):
            model = Decoder(parse_arguments(["--like", "gemma"]))
        self.assertEqual([layer.attention.window for layer in model.layers], [*[512] * 5, 0] * 3)

    def test_numbers_without_a_meaning_are_refused(self):
        for given, what in (("--seqlen 1", "--seqlen: must be at least 2, was 1"), ("--layers 0", "--layers: must be at"),
                            ("--heads 3 --heads-kv 2", "--heads: must be a multiple of --heads-kv, which is 2, was 3"),
                            ("--head-dim 15", "--head-dim: must be even"), ("--window -3", "--window: must be at least 0"),
                            ("--span 7", "--span: must be a divisor of the steps, which are 300, was 7"),
                            ("--softcap nan", "--softcap: must be a number"), ("--softcap 9 --device cpu", "0 on a CPU"),
                            ("--learning-rate -1", "--learning-rate: must be a number above 0"),
                            ("--json /nowhere/a.json", "--json: must be in a folder that exists")):
            printed = io.StringIO()
            with contextlib.redirect_stderr(printed), self.assertRaises(SystemExit):
                parse_arguments(given.split())
            self.assertIn(what, printed.getvalue())

    def test_ways_to_attend_agree(self):
        torch.manual_seed(0)
        q = torch.randn((1, 24, 4, 16), dtype=torch.float64)
        k, v = (torch.randn((1, 24, 2, 16), dtype=torch.float64) for _ in range(2))
        for window in (0, 7):
            plain = training.by_flashjit(0.0)(q, k, v, window)
            capped = training.by_flashjit(1.5)(q, k, v, window)
            self.assertGreater((plain - capped).abs().max(), 0.01)
            torch.testing.assert_close(training.by_operations(1.5)(q, k, v, window), capped, atol=1e-5, rtol=0)
            sdpa = training.by_sdpa(training.SDPBackend.MATH, False)(q, k, v, window)
            torch.testing.assert_close(sdpa, plain, atol=1e-5, rtol=0)

    def test_text_has_few_letters_each_with_two_others_behind_it(self):
        arguments = parse_arguments([*TINY, "--seqlen", "200", "--letters", "5"])
        text = make_text(arguments, 0)
        self.assertEqual(text.shape, (40, 8, 201))
        self.assertTrue(torch.equal(text, make_text(arguments, 0)))
        self.assertFalse(torch.equal(text, make_text(arguments, 1)))
        for sequence in text[0].tolist():
            successors = {letter: {b for a, b in zip(sequence, sequence[1:]) if a == letter} for letter in sequence}
            self.assertEqual({len(others) for others in successors.values()}, {2})
            self.assertEqual(len(successors), 5)
            self.assertFalse(any(letter in others for letter, others in successors.items()))


class Criterion(unittest.TestCase):

    def setUp(self):
        torch.manual_seed(0)
        self.right = torch.linspace(8, 4, SPANS, dtype=torch.float64)[:, None].repeat(1, len(CURVES))
        self.theirs = [self.near() for _ in range(3)]

    def near(self):
        return self.right + 1e-3 * torch.rand_like(self.right)

    def judge(self, curves, floor=0.0):
        return judge(curves, self.theirs, torch.full((len(CURVES), ), floor, dtype=torch.float64))

    def test_curves_within_noise_pass(self):
        self.assertTrue(is_within_noise(self.judge(self.near(), floor=1e-4)))

    def test_one_span_of_one_curve_off_fails(self):
        for i, curve in enumerate(CURVES):
            curves = self.near()
            curves[2, i] += 0.02
            judgements = self.judge(curves, floor=1e-4)
            self.assertFalse(is_within_noise(judgements))
            self.assertEqual((judgements[curve].span, max(judgements, key=lambda name: judgements[name].times_noise)),
                             (2, curve))

    def test_nan_and_zero_fail(self):
        for value in (math.nan, math.inf, 0.0):
            curves = self.near()
            curves[3, 1] = value
            self.assertFalse(is_within_noise(self.judge(curves, floor=1e-4)))

    def test_noise_is_that_of_spans_until_then_and_no_less_than_rounding(self):
        self.theirs = [self.right.clone() for _ in range(3)]
        self.theirs[1][1] += 0.3
        noise = training.noise_of(self.theirs, torch.full((len(CURVES), ), 0.01, dtype=torch.float64))[:, 0]
        for span, expected in enumerate((0.01, 0.3, 0.3, 0.3, 0.3)):
            self.assertAlmostEqual(noise[span].item(), expected)
        curves = self.right.clone()
        curves[0] += 0.02
        self.assertLess(self.judge(curves, floor=0.01)["loss"].times_noise, LIMIT)
        self.assertGreater(self.judge(curves, floor=0.005)["loss"].times_noise, LIMIT)


class Training(unittest.TestCase):

    def run_tiny(self, *options):
        """Exit status, record and what was printed."""
        with tempfile.TemporaryDirectory() as directory:
            file, printed = pathlib.Path(directory) / "record.json", io.StringIO()
            command = ["training.py", *TINY, *options, "--json", str(file)]
            with contextlib.redirect_stdout(printed), mock.patch.object(sys, "argv", command):
                with self.assertRaises(SystemExit) as left:
                    training.main()
            return left.exception.code, json.loads(file.read_text()), printed.getvalue()

    def test_flashjit_is_within_noise_and_wrong_gradients_are_found(self):
        status, record, printed = self.run_tiny("--wrong", "dk", "dq")
        self.assertEqual((status, record["failures"]), (0, []), printed)
        self.assertIn("flashjit's curves are those of its peers within noise", printed)
        sdpa = [f"sdpa {name} {start}" for start in (1, 2, 3) for name in ("flash", "math")]
        self.assertEqual(list(record["curves"]), [*sdpa, "other seed", OURS, "wrong dk", "wrong dq"])
        self.assertEqual([len(values) for values in record["curves"][OURS].values()], [8] * len(CURVES))
        self.assertEqual(list(record["tokens_per_second"]), ["sdpa flash", "sdpa math", OURS])
        self.assertEqual(list(record["over"]), ["sdpa flash", "sdpa math"])
        self.assertGreater(record["judgements"]["wrong dk"]["key"]["times_noise"], LIMIT)
        self.assertGreater(record["judgements"]["wrong dq"]["query"]["times_noise"], LIMIT)

    def test_a_model_like_gemma_with_windows(self):
        # SDPA's flash has no masks.
        with mock.patch.object(training, "candidates", lambda arguments: {
                "operations": training.by_operations(1e4), "sdpa math": training.by_sdpa(training.SDPBackend.MATH, False)}):
            status, record, printed = self.run_tiny("--like", "gemma", "--window", "12", "--wrong")
        self.assertEqual((status, record["failures"]), (0, []), printed)

    def test_flashjit_that_is_wrong_fails(self):
        by_flashjit = training.by_flashjit
        with mock.patch.object(training, "by_flashjit", lambda cap: training.with_wrong("dk", by_flashjit(cap))):
            status, record, printed = self.run_tiny("--wrong")
        self.assertEqual((status, record["failures"]), (1, ["flashjit's curves are not those of its peers"]))
        self.assertIn(record["failures"][0], printed)

    def test_a_wrong_gradient_that_is_not_found_fails(self):
        with mock.patch.dict(training.WRONG, dk=1.0):
            self.assertEqual(self.run_tiny("--wrong", "dk")[1]["failures"], ["a wrong dk was not found"])


if __name__ == "__main__":
    unittest.main()
