# SPDX-License-Identifier: Apache-2.0
"""flashjit.torch on an engine that emulates: tensors are in host memory. Needs PyTorch and NVRTC."""

import unittest
from unittest import mock

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"PyTorch cannot be imported: {error}") from error

from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

import flashjit
import flashjit.torch
from flashjit import _arrays
from support import emulating_engine

ROUNDING = 2e-2  # of P and of the output to bf16, for outputs of about 1


def setUpModule():
    """All calls on the default engine go to the emulating one."""
    for name in ("attention", "attention_backward"):
        patch = mock.patch.object(flashjit, name, getattr(emulating_engine(), name))
        patch.start()
        unittest.addModuleCleanup(patch.stop)


def random_tensors(*shapes):
    generator = torch.Generator().manual_seed(7)
    return tuple(torch.randn(shape, generator=generator).to(torch.bfloat16) for shape in shapes)


def make_qkv(queries=16, keys=16, heads=2, heads_kv=1, head_dim_v=64):
    """q, k, v as flashjit.attention takes them."""
    return random_tensors((1, queries, heads, 64), (1, keys, heads_kv, 64), (1, keys, heads_kv, head_dim_v))


def to_sdpa(*tensors):
    return tuple(tensor.transpose(1, 2) for tensor in tensors)


def visible(queries, keys, left, right):
    """Which keys each query sees in a window."""
    behind = torch.arange(keys) - (torch.arange(queries).unsqueeze(1) + keys - queries)
    return (behind >= -left) & (behind <= right)


def with_changed_scores(q, k, v, softcap=None, alibi_slopes=None, sinks=None, added=0.0):
    """(out, lse) in f32 of full attention; k and v have one head, slopes and sinks are [heads]."""
    scores = torch.einsum("bqhd,bkd->bhqk", q.float(), k[:, :, 0].float()) / 8
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        queries, keys = scores.shape[2:]
        behind = torch.arange(keys) - (torch.arange(queries).unsqueeze(1) + keys - queries)
        scores = scores - alibi_slopes.view(-1, 1, 1) * behind.abs()
    scores = scores + added
    lse = scores.logsumexp(-1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.view(-1, 1))
    return torch.einsum("bhqk,bkd->bqhd", (scores - lse.unsqueeze(-1)).exp(), v[:, :, 0].float()), lse


def sdpa_in_f32(query, key, value, **options):
    return functional.scaled_dot_product_attention(query.float(), key.float(), value.float(), **options)


class Recorder(TorchDispatchMode):
    """Keeps the names of the operators that it sees."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


class CloseTo(unittest.TestCase):
    def assert_close(self, actual, expected):
        self.assertEqual(actual.shape, expected.shape)
        difference = (actual.float() - expected.float()).abs().max().item()
        self.assertLess(difference, ROUNDING)  # written so that NaN fails


class GivenOutput(unittest.TestCase):
    def test_a_tensor_that_autograd_saved_may_not_be_overwritten_unnoticed(self):
        q, k, v = make_qkv()
        out = torch.zeros_like(q)
        loss = (torch.ones_like(q).requires_grad_() * out).sum()
        flashjit.attention(q, k, v, out=out)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()

    def test_inference_tensors_have_no_versions(self):
        q, k, v = make_qkv()
        with torch.inference_mode():
            out = torch.zeros_like(q)
            flashjit.attention(q, k, v, out=out)
            self.assertTrue(torch.equal(out, flashjit.attention(q, k, v)))


class WrongTensors(unittest.TestCase):
    """Through DLPack's table, which PyTorch has from 2.10 on, and through Python code."""

    def refused(self, kind, message, q):
        _, k, v = make_qkv()
        calls = {"q": lambda: flashjit.attention(q, k, v), "out": lambda: flashjit.attention(k, k, v, out=q)}
        for name, call in calls.items():
            with self.subTest(name), self.assertRaisesRegex(kind, f"^{name}: {message}"):
                call()
        with mock.patch.object(_arrays._core, "launch"), self.assertRaisesRegex(kind, f"^q: {message}"):
            _arrays.attention(q, k, v, out=torch.empty_like(v), engine=emulating_engine())

    def test_without_memory_with_strides(self):
        q = make_qkv()[0]
        self.refused(flashjit.InvalidArgument, "must be a dense .* on meta", q.to("meta"))
        self.refused(flashjit.InvalidArgument, "must be a dense .* torch.sparse_coo", q.to_sparse())
        quantized = torch.quantize_per_tensor(q.float(), 0.1, 0, torch.qint8)
        self.refused(flashjit.InvalidArgument, ".*must be .*float16.* bfloat16.* torch.qint8", quantized)

    def test_that_negate_their_memory(self):
        q = torch._neg_view(make_qkv()[0])
        self.refused(flashjit.InvalidArgument, r"must be what its memory says, .* use (q|out)\.resolve_neg\(\)$", q)

    def test_with_tangents(self):
        q = make_qkv()[0]
        with torch.autograd.forward_ad.dual_level():
            flashjit.attention(*make_qkv())
            dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
            self.refused(flashjit.Unsupported, "must have no tangent", dual)


