#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what forms/ says: PTX files, the inputs, and the index that scripts/gpu-vectors and the replay test
(emulator/tests/test_vectors.cpp) read. With --check it only says whether the files are those."""

import argparse
import dataclasses
import hashlib
import json
import pathlib
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from attention_cases import CASES  # noqa: E402
from forms import all_forms  # noqa: E402
from forms.form import BITS, padded  # noqa: E402

# Each module says what it needs, so that the older targets are met too. The emulator reads them all.
TARGETS = {"half": "sm_90", "comparisons": "sm_90", "conversions": "sm_90", "memory": "sm_90", "control": "sm_90",
           "warps": "sm_90", "matrix": "sm_90", "copies": "sm_90", "tensor_copies": "sm_90", "clusters": "sm_90",
           "wgmma": "sm_90a", "integer": "sm_80", "single": "sm_86"}
VERSION = "8.6"


class Pool:
    """The inputs of all forms; a part that stands in another one is not kept twice."""

    def __init__(self, parts):
        self.bytes = b""
        for part in sorted(set(map(padded, parts)), key=lambda part: (-len(part), part)):
            if part not in self.bytes:
                self.bytes += part

    def find(self, part):
        part = padded(part)
        return [self.bytes.index(part), len(part)]


def extent(value):
    return list(value) if isinstance(value, tuple) else [value]


def describe_map(map_):
    return {"element": map_.element, "buffer": map_.buffer, "sizes": map_.sizes, "byte_strides": map_.strides,
            "box": map_.box, "element_strides": map_.element_strides, "swizzle": map_.swizzle, "fill": map_.fill}


def describe(form, pool):
    """One line of the index. "in" and "initial_out" name parts of inputs.bin: offset and bytes."""
    line = {"name": form.name, "ptx": f"{form.module}.ptx", "entry": form.entry, "block": extent(form.block),
            "in": [pool.find(part) for part in form.inputs], "out_bytes": form.output_bytes}
    if form.compare != BITS:
        line["compare"] = form.compare
    if form.grid != 1:
        line["grid"] = extent(form.grid)
    if form.initial_output:
        line["initial_out"] = [pool.find(part) for part in form.initial_output]
    if form.maps:
        line["maps"] = [describe_map(map_) for map_ in form.maps]
    if form.finding:
        line["finding"] = form.finding
    if form.refused:
        line["refused"] = form.refused
    return line


def digest(files):
    """Of the forms and their inputs: results are those of this digest or of something else."""
    sha = hashlib.sha256()
    for name in sorted(files):
        sha.update(f"{name} {len(files[name])}\n".encode() + files[name])
    return sha.hexdigest()


def make_files():
    forms, lines, texts = all_forms(), [], {}
    pool = Pool(part for form in forms for part in form.inputs + form.initial_output)
    for form in forms:
        lines.append(describe(form, pool))
        head = f"// Made by make_forms.py.\n.version {VERSION}\n.target {TARGETS[form.module]}\n.address_size 64\n"
        texts.setdefault(f"{form.module}.ptx", [head]).append(form.text)
    files = {name: "\n".join(parts).encode() for name, parts in texts.items()}
    files["inputs.bin"] = pool.bytes
    cases = ",\n".join(json.dumps({"name": case.name} | dataclasses.asdict(case), separators=(",", ":"))
                       for case in CASES)
    files["attention.json"] = f"[\n{cases}\n]\n".encode()
    body = ",\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    files["index.json"] = f'{{"digest":"{digest(files)}","forms":[\n{body}\n]}}\n'.encode()
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a file differs")
    parser.add_argument("--directory", type=pathlib.Path, default=HERE / "data")
    arguments = parser.parse_args()
    files = make_files()
    if arguments.check:
        stale = [name for name, content in files.items()
                 if not (arguments.directory / name).exists() or (arguments.directory / name).read_bytes() != content]
        print("\n".join(f"make_forms.py: {name} is not what it would write" for name in stale), end="")
        return 1 if stale else 0
    arguments.directory.mkdir(exist_ok=True)
    for name, content in files.items():
        (arguments.directory / name).write_bytes(content)
    print(f"{len(all_forms())} forms, {sum(map(len, files.values()))} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
