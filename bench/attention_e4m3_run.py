# SPDX-License-Identifier: Apache-2.0
"""Runs compare_peers.py --dtype e4m3: the Python package flashjit with queries, keys and values of e4m3 beside cuDNN and
FlashAttention-2 of PyTorch on the same numbers in bf16. What it needs of a GPU comes from outside, so that it also runs
where there is none."""

import functools
import math

import attention_peers
from attention_e4m3 import SUMS, e4m3_rows, format_e4m3_rows, format_e4m3_summary, summarise_e4m3
from attention_peers import E4M3_PEERS
from attention_scores_run import MOST_LETTERS, Comparison, Progress, make_kernels, new_record, print_conditions

# Of a head's output against a peer's: its distance over its length. Probabilities rounded to e4m3 give 0.03 at most; a wrong
# scale, order of keys or head gives 0.1 and more.
MAX_DISTANCE = 0.05


def require_close(out, expected):
    """Written so that NaN fails."""
    out, expected = (tensor.float().transpose(1, 2).flatten(2) for tensor in (out, expected))
    distance = ((out - expected).norm(dim=2) / expected.norm(dim=2)).max().item()
    if not distance < MAX_DISTANCE:
        raise RuntimeError(f"a head is {distance:.3g} of its length from that of a peer: not timed")


class E4m3Kernels:
    """What flashjit and its peers do for a cell. launcher: of a peer, as attention_peers.launcher."""

    def __init__(self, torch, flashjit, peers, cells, device="cuda", launcher=attention_peers.launcher):
        self.torch, self.flashjit, self.peers, self.launcher = torch, flashjit, peers, launcher
        torch.manual_seed(0)
        elements = max(math.prod(cell.shape.shape()) for cell in cells)
        normal = [torch.randn((elements, ), dtype=torch.bfloat16, device=device) for _ in range(3)]
        self.in_8_bits = [tensor.to(torch.float8_e4m3fn) for tensor in normal]
        self.in_16_bits = [tensor.to(torch.bfloat16) for tensor in self.in_8_bits]
        self.out = torch.empty((elements, ), dtype=torch.bfloat16, device=device)

    def views(self, cell, memory):
        return [tensor[: math.prod(cell.shape.shape())].view(cell.shape.shape()) for tensor in memory]

    def ours(self, cell, sums):
        """Into memory that is NaN before."""
        out = self.views(cell, [self.out])[0].fill_(math.nan)
        return functools.partial(self.flashjit.attention, *self.views(cell, self.in_8_bits), out=out,
                                 causal=cell.shape.causal, accumulate=sums)

    def theirs(self, cell, peer):
        return self.launcher(self.torch, peer, *self.views(cell, self.in_16_bits), cell.shape.causal)


class E4m3Comparison(Comparison):

    def __init__(self, kernels, stopwatch, cells, figures=None):
        super().__init__(kernels, stopwatch, cells)
        self.figures = figures

    def call_once(self, cell):
        """flashjit's sides of a cell, so that their kernels are there. What fails is told when the cell is run."""
        for sums in SUMS:
            try:
                self.kernels.ours(cell, sums)()
            except Exception:
                continue

    def sides(self, cell):
        """Of a cell: side -> microseconds, and side -> why it was left out, as it cannot do it or does it wrong; of flashjit
        that is a failure."""
        kernels = self.kernels
        makers = {peer: functools.partial(kernels.theirs, cell, peer) for peer in kernels.peers}
        makers |= {sums: functools.partial(kernels.ours, cell, sums) for sums in SUMS}
        launchers, left_out, expected = {}, {}, None
        for side, make in makers.items():
            try:
                launch = make()
                out = launch()
                if expected is None and side in kernels.peers:
                    expected = out
                require_close(out, expected)
                launchers[side] = launch
            except Exception as error:  # a peer may raise what it likes
                left_out[side] = attention_peers.reason(error)[:MOST_LETTERS]
                if side in SUMS:
                    self.failures.append(f"{cell}: {side}: {left_out[side]}")
        return self.timed(launchers) if launchers else {}, left_out

    def run(self, cell):
        return e4m3_rows(cell, *self.sides(cell), self.figures)


def compare_e4m3(torch, flashjit, stopwatch, peers, arguments, figures=None, **of_kernels):
    """Runs the cells and prints and writes what they give. figures: PeerFigures of e4m3; of_kernels: where there is no GPU,
    the device and what launches the peers. RuntimeError when flashjit failed in one of the cells."""
    if not peers:
        raise RuntimeError("--dtype e4m3 compares outputs with those of a peer: there is none here")
    kernels = E4m3Kernels(torch, flashjit, peers, arguments.cells, **of_kernels)
    comparison = E4m3Comparison(kernels, stopwatch, arguments.cells, figures)
    record = new_record(kernels, stopwatch, E4M3_PEERS)
    if figures:
        record["best_peers"] = {key: figures.record[key] for key in ("date", "conditions", "peers")}
    print_conditions(record, "flashjit in e4m3")
    progress = Progress(record, arguments.json)
    with torch.no_grad():
        make_kernels(comparison, progress)
        for cell in comparison.cells:
            rows = comparison.run(cell)
            record["rows"] += rows
            record["summary"] = summarise_e4m3(record["rows"])
            progress.keep(format_e4m3_rows(cell, rows))
    print(format_e4m3_summary(record["summary"]))
    comparison.require_no_failure()
