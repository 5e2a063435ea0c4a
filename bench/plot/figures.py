# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/figures, each a function of a record of bench/results; None where it lacks what they show."""

import json
import pathlib
import statistics
import sys

BENCH = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCH))

from chart import (BLUE, GREEN, GREY, VERMILION, Frame, Row, Scale, Series, footer, heading, line_panel,  # noqa: E402
                   range_rows, round_up, vertical_ticks)
from readme_table import measured, provenance  # noqa: E402
from svg import INK, Drawing  # noqa: E402

WIDTH = 900
PEERS = {
    "best": ("best peer", VERMILION, "7 3"),
    "cudnn": ("cuDNN", GREEN, "2 3"),
    "fa2": ("FA2", VERMILION, "7 3"),
}
TIMES = {1e-6: "1 µs", 1e-5: "10 µs", 1e-4: "100 µs", 1e-3: "1 ms", 1e-2: "10 ms", 0.1: "100 ms", 1: "1 s", 10: "10 s",
         60: "1 min", 600: "10 min", 3600: "1 h"}


def spoken(seconds):
    """"57.6 µs", "1.4 s", "5 min"."""
    for unit, size in {"h": 3600, "min": 60, "s": 1, "ms": 1e-3, "µs": 1e-6}.items():
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.2f} µs"


def of_shape(rows, head_dim, causal, name):
    cells = [row for row in rows if (row["head_dim"], row["causal"]) == (head_dim, causal)]
    return {row["seqlen"]: row["tflops"][name] for row in cells if name in row["tflops"]}


def rates(rows, head_dim, causal, ceiling, ceiling_name):
    """The series of one panel; none when nothing of this shape was measured."""
    ours = of_shape(rows, head_dim, causal, "flashjit")
    if not ours:
        return []
    series = [Series("flashjit", ours, BLUE)]
    for name, style in PEERS.items():
        values = of_shape(rows, head_dim, causal, name)
        if values:
            label, colour, dash = style
            series.append(Series(label, values, colour, dash))
    return series + [Series(ceiling_name, dict.fromkeys(ours, ceiling), GREY, "1 3")]


def throughput(record, peers, ceiling, ceiling_name, title):
    """A panel for each mask and head dim: flashjit, its peers and the ceiling."""
    rows = peers["rows"]
    highest = round_up(max([ceiling] + [rate for row in rows for rate in row["tflops"].values()]), 200)
    drawing = Drawing(WIDTH, 532, title, "Lines over sequence lengths, a panel for each head dimension and mask.")
    heading(drawing, title,
            "TFLOPS by sequence length; bf16, 16384 tokens, hidden size 2048; a causal mask counts as half")
    for column, head_dim in enumerate(sorted({row["head_dim"] for row in rows})):
        for line, mask in enumerate(("no mask", "causal")):
            left, top = 48 + column * 290, 86 + line * 226
            series = rates(rows, head_dim, mask == "causal", ceiling, ceiling_name)
            if series:
                frame = Frame(left, top, left + 192, top + 170)
                line_panel(drawing, frame, f"head dim {head_dim}, {mask}", series, highest, 200)
    footer(drawing, provenance(record, "peers"))
    return drawing.render()


def hopper(record):
    peers = measured(record["steps"], "peers", "default")
    return peers and throughput(record, peers, peers["gemm_tflops"], "bf16 GEMM",
                                f"Forward throughput, {record['device']}")


def mma(record):
    peers = measured(record["steps"], "peers", "mma")
    return peers and throughput(record, peers, peers["mma_ceiling_tflops"], "mma.sync",
                                f"Forward throughput of the mma family, {record['device']}")


def measured_times(jit):
    """What making and finding kernels takes: from the median to the slowest of the record's kernels."""
    figures = {
        "host cost of a call": ("call_us", 1e-6),
        "find the kernel in the cache": ("user_look_up_us", 1e-6),
        "new engine, warm cache: first result": ("first_call_ms", 1e-3),
        "compile the kernel a call needs": ("cold_ms", 1e-3),
    }
    rows = []
    for title, (key, unit) in figures.items():
        values = [row[key] * unit for row in jit["rows"] if key in row]
        if values:
            low, high = statistics.median(values), max(values)
            rows.append(Row(title, low, high, f"{spoken(low)} to {spoken(high)}", BLUE))
    return rows


