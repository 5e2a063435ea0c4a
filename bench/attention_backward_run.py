# SPDX-License-Identifier: Apache-2.0
"""Runs compare_peers.py --pass backward: the Python package flashjit beside cuDNN and FlashAttention-2 of PyTorch, whose
backwards are timed alone. What it needs of a GPU comes from outside, so that it also runs where there is none."""

import functools
import math

import attention_peers
from attention_backward import backward_row, format_backward_row, format_backward_summary, summarise_backward
from attention_peers import ALL_BACKWARD_PEERS
from attention_scores_run import MOST_LETTERS, Comparison, Progress, make_kernels, new_record, print_conditions

GRADIENTS = ("dq", "dk", "dv")
# Of some rows of one head's gradient against FlashAttention-2's: its distance over its length. Rounding of P, dS, the output
# and the gradients to bf16 gives 0.01 at most; one wrong row gives 0.1. Single rows that see few keys may have larger ones.
MAX_DISTANCE = 0.05
ROWS = 64


def blocks(gradient):
    """[batch, heads, blocks of rows, elements] in f32."""
    batch, seqlen, heads, head_dim = gradient.shape
    rows = math.gcd(seqlen, ROWS)
    return gradient.float().reshape(batch, seqlen // rows, rows, heads, head_dim).permute(0, 3, 1, 2, 4).flatten(3)


def require_close(gradients, expected, peer):
    """Written so that NaN fails. peer: of what is expected."""
    for name, gradient, right in zip(GRADIENTS, gradients, expected):
        right = blocks(right)
        distance = ((blocks(gradient) - right).norm(dim=3) / right.norm(dim=3)).max().item()
        if not distance < MAX_DISTANCE:
            of_peer = ALL_BACKWARD_PEERS[peer]
            raise RuntimeError(f"{name} is {distance:.3g} of its length from that of {of_peer}: not timed")


class BackwardKernels:
    """What flashjit and its peers do for a cell. makers: of a peer's function, as attention_peers.BACKWARD has them."""

    def __init__(self, torch, flashjit, peers, cells, device="cuda", makers=None):
        self.torch, self.flashjit, self.peers, self.device = torch, flashjit, peers, device
        self.makers = makers or attention_peers.BACKWARD
        torch.manual_seed(0)
        elements = max(math.prod(problem.shape.shape()) for cell in cells for problem in cell.ours.values())
        self.memory = [torch.randn((elements, ), dtype=torch.bfloat16, device=device) for _ in range(4)]

    def inputs(self, shape):
        """dout, q, k and v, in memory that all cells share."""
        sizes = shape.shape(), shape.shape(), shape.shape_of_keys(), shape.shape_of_keys()
        return [memory[: math.prod(size)].view(size) for memory, size in zip(self.memory, sizes)]

    def ours(self, problem):
        """Runs forward and returns a function that enqueues backward alone, into memory that is NaN before, and returns the
        gradients."""
        dout, q, k, v = self.inputs(problem.shape)
        options = {"causal": problem.shape.causal}
        if problem.window is not None:
            options["window"] = problem.window, 0
        out, lse = self.flashjit.attention(q, k, v, lse=True, **options)
        if problem.variant is not None:
            options["variant"] = problem.variant
        if problem.deterministic:
            options["deterministic"] = True
        dtypes = "bfloat16", problem.dtype_kv, problem.dtype_kv
        gradients = {name: self.torch.full_like(tensor, math.nan, dtype=getattr(self.torch, dtype))
                     for name, tensor, dtype in zip(GRADIENTS, (q, k, v), dtypes)}
        return functools.partial(self.flashjit.attention_backward, dout, q, k, v, out, lse, **gradients, **options)

    def theirs(self, name, problem):
        """A peer's likewise."""
        windowed = {} if problem.window is None else {"window": problem.window}
        launch = self.makers[name](self.torch, *self.inputs(problem.shape), problem.shape.causal, **windowed)
        return attention_peers.deterministic(self.torch, launch) if problem.deterministic else launch


class BackwardComparison(Comparison):

    def __init__(self, kernels, stopwatch, cells, figures=None):
        super().__init__(kernels, stopwatch, cells)
        self.figures = figures

    def call_once(self, cell):
        """flashjit's sides of a cell, so that their kernels are there. What fails is told when the cell is run."""
        for problem in cell.ours.values():
            try:
                self.kernels.ours(problem)()
            except Exception:
                continue

    def makers(self, cell):
        """side -> the problem, and a function that makes its launch."""
        kernels, ours = self.kernels, cell.ours
        makers = {side: (problem, functools.partial(kernels.ours, problem)) for side, problem in ours.items()}
        for peer in cell.peers:
            if peer in kernels.peers:
                makers[peer] = ours["flashjit"], functools.partial(kernels.theirs, peer, ours["flashjit"])
        return makers

    def sides(self, cell):
        """Of a cell: side -> microseconds, and side -> why it was left out, as it cannot do it or does it wrong; of flashjit
        that is a failure."""
        expected = functools.lru_cache(lambda shape, window: self.kernels.theirs(cell.reference, cell.ours["flashjit"]._replace(
            shape=shape, window=window))())
        launchers, left_out = {}, {}
        for side, (problem, make) in self.makers(cell).items():
            try:
                launch = make()
                require_close(launch(), expected(problem.shape, problem.window), cell.reference)
                launchers[side] = launch
            except Exception as error:  # a peer may raise what it likes
                left_out[side] = attention_peers.reason(error)[:MOST_LETTERS]
                if side in cell.ours:
                    self.failures.append(f"{cell}: {side}: {left_out[side]}")
        return self.timed(launchers) if launchers else {}, left_out

    def run(self, cell):
        return backward_row(cell, *self.sides(cell), self.figures)


def compare_backward(torch, flashjit, stopwatch, peers, arguments, figures=None, **of_kernels):
    """Runs the cells and prints and writes what they give. figures: PeerFigures of this pass; of_kernels: where there is no
    GPU, the device and what stands for the peers. RuntimeError when flashjit failed in one of the cells."""
    kernels = BackwardKernels(torch, flashjit, peers, arguments.cells, **of_kernels)
    comparison = BackwardComparison(kernels, stopwatch, arguments.cells, figures)
    record = new_record(kernels, stopwatch, ALL_BACKWARD_PEERS)
    if figures:
        record["best_peers"] = {key: figures.record[key] for key in ("date", "conditions", "peers")}
    print_conditions(record, "gradients of q, k and v", of_pass="backward")
    progress = Progress(record, arguments.json)
    with torch.no_grad():
        make_kernels(comparison, progress)
        for cell in comparison.cells:
            record["rows"].append(comparison.run(cell))
            record["summary"] = summarise_backward(record["rows"])
            progress.keep(format_backward_row(cell, record["rows"][-1]))
    print(format_backward_summary(record["summary"]))
    comparison.require_no_failure()
