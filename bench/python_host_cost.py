#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call from Python costs the host: flashjit.attention and what is over it, beside PyTorch's SDPA, on PyTorch
tensors. Needs a GPU, PyTorch and the package flashjit.

Calls follow each other without synchronisation, in bursts that the launch queue can hold, on a shape so small that the
GPU is faster than the host. The ways take turns; a burst's mean is one sample, and the median of those is reported."""

import argparse
import json
import pathlib
import statistics
import sys
import time

SHAPE = (1, 16, 2, 64)  # batch, seqlen, heads, head_dim
BURST = 128  # calls of up to three launches and two of memory; the queue holds about a thousand
BURSTS = 40


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bursts", type=int, default=BURSTS, help=f"of {BURST} calls each (%(default)s)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results there")
    return parser.parse_args()


def make_ways(torch, flashjit):
    """name -> a function without arguments that enqueues one call."""
    q, k, v = (torch.randn(SHAPE, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    query, key, value = (tensor.transpose(1, 2) for tensor in (q, k, v))
    out = torch.empty_like(q)
    sdpa, ours = torch.nn.functional.scaled_dot_product_attention, flashjit.torch.scaled_dot_product_attention
    operator = torch.ops.flashjit.attention_forward
    interface = flashjit.flash_attn_interface
    token = torch.randn((8, 1, 8, 64), dtype=torch.bfloat16, device="cuda")
    k_pages, v_pages = (torch.randn((64, 64, 2, 64), dtype=torch.bfloat16, device="cuda") for _ in range(2))
    table = torch.arange(64, dtype=torch.int32, device="cuda").view(8, 8)
    lengths = torch.arange(20, 180, 20, dtype=torch.int32, device="cuda")
    return {
        "flashjit.attention": lambda: flashjit.attention(q, k, v, causal=True),
        "flashjit.attention, out=": lambda: flashjit.attention(q, k, v, causal=True, out=out),
        "flashjit.torch.scaled_dot_product_attention": lambda: ours(query, key, value, is_causal=True),
        "torch.ops.flashjit.attention_forward": lambda: operator(q, k, v, True),
        "flash_attn_interface.flash_attn_func": lambda: interface.flash_attn_func(q, k, v, causal=True),
        "flash_attn_interface.flash_attn_with_kvcache": lambda: interface.flash_attn_with_kvcache(
            token, k_pages, v_pages, cache_seqlens=lengths, page_table=table, causal=True),
        "PyTorch scaled_dot_product_attention": lambda: sdpa(query, key, value, is_causal=True),
    }


def burst_microseconds(torch, call):
    """The mean of a burst's calls."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(BURST):
        call()
    return (time.perf_counter() - began) / BURST * 1e6


def measure(torch, ways, bursts):
    """name -> median and smallest microseconds of a call."""
    samples = {name: [] for name in ways}
    for turn in range(bursts + 1):
        for name, call in ways.items():
            sample = burst_microseconds(torch, call)
            if turn > 0:  # the first one compiles, and fills allocators
                samples[name].append(sample)
    return {name: {"median_us": statistics.median(times), "min_us": min(times)} for name, times in samples.items()}


def main():
    arguments = parse_arguments()
    if arguments.bursts < 1:
        sys.exit(f"python_host_cost: --bursts must be at least 1, was {arguments.bursts}")
    import torch

    import flashjit.flash_attn_interface

    with torch.inference_mode():
        results = measure(torch, make_ways(torch, flashjit), arguments.bursts)
    for name, times in results.items():
        print(f"{name:45} {times['median_us']:6.2f} us, at best {times['min_us']:6.2f} us")
    if arguments.json:
        record = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "python": sys.version.split()[0],
                  "version": flashjit.__version__, "shape": SHAPE, "calls": results}  # fmt: skip
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
