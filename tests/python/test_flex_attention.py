# SPDX-License-Identifier: Apache-2.0
"""flashjit.torch.flex_attention on an engine that emulates, beside PyTorch's own in float32. Needs PyTorch and NVRTC."""

import functools
import subprocess
import sys
import unittest
import warnings
from unittest import mock

try:
    import torch
    from torch.nn.attention import flex_attention as flex
except ImportError as error:
    raise unittest.SkipTest(f"PyTorch's FlexAttention cannot be imported: {error}") from error

import flashjit
import flashjit.torch
from flashjit import _tracing
from support import emulating_engine
from test_flash_attn_interface import Interface, normal

QUERIES, KEYS = 40, 56


def setUpModule():
    """All calls on the default engine go to the emulating one."""
    for name in ("attention", "attention_backward", "block_mask"):
        patch = mock.patch.object(flashjit, name, functools.partial(getattr(flashjit, name), engine=emulating_engine()))
        patch.start()
        unittest.addModuleCleanup(patch.stop)
    warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
    unittest.addModuleCleanup(warnings.resetwarnings)


def tensors():
    """query, key and value."""
    return [normal(2, heads, rows, 64, seed=rows + heads) for heads, rows in ((4, QUERIES), (2, KEYS), (2, KEYS))]


def uniform(*shape):
    return torch.rand(*shape, generator=torch.Generator(torch.get_default_device()).manual_seed(3))


