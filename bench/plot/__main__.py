# SPDX-License-Identifier: Apache-2.0
"""python3 bench/plot: draws docs/figures/ with matplotlib: <device>/*.svg from the records in bench/results/, so that
no figure is drawn by hand, and algorithm/*.svg, the pictures of docs/algorithm.md. Where a record lacks a measurement
there is no figure. Files that show the same are left as they are: matplotlib's versions write different bytes.
With --check nothing is written; the exit status is 1 if a figure shows something else than it would if drawn now, and
77 if there is no matplotlib."""

import argparse
import json
import os
import pathlib
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / ".deps" / "python"))  # scripts/install-dependencies --python


def pictures():
    """Path below docs/figures -> text, of docs/algorithm.md."""
    from algorithm import PICTURES
    return {f"algorithm/{name}.svg": draw() for name, draw in PICTURES.items()}


def measurements(records):
    """Path below docs/figures -> text, for {device: record}."""
    from figures import FIGURES
    files = {}
    for device, record in records.items():
        for name, draw in FIGURES.items():
            text = draw(record)
            if text:
                files[f"{device}/{name}.svg"] = text
    return files


def differences(files, directory):
    """Paths that are missing, too many or show something else."""
    from style import same_content
    present = {str(path.relative_to(directory)): path.read_text() for path in directory.glob("*/*.svg")}
    return sorted(path for path in files.keys() | present.keys()
                  if path not in files or path not in present or not same_content(files[path], present[path]))


def write(files, directory):
    for path in differences(files, directory):
        target = directory / path
        if path not in files:
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(files[path])


def require_matplotlib():
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        print(f"skipped: {error}; scripts/install-dependencies --python brings matplotlib")
        sys.exit(1 if os.environ.get("CI") == "true" else 77)


def main():
    parser = argparse.ArgumentParser(prog="bench/plot", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a figure is out of date")
    arguments = parser.parse_args()
    require_matplotlib()
    records = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "bench" / "results").glob("*.json"))}
    files, directory = pictures() | measurements(records), ROOT / "docs" / "figures"
    if not arguments.check:
        write(files, directory)
    elif stale := differences(files, directory):
        sys.exit(f"docs/figures is out of date: {', '.join(stale)}; run python3 bench/plot")


if __name__ == "__main__":
    main()
