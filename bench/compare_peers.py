#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""flashjit beside cuDNN and FlashAttention on this GPU, in turns and in one process: prints a table. Needs PyTorch.

Peers are PyTorch's back ends for cuDNN and FlashAttention-2, and FlashAttention-2, -3 and -4 as packages (flash_attn,
flash_attn_interface, flash_attn.cute) where they are installed. The grid full is the forward grid of the FlashAttention-3
paper: 16384 tokens, hidden size 2048; serving has grouped heads: prompts, and single queries on long caches of keys. All
is bf16, and each cell is checked before it is timed. A ratio above 1 means that flashjit is faster.

The grid scores has scores and masks: causal, head dims 64 and 128, beside FlexAttention, cuDNN and FlashAttention-2 where
they have the same, beside flashjit without it, and, at 16384 tokens, in the mma family. It calls the Python package,
checks rows against attention in float32, and writes its --json anew after each cell. It also tells what block masks
cost, how long the first call with a new text takes, and how many compiles new values and lengths bring. The grid gallery
has the functions of docs/masks-and-scores.md, measured likewise: at 4096 and 16384 tokens, beside FlexAttention and
flashjit without them.

--pass backward times the gradients of q, k and v alone, without the forward that they need, on the same shapes, beside
PyTorch's cuDNN and FlashAttention-2, by the Python package; each side's are compared with FlashAttention-2's first. FLOPs
are 2.5 times those of forward. Beside the 36 cells (--cells paper) it has grouped heads beside equal ones, a window beside
none, and dk and dv in f32 beside 16 bits; --grid quick: the paper's shapes at two lengths.

--dtype e4m3 gives flashjit queries, keys and values of e4m3, and peers the same numbers in bf16, on the same shapes and
(--cells longer) on the lengths that the FlashAttention-3 paper has for e4m3; with fast and with exact sums. "best" is then
FlashAttention-3 in e4m3. Each head's output is compared with that of a peer first.

Where the file of figures of this GPU (peers/<device>.json beside this script) has a cell, "best" is cuDNN as measured
now times the ratio of the best peer to cuDNN in that file, which knows FlashAttention-3 and, backward, -4, too.

Timing: random normal inputs in (batch, seqlen, heads, head_dim) layout; L2 flushed before each launch by a memset of
256 MB; events around the launch. Neither side writes the log-sum-exp. The sides of a cell take turns, each turn begins
with launches that are not counted, and the host does not wait before the whole cell is queued: a pause between launches
lets the GPU cool and clock higher than it does in steady use, and by different amounts for different kernels (3 to 10 %
on an H200). So does a side that draws little power, for the one after it (5 to 10 %): hence each turn has the sides in
another order, drawn such that all have much the same neighbours, and the same in each run. A side's time is the mean
over its turns of a turn's median."""

import argparse
import collections
import concurrent.futures
import importlib.util
import itertools
import json
import math
import os
import pathlib
import random
import statistics
import sys

