# SPDX-License-Identifier: Apache-2.0
"""FlashJIT among PyTorch's implementations of FlashAttention: torch.nn.attention has a registry of them from 2.13 on.

After torch.nn.attention.activate_flash_attention_impl("flashjit"), what PyTorch gives to its own FlashAttention-2 comes
here: torch.nn.functional.scaled_dot_product_attention, of dense and of nested tensors, and varlen_attn."""

from typing import Any, Optional

import torch
from torch import Tensor

import flashjit
from flashjit._words import in_words
from flashjit.torch import _as_rows

_WORDS = {
    "q": "query", "k": "key", "v": "value", "dout": "grad_out", "lse": "logsumexp", "cu_seqlens_q": "cum_seq_q",
    "cu_seqlens_kv": "cum_seq_k", "seqused_kv": "seqused_k", "page_table": "block_table", "max_seqlen_q": "max_q",
    "max_seqlen_kv": "max_k", "window": "window_size_left", "dropout": "dropout_p", "softmax_scale": "scale",
}  # fmt: skip


class _Handle:
    """What the registry keeps while the implementation is active."""

    def __init__(self, library: torch.library.Library) -> None:
        self._library: Optional[torch.library.Library] = library

    def remove(self) -> None:
        self._library = None


def activate(dispatch_key: str = "CUDA") -> _Handle:
    """What the registry calls. dispatch_key: of the tensors whose operators come here."""
    library = torch.library.Library("aten", "IMPL", dispatch_key)
    kernels = {
        "_flash_attention_forward": _forward,
        "_flash_attention_forward_no_dropout_inplace": _forward_into,
        "_flash_attention_backward": _backward,
        "_scaled_dot_product_flash_attention": _sdpa_forward,
        "_scaled_dot_product_flash_attention_backward": _sdpa_backward,
    }
    for name, kernel in kernels.items():
        if hasattr(torch.ops.aten, name):
            library.impl(name, kernel, dispatch_key)
    return _Handle(library)


@in_words(_WORDS)
def _forward(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *,
             out=None, **options):  # fmt: skip
    """(output, logsumexp, state of the dropout, and two that stand for nothing here)."""
    _refuse(query, key, value, return_debug_mask, options)
    state = _draw(query.device) if dropout_p > 0 else None
    out, lse = flashjit.attention(
        query, key, value, out=out, lse=True,
        **_sequences(cum_seq_q, cum_seq_k, max_q, max_k, options.get("seqused_k"), options.get("block_table")),
        **_numbers(is_causal, options.get("scale"), options.get("window_size_left"), options.get("window_size_right")),
        alibi_slopes=options.get("alibi_slopes"), dropout=dropout_p, dropout_state=state,
        # Each sequence by itself in one piece is what callers want of one split: the same bits in any batch.
        fixed_split_size=max(max_k, 1) if options.get("num_splits") == 1 else 0,
    )  # fmt: skip
    rng_state = query.new_empty(2, dtype=torch.uint64) if state is None else state.view(torch.uint64)
    return out, lse, rng_state, query.new_empty((), dtype=torch.uint64), query.new_empty(0)


def _forward_into(out, *arguments, **options):
    """logsumexp."""
    return _forward(*arguments, out=out, **options)[1]


@in_words(_WORDS)
def _backward(grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
              rng_state, unused, *, scale=None, window_size_left=None, window_size_right=None):  # fmt: skip
    """(grad_query, grad_key, grad_value), which lie in memory as those do."""
    return flashjit.attention_backward(
        _as_rows(grad_out), query, key, value, out, logsumexp.contiguous(),
        **{into: torch.empty_like(x) for into, x in (("dq", query), ("dk", key), ("dv", value))},
        deterministic=torch.are_deterministic_algorithms_enabled(),
        **_sequences(cum_seq_q, cum_seq_k, max_q, max_k, None, None),
        **_numbers(is_causal, scale, window_size_left, window_size_right), dropout=dropout_p,
        dropout_state=rng_state.view(torch.int64) if dropout_p > 0 else None,
    )  # fmt: skip


def _sdpa_forward(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    """Of [batch, heads, seqlen, head_dim]; the output lies in memory as query does."""
    out = query.new_empty(query.shape[:-1] + value.shape[-1:])
    if query.shape == out.shape:
        out = torch.empty_like(query)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    max_q, max_k = query.shape[2], key.shape[2]
    _, lse, *rest = _forward(q, k, v, None, None, max_q, max_k, dropout_p, is_causal, return_debug_mask,
                             out=out.transpose(1, 2), scale=scale)
    return out, lse, None, None, max_q, max_k, *rest


def _sdpa_backward(grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p,
                   is_causal, philox_seed, philox_offset, *, scale=None):  # fmt: skip
    rows = (x.transpose(1, 2) for x in (grad_out, query, key, value, out))
    gradients = _backward(*rows, logsumexp, None, None, max_q, max_k, dropout_p, is_causal, philox_seed, philox_offset,
                          scale=scale)
    return tuple(gradient.transpose(1, 2) for gradient in gradients)


def _refuse(query: Tensor, key: Tensor, value: Tensor, return_debug_mask: bool, options: "dict[str, Any]") -> None:
    if return_debug_mask:
        raise flashjit.Unsupported("return_debug_mask: must be False, as probabilities are never in memory, was True")
    known = ("scale", "window_size_left", "window_size_right", "seqused_k", "alibi_slopes", "block_table", "num_splits")
    for name, value_of in options.items():
        if name not in known and value_of is not None:
            raise flashjit.Unsupported(f"{name}: must be None, as FlashJIT does not know it, was {value_of!r:.100}")
    # PyTorch does not hand these on to the backward, which would be another one's.
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        for name in ("seqused_k", "alibi_slopes", "block_table"):
            if options.get(name) is not None:
                raise flashjit.Unsupported(f"{name}: must be None beside tensors that require gradients, was a tensor")


def _draw(device: torch.device) -> Tensor:
    """A state of the dropout, by PyTorch's generator."""
    return torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=device)


def _sequences(cum_seq_q: Optional[Tensor], cum_seq_k: Optional[Tensor], max_q: int, max_k: int,
               seqused_k: Optional[Tensor], block_table: Optional[Tensor]) -> "dict[str, Any]":  # fmt: skip
    if cum_seq_q is None and seqused_k is None and block_table is None:
        return {}
    if block_table is not None and cum_seq_k is not None:  # offsets say nothing of pages but how many rows there are
        seqused_k = cum_seq_k.diff().int() if seqused_k is None else seqused_k
        cum_seq_k = None
    return {"cu_seqlens_q": cum_seq_q, "cu_seqlens_kv": cum_seq_k, "seqused_kv": seqused_k, "page_table": block_table,
            "max_seqlen_q": max_q, "max_seqlen_kv": max_k}  # fmt: skip


def _numbers(is_causal: bool, scale: Optional[float], left: Optional[int], right: Optional[int]) -> "dict[str, Any]":
    window = tuple(-1 if side is None else side for side in (left, right))
    return {"causal": is_causal, "scale": scale, "window": None if window == (-1, -1) else window}
