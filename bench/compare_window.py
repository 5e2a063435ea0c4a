#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a sliding window saves on this GPU: kernels with a window beside the same kernels without one, and beside
FlexAttention of PyTorch, in turns and in one process. Causal, bf16, batch 1, hidden size 2048. Needs PyTorch.

A window costs a kernel at least its share of the key/value blocks: those that a tile of query rows visits with the
window, over those without. "over share" is the time with a window over that share of the time without one."""

import argparse
import json
import pathlib
import re
import sys

sys.dont_write_bytecode = True
from compare_peers import Stopwatch, find_library, import_torch  # noqa: E402
from flashjit_c import Library  # noqa: E402

HIDDEN = 2048
# What calls of these sizes get by default, on sm_90a and where there are no Hopper kernels.
VARIANTS = {
    ("hopper", 64): "hopper-q256-kv64-s4-qs2-whole-2stage-ppgemm-lazy-dynamic-longest-fused",
    ("hopper", 128): "hopper-q128-kv64-s3-qs2-whole-2stage-ppgemm-lazy-dynamic-longest-fused",
    ("mma", 64): "mma-q128-kv32-w4-k2-v2-c3-overlap-swizzle-x4-qsmem-rare-natural",
    ("mma", 128): "mma-q128-kv32-w4-k2-v2-c2-overlap-swizzle-x4-qsmem-rare-natural",
}
CHOICE = "choice"  # of the library
FLEX = "flex"
MAX_DIFFERENCE = 0.02  # of an output element against FlexAttention's: rounding of P and of the output to bf16


def visited_blocks(seqlen, block_q, block_kv, window):
    """Of all tiles of a head, causal; window: keys before the query's own, None for all."""
    blocks = 0
    for first in range(0, seqlen, block_q):
        last = min(first + block_q, seqlen) - 1
        begin = 0 if window is None else max(0, first - window) // block_kv
        blocks += last // block_kv + 1 - begin
    return blocks


def share_of_blocks(seqlen, window, variant):
    block_q, block_kv = (int(re.search(rf"-{name}(\d+)", variant)[1]) for name in ("q", "kv"))
    return visited_blocks(seqlen, block_q, block_kv, window) / visited_blocks(seqlen, block_q, block_kv, None)


def flex_launcher(torch, tensors, window):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (tensor.transpose(1, 2) for tensor in tensors[:3])

    def sees(batch, head, query, key):
        return (query >= key) & (query - key <= window)

    mask = create_block_mask(sees, None, None, q.shape[2], k.shape[2], device="cuda")
    attention = torch.compile(flex_attention)
    return lambda: attention(q, k, v, block_mask=mask).transpose(1, 2)


class Comparison:
    def __init__(self, arguments):
        self.torch = import_torch()
        self.arguments = arguments
        self.library = Library(arguments.library or find_library())
        self.stopwatch = Stopwatch(self.torch, arguments.seconds)

    def tensors(self, head_dim):
        shape = (1, self.arguments.seqlen, HIDDEN // head_dim, head_dim)
        tensors = [self.torch.randn(shape, dtype=self.torch.bfloat16, device="cuda") for _ in range(3)]
        return tensors + [self.torch.empty_like(tensors[0])]

    def ours(self, tensors, variant, window):
        stream = self.torch.cuda.current_stream().cuda_stream
        return self.library.launcher(tensors, True, stream, variant, window)

    def checked(self, name, launch, tensors, expected):
        tensors[3].fill_(float("nan"))
        launch()
        difference = (tensors[3].float() - expected).abs().max().item()
        if not difference < MAX_DIFFERENCE:
            raise RuntimeError(f"{name} differs from FlexAttention by {difference:.3g}: not timed")
        return launch

    def run(self, head_dim):
        """Two sides at a time: what runs before a kernel decides the clock that it finds, and of two each comes after
        itself and after the other equally often."""
        tensors, window = self.tensors(head_dim), (self.arguments.window, 0)
        flex = flex_launcher(self.torch, tensors, self.arguments.window)
        expected = flex().float()
        choice = self.checked(CHOICE, self.ours(tensors, None, window), tensors, expected)
        times = self.stopwatch.milliseconds({CHOICE: choice, FLEX: flex})
        row = {"head_dim": head_dim, "choice_us": 1e3 * times[CHOICE], "flex_us": 1e3 * times[FLEX],
               "over_flex": times[FLEX] / times[CHOICE], "families": {}}
        for family in ("hopper", "mma"):
            variant = VARIANTS[family, head_dim]
            launch = self.checked(variant, self.ours(tensors, variant, window), tensors, expected)
            times = self.stopwatch.milliseconds({"window": launch, "plain": self.ours(tensors, variant, None)})
            share = share_of_blocks(self.arguments.seqlen, self.arguments.window, variant)
            row["families"][family] = {"variant": variant, "window_us": 1e3 * times["window"],
                                       "plain_us": 1e3 * times["plain"], "share_of_blocks": share,
                                       "over_share": times["window"] / times["plain"] / share}
        return row


def print_row(row):
    print(f"d{row['head_dim']}: choice {row['choice_us']:.1f} us, FlexAttention {row['flex_us']:.1f} us, "
          f"{row['over_flex']:.3f} times as long")
    for family, values in row["families"].items():
        print(f"  {family:7} window {values['window_us']:8.1f} us, plain {values['plain_us']:8.1f} us, share of blocks "
              f"{values['share_of_blocks']:.4f}, over share {values['over_share']:.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlen", type=int, default=16384)
    parser.add_argument("--window", type=int, default=1024, help="keys before the query's own (%(default)s)")
    parser.add_argument("--head-dim", nargs="+", type=int, choices=(64, 128), default=(64, 128))
    parser.add_argument("--seconds", type=float, default=0.25, help="GPU time of each side of a cell (%(default)s)")
    parser.add_argument("--library", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results there")
    arguments = parser.parse_args()
    try:
        comparison = Comparison(arguments)
        rows = []
        for head_dim in arguments.head_dim:
            rows.append(comparison.run(head_dim))
            print_row(rows[-1])
    except RuntimeError as error:
        sys.exit(f"compare_window: {error}")
    if arguments.json:
        record = {"device": comparison.torch.cuda.get_device_name(0), "torch": comparison.torch.__version__,
                  "seqlen": arguments.seqlen, "window": arguments.window, "rows": rows}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
