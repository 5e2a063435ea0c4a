# SPDX-License-Identifier: Apache-2.0
"""Runs the grid large of compare_peers.py: head dims above 256 by the Python package flashjit, beside PyTorch's
memory-efficient back end and a plain read of the cache, each launched by a CUDA graph."""

import functools

import attention_peers
from attention_decode_run import DecodeComparison, DecodeKernels, GraphStopwatch, run_cells
from attention_large import DEFAULT, EFFICIENT, MLA, MLA_E4M3, PAGE_SIZE, PAGES, PAIRS, PAIRS_VARIANT, PROMPTS, READ
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
        options = {"causal": causal} | ({"variant": variant} if variant else {})
        return self.planned(out, [self.call(q, cache, **options) for cache in caches])

    def moved(self, cache, page_size, order):
        """Values that are columns of keys stay so."""
        k, v = cache
        if v.data_ptr() != k.data_ptr():
            return super().moved(cache, page_size, order)
        pages = self.in_pages(k, page_size, order)
        return pages, pages[..., :v.shape[-1]]

    def read(self, caches):
        """Of each cache's bytes once: values that are columns of the keys are read with these."""

        def launch(*cache):
            for tensor in {tensor.data_ptr(): tensor for tensor in reversed(cache)}.values():
                tensor.view(self.torch.float32).amax()

        return [functools.partial(launch, *cache) for cache in caches]

    def efficient(self, q, caches, causal):
        return [attention_peers.launcher(self.torch, EFFICIENT, q, *cache, causal) for cache in caches]


class LatentKernels(LargeKernels):
    """Of caches whose latent columns are of e4m3: these, the rotary ones, and a scale of each token."""

    def cache(self, cell):
        head_dim, columns = cell.head_dims
        rows = self.normal(cell.batch, cell.context, cell.heads_kv, head_dim)
        latent, scale = self.in_e4m3(rows[..., :columns], of_tokens=True)
        return latent, rows[..., columns:].contiguous(), scale

    def moved(self, cache, page_size, order):
        latent, *others = cache
        of_bytes = self.in_pages(latent.view(self.torch.uint8), page_size, order)
        return of_bytes.view(latent.dtype), *(self.in_pages(tensor, page_size, order) for tensor in others)

    def call(self, q, cache, **options):
        latent, rotary, scale = cache
        return (q, latent, latent), {"k_rotary": rotary, "k_scale": scale, "v_scale": scale, **options}

    def expected(self, q, latent, rotary, scale, causal=True):
        values = latent[:1].float() * scale[:1].unsqueeze(-1)
        return super().expected(q, self.torch.cat((values, rotary[:1].float()), -1), values, causal)


class LargeComparison(DecodeComparison):
    peer_sides = (EFFICIENT, )

    def __init__(self, kernels, stopwatch, cells):
        super().__init__(kernels, stopwatch, cells)
        self.latent_kernels = LatentKernels(kernels.torch, kernels.flashjit, kernels.peers, kernels.device)

    def kernels_of(self, cell):
        return self.latent_kernels if cell.group == MLA_E4M3 else self.kernels

    def sides(self, cell):
        kernels, causal = self.kernels_of(cell), cell.mask == "causal"
        head_dim, head_dim_v = cell.head_dims
        q, caches = kernels.normal(cell.batch, cell.queries, cell.heads, head_dim), kernels.caches(cell)
        out = kernels.normal(cell.batch, cell.queries, cell.heads, head_dim_v)
        makers = {DEFAULT: functools.partial(kernels.ours, q, out, caches, causal)}
        if cell.group != PROMPTS:
            makers[PAGES] = functools.partial(kernels.paged, q, out, caches, PAGE_SIZE)
        if cell.has_pairs:
            makers[PAIRS] = functools.partial(kernels.ours, q, out, caches, causal, PAIRS_VARIANT)
        if cell.group == PROMPTS and EFFICIENT in kernels.peers:
            makers[EFFICIENT] = functools.partial(kernels.efficient, q, caches, causal)
        return makers, out, kernels.expected(q, *caches[0], causal)

    def made(self, cell, makers, out, expected):
        launches, left_out = super().made(cell, makers, out, expected)
        if cell.group != PROMPTS:
            kernels = self.kernels_of(cell)
            launches[READ] = kernels.read(kernels.caches(cell))
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
