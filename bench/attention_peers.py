# SPDX-License-Identifier: Apache-2.0
"""The peers that compare_peers.py runs. Each takes tensors of PyTorch, [batch, seqlen, heads, head_dim], and comes with
PyTorch or in a package that may not be here."""

import importlib
import importlib.metadata

SDPA = {"cudnn": "CUDNN_ATTENTION", "fa2": "FLASH_ATTENTION"}  # the back ends of PyTorch
PACKAGES = {  # module, distribution
    "flash_attn": ("flash_attn", "flash-attn"),
    "fa3": ("flash_attn_interface", "flash-attn-3"),
    "fa4": ("flash_attn.cute", "flash-attn-4"),
}
PEERS = {
    "cudnn": "cuDNN",
    "fa2": "FlashAttention-2 of PyTorch",
    "flash_attn": "FlashAttention-2",
    "fa3": "FlashAttention-3",
    "fa4": "FlashAttention-4",
}


def function(name):
    """flash_attn_func of a package. What a package that does not fit this machine raises is its own affair."""
    return importlib.import_module(PACKAGES[name][0]).flash_attn_func


def reason(error):
    """One line, which an error without words does not have itself."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def missing(name):
    """Why the peer cannot be run; None if it can."""
    try:
        name in SDPA or function(name)
    except Exception as error:
        return reason(error)
    return None


def version(name):
    """Of the package that the peer is from; None when PyTorch has it or the package does not say."""
    try:
        return importlib.metadata.version(PACKAGES[name][1]) if name in PACKAGES else None
    except importlib.metadata.PackageNotFoundError:
        return None


def launcher(torch, name, q, k, v, causal):
    """A function without arguments that enqueues one call and returns its output."""
    return (sdpa if name in SDPA else packaged)(torch, name, q, k, v, causal)


def sdpa(torch, name, q, k, v, causal):
    back_end = getattr(torch.nn.attention.SDPBackend, SDPA[name])
    views = [tensor.transpose(1, 2) for tensor in (q, k, v)]  # the same memory as [batch, heads, seqlen, head_dim]
    grouped = {"enable_gqa": True} if q.shape[2] != k.shape[2] else {}
    attention = torch.nn.functional.scaled_dot_product_attention

    def launch():
        with torch.nn.attention.sdpa_kernel([back_end]):
            return attention(*views, is_causal=causal, **grouped).transpose(1, 2)

    return launch


def packaged(_, name, q, k, v, causal):
    attention = function(name)
    # Unasked FlashAttention-3 does not split the keys of a head over several blocks; 0 lets it choose.
    split = {"num_splits": 0} if name == "fa3" and q.shape[1] == 1 else {}

    def launch():
        out = attention(q, k, v, causal=causal, **split)
        return out[0] if isinstance(out, tuple) else out

    return launch
