# SPDX-License-Identifier: Apache-2.0
"""Runs the grid ragged of compare_peers.py, as attention_scores_run runs the grid scores."""

import itertools

import attention_peers
from attention_peers import RAGGED_PEERS
from attention_ragged import DENSE_AT, TOKENS, format_ragged_row, format_ragged_summary, ragged_row, summarise_ragged
from attention_scores_run import MOST_LETTERS, Comparison, Kernels, Progress, make_kernels, new_record, print_conditions

MAX_DIFFERENCE = 0.02  # of an output element from FlashAttention-2's: roundings of P and of the output to bf16


class RaggedKernels(Kernels):
    """What flashjit and FlashAttention-2 do for a cell."""

    def __init__(self, torch, flashjit, peers, device="cuda", tokens=TOKENS):
        super().__init__(torch, flashjit, peers, device)
        self.tokens = tokens

    def packed(self, shape):
        """q, k, v and out, which all cells share."""
        sizes = self.tokens, shape.heads, shape.head_dim
        elements = self.tokens * shape.heads * shape.head_dim
        if self.memory[0].numel() < elements:
            self.memory = [self.arrays.normal((elements, ), "bfloat16") for _ in range(4)]
        return [memory[:elements].view(sizes) for memory in self.memory]

    def offsets(self, lengths):
        return self.arrays.array([0, *itertools.accumulate(lengths)], "int32")

    def options(self, lengths):
        starts = self.offsets(lengths)
        return {"cu_seqlens_q": starts, "cu_seqlens_kv": starts, "max_seqlen_q": max(lengths), "max_seqlen_kv": max(lengths)}

    def fa2(self, tensors, lengths):
        q, k, v = tensors[:3]
        starts, longest = self.offsets(lengths), max(lengths)
        forward = self.torch.ops.aten._flash_attention_forward
        return lambda: forward(q, k, v, starts, starts, longest, longest, 0.0, True, False)[0]

    def dense(self, shape, length):
        batched = (self.tokens // length, length, shape.heads, shape.head_dim)
        rows = batched[0] * length
        return self.call([tensor[:rows].view(batched) for tensor in self.packed(shape)], {})


class RaggedComparison(Comparison):

    def __init__(self, kernels, stopwatch, cells):
        super().__init__(kernels, stopwatch, cells)
        self.dense = {}  # head dim -> length -> microseconds

    def dense_of(self, shape):
        if shape.head_dim not in self.dense:
            lengths = [length for length in DENSE_AT if length <= self.kernels.tokens]
            self.dense[shape.head_dim] = self.timed({length: self.kernels.dense(shape, length) for length in lengths})
        return self.dense[shape.head_dim]

    def make_kernels(self):
        """Each cell's, one after the other: there are few."""
        for cell in self.cells:
            for make in self.ours(cell).values():
                make()()
        self.stopwatch.wait()

    def ours(self, cell):
        tensors, options = self.kernels.packed(cell.shape), self.kernels.options(cell.lengths)
        return {"flashjit": lambda: self.kernels.call(tensors, options),
                "mma": lambda: self.kernels.mma_call(tensors, options)}

    def sides(self, cell):
        """side -> microseconds, and side -> why it was left out. What is not near FlashAttention-2 is not timed."""
        tensors, ours = self.kernels.packed(cell.shape), self.ours(cell)
        launchers, left_out, expected = {}, {}, None
        if "fa2" in self.kernels.peers:
            launchers["fa2"] = self.kernels.fa2(tensors, cell.lengths)
            expected = launchers["fa2"]().float()
        for side, make in ours.items():
            try:
                launchers[side] = self.checked(make(), tensors[3], expected)
            except Exception as error:
                left_out[side] = attention_peers.reason(error)[:MOST_LETTERS]
                self.failures.append(f"{cell}: {side}: {left_out[side]}")
        return self.timed(launchers), left_out

    @staticmethod
    def checked(call, out, expected):
        out.fill_(float("nan"))
        call()
        if expected is not None and not (out.float() - expected).abs().max().item() < MAX_DIFFERENCE:
            raise RuntimeError("differs from FlashAttention-2: not timed")
        return call

    def run(self, cell):
        us, left_out = self.sides(cell)
        return ragged_row(cell, us, left_out, self.dense_of(cell.shape))


def compare_ragged(torch, flashjit, stopwatch, peers, arguments):
    """Runs the cells and prints and writes what they give. RuntimeError when flashjit failed in one of them."""
    kernels = RaggedKernels(torch, flashjit, peers)
    comparison = RaggedComparison(kernels, stopwatch, arguments.cells)
    record = new_record(kernels, stopwatch, RAGGED_PEERS)
    print_conditions(record, "causal")
    progress = Progress(record, arguments.json)
    with torch.no_grad():
        make_kernels(comparison, progress)
        for cell in comparison.cells:
            record["rows"].append(comparison.run(cell))
            record["summary"] = summarise_ragged(record["rows"])
            progress.keep(format_ragged_row(cell, record["rows"][-1]))
    print(format_ragged_summary(record["summary"]))
    comparison.require_no_failure()
