# SPDX-License-Identifier: Apache-2.0
"""FlashJIT in PyTorch's registry of FlashAttention: its operators on the CPU by an engine that emulates, and PyTorch's
functions over them. Needs PyTorch 2.13 or later, and NVRTC."""

import functools
import inspect
import unittest
from unittest import mock

try:
    import torch
    from torch.nn.attention import (activate_flash_attention_impl, current_flash_attention_impl,
                                    list_flash_attention_impls, restore_flash_attention_impl)
    from torch.nn.attention.varlen import varlen_attn
except ImportError as error:
    raise unittest.SkipTest(f"PyTorch's registry cannot be imported: {error}") from error

import flashjit
import flashjit.torch
from flashjit import _torch_registry
from support import emulating_engine
from test_flash_attn_interface import Interface, Packed, expected_attention, expected_batch, normal

sdpa = torch.ops.aten._scaled_dot_product_flash_attention


def setUpModule():
    """All calls on the default engine go to the emulating one, and PyTorch's operators of tensors on the CPU to ours."""
    for name in ("attention", "attention_backward"):
        patch = mock.patch.object(flashjit, name, functools.partial(getattr(flashjit, name), engine=emulating_engine()))
        patch.start()
        unittest.addModuleCleanup(patch.stop)
    handle = _torch_registry.activate("CPU")
    unittest.addModuleCleanup(handle.remove)