def reported_builds():
    rows = []
    for build in json.loads((BENCH / "builds.json").read_text())["builds"]:
        for report in build["reports"]:
            low, high = report["seconds"]
            label = f"{spoken(low)} to {spoken(high)}" if high > low else spoken(low)
            rows.append(Row(f"build all of {build['name']}, {report['how']}", low, high, label, VERMILION))
    return rows


def compile_time(record):
    jit = measured(record["steps"], "bench", "jit")
    if not jit:
        return None
    rows = measured_times(jit) + reported_builds()
    drawing = Drawing(WIDTH, 114 + 24 * len(rows), "Compile time",
                      "A row for each step, its time on a logarithmic scale.")
    heading(drawing, "From nothing to a result: compiling one kernel, or a library ahead of time",
            f"blue: measured, median to slowest of {len(jit['rows'])} kernels; orange: reported by others, "
            "sources in bench/builds.json; logarithmic scale")
    x = Scale(1e-6, 3e4, 312, WIDTH - 30, logarithmic=True)
    bottom = 64 + 24 * len(rows)
    vertical_ticks(drawing, x, 64, bottom, TIMES)
    range_rows(drawing, x, 64, rows)
    footer(drawing, provenance(record, "bench"))
    return drawing.render()


def host_cost(record):
    jit = measured(record["steps"], "bench", "jit")
    rows = [row for row in jit["rows"] if "call_us" in row] if jit else []
    if not rows:
        return None
    drawing = Drawing(WIDTH, 114 + 22 * len(rows), "Host cost of a call",
                      "Two points for each kernel: a bare launch and a whole call, in microseconds.")
    heading(drawing, "Host cost of a call", "µs of host time: left a bare cuLaunchKernelEx of the same kernel, "
            "right the whole call (checks, choice of kernel, tensor maps, launch); default kernels")
    x = Scale(0, round_up(max(row["call_us"] for row in rows), 2), 290, WIDTH - 120)
    bottom = 64 + 22 * len(rows)
    vertical_ticks(drawing, x, 64, bottom, {value: f"{value} µs" for value in range(0, int(x.high) + 1, 2)})
    range_rows(drawing, x, 64, [
        Row(f"{row['problem'].removeprefix('fwd-bf16-')}, {row['variant'].split('-q')[0]}", row["bare_launch_us"],
            row["call_us"], f"{row['call_us']:.1f}", BLUE) for row in rows
    ], height=22)
    footer(drawing, provenance(record, "bench"))
    return drawing.render()


def ladder(record):
    steps = measured(record["steps"], "bench", "5090")
    if not steps:
        return None
    ceiling = steps["mma_ceiling_tflops"]
    drawing = Drawing(WIDTH, 340, "The ladder v1 to v5", "A bar for each step, in TFLOPS, below the measured ceiling.")
    heading(drawing, "The ladder: five steps of a write-up as variants of the mma family, and the default",
            "TFLOPS; batch 1, 8 heads, head dim 128, 4096 queries, 8192 keys, bf16; "
            "in %: of a loop of nothing but mma.sync")
    y = Scale(0, round_up(ceiling, 100), 290, 70)
    for value in range(0, int(y.high) + 1, 100):
        drawing.line(60, y(value), WIDTH - 130, y(value))
        drawing.text(52, y(value) + 4, str(value), 11, GREY, "end")
    for index, row in enumerate(steps["rows"]):
        left, top = 84.0 + index * 112, y(row["tflops"])
        drawing.rectangle(left, top, 72, 290 - top, GREEN if row["step"] == "default" else BLUE)
        drawing.text(left + 36, top - 7, f"{row['tflops']:.0f}", 12, INK, "middle", font_weight="bold")
        drawing.text(left + 36, 307, f"{row['step']}, {100 * row['share_of_ceiling']:.0f} %", 12, INK, "middle")
    drawing.line(60, y(ceiling), WIDTH - 130, y(ceiling), GREY, 2, stroke_dasharray="6 3")
    drawing.text(WIDTH - 124, y(ceiling) + 4, f"mma.sync: {ceiling:.0f}", 11, GREY)
    footer(drawing, provenance(record, "bench"))
    return drawing.render()


FIGURES = {
    "throughput": hopper,
    "throughput-mma": mma,
    "compile-time": compile_time,
    "host-cost": host_cost,
    "ladder": ladder,
}
