#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the digest of what decides a kernel's speed: the templates and the generator. A record in bench/results/ bears
it, so that a figure can be told to be of these sources or of older ones."""

import hashlib
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = {".cuh", ".h", ".cpp"}


def sources_digest(root=ROOT, folders=("templates", "generator")):
    digest = hashlib.sha256()
    paths = (path for folder in folders for path in (root / folder).rglob("*") if path.suffix in SUFFIXES)
    for path in sorted(paths, key=lambda path: path.relative_to(root).as_posix()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


if __name__ == "__main__":
    print(sources_digest())