sys.dont_write_bytecode = True
import attention_backward_run  # noqa: E402
import attention_decode_run  # noqa: E402
import attention_e4m3_run  # noqa: E402
import attention_gallery_run  # noqa: E402
import attention_large_run  # noqa: E402
import attention_peers  # noqa: E402
import attention_ragged_run  # noqa: E402
import attention_scores_run  # noqa: E402
from attention_backward import PAPER, backward_grid  # noqa: E402
from attention_backward import GROUPS as BACKWARD_GROUPS  # noqa: E402
from attention_decode import GROUPS, decode_grid  # noqa: E402
from attention_e4m3 import GROUPS as E4M3_GROUPS  # noqa: E402
from attention_e4m3 import PAPER as E4M3_PAPER  # noqa: E402
from attention_e4m3 import e4m3_grid  # noqa: E402
from attention_gallery import GALLERY, gallery_grid  # noqa: E402
from attention_grid import BEST, GRIDS, HEAD_DIMS, MASKS, QUICK_SEQLENS, PeerFigures  # noqa: E402
from attention_grid import parse_variants, result, slug, summarise  # noqa: E402
from attention_large import GROUPS as LARGE_GROUPS  # noqa: E402
from attention_large import HEAD_DIMS as LARGE_HEAD_DIMS  # noqa: E402
from attention_large import large_grid  # noqa: E402
from attention_peers import ALL_BACKWARD_PEERS, DECODE_PEERS, E4M3_PEERS, GALLERY_PEERS, LARGE_PEERS, PEERS  # noqa: E402
from attention_peers import RAGGED_PEERS, SCORE_PEERS  # noqa: E402
from attention_ragged import BATCHES, ragged_grid  # noqa: E402
from attention_scores import FEATURES, score_grid  # noqa: E402
from flashjit_c import Library  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
BUILT = HERE.parent / "build" / "release" / "libflashjit.so"
# The grids that are not of plain attention and run the Python package.
SCORES, GALLERY_GRID, RAGGED, DECODE, LARGE = "scores", "gallery", "ragged", "decode", "large"
FORWARD, BACKWARD = "forward", "backward"  # the passes; the latter has a grid of its own
BF16, E4M3 = "bf16", "e4m3"  # likewise
OF_OPTIONS = {BACKWARD: "--pass backward", E4M3: "--dtype e4m3"}  # the grids that are not asked for by --grid
CELL_NAMES = {SCORES: FEATURES, GALLERY_GRID: GALLERY, RAGGED: BATCHES, DECODE: GROUPS, LARGE: LARGE_GROUPS,
              BACKWARD: BACKWARD_GROUPS, E4M3: E4M3_GROUPS}
PACKAGE_GRIDS = {SCORES: score_grid, GALLERY_GRID: gallery_grid, RAGGED: ragged_grid, DECODE: decode_grid,
                 LARGE: large_grid, BACKWARD: backward_grid, E4M3: e4m3_grid}
PACKAGE_PEERS = {SCORES: SCORE_PEERS, GALLERY_GRID: GALLERY_PEERS, RAGGED: RAGGED_PEERS, DECODE: DECODE_PEERS,
                 LARGE: LARGE_PEERS, BACKWARD: ALL_BACKWARD_PEERS, E4M3: E4M3_PEERS}
DEFAULT = "default"  # the variant that the library chooses
FLUSHED_BYTES = 256 << 20
TURNS = 8  # of each side of a cell
DRAWS = 100  # of the orders of the turns, to take the most even
SEED = 0  # of the draws
UNCOUNTED = 0.2  # of a turn: until the clock is nearly what this side makes it; what is left evens out over the turns
CEILING_SIZES = (4096, 8192)  # of the square GEMM that stands for the speed of light
# Of an output element against FA2, relative where its size is above 1: rounding of P and of the output to bf16.
MAX_DIFFERENCE = 0.02


class Parser(argparse.ArgumentParser):
    """One whose help must arrive: argparse ignores that it cannot be written."""

    def print_help(self, file=None):
        print(self.format_help(), end="", file=file, flush=True)


