# SPDX-License-Identifier: Apache-2.0
"""What the package borrows it gives back once, in whatever way a call ends."""

import sys
import types
import unittest
import weakref
from unittest import mock

import flashjit
import numpy as np
from dlpack import NewProducer, OldProducer, TableArray
from support import RaggedBatch, emulating_engine, make_inputs, reference

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

    def test_of_masks_and_captures(self):
        inputs = make_inputs()
        bias, documents = np.float32([[[[1, -1] * 16]]]), np.int32([[0] * 20 + [1] * 12])
        table, reach = np.float32([0.5, 2]), np.int64([3, 30])
        hidden = np.abs(np.arange(16)[:, None] - np.arange(32)) > reach[:, None, None]
        wanted = reference(*inputs, bias=bias, documents=documents, hidden=hidden,
                           change=lambda scores: scores * table[:, None, None])[0]
        for kind in (OldProducer, NewProducer):
            with self.subTest(kind.__name__):
                producers = [kind(array) for array in (bias, documents, table, reach)]
                options = {"bias": producers[0], "documents": producers[1],
                           "score": flashjit.Score("score * table(head)", table=producers[2]),
                           "mask": flashjit.Mask("abs(query - key) <= reach(head)", reach=producers[3])}
                np.testing.assert_allclose(self.engine.attention(*inputs, **options), wanted, atol=2e-3)
                self.check_all_given_back(producers)

    def test_of_block_masks(self):
        q, k, _ = make_inputs()
        for changes, message in (({}, None), ({"flags": READ_ONLY}, "^into: must be writable"),
                                 ({"major": 2}, "^into: .* version 1$")):
            blocks = NewProducer(np.zeros((1, 2, 1, 2, 1), np.int32), **changes)
            reach = NewProducer(np.int64([3, 30]))
            mask = flashjit.Mask("query - key <= reach(head)", reach=reach)
            with self.subTest(message):
                if message:
                    with self.assertRaisesRegex(flashjit.InvalidArgument, message):
                        self.engine.block_mask(q, k, mask=mask, into=blocks)
                    self.check_all_given_back([blocks])
                else:
                    self.assertIs(self.engine.block_mask(q, k, mask=mask, into=blocks), blocks)
                    self.check_all_given_back([blocks, reach])

    def test_of_plans(self):
        batch = RaggedBatch()
        wanted = self.engine.attention(*batch.packed, **batch.offsets)
        words = self.engine.plan(*batch.packed, **batch.offsets).words
        for changes, message in (({}, None), ({"flags": READ_ONLY}, "^memory: must be writable"),
                                 ({"major": 2}, "^memory: .* version 1$")):
            memory = NewProducer(np.zeros(words, np.int32), **changes)
            lengths = NewProducer(batch.cu_seqlens_q)
            options = {"cu_seqlens_q": lengths, "cu_seqlens_kv": batch.cu_seqlens_kv}
            with self.subTest(message):
                if message:
                    with self.assertRaisesRegex(flashjit.InvalidArgument, message):
                        self.engine.plan(*batch.packed, memory=memory, **options)
                else:
                    plan = self.engine.plan(*batch.packed, memory=memory, **options)
                    np.testing.assert_array_equal(
                        self.engine.attention(*batch.packed, plan=plan, **batch.offsets), wanted)
                self.check_all_given_back([memory, lengths])

    def test_when_a_capture_is_refused(self):
        inputs = make_inputs()
        first, second = NewProducer(np.ones(2, np.float32)), NewProducer(np.ones(2, np.float32), major=2)
        score = flashjit.Score("score * a(head) * b(head)", a=first, b=second)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^score: capture b: .* version 1$"):
            self.engine.attention(*inputs, score=score)
        self.check_all_given_back([first, second])
        first, second = NewProducer(np.ones(2, np.float32)), NewProducer(np.ones((2, 2), np.float32)[::-1])
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^score: capture b: the stride of dimension 0 must not"):
            self.engine.attention(*inputs, score=flashjit.Score("score * a(head) * b(head, 0)", a=first, b=second))
        self.check_all_given_back([first, second])

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


