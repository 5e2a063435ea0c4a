# SPDX-License-Identifier: Apache-2.0
"""What tuning gives on a GPU, for scripts/gpu-check: the forward grid is tuned twice from nothing, the result is
measured beside the default rules, as are the records inside the library, and shipped to a fresh machine."""

import json
import random
import shutil
import struct

MAX_SECONDS = 20  # for one problem and bucket
MIN_SPEEDUP = 0.99  # of what is chosen over the default, in each cell
MIN_AGREEMENT = 0.95  # of the cells, when tuned twice
AS_GOOD = 0.01  # how much slower another choice may be and still agree


def read_records(cache):
    """The tuning records in a cache's directory, by name of problem and bucket."""
    return {path.name: json.loads(path.read_text()) for path in (cache / "tuning").glob("*/*.json")}


def time_of(record, variant):
    """Of a candidate that was measured to the end; None of others."""
    for candidate in record["candidates"]:
        if candidate["variant"] == variant and candidate["outcome"] == "measured":
            return candidate["median_us"]
    return None


def difference(first, second):
    """How much slower the first record's choice is than the second's, by the second's times; None: it was no match."""
    if first["chosen"] == second["chosen"]:
        return 0.0
    ours, theirs = time_of(second, first["chosen"]), time_of(second, second["chosen"])
    return ours / theirs - 1 if ours and theirs else None


def compare(first, second):
    """What two tunings of the same cells agree on."""
    differences = {name: difference(first[name], second[name]) for name in sorted(first)}
    agreeing = [name for name, by in differences.items() if by is not None and by <= AS_GOOD]
    return {
        "cells": len(differences),
        "same": sum(first[name]["chosen"] == second[name]["chosen"] for name in first),
        "agreement": len(agreeing) / len(differences),
        "differing": {name: by for name, by in differences.items() if by != 0},
    }


def tune_grid(flashjit, cache):
    # Again: there may be records inside the library.
    text = flashjit("autotune", "--grid", "forward", "--again", "--json", FLASHJIT_CACHE_DIR=str(cache))
    return json.loads(text)["devices"][0]


def measure_choices(flashjit, cache, file):
    """What calls with this cache use, beside the default rules."""
    flashjit("bench", "--grid", "tuned", "--json", str(file), FLASHJIT_CACHE_DIR=str(cache))
    return json.loads(file.read_text())


def write_npy(path, shape):
    """A file of f16, normally distributed and repeated."""
    header = f"{{'descr': '<f2', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    count = shape[0] * shape[1] * shape[2] * shape[3]
    numbers = [random.gauss(0, 1) for _ in range(4096)]
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
                     + struct.pack("<4096e", *numbers) * (count // 4096))


def ship(flashjit, cache, directory):
    """The counters of processes that start with nothing but a bundle of this cache, and call attention."""
    bundle, fresh = directory / "kernels.fjb", directory / "fresh"
    flashjit("cache", "export", "--chosen", str(bundle), FLASHJIT_CACHE_DIR=str(cache))
    fresh.mkdir()  # a process that stores no kernel makes no directory to leave its counters in
    there = {"FLASHJIT_CACHE_DIR": str(fresh), "FLASHJIT_BUNDLES": str(bundle)}
    calls = 0
    for head_dim in (64, 128, 256):
        file = directory / f"x{head_dim}.npy"
        write_npy(file, (1, 2048, 64, head_dim))  # in a bucket of the forward grid
        for mask in ("full", "causal"):
            flashjit("attend", *[str(file)] * 3, "-o", str(directory / "out.npy"), "--device", "gpu", "--mask", mask,
                     **there)
            calls += 1
    counters = json.loads(flashjit("info", "--json", **there))["cache"]["totals"]
    return {"bundle_bytes": bundle.stat().st_size, "calls": calls, "counters": counters}


def measure(flashjit, directory):
    """flashjit(*arguments, **environment) runs the command and gives its output."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    first, second = directory / "first", directory / "second"
    cells = tune_grid(flashjit, first)
    tune_grid(flashjit, second)
    return {
        "cells": cells["cells"],
        "summary": cells["summary"],
        "twice": compare(read_records(first), read_records(second)),
        "tuned": measure_choices(flashjit, first, directory / "tuned.json"),
        "builtin": measure_choices(flashjit, directory / "empty", directory / "builtin.json"),
        "shipped": ship(flashjit, first, directory),
    }


def troubles(result):
    """What is not as it must be, in one line each."""
    found = []
    for cell in result["cells"]:
        if cell["state"] != "tuned" or not cell["complete"]:
            found.append(f"{cell['problem']} {cell['bucket']}: {cell['state']}, {cell.get('why', 'not complete')}")
        elif cell["seconds"] > MAX_SECONDS:
            found.append(f"{cell['problem']} {cell['bucket']}: took {cell['seconds']} s, more than {MAX_SECONDS}")
    if result["twice"]["agreement"] < MIN_AGREEMENT:
        found.append(f"tuned twice, only {result['twice']['agreement']:.2f} of the cells agree")
    for which in ("tuned", "builtin"):
        if result[which]["smallest_speedup"] < MIN_SPEEDUP:
            found.append(f"{which}: {result[which]['smallest_speedup']:.3f} times the default's rate in a cell")
    counters = result["shipped"]["counters"]
    found += [f"shipped: {name}: {counters[name]}" for name in ("compiles", "tunings", "timed_launches") if counters[name]]
    found += [f"shipped: {name}: {counters[name]}, fewer than calls" for name in ("bundle_hits", "records_used")
              if counters[name] < result["shipped"]["calls"]]
    return found