def parse_arguments(argv=None):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", choices=(*GRIDS, *(grid for grid in CELL_NAMES if grid not in OF_OPTIONS)), default="full",
                        help="quick: full at two lengths (%(default)s)")
    parser.add_argument("--pass", dest="of_pass", choices=(FORWARD, BACKWARD), default=FORWARD,
                        help="backward: of the grids full and quick (%(default)s)")
    parser.add_argument("--dtype", choices=(BF16, E4M3), default=BF16,
                        help="of flashjit; e4m3: of the grids full and quick, peers in bf16 (%(default)s)")
    parser.add_argument("--peer", nargs="*", choices=tuple(SCORE_PEERS | PEERS | LARGE_PEERS),
                        help="peers to run; default: all that are here")
    parser.add_argument("--cells", dest="names", type=lambda text: text.split(","), metavar="NAME[,NAME]",
                        help="of the grids scores, gallery, ragged, decode and large, of backward and e4m3; default: all: "
                        + "; ".join(", ".join(names) for names in CELL_NAMES.values()))
    parser.add_argument("--head-dim", nargs="+", type=int, choices=HEAD_DIMS, default=HEAD_DIMS,
                        help="all but of the grid large (%(default)s)")
    parser.add_argument("--mask", nargs="+", choices=MASKS, default=MASKS)
    parser.add_argument("--seqlen", nargs="+", type=int, metavar="N", help="default: those of the grid")
    parser.add_argument("--seconds", type=float, default=0.25, help="GPU time of each side of a cell (%(default)s)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results there")
    parser.add_argument("--library", type=pathlib.Path, metavar="FILE",
                        help="libflashjit.so; default: build/release of this clone, else that of the installed package")
    parser.add_argument("--family", choices=("default", "mma", "hopper"), default="default",
                        help="default: what the library chooses; others: the best of variants/FAMILY.txt")
    parser.add_argument("--variants", type=pathlib.Path, metavar="FILE",
                        help="time each variant that FILE lists for a cell, and take the best (of the grid scores: "
                        "beside the default); lines: head_dim mask variant [shortest-longest]")
    parser.add_argument("--peers-file", type=pathlib.Path, metavar="FILE",
                        help="figures of the best peers; default: peers/<device>.json, if there is one")
    arguments = parser.parse_args(argv)
    if arguments.seconds <= 0:
        parser.error(f"--seconds must be above 0, was {arguments.seconds}")
    if arguments.family != "default" and arguments.variants:
        parser.error("--variants must not be given with --family mma or hopper, which has a file of its own")
    if arguments.family != "default":
        arguments.variants = HERE / "variants" / f"{arguments.family}.txt"
    if arguments.of_pass == BACKWARD and arguments.dtype == E4M3:
        parser.error("--dtype e4m3 is of --pass forward")
    if arguments.of_pass == BACKWARD:
        choose_grid_of_option(parser, arguments, BACKWARD, PAPER)
    if arguments.dtype == E4M3:
        choose_grid_of_option(parser, arguments, E4M3, E4M3_PAPER)
    check_grid_options(parser, arguments)
    arguments.cells = chosen_cells(arguments)
    if not arguments.cells:
        parser.error(f"the grid {arguments.grid} has no cell of these --head-dim, --mask and --seqlen")
    return arguments


def choose_grid_of_option(parser, arguments, grid, paper):
    """The grid of that pass or dtype, in place of what it is called like forward's."""
    if arguments.grid not in ("full", "quick"):
        parser.error(f"--grid {arguments.grid} is not for {OF_OPTIONS[grid]}")
    if arguments.grid == "quick":
        arguments.names = arguments.names or [paper]
        arguments.seqlen = arguments.seqlen or QUICK_SEQLENS
    arguments.grid = grid


def check_grid_options(parser, arguments):
    """Refuses what the grid does not have."""
    grid = arguments.grid
    shown = OF_OPTIONS.get(grid, f"--grid {grid}")
    peers = PACKAGE_PEERS.get(grid, PEERS)
    if unknown := [name for name in arguments.peer or () if name not in peers]:
        parser.error(f"--peer {unknown[0]} is not of the grid {grid}")
    if arguments.names and grid not in CELL_NAMES:
        parser.error("--cells is for the grids " + ", ".join(CELL_NAMES))
    if unknown := [name for name in arguments.names or () if name not in CELL_NAMES[grid]]:
        parser.error(f"--cells must be of {', '.join(CELL_NAMES[grid])}, was '{unknown[0]}'")
    if grid in CELL_NAMES and (arguments.library or arguments.family != "default"):
        parser.error(f"{shown} runs the Python package: no --library or --family")
    if grid in (GALLERY_GRID, RAGGED, DECODE, LARGE, BACKWARD, E4M3) and arguments.variants:
        parser.error(f"--variants is not for {shown}")


def chosen_cells(arguments):
    """Those of the grid that have what was asked for."""
    if arguments.grid in CELL_NAMES:
        return chosen_package_cells(arguments)
    # Asking quick for a length asks for it by name: it has all that full has.
    cells = GRIDS["full" if arguments.grid == "quick" and arguments.seqlen else arguments.grid]
    return [cell for cell in cells if cell.head_dim in arguments.head_dim and cell.mask in arguments.mask
            and (not arguments.seqlen or cell.seqlen in arguments.seqlen)]


