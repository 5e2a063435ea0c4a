# SPDX-License-Identifier: Apache-2.0
"""flashjit.attention and flashjit.torch on PyTorch tensors of a GPU: numbers, streams, graphs, torch.compile, bad
input."""

import unittest

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"PyTorch cannot be imported: {error}") from error

from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashjit
import flashjit.torch


def make_qkv(queries=256, keys=256, heads=8, heads_kv=2, head_dim=64, dtype=torch.bfloat16, batch=2):
    """q, k, v as flashjit.attention takes them."""
    torch.manual_seed(7)
    shapes = ((batch, queries, heads, head_dim), (batch, keys, heads_kv, head_dim), (batch, keys, heads_kv, head_dim))
    return tuple(torch.randn(shape, dtype=dtype, device="cuda") for shape in shapes)


def by_definition(q, k, v, causal, window, dtype, chunk=None, **scores):
    """Computed in this dtype; causal mask, window, chunks and slopes are aligned bottom-right."""
    query, key, value = (tensor.transpose(1, 2).to(dtype) for tensor in (q, k, v))
    queries, keys = query.shape[2], key.shape[2]
    left, right = (keys if side == -1 else side for side in window or (-1, -1))
    mask = torch.ones(queries, keys, dtype=torch.bool, device="cuda")
    mask = mask.tril(keys - queries + (0 if causal else right)).triu(keys - queries - left)
    if chunk is not None:
        mask &= torch.arange(keys).cuda() // chunk == (torch.arange(keys - queries, keys).cuda() // chunk).unsqueeze(1)
    if scores:
        return with_changed_scores(query, key, value, mask, **scores).transpose(1, 2).double()
    with sdpa_kernel(SDPBackend.MATH):
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2).double()


def with_changed_scores(query, key, value, mask, softcap=None, alibi_slopes=None, sinks=None):
    """Tensors are [batch, heads, seqlen, head_dim], slopes and sinks [batch, heads] or [heads]."""
    key, value = (tensor.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for tensor in (key, value))
    scores = query @ key.transpose(2, 3) * query.shape[3] ** -0.5
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        queries, keys = mask.shape
        behind = torch.arange(keys, device="cuda") - torch.arange(keys - queries, keys, device="cuda").unsqueeze(1)
        scores = scores - (alibi_slopes[..., None, None] * behind.abs()).to(scores.dtype)
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is None:
        return scores.softmax(-1) @ value
    column = sinks.to(scores.dtype)[..., None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), dim=-1).softmax(-1)[..., :-1] @ value


class OnGpu(unittest.TestCase):
    def assert_close(self, actual, q, k, v, causal=False, window=None, **options):
        """At most twice the error of PyTorch's plain way in this precision, and two roundings."""
        exact = by_definition(q, k, v, causal, window, torch.float64, **options)
        plain_error = (by_definition(q, k, v, causal, window, q.dtype, **options) - exact).abs().max().item()
        rounding = torch.finfo(q.dtype).eps * exact.abs().max().item()
        self.assertEqual(actual.shape, exact.shape)
        self.assertLess((actual.double() - exact).abs().max().item(), 2 * plain_error + 2 * rounding)