class Operator(CloseTo):
    def test_gives_output_and_log_sum_exp(self):
        q, k, v = make_qkv()
        out, lse = torch.ops.flashjit.attention_forward(q, k, v, True)
        self.assert_close(out.transpose(1, 2), sdpa_in_f32(*to_sdpa(q, k, v), is_causal=True, enable_gqa=True))
        scores = (q.float()[0, :, 1] @ k.float()[0, :, 0].T) / 8
        scores = scores.masked_fill(torch.ones(16, 16).triu(1).bool(), -torch.inf)
        self.assert_close(lse[0, 1], scores.logsumexp(-1))

    def test_windows(self):
        tensors = make_qkv(8, 24)
        expected = sdpa_in_f32(*to_sdpa(*tensors), attn_mask=visible(8, 24, 5, 2), enable_gqa=True).transpose(1, 2)
        self.assert_close(flashjit.torch.attention(*tensors, window=(5, 2)), expected)
        self.assert_close(torch.ops.flashjit.attention_forward(*tensors, window=[5, 2])[0], expected)
        tensors[0].requires_grad_()
        self.assert_close(flashjit.torch.attention(*tensors, window=(5, 2)), expected)
        for window in ((5, ), (-2, 0)):
            with self.assertRaisesRegex(flashjit.InvalidArgument, "^window: "):
                flashjit.torch.attention(*tensors, window=window)

    def test_chunks(self):
        tensors = make_qkv(8, 24)
        own = torch.arange(16, 24).unsqueeze(1)
        visible_keys = (torch.arange(24) <= own) & (torch.arange(24) // 5 == own // 5)
        expected = sdpa_in_f32(*to_sdpa(*tensors), attn_mask=visible_keys, enable_gqa=True).transpose(1, 2)
        self.assert_close(flashjit.torch.attention(*tensors, causal=True, chunk=5), expected)
        self.assert_close(torch.ops.flashjit.attention_forward(*tensors, True, chunk=5)[0], expected)
        tensors[0].requires_grad_()
        self.assert_close(flashjit.torch.attention(*tensors, causal=True, chunk=5), expected)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^chunk: "):
            flashjit.torch.attention(*tensors, chunk=-1)

    def test_caps_slopes_and_sinks(self):
        tensors, slopes, sinks = make_qkv(8, 24), torch.tensor([0.5, -0.125]), torch.tensor([-1.0, 3.0])
        for options in ({"softcap": 2.0}, {"alibi_slopes": slopes}, {"sinks": sinks},
                        {"softcap": 2.0, "alibi_slopes": slopes, "sinks": sinks}):  # fmt: skip
            expected_out, expected_lse = with_changed_scores(*tensors, **options)
            with self.subTest(**options):
                self.assert_close(flashjit.torch.attention(*tensors, **options), expected_out)
                out, lse = torch.ops.flashjit.attention_forward(*tensors, **options)
                self.assert_close(out, expected_out)
                self.assert_close(lse, expected_lse)
        uncapped = flashjit.torch.attention(*tensors, softcap=0.0)
        self.assertTrue(torch.equal(uncapped, flashjit.torch.attention(*tensors)))
        for wrong in ({"softcap": -1.0}, {"alibi_slopes": slopes.bfloat16()}, {"alibi_slopes": slopes.double()},
                      {"alibi_slopes": slopes.to("meta")}, {"sinks": sinks.bfloat16()}):
            with self.subTest(**wrong), self.assertRaisesRegex(flashjit.InvalidArgument, f"^{next(iter(wrong))}: "):
                flashjit.torch.attention(*tensors, **wrong)

    def test_dropout(self):
        tensors = make_qkv(8, 24)
        kept = torch.from_numpy(flashjit.dropout_mask((1, 2, 8, 24), 0.5, 3, 4).copy())
        q, k, v = to_sdpa(*(tensor.float() for tensor in tensors))
        k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for tensor in (k, v))
        probabilities = torch.softmax(q @ k.transpose(2, 3) * q.shape[3] ** -0.5, dim=3)
        expected = (probabilities * kept / 0.5 @ v).transpose(1, 2)
        state = torch.tensor([3, 4])
        for options in ({"dropout_seed": 3, "dropout_offset": 4}, {"dropout_state": state}, {"dropout_mask": kept}):
            with self.subTest(**options):
                self.assert_close(flashjit.torch.attention(*tensors, dropout=0.5, **options), expected)
                out, _ = torch.ops.flashjit.attention_forward(*tensors, dropout=0.5, **options)
                self.assert_close(out, expected)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^dropout: "):
            flashjit.torch.attention(*tensors, dropout=1.0)

    def test_packed_sequences(self):
        tensors = [tensor[0] for tensor in make_qkv(24, 24, head_dim_v=32)]
        parts = [flashjit.torch.attention(*(tensor[None, of] for tensor in tensors), causal=True)[0]
                 for of in (slice(0, 7), slice(7, 24))]  # fmt: skip
        starts = torch.tensor([0, 7, 24], dtype=torch.int32)
        offsets = {"cu_seqlens_q": starts, "cu_seqlens_kv": starts}
        self.assert_close(flashjit.torch.attention(*tensors, causal=True, **offsets), torch.cat(parts))
        out, lse = torch.ops.flashjit.attention_forward(*tensors, causal=True, max_seqlen_q=17, **offsets)
        self.assert_close(out, torch.cat(parts))
        self.assertEqual(lse.shape, (2, 24))
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^seqused_kv: dtype must be i32, was i64$"):
            flashjit.torch.attention(*tensors, seqused_kv=starts[1:].long(), **offsets)

    def test_keys_in_pages(self):
        q, keys, values = make_qkv(8, 24, head_dim_v=32)
        expected = flashjit.torch.attention(q, keys[:, :20], values[:, :20], causal=True)
        order = torch.tensor([4, 0, 2])
        table, used = torch.tensor([[4, 0, 2, -1]], dtype=torch.int32), torch.tensor([20], dtype=torch.int32)
        for heads_first in (False, True):
            pages = []
            for tensor in (keys, values):
                paged = torch.full((5, 8, *tensor.shape[2:]), torch.nan, dtype=torch.bfloat16)
                paged[order] = tensor[0].unflatten(0, (3, 8))
                pages.append(paged.transpose(1, 2).contiguous().transpose(1, 2) if heads_first else paged)
            options = {"page_table": table, "seqused_kv": used}
            self.assert_close(flashjit.torch.attention(q, *pages, causal=True, **options), expected)
            out, lse = torch.ops.flashjit.attention_forward(q, *pages, causal=True, max_seqlen_kv=24, **options)
            self.assert_close(out, expected)
            self.assertEqual(lse.shape, (1, 2, 8))
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^page_table: dtype must be i32, was i64$"):
            flashjit.torch.attention(q, *pages, page_table=table.long(), seqused_kv=used)

    def test_masks_and_functions(self):
        tensors = make_qkv(8, 24)
        bias = torch.randn(1, 2, 8, 24, generator=torch.Generator().manual_seed(1))
        shown = bias > -0.5
        documents = (torch.arange(24) // 17).int().unsqueeze(0)
        own = torch.arange(16, 24).unsqueeze(1)
        tree = torch.full((1, 8, 1), 0b10101, dtype=torch.int64)
        of_tree = (torch.arange(24) < 16) | ((torch.arange(24) - 16) % 2 == 0) & (torch.arange(24) < 21)
        table = torch.tensor([0.5, 2.0])
        score = flashjit.Score("score + tilt * a(head)", a=table, tilt=0.5)
        mask = flashjit.Mask("key < n && shown(0, head, query, key)", n=20, shown=shown)
        hide = lambda visible: torch.where(visible, 0.0, -torch.inf)
        for options, added in (
            ({"bias": bias}, bias), ({"boolean_mask": shown}, hide(shown)),
            ({"documents": documents}, hide(documents[0, own] == documents)),
            ({"prefix": torch.tensor([20], dtype=torch.int32)}, hide(torch.arange(24) < own.clamp(min=19) + 1)),
            ({"tree": tree}, hide(of_tree)), ({"score": score}, 0.5 * table.view(2, 1, 1)),
            ({"mask": mask}, hide(shown & (torch.arange(24) < 20))), ({"mask": "key < 9"}, hide(torch.arange(24) < 9)),
            ({"mask": "key <= query", "query_offsets": torch.tensor([7], dtype=torch.int32)},
             hide(torch.arange(24) <= own - 9)),
            ({"score": score, "mask": mask, "bias": bias}, bias + 0.5 * table.view(2, 1, 1) +
             hide(shown & (torch.arange(24) < 20))),
        ):  # fmt: skip
            expected_out, expected_lse = with_changed_scores(*tensors, added=added)
            with self.subTest(list(options)):
                self.assert_close(flashjit.torch.attention(*tensors, **options), expected_out)
                tensors[0].requires_grad_()
                self.assert_close(flashjit.torch.attention(*tensors, **options), expected_out)
                tensors[0].requires_grad_(False)
        out, lse = torch.ops.flashjit.attention_forward(
            *tensors, score=score.text, score_captures=["a", "tilt"], score_tensors=[table], score_numbers=[0.5]
        )
        expected_out, expected_lse = with_changed_scores(*tensors, added=0.5 * table.view(2, 1, 1))
        self.assert_close(out, expected_out)
        self.assert_close(lse, expected_lse)

    def test_wrong_masks_and_functions(self):
        tensors, table = make_qkv(8, 24), torch.ones(2)
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^captures: must be 1 names"):
            torch.ops.flashjit.attention_forward(*tensors, score="score * a(0)", score_tensors=[table])
        for options, message in (
            ({"score": 3}, "^score: must be a flashjit.Score, a str or None, was 3$"),
            ({"mask": flashjit.Mask("key < a(0)", a=table.to("meta"))}, "^mask: capture a: must be a dense .* on meta"),
            ({"score": flashjit.Score("score * a(0)", a=table.double())}, "^score: capture a: .* was f64$"),
            ({"documents": torch.zeros(1, 24, dtype=torch.int64)}, "^documents: dtype must be i32, was i64"),
            ({"boolean_mask": torch.zeros(1, 1, 1, 24)}, "^boolean_mask: dtype must be boolean, was f32"),
            ({"alibi_slopes": [0.5, 0.25]}, "^alibi_slopes: must be a torch.Tensor or None, was list$"),
            ({"sinks": 0.5}, "^sinks: must be a torch.Tensor or None, was float$"),
            ({"bias": table.numpy()}, "^bias: must be a torch.Tensor or None, was ndarray$"),
        ):
            for wants_gradient in (False, True):
                tensors[0].requires_grad_(wants_gradient)
                with self.subTest(message), self.assertRaisesRegex(flashjit.InvalidArgument, message):
                    flashjit.torch.attention(*tensors, **options)
        array = flashjit.Score("score * a(0)", a=table.numpy())
        with self.assertRaisesRegex(flashjit.InvalidArgument, "^score: capture a: must be a torch.Tensor, .* ndarray$"):
            flashjit.torch.attention(*tensors, score=array)

    def test_prepared_functions_capture_tensors(self):
        engine = flashjit.Engine(emulate="sm_80", cache_directory="")
        text = "score * a(head)"
        engine.prepare(torch.bfloat16, 64, bias=torch.float32, score=flashjit.Score(text, a=torch.ones(5)))
        compiles = engine.counters()["compiles"]
        score = flashjit.Score(text, a=torch.tensor([0.5, 2.0]))
        engine.attention(*make_qkv(8, 24), bias=torch.zeros(1, 1, 1, 24), score=score)
        self.assertEqual(engine.counters()["compiles"], compiles)

    def test_block_masks(self):
        tensors = make_qkv(70, 600)
        mask = flashjit.Mask("key / 128 == n(head)", n=torch.tensor([1, 3]))
        blocks = flashjit.block_mask(*tensors[:2], mask=mask, engine=emulating_engine())
        self.assertEqual((tuple(blocks.shape), blocks.dtype), ((1, 2, 2, 2, 2), torch.int32))
        out = flashjit.torch.attention(*tensors, mask=mask, block_mask=blocks)
        self.assert_close(out, flashjit.torch.attention(*tensors, mask=mask))

    def test_options_that_require_a_gradient_are_for_the_operator(self):
        tensors, values = make_qkv(), torch.nn.Parameter(torch.ones(2))
        for name in ("alibi_slopes", "sinks"):
            with self.assertRaisesRegex(flashjit.Unsupported, f"^{name}: must not require a gradient"):
                flashjit.attention(*tensors, **{name: values})
            self.assertTrue(flashjit.torch.attention(*tensors, **{name: values}).requires_grad)

    def test_large_heads_have_gradients_of_everything_but_keys_in_two_tensors(self):
        (large,) = random_tensors((1, 16, 2, 264))
        slopes, seen = torch.ones(2), torch.ones(1, 1, 16, 16, dtype=torch.bool)
        for options in ({"softcap": 2.0}, {"alibi_slopes": slopes}, {"boolean_mask": seen}, {"dropout": 0.5},
                        {"causal": True, "window": (5, 0), "sinks": slopes}):  # fmt: skip
            with self.subTest(", ".join(options)):
                q = large.clone().requires_grad_()
                flashjit.torch.attention(q, large, large, **options).sum().backward()
                self.assertTrue(q.grad.isfinite().all())
        q, v = large.clone().requires_grad_(), random_tensors((1, 16, 2, 64))[0]
        flashjit.torch.attention(q, large, v).sum().backward()
        self.assertTrue(q.grad.isfinite().all())
        with self.assertRaisesRegex(flashjit.Unsupported, "^k_rotary: must not be given where a gradient is required"):
            flashjit.torch.attention(q, large[..., :200], large[..., :200], k_rotary=large[..., 200:])

    def test_says_of_itself_what_is_true(self):
        of_heads = torch.tensor([0.5, -0.125])
        for options in ((), ((3, 0),), (None, 5), (None, None, 2.0), (None, None, None, of_heads),
                        (None, None, None, None, of_heads), ((3, 0), 5, 2.0, of_heads, of_heads)):  # fmt: skip
            for wants_gradient in (False, True):
                tensors = tuple(tensor.requires_grad_(wants_gradient) for tensor in make_qkv())
                torch.library.opcheck(
                    torch.ops.flashjit.attention_forward.default, (*tensors, True, 0.5, *options),
                    test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
                )  # fmt: skip
                packed = tuple(tensor.detach()[0].requires_grad_(wants_gradient) for tensor in tensors)
                starts = torch.tensor([0, 5, 16], dtype=torch.int32)
                torch.library.opcheck(
                    torch.ops.flashjit.attention_forward.default, packed,
                    {"cu_seqlens_q": starts, "cu_seqlens_kv": starts, "max_seqlen_q": 11, "sinks": of_heads},
                    test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
                )  # fmt: skip
                pages = (tensor.detach()[0].unflatten(0, (2, 8)) for tensor in tensors[1:])
                torch.library.opcheck(
                    torch.ops.flashjit.attention_forward.default, (tensors[0], *pages),
                    {"page_table": torch.tensor([[1, 0, 1]], dtype=torch.int32), "max_seqlen_kv": 24},
                    test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
                )  # fmt: skip
                torch.library.opcheck(
                    torch.ops.flashjit.attention_forward.default, tensors,
                    {"score": "a(head) * score + b", "score_captures": ["a", "b"], "score_tensors": [of_heads],
                     "score_numbers": [0.5], "mask": "key < 9", "bias": torch.zeros(1, 1, 1, 16),
                     "documents": torch.zeros(1, 16, dtype=torch.int32)},
                    test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
                )  # fmt: skip

    def test_is_left_out_where_nobody_watches(self):
        tensors = make_qkv()
        expected = flashjit.torch.attention(*tensors)
        with Recorder() as recorder:
            actual = flashjit.torch.attention(*tensors)
        self.assertIn("flashjit.attention_forward.default", recorder.names)
        self.assertTrue(torch.equal(actual, expected))
        with torch.no_grad(), mock.patch("flashjit.torch.attention_forward") as operator:
            flashjit.torch.attention(*tensors, sinks=torch.nn.Parameter(torch.zeros(2)))
        operator.assert_not_called()


def gradients_by(function, *tensors):
    """Of tensors, of a sum in which each element of the output has a weight of its own."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    out = function(*leaves)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(9))
    (out.float() * weights).sum().backward()
    return [leaf.grad for leaf in leaves]


def in_f32(q, k, v, added=0.0, softcap=None):
    """Attention by the words of PyTorch."""
    q, k, v = (tensor.float().transpose(1, 2) for tensor in (q, k, v))
    k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for tensor in (k, v))
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return (torch.softmax(scores + added, dim=3) @ v).transpose(1, 2)


class Gradients(CloseTo):
    def assert_all_close(self, actual, expected):
        for name, one, other in zip("qkv", actual, expected):
            with self.subTest(name):
                self.assertEqual(one.dtype, torch.bfloat16)
                self.assertLess((one.float() - other.float()).abs().max(), ROUNDING * other.float().abs().max())

    def test_are_those_of_the_formula(self):
        tensors = make_qkv(24, 40, heads=4, heads_kv=2, head_dim_v=32)
        hidden = torch.where(visible(24, 40, 40, 0), 0.0, -torch.inf)
        for options, of_formula in (({}, {}), ({"causal": True}, {"added": hidden}),
                                    ({"causal": True, "softcap": 2.0}, {"added": hidden, "softcap": 2.0})):  # fmt: skip
            self.assert_all_close(gradients_by(lambda *qkv: flashjit.torch.attention(*qkv, **options), *tensors),
                                  gradients_by(lambda *qkv: in_f32(*qkv, **of_formula), *tensors))  # fmt: skip

    def test_of_options(self):
        q, k, v = make_qkv()
        positions = torch.arange(16)
        distance = (positions[:, None] - positions).abs().float()
        generator = torch.Generator().manual_seed(2)
        bias = torch.randn(1, 2, 16, 16, generator=generator).bfloat16()
        slopes, sinks = torch.tensor([0.1, -0.05]), torch.tensor([1.0, -1.0])

        def ours(q, k, v, bias, slopes, sinks):
            return flashjit.torch.attention(q, k, v, bias=bias, alibi_slopes=slopes, sinks=sinks)

        def formula(q, k, v, bias, slopes, sinks):
            q, k, v = (tensor.float().transpose(1, 2) for tensor in (q, k, v))
            k, v = (tensor.repeat_interleave(2 // k.shape[1], dim=1) for tensor in (k, v))
            scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5 - slopes[:, None, None] * distance + bias.float()
            with_sink = torch.cat((scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)), dim=3)
            return (torch.softmax(with_sink, dim=3)[..., :-1] @ v).transpose(1, 2)

        leaves = (q, k, v, bias, slopes, sinks)
        for one, other in zip(gradients_by(ours, *leaves), gradients_by(formula, *leaves)):
            self.assertEqual(one.dtype, other.dtype)
            self.assertLess((one.float() - other.float()).abs().max(), ROUNDING * other.float().abs().max())
        of_bias = gradients_by(lambda bias: ours(q, k, v, bias, slopes, sinks), bias)[0]  # alone
        self.assertTrue(torch.equal(of_bias, gradients_by(ours, *leaves)[3]))

    def test_need_no_operator_where_nobody_watches(self):
        tensors, masks = make_qkv(), {"sinks": torch.zeros(2), "boolean_mask": torch.ones(1, 1, 1, 16, dtype=torch.bool)}

        def attend(*qkv):
            return flashjit.torch.attention(*qkv, causal=True, **masks)

        with mock.patch.object(flashjit.torch, "attention_forward", side_effect=AssertionError), \
                mock.patch.object(flashjit.torch, "attention_backward", side_effect=AssertionError):
            gradients = gradients_by(attend, *tensors)
        with mock.patch.object(flashjit.torch, "_is_one_node", return_value=False):
            for one, other in zip(gradients, gradients_by(attend, *tensors)):
                self.assertTrue(torch.equal(one, other))

    def test_are_operators_to_who_watches_backward_alone(self):
        q, k, v = make_qkv()
        out = flashjit.torch.attention(q.requires_grad_(), k, v)
        expected = torch.autograd.grad(out, q, torch.ones_like(out), retain_graph=True)[0]
        with Recorder() as recorder:
            gradient = torch.autograd.grad(out, q, torch.ones_like(out))[0]
        self.assertIn("flashjit.attention_backward.default", recorder.names)
        self.assertTrue(torch.equal(gradient, expected))

    def test_of_a_shared_bias_warn_where_pytorch_shall(self):
        tensors = *make_qkv(), torch.zeros(1, 1, 1, 16, dtype=torch.bfloat16)

        def attend(q, k, v, bias):
            return flashjit.torch.attention(q, k, v, bias=bias)

        self.addCleanup(torch.use_deterministic_algorithms, False)
        torch.use_deterministic_algorithms(True)
        with self.assertRaisesRegex(flashjit.Unsupported, "^deterministic: "):
            gradients_by(attend, *tensors)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with self.assertWarnsRegex(UserWarning, "is not deterministic"):
            gradients_by(attend, *tensors)

    def test_of_what_has_changed_are_refused(self):
        q, k, v = make_qkv()
        bias = torch.zeros(1, 1, 16, 16, dtype=torch.bfloat16)
        out = flashjit.torch.attention(q.requires_grad_(), k, v, bias=bias)
        bias.add_(1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            out.sum().backward()

    def test_are_deterministic_as_pytorchs_switch_says(self):
        told, before = [], flashjit.attention_backward

        def listen(*tensors, deterministic, **options):
            told.append(deterministic)
            return before(*tensors, deterministic=deterministic, **options)

        with mock.patch.object(flashjit, "attention_backward", listen):
            for is_deterministic in (False, True):
                self.addCleanup(torch.use_deterministic_algorithms, False)
                torch.use_deterministic_algorithms(is_deterministic)
                gradients_by(lambda *qkv: flashjit.torch.attention(*qkv, causal=True), *make_qkv())
                gradients_by(lambda *qkv: flashjit.torch.attention(*qkv, deterministic=True), *make_qkv())
        self.assertEqual(told, [False, True, True, True])

    def test_of_options_in_double_precision(self):
        q, k, v = (tensor.double() for tensor in make_qkv())
        for name in ("sinks", "alibi_slopes"):
            of_heads = torch.tensor([0.3, 0.7], requires_grad=True)
            flashjit.torch.attention(q, k, v, **{name: of_heads}).square().sum().backward()
            step = 1e-3
            with torch.no_grad():
                ends = [flashjit.torch.attention(q, k, v, **{name: of_heads + step * sign * torch.tensor([1.0, 0.0])})
                        .square().sum().item() for sign in (1, -1)]
            self.assertAlmostEqual(of_heads.grad[0].item(), (ends[0] - ends[1]) / (2 * step), delta=2e-2)

    def test_are_deterministic_where_a_graph_asks_for_it(self):
        attend = torch.compile(lambda *qkv: flashjit.torch.attention(*qkv, deterministic=True), backend="aot_eager")
        for asked in (flashjit.torch.attention, lambda *qkv: flashjit.torch.attention(*qkv, deterministic=True), attend):
            with mock.patch.object(flashjit, "attention_backward", wraps=flashjit.attention_backward) as backward:
                with Recorder():  # so that the operators are called
                    gradients_by(asked, *make_qkv())
            is_asked = asked is not flashjit.torch.attention
            self.assertIs(backward.call_args.kwargs["deterministic"], is_asked)

    def test_of_the_output_and_the_log_sum_exp(self):
        weights = torch.randn(1, 2, 16, generator=torch.Generator().manual_seed(5))
        for way in (flashjit.torch.attention, torch.compile(flashjit.torch.attention, backend="aot_eager")):
            q, k, v = (tensor.requires_grad_() for tensor in make_qkv())
            out, lse = way(q, k, v, lse=True)
            (out.float().square().sum() + (lse * weights).sum()).backward()
            grads = [tensor.grad for tensor in (q, k, v)]
            exact = [tensor.detach().float().requires_grad_() for tensor in (q, k, v)]
            expected, expected_lse = with_changed_scores(*exact)
            self.assert_close(lse, expected_lse)
            (expected.square().sum() + (expected_lse * weights).sum()).backward()
            for gradient, tensor in zip(grads, exact):
                self.assertLess((gradient.float() - tensor.grad).abs().max().item(), 0.1)

    def test_of_pytorchs_own_function(self):
        tensors = to_sdpa(*make_qkv(16, 16))
        bias = torch.randn(1, 1, 16, 16, generator=torch.Generator().manual_seed(1))
        for options in ({"is_causal": True}, {"attn_mask": bias}, {"attn_mask": bias > -0.5}):
            options["enable_gqa"] = True
            ours = lambda *qkv: flashjit.torch.scaled_dot_product_attention(*qkv, **options)
            self.assert_all_close(gradients_by(ours, *tensors), gradients_by(
                lambda *qkv: sdpa_in_f32(*qkv, **options), *tensors))  # fmt: skip

    def test_of_the_log_sum_exp(self):
        q, k, v = (tensor.requires_grad_() for tensor in make_qkv())
        weights = torch.randn(1, 2, 16, generator=torch.Generator().manual_seed(5))
        _, lse = torch.ops.flashjit.attention_forward(q, k, v)
        (lse * weights).sum().backward()
        of_q, of_k, of_v = (tensor.grad.clone() for tensor in (q, k, v))
        self.assertEqual(of_v.abs().max(), 0)
        q.grad = k.grad = None
        scores = torch.einsum("bqhd,bkd->bhqk", q.float(), k[:, :, 0].float()) / 8
        (scores.logsumexp(-1) * weights).sum().backward()
        self.assert_close(of_q, q.grad)
        self.assert_close(of_k, k.grad)

    def test_only_what_is_wanted_is_computed(self):
        tensors = make_qkv()
        expected = gradients_by(flashjit.torch.attention, *tensors)
        for wanted in range(3):
            leaves = [tensor.clone().requires_grad_(i == wanted) for i, tensor in enumerate(tensors)]
            out = flashjit.torch.attention(*leaves)
            weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(9))
            with mock.patch.object(flashjit, "attention_backward", wraps=flashjit.attention_backward) as backward:
                (out.float() * weights).sum().backward()
            left_out = [name for name in ("dq", "dk", "dv") if backward.call_args.kwargs[name] is False]
            self.assertEqual(left_out, [name for i, name in enumerate(("dq", "dk", "dv")) if i != wanted])
            self.assertTrue(torch.equal(leaves[wanted].grad, expected[wanted]))

    def test_gradients_of_any_strides_come_in(self):
        q, k, v = (tensor.requires_grad_() for tensor in make_qkv())
        flashjit.torch.attention(q, k, v).sum().backward()  # strides of 0
        of_sum = q.grad.clone()
        q.grad = None
        flashjit.torch.attention(q, k, v).backward(torch.ones(1, 2, 64, 16, dtype=torch.bfloat16).permute(0, 3, 1, 2))
        self.assertTrue(torch.equal(of_sum, q.grad))

    def test_gradients_come_in_from_anywhere_in_memory(self):
        q, k, v = (tensor.requires_grad_() for tensor in make_qkv())
        first = torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
        torch.cat([first, flashjit.torch.attention(q, k, v).flatten()]).sum().backward()  # behind one element
        behind = q.grad.clone()
        q.grad = None
        flashjit.torch.attention(q, k, v).sum().backward()
        self.assertTrue(torch.equal(behind, q.grad))

    def test_splits_of_a_fixed_size_make_no_difference(self):
        tensors = make_qkv()
        for one, other in zip(gradients_by(lambda *qkv: flashjit.torch.attention(*qkv, fixed_split_size=64), *tensors),
                              gradients_by(flashjit.torch.attention, *tensors)):  # fmt: skip
            self.assertLess((one.float() - other.float()).abs().max(), ROUNDING * other.float().abs().max())

    def test_what_is_differentiated_otherwise_is_refused(self):
        q, k, v = (tensor.requires_grad_() for tensor in make_qkv())
        gradient, = torch.autograd.grad(flashjit.torch.attention(q, k, v).sum(), q, create_graph=True)
        with self.assertRaisesRegex(flashjit.Unsupported, "differentiated only once"):
            gradient.sum().backward()
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(q.detach(), torch.ones_like(q))
            for tensors in ((dual, k, v), (dual, k.detach(), v.detach())):
                with self.assertRaisesRegex(flashjit.Unsupported, "^q: must have no tangent"):
                    flashjit.torch.attention(*tensors)

    def test_no_tensor_is_on_another_device(self):
        q, k, v = (tensor.requires_grad_() for tensor in make_qkv())
        sinks = torch.zeros(2, device="meta")
        for tensors, options, message in (((q, k.to("meta"), v), {}, "^k: must be on cpu like q, was on meta$"),
                                          ((q, k, v), {"sinks": sinks}, "^sinks: must be on cpu like q, was on meta$")):
            with self.subTest(message), self.assertRaisesRegex(flashjit.InvalidArgument, message):
                flashjit.torch.attention(*tensors, **options)
        on_meta = flashjit.torch.attention(*(tensor.to("meta") for tensor in (q, k, v)))
        self.assertEqual((on_meta.shape, on_meta.device.type), (q.shape, "meta"))
        for wrong in (([1.0], k, v), (q, None, v)):
            with self.assertRaisesRegex(flashjit.InvalidArgument, "^[qk]: must be a torch.Tensor, was "):
                flashjit.torch.attention(*wrong)

    def test_of_packed_sequences(self):
        tensors = [tensor[0] for tensor in make_qkv(24, 24)]
        starts = torch.tensor([0, 7, 24], dtype=torch.int32)
        bias = torch.randn(2, 2, 17, 17, generator=torch.Generator().manual_seed(4))
        one_by_one = lambda q, k, v, bias: torch.cat([
            flashjit.torch.attention(q[None, of], k[None, of], v[None, of], causal=True, bias=part)[0]
            for of, part in ((slice(0, 7), bias[:1, :, :7, :7]), (slice(7, 24), bias[1:]))
        ])
        packed = lambda q, k, v, bias: flashjit.torch.attention(q, k, v, causal=True, bias=bias, cu_seqlens_q=starts,
                                                                cu_seqlens_kv=starts, max_seqlen_q=17, max_seqlen_kv=17)
        expected = gradients_by(one_by_one, *tensors, bias)
        self.assert_all_close(gradients_by(packed, *tensors, bias), expected)
        torch.use_deterministic_algorithms(True)
        self.addCleanup(torch.use_deterministic_algorithms, False)
        once, again = (gradients_by(packed, *tensors, bias) for _ in range(2))
        self.assert_all_close(once, expected)
        self.assertTrue(all(torch.equal(one, other) for one, other in zip(once, again)))

    def test_dropout_is_the_same_in_both_directions(self):
        tensors = make_qkv()
        kept = torch.from_numpy(flashjit.dropout_mask((1, 2, 16, 16), 0.5, 3, 4).copy())
        attend = lambda *qkv, **options: flashjit.torch.attention(*qkv, dropout=0.5, **options)
        by_mask = gradients_by(lambda *qkv: attend(*qkv, dropout_mask=kept), *tensors)
        by_seed = gradients_by(lambda *qkv: attend(*qkv, dropout_seed=3, dropout_offset=4), *tensors)
        by_state = gradients_by(lambda *qkv: attend(*qkv, dropout_state=torch.tensor([3, 4])), *tensors)
        for one, other, third in zip(by_mask, by_seed, by_state):
            self.assertTrue(torch.equal(other, third))
            self.assertLess((one.float() - other.float()).abs().max(), ROUNDING * one.float().abs().max())

    def test_under_autocast_and_with_checkpoints(self):
        q, k, v = (tensor.float().requires_grad_() for tensor in make_qkv())
        with torch.autocast("cpu", torch.bfloat16):
            flashjit.torch.attention(q, k, v, causal=True).float().square().sum().backward()
        expected = [tensor.grad.clone() for tensor in (q, k, v)]
        self.assertEqual({gradient.dtype for gradient in expected}, {torch.float32})
        q.grad = k.grad = v.grad = None
        with torch.autocast("cpu", torch.bfloat16):
            out = checkpoint(lambda *qkv: flashjit.torch.attention(*qkv, causal=True), q, k, v, use_reentrant=False)
        out.float().square().sum().backward()
        for tensor, gradient in zip((q, k, v), expected):
            self.assertTrue(torch.equal(tensor.grad, gradient))

    def test_of_a_compiled_function_in_one_graph(self):
        tensors = make_qkv()
        attend = lambda q, k, v: 2 * flashjit.torch.attention(q + 0, k, v, causal=True, softcap=2.0)
        torch.compiler.reset()
        compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
        for one, other in zip(gradients_by(compiled, *tensors), gradients_by(attend, *tensors)):
            self.assertTrue(torch.equal(one, other))

    def test_what_has_none_says_so(self):
        q, k, v = (tensor.requires_grad_() for tensor in make_qkv())
        out = flashjit.torch.attention(q, k, v, batch_indices_kv=torch.tensor([0], dtype=torch.int32))
        with self.assertRaisesRegex(flashjit.Unsupported, "^batch_indices_kv: "):
            out.sum().backward()
        captured = torch.ones(2, requires_grad=True)
        out = flashjit.torch.attention(*make_qkv(), score=flashjit.Score("score * a(head)", a=captured))
        with self.assertRaisesRegex(flashjit.Unsupported, "^score: capture a: must not require a gradient"):
            out.sum().backward()
        out = flashjit.torch.attention(*make_qkv(), mask=flashjit.Mask("key < 9 * a(0)", a=captured))
        with self.assertRaisesRegex(flashjit.Unsupported, "^mask: capture a: must not require a gradient"):
            out.sum().backward()

    def test_through_a_text_that_is_a_score(self):
        tensors, gains = make_qkv(), torch.tensor([1.5, -0.5])
        in_a_tensor = flashjit.Score("gain(head) * tanh(score / 2)", gain=gains)  # by the operator
        for score, gain in (("2 * tanh(score / 2)", 2), (in_a_tensor, gains)):
            def formula(q, k, v):
                q, k, v = (tensor.float().transpose(1, 2) for tensor in (q, k, v))
                k, v = (tensor.repeat_interleave(2 // k.shape[1], dim=1) for tensor in (k, v))
                scores = torch.tanh(q @ k.transpose(2, 3) * q.shape[3] ** -0.5 / 2)
                scores = scores * (gain if isinstance(gain, int) else gain[:, None, None])
                return (torch.softmax(scores, dim=3) @ v).transpose(1, 2)

            made = gradients_by(lambda *qkv: flashjit.torch.attention(*qkv, score=score), *tensors)
            self.assert_all_close(made, gradients_by(formula, *tensors))

    def test_of_a_text_that_is_a_mask(self):
        tensors = make_qkv()
        mask = flashjit.Mask("key < n(head)", n=torch.tensor([5, 12]))
        hidden = torch.where(torch.arange(16) < torch.tensor([5, 12]).view(2, 1, 1), 0.0, -torch.inf)
        self.assert_all_close(gradients_by(lambda *qkv: flashjit.torch.attention(*qkv, mask=mask), *tensors),
                              gradients_by(lambda *qkv: in_f32(*qkv, added=hidden), *tensors))  # fmt: skip

    def test_in_double_precision_by_finite_differences(self):
        generator = torch.Generator().manual_seed(3)
        q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
                   for shape in ((1, 5, 4, 6), (1, 7, 2, 6), (1, 7, 2, 3)))  # fmt: skip
        starts = torch.tensor([0, 2, 5], dtype=torch.int32)
        for options in ({}, {"causal": True, "softcap": 2.0}, {"window": (2, 1), "sinks": torch.ones(4)},
                        {"dropout": 0.4, "dropout_seed": 8}, {"cu_seqlens_q": starts, "cu_seqlens_kv": starts}):
            if "cu_seqlens_q" in options:
                attend = lambda q, k, v: torch.ops.flashjit.attention_forward(q[0], k[0], v[0], **options)
            else:
                attend = lambda q, k, v: torch.ops.flashjit.attention_forward(q, k, v, **options)
            with self.subTest(list(options)):
                self.assertTrue(torch.autograd.gradcheck(attend, (q, k, v)))
        out = flashjit.torch.attention(q, k, v)
        self.assertEqual(out.dtype, torch.float64)
        exact = in_f32(*(tensor.detach() for tensor in (q, k, v)))
        self.assertLess((out - exact).abs().max(), 1e-6)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            self.assertTrue(torch.equal(flashjit.torch.attention(q, k, v), out))
        bias = torch.zeros(5, 7, dtype=torch.float64).masked_fill(torch.arange(7) > 4, -torch.inf)
        masked = flashjit.torch.scaled_dot_product_attention(*to_sdpa(q, k, v), attn_mask=bias, enable_gqa=True)
        self.assertLess((masked - flashjit.torch.attention(q, k[:, :5], v[:, :5]).transpose(1, 2)).abs().max(), 1e-12)

    def test_the_operator_says_of_itself_what_is_true(self):
        q, k, v = make_qkv()
        out, lse = torch.ops.flashjit.attention_forward(q, k, v, True)
        options = {"bias": torch.zeros(1, 2, 1, 16), "sinks": torch.zeros(2)}
        for wanted, of in (([True] * 3 + [False] * 3, {}), ([False, True, False, True, False, True], options)):
            torch.library.opcheck(torch.ops.flashjit.attention_backward.default, (out, q, k, v, out, lse, None, wanted, False, True),
                                  of, test_utils=("test_schema", "test_faketensor"))  # fmt: skip
        q.requires_grad_()
        torch.library.opcheck(torch.ops.flashjit.attention_forward.default, (q, k, v, True),
                              {"mask": "key < a(0)", "mask_captures": ["a"], "mask_tensors": [torch.tensor([9])]},
                              test_utils=("test_schema", "test_autograd_registration", "test_faketensor",
                                          "test_aot_dispatch_static"))  # fmt: skip


class Compiled(CloseTo):
    def compile(self, function, **options):
        """The function as one graph, and the list of the graphs that were made."""
        graphs = []

        def keep(graph, inputs):
            graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
            return graph

        torch.compiler.reset()
        return torch.compile(function, fullgraph=True, backend=keep, **options), graphs

    def test_attention_is_one_node_of_one_graph(self):
        tensors = make_qkv()
        compiled, graphs = self.compile(lambda q, k, v: 2 * flashjit.torch.attention(q + 0, k, v, causal=True))
        expected = 2 * flashjit.torch.attention(*tensors, causal=True)
        self.assertTrue(torch.equal(compiled(*tensors), expected))
        self.assertEqual(len(graphs), 1)
        self.assertEqual(sum("attention_forward" in target for target in graphs[0]), 1)

    def test_one_graph_serves_all_lengths(self):
        compiled, graphs = self.compile(
            lambda *qkv: flashjit.torch.scaled_dot_product_attention(*qkv, enable_gqa=True), dynamic=True
        )
        for keys in (16, 24, 40):
            tensors = to_sdpa(*make_qkv(8, keys))
            self.assert_close(compiled(*tensors), sdpa_in_f32(*tensors, enable_gqa=True))
        self.assertEqual(len(graphs), 1)

    def test_one_graph_serves_all_sizes_of_a_window(self):
        tensors = make_qkv()
        attend = lambda q, k, v, left: flashjit.torch.attention(q, k, v, window=(left, 2))
        compiled, graphs = self.compile(attend, dynamic=True)
        for left in (3, 6, 9):
            self.assertTrue(torch.equal(compiled(*tensors, left), attend(*tensors, left)))
        self.assertEqual(len(graphs), 1)

    def test_one_graph_serves_chunks_of_all_sizes(self):
        tensors = make_qkv()
        attend = lambda q, k, v, chunk: flashjit.torch.attention(q, k, v, causal=True, chunk=chunk)
        compiled, graphs = self.compile(attend, dynamic=True)
        for chunk in (3, 6, 9):
            self.assertTrue(torch.equal(compiled(*tensors, chunk), attend(*tensors, chunk)))
        self.assertEqual(len(graphs), 1)

    def test_one_graph_serves_all_states_of_dropout(self):
        tensors = make_qkv()
        attend = lambda q, k, v, state: flashjit.torch.attention(q, k, v, dropout=0.5, dropout_state=state)
        compiled, graphs = self.compile(attend)
        for state in (torch.tensor([1, 2]), torch.tensor([3, 4])):
            self.assertTrue(torch.equal(compiled(*tensors, state), attend(*tensors, state)))
        self.assertEqual(len(graphs), 1)

    def test_one_graph_serves_sequences_of_all_lengths(self):
        tensors = [tensor[0] for tensor in make_qkv(24, 24)]
        attend = lambda q, k, v, starts: flashjit.torch.attention(
            q, k, v, cu_seqlens_q=starts, cu_seqlens_kv=starts, max_seqlen_kv=20
        )
        compiled, graphs = self.compile(attend)
        for starts in ([0, 7, 24], [0, 20, 24]):
            starts = torch.tensor(starts, dtype=torch.int32)
            self.assertTrue(torch.equal(compiled(*tensors, starts), attend(*tensors, starts)))
        self.assertEqual(len(graphs), 1)

    def test_one_graph_serves_all_tables_of_pages(self):
        q, *pages = (tensor.unflatten(1, (4, 8))[0] for tensor in make_qkv(32, 32))
        attend = lambda q, k, v, table, used: flashjit.torch.attention(q, k, v, page_table=table, seqused_kv=used)
        compiled, graphs = self.compile(attend)
        for entries in ([0, 1, 2], [3, 3, 0]):
            table = torch.tensor(entries, dtype=torch.int32).repeat(4, 1)
            used = torch.tensor([0, 24, 7, entries[0]], dtype=torch.int32)
            self.assertTrue(torch.equal(compiled(q, *pages, table, used), attend(q, *pages, table, used)))
        self.assertEqual(len(graphs), 1)

    def test_one_graph_serves_all_slopes_and_sinks(self):
        tensors = make_qkv()
        attend = lambda q, k, v, slopes, sinks: flashjit.torch.attention(
            q, k, v, softcap=2.0, alibi_slopes=slopes, sinks=sinks
        )
        compiled, graphs = self.compile(attend)
        first, second = torch.tensor([0.5, -0.125]), torch.tensor([3.0, 0.25])
        for of_heads in ((first, second), (second, first)):
            self.assertTrue(torch.equal(compiled(*tensors, *of_heads), attend(*tensors, *of_heads)))
        self.assertEqual(len(graphs), 1)

    def test_one_graph_serves_all_tensors_that_functions_capture(self):
        tensors = make_qkv()
        text, first, second = "score * a(head) + b", torch.tensor([0.5, -0.125]), torch.tensor([3.0, 0.25])

        def attend(q, k, v, table, bias):
            score = flashjit.Score(text, a=table + 0, b=0.5)
            return flashjit.torch.attention(q, k, v, score=score, mask="key % 3 != 1", bias=bias)

        compiled, graphs = self.compile(attend)
        for table in (first, second):
            bias = table.view(1, 2, 1, 1).expand(1, 2, 1, 16).contiguous()
            self.assertTrue(torch.equal(compiled(*tensors, table, bias), attend(*tensors, table, bias)))
        self.assertEqual(len(graphs), 1)

    def test_functions_from_outside_of_the_graph(self):
        tensors = make_qkv()
        mask = flashjit.Mask("key <= query + a(head) + more", a=torch.tensor([0, 5], dtype=torch.int32), more=1)
        blocks = flashjit.block_mask(*tensors[:2], mask=mask, engine=emulating_engine())
        attend = lambda q, k, v: flashjit.torch.attention(q, k, v, mask=mask, block_mask=blocks)
        compiled, graphs = self.compile(attend)
        self.assertTrue(torch.equal(compiled(*tensors), attend(*tensors)))
        self.assertEqual(sum("attention_forward" in target for target in graphs[0]), 1)

    def test_one_graph_serves_all_numbers_that_functions_capture(self):
        tensors = make_qkv()
        attend = lambda q, k, v, n: flashjit.torch.attention(q, k, v, mask=flashjit.Mask("key < n", n=n))
        compiled, graphs = self.compile(attend, dynamic=True)
        for n in (3, 6, 9):
            self.assertTrue(torch.equal(compiled(*tensors, n), attend(*tensors, n)))
        self.assertEqual(len(graphs), 1)

    def test_aot_autograd_takes_the_operator(self):
        tensors = to_sdpa(*make_qkv(heads_kv=2))
        torch.compiler.reset()
        compiled = torch.compile(
            flashjit.torch.scaled_dot_product_attention, fullgraph=True, backend="aot_eager"
        )
        self.assert_close(compiled(*tensors, is_causal=True), sdpa_in_f32(*tensors, is_causal=True))


class ScaledDotProductAttention(CloseTo):
    def check(self, *tensors, **options):
        tensors = to_sdpa(*tensors)
        actual = flashjit.torch.scaled_dot_product_attention(*tensors, **options)
        self.assertEqual(actual.dtype, torch.bfloat16)
        self.assert_close(actual, sdpa_in_f32(*tensors, **options))

    def test_is_that_of_pytorch(self):
        self.check(*make_qkv(heads_kv=2))
        self.check(*make_qkv(heads_kv=2), is_causal=True)
        self.check(*make_qkv(heads=4, heads_kv=2), enable_gqa=True)
        self.check(*make_qkv(8, 24, heads_kv=2), scale=0.3)
        self.check(*make_qkv(heads_kv=2, head_dim_v=32))

    def test_causal_mask_is_aligned_top_left(self):
        self.check(*make_qkv(8, 24, heads_kv=2), is_causal=True)

    def test_takes_tensors_of_either_memory_order(self):
        packed = tuple(tensor.contiguous() for tensor in to_sdpa(*make_qkv(heads_kv=2)))
        self.assert_close(flashjit.torch.scaled_dot_product_attention(*packed), sdpa_in_f32(*packed))

    def test_autocast_casts(self):
        tensors = tuple(tensor.float() for tensor in to_sdpa(*make_qkv(heads_kv=2)))
        with self.assertRaisesRegex(flashjit.InvalidArgument, "dtype"):
            flashjit.torch.scaled_dot_product_attention(*tensors)
        with torch.autocast("cpu", torch.bfloat16):
            actual = flashjit.torch.scaled_dot_product_attention(*tensors)
            flashjit.torch.attention(*to_sdpa(*tensors), alibi_slopes=torch.ones(2))  # which stay f32
        self.assertEqual(actual.dtype, torch.bfloat16)
        self.assert_close(actual, sdpa_in_f32(*tensors))

    def refuse(self, kind, message, *tensors, **options):
        with self.assertRaisesRegex(kind, message):
            flashjit.torch.scaled_dot_product_attention(*to_sdpa(*tensors), **options)

    def test_refuses_what_it_cannot_express_and_says_what_to_do(self):
        tensors = make_qkv(heads_kv=2)
        instead = r"use torch\.nn\.functional\.scaled_dot_product_attention"
        self.refuse(flashjit.Unsupported, rf"dropout_p: must be 0, was 0\.5; {instead}", *tensors, dropout_p=0.5)
        self.refuse(flashjit.Unsupported, rf"more queries \(24\) than keys \(8\); {instead}", *make_qkv(24, 8, 2, 2),
                    is_causal=True)

    def test_masks_are_those_of_pytorch(self):
        tensors = make_qkv(8, 24, heads_kv=2)
        added = torch.randn(1, 2, 8, 24, generator=torch.Generator().manual_seed(1)).bfloat16()
        for mask in (added, added[0, 0], added[0], added[:, :, :1], added[..., :1], added.transpose(2, 3).contiguous()
                     .transpose(2, 3), added.masked_fill(added > 1, -torch.inf)):  # fmt: skip
            with self.subTest(mask.shape):
                expected = sdpa_in_f32(*to_sdpa(*tensors), attn_mask=mask.float())
                actual = flashjit.torch.scaled_dot_product_attention(*to_sdpa(*tensors), attn_mask=mask)
                self.assert_close(actual, expected)
                if mask.shape[-1] > 1:
                    self.check(*tensors, attn_mask=mask < 1)

    def test_refuses_what_pytorch_refuses(self):
        mask = torch.ones(16, 16, dtype=torch.bool)
        self.refuse(flashjit.InvalidArgument, "^attn_mask: must be None beside is_causal", *make_qkv(heads_kv=2),
                    attn_mask=mask, is_causal=True)
        self.refuse(flashjit.InvalidArgument, "^attn_mask: must have at most 4 dimensions, had 5",
                    *make_qkv(heads_kv=2), attn_mask=mask[None, None, None])
        self.refuse(flashjit.InvalidArgument, "key: must have 2 heads like query, had 1; .*enable_gqa", *make_qkv())
        query, key, value = to_sdpa(*make_qkv(heads_kv=2))
        with self.assertRaisesRegex(flashjit.InvalidArgument, r"key: must be \[batch, .*had 3 dimensions; unsqueeze"):
            flashjit.torch.scaled_dot_product_attention(query, key[0], value)


if __name__ == "__main__":
    unittest.main()