class Registry(unittest.TestCase):
    def test_importing_registers_and_activates_nothing(self):
        self.assertIn("flashjit", list_flash_attention_impls())
        self.assertIsNone(current_flash_attention_impl())

    def test_it_is_activated_and_given_back(self):
        has_kernel = functools.partial(torch._C._dispatch_has_kernel_for_dispatch_key, "aten::_flash_attention_forward")
        before = has_kernel("CUDA")
        activate_flash_attention_impl("flashjit")
        self.assertEqual(current_flash_attention_impl(), "flashjit")
        self.assertTrue(has_kernel("CUDA"))
        restore_flash_attention_impl()
        self.assertIsNone(current_flash_attention_impl())
        self.assertEqual(has_kernel("CUDA"), before)

    def test_shapes_without_memory(self):
        """PyTorch's own, which ours have to have: the operators' fake tensors beside what is computed."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        q, k, v = (normal(2, 4, seqlen, 64, seed=seqlen) for seqlen in (20, 36, 36))
        real = sdpa(q, k, v, 0.0, False)
        with FakeTensorMode() as mode:
            fake = sdpa(*(mode.from_tensor(x) for x in (q, k, v)), 0.0, False)
        for ours, theirs in zip(real, fake):
            if isinstance(theirs, torch.Tensor) and isinstance(ours, torch.Tensor):
                self.assertEqual((ours.shape, ours.dtype, ours.stride()), (theirs.shape, theirs.dtype, theirs.stride()))


class ScaledDotProductAttention(Interface):
    def tensors(self):
        """Each in one of the ways in which models have them."""
        heads_first = [normal(2, heads, seqlen, 64, seed=heads) for heads, seqlen in ((4, 24), (2, 24), (2, 24))]
        rows_first = [normal(2, 24, heads, 64, seed=heads).transpose(1, 2) for heads in (4, 2, 2)]
        return heads_first, rows_first

    def test_forward_and_backward(self):
        for q, k, v in self.tensors():
            for is_causal, scale in ((False, None), (True, 0.2)):
                with self.subTest(strides=q.stride(), is_causal=is_causal):
                    tensors = [x.detach().requires_grad_() for x in (q, k, v)]
                    out, lse, *_ = sdpa(*tensors, 0.0, is_causal, scale=scale)
                    self.assertEqual(out.stride(), q.stride())
                    out.float().square().sum().backward()
                    exact = [x.detach().float().requires_grad_() for x in (q, k, v)]
                    expected, expected_lse = expected_batch(*(x.transpose(1, 2) for x in exact), causal=is_causal,
                                                            scale=scale)
                    self.assert_close(out.transpose(1, 2), expected)
                    self.assert_close(lse, expected_lse)
                    expected.square().sum().backward()
                    for got, right in zip(tensors, exact):
                        self.assert_close(got.grad, right.grad, 0.05 * right.grad.abs().max().item())

    def test_dropout_follows_pytorchs_generator_in_both_directions(self):
        q, k, v = (x.requires_grad_() for x in self.tensors()[0])
        calls = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            out = sdpa(q, k, v, 0.5)[0]
            calls.append(out)
        self.assertTrue(torch.equal(calls[0], calls[1]))
        self.assertFalse(torch.equal(calls[0], calls[2]))
        # The output is linear in v, so the gradient by v and v give the output back: of the same choice.
        of_v, = torch.autograd.grad(calls[0].float().sum(), v)
        self.assertLess(abs((of_v.float() * v.float()).sum().item() - calls[0].float().sum().item()), 1)

    def test_what_is_not_there_is_refused(self):
        q, k, v = self.tensors()[0]
        self.refused(flashjit.Unsupported, "return_debug_mask: must be False", lambda: sdpa(q, k, v, 0.0, False, True))
        self.refused(flashjit.InvalidArgument, "key: ", lambda: sdpa(q, k[..., :32], v))


class Varlen(Packed):
    """With grouped heads where this PyTorch has them; what else it lacks is skipped."""

    known = inspect.signature(varlen_attn).parameters
    grouped = {"enable_gqa": True} if "enable_gqa" in known else {}

    def setUp(self):
        super().setUp()
        if not self.grouped:
            self.k, self.v = (x.repeat_interleave(self.q.shape[1] // x.shape[1], dim=1) for x in (self.k, self.v))

    def varlen_attn(self, *arguments, **options):
        if lacking := options.keys() - self.known.keys():
            self.skipTest(f"varlen_attn of PyTorch {torch.__version__} has no {', '.join(sorted(lacking))}")
        return varlen_attn(*arguments, **self.grouped, **options)

    def call(self, q, k, v, **options):
        return self.varlen_attn(q, k, v, self.starts_q, self.starts_k, 33, 50, **options)

    def expected(self, q, k, v, **options):
        each = zip(q.split(self.queries), k.split(self.keys), v.split(self.keys))
        return torch.cat([expected_attention(*tensors, **options)[0] for tensors in each])

    def test_forward_and_backward(self):
        for window in ((-1, -1), (-1, 0), (7, 2)):
            with self.subTest(window):
                tensors = [x.detach().requires_grad_() for x in (self.q, self.k, self.v)]
                out = self.call(*tensors, window_size=window)
                out.float().square().sum().backward()
                exact = [x.detach().float().requires_grad_() for x in (self.q, self.k, self.v)]
                expected = self.expected(*exact, window=window)
                self.assert_close(out, expected)
                expected.square().sum().backward()
                for got, right in zip(tensors, exact):
                    self.assert_close(got.grad, right.grad, 0.05 * right.grad.abs().max().item())

    def test_one_split_gives_the_same_bits_in_any_batch(self):
        packed = self.call(self.q, self.k, self.v, num_splits=1)
        starts = torch.tensor([0, 33], dtype=torch.int32)
        alone = self.varlen_attn(self.q[5:38], self.k[13:46], self.v[13:46], starts, starts, 33, 33, num_splits=1)
        self.assertTrue(torch.equal(packed[5:38], alone))

    def test_lengths_that_count_have_no_gradients(self):
        used = torch.tensor([3, 4, 0, 41], dtype=torch.int32)
        out = self.call(self.q, self.k, self.v, seqused_k=used)
        each = zip(self.q.split(self.queries), self.k.split(self.keys), self.v.split(self.keys), used)
        self.assert_close(out, torch.cat([expected_attention(q, k[:n], v[:n])[0] for q, k, v, n in each]))
        q = self.q.clone().requires_grad_()
        with self.assertRaisesRegex(Exception, "seqused_k"):
            self.call(q, self.k, self.v, seqused_k=used).sum().backward()

    def test_pages(self):
        size, table = 16, torch.full((4, 4), -1, dtype=torch.int32)
        pages = [torch.full((9, size, self.k.shape[1], 64), float("nan"), dtype=torch.bfloat16) for _ in range(2)]
        free = iter((4, 7, 0, 2, 8, 1, 5, 3, 6))
        for b, count in enumerate(self.keys):
            for entry in range(-(-count // size)):
                table[b, entry] = page = next(free)
                rows = slice(self.starts_k[b] + entry * size, self.starts_k[b] + min((entry + 1) * size, count))
                for paged, packed in zip(pages, (self.k, self.v)):
                    paged[page, : rows.stop - rows.start] = packed[rows]
        used = torch.tensor(self.keys, dtype=torch.int32)
        out = self.varlen_attn(self.q, *pages, self.starts_q, None, 33, 50, block_table=table, seqused_k=used)
        self.assert_close(out, self.expected(self.q, self.k, self.v))

    def test_into_the_callers_memory(self):
        try:
            from torch.nn.attention.varlen import varlen_attn_out
        except ImportError:
            self.skipTest(f"PyTorch {torch.__version__} has no varlen_attn_out")
        out = torch.empty_like(self.q)
        varlen_attn_out(out, self.q, self.k, self.v, self.starts_q, self.starts_k, 33, 50, enable_gqa=True)
        self.assert_close(out, self.expected(self.q, self.k, self.v))


if __name__ == "__main__":
    unittest.main()
