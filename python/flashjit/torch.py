# SPDX-License-Identifier: Apache-2.0
"""FlashJIT for PyTorch 2.5 or later: an operator that torch.compile keeps in its graph, and functions over it.

flashjit.attention takes tensors of PyTorch, too, and costs the host least. What is here is for graphs, gradients,
autocast, and for code that calls torch.nn.functional.scaled_dot_product_attention."""

from typing import Optional, Sequence

import torch
from torch import Tensor

import flashjit

__all__ = ["attention", "attention_forward", "scaled_dot_product_attention"]


@torch.library.custom_op(
    "flashjit::attention_forward",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, bool causal=False, float? scale=None, SymInt[]? window=None, "
    "SymInt? chunk=None, float? softcap=None, Tensor? alibi_slopes=None, Tensor? sinks=None) -> "
    "(Tensor out, Tensor lse)",
)
def attention_forward(
    q, k, v, causal=False, scale=None, window=None, chunk=None, softcap=None, alibi_slopes=None, sinks=None
):
    """The operator: flashjit.attention with its log-sum-exp, (out, lse)."""
    options = {"window": window, "chunk": chunk, "softcap": softcap, "alibi_slopes": alibi_slopes, "sinks": sinks}
    return flashjit.attention(q, k, v, causal=causal, scale=scale, lse=True, **options)


@attention_forward.register_fake
def _shapes(q, k, v, *options, **named_options):
    batch, seqlen_q, heads_q = q.shape[:3]
    return (
        q.new_empty((batch, seqlen_q, heads_q, v.shape[3])),
        q.new_empty((batch, heads_q, seqlen_q), dtype=torch.float32),
    )


def _backward(ctx, grad_out, grad_lse):
    raise flashjit.Unsupported(
        "flashjit::attention_forward has no backward yet: call it under torch.no_grad() or torch.inference_mode(), or "
        "train with torch.nn.functional.scaled_dot_product_attention"
    )


attention_forward.register_autograd(_backward)


def _only_launches(*tensors: Tensor) -> bool:
    """Whether nobody watches the call: no graph is recorded and no gradient is wanted. Then the operator's dispatch,
    which costs the host more than the launch, can be left out."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    if not all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors):
        return False
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))


def _as_autocast_wants(q: Tensor, k: Tensor, v: Tensor) -> "tuple[Tensor, Tensor, Tensor]":
    device = q.device.type
    if not torch.is_autocast_enabled(device):
        return q, k, v
    dtype = torch.get_autocast_dtype(device)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: Optional[Sequence[int]] = None,
    chunk: Optional[int] = None,
    scale: Optional[float] = None,
    softcap: Optional[float] = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    sinks: Optional[Tensor] = None,
) -> Tensor:
    """flashjit.attention inside PyTorch: torch.compile keeps it in one graph, autocast applies to it, and tensors that
    require gradients are taken (backward raises Unsupported).

    q is [batch, seqlen_q, heads_q, head_dim], k and v are [batch, seqlen_kv, heads_kv, ...]; returns
    [batch, seqlen_q, heads_q, head_dim_v]. With causal, query i sees the keys up to i + seqlen_kv - seqlen_q. With
    window, (left, right), it sees at most left keys before that one, that key itself, and at most right keys after it;
    -1 is all on that side. With chunk, it sees of each so many keys only those that this one is among. With softcap,
    scores become softcap * tanh(score / softcap). With alibi_slopes, float32 [heads_q] or [batch, heads_q], the score
    of key j loses slope * |i + seqlen_kv - seqlen_q - j| after that. With sinks, of the same shapes, the softmax of
    each row has one more score, that no key stands for. Raises what flashjit.attention raises.
    """
    q, k, v = _as_autocast_wants(q, k, v)
    options = {"window": window, "chunk": chunk, "softcap": softcap, "alibi_slopes": alibi_slopes, "sinks": sinks}
    of_heads = (tensor for tensor in (alibi_slopes, sinks) if tensor is not None)
    if _only_launches(q, k, v, *of_heads):
        return flashjit.attention(q, k, v, causal=causal, scale=scale, **options)
    return attention_forward(q, k, v, causal, scale, **options)[0]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention by FlashJIT, for what FlashJIT can do of it.

    query is [batch, heads_q, seqlen_q, head_dim], key and value are [batch, heads_kv, seqlen_kv, ...], in any strides
    with a contiguous last dimension; nothing is copied. Returns [batch, heads_q, seqlen_q, head_dim_v], which is a view
    of [batch, seqlen_q, heads_q, head_dim_v] memory. With is_causal, query i sees the keys up to i, as PyTorch has it.

    Raises InvalidArgument where PyTorch's function, too, would refuse, and Unsupported for attn_mask, dropout_p, and a
    causal mask over fewer keys than queries. Messages of the library name query, key and value q, k and v, and give
    their shapes as [batch, seqlen, heads, head_dim].
    """
    _check_ranks(query=query, key=key, value=value)
    _check_expressible(attn_mask, dropout_p)
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise flashjit.InvalidArgument(
            f"key: must have {query.shape[1]} heads like query, had {key.shape[1]}; grouped heads take enable_gqa=True"
        )
    if is_causal and query.shape[2] != key.shape[2]:
        key, value = _visible_keys(query, key, value)
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    return attention(q, k, v, causal=is_causal, scale=scale).transpose(1, 2)


def _check_ranks(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.dim() != 4:
            raise flashjit.InvalidArgument(
                f"{name}: must be [batch, heads, seqlen, head_dim], had {tensor.dim()} dimensions; unsqueeze it"
            )


def _check_expressible(attn_mask: Optional[Tensor], dropout_p: float) -> None:
    instead = "use torch.nn.functional.scaled_dot_product_attention"
    if attn_mask is not None:
        raise flashjit.Unsupported(
            f"attn_mask: must be None, was a tensor of shape {tuple(attn_mask.shape)}; say is_causal=True for a causal "
            f"mask, and for others {instead}"
        )
    if dropout_p != 0.0:
        raise flashjit.Unsupported(f"dropout_p: must be 0, was {dropout_p}; {instead}")


def _visible_keys(query: Tensor, key: Tensor, value: Tensor) -> "tuple[Tensor, Tensor]":
    """PyTorch aligns its causal mask top-left: no query sees the keys beyond as many as there are queries. Without
    them the mask is the one that FlashJIT aligns bottom-right."""
    queries, keys = query.shape[2], key.shape[2]
    if queries > keys:
        raise flashjit.Unsupported(
            f"is_causal: must be False where there are more queries ({queries}) than keys ({keys}); "
            "use torch.nn.functional.scaled_dot_product_attention"
        )
    return key[:, :, :queries], value[:, :, :queries]
