# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's interface on an engine that emulates, against attention in float32 by PyTorch, which knows nothing
of FlashJIT. Needs PyTorch and NVRTC."""

import functools
import subprocess
import sys
import unittest
from unittest import mock

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"PyTorch cannot be imported: {error}") from error

import flashjit
import flashjit.torch
from flashjit import flash_attn_interface as interface
from support import emulating_engine

ROUNDING = 2e-2  # of P and of the output to bf16, for outputs of about 1


def setUpModule():
    """All calls on the default engine go to the emulating one."""
    for name in ("attention", "attention_backward", "append", "merge"):
        patch = mock.patch.object(flashjit, name, functools.partial(getattr(flashjit, name), engine=emulating_engine()))
        patch.start()
        unittest.addModuleCleanup(patch.stop)


def normal(*shape, seed=7):
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    return torch.randn(shape, generator=generator).to(torch.bfloat16)


def expected_attention(q, k, v, scale=None, causal=False, window=(-1, -1), chunk=0, softcap=0.0, sinks=None):
    """(out, lse) in float32 of one sequence: q is [queries, heads, dim], k and v are [keys, heads_kv, dim]."""
    queries, keys, group = len(q), len(k), q.shape[1] // max(k.shape[1], 1)
    k, v = (x.float().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) * (scale or q.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    place = torch.arange(queries).unsqueeze(1) + keys - queries
    key = torch.arange(keys).unsqueeze(0)
    left, right = window
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        seen &= key <= place
    if left >= 0:
        seen &= key >= place - left
    if right >= 0:
        seen &= key <= place + right
    if chunk:
        seen &= key.div(chunk, rounding_mode="floor") == place.div(chunk, rounding_mode="floor")
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().view(-1, 1, 1).expand(-1, queries, 1)], dim=2)
        v = torch.cat([v, v.new_zeros(1, *v.shape[1:])])
    lse = scores.logsumexp(-1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1).nan_to_num(), v), lse


def expected_batch(q, k, v, **options):
    results = [expected_attention(*tensors, **options) for tensors in zip(q, k, v)]
    return tuple(torch.stack(parts) for parts in zip(*results))


class Interface(unittest.TestCase):
    def assert_close(self, actual, expected, limit=ROUNDING):
        self.assertEqual(actual.shape, expected.shape)
        # Where both are -infinity there is no difference; written so that NaN fails.
        same = actual.float() == expected.float()
        difference = (actual.float() - expected.float()).masked_fill(same, 0).abs()
        self.assertTrue(bool((difference < limit).all()), f"differs by {difference.max().item()}")

    def refused(self, kind, message, call):
        with self.assertRaisesRegex(kind, f"^{message}"):
            call()


class Dense(Interface):
    def setUp(self):
        self.q, self.k, self.v = normal(2, 40, 4, 64), normal(2, 56, 2, 64, seed=8), normal(2, 56, 2, 64, seed=9)

    def test_options_are_those_of_the_interface(self):
        sinks = normal(4)
        cases = [
            ({}, {}), ({"causal": True}, {"causal": True}), ({"softmax_scale": 0.3}, {"scale": 0.3}),
            ({"window_size": (10, 3)}, {"window": (10, 3)}), ({"window_size": (10, -1)}, {"window": (10, -1)}),
            ({"causal": True, "window_size": (10, 0)}, {"causal": True, "window": (10, 0)}),
            ({"causal": True, "window_size": (10, 5)}, {"causal": True, "window": (10, 5)}),
            ({"attention_chunk": 16, "causal": True}, {"chunk": 16, "causal": True}),
            ({"softcap": 2.0}, {"softcap": 2.0}), ({"s_aux": sinks}, {"sinks": sinks}),
            ({"num_splits": 3, "pack_gqa": True, "sm_margin": 8}, {}),
        ]  # fmt: skip
        for given, means in cases:
            with self.subTest(given):
                out, lse = interface.flash_attn_func(self.q, self.k, self.v, return_attn_probs=True, **given)
                expected, expected_lse = expected_batch(self.q, self.k, self.v, **means)
                self.assert_close(out, expected)
                self.assert_close(lse, expected_lse)
                alone = interface.flash_attn_func(self.q, self.k, self.v, **given)
                self.assertTrue(torch.equal(alone, out))

    def test_arguments_by_position(self):
        out = interface.flash_attn_func(self.q, self.k, self.v, 0.2, True, None, None, None, None, (9, 0), 0, 3.0)
        expected, _ = expected_batch(self.q, self.k, self.v, scale=0.2, causal=True, window=(9, 0), softcap=3.0)
        self.assert_close(out, expected)

    def test_plain_calls_go_straight_to_the_library(self):
        """And give what others give."""
        k, v = torch.cat([self.k, self.v], dim=-1).split(64, dim=-1)  # rows of theirs lie behind one another
        for keys, given in (((self.k, self.v), {}), ((k, v), {}),
                            ((self.k, self.v), {"causal": True, "softmax_scale": 0.3, "softcap": 2.0})):
            call = functools.partial(interface.flash_attn_func, self.q, *keys, return_attn_probs=True, **given)
            with mock.patch.object(interface, "_tensors", side_effect=AssertionError("not straight")):
                straight = call()
            with mock.patch.object(interface, "_are_plain", return_value=False):
                for one, other in zip(straight, call()):
                    self.assertTrue(torch.equal(one, other))

    def test_calls_that_are_not_plain_do_not(self):
        q, k, v = self.q, self.k, self.v
        spread = q.repeat_interleave(2, dim=-1)[..., ::2]  # elements are not neighbours
        self.assertFalse(spread.is_contiguous())
        self.assertTrue(torch.equal(interface.flash_attn_func(spread, k, v), interface.flash_attn_func(q, k, v)))
        exact = interface.flash_attn_func(q.double(), k.double(), v.double())  # which no kernel is for
        self.assertEqual(exact.dtype, torch.float64)
        self.assert_close(exact, interface.flash_attn_func(q, k, v).double())
        for arguments, options in (((q, k, v.clone().requires_grad_()), {}), ((q, k, v), {"window_size": [-1, -1]}),
                                   ((q, k, v), {"window_size": (-1.0, -1.0)}),
                                   ((q.as_subclass(type("Mine", (torch.Tensor, ), {})), k, v), {})):
            with mock.patch.object(interface, "_options", side_effect=ZeroDivisionError):
                self.assertRaises(ZeroDivisionError, interface.flash_attn_func, *arguments, **options)

    def test_rows_that_see_nothing(self):
        out, lse = interface.flash_attn_func(self.k.repeat(1, 1, 2, 1), self.k[:, :8], self.v[:, :8], causal=True,
                                             return_attn_probs=True)
        self.assertTrue(bool((out[:, :48] == 0).all()))
        self.assertTrue(bool((lse[:, :, :48] == float("-inf")).all()))

    def test_gradients(self):
        for options in ({"causal": True}, {"attention_chunk": 16, "causal": True}, {"deterministic": True},
                        {"window_size": (12, 4), "softcap": 3.0}):
            with self.subTest(options):
                tensors = [x.detach().requires_grad_() for x in (self.q, self.k, self.v)]
                out, lse = interface.flash_attn_func(*tensors, return_attn_probs=True, **options)
                (out.float().square().sum() + lse.sum()).backward()
                exact = [x.detach().float().requires_grad_() for x in (self.q, self.k, self.v)]
                means = {"causal": options.get("causal", False), "chunk": options.get("attention_chunk", 0),
                         "window": options.get("window_size", (-1, -1)), "softcap": options.get("softcap", 0.0)}
                expected, expected_lse = expected_batch(*exact, **means)
                (expected.square().sum() + expected_lse.sum()).backward()
                for got, right in zip(tensors, exact):
                    self.assert_close(got.grad, right.grad, 0.05 * right.grad.abs().max().item())

    def test_whether_gradients_are_deterministic_reaches_the_kernels(self):
        for deterministic in (False, True):
            with mock.patch.object(flashjit, "attention_backward", wraps=flashjit.attention_backward) as backward:
                q = self.q.clone().requires_grad_()
                interface.flash_attn_func(q, self.k, self.v, deterministic=deterministic).sum().backward()
            self.assertIs(backward.call_args.kwargs["deterministic"], deterministic)

    def test_packed_in_one_tensor(self):
        one = normal(2, 24, 3, 4, 64).requires_grad_()
        out = interface.flash_attn_qkvpacked_func(one, causal=True)
        self.assert_close(out, expected_batch(*one.detach().unbind(2), causal=True)[0])
        out.float().square().sum().backward()
        exact = one.detach().float().requires_grad_()
        expected_batch(*exact.unbind(2), causal=True)[0].square().sum().backward()
        self.assert_close(one.grad, exact.grad, 0.05 * exact.grad.abs().max().item())
        grouped = normal(2, 24, 8, 64)
        out = interface.flash_attn_qkvpacked_func(grouped, num_heads_q=4)
        self.assert_close(out, expected_batch(*grouped.split([4, 2, 2], dim=2))[0])

    def test_any_strides(self):
        expected, _ = expected_batch(self.q, self.k, self.v)
        q, k, v = (x.transpose(2, 3).contiguous().transpose(2, 3) for x in (self.q, self.k, self.v))
        self.assert_close(interface.flash_attn_func(q, k, v), expected)
        out, lse, *_ = interface._flash_attn_forward(q, k, v)
        self.assert_close(out, expected)
        dq = torch.empty_like(self.q)
        interface._flash_attn_backward(torch.ones(1, dtype=q.dtype).expand(q.shape), q, k, v, out, lse, dq=dq)
        exact = self.q.float().requires_grad_()
        expected_batch(exact, self.k, self.v)[0].sum().backward()
        self.assert_close(dq, exact.grad, 0.05)

    def test_without_memory(self):
        self.refused(flashjit.InvalidArgument, "q: must be a dense .* array with memory", lambda: interface.flash_attn_func(
            *(x.to("meta") for x in (self.q, self.k, self.v))))

    def test_in_a_graph(self):
        compiled = torch.compile(interface.flash_attn_func, backend="aot_eager", fullgraph=True)
        q = self.q.clone().requires_grad_()
        out = compiled(q, self.k, self.v, causal=True)
        out.sum().backward()
        self.assertTrue(torch.equal(out, interface.flash_attn_func(self.q, self.k, self.v, causal=True)))
        self.assertTrue(bool(q.grad.isfinite().all()))


class Packed(Interface):
    """Sequences one behind the other."""

    queries, keys = (5, 0, 33, 20), (9, 4, 33, 50)

    def setUp(self):
        self.q, self.k, self.v = (normal(sum(rows), heads, 64, seed=i) for i, (rows, heads) in
                                  enumerate(((self.queries, 4), (self.keys, 2), (self.keys, 2))))
        self.starts_q, self.starts_k = (torch.tensor([0, *torch.tensor(rows).cumsum(0)], dtype=torch.int32)
                                        for rows in (self.queries, self.keys))


class Varlen(Packed):
    def expected(self, keys=None, **options):
        each = zip(self.q.split(self.queries), self.k.split(self.keys), self.v.split(self.keys), keys or self.keys)
        results = [expected_attention(q, k[:used], v[:used], **options) for q, k, v, used in each]
        return torch.cat([out for out, _ in results]), torch.cat([lse for _, lse in results], dim=1)

    def call(self, **options):
        return interface.flash_attn_varlen_func(self.q, self.k, self.v, self.starts_q, self.starts_k, 33, 50,
                                                return_attn_probs=True, **options)

    def test_packed_sequences(self):
        for given, means in (({}, {}), ({"causal": True}, {"causal": True}), ({"s_aux": normal(4)}, {"sinks": normal(4)}),
                             ({"seqused_k": torch.tensor([3, 4, 0, 41], dtype=torch.int32)}, {"keys": (3, 4, 0, 41)})):
            with self.subTest(means):
                for actual, expected in zip(self.call(**given), self.expected(**means)):
                    self.assert_close(actual, expected)

    def test_gradients(self):
        self.q, self.k, self.v = (x.requires_grad_() for x in (self.q, self.k, self.v))
        out, _ = self.call(causal=True, deterministic=True)
        out.float().square().sum().backward()
        got = [x.grad for x in (self.q, self.k, self.v)]
        self.q, self.k, self.v = (x.detach().float().requires_grad_() for x in (self.q, self.k, self.v))
        self.expected(causal=True)[0].square().sum().backward()
        for gradient, right in zip(got, (self.q.grad, self.k.grad, self.v.grad)):
            self.assert_close(gradient, right, 0.05 * right.abs().max().item())


def rotated(x, cos, sin, positions, interleaved):
    """x: [rows, heads, dim], each row turned by its position; one pair after the other."""
    turned, half = x.float().clone(), cos.shape[1]
    for pair in range(half):
        i, j = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)
        c, s = (table[positions, pair].float().unsqueeze(1) for table in (cos, sin))
        turned[..., i] = x[..., i].float() * c - x[..., j].float() * s
        turned[..., j] = x[..., j].float() * c + x[..., i].float() * s
    return turned.to(x.dtype)


class Cache(Interface):
    """Three sequences in a cache of three entries, or of five."""

    lengths, new = (7, 0, 30), 3

    def setUp(self):
        self.k_cache, self.v_cache = normal(3, 40, 2, 64), normal(3, 40, 2, 64, seed=8)
        self.q, self.k, self.v = (normal(3, self.new, heads, 64, seed=10 + heads) for heads in (4, 2, 3))
        self.v = self.v[:, :, :2].contiguous()
        self.used = torch.tensor(self.lengths, dtype=torch.int32)
        self.cos, self.sin = (f(torch.outer(torch.arange(64.0), 0.5 ** torch.arange(16.0))).to(torch.bfloat16)
                              for f in (torch.cos, torch.sin))

    def test_plain_calls_go_straight_to_the_library(self):
        pages = torch.arange(6, dtype=torch.int32).flip(0).view(3, 2)
        paged = [normal(6, 16, 2, 64, seed=seed) for seed in (1, 2)]
        used = torch.tensor((7, 0, 30), dtype=torch.int32)
        for caches, options in ((paged, {"page_table": pages, "cache_seqlens": used}),
                                ((self.k_cache, self.v_cache), {"cache_seqlens": 25}),
                                ((self.k_cache, self.v_cache), {"return_softmax_lse": True, "softcap": 2.0})):
            call = functools.partial(interface.flash_attn_with_kvcache, self.q, *caches, causal=True, **options)
            with mock.patch.object(interface, "_in_words_of_cache", side_effect=AssertionError("not straight")):
                straight = call()
            with mock.patch.object(interface, "_are_plain", return_value=False):
                other = call()
            if "return_softmax_lse" not in options:
                straight, other = (straight, ), (other, )
            self.assertEqual(len(straight), len(other))
            for one, two in zip(straight, other):
                self.assertTrue(one is two is None or torch.equal(one, two))
        wide = used.repeat_interleave(2)[::2]
        with mock.patch.object(interface, "_in_words_of_cache", side_effect=ZeroDivisionError):
            self.assertRaises(ZeroDivisionError, interface.flash_attn_with_kvcache, self.q, *paged, page_table=pages,
                              cache_seqlens=wide)
        self.assertTrue(torch.equal(interface.flash_attn_with_kvcache(self.q, *paged, page_table=pages, cache_seqlens=wide),
                                    interface.flash_attn_with_kvcache(self.q, *paged, page_table=pages, cache_seqlens=used)))
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^cache_seqlens: dtype must be i32"):
            interface.flash_attn_with_kvcache(self.q, *paged, page_table=pages, cache_seqlens=used.long())

    def expected(self, entries=(0, 1, 2), left=(0, 0, 0), q=None, k=None, **options):
        """(out, lse), and what caches are then."""
        k_cache, v_cache = self.k_cache.clone(), self.v_cache.clone()
        results = []
        for b, entry in enumerate(entries):
            end = self.lengths[b] + self.new
            k_cache[entry, self.lengths[b]:end] = (self.k if k is None else k)[b]
            v_cache[entry, self.lengths[b]:end] = self.v[b]
            rows = slice(left[b], end)
            results.append(expected_attention((self.q if q is None else q)[b], k_cache[entry, rows],
                                              v_cache[entry, rows], **options))
        return *(torch.stack(parts) for parts in zip(*results)), k_cache, v_cache

    def check(self, expected, **given):
        k_cache, v_cache = self.k_cache.clone(), self.v_cache.clone()
        out, lse, *partial = interface.flash_attn_with_kvcache(self.q, k_cache, v_cache, self.k, self.v,
                                                               cache_seqlens=self.used, return_softmax_lse=True, **given)
        self.assertEqual(partial, [None, None])
        self.assert_close(out, expected[0])
        self.assert_close(lse, expected[1])
        self.assert_close(k_cache, expected[2])
        self.assertTrue(torch.equal(v_cache, expected[3]))

    def test_new_keys_are_written_behind_the_old(self):
        self.check(self.expected(causal=True), causal=True)
        self.check(self.expected(window=(6, 0)), window_size=(6, 0))
        left = (3, 0, 11)
        self.check(self.expected(left=left, causal=True), causal=True,
                   cache_leftpad=torch.tensor(left, dtype=torch.int32))

    def test_a_cache_with_entries_of_any_sequences(self):
        self.k_cache, self.v_cache = normal(5, 40, 2, 64), normal(5, 40, 2, 64, seed=8)
        self.check(self.expected(entries=(4, 0, 2)), cache_batch_idx=torch.tensor([4, 0, 2], dtype=torch.int32))

    def test_rotary_embedding(self):
        for interleaved in (False, True):
            for is_local in (False, True):
                for starts in (self.lengths, (1, 20, 5)):
                    with self.subTest(interleaved=interleaved, is_local=is_local, starts=starts):
                        steps = torch.arange(self.new)
                        turn = lambda x, at: torch.stack([  # noqa: E731
                            rotated(x[b], self.cos, self.sin, starts[b] + at, interleaved) for b in range(3)])
                        expected = self.expected(q=turn(self.q, steps * is_local), k=turn(self.k, steps), causal=is_local)
                        seqlens = {} if starts == self.lengths else {
                            "rotary_seqlens": torch.tensor(starts, dtype=torch.int32)}
                        self.check(expected, rotary_cos=self.cos, rotary_sin=self.sin, causal=is_local,
                                   rotary_interleaved=interleaved, **seqlens)

    def test_rotary_embedding_beside_chunks_and_wide_windows(self):
        for options, is_local in (({"attention_chunk": 16}, True), ({"window_size": (39, 2)}, False)):
            turn = lambda x, step: torch.stack([rotated(x[b], self.cos, self.sin, self.lengths[b] + step * torch.arange(3),  # noqa: E731
                                                        True) for b in range(3)])
            means = {"chunk": options.get("attention_chunk", 0), "window": options.get("window_size", (-1, -1))}
            expected = self.expected(q=turn(self.q, int(is_local)), k=turn(self.k, 1), **means)
            self.check(expected, rotary_cos=self.cos, rotary_sin=self.sin, **options)

    def test_rows_behind_packed_queries(self):
        starts = torch.tensor([0, 1, 2, 3], dtype=torch.int32)
        q, k, v = torch.zeros(6, 4, 64, dtype=torch.bfloat16), self.k[:, 0].contiguous(), self.v[:, 0].contiguous()
        q[:3] = self.q[:, 0]
        outs = []
        for of_keys in (starts, starts.clone()):
            k_cache, v_cache = self.k_cache.clone(), self.v_cache.clone()
            outs.append(interface.flash_attn_with_kvcache(
                q, k_cache, v_cache, k, v, rotary_cos=self.cos, rotary_sin=self.sin, cache_seqlens=self.used,
                cu_seqlens_q=starts, cu_seqlens_k_new=of_keys, max_seqlen_q=1, causal=True)[:3])
        self.assertTrue(torch.equal(*outs))

    def test_where_a_call_is_refused_nothing_is_written(self):
        wrong = {"softcap": -1.0, "window_size": (-7, 1), "attention_chunk": -3, "softmax_scale": float("nan"),
                 "s_aux": torch.zeros(3)}  # fmt: skip
        for name, value in wrong.items():
            with self.subTest(name):
                k_cache, v_cache = self.k_cache.clone(), self.v_cache.clone()
                self.refused(flashjit.Error, name, lambda: interface.flash_attn_with_kvcache(
                    self.q, k_cache, v_cache, self.k, self.v, cache_seqlens=self.used, **{name: value}))
                self.assertTrue(torch.equal(k_cache, self.k_cache) and torch.equal(v_cache, self.v_cache))
        self.refused(flashjit.Error, "k_cache: head_dim", lambda: interface.flash_attn_with_kvcache(
            self.q[..., :32], k_cache, v_cache, self.k, self.v, cache_seqlens=self.used))
        self.assertTrue(torch.equal(k_cache, self.k_cache))
        turned_over = k_cache.transpose(2, 3).contiguous().transpose(2, 3)
        self.refused(flashjit.Error, "k_cache: ", lambda: interface.flash_attn_with_kvcache(
            self.q, turned_over, v_cache, self.k, self.v, cache_seqlens=self.used))

    def test_rotary_embedding_counts_padding_on_the_left(self):
        left, steps = (3, 0, 11), torch.arange(self.new)
        turn = lambda x: torch.stack([  # noqa: E731
            rotated(x[b], self.cos, self.sin, self.lengths[b] + steps, True) for b in range(3)])
        self.check(self.expected(q=turn(self.q), k=turn(self.k), left=left, causal=True), causal=True,
                   rotary_cos=self.cos, rotary_sin=self.sin, cache_leftpad=torch.tensor(left, dtype=torch.int32))

    def test_other_queries_than_new_keys(self):
        self.q = normal(3, 5, 4, 64, seed=21)
        turned = {"q": torch.stack([rotated(self.q[b], self.cos, self.sin, self.lengths[b] + torch.arange(5), False)
                                    for b in range(3)]),
                  "k": torch.stack([rotated(self.k[b], self.cos, self.sin, self.lengths[b] + torch.arange(3), False)
                                    for b in range(3)])}
        self.check(self.expected(causal=True, **turned), causal=True, rotary_cos=self.cos, rotary_sin=self.sin,
                   rotary_interleaved=False)

    def test_packed_queries_and_new_keys(self):
        counts, starts = (1, 2, 3), torch.tensor([0, 1, 3, 6], dtype=torch.int32)
        pack = lambda x: torch.cat([x[b, :count] for b, count in enumerate(counts)])  # noqa: E731
        for interleaved, causal in ((False, True), (True, False)):
            with self.subTest(interleaved=interleaved, causal=causal):
                k_cache, v_cache = self.k_cache.clone(), self.v_cache.clone()
                out = interface.flash_attn_with_kvcache(
                    pack(self.q), k_cache, v_cache, pack(self.k), pack(self.v), rotary_cos=self.cos, rotary_sin=self.sin,
                    cache_seqlens=self.used, cu_seqlens_q=starts, cu_seqlens_k_new=starts, max_seqlen_q=3, causal=causal,
                    rotary_interleaved=interleaved, rotary_seqlens=self.used + 2)
                for b, count in enumerate(counts):
                    at = self.lengths[b] + 2 + torch.arange(count)
                    keys = torch.cat([self.k_cache[b, :self.lengths[b]],
                                      rotated(self.k[b, :count], self.cos, self.sin, at, interleaved)])
                    values = torch.cat([self.v_cache[b, :self.lengths[b]], self.v[b, :count]])
                    q = rotated(self.q[b, :count], self.cos, self.sin, at if causal else at[:1].expand(count), interleaved)
                    expected, _ = expected_attention(q, keys, values, causal=causal)
                    self.assert_close(out[starts[b]:starts[b + 1]], expected)

    def test_pages(self):
        size, table = 8, torch.full((3, 5), -1, dtype=torch.int32)
        pages = [torch.full((16, size, 2, 64), float("nan"), dtype=torch.bfloat16) for _ in range(2)]
        free = iter((9, 3, 14, 0, 7, 1, 12, 5))
        for b, length in enumerate(self.lengths):
            for entry in range(-(-(length + self.new) // size)):
                table[b, entry] = page = next(free)
                rows = slice(entry * size, min((entry + 1) * size, length))
                for paged, cache in zip(pages, (self.k_cache, self.v_cache)):
                    paged[page, :max(rows.stop - rows.start, 0)] = cache[b, rows]
        out = interface.flash_attn_with_kvcache(self.q, *pages, self.k, self.v, cache_seqlens=self.used, causal=True,
                                                page_table=table)
        self.assert_close(out, self.expected(causal=True)[0])

    def test_one_length_for_all_and_no_new_keys(self):
        out = interface.flash_attn_with_kvcache(self.q, self.k_cache, self.v_cache, cache_seqlens=20)
        self.assert_close(out, expected_batch(self.q, self.k_cache[:, :20], self.v_cache[:, :20])[0])
        starts = torch.arange(0, 12, 3, dtype=torch.int32)
        packed = interface.flash_attn_with_kvcache(self.q.flatten(0, 1), self.k_cache, self.v_cache, cache_seqlens=20,
                                                   cu_seqlens_q=starts, max_seqlen_q=3)
        self.assert_close(packed, out.flatten(0, 1))
        out = interface.flash_attn_with_kvcache(self.q, self.k_cache, self.v_cache, causal=True)
        self.assert_close(out, expected_batch(self.q, self.k_cache, self.v_cache, causal=True)[0])

    def test_scales_of_a_cache_in_8_bits(self):
        k_cache, v_cache = (x.to(torch.float8_e4m3fn) for x in (self.k_cache, self.v_cache))
        scales = {"each": (torch.rand(3, 2) + 0.5, torch.rand(3, 2) + 0.5),
                  "one": (torch.tensor(0.7).expand(3, 2), torch.tensor(1.2).expand(3, 2))}
        for name, (of_k, of_v) in scales.items():
            with self.subTest(name):
                out = interface.flash_attn_with_kvcache(self.q, k_cache, v_cache, k_descale=of_k, v_descale=of_v)
                k, v = (x.float() * scale.view(3, 1, 2, 1) for x, scale in ((k_cache, of_k), (v_cache, of_v)))
                self.assert_close(out, expected_batch(self.q, k, v)[0])


class Products(Interface):
    """Queries, keys and values of 8 bits."""

    format = torch.float8_e4m3fn

    def setUp(self):
        self.q, self.k, self.v = (normal(2, 40, heads, 64, seed=seed).to(self.format)
                                  for heads, seed in ((4, 1), (2, 2), (2, 3)))

    def expected(self, of_q, of_k, of_v, **options):
        q = self.q.float() * of_q.repeat_interleave(2, 1).view(2, 1, 4, 1)
        return expected_batch(q, *(x.float() * scale.view(2, 1, 2, 1) for x, scale in ((self.k, of_k), (self.v, of_v))),
                              **options)

    def test_have_scales_of_heads_of_sequences(self):
        each = [torch.tensor([[0.5, 1.5], [2.0, 0.25]]), torch.tensor([[1.0, 0.7], [0.6, 3.0]]),
                torch.tensor([[1.0, 0.5], [2.0, 4.0]])]
        one = [torch.tensor(number).expand(2, 2) for number in (0.5, 1.5, 2.0)]
        heads = [scale[:1].expand(2, 2) for scale in each]
        for name, scales in {"each": each, "one": one, "heads": heads, "mixed": [one[0], each[1], heads[2]]}.items():
            with self.subTest(name):
                descales = dict(zip(("q_descale", "k_descale", "v_descale"), scales))
                out, lse = interface.flash_attn_func(self.q, self.k, self.v, causal=True, return_attn_probs=True,
                                                     **descales)
                self.assertEqual(out.dtype, torch.bfloat16)
                expected, expected_lse = self.expected(*scales, causal=True)
                self.assert_close(out, expected, 0.1 * expected.abs().max())
                self.assert_close(lse, expected_lse, 0.02)
        # Transposed, in rows that kernels take and in others, which are copied.
        for room in (48, 40):
            memory = torch.zeros(2, 2, 64, room, dtype=torch.uint8).view(self.format)
            transposed = memory[..., :40].permute(0, 3, 1, 2)
            transposed.copy_(self.v)
            self.assertTrue(torch.equal(*(interface.flash_attn_func(self.q, self.k, v) for v in (transposed, self.v))))
        starts = torch.tensor([0, 40, 80], dtype=torch.int32)
        packed = interface.flash_attn_varlen_func(
            *(x.flatten(0, 1) for x in (self.q, self.k, self.v)), starts, starts, 40, 40, q_descale=each[0],
            k_descale=each[1], v_descale=each[2])
        expected = self.expected(*each)[0]
        self.assert_close(packed, expected.flatten(0, 1), 0.1 * expected.abs().max())
        out = interface.flash_attn_with_kvcache(self.q, self.k, self.v, cache_seqlens=25, q_descale=each[0],
                                                k_descale=each[1], v_descale=each[2])
        self.k, self.v = self.k[:, :25], self.v[:, :25]
        expected = self.expected(*each)[0]
        self.assert_close(out, expected, 0.1 * expected.abs().max())

    def test_refuse_scales_of_other_shapes(self):
        for name in ("q_descale", "k_descale", "v_descale"):
            for shape in ((4,), (2, 4), (2, 1, 2)):
                self.refused(flashjit.InvalidArgument, rf"{name}: must be \(batch, heads_k\) with the 2 heads of k",
                             lambda: interface.flash_attn_func(self.q, self.k, self.v, **{name: torch.ones(shape)}))
            self.refused(flashjit.InvalidArgument, f"{name}: must be ", lambda: interface.flash_attn_func(
                self.q, self.k, self.v, **{name: torch.ones(3, 2)}))
        self.refused(flashjit.InvalidArgument, "k: dtype must be e[45]m[23] like that of q",
                     lambda: interface.flash_attn_func(self.q, self.k.bfloat16(), self.v.bfloat16()))


class ProductsOfE5m2(Products):
    format = torch.float8_e5m2


class Parts(Interface):
    def test_are_joined(self):
        q, k, v = normal(2, 20, 4, 64), normal(2, 50, 2, 64), normal(2, 50, 2, 64, seed=9)
        parts = [interface.flash_attn_func(q, k[:, rows], v[:, rows], return_attn_probs=True)
                 for rows in (slice(0, 17), slice(17, 50))]
        outs = torch.stack([out.float() for out, _ in parts])
        lses = torch.stack([lse.transpose(1, 2) for _, lse in parts])
        expected, expected_lse = expected_batch(q, k, v)
        out, lse = interface.flash_attn_combine(outs, lses)
        self.assertIs(out.dtype, torch.float32)
        self.assert_close(out, expected)
        self.assert_close(lse, expected_lse.transpose(1, 2))
        into = torch.empty(2, 20, 4, 64, dtype=torch.bfloat16)
        self.assertIs(interface.flash_attn_combine(outs, lses, into)[0], into)
        self.assert_close(into, expected)
        rounded, _ = interface.flash_attn_combine(outs, lses, out_dtype=torch.float16)
        self.assertIs(rounded.dtype, torch.float16)

    def test_of_wrong_shapes_are_refused(self):
        out, lse = torch.zeros(2, 1, 5, 4, 64), torch.zeros(2, 1, 5, 4)
        self.refused(flashjit.InvalidArgument, "lse_partial: must be", lambda: interface.flash_attn_combine(out, lse[1:]))
        self.refused(flashjit.InvalidArgument, "out_partial: must be",
                     lambda: interface.flash_attn_combine(out[:0], lse[:0]))
        self.refused(flashjit.InvalidArgument, "out_dtype: must be", lambda: interface.flash_attn_combine(
            out, lse, torch.zeros(1, 5, 4, 64), torch.float16))
        self.refused(flashjit.InvalidArgument, "out_dtype: must be", lambda: interface.flash_attn_combine(
            out, lse, out_dtype=torch.int32))
        self.refused(flashjit.InvalidArgument, "lse_partial: must be", lambda: interface.flash_attn_combine(
            out, lse.to(torch.bfloat16)))


class Refusals(Interface):
    def test_name_arguments_as_the_interface_does(self):
        q, k, v = normal(2, 8, 4, 64), normal(2, 8, 2, 64), normal(2, 8, 2, 64)
        wrong = torch.zeros(3, dtype=torch.int64)
        calls = {
            "qv: must be None": lambda: interface.flash_attn_func(q, k, v, qv=q),
            "q_descale: must be None": lambda: interface.flash_attn_func(q, k, v, q_descale=torch.ones(2, 2)),
            "softcap: ": lambda: interface.flash_attn_func(q, k, v, softcap=-1.0),
            "attention_chunk: ": lambda: interface.flash_attn_func(q, k, v, attention_chunk=-2),
            "window_size: ": lambda: interface.flash_attn_func(q, k, v, window_size=(-7, 3)),
            "num_splits: must be": lambda: interface.flash_attn_func(q, k, v, num_splits=-1),
            "pack_gqa: must be": lambda: interface.flash_attn_func(q, k, v, pack_gqa="yes"),
            "s_aux: ": lambda: interface.flash_attn_func(q, k, v, s_aux=torch.zeros(3)),
            "cu_seqlens_k: ": lambda: interface.flash_attn_varlen_func(q[0], k[0], v[0], wrong.int(), wrong, 8, 8),
            "cache_seqlens: ": lambda: interface.flash_attn_with_kvcache(q, k, v, cache_seqlens=wrong),
            "cache_seqlens: must be given": lambda: interface.flash_attn_with_kvcache(q, k, v, k, v),
            "rotary_cos: must be None": lambda: interface.flash_attn_with_kvcache(
                q, k, v, rotary_cos=torch.ones(8, 16), rotary_sin=torch.ones(8, 16)),
            "k_descale: must be the same": lambda: interface.flash_attn_with_kvcache(
                q, *(x.to(torch.float8_e4m3fn) for x in (k, v)), k, v, cache_seqlens=wrong[:2].int(),
                k_descale=torch.ones(2, 2), v_descale=torch.ones(2, 2)),
            "k_descale: must be the same for all sequences, .* indices": lambda: interface.flash_attn_with_kvcache(
                q, *(x.to(torch.float8_e4m3fn) for x in (k, v)), cache_batch_idx=wrong[:2].int(),
                k_descale=torch.ones(2, 2), v_descale=torch.ones(2, 2)),
            "k_descale: must be the same for all sequences, .* in pages": lambda: interface.flash_attn_with_kvcache(
                q, *(x.to(torch.float8_e4m3fn) for x in (k, v)), page_table=wrong[:2].int().view(2, 1),
                cache_seqlens=wrong[:2].int(), k_descale=torch.ones(2, 2), v_descale=torch.ones(2, 2)),
            "v_descale: must be given beside k_descale": lambda: interface.flash_attn_with_kvcache(
                q, *(x.to(torch.float8_e4m3fn) for x in (k, v)), k_descale=torch.ones(2)),
            "k_cache: dtype": lambda: interface.flash_attn_with_kvcache(q, k.float(), v),
            "k: batch must be 2": lambda: interface.flash_attn_with_kvcache(q, k, v, k[:1], v[:1],
                                                                            cache_seqlens=wrong[:2].int()),
            "cache_seqlens: must be a torch.Tensor or None, was list": lambda: interface.flash_attn_with_kvcache(
                q, k, v, cache_seqlens=[3, 4]),
            "rotary_sin: must be None": lambda: interface.flash_attn_with_kvcache(q, k, v, rotary_sin=torch.ones(8, 16)),
            "rotary_cos: must be \\(positions": lambda: interface.flash_attn_with_kvcache(
                q[..., :32].contiguous(), *(x[..., :32].clone() for x in (k, v)),
                *(x[:, :2, :, :32].clone() for x in (k, v)), cache_seqlens=wrong[:2].int(),
                rotary_cos=torch.ones(8, 32), rotary_sin=torch.ones(8, 32)),
            "window_size: must be \\(left, right\\)": lambda: interface.flash_attn_with_kvcache(q, k, v, window_size=(4,)),
            "q: must be a torch.Tensor, was NoneType": lambda: interface.flash_attn_func(None, k, v),
            "cu_seqlens_k: must be a torch.Tensor, was NoneType": lambda: interface.flash_attn_varlen_func(
                q[0], k[0], v[0], wrong.int(), None, 8, 8),
            "softmax_lse: ": lambda: interface._flash_attn_backward(q, q, k, v, q, torch.zeros(2, 4, 9)),
            "num_heads_q: must be such": lambda: interface.flash_attn_qkvpacked_func(q, num_heads_q=4),
            "k_descale: must be the same for all sequences, expanded": lambda: interface.flash_attn_varlen_func(
                q[0], *(x[0].to(torch.float8_e4m3fn) for x in (k, v)), wrong.int(), wrong.int(), 8, 8,
                k_descale=torch.ones(2, 2), v_descale=torch.ones(2, 2)),
            "num_heads_q: must be": lambda: interface.flash_attn_qkvpacked_func(q, num_heads_q=3),
            "qkv: must be": lambda: interface.flash_attn_qkvpacked_func(q[0]),
        }  # fmt: skip
        for message, call in calls.items():
            with self.subTest(message):
                self.refused(flashjit.Error, message, call)
        self.assert_close(interface.flash_attn_func(q, k, v), expected_batch(q, k, v)[0])

    def test_a_cache_of_tensors_that_want_gradients(self):
        q, k, v = normal(2, 8, 4, 64).requires_grad_(), normal(2, 8, 2, 64), normal(2, 8, 2, 64)
        with self.assertRaisesRegex(flashjit.Error, "^q: "):
            interface.flash_attn_with_kvcache(q, k, v)


class Installed(Interface):
    @classmethod
    def setUpClass(cls):
        interface.install()
        interface.install()
        cls.q, cls.k, cls.v = normal(2, 40, 4, 64), normal(2, 56, 2, 64, seed=8), normal(2, 56, 2, 64, seed=9)

    def test_the_module_has_its_other_name(self):
        import flash_attn_interface

        self.assertIs(flash_attn_interface, interface)

    def test_fwd_and_bwd(self):
        out, lse, *rest = torch.ops.flash_attn_3.fwd(self.q, self.k, self.v, is_causal=True)
        expected, expected_lse = expected_batch(self.q, self.k, self.v, causal=True)
        self.assert_close(out, expected)
        self.assert_close(lse, expected_lse)
        self.assertEqual([x.numel() for x in rest], [0, 0])
        into = torch.empty_like(out)
        torch.ops.flash_attn_3.fwd(self.q, self.k, self.v, out=into, is_causal=True)
        self.assertTrue(torch.equal(into, out))
        dout = normal(2, 40, 4, 64, seed=11)
        dq, dk, dv, sums, *rest = torch.ops.flash_attn_3.bwd(dout, self.q, self.k, self.v, out, lse, is_causal=True)
        exact = [x.float().requires_grad_() for x in (self.q, self.k, self.v)]
        (expected_batch(*exact, causal=True)[0] * dout.float()).sum().backward()
        for got, right in zip((dq, dk, dv), exact):
            self.assert_close(got, right.grad, 0.05 * right.grad.abs().max().item())
        self.assert_close(sums, (dout.float() * out.float()).sum(-1).transpose(1, 2), 1e-3)
        given = [torch.empty_like(x) for x in (self.q, self.k, self.v)]
        again = torch.ops.flash_attn_3.bwd(dout, self.q, self.k, self.v, out, lse, *given, is_causal=True)
        self.assertTrue(torch.equal(given[1], dk) and torch.equal(again[1], dk))

    def test_shapes_without_memory(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode() as mode:
            q, k, v = (mode.from_tensor(x) for x in (self.q, self.k, self.v))
            out, lse, *_ = torch.ops.flash_attn_3.fwd(q, k, v)
            gradients = torch.ops.flash_attn_3.bwd(out, q, k, v, out, lse)
            joined, joined_lse = torch.ops.flash_attn_3.fwd_combine(out.float().unsqueeze(0), lse.mT.unsqueeze(0))
        self.assertEqual((out.shape, lse.shape), ((2, 40, 4, 64), (2, 4, 40)))
        self.assertEqual([x.shape for x in gradients[:4]], [q.shape, k.shape, v.shape, lse.shape])
        self.assertEqual((joined.shape, joined_lse.shape), ((2, 40, 4, 64), (2, 40, 4)))

    def test_combine_and_metadata(self):
        out, lse = interface.flash_attn_func(self.q, self.k, self.v, return_attn_probs=True)
        joined, _ = torch.ops.flash_attn_3.fwd_combine(out.float().unsqueeze(0), lse.mT.unsqueeze(0))
        self.assert_close(joined, out)
        used = torch.tensor([56, 56], dtype=torch.int32)
        metadata = torch.ops.flash_attn_3.get_scheduler_metadata(2, 40, 56, 4, 2, 64, 64, torch.bfloat16, used)
        self.assertEqual((metadata.dtype, metadata.numel()), (torch.int32, 0))
        again = interface.flash_attn_with_kvcache(self.q, self.k, self.v, scheduler_metadata=metadata)
        self.assertTrue(torch.equal(again, out))

    def test_beside_another_of_that_name_it_is_refused(self):
        program = ("import sys, types, flashjit, flashjit.flash_attn_interface as interface; "
                   "sys.modules['flash_attn_interface'] = types.ModuleType('flash_attn_interface')\n"
                   "try: interface.install()\nexcept flashjit.Unsupported as error: print(error)")
        printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
        self.assertTrue(printed.startswith("flash_attn_interface: must not be installed beside FlashJIT"), printed)

    def test_importing_registers_nothing(self):
        program = ("import torch, flashjit.flash_attn_interface, importlib.util as u; "
                   "print(hasattr(torch.ops.flash_attn_3, 'fwd'), u.find_spec('flash_attn_interface'))")
        printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
        self.assertEqual(printed.split(), ["False", "None"])


if __name__ == "__main__":
    unittest.main()
