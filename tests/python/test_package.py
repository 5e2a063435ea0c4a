# SPDX-License-Identifier: Apache-2.0
"""Engines, the command, and what the package finds around it."""

import ctypes
import inspect
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import flashjit
import numpy as np
from flashjit import _errors, _wheels
from support import emulating_engine, make_inputs


class Engines(unittest.TestCase):

    def test_count_what_they_do(self):
        engine = emulating_engine()
        before = engine.counters()
        engine.attention(*make_inputs())
        self.assertEqual(engine.counters()["compiles"], before["compiles"])  # it was prepared
        self.assertGreater(before["compiles"], 0)
        self.assertEqual(set(flashjit.counters()), set(before))

    def test_refuse_options(self):
        for options in ({"policy": "sometimes"}, {"tuning": "sometimes"}, {"emulate": "sm_1"}):
            with self.subTest(options), self.assertRaisesRegex(flashjit.Error, next(iter(options.values()))):
                flashjit.Engine(**options)

    def test_name_the_option_of_a_wrong_type(self):
        for name in ("policy", "tuning", "emulate", "cache_directory", "bundles", "nvrtc_path"):
            with self.subTest(name), self.assertRaisesRegex(flashjit.InvalidArgument, f"^{name}: must be .* was 5$"):
                flashjit.Engine(**{name: 5})

    def test_take_paths(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory)
            engine = flashjit.Engine(policy="cache_only", cache_directory=path, bundles=[path / "a", path / "b"],
                                     emulate="sm_90a")
            with self.assertRaises(flashjit.CacheMiss):
                engine.attention(*make_inputs())

    def test_are_initialised_once(self):
        engine = flashjit.Engine(emulate="sm_90a", cache_directory="")
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^Engine: must be initialised once"):
            engine.__init__()

    def test_prepare_takes_the_dtypes_of_libraries(self):
        engine = emulating_engine()
        for dtype in ("float16", type("float16", (), {}), mock.Mock(__str__=lambda self: "torch.float16")):
            engine.prepare(dtype, 64)
        message = """^dtype: must be "float16" or "bfloat16", was 'float32'$"""
        with self.assertRaisesRegex(flashjit.InvalidArgument, message):
            engine.prepare("float32", 64)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "head_dim"):
            engine.prepare("float16", 63)
        for wrong in (((8, 0), "^head_dim_v: must be .* or None for head_dim, was 0$"),
                      (("x",), "^head_dim: must be an int, was 'x'$"),
                      ((64, 2**40), "^head_dim_v: must be an int of 32 bits, was ")):
            with self.subTest(wrong), self.assertRaisesRegex(flashjit.InvalidArgument, wrong[1]):
                engine.prepare("float16", *wrong[0])

    def test_prepare_for_windows_of_all_sizes(self):
        emulating_engine()  # skips where nothing compiles
        engine = flashjit.Engine(emulate="sm_90a", cache_directory="")
        engine.prepare("float16", 64, causal=True, window=True)
        for window in ((7, 0), 1, None):
            with self.assertRaisesRegex(flashjit.InvalidArgument, "^window: must be True or False"):
                engine.prepare("float16", 64, window=window)
        compiles = engine.counters()["compiles"]
        self.assertGreater(compiles, 0)
        for left in (0, 5):
            engine.attention(*make_inputs(), window=(left, 0))
        self.assertEqual(engine.counters()["compiles"], compiles)

    def test_prepare_for_options_of_all_values(self):
        emulating_engine()  # skips where nothing compiles
        engine = flashjit.Engine(emulate="sm_90a", cache_directory="")
        engine.prepare("float16", 64, chunk=True, softcap=True, alibi=True, sinks=True, dropout=True)
        for feature in ("chunk", "softcap", "alibi", "sinks", "dropout", "dropout_mask"):
            with self.assertRaisesRegex(flashjit.InvalidArgument, f"^{feature}: must be True or False, .* was 30.0$"):
                engine.prepare("float16", 64, **{feature: 30.0})
        compiles = engine.counters()["compiles"]
        self.assertGreater(compiles, 0)
        for value in (1, 30):
            of_heads = np.full(2, value, np.float32)
            engine.attention(*make_inputs(), chunk=value, softcap=value, alibi_slopes=of_heads, sinks=of_heads,
                             dropout=value / 40, dropout_seed=value)
        self.assertEqual(engine.counters()["compiles"], compiles)

    def assert_prepared(self, problem, *calls):
        """Prepares, and checks that the calls compile nothing."""
        engine = flashjit.Engine(emulate="sm_80", cache_directory="")
        engine.prepare("float16", 64, **problem)
        compiles = engine.counters()["compiles"]
        self.assertGreater(compiles, 0)
        for options in calls:
            engine.attention(*make_inputs(), **options)
        self.assertEqual(engine.counters()["compiles"], compiles)

    def test_prepare_for_arrays_of_all_shapes(self):
        emulating_engine()  # skips where nothing compiles
        ones = np.ones
        prefixes = {"prefix": ones(1, np.int32)}, {"prefix": np.full(1, 20, np.int32), "causal": True}
        for problem, *calls in (
            ({"bias": "float32"}, {"bias": ones((1, 2, 16, 32), np.float32)}, {"bias": ones((1, 1, 1, 32), np.float32)}),
            ({"bias": np.float16}, {"bias": ones((1, 2, 16, 32), np.float16)}),
            ({"boolean_mask": True}, {"boolean_mask": ones((1, 2, 16, 32), bool)},
             {"boolean_mask": ones((1, 1, 16, 32), bool)}),
            ({"documents": True}, {"documents": ones((1, 32), np.int32)}),
            ({"prefix": True}, *prefixes), ({"prefix": True, "causal": True}, *prefixes),
            ({"tree": True}, {"tree": ones((1, 16, 1), np.int64)}, {"tree": ones((1, 16, 2), np.int64)}),
            ({"dropout": True, "dropout_mask": True},
             {"dropout": 0.5, "dropout_mask": ones((1, 2, 16, 32), bool)}),
            ({"ragged": True}, {"seqused_kv": ones(1, np.int32), "max_seqlen_kv": 3}, {"leftpad_kv": ones(1, np.int32)},
             {"seqused_q": ones(1, np.int32), "batch_indices_kv": np.zeros(1, np.int32)}),
            ({"ragged": True, "paged": True}, {"page_table": np.zeros((1, 1), np.int32)},
             {"page_table": np.zeros((3, 5), np.int32), "seqused_kv": np.full(1, 100, np.int32),
              "batch_indices_kv": ones(1, np.int32), "max_seqlen_kv": 128})):
            with self.subTest(problem):
                self.assert_prepared(problem, *calls)

    def test_prepare_for_functions_with_all_values(self):
        emulating_engine()  # skips where nothing compiles

        def functions(heads, tilt, reach):
            slope, groups = np.ones(heads, np.float32), np.ones((heads, 32), np.int64).T
            return {"score": flashjit.Score("score - tilt * slope(head)", slope=slope, tilt=tilt),
                    "mask": flashjit.Mask("query - key < reach * groups(key, 0)", reach=reach, groups=groups)}

        self.assert_prepared(functions(3, 0.0, 0), functions(2, 0.5, 9), functions(5, 2.0, 30))
        self.assert_prepared({"score": "score * 0.5f"}, {"score": flashjit.Score("score * 0.5f")})

    def test_prepare_for_block_masks(self):
        engine = emulating_engine()
        inputs, documents = make_inputs(), np.arange(32, dtype=np.int32)[None] // 8
        blocks = engine.block_mask(*inputs[:2], documents=documents)
        self.assert_prepared({"documents": True, "block_mask": True}, {"documents": documents, "block_mask": blocks})
        mask = flashjit.Mask("key < n", n=9)
        blocks = engine.block_mask(*inputs[:2], mask=mask)
        self.assert_prepared({"mask": flashjit.Mask("key < n", n=0), "block_mask": True},
                             {"mask": mask, "block_mask": blocks})

    def test_prepare_refuses_what_is_no_problem(self):
        engine = flashjit.Engine(emulate="sm_80", cache_directory="", policy="cache_only")
        of_bias = '^bias: must be "float16", "bfloat16", "float32" or None, was '
        wrong = np.ones(2, np.uint8)
        for options, message in (
            ({"causal": 2}, "^causal: must be True or False, .* was 2$"),
            ({"boolean_mask": np.ones((1, 1, 1, 32), bool)}, r"^boolean_mask: must be True or False, .* was array\("),
            ({"documents": 1}, "^documents: must be True or False, .* was 1$"),
            ({"prefix": None}, "^prefix: must be True or False, .* was None$"),
            ({"tree": "yes"}, "^tree: must be True or False, .* was 'yes'$"),
            ({"block_mask": 1}, "^block_mask: must be True or False, .* was 1$"),
            ({"block_mask": True}, "^block_mask: must not be given without boolean_mask, documents, tree or mask"),
            ({"ragged": np.int32([0, 5])}, r"^ragged: must be True or False, .* was array\("),
            ({"ragged": True, "documents": True, "block_mask": True}, "^block_mask: must not be given for a batch"),
            ({"ragged": True, "paged": 16}, "^paged: must be True or False, .* was 16$"),
            ({"paged": True}, "^paged: must not be true without ragged"),
            ({"bias": True}, of_bias + "True$"), ({"bias": "int32"}, of_bias + "'int32'$"),
            ({"bias": np.ones((1, 1, 1, 32), np.float32)}, of_bias + r"array\("),
            ({"score": True}, "^score: must be a flashjit.Score, a str or None, was True$"),
            ({"mask": flashjit.Score("score")}, "^mask: must be a flashjit.Mask, a str or None, was Score"),
            ({"score": "score * (2"}, "^score: must have balanced"),
            ({"mask": flashjit.Mask("key < 9", n=9)}, "^mask: capture n: must be used"),
            ({"mask": flashjit.Mask("n(key) < 9", n=wrong)}, "^mask: capture n: dtype must be .* was uint8$")):
            with self.subTest(options), self.assertRaisesRegex(flashjit.InvalidArgument, message):
                engine.prepare("float16", 64, **options)

    def test_the_default_one_is_what_the_environment_says(self):
        emulating_engine()
        program = ("import flashjit, sys; sys.path.insert(0, sys.argv[1]); from support import make_inputs\n"
                   "flashjit.attention(*make_inputs()); assert flashjit.counters()['compiles'] == 2")
        environment = {**os.environ, "FLASHJIT_DEVICE": "emulate", "FLASHJIT_POLICY": "off"}
        subprocess.run([sys.executable, "-c", program, os.path.dirname(__file__)], check=True, env=environment)


