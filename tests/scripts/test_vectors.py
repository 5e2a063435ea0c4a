# SPDX-License-Identifier: Apache-2.0
"""The vectors from hardware and what makes them, without a GPU."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
VECTORS = ROOT / "tests" / "vectors"
sys.dont_write_bytecode = True
sys.path.insert(0, str(VECTORS))

import make_forms  # noqa: E402
from attention_cases import CASES  # noqa: E402
from forms.tensor_copies import tensor, written_units  # noqa: E402


def load_script(name):
    """A script whose name is no module's."""
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(ROOT / "scripts" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


gpu_vectors = load_script("gpu-vectors")


class Data(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.index = json.loads((VECTORS / "data" / "index.json").read_text())
        cls.results = {path.stem: json.loads(path.read_text()) for path in (VECTORS / "results").glob("*.json")}

    def test_files_are_what_the_forms_say(self):
        for name, content in make_forms.make_files().items():
            with self.subTest(name):
                self.assertEqual(content, (VECTORS / "data" / name).read_bytes())

    def test_results_are_of_these_forms(self):
        self.assertTrue(self.results)
        refused = {form["name"]: form["refused"] for form in self.index["forms"] if "refused" in form}
        names = {form["name"] for form in self.index["forms"]} - set(refused)
        names |= {f"attention {case.name}" for case in CASES}
        for device, results in self.results.items():
            with self.subTest(device):
                self.assertEqual(results["digest"], self.index["digest"])
                self.assertEqual(set(results["results"]), names)
                self.assertEqual(results["refused"], refused)

    def test_results_fill_their_file(self):
        sizes = {form["name"]: form["out_bytes"] for form in self.index["forms"]}
        for device, results in self.results.items():
            end = 0
            for name, (at, size) in sorted(results["results"].items(), key=lambda item: item[1]):
                self.assertEqual((name, at), (name, end))
                self.assertEqual(size, sizes.get(name, size))
                end = at + size
            self.assertEqual(end, (VECTORS / "results" / f"{device}.bin").stat().st_size)

    def test_all_of_it_is_small(self):
        files = [path for folder in ("data", "results") for path in (VECTORS / folder).iterdir()]
        self.assertLess(sum(path.stat().st_size for path in files), 3 << 19)


class WrittenUnits(unittest.TestCase):
    def test_rows_as_wide_as_the_swizzle_fill_the_tile(self):
        map_ = tensor("u16", (64, 16), (32, 16), swizzle="bytes_64")
        self.assertEqual(sorted(written_units(map_)), list(range(64)))

    def test_narrow_rows_leave_gaps(self):
        map_ = tensor("u16", (64, 16), (8, 8), swizzle="bytes_32")
        self.assertEqual(sorted(written_units(map_)), [0, 2, 4, 6, 9, 11, 13, 15])


class GpuVectors(unittest.TestCase):
    FORMS = [{"name": "runs"}, {"name": "refused", "refused": "CUDA_ERROR_ILLEGAL_INSTRUCTION"},
             {"name": "partly", "compare": {"units": [1]}}]
    REFUSED = {"refused": "cuCtxSynchronize: CUDA_ERROR_ILLEGAL_INSTRUCTION"}

    def surprises(self, errors):
        with contextlib.redirect_stderr(io.StringIO()) as told:
            names = gpu_vectors.surprises(self.FORMS, errors)
        self.assertEqual(len(told.getvalue().splitlines()), len(names))
        return names

    def test_refused_forms_must_end_as_the_index_says(self):
        self.assertEqual(self.surprises(self.REFUSED), [])
        self.assertEqual(self.surprises({}), ["refused"])
        self.assertEqual(self.surprises({"refused": "cuCtxSynchronize: CUDA_ERROR_LAUNCH_FAILED"}), ["refused"])
        self.assertEqual(self.surprises(self.REFUSED | {"runs": "cuLaunchKernel: CUDA_ERROR_INVALID_VALUE"}), ["runs"])

    def test_written_results_are_equal_to_themselves(self):
        class FakeDriver:
            device_name = staticmethod(lambda: "Some GPU")
            version = staticmethod(lambda: "1.2 (CUDA 13.0)")

        results = {"runs": b"abc", "partly": bytes(16) + b"x" * 16}
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "some-gpu"
            gpu_vectors.write_results(path, FakeDriver, {"digest": "0123"}, results, self.REFUSED)
            written = json.loads(path.with_suffix(".json").read_text())
            self.assertEqual(written["refused"], {"refused": "CUDA_ERROR_ILLEGAL_INSTRUCTION"})
            self.assertEqual(written["results"], {"runs": [0, 3], "partly": [3, 32]})
            self.assertEqual(gpu_vectors.differences(path, self.FORMS, results), [])
            results["partly"] = b"y" * 16 + b"x" * 16  # what the form does not write
            self.assertEqual(gpu_vectors.differences(path, self.FORMS, results), [])
            results["partly"] = b"y" * 32
            self.assertEqual(gpu_vectors.differences(path, self.FORMS, results), ["partly"])
            results = {"runs": b"abd", "new": b""}
            self.assertEqual(gpu_vectors.differences(path, self.FORMS, results), ["runs", "new"])


if __name__ == "__main__":
    unittest.main()
