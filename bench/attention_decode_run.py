# SPDX-License-Identifier: Apache-2.0
"""Runs the grid decode of compare_peers.py: the Python package flashjit, contiguous and paged, beside cuDNN and
FlashAttention-2 with caches in both layouts, each launched by a CUDA graph."""

import functools
import math
import statistics

import attention_peers
from attention_decode import E4M3_SIDES, HEAD_DIM, PEER_SIDES, decode_row, format_decode_row, format_decode_summary
from attention_decode import summarise_decode
from attention_peers import DECODE_PEERS
from attention_scores_run import MOST_LETTERS, Comparison, Progress, make_kernels, new_record, print_conditions

MAX_DIFFERENCE = 0.02  # of an output element from the reference: roundings of P and of the output to bf16
WALKED_BYTES = 1.2e9  # of caches that launches read by turns
MOST_CACHES = 16
REPLAYS, TURNS = 5, 4
LAUNCHES = 16  # of a graph, at least


class GraphStopwatch:
    """Times functions that enqueue one launch each, in graphs, in turns."""

    def __init__(self, torch, gemm_tflops):
        self.torch, self.gemm_tflops = torch, gemm_tflops

    def wait(self):
        self.torch.cuda.synchronize()

    def graph(self, launches):
        """The graph, and how many launches it has. launches: one for each cache."""
        cuda = self.torch.cuda
        stream, graph = cuda.Stream(), cuda.CUDAGraph()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            launches[0]()  # what a first call makes must not be captured
        cuda.synchronize()
        rounds = -(-LAUNCHES // len(launches))
        with cuda.graph(graph, stream=stream):
            for launch in launches * rounds:
                launch()
        return graph, rounds * len(launches)

    def replay(self, graph):
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        self.torch.cuda.synchronize()
        return begin.elapsed_time(end)

    def microseconds(self, sides):
        """side -> of a launch. sides: side -> functions."""
        graphs = {side: self.graph(launches) for side, launches in sides.items()}
        times = {side: [] for side in sides}
        for _ in range(TURNS):
            for side, (graph, count) in graphs.items():
                self.replay(graph)
                times[side] += [1e3 * self.replay(graph) / count for _ in range(REPLAYS)]
        return {side: statistics.median(values) for side, values in times.items()}


class DecodeKernels:

    def __init__(self, torch, flashjit, peers, device="cuda"):
        self.torch, self.flashjit, self.peers, self.device = torch, flashjit, peers, device
        torch.manual_seed(0)

    def normal(self, *sizes):
        return self.torch.randn(sizes, dtype=self.torch.bfloat16, device=self.device)

    def cache_count(self, cell):
        return max(1, min(MOST_CACHES, math.ceil(WALKED_BYTES / cell.cache_bytes)))

    def caches(self, cell):
        """Pairs of keys and values [batch, context, heads, head_dim]."""
        sizes = cell.batch, cell.context, cell.heads_kv, HEAD_DIM
        return [(self.normal(*sizes), self.normal(*sizes)) for _ in range(self.cache_count(cell))]

    def options(self):
        """Of calls in a graph: on the stream that captures it."""
        cuda = self.torch.cuda
        return {"stream": cuda.current_stream().cuda_stream} if self.device == "cuda" else {}

    def planned(self, out, calls):
        """A launch for each of the calls, (q, k, v) and options, which have a plan in common."""
        tensors, options = calls[0]
        plan = self.flashjit.plan(*tensors, **options)

        def launch(tensors, options):
            return self.flashjit.attention(*tensors, out=out, plan=plan, **options, **self.options())

        return [functools.partial(launch, *call) for call in calls]

    def call(self, q, cache, **options):
        """Of attention to a cache."""
        return (q, *cache), options

    def ours(self, q, out, caches, causal=True):
        return self.planned(out, [self.call(q, cache, causal=causal) for cache in caches])

    def in_pages(self, tensor, page_size, order):
        """The rows in pages in an order of their own."""
        pages = tensor.reshape(-1, page_size, *tensor.shape[2:])
        return pages[order.argsort()]

    def moved(self, cache, page_size, order):
        return [self.in_pages(tensor, page_size, order) for tensor in cache]

    def paged(self, q, out, caches, page_size):
        """The caches have a table in common, too."""
        torch = self.torch
        batch, context = caches[0][0].shape[:2]
        order = torch.randperm(batch * context // page_size, device=self.device)
        table = order.view(batch, -1).to(torch.int32)
        used = torch.full((batch, ), context, dtype=torch.int32, device=self.device)
        options = {"causal": True, "page_table": table, "seqused_kv": used}
        return self.planned(out, [self.call(q, self.moved(cache, page_size, order), **options) for cache in caches])

    def in_e4m3(self, tensor, of_tokens):
        """The numbers, and what they are to be multiplied by: a scale for each head, or for each row of each head."""
        largest = tensor.abs().amax(-1) if of_tokens else tensor.abs().amax((0, 1, 3))
        scales = largest.float() / self.torch.finfo(self.torch.float8_e4m3fn).max
        return (tensor / scales.unsqueeze(-1)).to(self.torch.float8_e4m3fn), scales

    def stored_in_8_bits(self, q, out, caches, of_tokens):
        stored = [[self.in_e4m3(tensor, of_tokens) for tensor in cache] for cache in caches]
        return self.planned(out, [self.call(q, (k, v), causal=True, k_scale=k_scale, v_scale=v_scale)
                                  for (k, k_scale), (v, v_scale) in stored])

    def theirs(self, q, k, v, side):
        if side.endswith("_heads_first"):
            k, v = (tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (k, v))
        # Scaled_dot_product_attention's causal mask begins at the first key: the last query sees all without one.
        return attention_peers.launcher(self.torch, side.removesuffix("_heads_first"), q, k, v, False)

    def expected(self, q, k, v, causal=True):
        """Of the first batch entry, in f32."""
        queries, context = q.shape[1], k.shape[1]
        group = q.shape[2] // k.shape[2]
        rows, keys, values = (tensor[0].float().transpose(0, 1) for tensor in (q, k, v))
        keys, values = (tensor.repeat_interleave(group, 0) for tensor in (keys, values))
        scores = rows @ keys.transpose(1, 2) * q.shape[3]**-0.5
        hidden = self.torch.ones(queries, context, dtype=self.torch.bool, device=q.device).triu(context - queries + 1)
        return (scores.masked_fill(hidden & causal, -math.inf).softmax(-1) @ values).transpose(0, 1)


class DecodeComparison(Comparison):
    peer_sides = PEER_SIDES

    def make_kernels(self):
        """Each cell's are made when it is run, before its graphs."""

    def sides(self, cell):
        """side -> makes its launches, one for each cache."""
        kernels = self.kernels
        q, caches = kernels.normal(cell.batch, cell.queries, cell.heads, HEAD_DIM), kernels.caches(cell)
        out = self.torch.empty_like(q)
        makers = {"flashjit": functools.partial(kernels.ours, q, out, caches)}
        for size in cell.page_sizes:
            makers[f"pages_{size}"] = functools.partial(kernels.paged, q, out, caches, size)
        for side in E4M3_SIDES if cell.group == "e4m3" else ():
            makers[side] = functools.partial(kernels.stored_in_8_bits, q, out, caches, side == "e4m3_token_scales")
        if cell.has_peers:
            for side in PEER_SIDES:
                if side.removesuffix("_heads_first") in kernels.peers:
                    makers[side] = lambda side=side: [kernels.theirs(q, *cache, side) for cache in caches]
        return makers, out, kernels.expected(q, *caches[0])

    def checked(self, launches, out, expected):
        out.fill_(math.nan)
        returned = launches[0]()
        got = (out if returned is None else returned)[0].float()
        if not (got - expected).abs().max().item() < MAX_DIFFERENCE:
            raise RuntimeError("differs from the reference: not timed")
        return launches

    def made(self, cell, makers, out, expected):
        """The launches of each side, and why others are left out; of those of flashjit that is a failure."""
        launches, left_out = {}, {}
        for side, make in makers.items():
            try:
                launches[side] = self.checked(make(), out, expected)
            except Exception as error:  # a peer may raise what it likes
                left_out[side] = attention_peers.reason(error)[:MOST_LETTERS]
                if side not in self.peer_sides:
                    self.failures.append(f"{cell}: {side}: {left_out[side]}")
        return launches, left_out

    def run(self, cell):
        launches, left_out = self.made(cell, *self.sides(cell))
        return self.row(cell, self.stopwatch.microseconds(launches), left_out)

    row = staticmethod(decode_row)
    summarise = staticmethod(summarise_decode)
    format_row = staticmethod(format_decode_row)


def run_cells(comparison, progress):
    """Of the grids decode and large. RuntimeError when flashjit failed in one of them."""
    record = progress.record
    with comparison.torch.no_grad():
        make_kernels(comparison, progress)
        for cell in comparison.cells:
            record["rows"].append(comparison.run(cell))
            record["summary"] = comparison.summarise(record["rows"])
            progress.keep(comparison.format_row(cell, record["rows"][-1]))
    print(format_decode_summary(record["summary"]))
    comparison.require_no_failure()


def compare_decode(torch, flashjit, stopwatch, peers, arguments):
    """Runs the cells and prints and writes what they give. RuntimeError when flashjit failed in one of them."""
    kernels = DecodeKernels(torch, flashjit, peers)
    comparison = DecodeComparison(kernels, GraphStopwatch(torch, stopwatch.gemm_tflops), arguments.cells)
    record = new_record(kernels, comparison.stopwatch, DECODE_PEERS)
    print_conditions(record, "decode, in graphs", "medians of replays")
    run_cells(comparison, Progress(record, arguments.json))