def make_scores():
    """name -> score_mod"""
    slopes, table, scale = uniform(4), uniform(4, QUERIES + KEYS), torch.tensor(0.5)
    documents = torch.arange(KEYS).div(20, rounding_mode="floor").int()
    bias = uniform(2, 1, QUERIES, KEYS).to(torch.bfloat16)

    def in_steps(score, b, h, q, k):
        distance = (q - k).abs()
        near = torch.where(distance < 8, score * 0.5, score - 0.1 * distance.float())
        return torch.where((b == 0) | (h % 2 == 1), near, score.clamp(-1, 2))

    return {
        "slopes": lambda score, b, h, q, k: score + slopes[h] * (k - q),
        "softcap": lambda score, b, h, q, k: 2 * torch.tanh(score / 2),
        "table": lambda score, b, h, q, k: score + table[h, q - k + KEYS - 1],
        "table, one index after the other": lambda score, b, h, q, k: score + table[h][q - k + KEYS - 1],
        "negative indices": lambda score, b, h, q, k: score + table[h, q - k],
        "a dense bias": lambda score, b, h, q, k: score + bias[b, 0, q, k],
        "a captured number": lambda score, b, h, q, k: score * scale,
        "a captured number first": lambda score, b, h, q, k: scale - score,
        "hidden keys": lambda score, b, h, q, k: torch.where(q + KEYS - QUERIES >= k, score, -float("inf")),
        "documents": lambda score, b, h, q, k: torch.where(documents[q] == documents[k], score, -1e4),
        "quotients and remainders": lambda score, b, h, q, k: (
            score + 0.01 * ((q - k) // 3) + 0.1 * ((q - k) % 5) + 0.02 * ((k - 60) // -7) + 0.01 * ((q - 50) % -6)),
        "real ones": lambda score, b, h, q, k: score + (q - k) / 7 - (q * 0.5) // 2 + (score % 1.5),
        "functions": lambda score, b, h, q, k: (torch.sigmoid(score) + score.exp().log1p() * 0.5 + torch.sin(score) ** 2
                                                + torch.rsqrt(score * score + 1) - (score.abs() + 1) ** 0.5),
        "truths": lambda score, b, h, q, k: score + (q > k) * 0.5 + (~(q == k) & (k < 9)).float() - (True ^ (q < 3)),
        "bits": lambda score, b, h, q, k: score + 0.1 * ((q & 3) | (k & 4)).float() + 0.1 * (q ^ k),
        "in steps": in_steps,
        "extremes": lambda score, b, h, q, k: torch.maximum(score, torch.minimum(q, k) * 0.1).masked_fill(k == 7, 0.25),
        "a sum with alpha": lambda score, b, h, q, k: torch.add(score, q, alpha=0.1),
        "a partial function": functools.partial(lambda factor, score, b, h, q, k: score * factor, 0.25),
    }


def make_masks():
    """name -> mask_mod"""
    documents = torch.arange(KEYS).div(20, rounding_mode="floor").int()
    reach, prefix = torch.tensor([3, 9, 20, 50]), torch.tensor([5, 30])

    def causal(b, h, q, k):
        return q >= k

    def near(b, h, q, k):
        return q - k <= 10

    return {
        "causal": causal,
        "both": flex.and_masks(causal, near),
        "either": flex.or_masks(lambda b, h, q, k: k < 4, causal),
        "documents": lambda b, h, q, k: documents[q] == documents[k],
        "of heads": lambda b, h, q, k: (q - k).abs() <= reach[h],
        "of batch entries": lambda b, h, q, k: (k < prefix[b]) | (q >= k),
        "all": flex.noop_mask,
    }


def by_all_scores(q, k, v, score_mod, scale):
    """(out, lse) of causal attention; PyTorch's own has no gradients on the CPU."""
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    grid = torch.meshgrid(*(torch.arange(n) for n in (2, 4, QUERIES, KEYS)), indexing="ij")
    scores = score_mod(torch.einsum("bhqd,bhkd->bhqk", q, k) * scale, *grid)
    scores = scores.masked_fill(grid[2] < grid[3], float("-inf"))
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v), scores.logsumexp(-1)


class FlexAttention(Interface):
    def test_scores(self):
        q, k, v = tensors()
        for name, score_mod in make_scores().items():
            with self.subTest(name):
                out, lse = flashjit.torch.flex_attention(q, k, v, score_mod, enable_gqa=True, return_lse=True)
                expected, expected_lse = flex.flex_attention(q.float(), k.float(), v.float(), score_mod, enable_gqa=True,
                                                             return_lse=True)
                self.assert_close(out, expected)
                self.assert_close(lse, expected_lse)

    def test_masks(self):
        q, k, v = tensors()
        for name, mask_mod in make_masks().items():
            with self.subTest(name):
                blocks = flex.create_block_mask(mask_mod, 2, 4, QUERIES, KEYS, device=q.device)
                out = flashjit.torch.flex_attention(q, k, v, block_mask=blocks, enable_gqa=True)
                expected = flex.flex_attention(q.float(), k.float(), v.float(), block_mask=blocks, enable_gqa=True)
                self.assert_close(out, expected)

    def test_a_score_and_a_mask_with_gradients(self):
        slopes = uniform(4)

        def score_mod(score, b, h, q, k):
            return 3 * torch.tanh(score / 3) - slopes[h] * (q - k).abs()

        blocks = flex.create_block_mask(lambda b, h, q, k: q >= k, 1, 1, QUERIES, KEYS, device=slopes.device)
        ours, exact = [x.requires_grad_() for x in tensors()], [x.float().requires_grad_() for x in tensors()]
        out, aux = flashjit.torch.flex_attention(*ours, score_mod, blocks, 0.2, True, return_aux=flex.AuxRequest(lse=True))
        expected, expected_lse = by_all_scores(*exact, score_mod, 0.2)
        self.assert_close(out, expected)
        self.assert_close(aux.lse, expected_lse)
        out.float().square().sum().backward()
        expected.square().sum().backward()
        for got, right in zip(ours, exact):
            self.assert_close(got.grad, right.grad, 0.05 * right.grad.abs().max().item())

    def test_in_a_compiled_function(self):
        q, k, v = tensors()
        call = functools.partial(flashjit.torch.flex_attention, score_mod=lambda score, b, h, q, k: score - 0.1 * k,
                                 enable_gqa=True)
        compiled = torch.compile(lambda *qkv: 2 * call(*qkv), backend="eager")
        self.assertTrue(torch.equal(compiled(q, k, v), 2 * call(q, k, v)))

    def test_blocks_are_found_once_for_each_block_mask(self):
        q, k, v = tensors()
        blocks = flex.create_block_mask(lambda b, h, q, k: q >= k, None, None, QUERIES, KEYS, device=q.device)
        with mock.patch.object(flashjit, "block_mask", wraps=flashjit.block_mask) as make:
            for _ in range(3):
                flashjit.torch.flex_attention(q, k, v, block_mask=blocks, enable_gqa=True)
            self.assertEqual(make.call_count, 1)
            flashjit.torch.flex_attention(q[:1], k[:1], v[:1], block_mask=blocks, enable_gqa=True)
            self.assertEqual(make.call_count, 2)


class Texts(unittest.TestCase):
    """What has a formula is as fast as an option, and stays an expression."""

    def test_are_expressions_where_nothing_is_used_twice(self):
        slopes = uniform(4)
        score = _tracing.score_of(lambda score, b, h, q, k: score + slopes[h] * (k - q))
        self.assertEqual(score.text, "(score + (slopes_(head) * (key - query)))")
        self.assertIs(dict(score.tensors)["slopes_"], slopes)
        softcap = _tracing.score_of(lambda score, b, h, q, k: 20 * torch.tanh(score / 20))
        self.assertEqual(softcap.text, "(20.0f * tanh((score / 20.0f)))")
        mask = _tracing.mask_of(lambda b, h, q, k: q // 64 == k // 64)
        self.assertEqual(mask.text, "((query / 64) == (key / 64))")

    def test_have_the_formulas_of_the_options_that_say_the_same(self):
        slopes = uniform(4)
        scores = {
            "slopes": (lambda score, b, h, q, k: score - slopes[h] * (q - k), True),
            "softcap": (lambda score, b, h, q, k: 20 * torch.tanh(score / 20), True),
            "distances": (lambda score, b, h, q, k: score - slopes[h] * (q - k).abs(), False),
        }
        for name, (score_mod, has_formula) in scores.items():
            with self.subTest(name):
                score = _tracing.score_of(score_mod)
                captures = [word for capture, _ in score.tensors for word in ("--capture", f"{capture}=f32:1")]
                command = [sys.executable, "-m", "flashjit", "render", "--arch", "sm_90a", "--score", score.text, *captures]
                source = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                self.assertEqual("formula_" in source, has_formula)

    def test_do_not_grow_with_each_use(self):
        def doubled(score, b, h, q, k):
            for _ in range(40):
                score = score + score
            return score

        self.assertLess(len(_tracing.score_of(doubled).text), 4000)

    def test_are_the_same_for_other_tensors(self):
        def of(table):
            return _tracing.score_of(lambda score, b, h, q, k: score + table[h])

        self.assertEqual(of(uniform(4)).text, of(uniform(4) + 1).text)


class Refusals(Interface):
    def refused_at(self, function, message, line):
        """line: of the function, counted from its first."""
        first = function.__code__.co_firstlineno
        self.refused(flashjit.Unsupported, f"score_mod: .*test_flex_attention.py:{first + line}: {message}",
                     lambda: _tracing.score_of(function))

    def test_name_the_line_of_the_function(self):
        table = uniform(4, 9)

        def decides(score, b, h, q, k):
            doubled = score * 2
            if q > k:
                return doubled
            return score

        def converts(score, b, h, q, k):
            return score * int(q)

        def transforms(score, b, h, q, k):
            return torch.fft.fft(score)

        def uses_all(score, b, h, q, k):
            wrong = score + table
            return wrong

        def lacks_an_index(score, b, h, q, k):
            return score + table[h]

        def cuts(score, b, h, q, k):
            return score + table[h, 2:5]

        def has_real_indices(score, b, h, q, k):
            return score + table[h, score]

        def fails(score, b, h, q, k):
            return score + undefined  # noqa: F821

        self.refused_at(decides, "Python cannot decide by a value of the kernel; use torch.where", 2)
        self.refused_at(converts, "a value of the kernel is no number in Python", 1)
        self.refused_at(transforms, "FlashJIT does not know 'fft_fft' of a value", 1)
        self.refused_at(uses_all, "a captured tensor must be indexed by as many numbers as it has dimensions, 2, was by 0", 1)
        self.refused_at(lacks_an_index, "a captured tensor must be indexed by as many", 1)
        self.refused_at(cuts, "an index of a captured tensor must be a whole number, was slice", 1)
        self.refused_at(has_real_indices, "an index of a captured tensor must be a whole number", 1)
        self.refused_at(fails, "NameError: name 'undefined' is not defined", 1)

    def test_of_calls(self):
        q, k, v = tensors()
        call = functools.partial(flashjit.torch.flex_attention, q, k, v, enable_gqa=True)
        blocks = flex.create_block_mask(lambda b, h, q, k: q >= k, None, None, QUERIES, KEYS + 1, device=q.device)
        weights = uniform(4).requires_grad_()
        calls = {
            "score_mod: must be a function": lambda: call(3),
            "score_mod: .* takes 1 positional argument": lambda: call(lambda score: score),
            "block_mask: must be a BlockMask": lambda: call(block_mask=torch.ones(2)),
            "block_mask: must be for \\(40, 56\\) queries and keys": lambda: call(block_mask=blocks),
            "return_aux: max_scores must be False": lambda: call(return_aux=flex.AuxRequest(max_scores=True)),
            "key: must have 4 heads like query": lambda: flashjit.torch.flex_attention(q, k, v),
            "query: must be \\[batch": lambda: flashjit.torch.flex_attention(q[0], k, v),
            "score_mod: capture weights_: must not require a gradient": lambda: call(
                lambda score, b, h, q, k: score + weights[h]),
        }  # fmt: skip
        for message, wrong in calls.items():
            with self.subTest(message):
                self.refused(flashjit.Error, message, wrong)

    def test_values_outside_of_their_function(self):
        kept = []

        def score_mod(score, b, h, q, k):
            kept.append(score)
            return score

        _tracing.score_of(score_mod)
        self.refused(flashjit.Unsupported, "score_mod: values of a function must not be used", lambda: bool(kept[0]))


if __name__ == "__main__":
    unittest.main()