def chosen_package_cells(arguments):
    cells = PACKAGE_GRIDS[arguments.grid](arguments.names or tuple(CELL_NAMES[arguments.grid]))
    head_dims = {*arguments.head_dim, *(head_dim for head_dim, _ in LARGE_HEAD_DIMS.values())}
    return [cell for cell in cells if cell.shape.head_dim in head_dims and cell.shape.mask in arguments.mask
            and (not arguments.seqlen or cell.shape.seqlen in arguments.seqlen)]


def import_torch():
    if importlib.util.find_spec("torch") is None:
        raise RuntimeError("there is no PyTorch here, which has the peers: pip install torch")
    import torch
    import torch.nn.attention

    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch finds no GPU")
    return torch


def find_library():
    """That of this clone's build; else the installed package's, which knows where the interpreter's wheels have NVRTC."""
    if BUILT.exists():
        return BUILT
    if importlib.util.find_spec("flashjit") is None:
        raise RuntimeError(f"there is neither {BUILT} nor the Python package flashjit; name a --library")
    import flashjit

    if nvrtc := flashjit.find_nvrtc():
        os.environ["FLASHJIT_NVRTC"] = nvrtc
    return flashjit.library_path()


def import_flashjit():
    if importlib.util.find_spec("flashjit") is None:
        raise RuntimeError(f"the grids {', '.join(CELL_NAMES)} need the Python package flashjit")
    import flashjit

    return flashjit


def find_peers(asked, known=PEERS):
    """The peers to run. One that was asked for must be there; of the others it is told why they are not."""
    wanted = list(known) if asked is None else asked
    lacking = {name: why for name in wanted if (why := attention_peers.missing(name))}
    if asked is not None and lacking:
        raise RuntimeError("; ".join(f"--peer {name}: {why}" for name, why in lacking.items()))
    for name, why in lacking.items():
        print(f"{known[name]} is not here: {why}")
    return [name for name in wanted if name not in lacking]


def turn_length(milliseconds, seconds):
    """Launches of one turn, given the time of a launch with its flush: (uncounted, counted)."""
    launches = 1000 * seconds / TURNS / milliseconds
    uncounted = max(1, round(UNCOUNTED * launches))
    return uncounted, max(1, round(launches) - uncounted)


def draw_orders(names, turns, generator):
    """Of the sides, one for each turn. None comes twice before all that there are have come."""
    others = min(TURNS, math.factorial(len(names))) - 1  # that an order must differ from
    orders = []
    while len(orders) < turns:
        order = generator.sample(names, len(names))
        if order not in orders[::-1][:others]:
            orders.append(order)
    return orders


def unevenness(orders):
    """Least where each side comes equally often after each."""
    sides = list(itertools.chain(*orders))
    return sum(count**2 for count in collections.Counter(zip(sides, sides[1:])).values())


def turn_orders(names, turns):
    """The order of the sides in each turn, the same in each run. The most even of many draws: a single one may well
    have a side come after the same other one in half of the turns."""
    generator = random.Random(SEED)
    return min((draw_orders(names, turns, generator) for _ in range(DRAWS)), key=unevenness)


def mean_of_medians(turns):
    """Of each turn's times. One median over all would be that of whichever power state had a few launches more."""
    return statistics.mean(statistics.median(times) for times in turns)


