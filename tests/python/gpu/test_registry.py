# SPDX-License-Identifier: Apache-2.0
"""PyTorch's functions with FlashJIT as their FlashAttention, on a GPU. Needs one, and PyTorch 2.13 or later."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import test_torch_registry as on_host  # noqa: E402, which skips where PyTorch has no registry
import torch  # noqa: E402
from torch.nn import attention, functional  # noqa: E402


def setUpModule():
    torch.set_default_device("cuda")
    unittest.addModuleCleanup(torch.set_default_device, None)
    attention.activate_flash_attention_impl("flashjit")
    unittest.addModuleCleanup(attention.restore_flash_attention_impl)


class ScaledDotProductAttention(on_host.ScaledDotProductAttention):
    def test_pytorchs_own_function_comes_here(self):
        q, k, v = self.tensors()[1]
        with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        expected, _ = on_host.expected_batch(*(x.transpose(1, 2) for x in (q, k, v)), causal=True)
        self.assert_close(out.transpose(1, 2), expected)
        self.assertTrue(torch.equal(out, on_host.sdpa(q, k, v, 0.0, True)[0]))

    def test_nested_tensors_come_here(self):
        rows = [torch.nested.nested_tensor([on_host.normal(length, 4, 64, seed=length + i) for length in (7, 30, 12)],
                                           layout=torch.jagged) for i in range(3)]
        with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
            out = functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in rows)).transpose(1, 2)
        for got, q, k, v in zip(out.unbind(), *(x.unbind() for x in rows)):
            self.assert_close(got, on_host.expected_attention(q, k, v)[0])


class Varlen(on_host.Varlen):
    pass