class Plans(unittest.TestCase):

    def test_keep_their_memory_and_their_engine(self):
        another = emulating_engine()  # skips where nothing compiles
        batch, engine = RaggedBatch(), flashjit.Engine(emulate="sm_90a", cache_directory="")
        wanted = another.attention(*batch.packed, **batch.offsets)
        memory = np.zeros(engine.plan(*batch.packed, **batch.offsets).words, np.int32)
        kept = weakref.ref(memory), weakref.ref(engine)
        plan = engine.plan(*batch.packed, memory=memory, **batch.offsets)
        del memory, engine
        self.assertNotIn(True, [reference() is None for reference in kept])
        plan.update(*batch.packed, **batch.offsets)
        np.testing.assert_array_equal(another.attention(*batch.packed, plan=plan, **batch.offsets), wanted)
        del plan
        self.assertEqual([reference() for reference in kept], [None, None])

    def test_calls_give_them_back(self):
        batch, engine = RaggedBatch(), emulating_engine()
        plan = engine.plan(*batch.packed, **batch.offsets)
        arguments = (plan, *batch.packed, *batch.offsets.values())
        before = [sys.getrefcount(argument) for argument in arguments]
        engine.attention(*batch.packed, plan=plan, **batch.offsets)
        plan.update(*batch.packed, **batch.offsets)
        with self.assertRaises(flashjit.InvalidArgument):
            engine.attention(*batch.packed, plan=plan, causal=True, **batch.offsets)
        with self.assertRaises(flashjit.InvalidArgument):
            plan.update(*batch.packed, causal=True, **batch.offsets)
        self.assertEqual([sys.getrefcount(argument) for argument in arguments], before)


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

    def test_masks_and_functions(self):
        bias, table = np.float32([[[[1, -1] * 16]]]), np.float32([0.5, 2])
        score = flashjit.Score("score * table(head) + shift", table=TableArray(table), shift=1)
        wanted = reference(*self.arrays, bias=bias, change=lambda scores: scores * table[:, None, None] + 1,
                           hidden=np.arange(32) >= 20)[0]
        out = self.engine.attention(*self.inputs, bias=TableArray(bias), score=score, mask="key < 20")
        np.testing.assert_allclose(out.array, wanted, atol=2e-3)
        self.assertEqual(self.counts(), (1, 1, 0))
        of_rank_5 = flashjit.Score("score * table(head)", table=TableArray(table.reshape(2, 1, 1, 1, 1)))
        wrong = (({"score": of_rank_5}, "^score: capture table: rank must be at most 4, was 5$"),
                 ({"score": score, "mask": 3}, "^mask: must be a flashjit.Mask, a str or None, was 3$"),
                 ({"score": score, "tree": TableArray(table)}, "^tree: dtype must be i64, was f32$"))
        counted = (score, score.text, score.tensors, score.numbers)
        references = [sys.getrefcount(value) for value in counted]
        for options, message in wrong:
            with self.assertRaisesRegex(flashjit.InvalidArgument, message):
                self.engine.attention(*self.inputs, **options)
        del options
        self.assertEqual([sys.getrefcount(value) for value in counted], references)

    def test_two_outputs(self):
        out, lse = self.engine.attention(*self.inputs, lse=True)
        np.testing.assert_allclose(out.array, reference(*self.arrays)[0], atol=2e-3)
        np.testing.assert_allclose(lse.array, reference(*self.arrays)[1], atol=2e-3)
        self.assertEqual(self.counts(), (2, 2, 0))

    def test_packed_sequences(self):
        batch = RaggedBatch()
        wanted, wanted_lse = batch.one_by_one(self.engine)
        packed = [TableArray(array) for array in batch.packed]
        offsets = {name: TableArray(array) for name, array in batch.offsets.items()}
        out, lse = self.engine.attention(*packed, lse=True, max_seqlen_q=17, **offsets)
        np.testing.assert_allclose(out.array, wanted, atol=2e-3)
        np.testing.assert_allclose(lse.array, wanted_lse, atol=2e-3)
        self.assertEqual(self.counts(), (2, 2, 0))
        with_batch = [TableArray(array[None]) for array in batch.packed]
        out, lse = self.engine.attention(*with_batch, lse=True, **offsets)
        np.testing.assert_allclose(out.array, wanted[None], atol=2e-3)
        np.testing.assert_allclose(lse.array, wanted_lse[None], atol=2e-3)
        self.assertEqual(self.counts(), (4, 4, 0))
        for inputs, given, message in ((packed, (), "^q: rank must be 4, was 3$"),
                                       (packed, ("cu_seqlens_q", ), "^v: rank must be 4, was 3$"),
                                       ([TableArray(np.ones(8, np.float16)), *packed[1:]], offsets,
                                        "^q: rank must be 3 or 4, was 1$")):
            with self.assertRaisesRegex(flashjit.InvalidArgument, message):
                self.engine.attention(*inputs, lse=True, **{name: offsets[name] for name in given})
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^max_seqlen_kv: must be an int .* was True$"):
            self.engine.attention(*packed, max_seqlen_kv=True, **offsets)
        self.assertEqual(self.counts(), (4, 4, 0))

    def test_keys_in_pages(self):
        batch = RaggedBatch()
        wanted, _ = batch.one_by_one(self.engine)
        for heads_first in (False, True):
            pages, places = batch.in_pages(8, heads_first)
            places = {name: TableArray(array) for name, array in places.items()}
            inputs = [TableArray(array) for array in (batch.packed[0], *pages)]
            out = self.engine.attention(*inputs, cu_seqlens_q=TableArray(batch.cu_seqlens_q), **places)
            np.testing.assert_allclose(out.array, wanted, atol=2e-3)
        self.assertEqual(self.counts(), (2, 2, 0))
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^page_table: batch must be 1 like that of q, was 4$"):
            self.engine.attention(*self.inputs, page_table=places["page_table"])
        self.assertEqual(self.counts(), (3, 2, 1))

    def test_plans(self):
        batch = RaggedBatch()
        plan = self.engine.plan(*batch.packed, **batch.offsets)
        inputs = [TableArray(array) for array in batch.packed]
        offsets = {name: TableArray(array) for name, array in batch.offsets.items()}
        out = self.engine.attention(*inputs, plan=plan, **offsets)
        np.testing.assert_array_equal(out.array, self.engine.attention(*batch.packed, **batch.offsets))
        self.assertEqual(self.counts(), (1, 1, 0))
        for wrong, message in ((3, "must be a flashjit.Plan or None, was 3$"), (flashjit.Plan(), "must be made by")):
            with self.assertRaisesRegex(flashjit.InvalidArgument, f"^plan: {message}"):
                self.engine.attention(*inputs, plan=wrong, **offsets)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^plan: must be for fwd-f16-d64-v32-causal-ragged, was"):
            self.engine.attention(*inputs, plan=plan, causal=True, **offsets)
        self.assertEqual(self.counts(), (2, 1, 1))

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
                    with self.assertRaisesRegex(flashjit.Unsupported, "^score: capture a: must not require a gradient"):
                        self.engine.attention(*self.inputs, score=flashjit.Score("score * a(head)", a=of_heads))
                else:
                    self.engine.attention(self.inputs[0], k, self.inputs[2])

    def test_more_types_than_are_remembered(self):
        for number in range(20):
            array_type = type(f"Array{number}", (TableArray, ), {})
            self.engine.attention(*map(array_type, self.arrays))
        self.assertEqual(self.counts(), (20, 20, 0))


if __name__ == "__main__":
    unittest.main()
