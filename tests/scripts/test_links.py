# SPDX-License-Identifier: Apache-2.0
"""That links between the pages lead somewhere, and that a file has the names that a page sends readers there for."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LINK = re.compile(r"\]\((?!https?://)([^()#\s]*)(?:#([^()\s]*))?\)")
NAME_IN_FILE = re.compile(r"\[`(\w+)`\]\(((?!https?://)[^()#\s]*\.(?:cuh|h|cpp|py))\)")
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md"),
         ROOT / "cache" / "FORMAT.md"]


def without_code(text):
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def anchors(text):
    """Those that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page, text):
    for target, anchor in LINK.findall(without_code(text)):
        path = (page.parent / target).resolve() if target else page
        if not path.exists():
            yield f"{page.name}: there is no {target}"
        elif anchor and anchor not in anchors(path.read_text()):
            yield f"{page.name}: {target} has no heading for #{anchor}"


def names_not_there(page, text):
    """Links like [`run`](../templates/kernels/kernel.cuh) promise that the file defines the name or uses it."""
    for name, target in NAME_IN_FILE.findall(text):
        if not re.search(rf"\b{name}\b", (page.parent / target).read_text()):
            yield f"{page.name}: {target} has no {name}"


class Links(unittest.TestCase):
    def test_a_link_needs_a_file_and_a_heading(self):
        page = ROOT / "README.md"
        wrong = "[a](nowhere.md) [b](#no-such-heading) [c](docs/README.md#neither) `[d](code)`"
        self.assertEqual(len(list(broken(page, wrong))), 3)
        self.assertEqual(list(broken(page, "[e](docs/README.md#documentation) [f](https://example.org/x)")), [])

    def test_a_name_of_a_source_file_stands_in_it(self):
        page = ROOT / "docs" / "algorithm.md"
        link = "[`{}`](../templates/mma/online_softmax.cuh)"
        self.assertEqual(list(names_not_there(page, link.format("raise_maximum"))), [])
        self.assertEqual(len(list(names_not_there(page, link.format("raise_maxim")))), 1)
        text = page.read_text()
        self.assertGreater(len(NAME_IN_FILE.findall(text)), 20)
        self.assertEqual([name for file in PAGES for name in names_not_there(file, file.read_text())], [])

    def test_every_link_leads_somewhere(self):
        found = [problem for page in PAGES for problem in broken(page, page.read_text())]
        self.assertEqual(found, [])


if __name__ == "__main__":
    unittest.main()
