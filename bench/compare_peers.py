#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""flashjit beside PyTorch's SDPA back ends, alternately in one process, on the forward grid of the FlashAttention-3
paper: 16384 tokens, hidden size 2048, bf16. Each cell is checked before it is timed. Needs a GPU and PyTorch.

The best peer of a cell is cuDNN as measured now times the ratio of the best known peer to cuDNN, which
bench/peers/<device>.json has of FlashAttention-3, too.

Timing: random normal inputs in (batch, seqlen, heads, head_dim) layout; L2 flushed before each launch by a memset of
256 MB; events around the launch; medians. Neither side writes the log-sum-exp. The sides of a cell take turns, each
turn begins with launches that are not counted, and the host does not wait before the whole cell is queued: a pause
between launches lets the GPU cool and clock higher than it does in steady use, and by different amounts for different
kernels (3 to 10 % on an H200)."""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import statistics
import sys

sys.dont_write_bytecode = True
from attention_grid import BEST, HEAD_DIMS, HIDDEN, MASKS, QUICK_SEQLENS, SEQLENS, TOKENS  # noqa: E402
from attention_grid import PeerFigures, grid, parse_variants, result, slug, summarise  # noqa: E402
from flashjit_c import Library  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = {"fa2": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
DEFAULT = "default"  # the variant that the library chooses
FLUSHED_BYTES = 256 << 20
TURNS = 4  # of each side of a cell
UNCOUNTED = 0.2  # of a turn: until the clock is what this side makes it
CEILING_SIZES = (4096, 8192)  # of the square GEMM that stands for the speed of light
# Of an output element against FA2, relative where its size is above 1: rounding of P and of the output to bf16.
MAX_DIFFERENCE = 0.02


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    library = ROOT / "build" / "release" / "libflashjit.so"
    parser.add_argument("--library", type=pathlib.Path, default=library, help="%(default)s")
    parser.add_argument("--family", choices=("default", "mma", "hopper"), default="default",
                        help="default: what the library chooses; others: the best of bench/variants/FAMILY.txt")
    parser.add_argument("--variants", type=pathlib.Path, metavar="FILE",
                        help="time each variant that FILE lists for a cell, and take the best; lines: head_dim mask "
                        "variant [shortest-longest]")
    parser.add_argument("--peer", nargs="*", choices=tuple(PEERS), default=["cudnn"], help="peers to run (cudnn)")
    parser.add_argument("--peers-file", type=pathlib.Path, metavar="FILE",
                        help="figures of the best peers; default: bench/peers/<device>.json, if there is one")
    parser.add_argument("--grid", choices=("full", "quick"), default="full", help="quick: two lengths (%(default)s)")
    parser.add_argument("--head-dim", nargs="+", type=int, choices=HEAD_DIMS, default=HEAD_DIMS)
    parser.add_argument("--mask", nargs="+", choices=MASKS, default=MASKS)
    parser.add_argument("--seqlen", nargs="+", type=int, choices=SEQLENS, help="default: those of the grid")
    parser.add_argument("--seconds", type=float, default=0.25, help="GPU time of each side of a cell (%(default)s)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results there")
    arguments = parser.parse_args(argv)
    if arguments.seconds <= 0:
        parser.error(f"--seconds must be above 0, was {arguments.seconds}")
    if arguments.family != "default" and arguments.variants:
        parser.error("--variants must not be given with --family mma or hopper, which has a file of its own")
    if arguments.family != "default":
        arguments.variants = ROOT / "bench" / "variants" / f"{arguments.family}.txt"
    arguments.seqlen = arguments.seqlen or (QUICK_SEQLENS if arguments.grid == "quick" else SEQLENS)
    return arguments


def turn_length(milliseconds, seconds):
    """Launches of one turn, given the time of a launch with its flush: (uncounted, counted)."""
    launches = 1000 * seconds / TURNS / milliseconds
    uncounted = max(1, round(UNCOUNTED * launches))
    return uncounted, max(3, round(launches) - uncounted)


class Stopwatch:
    """Times functions that enqueue work, against each other."""

    def __init__(self, torch, seconds):
        self.torch = torch
        self.seconds = seconds
        self.flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")

    def queue(self, launch):
        """One launch with a cold L2, and the events around it."""
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flushed.zero_()
        start.record()
        launch()
        stop.record()
        return start, stop

    def estimate(self, launch):
        """Milliseconds of a launch with its flush, roughly."""
        launches = 3
        self.queue(launch)
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(launches):
            self.queue(launch)
        end.record()
        self.torch.cuda.synchronize()
        return begin.elapsed_time(end) / launches

    def milliseconds(self, launchers):
        """name -> median of its launches. launchers: name -> function."""
        lengths = {name: turn_length(self.estimate(launch), self.seconds) for name, launch in launchers.items()}
        events = {name: [] for name in launchers}
        names = list(launchers)
        for turn in range(TURNS):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                uncounted, counted = lengths[name]
                for _ in range(uncounted):
                    self.queue(launchers[name])
                events[name] += [self.queue(launchers[name]) for _ in range(counted)]
        self.torch.cuda.synchronize()
        return {name: statistics.median(a.elapsed_time(b) for a, b in pairs) for name, pairs in events.items()}

    def gemm_tflops(self):
        """The rate of the faster of some large bf16 GEMMs."""
        torch = self.torch
        rates = []
        for size in CEILING_SIZES:
            a, b = (torch.randn((size, size), dtype=torch.bfloat16, device="cuda") for _ in range(2))
            rates.append(2 * size**3 / self.milliseconds({"gemm": lambda a=a, b=b: torch.mm(a, b)})["gemm"] / 1e9)
        return max(rates)


class Comparison:
    """Runs cells on the current CUDA device."""

    def __init__(self, arguments, listed):
        import torch
        import torch.nn.attention

        self.torch = torch
        self.peers = arguments.peer
        self.listed = listed
        self.library = Library(arguments.library)
        self.device = torch.cuda.get_device_name(0)
        self.stopwatch = Stopwatch(torch, arguments.seconds)
        torch.manual_seed(0)
        shape = (TOKENS * HIDDEN,)
        self.memory = [torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(3)]
        self.memory.append(torch.empty(shape, dtype=torch.bfloat16, device="cuda"))

    def tensors(self, cell):
        """q, k, v, out: every cell has the same number of elements."""
        return [tensor.view(cell.shape()) for tensor in self.memory]

    def spellings(self, cell):
        if self.listed is None:
            return [DEFAULT]
        return list(dict.fromkeys(variant.spelling for variant in self.listed if variant.is_for(cell)))

    def ours(self, cell, spelling):
        stream = self.torch.cuda.current_stream().cuda_stream
        return self.library.launcher(
            self.tensors(cell), cell.causal, stream, variant=None if spelling == DEFAULT else spelling
        )

    def peer(self, cell, name):
        torch = self.torch
        back_end = getattr(torch.nn.attention.SDPBackend, PEERS[name])
        # The same memory, seen as [batch, heads, seqlen, head_dim].
        views = [tensor.transpose(1, 2) for tensor in self.tensors(cell)[:3]]
        attention = torch.nn.functional.scaled_dot_product_attention

        def launch():
            with torch.nn.attention.sdpa_kernel([back_end]):
                return attention(*views, is_causal=cell.causal)

        return launch

    def make_kernels(self, cells):
        """Compiles in parallel what the cells need. What cannot be made is told when its cell is run."""
        launchers = [self.ours(cell, spelling) for cell in cells for spelling in self.spellings(cell)]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            concurrent.futures.wait([pool.submit(launch) for launch in launchers])
        self.torch.cuda.synchronize()

    def require_close(self, name, out, expected):
        """Written so that NaN fails."""
        distance = (out.float() - expected.float()).abs() / expected.float().abs().clamp(min=1.0)
        difference = distance.max().item()
        if not difference < MAX_DIFFERENCE:
            raise RuntimeError(f"{name} differs from FA2 by {difference:.3g}: not timed")

    def checked(self, cell):
        """What can run the cell, each checked: name -> launch function. A peer or a variant that cannot is told and
        left out; the library's own choice must be right."""
        expected = self.peer(cell, "fa2")().transpose(1, 2)
        out = self.tensors(cell)[3]
        launchers = {}
        for name in self.spellings(cell) + self.peers:
            launch = self.peer(cell, name) if name in PEERS else self.ours(cell, name)
            out.fill_(math.nan)
            try:
                returned = launch()
                self.require_close(name, out if returned is None else returned.transpose(1, 2), expected)
            except RuntimeError as error:
                if name == DEFAULT:
                    raise RuntimeError(f"{cell}: {error}") from error
                print(f"{cell}: {name}: left out: {str(error).splitlines()[0]}", file=sys.stderr)
                continue
            launchers[name] = launch
        return launchers

    def run(self, cell, figures):
        """The row of the cell, or None when no variant of flashjit can run it."""
        launchers = self.checked(cell)
        ours = [name for name in launchers if name not in PEERS]
        if not ours:
            return None
        times = self.stopwatch.milliseconds(launchers)
        return result(cell, {name: cell.flops() / ms / 1e9 for name, ms in times.items()}, ours, figures)


