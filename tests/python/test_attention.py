# SPDX-License-Identifier: Apache-2.0
"""flashjit.attention on NumPy arrays, in the emulator."""

import functools
import re
import sys
import unittest

import flashjit
import numpy as np
from support import RaggedBatch, emulating_engine, make_inputs, random_halves, reference

TOLERANCE = 2e-3  # of values near 1: two roundings to float16
TANH_ROUNDING = 2**-11  # of a cap


class Results(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.engine = emulating_engine()

    def check(self, inputs, tolerance=TOLERANCE, **options):
        out = self.engine.attention(*inputs, **options)
        wanted, _ = reference(*inputs, **options)
        self.assertIs(type(out), np.ndarray)
        self.assertEqual(out.dtype, np.float16)
        np.testing.assert_allclose(out, wanted, atol=tolerance)

    def test_plain(self):
        self.check(make_inputs())

    def test_causal_with_a_scale(self):
        self.check(make_inputs(), causal=True, scale=0.3)

    def test_windows(self):
        for window in ((5, 0), (0, 3), (2, 4), [3, 2], (-1, 3), (5, -1), (-1, -1), (np.int64(4), 2**63 - 1)):
            with self.subTest(window=window):
                self.check(make_inputs(), window=window)
        self.check(make_inputs(), window=(5, 9), causal=True)

    def test_a_window_with_nothing_on_the_right_is_causal(self):
        inputs = make_inputs()
        causal = self.engine.attention(*inputs, causal=True)
        np.testing.assert_array_equal(self.engine.attention(*inputs, window=(-1, 0)), causal)

    def test_caps(self):
        inputs = make_inputs()
        for softcap in (0.5, 2, np.float32(1.5)):
            with self.subTest(softcap=softcap):
                self.check(inputs, TOLERANCE + softcap * TANH_ROUNDING, softcap=softcap)
        self.check(inputs, TOLERANCE + TANH_ROUNDING, softcap=1, scale=0.5, window=(5, 2))
        plain = self.engine.attention(*inputs)
        for none in (None, 0, 0.0, -0.0):
            np.testing.assert_array_equal(self.engine.attention(*inputs, softcap=none), plain)

    def test_dropout(self):
        inputs = make_inputs()
        shape = (inputs[0].shape[0], inputs[0].shape[2], inputs[0].shape[1], inputs[1].shape[1])
        for probability, seed, offset in ((0.25, 0, 0), (0.5, 2**64 - 1, 7), (0.875, 5, 2**63 + 2**31)):
            with self.subTest(probability=probability, seed=seed, offset=offset):
                kept = flashjit.dropout_mask(shape, probability, seed, offset)
                wanted, _ = reference(*inputs, kept=kept, share=1 - probability)
                options = {"dropout": probability, "dropout_seed": seed, "dropout_offset": offset}
                out = self.engine.attention(*inputs, **options)
                np.testing.assert_allclose(out, wanted, atol=TOLERANCE / (1 - probability))
                state = np.array([seed, offset], np.uint64).view(np.int64)
                by_state = self.engine.attention(*inputs, dropout=probability, dropout_state=state)
                np.testing.assert_array_equal(by_state, out)
                by_mask = self.engine.attention(*inputs, dropout=probability, dropout_mask=kept)
                np.testing.assert_array_equal(by_mask, out)
        plain = self.engine.attention(*inputs)
        for none in (None, 0, 0.0):
            np.testing.assert_array_equal(self.engine.attention(*inputs, dropout=none, dropout_seed=3), plain)

    def test_what_dropout_keeps(self):
        shape, halves = (2, 3, 9, 70), random_halves((2, 3, 9, 70), 2**40 + 3, 2**33 + 1)
        counts = []
        for probability in (0.1, 0.3, 0.6, 0.95):
            kept = flashjit.dropout_mask(shape, probability, 2**40 + 3, 2**33 + 1)
            self.assertEqual(kept.dtype, np.bool_)
            self.assertAlmostEqual(kept.mean(), 1 - probability, delta=0.03)
            # One threshold parts all numbers, and what is no number goes with the smaller ones.
            numbers = ~np.isnan(halves)
            below = kept if probability <= 0.5 else ~kept
            self.assertLess(halves[below & numbers].max(), halves[~below & numbers].min())
            self.assertTrue(below[~numbers].all())
            counts.append(kept.sum())
        self.assertEqual(sorted(counts, reverse=True), counts)
        self.assertEqual(flashjit.dropout_mask((1, 0, 5, 5), 0.5).shape, (1, 0, 5, 5))

    def test_slopes(self):
        inputs = make_inputs((2, 16, 4, 64))
        slopes = np.linspace(-0.25, 1, 16, dtype=np.float32).reshape(4, 4)
        for name, array in {"heads": slopes[1], "batch": slopes[:2], "strided": slopes[::2]}.items():
            with self.subTest(name):
                self.check(inputs, alibi_slopes=array)
        self.check(inputs, alibi_slopes=slopes[3], causal=True, window=(5, 0))
        self.check(inputs, TOLERANCE + TANH_ROUNDING, alibi_slopes=slopes[2:], softcap=1)

    def test_chunks(self):
        inputs = make_inputs()
        for chunk in (1, 5, 24, 32, np.int64(7), 2**63 - 1):
            with self.subTest(chunk=chunk):
                self.check(inputs, chunk=chunk, causal=True)
        self.check(inputs, chunk=5)
        self.check(inputs, chunk=6, window=(3, 1))
        for none in (None, 0):
            np.testing.assert_array_equal(self.engine.attention(*inputs, chunk=none), self.engine.attention(*inputs))

    def test_sinks(self):
        inputs = make_inputs((2, 16, 4, 64))
        sinks = np.linspace(-3, 6, 16, dtype=np.float32).reshape(4, 4)
        for name, array in {"heads": sinks[1], "batch": sinks[:2], "strided": sinks[::2]}.items():
            with self.subTest(name):
                self.check(inputs, sinks=array)
        self.check(inputs, sinks=sinks[3], causal=True, window=(5, 0), alibi_slopes=sinks[0] / 8)
        none = np.full(4, -np.inf, np.float32)
        np.testing.assert_array_equal(self.engine.attention(*inputs, sinks=none), self.engine.attention(*inputs))

    def test_sinks_of_rows_without_keys(self):
        sinks = np.float32([2, -1])
        out, lse = self.engine.attention(*make_inputs(seqlen_kv=8), causal=True, sinks=sinks, lse=True)
        self.assertFalse(out[:, :8].any())
        np.testing.assert_allclose(lse[0, :, :8], np.tile(sinks[:, None], 8), rtol=1e-6)

    def test_bias(self):
        inputs = make_inputs((2, 16, 4, 64))
        bias = np.random.default_rng(1).standard_normal((2, 4, 16, 32)).astype(np.float32)
        bias[0, 1, 3, ::2] = -np.inf
        for part in (bias, bias[:1, :1], bias[:, :, :1], bias.astype(np.float16), bias[:, ::2][:, :1]):
            with self.subTest(part.shape, dtype=part.dtype):
                self.check(inputs, bias=part)
        self.check(inputs, bias=bias[:1], causal=True, alibi_slopes=np.float32([0.5, 0.25, 0, 1]))

    def test_boolean_masks(self):
        inputs = make_inputs((2, 16, 4, 64))
        shown = np.random.default_rng(1).random((2, 4, 16, 32)) < 0.5
        shown[1, 2, 5] = False  # a query without keys
        for part in (shown, shown[:1, :1], shown[:, :, :1]):
            with self.subTest(part.shape):
                self.check(inputs, boolean_mask=part)
        self.check(inputs, boolean_mask=shown, window=(20, 3))

    def test_documents(self):
        inputs = make_inputs((2, 16, 2, 64))
        documents = np.int32([[7] * 20 + [-3] * 12, [0] * 10 + [1] * 18 + [0] * 4])
        self.check(inputs, documents=documents)
        self.check(inputs, documents=documents[1:], causal=True)
        self.check(make_inputs((1, 16, 2, 64), seqlen_kv=8), documents=np.zeros((1, 8), np.int32))

    def test_prefixes(self):
        inputs = make_inputs((2, 16, 2, 64))
        for causal in (False, True):
            self.check(inputs, prefix=np.int32([0, 25]), causal=causal)

    def test_trees(self):
        parents = [-1, 0, 0, 1, 1, 2, 4, 4]
        ancestors = [0] * 8
        for node, parent in enumerate(parents):
            ancestors[node] = 1 << node | (ancestors[parent] if parent >= 0 else 0)
        tree = np.int64(ancestors).reshape(1, 8, 1)
        self.check(make_inputs((2, 8, 2, 64)), tree=tree)
        wide = np.random.default_rng(1).integers(-2**63, 2**63, (1, 70, 2))
        self.check(make_inputs((1, 70, 2, 64), seqlen_kv=80), tree=wide | 1)

    def test_scores(self):
        inputs = make_inputs((2, 16, 2, 64))
        slopes, distance = np.float32([0.5, 0.25]), np.abs(np.arange(16)[:, None] - np.arange(32))
        score = flashjit.Score("score - slope(head) * tilt * abs(query - key)", slope=slopes, tilt=0.5)
        change = lambda scores: scores - slopes[:, None, None] * 0.5 * distance
        wanted = reference(*inputs, change=change)[0]
        np.testing.assert_allclose(self.engine.attention(*inputs, score=score), wanted, atol=TOLERANCE)
        wanted = reference(*inputs, change=lambda scores: 2 * change(scores) / 2 + 0 * scores, causal=True)[0]
        np.testing.assert_allclose(self.engine.attention(*inputs, score=score, causal=True), wanted, atol=TOLERANCE)
        wanted = reference(*inputs, change=lambda scores: scores * 0.5)[0]
        np.testing.assert_allclose(self.engine.attention(*inputs, score="score * 0.5f"), wanted, atol=TOLERANCE)

    def test_captures_of_every_kind(self):
        inputs, random = make_inputs((2, 16, 2, 64)), np.random.default_rng(1)
        table = random.standard_normal((2, 2, 16, 32))
        counts = random.integers(-3, 4, (32, 16))
        flags = random.random(32) < 0.5
        for score, change in (
            (flashjit.Score("score + t(batch, head, query, key)", t=table.astype(np.float32)), table),
            (flashjit.Score("score + t(batch, head, query, key)", t=table.astype(np.float16)), table),
            (flashjit.Score("score + t(query, key)", t=counts.astype(np.int32).T), counts.T),  # of any strides
            (flashjit.Score("score + float(t(key, query))", t=counts), counts.T),
            (flashjit.Score("t(key) ? score + 1 : score", t=flags), flags.astype(float)),
            (flashjit.Score("score + t() * f * query", t=np.array(0.5, np.float32), f=np.float32(2)),
             np.arange(16)[:, None]),
            (flashjit.Score("on && key < n ? score + x : score", on=True, n=np.int64(5), x=1.5),
             1.5 * (np.arange(32) < 5)),
        ):
            with self.subTest(repr(score)):
                wanted = reference(*inputs, change=lambda scores: scores + change)[0]
                np.testing.assert_allclose(self.engine.attention(*inputs, score=score), wanted, atol=2 * TOLERANCE)

    def test_the_order_of_captures_means_nothing_and_new_values_compile_nothing(self):
        inputs = make_inputs()
        text = "score * b + a(head)"
        self.engine.attention(*inputs, score=flashjit.Score(text, a=np.float32([1, 2]), b=0.5))
        compiles = self.engine.counters()["compiles"]
        self.engine.attention(*inputs, score=flashjit.Score(text, b=0.75, a=np.float32([3, 1])))
        self.assertEqual(self.engine.counters()["compiles"], compiles)

    def test_masks(self):
        inputs = make_inputs((2, 16, 2, 64))
        reaches = np.int32([3, 9])
        mask = flashjit.Mask("abs(query - key) <= reach(head) + more", reach=reaches, more=1)
        hidden = np.abs(np.arange(16)[:, None] - np.arange(32)) > reaches[:, None, None] + 1
        np.testing.assert_allclose(self.engine.attention(*inputs, mask=mask), reference(*inputs, hidden=hidden)[0],
                                   atol=TOLERANCE)
        out, lse = self.engine.attention(*inputs, mask="key < query", lse=True)  # the first query sees none
        wanted = reference(*inputs, hidden=np.arange(32) >= np.arange(16)[:, None])
        np.testing.assert_allclose(out, wanted[0], atol=TOLERANCE)
        np.testing.assert_allclose(lse, wanted[1], atol=TOLERANCE)
        self.assertEqual(lse[0, 0, 0], -np.inf)

    def test_offsets(self):
        inputs = make_inputs((2, 16, 2, 64))
        offsets = {"query_offsets": np.int32([3, 100]), "key_offsets": np.int32([0, 90])}
        query, key = (np.arange(length) + first.reshape(-1, 1) for length, first in zip((16, 32), offsets.values()))
        query, key = query[:, None, :, None], key[:, None, None, :]
        out = self.engine.attention(*inputs, mask="key <= query", score="score + key % 3", **offsets)
        wanted = reference(*inputs, hidden=key > query, change=lambda scores: scores + key % 3)[0]
        np.testing.assert_allclose(out, wanted, atol=TOLERANCE)

    def test_block_masks(self):
        inputs = make_inputs((2, 130, 2, 64), seqlen_kv=600)
        documents = np.repeat(np.int32([[0, 1, 2, 3]]), 150, axis=1)
        by_batch = np.concatenate([documents, 3 - documents])
        shown = np.random.default_rng(1).random((1, 2, 130, 600)) < 0.3
        offsets = np.int32([0, 5])
        for sizes, options in (((1, 1), {"documents": documents}), ((2, 1), {"documents": by_batch}),
                               ((1, 2), {"boolean_mask": shown}), ((1, 1), {"mask": "key % 256 < 64"}),
                               ((1, 2), {"mask": "key / 128 % 2 == head"}), ((2, 1), {"mask": "key / 128 == batch"}),
                               ((2, 1), {"mask": "key <= query + n", "query_offsets": offsets}),
                               ((1, 1), {"tree": np.full((1, 130, 3), -1), "documents": documents})):
            with self.subTest(list(options)):
                if isinstance(options.get("mask"), str) and "n" in options["mask"].split():
                    options["mask"] = flashjit.Mask(options["mask"], n=200)
                blocks = self.engine.block_mask(*inputs[:2], **options)
                self.assertEqual((blocks.shape, blocks.dtype), ((*sizes, 3, 2, 2), np.int32))
                plain = self.engine.attention(*inputs, causal=True, **options)
                out = self.engine.attention(*inputs, causal=True, block_mask=blocks, **options)
                np.testing.assert_allclose(out, plain, atol=TOLERANCE)

    def test_block_masks_into_memory_of_the_caller(self):
        inputs, documents = make_inputs((2, 16, 2, 64)), np.repeat(np.int32([[0, 1]]), 16, axis=1)
        made = flashjit.block_mask(*inputs[:2], documents=documents, engine=self.engine)
        for sizes in ((1, 1), (2, 1), (2, 2)):
            out = np.full((*sizes, *made.shape[2:]), -1, np.int32)
            documents_of = np.repeat(documents, sizes[0], axis=0)
            self.assertIs(self.engine.block_mask(*inputs[:2], documents=documents_of, into=out), out)
            np.testing.assert_array_equal(out, np.broadcast_to(made, out.shape))

    def test_packed_sequences(self):
        batch = RaggedBatch()
        for options in ({}, {"causal": True}, {"window": (6, 3), "softcap": 2.0}, {"mask": "key % 3 != query % 2"},
                        {"sinks": np.float32([0.5, -1, 2, 0])}, {"dropout": 0.0, "chunk": 8}):
            with self.subTest(options):
                wanted, wanted_lse = batch.one_by_one(self.engine, **options)
                out, lse = self.engine.attention(*batch.packed, lse=True, **batch.offsets, **options)
                self.assertEqual((out.shape, out.dtype), ((25, 4, 32), np.float16))
                self.assertEqual((lse.shape, lse.dtype), ((4, 25), np.float32))
                np.testing.assert_allclose(out, wanted, atol=TOLERANCE + TANH_ROUNDING)
                np.testing.assert_allclose(lse, wanted_lse, atol=TOLERANCE + TANH_ROUNDING)
                bounded = self.engine.attention(*batch.packed, max_seqlen_q=17, max_seqlen_kv=np.int64(33),
                                                **batch.offsets, **options)
                np.testing.assert_allclose(bounded, wanted, atol=TOLERANCE + TANH_ROUNDING)

    def test_packed_sequences_with_a_batch_in_front_and_into_memory_of_the_caller(self):
        batch = RaggedBatch()
        inputs = [array[None] for array in batch.packed]
        wanted, wanted_lse = batch.one_by_one(self.engine)
        out, lse = self.engine.attention(*inputs, lse=True, **batch.offsets)
        np.testing.assert_allclose(out, wanted[None], atol=TOLERANCE)
        np.testing.assert_allclose(lse, wanted_lse[None], atol=TOLERANCE)
        out = np.full_like(wanted, np.nan)
        self.assertIs(self.engine.attention(*batch.packed, out=out, **batch.offsets), out)
        np.testing.assert_allclose(out, wanted, atol=TOLERANCE)

    def test_rows_that_belong_to_no_sequence_are_not_written(self):
        batch = RaggedBatch()
        wanted, _ = batch.one_by_one(self.engine)
        longer = np.concatenate([np.full_like(batch.packed[0][:2], np.nan), batch.packed[0]])
        out = np.full((27, 4, 32), 7, np.float16)
        offsets = {**batch.offsets, "cu_seqlens_q": batch.cu_seqlens_q + np.int32(2)}
        self.engine.attention(longer, *batch.packed[1:], out=out, **offsets)
        self.assertTrue((out[:2] == 7).all())
        np.testing.assert_allclose(out[2:], wanted, atol=TOLERANCE)

    def test_sequences_in_a_cache_of_keys(self):
        batch = RaggedBatch(keys=(9, 4, 33, 12))
        padding, places = np.int32([0, 3, 1, 2]), np.int32([4, 0, 3, 1])
        caches = [np.full((5, 40, 2, head_dim), np.nan, np.float16) for head_dim in (64, 32)]
        for (_, *of_sequence), padded, place in zip(batch.sequences(), padding, places):
            for cache, array in zip(caches, of_sequence):
                cache[place, padded:padded + array.shape[1]] = array[0]
        used = np.diff(batch.cu_seqlens_kv) + padding
        wanted, wanted_lse = batch.one_by_one(self.engine, causal=True)
        out, lse = self.engine.attention(batch.packed[0], *caches, causal=True, cu_seqlens_q=batch.cu_seqlens_q,
                                         seqused_kv=used, leftpad_kv=padding, batch_indices_kv=places, lse=True)
        np.testing.assert_allclose(out, wanted, atol=TOLERANCE)
        np.testing.assert_allclose(lse, wanted_lse, atol=TOLERANCE)

    def test_keys_in_pages(self):
        batch = RaggedBatch()
        wanted, wanted_lse = batch.one_by_one(self.engine, causal=True)
        for page_size in (1, 8, 12, 16, 64):
            for heads_first in (False, True):
                with self.subTest(page_size=page_size, heads_first=heads_first):
                    pages, places = batch.in_pages(page_size, heads_first)
                    out, lse = self.engine.attention(batch.packed[0], *pages, causal=True, lse=True, max_seqlen_kv=33,
                                                     cu_seqlens_q=batch.cu_seqlens_q, **places)
                    self.assertEqual((out.shape, lse.shape), ((25, 4, 32), (4, 25)))
                    np.testing.assert_allclose(out, wanted, atol=TOLERANCE)
                    np.testing.assert_allclose(lse, wanted_lse, atol=TOLERANCE)

    def test_shared_pages_and_tables_of_more_sequences(self):
        q, pages_k, pages_v = make_inputs((5, 8, 2, 64), seqlen_kv=8)
        inputs, table = (q[:2], pages_k, pages_v), np.int32([[4, 1, 1, -1], [9, 9, 9, 9], [0, 4, 3, -1]])
        rows, used = np.int32([2, 0]), np.int32([20, 24])
        keys, values = (pages[table[rows, :3]].reshape(2, 24, 2, 64) for pages in (pages_k, pages_v))
        for options in ({"seqused_kv": used}, {}):
            with self.subTest(list(options)):
                wanted = self.engine.attention(q[:2], keys, values, causal=True, **options)
                for of_rows, chosen in ((table[:, :3], {"batch_indices_kv": rows}), (table[rows, :3], {})):
                    out = self.engine.attention(*inputs, causal=True, page_table=of_rows, **chosen, **options)
                    np.testing.assert_allclose(out, wanted, atol=TOLERANCE)

    def test_plans(self):
        batch = RaggedBatch()
        for options in ({}, {"causal": True}, {"window": (6, 3), "mask": "key % 3 != query % 2"},
                        {"score": flashjit.Score("score * two", two=2.0), "max_seqlen_q": 17, "scale": 0.2}):
            with self.subTest(options):
                options = {**options, **batch.offsets}
                wanted, wanted_lse = self.engine.attention(*batch.packed, lse=True, **options)
                plan = self.engine.plan(*batch.packed, **options)
                for _ in range(2):
                    out, lse = self.engine.attention(*batch.packed, lse=True, plan=plan, **options)
                    np.testing.assert_array_equal(out, wanted)
                    np.testing.assert_array_equal(lse, wanted_lse)
                out = flashjit.attention(*batch.packed, plan=plan, engine=self.engine, variant=plan.variant, **options)
                np.testing.assert_array_equal(out, wanted)

    def test_splits_of_a_fixed_size(self):
        """A row is the same alone and in the prompt."""
        q, k, v = make_inputs((1, 150, 2, 64), seqlen_kv=150)
        whole = self.engine.attention(q, k, v, causal=True, fixed_split_size=64)
        alone = self.engine.attention(q[:, 119:120], k[:, :120], v[:, :120], causal=True, fixed_split_size=64)
        np.testing.assert_array_equal(whole[:, 119:120], alone)

    def test_plans_of_pages(self):
        batch = RaggedBatch()
        pages, places = batch.in_pages(16)
        options = {"causal": True, "cu_seqlens_q": batch.cu_seqlens_q, **places}
        plan = flashjit.plan(batch.packed[0], *pages, engine=self.engine, **options)
        out = self.engine.attention(batch.packed[0], *pages, plan=plan, **options)
        np.testing.assert_array_equal(out, self.engine.attention(batch.packed[0], *pages, **options))

    def test_plans_are_made_anew_when_lengths_are_others(self):
        batch = RaggedBatch()
        options = {"causal": True, **batch.offsets}
        plan = self.engine.plan(*batch.packed, **options)
        first = self.engine.attention(*batch.packed, plan=plan, **options)
        batch.cu_seqlens_q[1:4] = 20, 22, 25
        second = self.engine.attention(*batch.packed, **options)
        self.assertFalse((first == second).all())
        np.testing.assert_array_equal(self.engine.attention(*batch.packed, plan=plan, **options), first)
        self.assertIsNone(plan.update(*batch.packed, **options))
        np.testing.assert_array_equal(self.engine.attention(*batch.packed, plan=plan, **options), second)

    def test_plans_in_memory_of_the_caller(self):
        batch = RaggedBatch()
        words = self.engine.plan(*batch.packed, **batch.offsets).words
        memory = np.full(words + 7, -1, np.int32)
        plan = self.engine.plan(*batch.packed, memory=memory, **batch.offsets)
        self.assertTrue((memory[:words] != -1).any())
        self.assertEqual(plan.words, words)
        out = self.engine.attention(*batch.packed, plan=plan, **batch.offsets)
        np.testing.assert_array_equal(out, self.engine.attention(*batch.packed, **batch.offsets))
        memory[:] = -1
        plan.update(*batch.packed, **batch.offsets)
        np.testing.assert_array_equal(self.engine.attention(*batch.packed, plan=plan, **batch.offsets), out)

    def test_what_plans_say(self):
        batch = RaggedBatch()
        plan = self.engine.plan(*batch.packed, causal=True, **batch.offsets)
        self.assertIs(type(plan), flashjit.Plan)
        self.assertEqual(plan.problem, "fwd-f16-d64-v32-causal-ragged")
        self.assertRegex(plan.variant, "^hopper-")
        of_mma = self.engine.plan(*batch.packed, causal=True, variant="v3", **batch.offsets)
        self.assertRegex(of_mma.variant, "^mma-")
        out = self.engine.attention(*batch.packed, causal=True, plan=of_mma, **batch.offsets)
        wanted = self.engine.attention(*batch.packed, causal=True, variant="v3", **batch.offsets)
        np.testing.assert_array_equal(out, wanted)
        for name in ("problem", "variant", "words"):
            with self.assertRaises(AttributeError):
                setattr(plan, name, getattr(plan, name))

    def test_some_of_the_rows_of_batch_entries(self):
        q, k, v = make_inputs((3, 16, 2, 64))
        queries, keys = np.int32([16, 5, 0]), np.int32([7, 32, 3])
        out = np.full_like(q, 7)
        self.engine.attention(q, k, v, causal=True, seqused_q=queries, seqused_kv=keys, out=out)
        for b in range(3):
            wanted, _ = reference(q[b:b + 1, :queries[b]], k[b:b + 1, :keys[b]], v[b:b + 1, :keys[b]], causal=True) \
                if queries[b] else (np.empty((1, 0, 2, 64)), None)
            np.testing.assert_allclose(out[b:b + 1, :queries[b]], wanted, atol=TOLERANCE)
            self.assertTrue((out[b, queries[b]:] == 7).all())

    def test_grouped_heads(self):
        self.check(make_inputs((2, 16, 4, 64)))

    def test_transposed_memory_is_read_in_place(self):
        inputs = [np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2) for array in make_inputs()]
        self.assertFalse(inputs[0].flags.c_contiguous)
        self.check(inputs)

    def test_no_queries(self):
        q, k, v = make_inputs()
        self.assertEqual(self.engine.attention(q[:, :0], k, v).shape, (1, 0, 2, 64))

    def test_log_sum_exp(self):
        inputs = make_inputs()
        out, lse = self.engine.attention(*inputs, lse=True)
        wanted_out, wanted_lse = reference(*inputs)
        self.assertEqual(lse.dtype, np.float32)
        np.testing.assert_allclose(out, wanted_out, atol=TOLERANCE)
        np.testing.assert_allclose(lse, wanted_lse, atol=TOLERANCE)

    def test_log_sum_exp_of_the_scores_with_slopes_and_sinks(self):
        inputs, values = make_inputs(), np.float32([0.5, -0.25])
        for name in ("alibi_slopes", "sinks"):
            _, lse = self.engine.attention(*inputs, lse=True, **{name: values})
            np.testing.assert_allclose(lse, reference(*inputs, **{name: values})[1], atol=TOLERANCE)

    def test_the_callers_output(self):
        inputs = make_inputs()
        out = np.full(inputs[0].shape, np.nan, np.float16)
        self.assertIs(self.engine.attention(*inputs, out=out), out)
        np.testing.assert_allclose(out, reference(*inputs)[0], atol=TOLERANCE)

    def test_read_only_inputs(self):
        inputs = make_inputs()
        for array in inputs:
            array.setflags(write=False)
        if np.lib.NumpyVersion(np.__version__) < "2.1.0":
            self.skipTest("this NumPy exports no read-only arrays")
        self.check(inputs)

    def test_the_function_and_the_method_are_the_same(self):
        q, k, v = make_inputs()
        out = flashjit.attention(q=q, k=k, v=v, engine=self.engine, stream=None, variant=None)
        np.testing.assert_array_equal(out, self.engine.attention(q, k, v))

    def test_references_are_given_back(self):
        q, k, v = make_inputs()
        out, slopes, sinks = np.empty_like(q), np.ones(2, np.float32), np.zeros(2, np.float32)
        chunk = 10**6  # no object that the interpreter shares
        used, bound = np.full(1, 9, np.int32), 10**6 + 1
        bias, table, tilt = np.ones((1, 1, 1, 32), np.float32), np.ones(32, np.float32), 0.1234
        score = flashjit.Score("score * tilt + table(key)", table=table, tilt=tilt)
        mask = "".join(["key", " != 0"])  # likewise
        arguments = (q, k, v, out, slopes, sinks, chunk, used, bound, bias, table, tilt, score, mask)
        options = {"chunk": chunk, "alibi_slopes": slopes, "sinks": sinks, "bias": bias, "score": score, "mask": mask,
                   "seqused_kv": used, "max_seqlen_kv": bound}
        before = [sys.getrefcount(argument) for argument in arguments]
        result = self.engine.attention(q, k, v, out=out, window=(7, 0), **options)
        del result
        with self.assertRaises(flashjit.InvalidArgument):
            self.engine.attention(q, k[..., :32], v, out=out, **options)
        self.assertEqual([sys.getrefcount(argument) for argument in arguments], before)


