# SPDX-License-Identifier: Apache-2.0
"""How doc_blocks.py reads pages and judges what their blocks do."""

import os
import pathlib
import shutil
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import doc_blocks  # noqa: E402
from doc_blocks import BadFence, Block, Page, Surroundings, as_source, find_blocks, joined  # noqa: E402


class Reading(unittest.TestCase):
    def test_a_fence_says_how_its_block_is_run(self):
        page = "# page\n\n```sh\ntrue\n```\n1. item\n\n   ```cpp gpu\n   int x;\n     int y;\n   ```\n"
        page += "```c a.c\nint z;\n```\n"
        self.assertEqual(find_blocks(page), [
            Block(4, "sh", False, "", "", "true\n"),
            Block(9, "cpp", True, "", "", "int x;\n  int y;\n"),
            Block(13, "c", False, "a.c", "", "int z;\n"),
        ])

    def test_a_fence_may_name_packages_and_their_versions(self):
        self.assertEqual(find_blocks("```python gpu a-b>=1.20 c>=2\nx\n```\n"), [
            Block(2, "python", True, "", "", "x\n", (("a-b", "1.20"), ("c", "2"))),
        ])

    def test_text_is_a_block_only_as_a_file(self):
        self.assertEqual(find_blocks("```text\n<!-- given: no -->\n```\n"), [])
        self.assertEqual(find_blocks("```text list.txt\na\n```\n")[0].file, "list.txt")

    def test_the_given_code_is_that_right_before_the_fence(self):
        page = "<!-- given: first -->\n```sh\n1\n```\n<!-- given:\nsecond\n-->\n```sh\n2\n```\n```sh\n3\n```\n"
        self.assertEqual([block.given.strip() for block in find_blocks(page)], ["first", "second", ""])

    def test_what_is_no_fence_of_ours_is_an_error_with_its_line(self):
        for page, message in {
            "\n```\nx\n```\n": "2: the language must be one of",
            "```bash\nx\n```\n": "was 'bash'",
            "```sh a b\nx\n```\n": "at most one file",
            "```sh a>=1\nx\n```\n": "versions are of Python's packages",
            "text\n```sh\nx\n": "2: the fence is not closed",
        }.items():
            with self.subTest(page), self.assertRaisesRegex(BadFence, message):
                find_blocks(page)

    def test_the_pages_can_be_read(self):
        pages = doc_blocks.all_pages()
        self.assertGreater(len(pages), 10)
        self.assertGreater(sum(len(find_blocks(page.read_text())) for page in pages), 20)

    def test_a_program_stays_as_it_is_and_other_text_becomes_a_function(self):
        program = Block(1, "cpp", False, "", "given", "int main() {}\n")
        self.assertEqual(as_source(program), program.text)
        text = as_source(Block(1, "cpp", False, "", "#include <a.h>\nint a;\n", "#include <b.h>\na = 1;\n"))
        self.assertEqual(text.splitlines(), ["#include <a.h>", "#include <b.h>", "void block();", "void block() {",
                                             "int a;", "a = 1;", "}"])

    def test_joined_python_keeps_the_lines_of_the_page(self):
        blocks = [Block(line, "python", False, "", "", text) for line, text in ((3, "a\n"), (6, "b\n"))]
        lines = joined(blocks).splitlines()
        self.assertEqual((lines[2], lines[5], len(lines)), ("a", "b", 6))