class Surface(unittest.TestCase):

    def test_signatures(self):
        parameters = inspect.signature(flashjit.attention).parameters
        self.assertEqual(list(parameters),
                         ["q", "k", "v", "causal", "window", "chunk", "scale", "softcap", "alibi_slopes", "sinks",
                          "bias", "boolean_mask", "documents", "prefix", "tree", "score", "mask", "query_offsets",
                          "key_offsets", "block_mask", "dropout", "dropout_seed", "dropout_offset", "dropout_state",
                          "dropout_mask", "cu_seqlens_q", "cu_seqlens_kv", "seqused_q", "seqused_kv", "leftpad_kv",
                          "batch_indices_kv", "page_table", "k_scale", "v_scale", "q_scale", "k_rotary", "out_scale",
                          "max_seqlen_q", "max_seqlen_kv", "fixed_split_size", "accumulate", "plan", "out", "lse", "stream", "variant", "engine"])
        self.assertEqual(list(inspect.signature(flashjit.Engine.attention).parameters)[1:], list(parameters)[:-1])
        for name in ("prepare", "prepare_backward"):
            prepared = list(inspect.signature(getattr(flashjit, name)).parameters)
            self.assertEqual(["self", *(parameter for parameter in prepared if parameter != "engine")],
                             list(inspect.signature(getattr(flashjit.Engine, name)).parameters))
        for name in ("append", "block_mask", "merge", "plan", "quantize"):
            parameters = list(inspect.signature(getattr(flashjit, name)).parameters)
            parameters.remove("engine")
            self.assertEqual(list(inspect.signature(getattr(flashjit.Engine, name)).parameters)[1:], parameters)

    def test_names(self):
        for name in flashjit.__all__:
            self.assertTrue(hasattr(flashjit, name), name)

    def test_every_status_has_an_exception(self):
        library = ctypes.CDLL(flashjit.library_path())
        library.flashjit_status_name.restype = ctypes.c_char_p
        names = [library.flashjit_status_name(status).decode() for status in range(1, 11)]
        self.assertNotIn("?", names)
        self.assertEqual(len({_errors.class_of(name) for name in names} - {flashjit.Error}), len(names))
        self.assertIs(_errors.class_of(library.flashjit_status_name(100).decode()), flashjit.Error)

    def test_exceptions_are_of_the_usual_kinds(self):
        for kind, usual in ((flashjit.InvalidArgument, ValueError), (flashjit.Unsupported, NotImplementedError),
                            (flashjit.IOFailure, OSError), (flashjit.NoDevice, RuntimeError)):
            self.assertTrue(issubclass(kind, usual) and issubclass(kind, flashjit.Error))
            self.assertEqual(str(kind("text")), "text")

    def test_importing_it_imports_no_library_of_arrays(self):
        program = "import flashjit, sys; assert not {'numpy', 'torch', 'jax', 'cupy'} & set(sys.modules)"
        subprocess.run([sys.executable, "-c", program], check=True)


