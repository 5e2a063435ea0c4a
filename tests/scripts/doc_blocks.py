#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the code blocks of README.md and docs/, so that no page shows what does not work.

A fence says how its block is run, in a directory of the page's own and in the page's order:

  ```sh              by bash; a command that fails fails the block
  ```cpp  ```c       a program (with main) is compiled, linked and run; other text is compiled as a function's body
  ```cmake           as part of a project that finds the installed package
  ```python          all of a page together, by the interpreter of --python, which has flashjit; without it Python and
                     what calls python are only checked
  ```LANGUAGE NAME   is not run, but the file NAME, which the page's commands find
  ```LANGUAGE gpu    needs a GPU or minutes: is run with --gpu; without it sh, Python, C and C++ are only checked
  ```python NAME>=1.2  needs that version of a package: without it the block is only checked, and that is told
  ```text            is not code, or cannot be run

A comment <!-- given: ... --> before a fence is code that the reader has to imagine before the block. The library is
installed in ~/flashjit and its command is on the PATH, as docs/tutorial.md has it; nothing else tells the compiler or the
loader of it. With --gpu only pages that have a block for it are run. Exit status 1: a block failed; 77: there is no
NVRTC."""

import argparse
import concurrent.futures
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import typing

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LANGUAGES = ("sh", "cpp", "c", "cmake", "python", "text")
COMPILERS = {"cpp": ("c++", "-std=c++17", "-Wall", "-Wextra"), "c": ("cc", "-std=c99", "-pedantic-errors")}
FENCE = re.compile(r"(?P<indent> *)```(?P<info>.*)")
NEED = re.compile(r"([\w-]+)>=([\d.]+)")
GIVEN = re.compile(r"<!-- given:((?:(?!-->).)*)-->\s*\Z", re.DOTALL)
SECONDS_PER_BLOCK = 300


class Block(typing.NamedTuple):
    line: int  # of its first line of code
    language: str
    gpu: bool
    file: str  # "" when it is to be run
    given: str
    text: str
    needs: tuple = ()  # of Python: packages and their least versions, (name, "1.2")


class BadFence(Exception):
    """A fence that this script does not understand; the message begins with its line."""


class BlockFailed(Exception):
    """The message is what the block printed."""


def parse_info(info, line):
    language, *words = info.split() or [""]
    if language not in LANGUAGES:
        raise BadFence(f"{line}: the language must be one of {', '.join(LANGUAGES)}, was '{language}'")
    needs = tuple(need.groups() for need in map(NEED.fullmatch, words) if need)
    files = [word for word in words if word != "gpu" and not NEED.fullmatch(word)]
    if len(files) > 1:
        raise BadFence(f"{line}: at most one file, 'gpu' and versions may follow the language, was '{info}'")
    if needs and language != "python":
        raise BadFence(f"{line}: versions are of Python's packages, was '{info}'")
    return language, "gpu" in words, files[0] if files else "", needs


def find_blocks(text):
    """The blocks of a page in their order, without what is text and no file."""
    lines = text.splitlines()
    found, index = [], 0
    while index < len(lines):
        opened = FENCE.fullmatch(lines[index])
        index += 1
        if not opened:
            continue
        language, gpu, file, needs = parse_info(opened["info"], index)
        end = next((i for i in range(index, len(lines)) if lines[i].strip() == "```"), None)
        if end is None:
            raise BadFence(f"{index}: the fence is not closed")
        given = GIVEN.search("\n".join(lines[:index - 1]))
        body = textwrap.dedent("\n".join(lines[index:end])) + "\n"
        if language != "text" or file:
            given = textwrap.dedent(given[1]) if given else ""
            found.append(Block(index + 1, language, gpu, file, given, body, needs))
        index = end + 1
    return found


def is_program(block):
    return re.search(r"\bint main\(", block.text) is not None


def as_source(block):
    """A program as it is; else a function with the given code and the block's, below the includes of both."""
    if is_program(block):
        return block.text
    lines = (block.given + block.text).splitlines()
    includes = [line for line in lines if line.lstrip().startswith("#include")]
    body = [line for line in lines if not line.lstrip().startswith("#include")]
    return "\n".join([*includes, "void block();", "void block() {", *body, "}"]) + "\n"


def joined(blocks):
    """Python blocks as one program whose lines have the page's numbers."""
    lines = []
    for block in blocks:
        lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    return "\n".join(lines) + "\n"