class Stopwatch:
    """Times functions that enqueue work, against each other."""

    def __init__(self, torch, seconds):
        self.torch = torch
        self.seconds = seconds
        self.flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")

    def wait(self):
        self.torch.cuda.synchronize()

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

    def milliseconds(self, launchers, rounds=1):
        """name -> mean of its turns' medians. launchers: name -> function. rounds: times as many turns."""
        orders = turn_orders(list(launchers), TURNS * rounds)
        lengths = {name: turn_length(self.estimate(launch), self.seconds) for name, launch in launchers.items()}
        turns = {name: [] for name in launchers}  # the events of each
        for name in itertools.chain(*orders):
            uncounted, counted = lengths[name]
            for _ in range(uncounted):
                self.queue(launchers[name])
            turns[name].append([self.queue(launchers[name]) for _ in range(counted)])
        self.torch.cuda.synchronize()
        return {name: mean_of_medians([a.elapsed_time(b) for a, b in pairs] for pairs in events)
                for name, events in turns.items()}

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
        self.torch = import_torch()
        self.peers = find_peers(arguments.peer)
        self.listed = listed
        self.library = Library(arguments.library or find_library())
        self.device = self.torch.cuda.get_device_name(0)
        self.stopwatch = Stopwatch(self.torch, arguments.seconds)
        self.cells = [cell for cell in arguments.cells if self.fits(cell)]
        self.torch.manual_seed(0)
        queries = max((math.prod(cell.shape()) for cell in self.cells), default=0)
        keys = max((math.prod(cell.shape_of_keys()) for cell in self.cells), default=0)
        self.memory = [self.random(queries), self.random(keys), self.random(keys), self.random(queries)]

    def random(self, elements):
        return self.torch.randn((elements,), dtype=self.torch.bfloat16, device="cuda")

    def fits(self, cell):
        """Whether the GPU has the memory: the tensors, and a peer may copy some of them."""
        free, _ = self.torch.cuda.mem_get_info()
        fits = 2 * cell.bytes_of_tensors() < free
        if not fits:
            print(f"{cell}: left out: the GPU has {free >> 20} MiB left", file=sys.stderr)
        return fits

    def tensors(self, cell):
        """q, k, v, out, in memory that the cells share."""
        shapes = (cell.shape(), cell.shape_of_keys(), cell.shape_of_keys(), cell.shape())
        return [memory[: math.prod(shape)].view(shape) for memory, shape in zip(self.memory, shapes)]

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
        return attention_peers.launcher(self.torch, name, *self.tensors(cell)[:3], cell.causal)

    def make_kernels(self):
        """Compiles in parallel what the cells need. What cannot be made is told when its cell is run."""
        launchers = [self.ours(cell, spelling) for cell in self.cells for spelling in self.spellings(cell)]
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
        expected = self.peer(cell, "fa2")()
        out = self.tensors(cell)[3]
        launchers = {}
        for name in self.spellings(cell) + self.peers:
            launch = self.peer(cell, name) if name in PEERS else self.ours(cell, name)
            out.fill_(math.nan)
            try:
                returned = launch()
                self.require_close(name, out if returned is None else returned, expected)
            except Exception as error:  # a peer may raise what it likes
                if name == DEFAULT:
                    raise RuntimeError(f"{cell}: {error}") from error
                print(f"{cell}: {name}: left out: {attention_peers.reason(error)}", file=sys.stderr)
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


def read_figures(path, device, of_pass=FORWARD):
    """PeerFigures and the file they are from; (None, None) when there is none for the device."""
    path = path or HERE / "peers" / f"{slug(device)}.json"
    if not path.exists() and path.parent == HERE / "peers":
        return None, None
    return PeerFigures(path.read_text(), of_pass), path


def format_header(cell, peers):
    titles = ["µs", "flashjit", "% of peak", *peers, *(f"/{peer}" for peer in peers)]
    return " " * len(str(cell)) + "  " + "".join(f"{title:>11}" for title in titles)


def format_row(cell, row, peers, ceiling):
    def column(values, show):
        return "".join(f"{show(values[peer]) if peer in values else '-':>11}" for peer in peers)

    def rate(tflops):
        return f"{cell.gigabytes_per_second(tflops):.0f}" if cell.decodes else f"{tflops:.1f}"

    ours = row["tflops"]["flashjit"]
    share = "-" if cell.decodes else f"{100 * ours / ceiling:.1f}%"
    text = f"{cell}  {cell.microseconds(ours):11.1f}{rate(ours):>11}{share:>11}"
    text += column(row["tflops"], rate) + column(row["over"], "{:.3f}".format)
    text += f"  {row['variant']}" if row["variant"] != DEFAULT else ""
    for name, tflops in row.get("variants", {}).items():
        text += f"\n{'':{len(str(cell))}}  {cell.microseconds(tflops):11.1f}{rate(tflops):>11}  {name}"
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
        "packages": {name: version for name in comparison.peers if (version := attention_peers.version(name))},
        "family": arguments.family,
        "gemm_tflops": comparison.stopwatch.gemm_tflops(),
        "mma_ceiling_tflops": comparison.library.mma_ceiling(),
    }
    if figures:
        record["best_peers"] = {key: figures.record[key] for key in ("date", "conditions", "peers")}
    return record