class WrongInput(unittest.TestCase):
    """Nothing here gets as far as a kernel, so that no NVRTC is needed."""

    @classmethod
    def setUpClass(cls):
        cls.engine = flashjit.Engine(emulate="sm_90a", cache_directory="")

    def refused(self, kind, message, *args, **options):
        with self.assertRaisesRegex(kind, message) as caught:
            self.engine.attention(*args, **options)
        return caught.exception

    def test_errors_are_python_errors_too(self):
        q, k, v = make_inputs()
        error = self.refused(ValueError, "^k: head_dim must be 64 like that of q, was 32$", q, k[..., :32], v)
        self.assertIs(type(error), flashjit.InvalidArgument)
        self.assertIsInstance(error, flashjit.Error)
        self.assertEqual(error.status, "invalid_argument")

    def test_lists(self):
        q, k, v = make_inputs()
        message = "^{}: must be an array that has __dlpack__ .* was list; make one with torch.tensor"
        self.refused(flashjit.InvalidArgument, message.format("q"), [[1.0]], k, v)
        self.refused(flashjit.InvalidArgument, message.format("v"), q, k, v.tolist())

    def test_arrays_without_a_shape(self):
        q, k, v = make_inputs()

        class Shapeless:
            __dlpack__ = q.__dlpack__
            __dlpack_device__ = q.__dlpack_device__

        message = "^q: must be an array that has shape, was Shapeless; make one with torch.tensor"
        self.refused(flashjit.InvalidArgument, message, Shapeless(), k, v)

    def test_dtypes(self):
        q, k, v = make_inputs()
        self.refused(flashjit.InvalidArgument, "^q: dtype must be f16, bf16, e4m3 or e5m2, was f32", q.astype(np.float32), k, v)
        self.refused(flashjit.InvalidArgument, "^q: dtype must be f16, bf16, e4m3 or e5m2, was f64", q.astype(np.float64), k, v)
        self.refused(flashjit.InvalidArgument, "^k: dtype must be f16 like that of q", q, k.astype(np.float32), v)
        self.refused(flashjit.InvalidArgument, "^v: must be an array that DLPack can describe", q, k, v.astype(object))

    def test_ranks(self):
        q, k, v = make_inputs()
        self.refused(flashjit.InvalidArgument, r"^q: rank must be 4, was 3 with shape \[16, 2, 64\]$", q[0], k, v)
        self.refused(flashjit.InvalidArgument, "^k: rank must be 4, was 3", q, k[0], v)

    def test_strides(self):
        q, k, v = make_inputs()
        wide = np.repeat(k, 2, axis=3)[..., ::2]
        self.refused(flashjit.InvalidArgument, r"^k: the last dimension must be contiguous \(stride 1\)", q, wide, v)

    def test_outputs(self):
        q, k, v = make_inputs()
        out = np.empty_like(q)
        self.refused(flashjit.InvalidArgument, "^out: seqlen must be 16", q, k, v, out=np.empty_like(k))
        self.refused(flashjit.InvalidArgument, "^out: must not overlap q", q, k, v, out=q)
        out.setflags(write=False)
        self.refused(flashjit.InvalidArgument, "^out: must be", q, k, v, out=out)

    def test_streams(self):
        q, k, v = make_inputs()
        self.refused(flashjit.InvalidArgument, "^stream: must be an int or have .* was str$", q, k, v, stream="main")
        self.refused(flashjit.Error, "stream", q, k, v, stream=0x1000)
        for handle in (10**30, -1):
            self.refused(flashjit.InvalidArgument, r"^stream: must be a handle from 0 to 2\*\*64 - 1, was ", q, k, v,
                         stream=handle)

    def test_variants(self):
        self.refused(flashjit.InvalidArgument, "variant", *make_inputs(), variant="no-such-variant")
        self.refused(flashjit.InvalidArgument, "^variant: must have at most 200", *make_inputs(), variant="x" * 10**6)
        self.refused(flashjit.InvalidArgument, "^variant: must be a str .* was 5$", *make_inputs(), variant=5)

    def test_scales(self):
        for scale in ("x", 10**400):
            self.refused(flashjit.InvalidArgument, "^scale: must be a number, was ", *make_inputs(), scale=scale)
        # What the library says of softmax_scale.
        self.refused(flashjit.InvalidArgument, "^scale: must be finite", *make_inputs(), scale=float("nan"))

    def test_dropout(self):
        for dropout in ("x", True, [0.5], 10**400):
            with self.subTest(dropout=dropout):
                wanted = "^dropout: must be a number from 0 to below 1, or None, was " + re.escape(repr(dropout)[:80])
                self.refused(flashjit.InvalidArgument, wanted, *make_inputs(), dropout=dropout)
        for dropout in (1, -0.1, np.nan, np.inf):
            with self.subTest(dropout=dropout):
                self.refused(flashjit.InvalidArgument, "^dropout: probability must be at least 0 and below 1, was ",
                             *make_inputs(), dropout=dropout)
        for name in ("dropout_seed", "dropout_offset"):
            for number in (-1, 2**64, 0.5, "x", True):
                with self.subTest(name=name, number=number):
                    self.refused(flashjit.InvalidArgument, rf"^{name}: must be an int from 0 to 2\*\*64 - 1, was ",
                                 *make_inputs(), dropout=0.5, **{name: number})
        for state in (np.zeros(2, np.int32), np.zeros(3, np.int64)):
            self.refused(flashjit.InvalidArgument, "^dropout_state: ", *make_inputs(), dropout=0.5, dropout_state=state)
        self.refused(flashjit.InvalidArgument, "^dropout_mask: rank must be 4", *make_inputs(),
                     dropout_mask=np.zeros(3, np.bool_))
        for arguments in (((1, 2, 3), 0.5), ((1, 2, 3, -4), 0.5), ((1, 1, 1, 1), 1.0), ((1, 1, 1, 1), 0.5, -1)):
            with self.subTest(arguments=arguments), self.assertRaises(flashjit.InvalidArgument):
                flashjit.dropout_mask(*arguments)

    def test_ragged_batches(self):
        inputs = q, k, v = make_inputs()
        packed = q[0], k[0], v[0]
        for name in ("cu_seqlens_q", "cu_seqlens_kv", "seqused_q", "seqused_kv", "leftpad_kv", "batch_indices_kv"):
            good = np.zeros(2 if name.startswith("cu") else 1, np.int32)
            for wrong, message in ((good.astype(np.int64), "dtype must be i32, was i64$"),
                                   (good[None], "must have rank 1|rank must be 1"),
                                   (good.tolist(), "must be an array that has __dlpack__ .* was list")):
                with self.subTest(name=name, message=message):
                    self.refused(flashjit.InvalidArgument, f"^{name}: ({message})", *inputs, **{name: wrong})
            self.refused(flashjit.InvalidArgument, "^block_mask: must not be given", *inputs, **{name: good},
                         documents=np.zeros((1, 32), np.int32), block_mask=np.zeros((1, 1, 1, 1, 1), np.int32))
        for name in ("max_seqlen_q", "max_seqlen_kv", "fixed_split_size"):
            for bound in (-1, 2**63, 0.5, "x", True):
                with self.subTest(name=name, bound=bound):
                    wanted = rf"^{name}: must be an int from 0 to 2\*\*63 - 1, or None, was "
                    self.refused(flashjit.InvalidArgument, wanted, *inputs, **{name: bound})
        for name in ("max_seqlen_q", "max_seqlen_kv"):
            self.refused(flashjit.InvalidArgument, f"^{name}: must not be given for a batch whose", *inputs,
                         **{name: 9})
        offsets = np.int32([0, 8, 16])
        self.refused(flashjit.InvalidArgument, "^q: rank must be 4, was 3 with shape", *packed)
        self.refused(flashjit.InvalidArgument, "^q: rank must be 3 or 4, was 2 with shape", q[0, 0], k, v,
                     cu_seqlens_q=offsets)
        self.refused(flashjit.InvalidArgument, "^v: rank must be 4, was 3 with shape", *packed, cu_seqlens_q=offsets)
        self.refused(flashjit.InvalidArgument, "^k: batch must be 2 like that of cu_seqlens_q, was 1$", packed[0], k, v,
                     cu_seqlens_q=offsets)
        self.refused(flashjit.InvalidArgument, "^batch_indices_kv: must not be given beside cu_seqlens_kv", *packed,
                     cu_seqlens_q=offsets, cu_seqlens_kv=2 * offsets, batch_indices_kv=np.zeros(2, np.int32))

    def test_plans(self):
        batch = RaggedBatch()
        offsets, q, k, v = batch.offsets, *batch.packed
        plan = self.engine.plan(q, k, v, **offsets)
        fewer = {name: array[:-1] for name, array in offsets.items()}
        for message, inputs, options in (
            ("plan: rows of keys must be 45 as in the call, was 46", (q, k[:-1], v[:-1]), offsets),
            ("plan: batch must be 3 as in the call, was 4", (q, k, v), fewer),
            ("plan: max_seqlen_q must be 9 as in the call, was 25", (q, k, v), {**offsets, "max_seqlen_q": 9}),
            ("plan: must be for fwd-f16-d64-v32-causal-ragged, was for fwd-f16-d64-v32-ragged", (q, k, v),
             {**offsets, "causal": True}),
            ("plan: must be for fwd-f16-d64, was for fwd-f16-d64-v32-ragged", make_inputs(), {})):
            with self.subTest(message):
                self.refused(flashjit.InvalidArgument, f"^{message}$", *inputs, plan=plan, **options)
                with self.assertRaisesRegex(flashjit.InvalidArgument, f"^{message}$"):
                    plan.update(*inputs, **options)
        self.refused(flashjit.InvalidArgument, "^variant: must be hopper-.* like that of the plan, was mma-", q, k, v,
                     plan=plan, variant="v3", **offsets)
        self.refused(flashjit.InvalidArgument, "^plan: must be a flashjit.Plan or None, was 3$", q, k, v, plan=3,
                     **offsets)
        np.testing.assert_array_equal(self.engine.attention(q, k, v, plan=plan, **offsets),
                                      self.engine.attention(q, k, v, plan=None, **offsets))

    def test_plans_that_cannot_be_made(self):
        batch = RaggedBatch()
        plan = self.engine.plan(*batch.packed, **batch.offsets)
        words = plan.words

        def refused(kind, message, *inputs, **options):
            for make in (self.engine.plan, plan.update) if "memory" not in options else (self.engine.plan, ):
                with self.assertRaisesRegex(kind, message):
                    make(*inputs, **options)

        refused(flashjit.InvalidArgument, "^q: rank must be 4, was 3 with shape", *batch.packed)
        refused(flashjit.InvalidArgument, "^k: must be an array that has __dlpack__ .* was str", batch.packed[0], "k",
                batch.packed[2], **batch.offsets)
        refused(flashjit.InvalidArgument, "^mask: must be a flashjit.Mask, a str or None, was 3$", *batch.packed,
                mask=3)
        refused(flashjit.InvalidArgument, "^window: must be a pair", *batch.packed, window=3, **batch.offsets)
        for name in ("plan", "out", "lse", "engine_", "casual"):
            refused(TypeError, rf"^(plan|update)\(\) got an unknown argument '{name}'$", *batch.packed, **{name: None})
        for memory, message in ((np.zeros(words - 1, np.int32), f"must have at least {words} words, had"),
                                (np.zeros(words, np.int64), "dtype must be i32, was i64$"),
                                (np.zeros((words, 1), np.int32), "rank must be 1, was 2"),
                                (np.zeros(2 * words, np.int32)[::2], "must be packed|.* contiguous"),
                                ([0] * words, "must be an array that has __dlpack__ .* was list")):
            with self.subTest(message):
                refused(flashjit.InvalidArgument, f"^memory: ({message})", *batch.packed, memory=memory,
                        **batch.offsets)
        empty = flashjit.Plan()
        self.refused(flashjit.InvalidArgument, "^plan: must be made by flashjit.plan, was empty$", *batch.packed,
                     plan=empty, **batch.offsets)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^plan: must be made by flashjit.plan, was empty$"):
            _ = empty.words
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^plan: must be made by flashjit.plan, was empty$"):
            empty.update(*batch.packed, **batch.offsets)

    def test_pages(self):
        q, k, v = inputs = make_inputs()
        table, of_batch, offsets = np.zeros((1, 4), np.int32), np.ones(1, np.int32), np.int32([0, 16])
        for wrong, message in ((table.astype(np.int64), "dtype must be i32, was i64$"),
                               (table[0], "rank must be 2, was 1 with shape"),
                               (table.tolist(), "must be an array that has __dlpack__ .* was list"),
                               (table[:, ::2], "the last dimension must be contiguous"),
                               (np.zeros((3, 4), np.int32), "batch must be 1 like that of q, was 3$")):
            with self.subTest(message=message):
                self.refused(flashjit.InvalidArgument, f"^page_table: {message}", *inputs, page_table=wrong)
        for options, message in (
            ({"leftpad_kv": of_batch}, "^leftpad_kv: must not be given beside page_table"),
            ({"cu_seqlens_kv": offsets}, "^cu_seqlens_kv: must not be given beside page_table"),
            ({"batch_indices_kv": of_batch, "page_table": table[:0]}, "^page_table: batch must be at least 1 beside"),
            ({"documents": np.zeros((1, 32), np.int32), "block_mask": np.zeros((1, 1, 1, 1, 1), np.int32)},
             "^block_mask: must not be given for a batch whose"),
            ({"bias": np.zeros((1, 1, 1, 32), np.float32)}, "^bias: max_seqlen_kv must be 128, was 32 with shape")):
            with self.subTest(message=message):
                self.refused(flashjit.InvalidArgument, message, *inputs, **{"page_table": table, **options})
        for k_and_v, message in (((k[:0], v[:0]), "^k: pages must be at least 1 beside page_table, was 0$"),
                                 ((k[:, :0], v[:, :0]), "^k: page_size must be at least 1, was 0$"),
                                 ((k, v[:0]), "^v: batch must be 1 like that of k, was 0$"),
                                 ((k, v[:, :8]), "^v: seqlen must be 32 like that of k, was 8$"),
                                 ((k[0], v[0]), "^v: rank must be 4, was 3 with shape")):
            with self.subTest(message=message):
                self.refused(flashjit.InvalidArgument, message, q, *k_and_v, page_table=table)
        self.refused(flashjit.InvalidArgument, "^k: page_size must be a multiple of 8 for a variant of the hopper", q,
                     k[:, :12], v[:, :12], page_table=table, variant="hopper-kv64")

    def test_caps(self):
        for softcap in ("x", True, 10**400, 1e-50, [30.0]):
            with self.subTest(softcap=softcap):
                wanted = "^softcap: must be a number of float32, or None, was " + re.escape(repr(softcap))[:100]
                self.refused(flashjit.InvalidArgument, wanted, *make_inputs(), softcap=softcap)
        for softcap in (-30, 1e-7, 1e7, 1e300, np.inf, np.nan):
            with self.subTest(softcap=softcap):
                self.refused(flashjit.InvalidArgument, "^softcap: must be from 1e-06 to .* or 0 for none, was ",
                             *make_inputs(), softcap=softcap)

    def test_chunks(self):
        for chunk in ("x", True, -3, 2.0, 2**63, -2**70, (5, )):
            with self.subTest(chunk=chunk):
                wanted = r"^chunk: must be an int from 0 to 2\*\*63 - 1, or None, was " + re.escape(repr(chunk))
                self.refused(flashjit.InvalidArgument, wanted, *make_inputs(), chunk=chunk)

    def test_slopes_and_sinks(self):
        values = np.ones(2, np.float32)
        wide = np.ones((1, 4), np.float32)[:, ::2]
        for wrong, message in (([1.0, 1.0], "must be an array that has __dlpack__ .* was list"),
                               (0.5, "must be an array that has __dlpack__ .* was float"),
                               (values.astype(np.float64), "dtype must be f32, was f64$"),
                               (values.astype(np.float16), "dtype must be f32, was f16$"),
                               (values.astype(object), "must be an array that DLPack can describe, in float32, was"),
                               (np.ones(3, np.float32), "num_heads must be 2 like that of q, was 3$"),
                               (np.ones((2, 2), np.float32), "batch must be 1 like that of q, was 2$"),
                               (np.ones((1, 1, 2), np.float32), r"must be \[num_heads\] or \[batch, .* had rank 3"),
                               (wide, "the last dimension must be contiguous")):
            for name in ("alibi_slopes", "sinks"):
                with self.subTest(message, name=name):
                    self.refused(flashjit.InvalidArgument, f"^{name}: {message}", *make_inputs(), **{name: wrong})

    def test_tensors_of_scores_and_masks(self):
        good = {"bias": np.ones((1, 1, 16, 32), np.float32), "boolean_mask": np.ones((1, 1, 16, 32), bool),
                "documents": np.ones((1, 32), np.int32), "prefix": np.ones(1, np.int32),
                "tree": np.ones((1, 16, 1), np.int64)}
        dtypes = {"bias": "f16, bf16 or f32", "boolean_mask": "boolean", "tree": "i64"}
        for name, array in good.items():
            dtype, inputs = dtypes.get(name, "i32"), make_inputs()
            with self.subTest(name):
                refused = functools.partial(self.refused, flashjit.InvalidArgument)
                refused(f"^{name}: dtype must be {dtype}, was uint8$", *inputs, **{name: array.astype(np.uint8)})
                refused(f"^{name}: must be an array that has __dlpack__ .* was list", *inputs, **{name: array.tolist()})
                refused(f"^{name}: .*must be", *inputs, **{name: array[..., :-1]})
                refused(f"^{name}: rank must be {array.ndim}, was {array.ndim + 1}", *inputs, **{name: array[None]})
        self.refused(flashjit.InvalidArgument, "^q: dtype must be f16, bf16, e4m3 or e5m2, was i32$",
                     *(array.astype(np.int32) for array in make_inputs()))
        for name in ("query_offsets", "key_offsets"):
            self.refused(flashjit.InvalidArgument, f"^{name}: must not be given without score or mask", *make_inputs(),
                         **{name: np.zeros(1, np.int32)})
        self.refused(flashjit.InvalidArgument, "^block_mask: must not be given without", *make_inputs(),
                     block_mask=np.zeros((1, 1, 1, 2, 1), np.int32))

    def test_texts_and_captures(self):
        array = np.ones(2, np.float32)
        for text, captures, message in (
            ("score", {"slope": array}, "^score: capture slope: must be used in the text, was not$"),
            ("score", {"width": 1.0}, "^score: capture width: must be used in the text, was not$"),
            ("score(", {}, r"^score: must have balanced brackets, '\(' at line 1, column 6 is left open$"),
            ("score\0 + 1", {}, "^score: must not have NUL, had one at byte 5$"),
            ("", {}, "^score: must have a text, was empty$"),
            ("score + \ud800", {}, "^score: must be a text that UTF-8 can encode"),
            ("score * \u00e4", {}, "^score: must be printable ASCII"),
            ("score + head(0)", {"head": array}, "^score: capture head: must not be a name that texts have already$"),
            ("score", {"a\0b": array}, "^score: must be given captures with names without null characters"),
            ("score", {"a b": 1}, "^score: capture name: must be an identifier"),
            ("score * a(0)", {"a": array.astype(np.float64)}, "^score: capture a: dtype must be f16, .* was f64$"),
            ("score * a(0)", {"a": np.ones((1,) * 5, np.float32)}, "^score: capture a: rank must be at most 4, was 5$"),
            ("score * a(0)", {"a": array.astype(object)}, "^score: capture a: must be an array that DLPack can"),
            ("score * a", {"a": 2**31}, "^score: capture a: must be a whole number of 32 bits, was 2147483648$"),
            ("score * a", {"a": 10**400}, "^score: capture a: must be an array, a float of 32 bits or an int"),
            ("score * a", {"a": 1e39}, r"^score: capture a: must be a number of f32, was 1e\+39$"),
            ("score", {f"a{i}": 0 for i in range(17)}, "^score: must have at most 16 captures, had 17$"),
        ):
            with self.subTest(text=text, captures=list(captures)):
                self.refused(flashjit.InvalidArgument, message, *make_inputs(),
                             score=flashjit.Score(text, **captures))
        for wrong in ("x", [1.0], None, {"a": 1}):
            message = f"^mask: capture a: must be an array, a float, an int or a bool, was {type(wrong).__name__}$"
            with self.subTest(wrong=wrong), self.assertRaisesRegex(flashjit.InvalidArgument, message):
                flashjit.Mask("key < a", a=wrong)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^score: must be a str, was 3$"):
            flashjit.Score(3)
        self.refused(flashjit.InvalidArgument, r"^score: must be a flashjit.Score, a str or None, was Mask\('key'\)$",
                     *make_inputs(), score=flashjit.Mask("key"))
        self.refused(flashjit.InvalidArgument, "^mask: must be a flashjit.Mask, a str or None, was 3$", *make_inputs(),
                     mask=3)

    def test_what_the_compiler_finds(self):
        emulating_engine()  # skips where nothing compiles
        message = '^score: line 1, column 9: identifier "nothing" is undefined'
        self.refused(flashjit.CompileFailed, message, *make_inputs(), score="score + nothing")

    def test_block_masks(self):
        q, k, _ = make_inputs()
        documents = np.zeros((1, 32), np.int32)

        def refused(message, *arrays, **options):
            with self.assertRaisesRegex(flashjit.InvalidArgument, message):
                self.engine.block_mask(*arrays, **options)

        refused("^block_mask: must be made of boolean_mask, documents, tree or mask, had none of them$", q, k)
        refused("^q: rank must be 4, was 3", q[0], k, documents=documents)
        refused("^documents: must be an array that has __dlpack__", q, k, documents=[[0] * 32])
        refused("^documents: seqlen_kv must be 32, was 31", q, k, documents=documents[:, :31])
        refused("^mask: must be a flashjit.Mask, a str or None, was 3$", q, k, mask=3)
        refused("^mask: capture a: must be used", q, k, mask=flashjit.Mask("key < 3", a=1))
        refused("^into: must have the shape", q, k, mask="key < 3", into=np.zeros((1, 1, 1, 2, 2), np.int32))
        refused("^into: rank must be 5", q, k, mask="key < 3", into=np.zeros((1, 1), np.int32))

    def test_flags(self):
        for name in ("causal", "lse"):
            self.refused(flashjit.InvalidArgument, f"^{name}: must be True or False, was array", *make_inputs(),
                         **{name: np.zeros(3)})

    def test_what_the_code_of_an_argument_raises_stays(self):
        class Interrupted:
            def __index__(self):
                raise KeyboardInterrupt

            __bool__ = __float__ = __index__

        for arguments in ({"window": (Interrupted(), 0)}, {"causal": Interrupted()}, {"scale": Interrupted()},
                          {"chunk": Interrupted()}, {"softcap": Interrupted()}):
            with self.subTest(arguments=arguments), self.assertRaises(KeyboardInterrupt):
                self.engine.attention(*make_inputs(), **arguments)

    def test_windows(self):
        wanted = r"^window: must be a pair \(left, right\) of ints of 64 bits, or None, was "
        for window in (7, True, "ab", {1: 2, 3: 4}, (), (1, ), (1, 2, 3), (None, 0), (0, 1.5), (2**63, 0), (0, -2**70)):
            with self.subTest(window=window):
                self.refused(flashjit.InvalidArgument, wanted + re.escape(repr(window)), *make_inputs(), window=window)
        self.refused(flashjit.InvalidArgument, "^window: left must be at least 0, or -1 for all keys, was -2$",
                     *make_inputs(), window=(-2, 0))
        self.refused(flashjit.InvalidArgument, "^window: right must be at least 0, or -1 .* was -7$", *make_inputs(),
                     window=(0, -7))

    def test_a_window_may_shrink_while_it_is_read(self):
        class Clearing:

            def __index__(self):
                window.clear()
                return 1

        window = [Clearing(), 0]
        self.refused(flashjit.InvalidArgument, r"^window: must be a pair .* was \[\]$", *make_inputs(), window=window)

    def test_call_signature(self):
        q, k, v = make_inputs()
        self.refused(TypeError, "lacks the argument 'v'", q, k)
        self.refused(TypeError, "q, k and v by position", q, k, v, True)
        self.refused(TypeError, "an unknown argument 'masks'", q, k, v, masks=None)
        self.refused(TypeError, "an unknown argument 'engine'", q, k, v, engine=self.engine)
        self.refused(TypeError, "twice the argument 'k'", q, k, v=v, **{"k": k})
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^engine: must be a flashjit.Engine, was 3$"):
            flashjit.attention(q, k, v, engine=3)

    def test_an_engine_for_gpus_says_what_to_do_with_host_memory(self):
        with self.assertRaisesRegex(flashjit.Error, "^q: must be in the memory of a GPU .* engine that emulates$"):
            flashjit.Engine(cache_directory="").attention(*make_inputs())


