# SPDX-License-Identifier: Apache-2.0
"""scripts/check-vllm-stubs, on sources that are the stubs themselves with a change in one place."""

import importlib.machinery
import importlib.util
import pathlib
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True


def load_script(name):
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(ROOT / "scripts" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


check = load_script("check-vllm-stubs")
BACKEND = "v1/attention/backend.py"
UPDATE = "def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping): pass\n"
CHANGES = {
    "an argument has another place": (BACKEND, "layer, query, key, value", "layer, key, query, value", "forward"),
    "an argument has another default": (BACKEND, "use_pcp=False", "use_pcp=True", "validate_configuration"),
    "an argument is new": (BACKEND, "def supports_dtype(cls, dtype", "def supports_dtype(cls, dtype, device",
                           "supports_dtype"),
    "a method is of another kind": (BACKEND, "@classmethod\n    def get_cudagraph_support", "def get_cudagraph_support",
                                    "get_cudagraph_support"),
    "a method is gone": (BACKEND, "def supports_sink(", "def supports_sinks(", "supports_sink"),
    "a field has another place": (BACKEND, "    num_reqs: int\n    num_actual_tokens: int\n",
                                  "    num_actual_tokens: int\n    num_reqs: int\n", "CommonAttentionMetadata"),
    "a field is gone": (BACKEND, "    slot_mapping: torch.Tensor\n", "", "slot_mapping"),
    "a field has another default": (BACKEND, "causal: \"bool | torch.Tensor\" = True",
                                    "causal: \"bool | torch.Tensor\" = False", "causal"),
    "a member has another value": (BACKEND, "ALWAYS = 3", "ALWAYS = 4", "ALWAYS"),
    "a class is no dataclass": (BACKEND, "@dataclass\nclass Common", "class Common", "CommonAttentionMetadata"),
    "a class is gone": (BACKEND, "class MultipleOf", "class Multiple", "MultipleOf"),
    "a function is gone": ("v1/attention/backends/registry.py", "def register_backend", "def register",
                           "register_backend"),
    "a package lacks a name": ("config/__init__.py", "VllmConfig as VllmConfig", "VllmConfig as Config", "VllmConfig"),
}  # fmt: skip


class Stubs(unittest.TestCase):
    def setUp(self):
        self.sources = pathlib.Path(tempfile.mkdtemp()) / "vllm"
        self.addCleanup(shutil.rmtree, self.sources.parent)
        shutil.copytree(check.STUBS, self.sources, ignore=shutil.ignore_patterns("__pycache__"))
        (self.sources / check.PEER).write_text(f"class FlashAttentionImpl:\n    {UPDATE}")

    def change(self, module, old, new):
        text = (self.sources / module).read_text()
        self.assertIn(old, text)
        (self.sources / module).write_text(text.replace(old, new))

    def test_sources_that_are_the_same_differ_nowhere(self):
        comparison = check.compare(self.sources)
        self.assertEqual(comparison.differences, [])
        self.assertGreater(comparison.compared, 100)

    def test_what_differs_is_named(self):
        for what, (module, old, new, name) in CHANGES.items():
            with self.subTest(what):
                before = (self.sources / module).read_text()
                self.change(module, old, new)
                self.assertTrue(any(name in difference for difference in check.compare(self.sources).differences))
                (self.sources / module).write_text(before)

    def test_a_module_that_is_gone_is_named(self):
        (self.sources / "v1" / "kv_cache_layout.py").unlink()
        self.assertEqual(check.compare(self.sources).differences, ["v1/kv_cache_layout.py: is not in the sources"])

    def test_the_backend_is_compared_with_the_bases_and_not_with_the_stubs_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            backend = pathlib.Path(folder) / "backend.py"
            text = check.BACKEND.read_text()
            for old, new in (("def supports_sink(", "def supports_sinks("), ("common_prefix_len: int, ", ""),
                             ("supports_update_block_table:", "supports_block_tables:"),
                             ("value: Tensor, kv_cache: Tensor,\n                           slot_mapping",
                              "kv_cache: Tensor, value: Tensor,\n                           slot_mapping")):
                with self.subTest(new):
                    self.assertIn(old, text)
                    backend.write_text(text.replace(old, new))
                    self.assertEqual(len(check.compare(self.sources, backend=backend).differences), 1)


if __name__ == "__main__":
    unittest.main()