def describe_run(comparison, record, ceiling, figures_path):
    peak = "a loop of mma.sync" if record["family"] == "mma" else "a bf16 GEMM"
    packages = "".join(f", {PEERS[name]} {version}" for name, version in record["packages"].items())
    return (
        f"{comparison.device}, flashjit {record['version']}, PyTorch {record['torch']}, cuDNN {record['cudnn']}{packages}\n"
        f"forward, bf16; TFLOPS, and where one query is decoded GB/s of K and V; peak: {ceiling:.0f} TFLOPS, {peak}; "
        f"best peers: {figures_path or 'not known for these cells'}"
    )


def measure(comparison, figures, show):
    """The rows of the cells; each is shown when it is there."""
    rows = []
    for cell in comparison.cells:
        row = comparison.run(cell, figures)
        if row is None:
            print(f"{cell}: no variant can run it", file=sys.stderr)
            continue
        rows.append(row)
        print(show(cell, row), flush=True)
    if not rows:
        raise RuntimeError("none of the cells could be run")
    return rows


def read_variants(arguments):
    """Those of the file; None where there is none."""
    return parse_variants(arguments.variants.read_text(), arguments.variants) if arguments.variants else None


def compare(arguments):
    comparison = Comparison(arguments, read_variants(arguments))
    figures, figures_path = read_figures(arguments.peers_file, comparison.device)
    comparison.make_kernels()
    record = new_record(comparison, arguments, figures)
    ceiling = record["mma_ceiling_tflops" if arguments.family == "mma" else "gemm_tflops"]
    has_best = figures and "cudnn" in comparison.peers and any(cell in figures.cells for cell in comparison.cells)
    peers = comparison.peers + ([BEST] if has_best else [])
    print(describe_run(comparison, record, ceiling, figures_path if has_best else None))
    print(format_header(arguments.cells[0], peers), flush=True)
    record["rows"] = measure(comparison, figures, lambda cell, row: format_row(cell, row, peers, ceiling))
    record["summary"] = summarise(record["rows"])
    for peer, values in record["summary"].items():
        print(format_summary(peer, values))
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


def compare_package(arguments):
    torch, flashjit = import_torch(), import_flashjit()
    given = torch, flashjit, Stopwatch(torch, arguments.seconds)
    peers = find_peers(arguments.peer, PACKAGE_PEERS[arguments.grid])
    if arguments.grid == GALLERY_GRID:
        attention_gallery_run.compare_gallery(*given, peers, arguments)
    elif arguments.grid == RAGGED:
        attention_ragged_run.compare_ragged(*given, peers, arguments)
    elif arguments.grid == DECODE:
        attention_decode_run.compare_decode(*given, peers, arguments)
    elif arguments.grid == LARGE:
        attention_large_run.compare_large(*given, peers, arguments)
    elif arguments.grid == BACKWARD:
        figures, _ = read_figures(arguments.peers_file, torch.cuda.get_device_name(0), BACKWARD)
        attention_backward_run.compare_backward(*given, peers, arguments, figures)
    elif arguments.grid == E4M3:
        figures, _ = read_figures(arguments.peers_file, torch.cuda.get_device_name(0), E4M3)
        attention_e4m3_run.compare_e4m3(*given, peers, arguments, figures)
    else:
        figures, _ = read_figures(arguments.peers_file, torch.cuda.get_device_name(0))
        attention_scores_run.compare_scores(*given, peers, arguments, figures, read_variants(arguments) or ())


def main():
    try:
        arguments = parse_arguments()
        (compare_package if arguments.grid in CELL_NAMES else compare)(arguments)
    except (RuntimeError, OSError, ValueError) as error:
        sys.exit(f"compare_peers: {error}")


if __name__ == "__main__":
    main()