class Running(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = pathlib.Path(scratch.name)

    def page(self, text, gpu=False, python=sys.executable):
        return Page("page.md", find_blocks(text), Surroundings(dict(os.environ), gpu, python), self.directory)

    def test_a_failing_command_fails_the_page_with_the_line_of_its_block(self):
        failure = self.page("```sh\ntrue\n```\n\n```sh\necho why; false; true\n```\n").run_all()
        self.assertIn("page.md:6: bash returned 1\nwhy", failure)
        self.assertIn("returned 1", self.page("```sh\nfalse | true\n```\n").run_all())

    def test_blocks_of_a_page_share_files(self):
        self.assertEqual(self.page("```text a\nx\n```\n```sh\ncp a b\n```\n```sh\ngrep x b\n```\n").run_all(), "")

    def test_what_needs_a_gpu_is_only_checked_without(self):
        self.assertEqual(self.page("```sh gpu\nfalse\n```\n").run_all(), "")
        self.assertIn("page.md:2", self.page("```sh gpu\nfalse\n```\n", gpu=True).run_all())
        self.assertIn("page.md:2", self.page("```sh gpu\nif\n```\n").run_all())

    def test_python_of_a_page_is_one_program(self):
        text = "```python\nx = 1\n```\n```python gpu\nx = 2\n```\n```python\nassert x == {}\n```\n"
        self.assertEqual(self.page(text.format(1)).run_all(), "")
        self.assertIn("AssertionError", self.page(text.format(2)).run_all())
        self.assertIn("AssertionError", self.page(text.format(1), gpu=True).run_all())
        self.assertIn("invalid syntax", self.page("```python\nx =\n```\n", python="").run_all())

    def test_only_commands_that_call_python_wait_for_one(self):
        text = "```python\nassert True\n```\n```sh\n{}\n```\n"
        self.assertEqual(self.page(text.format("python -c 'raise SystemExit(1)'"), python="").run_all(), "")
        self.assertIn("returned 1", self.page(text.format("false"), python="").run_all())

    def test_a_build_that_cannot_be_installed_is_linked_to(self):
        build, prefix = self.directory / "build", self.directory / "prefix"
        (build / "cli").mkdir(parents=True)
        with unittest.mock.patch("shutil.which", lambda name: None):
            self.assertFalse(doc_blocks.install(build, prefix))
        self.assertEqual((prefix / "lib").resolve(), build.resolve())
        self.assertTrue((prefix / "include" / "flashjit.h").exists() and (prefix / "bin").exists())

    def test_python_of_a_package_that_is_older_is_only_checked_and_told(self):
        text = "```python\nx = 1\n```\n```python pip>={}\nassert x == 2\n```\n"
        versions = unittest.mock.patch.object(doc_blocks, "version_of", lambda python, package: "5.17.0.dev1")
        for least, failure, skipped in (("5.19", "", ["Python from line 5 (pip 5.17.0.dev1 for 5.19)"]),
                                        ("5.17", "AssertionError", []), ("5.9.1", "AssertionError", []),
                                        ("6", "", ["Python from line 5 (pip 5.17.0.dev1 for 6)"])):
            with self.subTest(least), versions:
                page = self.page(text.format(least))
                self.assertIn(failure, page.run_all())
                self.assertEqual(page.skipped, skipped)
        self.assertIn("invalid syntax", self.page("```python pip>=9999\nx =\n```\n").run_all())

    def test_versions_are_those_of_the_interpreter(self):
        (self.directory / "thing-1.5.dist-info").mkdir()
        (self.directory / "thing-1.5.dist-info" / "METADATA").write_text("Name: thing\nVersion: 1.5\n")
        with unittest.mock.patch.dict(os.environ, PYTHONPATH=str(self.directory)):
            self.assertEqual(doc_blocks.version_of(sys.executable, "thing"), "1.5")
            self.assertEqual(doc_blocks.version_of(sys.executable, "no-such-thing"), "none")
        self.assertFalse(doc_blocks.is_at_least("none", "0.1"))

    def test_a_missing_package_is_told_and_flashjit_may_not_be_missing(self):
        page = self.page("```python\nimport no_such_package\n```\n")
        self.assertEqual((page.run_all(), page.skipped), ("", ["Python (no no_such_package)"]))
        self.assertIn("flashjit_absent", self.page("```python\nimport flashjit_absent\n```\n").run_all())

    @unittest.skipUnless(shutil.which("cc"), "no C compiler")
    def test_code_that_does_not_compile_fails(self):
        self.assertEqual(self.page("<!-- given: int x; -->\n```c\nx = 1;\n```\n").run_all(), "")
        self.assertIn("page.md:2: cc returned 1", self.page("```c\nx = 1;\n```\n").run_all())


if __name__ == "__main__":
    unittest.main()
