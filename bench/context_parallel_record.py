# SPDX-License-Identifier: Apache-2.0
"""What context_parallel.py writes: the step "distributed" of a record of scripts/gpu-check, with a part for each number of
GPUs, which hosts of other numbers leave as it is."""

import datetime
import json
import os

from context_parallel_cells import cell_of

STEP = "distributed"


def read_record(path):
    if not path.exists():
        raise RuntimeError(f"{path}: there is no record; scripts/gpu-check --steps {STEP} begins one")
    return json.loads(path.read_text())


def write_record(path, record):
    """Whole or not at all."""
    path.with_suffix(".new").write_text(json.dumps(record, indent=1) + "\n")
    os.replace(path.with_suffix(".new"), path)


def part_of(record, gpus):
    return record["steps"][STEP]["gpus"][str(gpus)]


def begin_part(record, gpus, versions):
    """The part for so many GPUs: what the record has of it, unless that is of other versions."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    parts = record["steps"].get(STEP, {}).get("gpus", {})
    old = parts.get(str(gpus), {})
    is_same = all(old.get(name) == value for name, value in versions.items())
    parts[str(gpus)] = {**versions, "date": now, "rows": old["rows"] if is_same else []}
    record["steps"][STEP] = {"date": now, "sources": versions["sources"], "gpus": parts}
    return parts[str(gpus)]


def keep(path, row):
    """Writes a row in the place of the cell's earlier one."""
    record = read_record(path)
    part = part_of(record, row["gpus"])
    others = [other for other in part["rows"] if cell_of(other) != cell_of(row)]
    part["rows"] = sorted([*others, row], key=cell_of)
    write_record(path, record)