class Command(unittest.TestCase):

    def run_command(self, *arguments):
        return subprocess.run([sys.executable, "-m", "flashjit", *arguments], capture_output=True, text=True)

    def test_has_the_same_output_and_exit_codes(self):
        answer = self.run_command("--version")
        self.assertEqual((answer.returncode, answer.stderr), (0, ""))
        self.assertIn(flashjit.__version__, answer.stdout)
        self.assertEqual(self.run_command("no-such-command").returncode, 2)

    def test_renders(self):
        self.assertIn("__global__", self.run_command("render", "--arch", "sm_90a", "--head-dim", "64").stdout)

    def test_the_comparison_is_in_the_package_and_takes_its_library(self):
        answer = subprocess.run([sys.executable, "-m", "flashjit.compare", "--help"], capture_output=True, text=True)
        self.assertEqual((answer.returncode, answer.stderr), (0, ""))
        self.assertIn("--peer", answer.stdout)
        with open("/dev/full", "w") as full:
            lost = subprocess.run([sys.executable, "-m", "flashjit.compare", "--help"], stdout=full,
                                  stderr=subprocess.PIPE, text=True)
        self.assertEqual(lost.returncode, 1)
        self.assertIn("No space left on device", lost.stderr)
        bench = pathlib.Path(flashjit.__file__).with_name("bench")
        found = subprocess.run([sys.executable, "-c", "import compare_peers; print(compare_peers.find_library())"],
                               capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(bench)})
        self.assertEqual((found.stdout.strip(), found.stderr), (flashjit.library_path(), ""))


