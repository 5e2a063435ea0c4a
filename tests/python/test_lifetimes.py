# SPDX-License-Identifier: Apache-2.0
"""What the package borrows it gives back once, in whatever way a call ends."""

import sys
import types
import unittest
from unittest import mock

import flashjit
import numpy as np
from dlpack import NewProducer, OldProducer, TableArray
from support import emulating_engine, make_inputs, reference

READ_ONLY = 1


class Capsules(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.engine = emulating_engine()

    def check_all_given_back(self, producers):
        for producer in producers:
            self.assertEqual((producer.given, producer.deleted), (1, 1))

    def test_of_both_kinds(self):
        for kind in (OldProducer, NewProducer):
            with self.subTest(kind.__name__):
                inputs = make_inputs()
                out = np.full(inputs[0].shape, np.nan, np.float16)
                producers = [kind(array) for array in (*inputs, out)]
                self.assertIs(self.engine.attention(*producers[:3], out=producers[3]), producers[3])
                np.testing.assert_allclose(out, reference(*inputs)[0], atol=2e-3)
                self.check_all_given_back(producers)

    def test_of_slopes_and_sinks(self):
        inputs = make_inputs()
        arrays = {"alibi_slopes": np.float32([0.5, -0.25]), "sinks": np.float32([-1, 3])}
        for kind in (OldProducer, NewProducer):
            with self.subTest(kind.__name__):
                producers = {name: kind(array) for name, array in arrays.items()}
                out = self.engine.attention(*inputs, **producers)
                np.testing.assert_allclose(out, reference(*inputs, **arrays)[0], atol=2e-3)
                self.check_all_given_back(producers.values())

    def test_when_the_library_refuses_the_call(self):
        q, k, v = make_inputs()
        producers = [NewProducer(array) for array in (q, k, v[:, :, :1], np.empty_like(q))]
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^v: num_heads must be 2"):
            self.engine.attention(*producers[:3], out=producers[3])
        self.check_all_given_back(producers)

    def test_when_a_capsule_is_refused(self):
        q, k, v = make_inputs()
        cases = (({"flags": READ_ONLY}, "^out: must be writable"), ({"major": 2}, "^out: .* version 1$"))
        for changes, message in cases:
            producers = [OldProducer(q), NewProducer(k), NewProducer(v), NewProducer(np.empty_like(q), **changes)]
            slopes, sinks = (NewProducer(np.ones(2, np.float32), flags=READ_ONLY) for _ in range(2))
            with self.subTest(message), self.assertRaisesRegex(flashjit.InvalidArgument, message):
                self.engine.attention(*producers[:3], out=producers[3], alibi_slopes=slopes, sinks=sinks)
            self.check_all_given_back([*producers, slopes, sinks])

    def test_a_capsule_is_used_once(self):
        q, k, v = make_inputs()
        producer = NewProducer(k)
        capsule = producer.make_capsule()
        with mock.patch.object(NewProducer, "make_capsule", lambda self: capsule):
            with self.assertRaisesRegex(flashjit.InvalidArgument, "^v: .* capsule that nobody has used yet$"):
                self.engine.attention(q, NewProducer(k), NewProducer(v))
        self.assertEqual(producer.deleted, 1)


class Tables(unittest.TestCase):
    """Arrays of a library with DLPack's table of C functions."""

    @classmethod
    def setUpClass(cls):
        cls.engine = emulating_engine()

    def setUp(self):
        TableArray.made = TableArray.imported = TableArray.deleted = 0
        self.arrays = make_inputs()
        self.inputs = [TableArray(array) for array in self.arrays]

    def counts(self):
        return TableArray.made, TableArray.imported, TableArray.deleted

    def test_a_call_makes_an_array_of_that_library(self):
        out = self.engine.attention(*self.inputs, causal=True)
        self.assertIs(type(out), TableArray)
        np.testing.assert_allclose(out.array, reference(*self.arrays, causal=True)[0], atol=2e-3)
        self.assertEqual(self.counts(), (1, 1, 0))
        self.assertEqual(sys.getrefcount(out), 2)

    def test_windows(self):
        out = self.engine.attention(*self.inputs, window=(3, 2))
        np.testing.assert_allclose(out.array, reference(*self.arrays, window=(3, 2))[0], atol=2e-3)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^window: must be a pair .* was 3$"):
            self.engine.attention(*self.inputs, window=3)
        self.assertEqual(self.counts(), (1, 1, 0))

    def test_chunks(self):
        out = self.engine.attention(*self.inputs, causal=True, chunk=5)
        np.testing.assert_allclose(out.array, reference(*self.arrays, causal=True, chunk=5)[0], atol=2e-3)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^chunk: must be an int .* was True$"):
            self.engine.attention(*self.inputs, chunk=True)
        self.assertEqual(self.counts(), (1, 1, 0))

    def test_slopes_and_sinks(self):
        values = np.float32([0.5, -0.25])
        for name in ("alibi_slopes", "sinks"):
            out = self.engine.attention(*self.inputs, **{name: TableArray(values)})
            np.testing.assert_allclose(out.array, reference(*self.arrays, **{name: values})[0], atol=2e-3)
            with self.assertRaisesRegex(flashjit.InvalidArgument, f"^{name}: dtype must be f32, was f16$"):
                self.engine.attention(*self.inputs, **{name: TableArray(values.astype(np.float16))})
        self.assertEqual(self.counts(), (4, 2, 2))

    def test_two_outputs(self):
        out, lse = self.engine.attention(*self.inputs, lse=True)
        np.testing.assert_allclose(out.array, reference(*self.arrays)[0], atol=2e-3)
        np.testing.assert_allclose(lse.array, reference(*self.arrays)[1], atol=2e-3)
        self.assertEqual(self.counts(), (2, 2, 0))

    def test_the_callers_output(self):
        out = TableArray(np.full(self.arrays[0].shape, np.nan, np.float16))
        references = sys.getrefcount(out)
        self.assertIs(self.engine.attention(*self.inputs, out=out), out)
        np.testing.assert_allclose(out.array, reference(*self.arrays)[0], atol=2e-3)
        self.assertEqual(self.counts(), (0, 0, 0))
        self.assertEqual(sys.getrefcount(out), references)

    def test_what_was_made_is_freed_when_the_library_refuses_the_call(self):
        self.inputs[2] = TableArray(self.arrays[2][:, :, :1])
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^v: num_heads must be 2"):
            self.engine.attention(*self.inputs, lse=True)
        self.assertEqual(self.counts(), (2, 0, 2))

    def test_ranks(self):
        self.inputs[0] = TableArray(self.arrays[0][0])
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^q: rank must be 4, was 3$"):
            self.engine.attention(*self.inputs)
        self.assertEqual(self.counts(), (0, 0, 0))

    def test_gradients_are_refused_unless_none_are_recorded(self):
        tensor_type = type("Tensor", (TableArray, ), {"requires_grad": True})
        of_heads = tensor_type(np.ones(2, np.float32))
        k = tensor_type(self.arrays[1])
        for enabled in (True, False):
            torch = types.SimpleNamespace(is_grad_enabled=lambda enabled=enabled: enabled)
            with self.subTest(enabled=enabled), mock.patch.dict(sys.modules, torch=torch):
                if enabled:
                    with self.assertRaisesRegex(flashjit.Unsupported, r"^k: must not require a gradient.*k.detach\(\)"):
                        self.engine.attention(self.inputs[0], k, self.inputs[2])
                    for name in ("alibi_slopes", "sinks"):
                        with self.assertRaisesRegex(flashjit.Unsupported, f"^{name}: must not require a gradient"):
                            self.engine.attention(*self.inputs, **{name: of_heads})
                else:
                    self.engine.attention(self.inputs[0], k, self.inputs[2])

    def test_more_types_than_are_remembered(self):
        for number in range(20):
            array_type = type(f"Array{number}", (TableArray, ), {})
            self.engine.attention(*map(array_type, self.arrays))
        self.assertEqual(self.counts(), (20, 20, 0))


if __name__ == "__main__":
    unittest.main()