class Calls(OnGpu):
    def test_numbers(self):
        for dtype in (torch.bfloat16, torch.float16):
            for head_dim in (64, 128, 256):
                for causal in (False, True):
                    with self.subTest(dtype=dtype, head_dim=head_dim, causal=causal):
                        tensors = make_qkv(head_dim=head_dim, dtype=dtype)
                        out = flashjit.attention(*tensors, causal=causal)
                        self.assertEqual((type(out), out.dtype, out.device), (torch.Tensor, dtype, tensors[0].device))
                        self.assert_close(out, *tensors, causal=causal)

    def test_causal_mask_is_aligned_bottom_right(self):
        tensors = make_qkv(40, 256)
        self.assert_close(flashjit.attention(*tensors, causal=True), *tensors, causal=True)

    def test_windows(self):
        for head_dim in (64, 128):
            for queries, keys in ((1000, 1000), (40, 1000), (1, 1000)):
                tensors = make_qkv(queries, keys, head_dim=head_dim)
                for window in ((0, 0), (200, 0), (130, 60), (-1, 90), (300, -1)):
                    with self.subTest(head_dim=head_dim, queries=queries, window=window):
                        out = flashjit.attention(*tensors, window=window)
                        self.assert_close(out, *tensors, window=window)

    def test_chunks(self):
        for head_dim in (64, 128):
            for queries, keys in ((1000, 1000), (40, 1000), (1, 1000)):
                tensors = make_qkv(queries, keys, head_dim=head_dim)
                for chunk in (1, 100, 256, 999):
                    with self.subTest(head_dim=head_dim, queries=queries, chunk=chunk):
                        out = flashjit.attention(*tensors, causal=True, chunk=chunk)
                        self.assert_close(out, *tensors, causal=True, chunk=chunk)

    def test_caps_slopes_and_sinks(self):
        slopes = 2.0 ** -torch.arange(1.0, 17.0, device="cuda").view(2, 8)
        sinks = torch.linspace(-4, 8, 16, device="cuda").view(2, 8)
        cases = ({"softcap": 2.0}, {"alibi_slopes": slopes}, {"alibi_slopes": slopes[0]}, {"sinks": sinks},
                 {"sinks": sinks[1]}, {"softcap": 2.0, "alibi_slopes": slopes, "sinks": sinks})  # fmt: skip
        for head_dim in (64, 128):
            for queries, keys in ((256, 256), (40, 1000), (1, 1000)):
                tensors = make_qkv(queries, keys, head_dim=head_dim)
                for options in cases:
                    with self.subTest(head_dim=head_dim, queries=queries, options=list(options)):
                        out = flashjit.attention(*tensors, causal=True, **options)
                        self.assert_close(out, *tensors, causal=True, **options)

    def test_log_sum_exp_and_output_of_the_caller(self):
        q, k, v = make_qkv()
        mine = torch.full_like(q, torch.nan)
        out, lse = flashjit.attention(q, k, v, out=mine, lse=True, scale=0.5)
        self.assertEqual(out.data_ptr(), mine.data_ptr())
        scores = 0.5 * q[1, :, 5].double() @ k[1, :, 1].double().T
        self.assertLess((lse[1, 5].double() - scores.logsumexp(-1)).abs().max().item(), 1e-3)

    def test_strided_views_are_read_in_place(self):
        packed = torch.randn((2, 256, 3, 8, 64), dtype=torch.bfloat16, device="cuda")
        tensors = packed.unbind(2)
        self.assert_close(flashjit.attention(*tensors), *tensors)

    def test_runs_on_the_current_stream(self):
        tensors = make_qkv()
        expected = flashjit.attention(*tensors)
        late = tuple(torch.zeros_like(tensor) for tensor in tensors)
        for given in (False, True):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(50_000_000)
                for target, source in zip(late, tensors):
                    target.copy_(source)
                if not given:
                    out = flashjit.attention(*late)
            if given:
                out = flashjit.attention(*late, stream=stream)
            stream.synchronize()
            self.assertTrue(torch.equal(out, expected))
            for target in late:
                target.zero_()

    def test_is_captured_in_a_graph(self):
        tensors = make_qkv()
        expected = flashjit.attention(*tensors)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = flashjit.attention(*tensors)
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(torch.equal(out, expected))


