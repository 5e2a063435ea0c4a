#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of this folder, which need a GPU and the package flashjit; what lacks its library is skipped. Each file
is a process of its own, several side by side, as the host is what they wait for; what one prints comes at its end."""

import argparse
import concurrent.futures
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

FOLDER = pathlib.Path(__file__).parent
LIBRARIES = ("torch", "transformers", "jax", "cupy")
CORES_OF_FILE = 3  # NVRTC, PyTorch's compiler and Python itself


def run_file(name):
    """Returns what is told of it: a dict of plain values."""
    suite = unittest.defaultTestLoader.discover(str(FOLDER), pattern=name)
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    return {"passed": result.wasSuccessful(), "tests": result.testsRun,
            "tests_skipped": {test.id(): reason for test, reason in result.skipped}}


def run_apart(name):
    """The same by another process, which may crash. Shows what it prints."""
    with tempfile.TemporaryDirectory(prefix="flashjit-python-gpu-") as scratch:
        file = pathlib.Path(scratch) / "result.json"
        # JAX would keep three quarters of the GPU's memory from the others.
        environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
        process = subprocess.run([sys.executable, __file__, "--file", name, "--json", file], stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, errors="replace", env=environment)
        print(f"== {name}\n{process.stdout}", flush=True)
        if file.exists():
            return json.loads(file.read_text())
        print(f"{name}: ended with {process.returncode} before its tests did", flush=True)
        return {"passed": False, "tests": 0, "tests_skipped": {}}


def run_all():
    names = sorted(path.name for path in FOLDER.glob("test_*.py"))
    with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // CORES_OF_FILE)) as pool:
        results = list(pool.map(run_apart, names))
    skipped = {test: reason for result in results for test, reason in result["tests_skipped"].items()}
    return {"passed": all(result["passed"] for result in results), "tests": sum(result["tests"] for result in results),
            "tests_skipped": skipped, "versions": versions()}


def versions():
    packages = importlib.metadata.packages_distributions()
    return {name: importlib.metadata.version(packages[name][0]) for name in LIBRARIES if name in packages}


def main():
    sys.dont_write_bytecode = True
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", help="of this folder: this one alone, in this process")
    parser.add_argument("--json", type=pathlib.Path, help="a file for the counts, and for what was skipped and why")
    arguments = parser.parse_args()
    result = run_file(arguments.file) if arguments.file else run_all()
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if not arguments.file:
        failed = "" if result["passed"] else ", with failures"
        print(f"{result['tests']} tests, {len(result['tests_skipped'])} of them skipped{failed}")
    return 0 if result["passed"] and result["tests"] > len(result["tests_skipped"]) else 1


if __name__ == "__main__":
    sys.exit(main())
