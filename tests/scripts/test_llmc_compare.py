# SPDX-License-Identifier: Apache-2.0
"""examples/llmc/compare, with programs in place of llm.c's that print what those print."""

import array
import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COMPARE = ROOT / "examples" / "llmc" / "compare"
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("llmc_compare", str(COMPARE))
compare = importlib.util.module_from_spec(importlib.util.spec_from_loader("llmc_compare", loader))
loader.exec_module(compare)

OUTPUT = """| train_num_batches     | 3                                                  |
val loss 11.009765
step    1/3 | loss 11.000000 (+nanz)| norm 15.3281 (+nanz)| lr 3.00e-04 | 900.00 ms | 0.1% bf16 MFU | 4551 tok/s
step    2/3 | loss 10.500000 (+nanz)| norm 6.5000 (+nanz)| lr 3.00e-04 | {ms} ms | 40.1% bf16 MFU | 160000 tok/s
step    3/3 | loss {loss} (-0.10z)| norm 2.2500 (+1.20z)| lr 3.00e-04 | {ms} ms | 40.2% bf16 MFU | 160100 tok/s
total average iteration time: 1.000000 ms
"""


def fake_build(folder, output, status=0):
    folder.mkdir()
    program = folder / "train_gpt2cu"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}END\nexit {status}\n")
    program.chmod(0o755)
    return folder


def run_compare(*folders):
    return subprocess.run([sys.executable, COMPARE, *folders, "--steps", "3", "--batch", "2", "--seqlen", "512"],
                          capture_output=True, text=True, check=False)


class Compare(unittest.TestCase):
    def test_the_file_of_tokens_is_as_llmc_reads_it(self):
        tokens = compare.random_tokens(1000)
        self.assertLess(max(tokens), compare.VOCABULARY)
        self.assertGreater(len(set(tokens)), 100)
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "tokens.bin"
            compare.write_tokens(path, tokens)
            content = path.read_bytes()
        self.assertEqual(len(content), 256 * 4 + 1000 * 2)
        self.assertEqual(array.array("i", content[:1024]).tolist(), [20240520, 1, 1000] + [0] * 253)
        self.assertEqual(array.array("H", content[1024:]), tokens)

    def test_steps_are_read_with_loss_norm_and_time(self):
        steps = compare.steps_of(OUTPUT.format(loss="10.250000", ms="25.60"))
        self.assertEqual(steps, [(11, 15.3281, 900), (10.5, 6.5, 25.6), (10.25, 2.25, 25.6)])

    def test_losses_and_speed_stand_side_by_side(self):
        with tempfile.TemporaryDirectory() as directory:
            ours = fake_build(pathlib.Path(directory) / "ours", OUTPUT.format(loss="10.250000", ms="20.00"))
            theirs = fake_build(pathlib.Path(directory) / "theirs", OUTPUT.format(loss="10.252000", ms="25.00"))
            finished = run_compare(ours, theirs)
        self.assertEqual(finished.returncode, 0, finished.stderr)
        self.assertIn("largest difference of losses: 0.002000", finished.stdout)
        self.assertIn(f"{ours}: 51200 tokens/s\n{theirs}: 40960 tokens/s\n{ours} / {theirs}: 1.250", finished.stdout)

    def test_a_run_that_fails_or_ends_early_is_an_error(self):
        with tempfile.TemporaryDirectory() as directory:
            whole = OUTPUT.format(loss="10.250000", ms="20.00")
            good = fake_build(pathlib.Path(directory) / "good", whole)
            failed = fake_build(pathlib.Path(directory) / "failed", whole, status=1)
            short = fake_build(pathlib.Path(directory) / "short", whole.replace("step    3/3", "killed"))
            self.assertIn("exits with 1 after 3 steps", run_compare(good, failed).stderr)
            self.assertIn("exits with 0 after 2 steps", run_compare(good, short).stderr)


if __name__ == "__main__":
    unittest.main()
