# SPDX-License-Identifier: Apache-2.0
"""bench/train_llama.py: its text, its criterion, and a tiny model on the CPU, with flashjit's reference, whose wrong
gradients are found. Needs PyTorch."""

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

import train_llama  # noqa: E402
from train_llama import CURVES, LIMIT, OURS, Llama, is_within_noise, judge, make_text, parse_arguments  # noqa: E402

TINY = ("--device cpu --steps 40 --window 5 --starts 3 --batch 8 --seqlen 32 --vocabulary 64 --letters 3 --layers 2 "
        "--hidden 64 --intermediate 96 --heads 4 --heads-kv 2 --head-dim 16 --learning-rate 1e-2").split()
WINDOWS = 5


def setUpModule():
    """What is tiny has no work for several threads."""
    unittest.addModuleCleanup(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(1)


class Model(unittest.TestCase):

    def test_has_100_million_parameters(self):
        with torch.device("meta"):
            model = Llama(parse_arguments([]))
        self.assertAlmostEqual(sum(parameter.numel() for parameter in model.parameters()) / 1e8, 1, places=2)

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
        self.right = torch.linspace(8, 4, WINDOWS, dtype=torch.float64)[:, None].repeat(1, len(CURVES))
        self.theirs = [self.near() for _ in range(3)]

    def near(self):
        return self.right + 1e-3 * torch.rand_like(self.right)

    def judge(self, curves, floor=0.0):
        return judge(curves, self.theirs, torch.full((len(CURVES), ), floor, dtype=torch.float64))

    def test_curves_within_noise_pass(self):
        self.assertTrue(is_within_noise(self.judge(self.near(), floor=1e-4)))

    def test_one_window_of_one_curve_off_fails(self):
        for i, curve in enumerate(CURVES):
            curves = self.near()
            curves[2, i] += 0.02
            judgements = self.judge(curves, floor=1e-4)
            self.assertFalse(is_within_noise(judgements))
            self.assertEqual((judgements[curve].window, max(judgements, key=lambda name: judgements[name].times_noise)),
                             (2, curve))

    def test_nan_and_zero_fail(self):
        for value in (math.nan, math.inf, 0.0):
            curves = self.near()
            curves[3, 1] = value
            self.assertFalse(is_within_noise(self.judge(curves, floor=1e-4)))

    def test_noise_is_that_of_windows_until_then_and_no_less_than_rounding(self):
        self.theirs = [self.right.clone() for _ in range(3)]
        self.theirs[1][1] += 0.3
        noise = train_llama.noise_of(self.theirs, torch.full((len(CURVES), ), 0.01, dtype=torch.float64))[:, 0]
        for window, expected in enumerate((0.01, 0.3, 0.3, 0.3, 0.3)):
            self.assertAlmostEqual(noise[window].item(), expected)
        curves = self.right.clone()
        curves[0] += 0.02
        self.assertLess(self.judge(curves, floor=0.01)["loss"].times_noise, LIMIT)
        self.assertGreater(self.judge(curves, floor=0.005)["loss"].times_noise, LIMIT)


class Training(unittest.TestCase):

    def run_tiny(self, *options):
        """Exit status, record and what was printed."""
        with tempfile.TemporaryDirectory() as directory:
            file, printed = pathlib.Path(directory) / "record.json", io.StringIO()
            command = ["train_llama.py", *TINY, *options, "--json", str(file)]
            with contextlib.redirect_stdout(printed), mock.patch.object(sys, "argv", command):
                with self.assertRaises(SystemExit) as left:
                    train_llama.main()
            return left.exception.code, json.loads(file.read_text()), printed.getvalue()

    def test_flashjit_is_within_noise_and_wrong_gradients_are_found(self):
        status, record, printed = self.run_tiny("--wrong", "dk", "dq")
        self.assertEqual((status, record["failures"]), (0, []), printed)
        self.assertIn("flashjit's curves are those of SDPA within noise", printed)
        sdpa = [f"sdpa {name} {start}" for start in (1, 2, 3) for name in ("flash", "math")]
        self.assertEqual(list(record["curves"]), [*sdpa, "other seed", OURS, "wrong dk", "wrong dq"])
        self.assertEqual([len(values) for values in record["curves"][OURS].values()], [8] * len(CURVES))
        self.assertGreater(record["judgements"]["wrong dk"]["key"]["times_noise"], LIMIT)
        self.assertGreater(record["judgements"]["wrong dq"]["query"]["times_noise"], LIMIT)

    def test_flashjit_that_is_wrong_fails(self):
        with mock.patch.object(train_llama, "by_flashjit", train_llama.with_wrong("dk", train_llama.by_flashjit)):
            status, record, printed = self.run_tiny("--wrong")
        self.assertEqual((status, record["failures"]), (1, ["flashjit's curves are not those of SDPA"]))
        self.assertIn(record["failures"][0], printed)

    def test_a_wrong_gradient_that_is_not_found_fails(self):
        with mock.patch.dict(train_llama.WRONG, dk=1.0):
            self.assertEqual(self.run_tiny("--wrong", "dk")[1]["failures"], ["a wrong dk was not found"])


if __name__ == "__main__":
    unittest.main()
