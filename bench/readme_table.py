#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fills the tables of README.md, docs/performance.md, docs/masks-and-scores.md, docs/kernels/large_heads.md and
docs/distributed.md from the records in bench/results/, so that no figure in them is typed by hand.

A table stands between <!-- table:DEVICE/NAME --> and <!-- /table -->, where bench/results/DEVICE.json is the record and
NAME is summary, hopper, mma, backward, serving, decode, large, mla, largebackward, window, scores, gallery, ablation, 5090,
jit, python or distributed. Where the record lacks the measurement there is no table. Peers that did not run beside the
record's flashjit come from bench/peers/DEVICE.json, and their columns say so.
With --check nothing is written and the exit status is 1 if a table is out of date."""

import argparse
import json
import pathlib
import re
import statistics
import sys

sys.dont_write_bytecode = True
import attention_gallery  # noqa: E402
import attention_large  # noqa: E402
from attention_backward import PAPER  # noqa: E402
from attention_decode import PAGE_SIZES, over_best  # noqa: E402
from attention_features import FEATURES  # noqa: E402
from attention_gallery import GALLERY  # noqa: E402
from attention_grid import BEST, Cell, PeerFigures, slug, summarise  # noqa: E402
from attention_scores import MOST, over_cudnn, over_flex, ratio, share_of_plain  # noqa: E402
from context_parallel_cells import MASKS, PASSES, RULE, SCHEMES, WINDOWED, length, over_model, over_peer  # noqa: E402
from context_parallel_cells import share_of_linear  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PEERS = ROOT / "bench" / "peers"
FILES = [ROOT / "README.md", ROOT / "docs" / "performance.md", ROOT / "docs" / "masks-and-scores.md",
         ROOT / "docs" / "kernels" / "large_heads.md", ROOT / "docs" / "distributed.md"]
TABLE = re.compile(r"(<!-- table:(?P<device>[a-z0-9-]+)/(?P<name>[a-z0-9]+) -->\n).*?(<!-- /table -->)", re.DOTALL)
SUMMARY_SEQLENS = (1024, 4096, 16384)
LARGE_NAMES = {"flashjit": "the default", "efficient": "PyTorch's memory-efficient back end"}
MLA_CACHES = {attention_large.MLA: "16 bits", attention_large.MLA_E4M3: "latent columns of e4m3"}
PEER_NAMES = {"cudnn": "cuDNN", "fa2": "FA2", "flash_attn": "flash-attn", "fa3": "FA3", "fa4": "FA4", BEST: "best peer"}


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


def measured(steps, *path):
    """What the record has under the path; None when a step did not run, was skipped or failed."""
    for key in path:
        if key not in steps:
            return None
        steps = steps[key]
    return steps if steps.get("rows") else None


def ladder_table(record):
    ladder = measured(record["steps"], "bench", "5090")
    titles = ["step", "µs", "TFLOPS", "of speed of light", "variant"]
    return ladder and table(titles, [
        [row["step"], f"{row['median_us']:.0f}", f"{row['tflops']:.0f}", f"{100 * row['share_of_ceiling']:.1f} %",
         f"`{row['variant']}`"]
        for row in ladder["rows"]
    ])


def ablation_table(record):
    ablation = measured(record["steps"], "bench", "ablation")
    titles = ["", "ping-pong", "TFLOPS", "FA3 paper (H100)", "variant"]
    return ablation and table(titles, [
        [row["step"], row["ping_pong"], f"{row['tflops']:.0f}", str(row.get("fa3_paper_tflops", "")),
         f"`{row['variant']}`"]
        for row in ablation["rows"]
    ])


def jit_table(record):
    jit = measured(record["steps"], "bench", "jit")
    if not jit:
        return None
    figures = {
        "compile_ms": ("cold compile, NVRTC alone", "ms"),
        "cold_ms": ("cold compile, until it is in the cache", "ms"),
        "user_look_up_us": ("look-up in the user's cache", "µs"),
        "system_look_up_us": ("look-up in a system cache", "µs"),
        "bundle_look_up_us": ("look-up in a bundle", "µs"),
        "load_ms": ("new engine, warm cache: until the first launch", "ms"),
        "first_call_ms": ("new engine, warm cache: until the first result", "ms"),
        "call_us": ("host cost of a later call", "µs"),
        "bare_launch_us": ("host cost of a bare `cuLaunchKernelEx`", "µs"),
    }
    rows = jit["rows"]
    body = []
    for key, (title, unit) in figures.items():
        values = [row[key] for row in rows if key in row]
        if values:
            body.append([title, f"{statistics.median(values):.2f} {unit}", f"{max(values):.2f} {unit}"])
    return table([f"over {len(rows)} default kernels", "median", "largest"], body)


def python_table(record):
    cost = record["steps"].get("host_cost", {})
    if "calls" not in cost:
        return None
    rows = [[f"`{name}`", f"{times['median_us']:.1f} µs", f"{times['min_us']:.1f} µs"]
            for name, times in cost["calls"].items()]
    text = f"Shape {tuple(cost['shape'])}, causal. PyTorch {cost['torch']}, Python {cost['python']}."
    return table(["host cost of a call from Python", "median", "smallest"], rows) + "\n\n" + text


def known_figures(device, of_pass="forward"):
    """PeerFigures of bench/peers; None when there is no file for the device."""
    path = PEERS / f"{slug(device)}.json"
    return PeerFigures(path.read_text(), of_pass) if path.exists() else None


class Ratios:
    """flashjit over its peers: those of the run, those that only bench/peers knows, and the closest of each cell."""

    def __init__(self, peers, figures):
        known = [figures.ratios(row) if figures else {} for row in peers["rows"]]
        ran = [{peer: ratio for peer, ratio in row["over"].items() if peer != BEST} for row in peers["rows"]]
        self.rows = [row | {"over": self.with_best(some | now)} for row, some, now in zip(peers["rows"], known, ran)]
        self.elsewhere = {peer for some in known for peer in some} - {peer for now in ran for peer in now}
        self.figures = figures

    @staticmethod
    def with_best(over):
        order = [peer for peer in PEER_NAMES if peer in over]
        return {peer: over[peer] for peer in order} | ({BEST: min(over.values())} if len(over) > 1 else {})

    def title(self, peer):
        """Of a column: what was not measured beside the rest says so."""
        if peer not in self.elsewhere:
            return f"÷ {PEER_NAMES[peer]}"
        return f"÷ {PEER_NAMES[peer]} ({self.figures.record['fa4']['date'] if peer == 'fa4' else 'another run'})"

    def notes(self):
        """What the titles cannot say."""
        record = self.figures.record if self.figures else None
        if self.figures and self.figures.of_pass == "backward":
            return self.notes_of_backward()
        notes = {
            "fa3": lambda: f"FA3 was measured in another run, on {record['date']} ({record['peers']['fa3']}), and stands "
                           "here by its ratio to cuDNN, which ran both times.",
            "fa4": lambda: f"÷ FA4 is of {record['fa4']['date']} ({record['fa4']['version']}), "
                           f"{record['fa4']['conditions'].partition(':')[0]}.",
        }
        return [note() for peer, note in notes.items() if peer in self.elsewhere]

    def notes_of_backward(self):
        record = self.figures.record
        versions = {"fa3": (record["date"], record["peers"]["fa3"]),
                    "fa4": (record["fa4"]["date"], record["fa4"]["version"])}
        return [f"{PEER_NAMES[peer]} was measured in another run, on {date} ({version}), and stands here by its ratio to "
                "cuDNN, which ran both times." for peer, (date, version) in versions.items() if peer in self.elsewhere]

    def describe(self, peer, values):
        by_head_dim = ", ".join(f"{mean:.2f} at {head_dim}" for head_dim, mean in values["by_head_dim"].items())
        return (
            f"{self.title(peer)}: geometric mean {values['geometric_mean']:.2f} ({by_head_dim}), "
            f"smallest {values['minimum']:.2f}."
        )


def peers_table(peers, ceiling, ceiling_title, figures):
    """flashjit beside peers. ceiling: what the share of TFLOPS is of."""
    ratios = Ratios(peers, figures)
    summary = summarise(ratios.rows)
    lines = {
        "TFLOPS": lambda row: f"{row['tflops']['flashjit']:.0f}",
        ceiling_title: lambda row: f"{100 * row['tflops']['flashjit'] / ceiling:.0f} %",
    }
    for peer in summary:
        lines[ratios.title(peer)] = lambda row, peer=peer: f"{row['over'][peer]:.2f}" if peer in row["over"] else ""
    described = [ratios.describe(*item) for item in summary.items()]
    text = " ".join([*described, f"PyTorch {peers['torch']}.", *ratios.notes()])
    return by_shape(ratios.rows, lines) + "\n\n" + text


def summary_table(record):
    """A row for each head dim and mask: some lengths of hopper_table, and its ratios over all lengths."""
    peers = measured(record["steps"], "peers", "default")
    if not peers:
        return None
    ratios = Ratios(peers, known_figures(record["device"]))
    shapes = sorted({(row["head_dim"], row["causal"]) for row in ratios.rows})
    names = list(summarise(ratios.rows))
    body = []
    for head_dim, causal in shapes:
        rows = [row for row in ratios.rows if (row["head_dim"], row["causal"]) == (head_dim, causal)]
        rates = {row["seqlen"]: row["tflops"]["flashjit"] for row in rows}
        means = summarise(rows)
        shown = [f"{rates[seqlen]:.0f}" if seqlen in rates else "" for seqlen in SUMMARY_SEQLENS]
        shown.append(f"{100 * max(rates.values()) / peers['gemm_tflops']:.0f} %")
        shown += [f"{means[name]['geometric_mean']:.2f}" if name in means else "" for name in names]
        body.append([str(head_dim), "causal" if causal else "full", *shown])
    lengths = [f"{seqlen} tokens" for seqlen in SUMMARY_SEQLENS]
    titles = ["head dim", "mask", *lengths, "best, of a bf16 GEMM", *map(ratios.title, names)]
    return "\n\n".join([table(titles, body), *([" ".join(ratios.notes())] if ratios.elsewhere else [])])


def mma_table(record):
    peers = measured(record["steps"], "peers", "mma")
    return peers and peers_table(peers, peers["mma_ceiling_tflops"], "of the mma.sync ceiling", None)


def hopper_table(record):
    peers = measured(record["steps"], "peers", "default")
    figures = known_figures(record["device"])
    return peers and peers_table(peers, peers["gemm_tflops"], "of a bf16 GEMM", figures)


def backward_table(record):
    """The shapes of the paper like hopper_table, and of the other groups what their sides say together."""
    backward = measured(record["steps"], "backward")
    paper = backward and [row for row in backward["rows"] if row["group"] == PAPER]
    if not paper:
        return None
    figures = known_figures(record["device"], "backward")
    text = peers_table({**backward, "rows": paper}, backward["gemm_tflops"], "of a bf16 GEMM", figures)
    return " ".join([text, *backward_notes(backward["summary"])])


def backward_notes(summary):
    titles = {"of_equal_heads": "32 heads on 8, of the rate with as many heads of keys as of queries",
              "over_share": "A window of 1024 keys at 16384 tokens, time over its share of the time without one",
              "f32_over_16_bits": "dk and dv in f32, time over that in 16 bits"}
    return [f"{title}: {values['geometric_mean']:.2f}, from {values['minimum']:.2f} to {values['maximum']:.2f}."
            for name, title in titles.items() if (values := summary.get(name))]


def serving_table(record):
    """A row for each prompt, in the order in which it was measured; decoding has a table of its own."""
    serving = measured(record["steps"], "serving")
    if not serving:
        return None
    names = [name for name in PEER_NAMES if any(name in row["over"] for row in serving["rows"])]
    body = []
    for row in serving["rows"]:
        cell = Cell.of(row)
        if cell.decodes:
            continue
        tflops = row["tflops"]["flashjit"]
        ratios = [f"{row['over'][name]:.2f}" if name in row["over"] else "" for name in names]
        body.append([str(cell.seqlen), str(cell.batch), f"{cell.heads} / {cell.heads_kv}",
                     f"{cell.microseconds(tflops):.0f} µs", f"{tflops:.0f}", *ratios])
    titles = ["tokens", "batch", "heads of q / of k and v", "time", "TFLOPS", *(f"÷ {PEER_NAMES[name]}" for name in names)]
    return table(titles, body) + f"\n\nPyTorch {serving['torch']}."


def decode_table(record):
    """A row for each cache of one sequence with 32 heads on 8, and for each large one."""
    decode = measured(record["steps"], "decode")
    if not decode:
        return None
    shown = [row for row in decode["rows"] if row["group"] == "small" and decode_shape(row)[1:] == (1, 32, 8)]
    shown += [row for row in decode["rows"] if row["group"] == "large"]
    body = [[str(keys), str(batch), f"{heads} / {heads_kv}", f"{row['us']['flashjit']:.1f} µs",
             f"{row['cache_bytes'] / row['us']['flashjit'] / 1e3:.0f} GB/s", f"{over_best(row):.2f}"]
            for (keys, batch, heads, heads_kv), row in {decode_shape(row): row for row in shown}.items()]
    titles = ["keys", "batch", "heads of q / of k and v", "time", "rate", "÷ best peer"]
    return table(titles, body) + "\n\n" + " ".join([*decode_notes(decode["summary"]), f"PyTorch {decode['torch']}."])


def decode_shape(row):
    return row["context"], row["batch"], row["heads"], row["heads_kv"]


def decode_notes(summary):
    means = [f"geometric mean of {values['cells']} {group} caches {values['geometric_mean']:.2f}, from "
             f"{values['minimum']:.2f} to {values['maximum']:.2f}"
             for group in ("large", "small") if (values := summary.get(f"{group}_over_best"))]
    pages = [f"{values['geometric_mean']:.2f} in pages of {size}"
             for size in PAGE_SIZES if (values := summary.get(f"pages_{size}_of_contiguous"))]
    notes = [f"÷ best peer: {'; '.join(means)}."]
    if pages:
        notes.append(f"Of the rate without pages: {', '.join(pages)}.")
    if values := summary.get("e4m3_of_16_bits"):
        notes.append(f"A cache of e4m3: {values['geometric_mean']:.2f} times the tokens a second, from "
                     f"{values['minimum']:.2f} to {values['maximum']:.2f} in {values['cells']} caches.")
    return notes


def rates_by_length(rows):
    """TFLOPS of large heads: a row for each mask and side, a column for each length. rows: (causal, seqlen, side -> rate)."""
    seqlens = sorted({seqlen for _, seqlen, _ in rows})
    cells = {(causal, seqlen): rates for causal, seqlen, rates in rows}
    body = []
    for causal in sorted({causal for causal, _ in cells}):
        for side, name in LARGE_NAMES.items():
            rates = [cells.get((causal, seqlen), {}).get(side) for seqlen in seqlens]
            body.append(["causal" if causal else "full", name, *("" if rate is None else f"{rate:.0f}" for rate in rates)])
    return table(["mask", "", *map(str, seqlens)], body)


def large_table(record):
    """Prompts of large heads."""
    large = measured(record["steps"], "large")
    rows = large and [row for row in large["rows"] if row["group"] == attention_large.PROMPTS]
    return rows and rates_by_length([(row["mask"] == "causal", row["context"], attention_large.rates(row))
                                     for row in rows]) + f"\n\nPyTorch {large['torch']}."


def mla_table(record):
    """A row for each cache of MLA, of 16 bits and of e4m3."""
    large = measured(record["steps"], "large")
    rows = large and [row for row in large["rows"] if row["group"] in MLA_CACHES]
    if not rows:
        return None
    sides = {attention_large.PAGES: "over pages of 64", attention_large.PAIRS: "pairs of blocks",
             attention_large.READ: "a plain read"}
    body = [[MLA_CACHES[row["group"]], str(row["batch"]), str(row["context"]),
             shown(row, attention_large.ours, "{:.1f} µs".format), shown(row, attention_large.tflops, "{:.0f}".format),
             *(shown(row, lambda row: row["us"].get(side), "{:.1f} µs".format) for side in sides)] for row in rows]
    notes = [f"PyTorch {large['torch']}."]
    if values := large["summary"].get("mla_e4m3_of_16_bits"):
        notes.insert(0, f"A cache with latent columns of e4m3: {values['geometric_mean']:.2f} times the tokens a second, from "
                        f"{values['minimum']:.2f} to {values['maximum']:.2f} in {values['cells']} caches.")
    return table(["cache", "batch", "keys", "the default", "TFLOPS", *sides.values()], body) + "\n\n" + " ".join(notes)


def large_backward_table(record):
    """Gradients of large heads."""
    gradients = measured(record["steps"], "large", "gradients")
    return gradients and rates_by_length([(row["causal"], row["seqlen"], row["tflops"]) for row in gradients["rows"]]) + (
        f"\n\nPyTorch {gradients['torch']}.")


def window_table(record):
    """A row for each head dim and family: with a window, without, and beside FlexAttention."""
    window = measured(record["steps"], "window")
    if not window:
        return None
    titles = ["head dim", "family", "without", "with", "share of the blocks", "time over that share"]
    body = [[str(row["head_dim"]), f"`{family}`", f"{values['plain_us']:.0f} µs", f"{values['window_us']:.0f} µs",
             f"{100 * values['share_of_blocks']:.1f} %", f"{values['over_share']:.2f}"]
            for row in window["rows"] for family, values in row["families"].items()]
    beside = "; ".join(f"{row['flex_us']:.0f} µs against {row['choice_us']:.0f} µs at head dim {row['head_dim']}, "
                       f"{row['over_flex']:.2f} times as long" for row in window["rows"])
    return (table(titles, body) + f"\n\nFlexAttention, in turns with what a call gets: {beside}. {window['seqlen']} "
            f"tokens, {window['window']} keys before the query. PyTorch {window['torch']}.")


def shown(row, measure, show="{:.2f}".format):
    """What a measurement of a row says; nothing where there is no row or it was not measured."""
    value = measure(row) if row else None
    return "" if value is None else show(value)


def microseconds(row):
    return row["us"].get("flashjit")


def scores_table(record):
    """A row for each head dim and feature, and what the summary of the run has beside that."""
    scores = measured(record["steps"], "scores")
    if not scores:
        return None
    cells = {(row["head_dim"], row["feature"], row["seqlen"]): row for row in scores["rows"]}
    seqlens = sorted({seqlen for _, _, seqlen in cells})

    body = []
    for head_dim, feature in dict.fromkeys((row["head_dim"], row["feature"]) for row in scores["rows"]):
        rows = [cells.get((head_dim, feature, seqlen)) for seqlen in seqlens]
        longest = rows[-1]
        body.append([str(head_dim), FEATURES[feature].title, shown(longest, microseconds, "{:.0f} µs".format),
                     shown(longest, share_of_plain), shown(longest, lambda row: share_of_plain(row, "mma")),
                     shown(longest, lambda row: ratio(row, "text")), shown(longest, over_cudnn),
                     *(shown(row, over_flex) for row in rows)])
    titles = ["head dim", "", f"time at {seqlens[-1]}", "of plain", "of plain, `mma`", "time as a text", "÷ cuDNN",
              *(f"÷ FlexAttention, {seqlen}" for seqlen in seqlens)]
    return "\n\n".join([table(titles, body), " ".join([*score_notes(scores), f"PyTorch {scores['torch']}."])])


def score_notes(scores):
    """Sentences about what stands in no cell of the table."""
    notes = []
    if flex := scores["summary"].get("over_flex"):
        notes.append(f"÷ FlexAttention: geometric mean {flex['geometric_mean']:.2f}, in which a cell counts as "
                     f"{flex['at_most']:g} at most, smallest {flex['minimum']:.2f} ({flex['smallest']}).")
    if masks := scores.get("block_masks"):
        each = ", ".join(f"{us:.0f} µs by {title}" for side, title in
                         (("flashjit", "the option"), ("text", "a text"), ("flex", "FlexAttention"))
                         if (us := masks["us"].get(side)))
        notes.append(f"A block mask of documents at {masks['seqlen']} tokens: {each}; dense attention takes "
                     f"{masks['us']['dense_full']:.0f} µs, causal {masks['us']['dense_causal']:.0f} µs.")
    if calls := scores.get("first_calls"):
        medians = [values["median_s"] for kind in calls["kinds"].values() for values in kind.values()]
        notes.append(f"The first call with a new text, on {calls['cores']} cores: {1e3 * min(medians):.0f} to "
                     f"{1e3 * max(medians):.0f} ms, medians.")
    if compiles := scores.get("compiles"):
        notes.append("Compiles for what is new: " + ", ".join(f"{what} {n}" for what, n in compiles.items()) + ".")
    return notes


def gallery_table(record):
    """A row for each head dim and function, its times at the largest length."""
    gallery = measured(record["steps"], "gallery")
    if not gallery:
        return None
    cells = {(row["head_dim"], row["function"], row["seqlen"]): row for row in gallery["rows"]}
    seqlens = sorted({seqlen for _, _, seqlen in cells})
    body = []
    for head_dim, name in dict.fromkeys((row["head_dim"], row["function"]) for row in gallery["rows"]):
        rows = [cells.get((head_dim, name, seqlen)) for seqlen in seqlens]
        longest, known = rows[-1], next(row for row in reversed(rows) if row)
        body.append([str(head_dim), title_with_numbers(known), "causal" if known["causal"] else "full",
                     shown(longest, lambda row: 100 * row["seen"], "{:.1f} %".format),
                     shown(longest, microseconds, "{:.0f} µs".format),
                     shown(longest, attention_gallery.tflops, "{:.0f}".format),
                     shown(longest, attention_gallery.over_plain),
                     *(shown(row, attention_gallery.over_flex) for row in rows)])
    titles = ["head dim", "", "mask", "pairs seen", f"time at {seqlens[-1]}", "TFLOPS of these pairs", "÷ plain",
              *(f"÷ FlexAttention, {seqlen}" for seqlen in seqlens)]
    return "\n\n".join([table(titles, body), " ".join([*gallery_notes(gallery), f"PyTorch {gallery['torch']}."])])


def title_with_numbers(row):
    numbers = ", ".join(f"{name} {value:g}" for name, value in row["numbers"].items())
    return GALLERY[row["function"]].title + (f": {numbers}" if numbers else "")


def gallery_notes(gallery):
    """Sentences about what stands in no cell of the table: the means, and why cells are empty."""
    notes = [f"÷ FlexAttention, {kind}: geometric mean {values['geometric_mean']:.2f}, in which a cell counts as "
             f"{MOST:g} at most, smallest {values['minimum']:.2f} ({values['smallest']})."
             for kind, values in gallery["summary"].items()]
    whys = {}
    for row in gallery["rows"]:
        for side, why in row["left_out"].items():
            whys.setdefault((side, why), []).append(attention_gallery.label(row))
    return notes + [f"Left out: {attention_gallery.SIDES[side]} of {'; '.join(labels)}: {why.rstrip('.')}."
                    for (side, why), labels in whys.items()]


def distributed_table(record):
    """A table for each number of GPUs, and a row for each cell: what the library chose, and each scheme beside the model."""
    parts = record["steps"].get("distributed", {}).get("gpus", {})
    bodies = [part_table(gpus, parts[gpus]) for gpus in sorted(parts, key=int) if parts[gpus]["rows"]]
    return "\n\n".join(bodies) or None


def part_table(gpus, part):
    rows = sorted(part["rows"], key=lambda row: (PASSES.index(row["pass"]), MASKS.index(row["mask"]), row["tokens"]))
    titles = ["pass", "mask", "tokens", "chosen", "time", "of linear",
              *(f"{scheme}, of linear (time over the model's)" for scheme in SCHEMES), "÷ PyTorch"]
    body = [[row["pass"], row["mask"], length(row["tokens"]), row["rule"],
             shown(row, lambda row: row["ms"].get(RULE), "{:.2f} ms".format),
             shown(row, lambda row: share_of_linear(row, RULE)),
             *(shown_scheme(row, scheme) for scheme in SCHEMES), shown(row, over_peer)] for row in rows]
    heads = f"{rows[0]['heads']} heads on {rows[0]['heads_kv']}"
    return f"{gpus} GPUs, {heads}:\n\n{table(titles, body)}\n\n{' '.join(parallel_notes(part))}"


def shown_scheme(row, scheme):
    share, model = (shown(row, lambda row, of=of: of(row, scheme)) for of in (share_of_linear, over_model))
    return f"{share} ({model})" if share else ""


def parallel_notes(part):
    """What of a number of GPUs stands in no row."""
    checks = [check for row in part["rows"] for check in row["checks"].values()]
    notes = [f"flashjit {part['version']}, PyTorch {part['torch']}, NCCL {part['nccl']}, {part['date']}, sources "
             f"{part['sources'][:12]}."]
    if checks:
        same = sum(check["same_bits"] for check in checks)
        notes.append(f"Largest error over its bound: {max(check['of_bound'] for check in checks):.2f}; the same bits in a "
                     f"second run: {same} of {len(checks)}.")
    bytes_of = [f"{row['pass']} {row['model'][row['rule']]['bytes'] / 2**20:.1f} MiB" for row in part["rows"]
                if row["mask"] == WINDOWED and row["rule"] in row["model"]]
    return notes + ([f"With the window a rank receives {', '.join(bytes_of)}."] if bytes_of else [])


TABLES = {  # name -> the step of the record that it shows, and the function that makes it
    "5090": ("bench", ladder_table),
    "ablation": ("bench", ablation_table),
    "jit": ("bench", jit_table),
    "mma": ("peers", mma_table),
    "hopper": ("peers", hopper_table),
    "summary": ("peers", summary_table),
    "backward": ("backward", backward_table),
    "serving": ("serving", serving_table),
    "decode": ("decode", decode_table),
    "large": ("large", large_table),
    "mla": ("large", mla_table),
    "largebackward": ("large", large_backward_table),
    "window": ("window", window_table),
    "scores": ("scores", scores_table),
    "gallery": ("gallery", gallery_table),
    "python": ("host_cost", python_table),
    "distributed": ("distributed", distributed_table),
}


def provenance(record, step):
    """Where and when a step of the record ran, and on which sources."""
    ran = record["steps"][step]
    return (f"{record['device']}, CUDA driver {record['driver']}, NVRTC {record['nvrtc']}, {ran['date']}, "
            f"kernel sources {ran['sources'][:12]}.")


def filled(text, load_record):
    """The text with every table made anew."""

    def fill(match):
        record = load_record(match["device"])
        step, make = TABLES[match["name"]]
        body = make(record)
        return f"{match[1]}{body}\n\n{provenance(record, step)}\n{match[4]}" if body else match[1] + match[4]

    return TABLE.sub(fill, text)


def load_record(device):
    path = RESULTS / f"{device}.json"
    if not path.exists():
        sys.exit(f"{path}: there is no record; scripts/gpu-check writes it on a machine with that GPU")
    return json.loads(path.read_text())


def refill(path, check):
    """Fills the tables of one file, or with check sees to it that nothing is to be filled."""
    text = path.read_text()
    if text.count("<!-- table:") != len(TABLE.findall(text)):
        sys.exit(f"{path}: a table marker is not closed or not of the form <!-- table:DEVICE/NAME -->")
    new_text = filled(text, load_record)
    if new_text == text:
        return
    if check:
        sys.exit(f"{path}: tables differ from bench/results/; run bench/readme_table.py")
    path.write_text(new_text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a table is out of date")
    parser.add_argument("files", nargs="*", type=pathlib.Path, metavar="FILE", default=FILES)
    arguments = parser.parse_args()
    for path in arguments.files:
        refill(path, arguments.check)


if __name__ == "__main__":
    main()