def read_figures(path, device):
    """PeerFigures and the file they are from; (None, None) when there is none for the device."""
    path = path or ROOT / "bench" / "peers" / f"{slug(device)}.json"
    if not path.exists() and path.parent == ROOT / "bench" / "peers":
        return None, None
    return PeerFigures(path.read_text()), path


def format_header(peers):
    titles = ["flashjit", "% of peak", *peers, *(f"/{peer}" for peer in peers)]
    return f"{'':17}  " + "".join(f"{title:>10}" for title in titles)


def format_row(cell, row, peers, ceiling):
    def column(values, show):
        return "".join(f"{show(values[peer]) if peer in values else '-':>10}" for peer in peers)

    ours = row["tflops"]["flashjit"]
    text = f"{cell}  {ours:10.1f}{100 * ours / ceiling:9.1f}%"
    text += column(row["tflops"], "{:.1f}".format) + column(row["over"], "{:.3f}".format)
    text += f"  {row['variant']}" if row["variant"] != DEFAULT else ""
    for name, rate in row.get("variants", {}).items():
        text += f"\n{'':17}  {rate:10.1f}  {name}"
    return text


def format_summary(peer, values):
    by_head_dim = ", ".join(f"d{head_dim} {mean:.3f}" for head_dim, mean in values["by_head_dim"].items())
    return (
        f"flashjit / {peer}: geometric mean {values['geometric_mean']:.3f} ({by_head_dim}), "
        f"minimum {values['minimum']:.3f}, {values['cells']} cells"
    )


