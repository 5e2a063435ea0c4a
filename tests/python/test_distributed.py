# SPDX-License-Identifier: Apache-2.0
"""Attention over several GPUs, in the emulator: ranks are threads with a transport of the test's, or processes that
torch.distributed connects."""

from __future__ import annotations

import ctypes
import datetime
import inspect
import os
import pathlib
import queue
import re
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

import flashjit

try:
    import torch
    import torch.distributed
    import torch.multiprocessing
except ImportError as error:
    raise unittest.SkipTest("torch is not there") from error

from flashjit import distributed
from support import emulating_engine

HEADS, HEADS_KV, DIM = 4, 2, 16
LAYOUTS = ("contiguous", "zigzag", "striped")


class World:
    """What messages go through."""

    def __init__(self, ranks, timeout=60):
        self.ranks, self.timeout, self.failure = ranks, timeout, None
        self.messages = {(a, b): queue.Queue() for a in range(ranks) for b in range(ranks)}


class Rank:
    """A transport of threads."""

    def __init__(self, world, rank):
        self.world, self.rank, self.started = world, rank, []

    def start(self, sends, receives):
        for peer, address, size in sends:
            self.world.messages[self.rank, peer].put(ctypes.string_at(address, size))
        self.started.append(receives)

    def finish(self):
        for peer, address, size in self.started.pop(0):
            message = self.world.messages[peer, self.rank].get(timeout=self.world.timeout)
            if message is None:
                raise RuntimeError(f"rank {peer} gave up")
            assert len(message) == size
            ctypes.memmove(address, message, size)

    def wait(self):
        pass

    def abort(self):
        for peer in range(self.world.ranks):
            self.world.messages[self.rank, peer].put(None)


def on_ranks(ranks, work, transport=Rank):
    """What work(group) returns on each rank, or what it raised."""
    world, results = World(ranks), [None] * ranks

    def run(rank):
        try:
            results[rank] = work(distributed.Group.from_transport(transport(world, rank), rank, ranks))
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank, )) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def raise_first(results):
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def inputs(seqlen, heads_kv=HEADS_KV, seqlen_kv=None):
    torch.manual_seed(1)
    seqlen_kv = seqlen if seqlen_kv is None else seqlen_kv
    return [torch.randn(2, length, heads, DIM, dtype=torch.float16)
            for length, heads in ((seqlen, HEADS), (seqlen_kv, heads_kv), (seqlen_kv, heads_kv))]


