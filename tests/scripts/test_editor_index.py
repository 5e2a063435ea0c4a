# SPDX-License-Identifier: Apache-2.0
"""That an editor with the flags of .clangd understands the templates: Clang finds no error in the unit it indexes."""

import pathlib
import re
import shutil
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COMPILER = shutil.which("clang++") or shutil.which("clang++-14")


class EditorIndex(unittest.TestCase):
    @unittest.skipUnless(COMPILER, "no clang++")
    def test_clang_understands_the_templates(self):
        added = re.search(r"Add: \[(.*?)\]", (ROOT / ".clangd").read_text(), re.DOTALL)
        flags = [flag.strip() for flag in added[1].split(",")]
        command = [COMPILER, *flags, "-Wno-unknown-cuda-version", "-Werror", "-fsyntax-only", "templates.cu"]
        done = subprocess.run(command, cwd=ROOT / "tests" / "index", capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
