# SPDX-License-Identifier: Apache-2.0
"""python3 bench/plot: draws docs/figures/<device>/*.svg from the records in bench/results/, so that no figure is drawn
by hand. Where a record lacks a measurement there is no figure. With --check nothing is written and the exit status is 1
if a figure is out of date."""

import argparse
import json
import pathlib
import sys

sys.dont_write_bytecode = True
from figures import FIGURES  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def drawn(records):
    """Path below docs/figures -> text, for {device: record}."""
    files = {}
    for device, record in records.items():
        for name, draw in FIGURES.items():
            text = draw(record)
            if text:
                files[f"{device}/{name}.svg"] = text
    return files


def differences(files, directory):
    """Paths that are missing, too many or of another content."""
    present = {str(path.relative_to(directory)): path.read_text() for path in directory.glob("*/*.svg")}
    return sorted(path for path in files.keys() | present.keys() if files.get(path) != present.get(path))


def write(files, directory):
    for path in differences(files, directory):
        target = directory / path
        if path not in files:
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(files[path])


def main():
    parser = argparse.ArgumentParser(prog="bench/plot", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a figure is out of date")
    arguments = parser.parse_args()
    records = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "bench" / "results").glob("*.json"))}
    files, directory = drawn(records), ROOT / "docs" / "figures"
    if not arguments.check:
        write(files, directory)
    elif stale := differences(files, directory):
        sys.exit(f"docs/figures differs from bench/results/: {', '.join(stale)}; run python3 bench/plot")


if __name__ == "__main__":
    main()