def expected(q, k, v, causal=False, hidden=None):
    """In double precision, with a graph."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * DIM**-0.5
    if causal:
        hidden = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1 + scores.shape[3] - scores.shape[2])
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    return (scores.softmax(3) @ v).transpose(1, 2), scores.logsumexp(3)


class ShardingTest(unittest.TestCase):

    def test_spans_are_the_positions_of_a_rank(self):
        self.assertEqual(distributed.Sharding("contiguous", 8, 2).spans(1), (range(4, 8), ))
        self.assertEqual(distributed.Sharding("zigzag", 8, 2).spans(0), (range(0, 2), range(6, 8)))
        self.assertEqual(distributed.Sharding("striped", 7, 3).spans(0), (range(0, 9, 3), ))
        self.assertEqual(distributed.Sharding("contiguous", 1, 2).spans(1), ())
        self.assertEqual(distributed.Sharding("zigzag", 8, 2).length(1), 4)
        self.assertEqual(distributed.Sharding("zigzag", 8, 2).positions(0).tolist(), [0, 1, 6, 7])
        self.assertEqual(distributed.Sharding("contiguous", 1, 2).positions(1).tolist(), [])

    def test_a_sharding_is_a_value(self):
        self.assertEqual(distributed.Sharding("zigzag", 8, 2), distributed.Sharding("zigzag", 8, 2))
        self.assertEqual(len({distributed.Sharding("zigzag", 8, 2), distributed.Sharding("zigzag", 8, 2)}), 1)
        self.assertNotEqual(distributed.Sharding("zigzag", 8, 2), distributed.Sharding("striped", 8, 2))

    def test_what_is_no_sharding_is_refused_by_name(self):
        for arguments, message in ((("zig", 8, 2), "^layout: must be one of 'contiguous', 'zigzag', 'striped', was"),
                                   (("zigzag", -1, 2), "^seqlen: must be 0 or more, was -1"),
                                   (("zigzag", 8, 0), "^ranks: must be 1 or more, was 0")):
            with self.assertRaisesRegex(flashjit.InvalidArgument, message):
                distributed.Sharding(*arguments)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^rank: must be from 0 to 1, was 2"):
            distributed.Sharding("zigzag", 8, 2).spans(2)

    def test_tensors_of_any_kind_are_sharded_and_put_together(self):
        for layout in LAYOUTS:
            for ranks in (1, 2, 3, 8):
                sharding = distributed.Sharding(layout, 5, ranks)
                for dim, whole in ((1, torch.arange(30).reshape(2, 5, 3)), (-1, torch.randn(2, 5)),
                                   (0, torch.arange(5) > 2)):
                    shards = [distributed.shard(whole, sharding, rank, dim) for rank in range(ranks)]
                    self.assertEqual([part.shape[dim] for part in shards], [sharding.length(r) for r in range(ranks)])
                    self.assertTrue(torch.equal(distributed.gather(shards, sharding, dim), whole))

    def test_gradients_go_through_both(self):
        sharding = distributed.Sharding("zigzag", 5, 2)
        whole = torch.randn(1, 5, requires_grad=True)
        weights = torch.arange(5.0)[None]
        again = distributed.gather([distributed.shard(whole, sharding, rank) for rank in (0, 1)], sharding)
        (again * weights).sum().backward()
        self.assertEqual(whole.grad.tolist(), weights.tolist())

    def test_tensors_of_other_lengths_are_refused_by_name(self):
        sharding = distributed.Sharding("zigzag", 8, 2)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^whole: must have 8 positions in dimension 1, had 7"):
            distributed.shard(torch.zeros(1, 7), sharding, 0)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^dim: must be one of the 2 dimensions of whole, was 2"):
            distributed.shard(torch.zeros(1, 8), sharding, 0, 2)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^shards: must be 2, one for each rank, were 1"):
            distributed.gather([torch.zeros(1, 4)], sharding)
        message = r"^shards\[1\]: must have 4 positions in dimension 1, had 3"
        with self.assertRaisesRegex(flashjit.InvalidArgument, message):
            distributed.gather([torch.zeros(1, 4), torch.zeros(1, 3)], sharding)

    def test_what_is_no_tensor_or_no_sharding_is_refused_by_name(self):
        sharding, half = distributed.Sharding("zigzag", 8, 2), torch.zeros(1, 4)
        for message, function, arguments in (
            ("^sharding: must be a flashjit.distributed.Sharding, was 'zigzag'", distributed.shard, (half, "zigzag", 0)),
            ("^whole: must be a torch.Tensor, was list", distributed.shard, ([0] * 8, sharding, 0)),
            ("^dim: must be an int, was '1'", distributed.shard, (torch.zeros(1, 8), sharding, 0, "1")),
            ("^sharding: must be a flashjit.distributed.Sharding, was None", distributed.gather, ([half, half], None)),
            (r"^shards\[1\]: must be of torch.float32 and but for dimension 1 of the sizes \[1\] like shards\[0\], was of "
             r"torch.float64 and \[1\]", distributed.gather, ([half, half.double()], sharding)),
            (r"^shards\[1\]: must be .* was of torch.float32 and \[3\]", distributed.gather,
             ([half, torch.zeros(3, 4)], sharding)),
        ):
            with self.assertRaisesRegex(flashjit.InvalidArgument, message):
                function(*arguments)


class PackedShardingTest(unittest.TestCase):

    def test_spans_are_rows_and_positions_those_in_their_sequences(self):
        sharding = distributed.Sharding.packed("zigzag", [0, 4, 20, 24, 32], 2)
        self.assertEqual(sharding.seqlen, 32)
        self.assertEqual(sharding.spans(0), (range(4, 8), range(16, 20), range(24, 32)))
        self.assertEqual(sharding.positions(0).tolist(), [*range(4), *range(12, 16), *range(8)])
        self.assertEqual(sharding, distributed.Sharding.packed("zigzag", torch.tensor([0, 4, 20, 24, 32]), 2))
        whole = torch.arange(32)[None]
        shards = [distributed.shard(whole, sharding, rank) for rank in range(2)]
        self.assertTrue(torch.equal(distributed.gather(shards, sharding), whole))

    def test_what_is_wrong_is_refused_by_name(self):
        for offsets, message in (([], "must be integers, the first 0, was"), ([1, 2], "must begin with 0, began with 1"),
                                 ([0, 2.5], "must be integers"), ([0, 3, 2], "must not fall, fell from 3 to 2")):
            with self.assertRaisesRegex(flashjit.InvalidArgument, f"^cu_seqlens: {message}"):
                distributed.Sharding.packed("zigzag", offsets, 2)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^layout: must be contiguous or zigzag for packed"):
            distributed.Sharding.packed("striped", [0, 3], 2)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^seqlen: must be 3, the last of cu_seqlens, was 4"):
            distributed.Sharding("zigzag", 4, 2, (0, 3))


class AttentionTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.engine = emulating_engine()

    def over_shards(self, whole, layout, ranks, **options):
        q, k, v = whole
        queries, keys = (distributed.Sharding(layout, x.shape[1], ranks) for x in (q, k))

        def work(group):
            parts = (distributed.shard(x, s, group.rank) for x, s in ((q, queries), (k, keys), (v, keys)))
            return distributed.attention(*parts, sharding=queries, sharding_kv=keys, group=group, lse=True,
                                         engine=self.engine, **options)

        results = raise_first(on_ranks(ranks, work))
        return (distributed.gather([out for out, _ in results], queries),
                distributed.gather([lse for _, lse in results], queries, 2))

    def assert_close(self, found, wanted, tolerance=4e-3):
        self.assertFalse(bool(torch.isnan(found).any()))
        self.assertLess(float((found.double() - wanted).abs().max()), tolerance)

    def test_every_scheme_and_layout_gives_what_one_call_gives(self):
        whole = inputs(21)
        wanted, wanted_lse = expected(*whole, causal=True)
        for scheme in ("automatic", "all_gather", "ring", "all_to_all"):
            for layout in LAYOUTS:
                with self.subTest(scheme=scheme, layout=layout):
                    out, lse = self.over_shards(whole, layout, 2, causal=True, scheme=scheme)
                    self.assert_close(out, wanted)
                    self.assert_close(lse, wanted_lse)
        out, _ = self.over_shards(whole, "zigzag", 4, causal=True, scheme="two_level", ranks_of_host=2)
        self.assert_close(out, wanted)
        out, _ = self.over_shards(whole, "zigzag", 1, causal=True)
        self.assert_close(out, wanted)

    def test_queries_may_be_sharded_otherwise_than_keys(self):
        whole = inputs(9, seqlen_kv=21)
        self.assert_close(self.over_shards(whole, "striped", 3, causal=True)[0], expected(*whole, causal=True)[0])

    def test_functions_see_positions_in_the_whole(self):
        whole = inputs(21)
        documents = torch.arange(21, dtype=torch.int32) // 6
        mask = flashjit.Mask("document(query) == document(key)", document=documents)
        hidden = documents[:, None] != documents[None]
        out, _ = self.over_shards(whole, "zigzag", 2, mask=mask)
        self.assert_close(out, expected(*whole, hidden=hidden)[0])

    def gradients(self, whole, weights, layout, ranks, **options):
        sharding = distributed.Sharding(layout, whole[0].shape[1], ranks)

        def work(group):
            q, k, v, w = (distributed.shard(x, sharding, group.rank) for x in (*whole, weights))
            leaves = [x.requires_grad_() for x in (q, k, v)]
            out = distributed.attention(*leaves, sharding=sharding, group=group, engine=self.engine, **options)
            (out * w).sum().backward()
            return [leaf.grad for leaf in leaves]

        results = raise_first(on_ranks(ranks, work))
        return [distributed.gather(parts, sharding) for parts in zip(*results)]

    def test_gradients_are_those_of_one_call(self):
        whole = inputs(21)
        weights = torch.randn(2, 21, HEADS, DIM, dtype=torch.float16)
        leaves = [x.double().requires_grad_() for x in whole]
        (expected(*leaves, causal=True)[0] * weights).sum().backward()
        for scheme in ("automatic", "all_gather", "ring", "all_to_all"):
            for layout in ("contiguous", "zigzag"):
                with self.subTest(scheme=scheme, layout=layout):
                    found = self.gradients(whole, weights, layout, 2, causal=True, backward_scheme=scheme)
                    for gradient, leaf in zip(found, leaves):
                        self.assert_close(gradient, leaf.grad, 1e-2)

    def test_deterministic_gradients_have_the_same_bits_in_every_run(self):
        whole = inputs(21)
        weights = torch.randn(2, 21, HEADS, DIM, dtype=torch.float16)
        first, second = (self.gradients(whole, weights, "zigzag", 2, causal=True, deterministic=True) for _ in range(2))
        for a, b in zip(first, second):
            self.assertTrue(torch.equal(a, b))

    def test_autocast_applies(self):
        def work(group):
            sharding = distributed.Sharding("zigzag", 8, 1)
            q = torch.randn(1, 8, 2, DIM, requires_grad=True)
            with torch.autocast("cpu", torch.bfloat16):
                out = distributed.attention(q, q, q, sharding=sharding, group=group, engine=self.engine)
            out.float().sum().backward()
            return out.dtype, q.grad.dtype

        self.assertEqual(on_ranks(1, work), [(torch.bfloat16, torch.float32)])

    def test_a_tensor_is_gathered_on_every_rank(self):
        whole, sharding = torch.randn(1, 11, 2, DIM), distributed.Sharding("zigzag", 11, 3)
        found = raise_first(on_ranks(3, lambda group: group.gather(
            distributed.shard(whole, sharding, group.rank), sharding, engine=self.engine)))
        self.assertTrue(all(torch.equal(tensor, whole) for tensor in found))

    def test_ranks_agree_on_variants(self):
        whole = inputs(8)

        def work(group):
            group.agree(self.engine)
            sharding = distributed.Sharding("zigzag", 8, 2)
            parts = (distributed.shard(x, sharding, group.rank) for x in whole)
            return distributed.attention(*parts, sharding=sharding, group=group, engine=self.engine)

        raise_first(on_ranks(2, work))

    def attend_in_zigzag(self, group, engine):
        sharding = distributed.Sharding("zigzag", 8, 2)
        parts = (distributed.shard(x, sharding, group.rank) for x in inputs(8))
        return distributed.attention(*parts, sharding=sharding, group=group, engine=engine, scheme="all_to_all")

    def test_what_one_rank_has_no_kernel_for_raises_on_all_and_the_group_goes_on(self):
        without_kernels = flashjit.Engine(emulate="sm_90a", cache_directory="", policy="cache_only")

        def work(group):
            with self.assertRaises(flashjit.CacheMiss) as caught:
                self.attend_in_zigzag(group, without_kernels if group.rank == 1 else self.engine)
            return str(caught.exception), self.attend_in_zigzag(group, self.engine)

        (of_other, _), (own, _) = raise_first(on_ranks(2, work))
        self.assertEqual(of_other, f"rank 1: {own}")

    def test_a_rank_that_gives_up_raises_on_all(self):
        class LostRank(Rank):
            """Whose first exchange, by which ranks agree on a call, is its last."""

            finished = 0

            def finish(self):
                self.finished += 1
                if self.rank == 1 and self.finished > 1:
                    raise RuntimeError("lost")
                super().finish()

        def work(group):
            try:
                self.attend_in_zigzag(group, self.engine)
            finally:
                with self.assertRaises(flashjit.CommunicationError):
                    group.wait()

        errors = on_ranks(2, work, LostRank)
        self.assertIsInstance(errors[0], flashjit.CommunicationError)
        self.assertIsInstance(errors[1], flashjit.CommunicationError)
        self.assertEqual([str(error) for error in errors], ["group: rank 1 gave up", "group: lost"])

    def test_what_is_wrong_is_refused_by_name(self):
        sharding = distributed.Sharding("striped", 8, 1)
        q, k, v = inputs(8)

        def refused(kind, message, arrays=(q, k, v), **changes):
            def work(group):
                options = {"sharding": sharding, "group": group, "engine": self.engine, **changes}
                with self.assertRaisesRegex(kind, message):
                    distributed.attention(*arrays, **options)

            raise_first(on_ranks(1, work))

        invalid, unsupported = flashjit.InvalidArgument, flashjit.Unsupported
        refused(invalid, "^scheme: must be one of 'automatic', 'all_gather'", scheme="rings")
        refused(invalid, "^backward_scheme: must be one of 'automatic', 'all_gather'", backward_scheme="rings")
        refused(invalid, "^sharding: must be a flashjit.distributed.Sharding, was 'striped'", sharding="striped")
        refused(invalid, "^sharding_kv: must be a flashjit.distributed.Sharding, was 8", sharding_kv=8)
        refused(invalid, "^q: must be a torch.Tensor of 4 dimensions, was", (q[0], k, v))
        refused(invalid, r"^k: shape must be \[2, 8, 2, 16\], was \[2, 7, 2, 16\]", (q, k[:, 1:], v))
        refused(invalid, "^sharding: must be of 1 ranks like the group, was of 2",
                sharding=distributed.Sharding("striped", 8, 2))
        refused(invalid, "^group: must be a flashjit.distributed.Group, was None", group=None)
        refused(invalid, "^sharding_kv: must be the sharding of q where sequences are packed, was another",
                sharding_kv=distributed.Sharding.packed("zigzag", [0, 3, 8], 1))
        refused(unsupported, "^score: capture tilt: must not require a gradient over several GPUs; pass tilt.detach()",
                score=flashjit.Score("score * tilt(0)", tilt=torch.ones(1, requires_grad=True)))

    def test_packed_sequences_are_attended_each_by_itself_and_get_gradients(self):
        offsets = (0, 11, 12, 12, 16, 23)
        sharding = distributed.Sharding.packed("zigzag", torch.tensor(offsets), 2)
        whole = [x[:1] for x in inputs(23)]
        leaves = [x.clone().requires_grad_() for x in whole]
        sequences = [expected(*(x[:, a:b] for x in leaves), causal=True)[0] for a, b in zip(offsets, offsets[1:])]
        wanted = torch.cat(sequences, 1)
        weights = torch.linspace(-1, 1, DIM)
        (wanted * weights).sum().backward()

        def work(group):
            own = [distributed.shard(x, sharding, group.rank).requires_grad_() for x in whole]
            out = distributed.attention(*own, sharding=sharding, group=group, engine=self.engine, causal=True,
                                        scheme="ring", backward_scheme="ring")
            (out * weights.to(out.dtype)).sum().backward()
            gathered = group.gather(out.detach(), sharding, engine=self.engine)
            return out.detach(), gathered, [x.grad for x in own]

        results = raise_first(on_ranks(2, work))
        out = distributed.gather([out for out, _, _ in results], sharding)
        self.assertLess(float((out.double() - wanted.detach()).abs().max()), 4e-3)
        self.assertTrue(all(torch.equal(gathered, out) for _, gathered, _ in results))
        for i, leaf in enumerate(leaves):
            gradient = distributed.gather([gradients[i] for _, _, gradients in results], sharding)
            self.assertLess(float((gradient.double() - leaf.grad).abs().max()), 2e-2)

    def test_sinks_and_slopes_get_the_sum_over_ranks_on_the_first_one(self):
        sharding = distributed.Sharding("zigzag", 21, 2)
        options = [torch.linspace(0.1, 0.8, HEADS, requires_grad=True) for _ in range(2)]
        whole = inputs(21)
        q, k, v = (x.double().transpose(1, 2) for x in whole)
        k, v = (x.repeat_interleave(HEADS // HEADS_KV, 1) for x in (k, v))
        behind = torch.arange(21)[:, None] - torch.arange(21)
        scores = q @ k.transpose(2, 3) * DIM**-0.5 - options[0].double()[:, None, None] * behind
        scores = scores.masked_fill(behind < 0, -torch.inf)
        sinks = options[1].double()[:, None, None].expand(2, HEADS, 21, 1)
        (torch.cat([scores, sinks], 3).softmax(3)[..., :-1] @ v).square().sum().backward()

        def work(group):
            own = [distributed.shard(x, sharding, group.rank) for x in whole]
            slopes, sinks = (x.detach().clone().requires_grad_() for x in options)
            distributed.attention(*own, sharding=sharding, group=group, engine=self.engine, causal=True,
                                  alibi_slopes=slopes, sinks=sinks).double().square().sum().backward()
            return slopes.grad, sinks.grad

        of_first, of_second = raise_first(on_ranks(2, work))
        for found, zero, option in zip(of_first, of_second, options):
            self.assertLess(float((found - option.grad).abs().max()), 1e-2 * float(option.grad.abs().max()))
            self.assertEqual(float(zero.abs().max()), 0)

    def test_a_bias_has_the_rows_of_a_rank_and_gets_their_gradients(self):
        sharding = distributed.Sharding("zigzag", 21, 2)
        whole, bias = inputs(21), torch.randn(1, HEADS, 21, 21, dtype=torch.float16, requires_grad=True)
        q, k, v = (x.double().transpose(1, 2) for x in whole)
        k, v = (x.repeat_interleave(HEADS // HEADS_KV, 1) for x in (k, v))
        hidden = torch.ones(21, 21, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(2, 3) * DIM**-0.5 + bias.double()).masked_fill(hidden, -torch.inf)
        wanted = (scores.softmax(3) @ v).transpose(1, 2)
        wanted.square().sum().backward()

        def work(group):
            own = [distributed.shard(x, sharding, group.rank) for x in whole]
            rows = distributed.shard(bias.detach(), sharding, group.rank, dim=2).requires_grad_()
            out = distributed.attention(*own, sharding=sharding, group=group, engine=self.engine, causal=True, bias=rows)
            out.double().square().sum().backward()
            return out.detach(), rows.grad

        outs, gradients = zip(*raise_first(on_ranks(2, work)))
        self.assertLess(float((distributed.gather(outs, sharding).double() - wanted.detach()).abs().max()), 4e-3)
        found = distributed.gather(gradients, sharding, dim=2)
        self.assertLess(float((found - bias.grad).abs().max()), 2e-2)
        self.assertEqual(float(found[:, :, hidden].abs().max()), 0)

    def test_a_closed_group_is_refused(self):
        def work(group):
            group.close()
            with self.assertRaisesRegex(flashjit.InvalidArgument, "^group: must be open, was closed"):
                group.wait()
            group.close()

        raise_first(on_ranks(1, work))

    def test_what_a_transport_raises_is_an_error_of_the_group(self):
        class Broken(Rank):

            def start(self, sends, receives):
                raise OSError("the cable is gone")

        q, k, v = inputs(8)
        sharding = distributed.Sharding("zigzag", 8, 2)
        group = distributed.Group.from_transport(Broken(World(2), 0), 0, 2)
        parts = [distributed.shard(x, sharding, 0) for x in (q, k, v)]
        for _ in range(2):
            with self.assertRaisesRegex(flashjit.CommunicationError, "^group: the cable is gone"):
                distributed.attention(*parts, sharding=sharding, group=group, engine=self.engine)

    def test_groups_of_nccl_say_what_is_wrong_without_it(self):
        if torch.cuda.is_available():
            self.skipTest("there is a GPU")
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^timeout: must be a positive datetime.timedelta or"):
            distributed.Group.from_nccl(1, 0, 1, 0, timeout=3)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^communicator: must be given, was null"):
            distributed.Group.from_nccl(0, 0, 1, 0, timeout=datetime.timedelta(seconds=3))
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^device: must be a CUDA device or the CPU, was meta"):
            distributed.Group.from_nccl(0, 0, 1, "meta")
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^device: must be a CUDA device for a communicator, was cpu"):
            distributed.Group.from_nccl(1, 0, 1, "cpu")
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^process_group: must be given where"):
            distributed.Group()


def attend_in_process(rank, store, dies):
    """A process of two."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2,
                                         timeout=datetime.timedelta(seconds=5 if dies else 60))
    group = distributed.Group(device="cpu")
    whole, sharding = inputs(21), distributed.Sharding("zigzag", 21, 2)
    parts = [distributed.shard(x, sharding, rank) for x in whole]
    engine = emulating_engine()
    out = distributed.attention(*parts, sharding=sharding, group=group, causal=True, engine=engine, scheme="ring")
    wanted = distributed.shard(expected(*whole, causal=True)[0], sharding, rank)
    assert float((out.double() - wanted).abs().max()) < 4e-3
    leaves, whole_leaves = [x.requires_grad_() for x in parts], [x.double().requires_grad_() for x in whole]
    # The gradient that sum() makes is one number, repeated by strides of 0.
    distributed.attention(*leaves, sharding=sharding, group=group, causal=True, engine=engine).sum().backward()
    expected(*whole_leaves, causal=True)[0].sum().backward()
    for leaf, whole_leaf in zip(leaves, whole_leaves):
        assert float((leaf.grad.double() - distributed.shard(whole_leaf.grad, sharding, rank)).abs().max()) < 2e-2
    gathered = group.gather(out, sharding, engine=engine)
    assert torch.equal(distributed.shard(gathered, sharding, rank), out)
    group.wait()
    if dies and rank == 1:
        os._exit(0)
    if dies:
        try:
            distributed.attention(*parts, sharding=sharding, group=group, causal=True, engine=engine, scheme="ring")
        except flashjit.CommunicationError as error:
            assert str(error).startswith("group: "), error
        else:
            raise AssertionError("the lost rank was not noticed")
        os._exit(0)  # the process group waits for it, too
    torch.distributed.destroy_process_group()


