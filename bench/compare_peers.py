#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""flashjit beside PyTorch's SDPA back ends, alternately in one process, on the forward grid of the FlashAttention-3 paper:
16k tokens, hidden size 2048, bf16. Each cell is checked before it is timed. Needs a GPU and PyTorch."""

import argparse
import ctypes
import itertools
import json
import math
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENS = 16384
HIDDEN = 2048
HEAD_DIMS = (64, 128, 256)
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)
PEERS = {"fa2": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
# Of an output element against FA2, relative where its size is above 1: rounding of P and of the output to bf16.
MAX_DIFFERENCE = 0.02


class TensorView(ctypes.Structure):
    """flashjit_tensor of c_api.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 4),
        ("strides", ctypes.c_int64 * 4),
    ]
    BF16 = 1

    @classmethod
    def of(cls, tensor):
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        return cls(tensor.data_ptr(), cls.BF16, len(shape), (ctypes.c_int64 * 4)(*shape), (ctypes.c_int64 * 4)(*strides))


class Options(ctypes.Structure):
    """flashjit_attention_options of c_api.h."""

    _fields_ = [
        ("causal", ctypes.c_int32),
        ("has_softmax_scale", ctypes.c_int32),
        ("softmax_scale", ctypes.c_float),
        ("lse", ctypes.POINTER(TensorView)),
        ("stream", ctypes.c_void_p),
        ("variant", ctypes.c_char_p),
    ]


class Library:
    def __init__(self, path):
        self.dll = ctypes.CDLL(str(path))
        view = ctypes.POINTER(TensorView)
        self.dll.flashjit_attention.argtypes = [view, view, view, view, ctypes.POINTER(Options)]
        self.dll.flashjit_attention.restype = ctypes.c_int
        self.dll.flashjit_last_error.restype = ctypes.c_char_p
        self.dll.flashjit_version.restype = ctypes.c_char_p
        self.dll.flashjit_measure_mma_ceiling.restype = ctypes.c_double

    def version(self):
        return self.dll.flashjit_version().decode()

    def last_error(self):
        return self.dll.flashjit_last_error().decode()

    def mma_ceiling(self):
        tflops = self.dll.flashjit_measure_mma_ceiling()
        if tflops < 0:
            raise RuntimeError(self.last_error())
        return tflops

    def launcher(self, q, k, v, out, causal, stream, variant):
        """A function without arguments that enqueues one attention call."""
        views = [ctypes.byref(TensorView.of(tensor)) for tensor in (q, k, v, out)]
        options = Options(causal=causal, stream=stream, variant=variant.encode() if variant else None)
        by_reference = ctypes.byref(options)

        def launch():
            if self.dll.flashjit_attention(*views, by_reference) != 0:
                raise RuntimeError(self.last_error())

        launch.tensors = (q, k, v, out)  # the views do not keep the memory
        return launch


class Cell:
    """One shape of the grid."""

    def __init__(self, head_dim, causal, seqlen):
        self.head_dim, self.causal, self.seqlen = head_dim, causal, seqlen
        self.heads = HIDDEN // head_dim
        self.batch = TOKENS // seqlen

    def flops(self):
        full = 4 * self.batch * self.heads * self.seqlen * self.seqlen * self.head_dim
        return full / 2 if self.causal else full

    def shape(self):
        return (self.batch, self.seqlen, self.heads, self.head_dim)

    def __str__(self):
        return f"d{self.head_dim:<3} {'causal' if self.causal else 'full':<6} {self.seqlen:>5}"


def grid(head_dims=HEAD_DIMS, masks=(False, True), seqlens=SEQLENS):
    return [Cell(*values) for values in itertools.product(head_dims, masks, seqlens)]


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, default=ROOT / "build/release/libflashjit.so", help="%(default)s")
    parser.add_argument("--variant", help="spelling of a flashjit variant; default: the library's choice")
    parser.add_argument("--backends", nargs="+", choices=tuple(PEERS), default=tuple(PEERS), help="peers to run")
    parser.add_argument("--head-dim", nargs="+", type=int, choices=HEAD_DIMS, default=HEAD_DIMS)
    parser.add_argument("--seqlen", nargs="+", type=int, choices=SEQLENS, default=SEQLENS)
    parser.add_argument("--causal", choices=("no", "yes", "both"), default="both")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each back end in a cell (%(default)s)")
    parser.add_argument("--launches", type=int, default=4, help="timed launches of one turn (%(default)s)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results there")
    arguments = parser.parse_args(argv)
    arguments.masks = {"no": (False,), "yes": (True,), "both": (False, True)}[arguments.causal]
    return arguments