def new_record(comparison, arguments, figures):
    torch = comparison.torch
    record = {
        "device": comparison.device,
        "version": comparison.library.version(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "family": arguments.family,
        "gemm_tflops": comparison.stopwatch.gemm_tflops(),
        "mma_ceiling_tflops": comparison.library.mma_ceiling(),
    }
    if figures:
        record["best_peers"] = {key: figures.record[key] for key in ("date", "conditions", "peers")}
    return record


def describe_run(comparison, arguments, ceiling, figures_path):
    peak = "a loop of mma.sync" if arguments.family == "mma" else "a bf16 GEMM"
    return (
        f"{comparison.device}: forward, bf16, {TOKENS} tokens, TFLOPS; peak: {ceiling:.0f}, {peak}; "
        f"best peers: {figures_path or 'not known'}"
    )


def measure(comparison, cells, figures, show):
    """The rows of the cells; each is shown when it is there."""
    rows = []
    for cell in cells:
        row = comparison.run(cell, figures)
        if row is None:
            print(f"{cell}: no variant can run it", file=sys.stderr)
            continue
        rows.append(row)
        print(show(cell, row), flush=True)
    if not rows:
        raise RuntimeError("no variant can run any of the cells")
    return rows


def main():
    arguments = parse_arguments()
    listed = parse_variants(arguments.variants.read_text(), arguments.variants) if arguments.variants else None
    comparison = Comparison(arguments, listed)
    figures, figures_path = read_figures(arguments.peers_file, comparison.device)
    cells = grid(arguments.head_dim, arguments.mask, arguments.seqlen)
    comparison.make_kernels(cells)
    record = new_record(comparison, arguments, figures)
    ceiling = record["mma_ceiling_tflops" if arguments.family == "mma" else "gemm_tflops"]
    peers = arguments.peer + ([BEST] if figures and "cudnn" in arguments.peer else [])
    print(describe_run(comparison, arguments, ceiling, figures_path))
    print(format_header(peers), flush=True)
    record["rows"] = measure(comparison, cells, figures, lambda cell, row: format_row(cell, row, peers, ceiling))
    record["summary"] = summarise(record["rows"])
    for peer, values in record["summary"].items():
        print(format_summary(peer, values))
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, OSError, ValueError) as error:
        sys.exit(f"compare_peers: {error}")