def fail_and_attend(rank, store):
    """A process of two, whose calls fail with messages on their way. What they leave is no other group's."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2,
                                         timeout=datetime.timedelta(seconds=60))
    sharding, engine = distributed.Sharding("zigzag", 21, 2), emulating_engine()

    def attend(whole, engine):
        group = distributed.Group(device="cpu")
        parts = [distributed.shard(x, sharding, rank) for x in whole]
        return distributed.attention(*parts, sharding=sharding, group=group, engine=engine, scheme="ring")

    finished = []

    def lose_the_second(transport):
        finished.append(transport)
        if finished.count(transport) == 2:  # behind that by which ranks agree on a first call
            raise RuntimeError("lost")
        return finish(transport)

    finish = distributed._ProcessGroupTransport.finish
    with unittest.mock.patch.object(distributed._ProcessGroupTransport, "finish", lose_the_second):
        for _ in range(2):
            try:
                attend([torch.full_like(x, 100) for x in inputs(21)], engine)
            except flashjit.CommunicationError as error:
                assert str(error) == "group: lost", error
                continue
            raise AssertionError("nothing was lost")
    whole = inputs(21)
    wanted = distributed.shard(expected(*whole)[0], sharding, rank)
    assert float((attend(whole, engine).double() - wanted).abs().max()) < 4e-3
    parts = [distributed.shard(x, sharding, rank).requires_grad_() for x in inputs(21)]
    bias = torch.zeros(1, 1, parts[0].shape[1], 21, dtype=torch.bfloat16)
    group = distributed.Group(device="cpu")
    # Nothing is sent, so the group goes on: where one rank lacks a kernel, and where gradients are refused.
    with tempfile.TemporaryDirectory() as empty:
        without_kernels = flashjit.Engine(emulate="sm_90a", policy="cache_only", cache_directory=empty)
        own = [distributed.shard(x, sharding, rank) for x in whole]
        call = {"sharding": sharding, "group": group, "scheme": "ring"}
        try:
            distributed.attention(*own, engine=without_kernels if rank == 1 else engine, **call)
        except flashjit.CacheMiss as error:
            assert str(error).startswith("rank 1: ") == (rank == 0), error
        else:
            raise AssertionError("there was a kernel")
        assert float((distributed.attention(*own, engine=engine, **call).double() - wanted).abs().max()) < 4e-3
    for _ in range(2):
        out = distributed.attention(*parts, bias=bias, sharding=sharding, group=group, engine=engine, scheme="ring",
                                    backward_scheme="all_gather")
        try:
            out.sum().backward()
        except flashjit.Unsupported as error:
            assert str(error).startswith("bias: must not be given for gradients by scheme all_gather"), error
        else:
            raise AssertionError("there were gradients")
    of_first = torch.distributed.new_group([0])
    if rank == 1:
        try:
            distributed.Group(of_first, device="cpu")
        except flashjit.InvalidArgument as error:
            assert str(error).startswith("process_group: must be one that this process is in"), error
        else:
            raise AssertionError("another's process group was taken")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


class EstimatesTest(unittest.TestCase):

    def estimates(self, **changes):
        return distributed.estimates(**{"sharding": distributed.Sharding("zigzag", 1 << 17, 8), "heads": 32, "heads_kv": 8,
                                        "head_dim": 128, "causal": True, "engine": emulating_engine(), **changes})

    def test_the_fastest_is_first_and_a_ring_sends_keys_and_values(self):
        found = self.estimates()
        self.assertEqual([x.seconds for x in found], sorted(x.seconds for x in found))
        self.assertEqual({x.scheme for x in found}, {"ring", "all_gather", "all_to_all"})
        of = {x.scheme: x for x in found}
        row, own = 2 * 8 * 128 * 2, (1 << 17) // 8  # a position's keys and values
        self.assertEqual(of["ring"].bytes, of["all_gather"].bytes)
        self.assertLessEqual(of["ring"].bytes, 7 * own * row)
        self.assertGreater(self.estimates(gradients=True)[0].seconds, 2 * found[0].seconds)
        window = {x.scheme: x for x in self.estimates(sharding=distributed.Sharding("contiguous", 1 << 17, 8),
                                                      window=(4096, 0), causal=False)}
        self.assertEqual(window["ring"].bytes, 4096 * row)

    def test_what_is_wrong_is_named(self):
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^heads: must be a multiple of num_heads_kv, 3, was 32"):
            self.estimates(heads_kv=3)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^sharding: must be a flashjit.distributed.Sharding"):
            self.estimates(sharding=None)


class ProcessesTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        emulating_engine()

    def run_processes(self, dies):
        with tempfile.TemporaryDirectory() as directory:
            torch.multiprocessing.spawn(attend_in_process, (os.path.join(directory, "store"), dies), 2)

    def test_a_process_group_carries_host_memory(self):
        self.run_processes(dies=False)

    def test_calls_that_fail_halfway_leave_later_groups_alone(self):
        with tempfile.TemporaryDirectory() as directory:
            torch.multiprocessing.spawn(fail_and_attend, (os.path.join(directory, "store"), ), 2)

    def test_the_program_of_the_page_runs(self):
        page = pathlib.Path(__file__).parents[2] / "docs" / "distributed.md"
        program = re.search(r"```python train.py\n(.*?)```", page.read_text(), re.DOTALL)[1]
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "train.py")
            path.write_text(program)
            (alone, ), of_two = self.norms_of(path, 1), self.norms_of(path, 2)
        self.assertEqual(len(of_two), 2)
        for norm in of_two:
            self.assertLess(abs(norm - alone), 1e-2 * alone)

    def norms_of(self, path, processes):
        """What each of them prints last, of the gradient."""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", path]
        environment = {**os.environ, "FLASHJIT_DEVICE": "emulate", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        return [float(norm) for norm in re.findall(r"\d\.\d{3}e[+-]\d\d", done.stdout)]

    def test_a_process_that_dies_raises_in_the_other(self):
        self.run_processes(dies=True)


class ModuleTest(unittest.TestCase):

    def test_the_package_does_not_need_it(self):
        program = "import flashjit, sys; assert not any('distributed' in name for name in sys.modules)"
        subprocess.run([sys.executable, "-c", program], check=True)

    def test_everything_public_is_documented(self):
        for name in distributed.__all__:
            thing = getattr(distributed, name)
            self.assertTrue(inspect.getdoc(thing), name)
            if inspect.isclass(thing):
                for method, function in inspect.getmembers(thing, inspect.isroutine):
                    if not method.startswith("_"):
                        self.assertTrue(inspect.getdoc(function), f"{name}.{method}")


if __name__ == "__main__":
    unittest.main()