@functools.lru_cache(maxsize=None)
def version_of(python, package):
    """The one that an interpreter has; "none"."""
    text = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    found = subprocess.run([python, "-c", text], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else "none"


def is_at_least(version, least):
    """Of versions like 1.2.3; what is behind their numbers does not count."""
    numbers = [[int(number) for number in re.match(r"[\d.]*", text)[0].split(".") if number] for text in (version, least)]
    return numbers[0] >= numbers[1]


class Surroundings(typing.NamedTuple):
    """Where blocks run."""

    environment: dict
    gpu: bool = False
    python: str = ""  # none: Python is only checked
    missing: frozenset = frozenset()  # languages for which there is no tool here
    flags: tuple = ()  # that a compiler needs to find the library


class Page:
    """Runs the blocks of one page."""

    def __init__(self, path, blocks, surroundings, directory):
        self.path, self.blocks, self.surroundings, self.directory = path, blocks, surroundings, directory
        self.environment = {**surroundings.environment, "FLASHJIT_CACHE_DIR": str(directory / ".cache")}
        self.skipped = []

    def run(self, *command):
        done = subprocess.run(command, cwd=self.directory, env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                              timeout=SECONDS_PER_BLOCK)
        if done.returncode != 0:
            raise BlockFailed(f"{command[0]} returned {done.returncode}\n{done.stdout}")

    def lacking(self, block):
        """Of the packages that the block needs those which are older here."""
        found = ((name, least, version_of(self.surroundings.python, name)) for name, least in block.needs)
        return [f"{name} {version} for {least}" for name, least, version in found if not is_at_least(version, least)]

    def runs(self, block):
        needs_python = block.language == "python" or (block.language == "sh" and re.search(r"\bpython\b", block.text))
        if needs_python and (not self.surroundings.python or self.lacking(block)):
            return False
        return self.surroundings.gpu or not block.gpu

    def run_sh(self, block):
        mode = () if self.runs(block) else ("-n",)
        self.run("bash", *mode, "-euo", "pipefail", "-c", block.given + block.text)

    def run_compiled(self, block):
        compiler, *flags = COMPILERS[block.language]
        source = self.directory / f"block{block.line}.{block.language}"
        source.write_text(as_source(block))
        if not is_program(block):
            self.run(compiler, *flags, *self.surroundings.flags, "-Wno-unused", "-fsyntax-only", source)
            return
        program = source.with_suffix("")
        self.run(compiler, *flags, source, "-o", program, *self.surroundings.flags, "-lflashjit")
        if self.runs(block):
            self.run(program)

    def run_cmake(self, block):
        project = self.directory / f"project{block.line}"
        project.mkdir()
        head = "cmake_minimum_required(VERSION 3.24)\nproject(page LANGUAGES C CXX)\n"
        (project / "CMakeLists.txt").write_text(head + block.given + block.text)
        self.run("cmake", "-S", project, "-B", project / "build")

    def run_python(self, first):
        """All Python of the page, when its first block is reached."""
        blocks = [block for block in self.blocks if block.language == "python" and not block.file]
        if first is not blocks[0]:
            return
        compile(joined(blocks), str(self.path), "exec")
        chosen = [block for block in blocks if self.runs(block)]
        if self.surroundings.python:
            self.skipped += [f"Python from line {block.line} ({lack})" for block in blocks for lack in self.lacking(block)]
        if not chosen:
            return
        program = self.directory / "page.py"
        program.write_text(joined(chosen))
        try:
            self.run(self.surroundings.python, program)
        except BlockFailed as failure:
            missing = re.search(r"No module named '(?!flashjit)(\w+)'\s*\Z", str(failure))
            if not missing:
                raise
            self.skipped.append(f"Python (no {missing[1]})")

    def run_all(self):
        """What failed: line and message. Blocks after that one are not run, as they may need what it makes. What lacks its
        tool here is left out."""
        handlers = {"sh": self.run_sh, "cpp": self.run_compiled, "c": self.run_compiled, "cmake": self.run_cmake,
                    "python": self.run_python}
        for block in self.blocks:
            if block.file:
                (self.directory / block.file).write_text(block.text)
        for block in self.blocks:
            if block.file or block.language in self.surroundings.missing:
                continue
            try:
                handlers[block.language](block)
            except (BlockFailed, SyntaxError, subprocess.TimeoutExpired) as failure:
                return f"{self.path}:{block.line}: {failure}"
        return ""


def outcome(page):
    """One line or more for one page, and whether it passed."""
    failure = page.run_all()
    missing = sorted({block.language for block in page.blocks} & page.surroundings.missing)
    page.skipped += [f"{language} (nothing here for it)" for language in missing]
    checked = sum(not page.runs(block) for block in page.blocks)
    text = f"{page.path}: {len(page.blocks)} blocks"
    text += f", {checked} of them only checked" if checked else ""
    text += f", skipped: {', '.join(page.skipped)}" if page.skipped else ""
    complete = page.surroundings.gpu or not missing  # where there is a GPU there may be no tools
    return "\n".join(filter(None, (text, failure))), not failure and complete


def all_pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def prepended(variable, *paths):
    return os.pathsep.join(filter(None, (*map(str, paths), os.environ.get(variable))))


def environment(home, arguments):
    """That of a user who has the library installed, and NVRTC; the interpreter of --python is its python."""
    prefix = home / "flashjit"
    programs = [prefix / "bin"] + ([pathlib.Path(arguments.python).parent] if arguments.python else [])
    inherited = {name: value for name, value in os.environ.items()
                 if not name.startswith("FLASHJIT_") or name == "FLASHJIT_NVRTC"}
    added = {"HOME": str(home), "PATH": prepended("PATH", *programs), "CMAKE_PREFIX_PATH": str(prefix)}
    return inherited | added | ({} if arguments.gpu else {"FLASHJIT_DEVICE": "emulate"})


def compiler_flags(home):
    prefix = home / "flashjit"
    return (f"-I{prefix}/include", f"-I{home}/include", f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib")


def write_bundle_header(scratch):
    """What flashjit_embed_bundle() makes for a target, for blocks that are compiled alone."""
    header = scratch / "include" / "flashjit_bundles" / "kernels.h"
    header.parent.mkdir(parents=True)
    header.write_text("#include <string_view>\nnamespace flashjit_bundles {\nstd::string_view kernels() noexcept;\n}\n")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=pathlib.Path, required=True, metavar="DIR", help="a finished build")
    parser.add_argument("--gpu", action="store_true", help="run what needs a GPU; there must be one")
    parser.add_argument("--python", default="", metavar="PROGRAM", help="the path of an interpreter that has flashjit")
    parser.add_argument("pages", nargs="*", type=pathlib.Path, metavar="PAGE", help="default: README.md and docs/")
    return parser.parse_args()


def chosen_pages(arguments):
    """Path -> blocks. Exits when a fence is wrong, which needs nothing to be seen."""
    chosen = {}
    for path in arguments.pages or all_pages():
        try:
            blocks = find_blocks(path.read_text())
        except BadFence as bad:
            sys.exit(f"{path}:{bad}")
        if blocks and (not arguments.gpu or any(block.gpu for block in blocks)):
            chosen[path.resolve()] = blocks
    return chosen


def install(build, prefix):
    """Whether the build can be installed. A copy of one that was made on another machine cannot: links stand for it."""
    command = ("cmake", "--install", build, "--prefix", prefix)
    if shutil.which("cmake") and subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0:
        return True
    shutil.rmtree(prefix, ignore_errors=True)
    prefix.mkdir()
    for name, target in {"bin": build / "cli", "lib": build, "include": ROOT / "include"}.items():
        (prefix / name).symlink_to(target)
    return False


def has_nvrtc(command):
    text = subprocess.run([command, "info", "--json"], check=True, capture_output=True, text=True).stdout
    return bool(json.loads(text)["nvrtc"]["version"])


def main():
    arguments = parse_arguments()
    build = arguments.build_dir.resolve()
    pages = chosen_pages(arguments)
    if not has_nvrtc(build / "cli" / "flashjit"):
        print("there is no NVRTC")
        return 1 if os.environ.get("FLASHJIT_REQUIRE_NVRTC") == "1" else 77
    with tempfile.TemporaryDirectory(prefix="flashjit-docs-") as name:
        scratch = pathlib.Path(name)
        write_bundle_header(scratch)
        missing = {language for language, (compiler, *_) in COMPILERS.items() if not shutil.which(compiler)}
        if not install(build, scratch / "flashjit"):
            missing.add("cmake")
        surroundings = Surroundings(environment(scratch, arguments), arguments.gpu, arguments.python,
                                    frozenset(missing), compiler_flags(scratch))
        runs = []
        for number, (path, blocks) in enumerate(pages.items()):
            directory = scratch / f"page{number}"
            directory.mkdir()
            runs.append(Page(path.relative_to(ROOT), blocks, surroundings, directory))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            outcomes = list(pool.map(outcome, runs))
    for text, _ in outcomes:
        print(text)
    return 0 if all(passed for _, passed in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