class Comparison:
    """Runs cells on the current CUDA device."""

    def __init__(self, arguments):
        import torch
        import torch.nn.attention

        self.torch = torch
        self.arguments = arguments
        self.library = Library(arguments.library)
        self.properties = torch.cuda.get_device_properties(0)
        self.flushed = torch.empty(2 * self.properties.L2_cache_size, dtype=torch.int8, device="cuda")
        self.stream = torch.cuda.current_stream().cuda_stream
        self.ceiling = self.library.mma_ceiling()

    def peer(self, name, q, k, v, causal):
        torch = self.torch
        back_end = getattr(torch.nn.attention.SDPBackend, PEERS[name])
        # The same memory, seen as [batch, heads, seqlen, head_dim].
        views = [tensor.transpose(1, 2) for tensor in (q, k, v)]
        attention = torch.nn.functional.scaled_dot_product_attention

        def launch():
            with torch.nn.attention.sdpa_kernel([back_end]):
                return attention(*views, is_causal=causal)

        return launch

    def difference(self, out, expected):
        """The largest difference, relative where the expected value is above 1; NaN if there is one."""
        distance = (out.float() - expected.float()).abs() / expected.float().abs().clamp(min=1.0)
        return distance.max().item()

    def time(self, launch):
        """Milliseconds of each launch of one turn, everything queued, L2 flushed before each."""
        torch = self.torch
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(self.arguments.launches)]
        for _ in range(8):  # work for the GPU until the host is ahead of it
            self.flushed.zero_()
        for start, stop in events:
            self.flushed.zero_()
            start.record()
            launch()
            stop.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) for start, stop in events]

    def launchers(self, cell):
        """Back ends that can run the cell, each checked: name -> launch function; and the differences from FA2."""
        torch = self.torch
        torch.manual_seed(cell.seqlen + cell.head_dim)
        q, k, v = (torch.randn(cell.shape(), dtype=torch.bfloat16, device="cuda") for _ in range(3))
        out = torch.full_like(q, math.nan)
        expected = self.peer("fa2", q, k, v, cell.causal)().transpose(1, 2)
        launchers = {"flashjit": self.library.launcher(q, k, v, out, cell.causal, self.stream, self.arguments.variant)}
        launchers["flashjit"]()
        torch.cuda.synchronize()
        differences = {"flashjit": self.difference(out, expected)}
        for name in self.arguments.backends:
            launch = self.peer(name, q, k, v, cell.causal)
            try:
                result = launch().transpose(1, 2)
            except RuntimeError as error:
                print(f"{cell}: {name} cannot run it: {str(error).splitlines()[0]}", file=sys.stderr)
                continue
            launchers[name] = launch
            differences[name] = self.difference(result, expected)
        for name, difference in differences.items():
            if not difference < MAX_DIFFERENCE:
                raise RuntimeError(f"{cell}: {name} differs from FA2 by {difference:.3g}: not timed")
        return launchers, differences

    def run(self, cell):
        launchers, differences = self.launchers(cell)
        times = {name: [] for name in launchers}
        for round_number in range(self.arguments.rounds):
            names = list(launchers)
            shift = round_number % len(names)
            for name in names[shift:] + names[:shift]:
                times[name] += self.time(launchers[name])
        row = {"head_dim": cell.head_dim, "causal": cell.causal, "seqlen": cell.seqlen, "batch": cell.batch}
        row["heads"] = cell.heads
        row["milliseconds"] = {name: statistics.median(values) for name, values in times.items()}
        row["tflops"] = {name: cell.flops() / ms / 1e9 for name, ms in row["milliseconds"].items()}
        row["over"] = {name: row["tflops"]["flashjit"] / row["tflops"][name] for name in launchers if name in PEERS}
        row["difference"] = differences
        return row


def format_row(cell, row, peers, ceiling):
    cells = [f"{row['tflops']['flashjit']:8.1f}", f"{100 * row['tflops']['flashjit'] / ceiling:7.1f}%"]
    cells += [f"{row['tflops'][peer]:8.1f}" if peer in row["tflops"] else f"{'-':>8}" for peer in peers]
    cells += [f"{row['over'][peer]:8.3f}" if peer in row["over"] else f"{'-':>8}" for peer in peers]
    return f"{cell}  " + "  ".join(cells)


def summarise(rows, peers):
    """Geometric mean and minimum of flashjit / peer, over all cells that the peer ran."""
    summary = {}
    for peer in peers:
        ratios = [row["over"][peer] for row in rows if peer in row["over"]]
        if ratios:
            summary[peer] = {"geometric_mean": geometric_mean(ratios), "minimum": min(ratios), "cells": len(ratios)}
    return summary


def main():
    arguments = parse_arguments()
    comparison = Comparison(arguments)
    peers = list(arguments.backends)
    header = ["flashjit", "% of mma"] + peers + [f"/{peer}" for peer in peers]
    print(f"{comparison.properties.name}: forward, bf16, {TOKENS} tokens, TFLOPS; mma ceiling {comparison.ceiling:.0f}")
    print(f"{'':17}  " + "  ".join(f"{title:>8}" for title in header), flush=True)
    rows = []
    for cell in grid(arguments.head_dim, arguments.masks, arguments.seqlen):
        rows.append(comparison.run(cell))
        print(format_row(cell, rows[-1], peers, comparison.ceiling), flush=True)
    summary = summarise(rows, peers)
    for peer, values in summary.items():
        print(f"flashjit / {peer}: geometric mean {values['geometric_mean']:.3f}, minimum {values['minimum']:.3f}")
    if arguments.json:
        torch = comparison.torch
        record = {
            "device": comparison.properties.name,
            "version": comparison.library.version(),
            "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version(),
            "variant": arguments.variant or "default",
            "mma_ceiling_tflops": comparison.ceiling,
            "summary": summary,
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, OSError) as error:
        sys.exit(f"compare_peers: {error}")