class Compiled(OnGpu):
    def test_module_is_one_graph(self):
        class Attention(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.qkv = torch.nn.Linear(512, 3 * 512)
                self.out = torch.nn.Linear(512, 512)

            def forward(self, x, attend):
                query, key, value = self.qkv(x).unflatten(-1, (3, 8, 64)).permute(2, 0, 3, 1, 4)
                return self.out(attend(query, key, value, is_causal=True).transpose(1, 2).flatten(2))

        torch.manual_seed(1)
        module = Attention().to("cuda", torch.bfloat16).requires_grad_(False)
        x = torch.randn(2, 300, 512, dtype=torch.bfloat16, device="cuda")
        reference = Attention().to("cuda").requires_grad_(False)
        reference.load_state_dict(module.state_dict())
        expected = reference(x.float(), functional.scaled_dot_product_attention)
        torch.compiler.reset()
        compiled = torch.compile(module, fullgraph=True)
        errors = [
            (compiled(x, attend).float() - expected).abs().max().item()
            for attend in (flashjit.torch.scaled_dot_product_attention, functional.scaled_dot_product_attention)
        ]
        self.assertLess(errors[0], 2 * errors[1])

    def test_operator_passes_the_checks_of_pytorch(self):
        q, k, v = make_qkv()
        of_heads = torch.ones(8, device="cuda")
        for options in ((), ((100, 0),), (None, 100, 30.0, of_heads, of_heads)):
            torch.library.opcheck(torch.ops.flashjit.attention_forward.default, (q, k, v, True, None, *options))


class BadInput(OnGpu):
    def refuse(self, kind, message, *arguments, **options):
        with self.assertRaisesRegex(kind, message) as caught:
            flashjit.attention(*arguments, **options)
        print(f"{type(caught.exception).__name__}: {caught.exception}")

    def test_says_what_is_wrong(self):
        q, k, v = make_qkv()
        self.refuse(flashjit.InvalidArgument, "^k: ", q, k.cpu(), v)
        self.refuse(flashjit.InvalidArgument, "^q: ", q.cpu(), k.cpu(), v.cpu())
        self.refuse(flashjit.InvalidArgument, "^q: .*f32", q.float(), k.float(), v.float())
        self.refuse(flashjit.InvalidArgument, "^k: ", q, k.half(), v)
        self.refuse(flashjit.InvalidArgument, "^v: ", q, k, v.transpose(2, 3).contiguous().transpose(2, 3))
        self.refuse(flashjit.InvalidArgument, "^q: ", q[0], k, v)
        self.refuse(flashjit.InvalidArgument, "^k: ", q, k[..., :32], v)
        self.refuse(flashjit.InvalidArgument, "^q: ", [1.0], k, v)
        for name in ("alibi_slopes", "sinks"):
            self.refuse(flashjit.InvalidArgument, f"^{name}: ", q, k, v, **{name: torch.ones(8)})
            self.refuse(flashjit.InvalidArgument, f"^{name}: .*f32", q, k, v, **{name: q[0, 0, :, 0]})
        self.refuse(flashjit.Unsupported, "^q: .*gradient", q.requires_grad_(), k, v)

    def test_the_device_is_as_before(self):
        tensors = make_qkv()
        with self.assertRaises(flashjit.InvalidArgument):
            flashjit.attention(tensors[0][..., :60], *tensors[1:])
        self.assert_close(flashjit.attention(*tensors), *tensors)

    def test_gradients_are_as_near_as_those_of_sdpa(self):
        tensors, peers, exact = ([tensor.detach().to(dtype).requires_grad_() for tensor in make_qkv()]
                                 for dtype in (torch.bfloat16, torch.bfloat16, torch.float32))  # fmt: skip
        flashjit.torch.attention(*tensors, causal=True).square().sum().backward()
        for leaves in (peers, exact):
            query, key, value = (leaf.transpose(1, 2) for leaf in leaves)
            out = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            out.square().sum().backward()
        for ours, theirs, wanted in zip(tensors, peers, exact):
            bound = 2 * (theirs.grad.float() - wanted.grad).abs().max().item() + 1e-3
            self.assertLess((ours.grad.float() - wanted.grad).abs().max().item(), bound)


if __name__ == "__main__":
    unittest.main()
