# SPDX-License-Identifier: Apache-2.0
"""That links between the pages lead somewhere."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LINK = re.compile(r"\]\((?!https?://)([^()#\s]*)(?:#([^()\s]*))?\)")
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "cache" / "FORMAT.md"]


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


class Links(unittest.TestCase):
    def test_a_link_needs_a_file_and_a_heading(self):
        page = ROOT / "README.md"
        wrong = "[a](nowhere.md) [b](#no-such-heading) [c](docs/README.md#neither) `[d](code)`"
        self.assertEqual(len(list(broken(page, wrong))), 3)
        self.assertEqual(list(broken(page, "[e](docs/README.md#documentation) [f](https://example.org/x)")), [])

    def test_every_link_leads_somewhere(self):
        found = [problem for page in PAGES for problem in broken(page, page.read_text())]
        self.assertEqual(found, [])


if __name__ == "__main__":
    unittest.main()
