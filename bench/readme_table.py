#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fills the tables of README.md from the records in bench/results/, so that no figure in it is typed by hand.

A table stands between <!-- table:DEVICE/NAME --> and <!-- /table -->, where bench/results/DEVICE.json is the record and
NAME is forward, 5090, jit or peers. With --check nothing is written and the exit status is 1 if a table is out of date."""

import argparse
import json
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
TABLE = re.compile(r"(<!-- table:(?P<device>[a-z0-9-]+)/(?P<name>[a-z0-9]+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def table(titles, rows):
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def by_shape(rows, lines):
    """A row for each head dim, mask and line, a column for each length. lines: title -> function of a result."""
    seqlens = sorted({row["seqlen"] for row in rows})
    shapes = sorted({(row["head_dim"], row["causal"]) for row in rows})
    cells = {(row["head_dim"], row["causal"], row["seqlen"]): row for row in rows}
    body = []
    for head_dim, causal in shapes:
        for title, show in lines.items():
            found = (cells.get((head_dim, causal, seqlen)) for seqlen in seqlens)
            shown = ["" if row is None else show(row) for row in found]
            body.append([str(head_dim), "causal" if causal else "full", title, *shown])
    return table(["head dim", "mask", "", *map(str, seqlens)], body)


def forward_table(steps):
    lines = {
        "TFLOPS": lambda row: f"{row['tflops']:.0f}",
        "of the mma.sync ceiling": lambda row: f"{100 * row['share_of_ceiling']:.0f} %",
    }
    return by_shape(steps["bench"]["forward"]["rows"], lines)


def ladder_table(steps):
    rows = [
        [row["step"], f"{row['median_us']:.0f}", f"{row['tflops']:.0f}", f"{100 * row['share_of_ceiling']:.1f} %",
         f"`{row['variant']}`"]
        for row in steps["bench"]["5090"]["rows"]
    ]
    return table(["step", "µs", "TFLOPS", "of speed of light", "variant"], rows)


def jit_table(steps):
    figures = {
        "compile_ms": ("cold compile, NVRTC alone", "ms"),
        "cold_ms": ("cold compile, until it is in the cache", "ms"),
        "load_ms": ("new engine, warm cache: until the first launch", "ms"),
        "first_call_ms": ("new engine, warm cache: until the first result", "ms"),
        "call_us": ("host cost of a later call", "µs"),
        "bare_launch_us": ("host cost of a bare `cuLaunchKernelEx`", "µs"),
    }
    rows = steps["bench"]["jit"]["rows"]
    body = []
    for key, (title, unit) in figures.items():
        values = [row[key] for row in rows if key in row]
        if values:
            body.append([title, f"{statistics.median(values):.2f} {unit}", f"{max(values):.2f} {unit}"])
    return table([f"over {len(rows)} default kernels", "median", "largest"], body)


def peers_table(steps):
    peers = steps["peers"]
    names = {"fa2": "FA2", "cudnn": "cuDNN"}
    lines = {"TFLOPS": lambda row: f"{row['tflops']['flashjit']:.0f}"}
    for peer in peers["summary"]:
        lines[f"÷ {names[peer]}"] = lambda row, peer=peer: f"{row['over'][peer]:.2f}" if peer in row["over"] else ""
    means = [
        f"÷ {names[peer]}: geometric mean {values['geometric_mean']:.2f}, smallest {values['minimum']:.2f}."
        for peer, values in peers["summary"].items()
    ]
    return by_shape(peers["rows"], lines) + "\n\n" + " ".join(means) + f" PyTorch {peers['torch']}."


TABLES = {"forward": forward_table, "5090": ladder_table, "jit": jit_table, "peers": peers_table}


def provenance(record):
    return (
        f"{record['device']}, CUDA driver {record['driver']}, NVRTC {record['nvrtc']}, {record['date']}, "
        f"kernel sources {record['sources'][:12]}."
    )


def filled(text, load_record):
    """The text with every table made anew."""

    def fill(match):
        record = load_record(match["device"])
        body = TABLES[match["name"]](record["steps"])
        return f"{match[1]}{body}\n\n{provenance(record)}\n{match[4]}"

    return TABLE.sub(fill, text)


def load_record(device):
    path = RESULTS / f"{device}.json"
    if not path.exists():
        sys.exit(f"{path}: there is no record; scripts/gpu-check writes it on a machine with that GPU")
    return json.loads(path.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a table is out of date")
    parser.add_argument("file", nargs="?", type=pathlib.Path, default=ROOT / "README.md")
    arguments = parser.parse_args()
    text = arguments.file.read_text()
    if text.count("<!-- table:") != len(TABLE.findall(text)):
        sys.exit(f"{arguments.file}: a table marker is not closed or not of the form <!-- table:DEVICE/NAME -->")
    new_text = filled(text, load_record)
    if new_text == text:
        return
    if arguments.check:
        sys.exit(f"{arguments.file}: tables differ from bench/results/; run bench/readme_table.py")
    arguments.file.write_text(new_text)


if __name__ == "__main__":
    main()
