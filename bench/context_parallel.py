#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention and its gradients over the GPUs of this host, by flashjit.distributed: how near to linear scaling each scheme
comes, whether the library chooses the fastest, what its model of time predicts, and how it compares with PyTorch's
context_parallel over cuDNN. Needs 2, 4 or 8 GPUs, PyTorch with NCCL and the package flashjit.

Each GPU has a process. bf16, head dim 128, batch 1; on two GPUs 32 heads on 8, of 8k to 512k tokens and with a window at
128k; on four and eight 64 heads on 8, of 32k to 1M. Linear scaling is what one GPU does by a plain call with as much work
as each GPU has: its rate, in the same run, on all GPUs at once. Sides take turns, each round in another order; a time is the
median over rounds of the slowest rank's, by events around calls that follow each other. At 32k results are compared with
the definition (at most twice the error of a plain computation in 16 bits) and with a second run, bit for bit.

Rows go into the step "distributed" of a record of scripts/gpu-check, each as soon as it is measured, so that a run that is
cut off loses one cell. Run it again: cells that the record has of the same sources and versions are not measured again, and
no cell begins that would not end within --minutes. Exit status 1 if a result was wrong."""

import argparse
import pathlib
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from attention_grid import slug  # noqa: E402
from context_parallel_cells import GPUS, MASKS, PASSES, cell_of, missed, parallel_grid, parse_length, wrong  # noqa: E402
from context_parallel_record import STEP, begin_part, part_of, read_record, write_record  # noqa: E402
from sources_digest import ROOT, sources_digest  # noqa: E402

FOLDERS = ("templates", "generator", "distributed")  # what decides the speed here
MINUTES = 9.0
GRACE_SECONDS = 60  # behind which processes that have not ended are ended


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", choices=GPUS, metavar="N", help="default: the most that are here")
    parser.add_argument("--pass", dest="passes", nargs="+", choices=PASSES, default=PASSES, help="(%(default)s)")
    parser.add_argument("--mask", dest="masks", nargs="+", choices=MASKS, default=MASKS, help="(%(default)s)")
    parser.add_argument("--tokens", nargs="+", type=parse_length, metavar="N", help="such as 32k; default: all")
    parser.add_argument("--again", action="store_true", help="measure cells anew that the record has")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all cells (%(default)s)")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE", help="default: bench/results/<device>.json")
    arguments = parser.parse_args(argv)
    if arguments.minutes <= 0:
        parser.error(f"--minutes must be above 0, was {arguments.minutes}")
    return arguments


def require_gpus(torch, asked):
    """Numbers of GPUs to measure with, of those that are here."""
    count = torch.cuda.device_count()
    here = [gpus for gpus in GPUS if gpus <= count]
    if not here:
        raise RuntimeError(f"needs {GPUS[0]} GPUs or more, found {count}")
    if lacking := [gpus for gpus in asked or () if gpus not in here]:
        raise RuntimeError(f"--gpus must be at most {count}, of which this host has so many, was {lacking[0]}")
    return asked or here[-1:]


def asked_cells(gpus, arguments):
    return parallel_grid(gpus, arguments.passes, arguments.masks, arguments.tokens)


def spawn(torch, function, arguments, gpus, ends):
    """A process for each GPU; RuntimeError when one fails. Those that have not ended in time are ended."""
    context = torch.multiprocessing.spawn(function, arguments, gpus, join=False)
    try:
        while not context.join(max(0.0, ends + GRACE_SECONDS - time.time())):
            if time.time() >= ends + GRACE_SECONDS:
                raise RuntimeError("the processes did not end in time; cells that were measured are in the record")
    except torch.multiprocessing.ProcessException as error:
        raise RuntimeError(str(error)) from error
    finally:
        for process in context.processes:
            process.kill()


def measure(torch, gpus, arguments, path, ends):
    import context_parallel_run

    import flashjit

    device = torch.cuda.get_device_name(0)
    versions = {"version": flashjit.__version__, "torch": torch.__version__,
                "nccl": ".".join(map(str, torch.cuda.nccl.version())), "sources": sources_digest(folders=FOLDERS)}
    record = read_record(path)
    if record["device"] != device:
        raise RuntimeError(f"{path}: must be of {device}, was of {record['device']}")
    known = {cell_of(row) for row in begin_part(record, gpus, versions)["rows"]}
    cells = [cell for cell in asked_cells(gpus, arguments) if arguments.again or cell not in known]
    write_record(path, record)
    print(f"{gpus} of {device}, flashjit {versions['version']}, PyTorch {versions['torch']}, NCCL {versions['nccl']}; "
          f"{len(cells)} cells to measure", flush=True)
    with tempfile.TemporaryDirectory(prefix="flashjit-context-parallel-") as scratch:
        run = context_parallel_run.Run(cells, str(pathlib.Path(scratch, "store")), path, ends)
        spawn(torch, context_parallel_run.main, (gpus, run), gpus, ends)


def report(record, asked, arguments):
    """Prints what is not as it should be; whether nothing is wrong."""
    is_right = True
    for gpus in asked:
        part = part_of(record, gpus)
        failures = [text for row in part["rows"] for text in wrong(row)]
        slow = [text for row in part["rows"] for text in missed(row)]
        known = {cell_of(row) for row in part["rows"]}
        left = [f"{cell}: not measured yet; run this again" for cell in asked_cells(gpus, arguments) if cell not in known]
        print("\n".join([*failures, *slow, *left]))
        is_right = is_right and not failures
    return is_right


def compare(arguments):
    try:
        import torch
        import torch.multiprocessing
    except ImportError as error:
        raise RuntimeError(f"needs PyTorch: {error}") from error
    asked = require_gpus(torch, arguments.gpus)
    path = arguments.record or ROOT / "bench" / "results" / f"{slug(torch.cuda.get_device_name(0))}.json"
    ends = time.time() + 60 * arguments.minutes
    for gpus in asked:
        measure(torch, gpus, arguments, path.resolve(), ends)
    return report(read_record(path), asked, arguments)


def main():
    try:
        sys.exit(0 if compare(parse_arguments()) else 1)
    except (RuntimeError, OSError, ValueError) as error:
        sys.exit(f"context_parallel: {error}")


if __name__ == "__main__":
    main()
