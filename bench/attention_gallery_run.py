# SPDX-License-Identifier: Apache-2.0
"""Runs the grid gallery of compare_peers.py, as attention_scores_run runs the grid scores."""

import functools

from attention_gallery import GalleryInputs, format_gallery_row, format_gallery_summary, gallery_row, share_seen
from attention_gallery import summarise_gallery
from attention_peers import GALLERY_PEERS
from attention_scores_run import Comparison, Kernels, Progress, make_kernels, new_record, print_conditions


class GalleryKernels(Kernels):
    """What flashjit and FlexAttention do for a cell."""

    def inputs(self, cell):
        shape = cell.shape
        return GalleryInputs(self.arrays, shape.batch, shape.heads, shape.seqlen, cell.numbers())

    def ours(self, cell, inputs, tensors):
        call = functools.partial(self.call, tensors, causal=cell.shape.causal)
        return {"flashjit": lambda: call(self.options(cell.feature, inputs, tensors)), "plain": lambda: call({})}


class GalleryComparison(Comparison):

    def run(self, cell):
        """The row of a cell."""
        inputs = self.kernels.inputs(cell)
        us, left_out = self.sides(cell, inputs)
        return gallery_row(cell, share_seen(cell.feature, inputs), us, left_out)


def run_gallery(comparison, progress):
    """Fills the record."""
    record = progress.record
    make_kernels(comparison, progress)
    for cell in comparison.cells:
        row = comparison.run(cell)
        record["rows"].append(row)
        record["summary"] = summarise_gallery(record["rows"])
        progress.keep(format_gallery_row(cell, row))


def compare_gallery(torch, flashjit, stopwatch, peers, arguments):
    """Runs the cells and prints and writes what they give. RuntimeError when flashjit failed in one of them."""
    kernels = GalleryKernels(torch, flashjit, peers)
    comparison = GalleryComparison(kernels, stopwatch, arguments.cells)
    record = new_record(kernels, stopwatch, GALLERY_PEERS)
    print_conditions(record, "causal where that says something")
    with torch.no_grad():
        run_gallery(comparison, Progress(record, arguments.json))
    print(format_gallery_summary(record["summary"]))
    comparison.require_no_failure()
