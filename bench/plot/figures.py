# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/figures/<device>, each a function of a record of bench/results; None where it lacks what they
show."""

import json
import math
import pathlib
import statistics
import sys
import typing

BENCH = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCH))

from readme_table import measured, provenance  # noqa: E402
from style import (BLUE, GREEN, GREY, INK, PALE, VERMILION, WIDTH, add_axes, new_figure, spread, to_svg)  # noqa: E402

PEERS = {
    "best": ("best peer", VERMILION, (4, 2)),
    "cudnn": ("cuDNN", GREEN, (1, 1.5)),
    "fa2": ("FA2", VERMILION, (4, 2)),
}
TIMES = {1e-6: "1 µs", 1e-5: "10 µs", 1e-4: "100 µs", 1e-3: "1 ms", 1e-2: "10 ms", 0.1: "100 ms", 1: "1 s", 10: "10 s",
         60: "1 min", 600: "10 min", 3600: "1 h"}


def round_up(value, step):
    return math.ceil(value / step) * step


def spoken(seconds):
    """"57.6 µs", "1.4 s", "5 min"."""
    for unit, size in {"h": 3600, "min": 60, "s": 1, "ms": 1e-3, "µs": 1e-6}.items():
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.2f} µs"


def short_length(length):
    return f"{length // 1024}k" if length >= 1024 else str(length)


# --- Lines over lengths --------------------------------------------------------------------------------------------


class Series(typing.NamedTuple):
    name: str
    values: dict  # length -> y
    colour: str
    dashes: tuple = ()


def line_panel(axes, series, label_distance):
    """Each line has its name at its right end. label_distance: in units of y."""
    lengths = sorted({length for one in series for length in one.values})
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [short_length(length) for length in lengths])
    axes.set_xticks([], minor=True)
    axes.set_xlim(lengths[0] / 1.2, lengths[-1] * 1.05)
    axes.grid(axis="y", color=PALE, linewidth=0.8)
    for one in series:
        points = sorted(one.values.items())
        axes.plot(*zip(*points), color=one.colour, linewidth=1.6, dashes=one.dashes or (None, None))
    ends = spread([one.values[max(one.values)] for one in series], label_distance)
    for one, end in zip(series, ends):
        axes.text(lengths[-1] * 1.12, end, one.name, color=one.colour, verticalalignment="center")


def of_shape(rows, head_dim, causal, name):
    cells = [row for row in rows if (row["head_dim"], row["causal"]) == (head_dim, causal)]
    return {row["seqlen"]: row["tflops"][name] for row in cells if name in row["tflops"]}


def rates(rows, head_dim, causal, ceiling, ceiling_name):
    """The series of one panel; none when nothing of this shape was measured."""
    ours = of_shape(rows, head_dim, causal, "flashjit")
    if not ours:
        return []
    series = [Series("flashjit", ours, BLUE)]
    for name, (label, colour, dashes) in PEERS.items():
        values = of_shape(rows, head_dim, causal, name)
        if values:
            series.append(Series(label, values, colour, dashes))
    return series + [Series(ceiling_name, dict.fromkeys(ours, ceiling), GREY, (1, 2))]


def throughput(record, peers, ceiling, ceiling_name, title):
    """A panel for each mask and head dim: flashjit, its peers and the ceiling."""
    rows = peers["rows"]
    highest = round_up(max([ceiling] + [rate for row in rows for rate in row["tflops"].values()]), 200)
    figure = new_figure(400, title,
                        "TFLOPS by sequence length; bf16, 16384 tokens, hidden size 2048; a causal mask counts as half",
                        provenance(record, "peers"))
    for column, head_dim in enumerate(sorted({row["head_dim"] for row in rows})):
        for line, mask in enumerate(("no mask", "causal")):
            series = rates(rows, head_dim, mask == "causal", ceiling, ceiling_name)
            if not series:
                continue
            left, top = 34 + column * 218, 66 + line * 168
            axes = add_axes(figure, left, top, left + 138, top + 124)
            axes.set_title(f"head dim {head_dim}, {mask}", loc="left", fontsize=9, fontweight="bold")
            axes.set_ylim(0, highest)
            axes.set_yticks(range(0, int(highest) + 1, 200))
            line_panel(axes, series, label_distance=highest * 0.075)
    return to_svg(figure, title)


def hopper(record):
    peers = measured(record["steps"], "peers", "default")
    return peers and throughput(record, peers, peers["gemm_tflops"], "bf16 GEMM",
                                f"Forward throughput, {record['device']}")


def mma(record):
    peers = measured(record["steps"], "peers", "mma")
    return peers and throughput(record, peers, peers["mma_ceiling_tflops"], "mma.sync",
                                f"Forward throughput of the mma family, {record['device']}")


# --- Rows of ranges ------------------------------------------------------------------------------------------------


class Row(typing.NamedTuple):
    """A range from low to high, which may be one point."""

    title: str
    low: float
    high: float
    label: str
    colour: str


def range_figure(rows, title, subtitle, footer, left, right, row_height):
    """A row for each range: its title left of the scale, its label right of its end. Returns figure and axes."""
    bottom = 48 + row_height * len(rows)
    figure = new_figure(bottom + 38, title, subtitle, footer)
    axes = add_axes(figure, left, 48, right, bottom)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [row.title for row in rows], color=INK)
    axes.spines["bottom"].set_visible(False)
    axes.grid(axis="x", color=PALE, linewidth=0.8)
    for index, row in enumerate(rows):
        axes.plot([row.low, row.high], [index, index], color=row.colour, linewidth=3, marker="o", markersize=6)
        axes.annotate(row.label, (row.high, index), (8, 0), textcoords="offset points", color=row.colour,
                      verticalalignment="center", annotation_clip=False)
    return figure, axes


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
    title = "From nothing to a result: compiling one kernel, or a library ahead of time"
    subtitle = (f"blue: measured, median to slowest of {len(jit['rows'])} kernels; orange: reported by others, "
                "sources in bench/builds.json; logarithmic scale")
    rows = measured_times(jit) + reported_builds()
    figure, axes = range_figure(rows, title, subtitle, provenance(record, "bench"), 236, WIDTH - 22, 18)
    axes.set_xscale("log")
    axes.set_xlim(1e-6, 3e4)
    axes.set_xticks(list(TIMES), TIMES.values(), fontsize=7.5)
    axes.set_xticks([], minor=True)
    return to_svg(figure, title)


def host_cost(record):
    jit = measured(record["steps"], "bench", "jit")
    rows = [row for row in jit["rows"] if "call_us" in row] if jit else []
    if not rows:
        return None
    title = "Host cost of a call"
    subtitle = ("µs of host time: left a bare cuLaunchKernelEx of the same kernel, right the whole call (checks, "
                "choice of kernel, tensor maps, launch); default kernels")
    ranges = [
        Row(f"{row['problem'].removeprefix('fwd-bf16-')}, {row['variant'].split('-q')[0]}", row["bare_launch_us"],
            row["call_us"], f"{row['call_us']:.1f}", BLUE) for row in rows
    ]
    figure, axes = range_figure(ranges, title, subtitle, provenance(record, "bench"), 130, WIDTH - 60, 17)
    highest = round_up(max(row["call_us"] for row in rows), 2)
    axes.set_xlim(0, highest)
    ticks = range(0, int(highest) + 1, 2)
    axes.set_xticks(ticks, [f"{value} µs" for value in ticks])
    return to_svg(figure, title)


# --- The ladder ----------------------------------------------------------------------------------------------------


def ladder(record):
    steps = measured(record["steps"], "bench", "5090")
    if not steps:
        return None
    title = "The ladder: five steps of a write-up as variants of the mma family, and the default"
    figure = new_figure(260, title, "TFLOPS; batch 1, 8 heads, head dim 128, 4096 queries, 8192 keys, bf16; "
                        "in %: of a loop of nothing but mma.sync", provenance(record, "bench"))
    axes = add_axes(figure, 40, 54, WIDTH - 96, 216)
    rows, ceiling = steps["rows"], steps["mma_ceiling_tflops"]
    bars = axes.bar(range(len(rows)), [row["tflops"] for row in rows], width=0.62,
                    color=[GREEN if row["step"] == "default" else BLUE for row in rows])
    axes.bar_label(bars, [f"{row['tflops']:.0f}" for row in rows], padding=2, fontweight="bold")
    axes.set_xticks(range(len(rows)), [f"{row['step']}, {100 * row['share_of_ceiling']:.0f} %" for row in rows],
                    color=INK)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_ylim(0, round_up(ceiling, 100))
    axes.set_yticks(range(0, round_up(ceiling, 100) + 1, 100))
    axes.grid(axis="y", color=PALE, linewidth=0.8)
    axes.axhline(ceiling, color=GREY, linewidth=1.4, dashes=(4, 2))
    axes.annotate(f"mma.sync: {ceiling:.0f}", (1, ceiling), (4, 0), xycoords=("axes fraction", "data"),
                  textcoords="offset points", color=GREY, verticalalignment="center", annotation_clip=False)
    return to_svg(figure, title)


FIGURES = {
    "throughput": hopper,
    "throughput-mma": mma,
    "compile-time": compile_time,
    "host-cost": host_cost,
    "ladder": ladder,
}