class CudaArray:
    """An object with __cuda_array_interface__ and nothing else. Its memory is the host's, so no kernel may see it."""

    def __init__(self, array, **changes):
        self.shape = array.shape
        self.__cuda_array_interface__ = {
            "shape": array.shape, "typestr": array.dtype.str, "data": (array.ctypes.data, False), "version": 3,
            "strides": array.strides, **changes}


class CudaArrays(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.engine = flashjit.Engine(emulate="sm_90a", cache_directory="")

    def refused(self, message, *args, **options):
        with self.assertRaisesRegex(flashjit.InvalidArgument, message):
            self.engine.attention(*args, **options)

    def test_are_described_to_the_library(self):
        q, k, v = map(CudaArray, make_inputs())
        self.refused("^q: must be in host memory .* was in the memory of a GPU", q, k, v, out=q)

    def test_cannot_be_made(self):
        q, k, v = map(CudaArray, make_inputs())
        self.refused("^out: must be given, .* like q, a CudaArray; pass an array to write to$", q, k, v)
        self.refused("^lse: must be False, .* like q, a CudaArray$", q, k, v, out=q, lse=True)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^into: must be given, .* pass an array to write to$"):
            self.engine.block_mask(q, k, mask="key < 3")

    def test_wrong_ones(self):
        arrays = make_inputs()
        q, k, v = map(CudaArray, arrays)
        address = arrays[0].ctypes.data
        self.refused("^q: dtype must be float16 .* was <f8", CudaArray(arrays[0].astype(float)), k, v, out=q)
        for name in ("alibi_slopes", "sinks"):
            self.refused(rf"^{name}: dtype must be float32 \(typestr <f4\), was <f8$", q, k, v, out=q,
                         **{name: CudaArray(np.ones(2))})
        wrong = CudaArray(np.ones(2, np.uint8))
        for name, wanted in (("documents", "int32 .typestr <i4."), ("tree", "int64 .typestr <i8."),
                             ("boolean_mask", r"bool .typestr \|b1."), ("bias", "float16 or float32 .*")):
            self.refused(f"^{name}: dtype must be {wanted}, was |u1$", q, k, v, out=q, **{name: wrong})
        self.refused("^score: capture a: dtype must be float16, float32, .*, was |u1$", q, k, v, out=q,
                     score=flashjit.Score("score * a(0)", a=wrong))
        self.refused("^out: must be writable", q, k, v, out=CudaArray(arrays[0], data=(address, True)))
        k = CudaArray(arrays[1], strides=(1, 2, 2, 1))
        self.refused("^k: strides must be multiples of 2 bytes", q, k, v, out=q)


if __name__ == "__main__":
    unittest.main()