class OtherWheels(unittest.TestCase):
    """What is looked for in NVIDIA's wheels, and in that of the kernels."""

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        hidden = ("FLASHJIT_NVRTC", "FLASHJIT_BUNDLES")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        for patch in (mock.patch.dict(os.environ, environment, clear=True),
                      mock.patch.object(sys, "path", [self.directory.name])):
            patch.start()
            self.addCleanup(patch.stop)
        mock.patch.dict(sys.modules).start()
        self.addCleanup(mock.patch.stopall)
        for package in ("nvidia", "flashjit_kernels"):
            sys.modules.pop(package, None)

    def add(self, file):
        path = pathlib.Path(self.directory.name, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return str(path)

    def test_no_nvrtc(self):
        self.assertIsNone(_wheels.find_nvrtc())
        self.add("nvidia/cublas/lib/libcublas.so.12")
        self.assertIsNone(_wheels.find_nvrtc())

    def test_the_newest_nvrtc_is_taken(self):
        old = self.add("nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
        self.assertEqual(_wheels.find_nvrtc(), old)
        new = self.add("nvidia/cu13/lib/libnvrtc.so.13")
        self.assertEqual(_wheels.find_nvrtc(), new)
        self.assertNotIn("nvidia", sys.modules)

    def test_the_users_nvrtc_stays(self):
        self.add("nvidia/cu13/lib/libnvrtc.so.13")
        with mock.patch.dict(os.environ, FLASHJIT_NVRTC="/opt/libnvrtc.so"):
            self.assertIsNone(_wheels.find_nvrtc())

    def test_kernels_stand_behind_those_of_the_user(self):
        self.assertIsNone(_wheels.find_bundles())
        with mock.patch.dict(os.environ, FLASHJIT_BUNDLES="/opt/a.fjb"):
            self.assertIsNone(_wheels.find_bundles())  # the library reads it
        self.add("flashjit_kernels/kernels.txt")
        self.assertIsNone(_wheels.find_bundles())
        bundles = [self.add(f"flashjit_kernels/{name}.fjb") for name in ("sm_80", "sm_90a")]
        self.assertEqual(_wheels.find_bundles(), ":".join(bundles))
        with mock.patch.dict(os.environ, FLASHJIT_BUNDLES="/opt/a.fjb:/opt/b.fjb"):
            self.assertEqual(_wheels.find_bundles(), ":".join(["/opt/a.fjb", "/opt/b.fjb", *bundles]))
        with mock.patch.dict(os.environ, FLASHJIT_BUNDLES=""):
            self.assertIsNone(_wheels.find_bundles())
        self.assertNotIn("flashjit_kernels", sys.modules)


class KernelsOfAWheel(unittest.TestCase):
    """In a process without NVRTC."""

    PROGRAM = ("import flashjit, numpy as np\n"
               "q, k = (np.ones((1, seqlen, 2, 64), np.float16) for seqlen in (16, 32))\n"
               "flashjit.attention(q, k, k)\n"
               "print(flashjit.counters()['compiles'], flashjit.counters()['disk_hits'] > 0)")

    def setUp(self):
        emulating_engine()  # skips where nothing compiles
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.site, self.cache = (pathlib.Path(directory.name, name) for name in ("site", "cache"))

    def run_without_nvrtc(self, *arguments):
        environment = {**os.environ, "PYTHONPATH": ":".join([str(self.site), *filter(None, sys.path)]),
                       "FLASHJIT_NVRTC": "/nonexistent", "FLASHJIT_DEVICE": "emulate",
                       "FLASHJIT_CACHE_DIR": str(self.cache / "other")}
        return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)

    def make_bundle(self):
        """Of what an engine made to emulate."""
        flashjit.Engine(emulate="sm_90a", cache_directory=self.cache).attention(*make_inputs())
        bundle = self.site / "flashjit_kernels" / "kernels.fjb"
        bundle.parent.mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "flashjit", "cache", "export", bundle], check=True, capture_output=True,
                       env={**os.environ, "FLASHJIT_CACHE_DIR": str(self.cache)})
        return str(bundle)

    def test_serve_calls(self):
        self.assertIn("NoCompiler", self.run_without_nvrtc("-c", self.PROGRAM).stderr)
        self.make_bundle()
        found = self.run_without_nvrtc("-c", self.PROGRAM)
        self.assertEqual((found.stdout, found.stderr), ("0 True\n", ""))

    def test_are_told_by_the_command(self):
        self.assertIn(self.make_bundle(), self.run_without_nvrtc("-m", "flashjit", "info").stdout)


if __name__ == "__main__":
    unittest.main()
