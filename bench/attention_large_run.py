# SPDX-License-Identifier: Apache-2.0
"""Runs the grid large of compare_peers.py: head dims above 256 by the Python package flashjit, beside PyTorch's
memory-efficient back end and a plain read of the cache, each launched by a CUDA graph."""

import functools

import attention_peers
from attention_decode_run import DecodeComparison, DecodeKernels, GraphStopwatch, run_cells
from attention_large import DECODE, DEFAULT, EFFICIENT, MLA, PAGE_SIZE, PAGES, PAIRS, PAIRS_VARIANT, PROMPTS, READ
from attention_large import format_large_row, large_row, summarise_large
from attention_peers import LARGE_PEERS
from attention_scores_run import Progress, new_record, print_conditions


class LargeKernels(DecodeKernels):

    def caches(self, cell):
        """Of MLA the values are the first columns of the keys."""
        return [self.cache(cell) for _ in range(self.cache_count(cell))]

    def cache(self, cell):
        head_dim, head_dim_v = cell.head_dims
        sizes = cell.batch, cell.context, cell.heads_kv
        k = self.normal(*sizes, head_dim)
        return k, k[..., :head_dim_v] if cell.group == MLA else self.normal(*sizes, head_dim_v)

    def ours(self, q, out, caches, causal, variant=None):
        """A launch for each cache, which have a plan in common."""
        options = {"causal": causal} | ({"variant": variant} if variant else {})
        options |= {"out": out, "plan": self.flashjit.plan(q, *caches[0], **options)}

        def launch(k, v):
            return self.flashjit.attention(q, k, v, **options, **self.options())

        return [functools.partial(launch, *cache) for cache in caches]

    def moved(self, cache, page_size, order):
        """Values that are columns of keys stay so."""
        k, v = cache
        if v.data_ptr() != k.data_ptr():
            return super().moved(cache, page_size, order)
        pages = self.in_pages(k, page_size, order)
        return pages, pages[..., :v.shape[-1]]

    def read(self, caches):
        """Of each cache's bytes once: keys, and values that are no part of them."""

        def launch(k, v):
            for tensor in (k, ) if v.data_ptr() == k.data_ptr() else (k, v):
                tensor.view(self.torch.float32).amax()

        return [functools.partial(launch, *cache) for cache in caches]

    def efficient(self, q, caches, causal):
        return [attention_peers.launcher(self.torch, EFFICIENT, q, *cache, causal) for cache in caches]


class LargeComparison(DecodeComparison):
    peer_sides = (EFFICIENT, )

    def sides(self, cell):
        kernels, causal = self.kernels, cell.mask == "causal"
        head_dim, head_dim_v = cell.head_dims
        q, caches = kernels.normal(cell.batch, cell.queries, cell.heads, head_dim), kernels.caches(cell)
        out = kernels.normal(cell.batch, cell.queries, cell.heads, head_dim_v)
        makers = {DEFAULT: functools.partial(kernels.ours, q, out, caches, causal)}
        if cell.group != PROMPTS:
            makers[PAGES] = functools.partial(kernels.paged, q, out, caches, PAGE_SIZE)
            makers[PAIRS] = functools.partial(kernels.ours, q, out, caches, causal, PAIRS_VARIANT)
        elif EFFICIENT in kernels.peers:
            makers[EFFICIENT] = functools.partial(kernels.efficient, q, caches, causal)
        return makers, out, kernels.expected(q, *caches[0], causal)

    def made(self, cell, makers, out, expected):
        launches, left_out = super().made(cell, makers, out, expected)
        if cell.group in (MLA, DECODE):
            launches[READ] = self.kernels.read(self.kernels.caches(cell))
        return launches, left_out

    row = staticmethod(large_row)
    summarise = staticmethod(summarise_large)
    format_row = staticmethod(format_large_row)


def compare_large(torch, flashjit, stopwatch, peers, arguments):
    """Runs the cells and prints and writes what they give. RuntimeError when flashjit failed in one of them."""
    kernels = LargeKernels(torch, flashjit, peers)
    comparison = LargeComparison(kernels, GraphStopwatch(torch, stopwatch.gemm_tflops), arguments.cells)
    record = new_record(kernels, comparison.stopwatch, LARGE_PEERS)
    print_conditions(record, "head dims above 256, in graphs", "medians of replays")
    run_cells(comparison, Progress(record, arguments.json))
