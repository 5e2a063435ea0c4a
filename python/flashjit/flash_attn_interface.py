# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's interface over FlashJIT: the functions of flash_attn_interface, with their arguments and order.

>>> from flashjit.flash_attn_interface import flash_attn_func

Code that imports flash_attn_interface, or calls torch.ops.flash_attn_3, finds FlashJIT there after install().

All has the meaning that it has there, but for what says how to compute rather than what: num_splits, pack_gqa,
sm_margin and scheduler_metadata are looked at and make no difference, as the library chooses by itself, the same for the
same shapes. qv is refused. Beside that interface s_aux, as vLLM's FlashAttention has it, are attention sinks, and
gradients are there with chunks, too.

Errors name arguments as they are named here; what they say of shapes is of [batch, seqlen, heads, head_dim].
"""

import importlib.util
import sys
from typing import Any, Callable, Container, NamedTuple, Optional, Sequence, Union

import torch
from torch import Tensor

import flashjit
from flashjit._words import in_words
from flashjit.torch import (
    _are_plain,
    _as_rows,
    _is_unrecorded,
    _is_unwatched,
    _require_tensor,
    _wants_gradients,
    attention,
)

__all__ = [
    "flash_attn_combine", "flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
    "flash_attn_with_kvcache", "get_scheduler_metadata", "install",
]  # fmt: skip

_Window = Sequence[int]
_OF_8_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
_OUTPUTS = (torch.float16, torch.bfloat16, torch.float32)

# What the library calls them, and what these interfaces do.
_WORDS = {
    "scale": "softmax_scale", "window": "window_size", "chunk": "attention_chunk", "sinks": "s_aux",
    "cu_seqlens_kv": "cu_seqlens_k", "seqused_kv": "seqused_k", "max_seqlen_kv": "max_seqlen_k", "lse": "softmax_lse",
    "q_scale": "q_descale", "k_scale": "k_descale", "v_scale": "v_descale", "batch_indices_kv": "kv_batch_idx",
    "leftpad_kv": "leftpad_k", "k_cache": "k", "v_cache": "v", "out": "out_",
}  # fmt: skip
_WORDS_OF_CACHE = {
    **_WORDS, "seqused_kv": "cache_seqlens", "batch_indices_kv": "cache_batch_idx", "leftpad_kv": "cache_leftpad",
    "seqlens_rotary": "rotary_seqlens", "k_cache": "k_cache", "v_cache": "v_cache", "k_new": "k", "v_new": "v",
}  # fmt: skip
_REFUSED = (flashjit.InvalidArgument, flashjit.Unsupported)  # before anything was launched or written


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    qv: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    window_size: _Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    s_aux: Optional[Tensor] = None,
) -> "Union[Tensor, tuple[Tensor, Tensor]]":
    """Attention of sequences of one length, with gradients.

    q is (batch, seqlen_q, heads_q, head_dim), k and v are (batch, seqlen_k, heads_k, ...), of float16 or bfloat16, or of
    float8_e4m3fn or float8_e5m2, without gradients: then q_descale, k_descale and v_descale, (batch, heads_k), are what
    they are multiplied by, the result is of bfloat16, and v may come transposed, its keys contiguous. Returns (batch,
    seqlen_q, heads_q, head_dim_v), with return_attn_probs also the log-sum-exp of each row's scores, float32 (batch,
    heads_q, seqlen_q). With causal, or a window_size (left,
    right), query i stands at key i + seqlen_k - seqlen_q; a row that sees no key is 0. deterministic is of the
    gradients. s_aux, (heads_q), is of any floating dtype.
    """
    _check_hints(num_splits, pack_gqa, sm_margin)
    is_usual = qv is q_descale is k_descale is v_descale is s_aux is None and not attention_chunk
    if is_usual and _is_no_window(window_size) and _are_plain(q, k, v) and _is_unrecorded(q, k, v):
        # Here and not in functions of their own, which would cost the host as much as all that was looked at.
        try:
            return flashjit.attention(q, k, v, causal=causal, scale=softmax_scale, softcap=softcap, lse=return_attn_probs)
        except _REFUSED:
            pass  # the way of all others copies rows that are not contiguous, and says in our words what is wrong
    return _in_words_of_rows(q, k, v, softmax_scale, causal, qv, q_descale, k_descale, v_descale, window_size,
                             attention_chunk, softcap, deterministic, return_attn_probs, s_aux)


@in_words(_WORDS)
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    qv: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    window_size: _Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    s_aux: Optional[Tensor] = None,
) -> "Union[Tensor, tuple[Tensor, Tensor]]":
    """Attention of packed sequences, with gradients.

    q is (total_q, heads_q, head_dim), k and v are (total_k, heads_k, ...): sequence b has the rows from cu_seqlens_q[b]
    to cu_seqlens_q[b + 1] and from cu_seqlens_k[b] to cu_seqlens_k[b + 1], int32 (batch + 1), of which the first
    seqused_q[b] and seqused_k[b] count where these are given. max_seqlen_q and max_seqlen_k are upper bounds. The
    log-sum-exp is (heads_q, total_q). All else is as of flash_attn_func.
    """
    q, k, v, cu_seqlens_q, cu_seqlens_k = _tensors(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    seqused_q, seqused_k = _tensors(True, seqused_q=seqused_q, seqused_k=seqused_k)
    options = _options(q, k, qv, q_descale, k_descale, v_descale, softmax_scale, causal, window_size, attention_chunk,
                       softcap, s_aux)
    _check_hints(num_splits, pack_gqa, sm_margin)
    options |= _given(cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_k, seqused_q=seqused_q, seqused_kv=seqused_k,
                      max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_k)
    return _attend(q, k, v, deterministic, return_attn_probs, options)


@in_words({**_WORDS, "q": "qkv", "k": "qkv", "v": "qkv"})
def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    window_size: _Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: Optional[int] = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    s_aux: Optional[Tensor] = None,
) -> "Union[Tensor, tuple[Tensor, Tensor]]":
    """flash_attn_func of one tensor: (batch, seqlen, 3, heads, head_dim), or (batch, seqlen, heads_q + 2 * heads_k,
    head_dim) with num_heads_q. q, k and v are read where they are."""
    q, k, v = _unpack(*_tensors(qkv=qkv), num_heads_q)
    options = _options(q, k, None, q_descale, k_descale, v_descale, softmax_scale, causal, window_size, attention_chunk,
                       softcap, s_aux)
    _check_hints(1, None, sm_margin)
    return _attend(q, k, v, deterministic, return_attn_probs, options)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Optional[Tensor] = None,
    v: Optional[Tensor] = None,
    qv: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None,
    rotary_sin: Optional[Tensor] = None,
    cache_seqlens: "Union[int, Tensor, None]" = None,
    cache_batch_idx: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None,
    page_table: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k_new: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    rotary_seqlens: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Optional[Tensor] = None,
    num_splits: int = 0,
    pack_gqa: Optional[bool] = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    s_aux: Optional[Tensor] = None,
) -> "Union[Tensor, tuple[Tensor, ...]]":
    """Attention of new queries over a cache of keys and values, behind which new ones are written first. No gradients.

    q is (batch, seqlen_q, heads_q, head_dim), or (total_q, heads_q, head_dim) with cu_seqlens_q. k_cache and v_cache are
    (batch_cache, seqlen_cache, heads_k, ...), or with page_table, int32 (batch, entries), (pages, page_size, heads_k,
    ...). Sequence b has cache_seqlens[b] rows there, int32 or one number for all, the first cache_leftpad[b] of them
    empty, in batch entry cache_batch_idx[b]. k and v, (batch, seqlen_new, heads_k, ...), or (total_new, ...) with
    cu_seqlens_k_new, are written behind these, in place, and take part.

    With rotary_cos and rotary_sin, (positions, rotary_dim / 2), k turns by rotary_seqlens[b] + i, of cache_seqlens when
    None, and q likewise, or without causal and window_size all of q by rotary_seqlens[b]; pairs are neighbours with
    rotary_interleaved, else a half of rotary_dim apart.

    With return_softmax_lse returns (out, softmax_lse, None, None), the last two for the partial results that are not
    returned here. Of new keys that a cache has no room for nothing is written, and its sequence ends with the cache.
    """
    if isinstance(cache_seqlens, int) and isinstance(q, Tensor):
        batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
        cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
    _check_hints(num_splits, pack_gqa, sm_margin)
    is_usual = (k is v is qv is rotary_cos is rotary_sin is cu_seqlens_q is cu_seqlens_k_new is cache_batch_idx
                is cache_leftpad is q_descale is k_descale is v_descale is s_aux is None
                and not attention_chunk)  # fmt: skip
    if is_usual and _is_no_window(window_size) and _are_plain(q, k_cache, v_cache, cache_seqlens, page_table):
        try:  # as in flash_attn_func
            result = flashjit.attention(q, k_cache, v_cache, causal=causal, scale=softmax_scale, softcap=softcap,
                                        seqused_kv=cache_seqlens, page_table=page_table, max_seqlen_q=max_seqlen_q,
                                        lse=return_softmax_lse)
            return (*result, None, None) if return_softmax_lse else result
        except _REFUSED:
            pass
    result = _in_words_of_cache(
        q, k_cache, v_cache, k, v, qv, None, cu_seqlens_q, None, cu_seqlens_k_new, None, cache_seqlens, max_seqlen_q,
        None, page_table, cache_batch_idx, cache_leftpad, rotary_cos, rotary_sin, rotary_seqlens, q_descale,
        k_descale, v_descale, softmax_scale, causal, *_pair(window_size), attention_chunk, softcap,
        rotary_interleaved, num_splits, pack_gqa, sm_margin, s_aux, lse=return_softmax_lse,
    )  # fmt: skip
    return (*result, None, None) if return_softmax_lse else result


def flash_attn_combine(
    out_partial: Tensor,
    lse_partial: Tensor,
    out: Optional[Tensor] = None,
    out_dtype: Optional[torch.dtype] = None,
) -> "tuple[Tensor, Tensor]":
    """Joins attention over parts of the keys: (out, lse).

    out_partial is (parts, batch, seqlen, heads, head_dim), lse_partial float32 (parts, batch, seqlen, heads); out is of
    out_dtype, that of the parts when None, and lse (batch, seqlen, heads).
    """
    out_partial, lse_partial = _tensors(out_partial=out_partial, lse_partial=lse_partial)
    if out_partial.dim() != 5 or out_partial.shape[0] == 0 or out_partial.dtype not in _OUTPUTS:
        raise flashjit.InvalidArgument(
            "out_partial: must be (parts, batch, seqlen, heads, head_dim) with at least one part, of float16, bfloat16 or "
            f"float32, was {tuple(out_partial.shape)} of {out_partial.dtype}"
        )
    if lse_partial.shape != out_partial.shape[:-1] or lse_partial.dtype != torch.float32:
        raise flashjit.InvalidArgument(
            f"lse_partial: must be {tuple(out_partial.shape[:-1])}, as out_partial says, of float32, was "
            f"{tuple(lse_partial.shape)} of {lse_partial.dtype}"
        )
    if out_dtype not in (None, *_OUTPUTS):
        raise flashjit.InvalidArgument(f"out_dtype: must be float16, bfloat16, float32 or None, was {out_dtype!r:.100}")
    if out is None:
        out = out_partial.new_empty(out_partial.shape[1:], dtype=out_dtype or out_partial.dtype)
    elif out_dtype not in (None, out.dtype):
        raise flashjit.InvalidArgument(f"out_dtype: must be None or {out.dtype}, that of out, was {out_dtype}")
    of_heads = lse_partial.transpose(-1, -2).contiguous()
    parts = list(zip(out_partial.unbind(0), of_heads.unbind(0)))
    joined, lse = flashjit.merge(parts, out=out)
    return joined, lse.transpose(-1, -2)


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: Tensor,
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: Optional[int] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k_new: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None,
    page_size: Optional[int] = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: _Window = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: Optional[bool] = None,
    sm_margin: int = 0,
) -> Tensor:
    """int32 without elements, for scheduler_metadata: what FlashJIT needs of a batch it finds out on the device, in each
    call. flashjit.plan does so once for many calls."""
    _check_hints(num_splits, pack_gqa, sm_margin)
    return cache_seqlens.new_empty(0, dtype=torch.int32)


# --- What other packages import, too ----------------------------------------------------------------------------------


def _over_rows(
    q, k, v, softmax_scale, causal, qv, q_descale, k_descale, v_descale, window_size, attention_chunk, softcap,
    deterministic, lse, s_aux,
):  # fmt: skip
    """As flashjit.attention returns it."""
    q, k, v = _tensors(q=q, k=k, v=v)
    options = _options(q, k, qv, q_descale, k_descale, v_descale, softmax_scale, causal, window_size, attention_chunk,
                       softcap, s_aux)
    return _attend(q, k, v, deterministic, lse, options)


def _forward(
    q, k, v, k_new=None, v_new=None, qv=None, out_=None, cu_seqlens_q=None, cu_seqlens_k=None, cu_seqlens_k_new=None,
    seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None, page_table=None, kv_batch_idx=None,
    leftpad_k=None, rotary_cos=None, rotary_sin=None, seqlens_rotary=None, q_descale=None, k_descale=None,
    v_descale=None, softmax_scale=None, causal=False, window_size_left=-1, window_size_right=-1, attention_chunk=0,
    softcap=0.0, rotary_interleaved=True, scheduler_metadata=None, num_splits=1, pack_gqa=None, sm_margin=0,
    s_aux=None,
):  # fmt: skip
    """All of the above without gradients: (out, softmax_lse, and two tensors without elements in place of partial
    results)."""
    both = _over_cache(
        q, k, v, k_new, v_new, qv, out_, cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new, seqused_q, seqused_k, max_seqlen_q,
        max_seqlen_k, page_table, kv_batch_idx, leftpad_k, rotary_cos, rotary_sin, seqlens_rotary, q_descale, k_descale,
        v_descale, softmax_scale, causal, window_size_left, window_size_right, attention_chunk, softcap,
        rotary_interleaved, num_splits, pack_gqa, sm_margin, s_aux, lse=True,
    )  # fmt: skip
    return *both, both[1].new_empty(0), both[1].new_empty(0)


def _over_cache(
    q, k, v, k_new, v_new, qv, out_, cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new, seqused_q, seqused_k, max_seqlen_q,
    max_seqlen_k, page_table, kv_batch_idx, leftpad_k, rotary_cos, rotary_sin, seqlens_rotary, q_descale, k_descale,
    v_descale, softmax_scale, causal, window_size_left, window_size_right, attention_chunk, softcap, rotary_interleaved,
    num_splits, pack_gqa, sm_margin, s_aux, *, lse,
):  # fmt: skip
    """As flashjit.attention returns it."""
    q, *copies = _tensors(q=q, k_cache=k, v_cache=v)
    k, v = copies if k_new is None else (k, v)  # new keys are to be where the caller looks for them
    cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new, seqused_q, seqused_k, page_table, kv_batch_idx, leftpad_k = _tensors(
        True, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_k, cu_seqlens_k_new=cu_seqlens_k_new,
        seqused_q=seqused_q, seqused_kv=seqused_k, page_table=page_table, batch_indices_kv=kv_batch_idx,
        leftpad_kv=leftpad_k,
    )  # fmt: skip
    cache = _given(page_table=page_table, batch_indices_kv=kv_batch_idx, leftpad_kv=leftpad_k)
    options = _options(q, k, qv, q_descale, k_descale, v_descale, softmax_scale, causal,
                       (window_size_left, window_size_right), attention_chunk, softcap, s_aux, cache)
    _check_hints(num_splits, pack_gqa, sm_margin)
    options |= _given(cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_k, seqused_q=seqused_q, seqused_kv=seqused_k,
                      max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_k)
    if k_new is not None:
        cos, sin, starts = _tensors(True, rotary_cos=rotary_cos, rotary_sin=rotary_sin, seqlens_rotary=seqlens_rotary)
        rotary = _Rotary(cos, sin, rotary_interleaved, starts)
        q, options["seqused_kv"] = _append(q, k, v, *_tensors(k_new=k_new, v_new=v_new), cu_seqlens_k_new, rotary,
                                           cache, options)
    else:
        for name in _given(rotary_cos=rotary_cos, rotary_sin=rotary_sin):
            raise flashjit.InvalidArgument(f"{name}: must be None without new keys, was a tensor")
    return _attention_of_cache(q, k, v, out=out_, lse=lse, **cache, **options)


_flash_attn_forward = in_words(_WORDS)(_forward)
_in_words_of_rows = in_words(_WORDS)(_over_rows)
_in_words_of_cache = in_words(_WORDS_OF_CACHE)(_over_cache)


@in_words(_WORDS)
def _backward(
    dout, q, k, v, out, softmax_lse, dq=None, dk=None, dv=None, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None,
    seqused_k=None, max_seqlen_q=None, max_seqlen_k=None, softmax_scale=None, is_causal=False, window_size_left=-1,
    window_size_right=-1, softcap=0.0, deterministic=False, sm_margin=0,
):  # fmt: skip
    """(dq, dk, dv), into those that are given, then float32 (batch, heads_q, seqlen_q), or (heads_q, total_q), of each
    row the sum of dout * out, and four tensors without elements, for workspaces that are not returned here."""
    _check_hints(1, None, sm_margin)
    dout, q, k, v, out, softmax_lse = _tensors(dout=dout, q=q, k=k, v=v, out=out, softmax_lse=softmax_lse)
    cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k = _tensors(
        True, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_k, seqused_q=seqused_q, seqused_kv=seqused_k)
    options = _options(q, k, None, None, None, None, softmax_scale, is_causal, (window_size_left, window_size_right), 0,
                       softcap, None)
    options |= _given(cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_k, seqused_q=seqused_q, seqused_kv=seqused_k,
                      max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_k)
    gradients = flashjit.attention_backward(_as_rows(dout), q, k, v, out, softmax_lse, dq=dq, dk=dk, dv=dv,
                                            deterministic=deterministic, **options)
    sums = torch.einsum("...d,...d->...", dout.float(), out.float()).transpose(-1, -2).contiguous()
    return *gradients, sums, *(sums.new_empty(0) for _ in range(4))


def _flash_attn_backward(
    dout, q, k, v, out, softmax_lse, cu_seqlens_q=None, cu_seqlens_k=None, sequed_q=None, sequed_k=None,
    max_seqlen_q=None, max_seqlen_k=None, dq=None, dk=None, dv=None, softmax_scale=None, is_causal=False,
    window_size_left=-1, window_size_right=-1, softcap=0.0, deterministic=False, sm_margin=0,
):  # fmt: skip
    """Writes dq, dk and dv. Returns the sums of _backward."""
    return _backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, sequed_q, sequed_k, max_seqlen_q,
        max_seqlen_k, softmax_scale, is_causal, window_size_left, window_size_right, softcap, deterministic, sm_margin,
    )[3]  # fmt: skip


# --- Arguments --------------------------------------------------------------------------------------------------------


def _options(q, k, qv, q_descale, k_descale, v_descale, softmax_scale, causal, window_size, attention_chunk, softcap,
             s_aux, cache=()) -> "dict[str, Any]":  # fmt: skip
    """As flashjit.attention takes them: those that make a difference. cache: its options."""
    if qv is not None:
        raise flashjit.Unsupported("qv: must be None, as no kernel adds a product of it to scores, was a tensor")
    if s_aux is not None and not (isinstance(s_aux, Tensor) and s_aux.is_floating_point()):
        raise flashjit.InvalidArgument(f"sinks: must be a torch.Tensor of a floating dtype or None, was {s_aux!r:.100}")
    left, right = _pair(window_size)
    return {
        "causal": causal, "softcap": softcap, **_given(
            scale=softmax_scale, window=None if left == right == -1 else (left, right), chunk=attention_chunk or None,
            sinks=None if s_aux is None else s_aux.float().contiguous(),
        ),
        **_scales(q, k, q_descale, k_descale, v_descale, cache),
    }  # fmt: skip


def _scales(q: Tensor, k: Tensor, q_descale: Optional[Tensor], k_descale: Optional[Tensor],
            v_descale: Optional[Tensor], cache: "Container[str]") -> "dict[str, Tensor]":  # fmt: skip
    if q.dtype in _OF_8_BITS:
        queries_of_head = q.shape[-2] // max(k.shape[-2], 1)
        return _given(q_scale=_scale_of_heads("q_scale", q_descale, k, queries_of_head),
                      k_scale=_scale_of_heads("k_scale", k_descale, k), v_scale=_scale_of_heads("v_scale", v_descale, k))
    if q_descale is not None:
        raise flashjit.InvalidArgument(f"q_descale: must be None beside q of {q.dtype}, was a tensor")
    if (k_descale is None) != (v_descale is None):
        lacking, given = ("k", "v") if k_descale is None else ("v", "k")
        raise flashjit.InvalidArgument(f"{lacking}_scale: must be given beside {given}_descale, was None")
    return _given(k_scale=_scale("k_scale", k_descale, k, cache), v_scale=_scale("v_scale", v_descale, k, cache))


def _given(**options: Any) -> "dict[str, Any]":
    return {name: value for name, value in options.items() if value is not None}


def _attend(q: Tensor, k: Tensor, v: Tensor, deterministic: bool, lse: bool, options: "dict[str, Any]") -> Any:
    """With gradients, and in graphs. Where there is neither, flashjit.attention costs the host half as much."""
    tensors = [q, k, v, *(option for option in options.values() if isinstance(option, Tensor))]
    is_plain = _is_unwatched(*tensors) and not _wants_gradients(tensors)
    if is_plain and q.device.type != "meta" and not torch.is_autocast_enabled(q.device.type):
        return flashjit.attention(q, k, v, lse=lse, **options)
    return attention(q, k, v, deterministic=deterministic, lse=lse, **options)


def _is_no_window(window_size: Any) -> bool:
    """Of the default, and what is spelled like it; others are looked at."""
    return type(window_size) is tuple and window_size == (-1, -1) and type(window_size[0]) is type(window_size[1]) is int


def _scale_of_heads(name: str, descale: Optional[Tensor], k: Tensor, times: int = 1) -> Optional[Tensor]:
    """Of (batch, heads_k), beside q in 8 bits: what heads or sequences have in common once, so that heads may share
    tiles; else each head of k so many times, for as many of q."""
    if descale is None:
        return None
    _require_tensor(name, descale, "a torch.Tensor or None")
    if descale.dim() != 2 or descale.shape[1] != k.shape[-2]:
        raise flashjit.InvalidArgument(
            f"{name}: must be (batch, heads_k) with the {k.shape[-2]} heads of k, was {tuple(descale.shape)}"
        )
    if descale.shape[0] > 0 and descale.stride(0) == 0:
        descale = descale[0]
        if descale.stride(0) == 0:
            return descale[:1].float()
    descale = descale.float()
    return descale.repeat_interleave(times, -1) if times > 1 else descale


def _scale(name: str, descale: Optional[Tensor], k: Tensor, cache: "Container[str]") -> Optional[Tensor]:
    """Of (batch, heads_k), as the library has it: of each head where all batch entries are one memory, as of a number
    that is expanded, else of each row of k."""
    if descale is None:
        return None
    _require_tensor(name, descale, "a torch.Tensor or None")
    if descale.dim() != 2:
        return descale
    if descale.shape[0] == 1 or descale.stride(0) == 0:
        return descale[0].contiguous()
    # Then it is of sequences, and entries of k are those only without indices, pages and offsets.
    if k.dim() != 4 or descale.shape[0] != k.shape[0] or "page_table" in cache or "batch_indices_kv" in cache:
        raise flashjit.Unsupported(
            f"{name}: must be the same for all sequences, expanded from (1, heads_k), where these are packed, in pages or "
            f"found by indices, was {tuple(descale.shape)}"
        )
    return descale.float().unsqueeze(1).expand(-1, k.shape[1], -1)


def _tensors(may_lack: bool = False, **tensors: Any) -> "list[Any]":
    """Each with a contiguous last dimension, which costs a copy where it had none; but v as it is where kernels take it
    transposed."""
    rows = []
    for name, tensor in tensors.items():
        if not (may_lack and tensor is None):
            _require_tensor(name, tensor, "a torch.Tensor or None" if may_lack else "a torch.Tensor")
        is_row = tensor is None or tensor.dim() == 0 or tensor.stride(-1) == 1 or tensor.shape[-1] <= 1
        stays = is_row or (name == "v" and _may_stay_transposed(tensors["q"], tensor))
        rows.append(tensor if stays else tensor.contiguous())
    return rows


def _may_stay_transposed(q: Tensor, v: Tensor) -> bool:
    """Whether the keys of each dim follow one another, of sequences of one length."""
    if q.dtype not in _OF_8_BITS or v.dtype != q.dtype or v.dim() != 4 or v.stride(1) != 1:
        return False
    return all(v.stride(dim) % 16 == 0 for dim in (0, 2, 3)) and v.data_ptr() % 16 == 0


def _pair(window_size: Any) -> "tuple[int, int]":
    if not isinstance(window_size, (tuple, list)) or [type(side) for side in window_size] != [int, int]:
        if not torch.compiler.is_compiling():
            raise flashjit.InvalidArgument(f"window_size: must be (left, right), two ints, was {window_size!r:.100}")
    return tuple(window_size)


def _check_hints(num_splits: Any, pack_gqa: Any, sm_margin: Any) -> None:
    if not isinstance(num_splits, int) or num_splits < 0:
        raise flashjit.InvalidArgument(f"num_splits: must be an int of at least 0, was {num_splits!r:.100}")
    if not isinstance(sm_margin, int) or sm_margin < 0:
        raise flashjit.InvalidArgument(f"sm_margin: must be an int of at least 0, was {sm_margin!r:.100}")
    if pack_gqa not in (None, False, True):
        raise flashjit.InvalidArgument(f"pack_gqa: must be True, False or None, was {pack_gqa!r:.100}")


def _unpack(qkv: Tensor, num_heads_q: Optional[int]) -> "tuple[Tensor, ...]":
    if qkv.dim() == 5 and qkv.shape[2] == 3:
        return qkv.unbind(2)
    if qkv.dim() != 4:
        raise flashjit.InvalidArgument(
            "qkv: must be (batch, seqlen, 3, heads, head_dim), or with num_heads_q (batch, seqlen, heads, head_dim), was "
            f"{tuple(qkv.shape)}"
        )
    others = qkv.shape[2] - num_heads_q if isinstance(num_heads_q, int) and num_heads_q >= 0 else -1
    if others < 2 or others % 2 != 0:
        raise flashjit.InvalidArgument(
            f"num_heads_q: must be such that of the {qkv.shape[2]} heads of qkv an even number is left for k and v, was "
            f"{num_heads_q!r:.100}"
        )
    return qkv.split([num_heads_q, others // 2, others // 2], dim=2)


# --- Caches -----------------------------------------------------------------------------------------------------------


class _Rotary(NamedTuple):
    """Rotary embedding of rows that stand behind what a cache has; none without cos and sin."""

    cos: Optional[Tensor]
    sin: Optional[Tensor]
    interleaved: bool
    starts: Optional[Tensor]  # (batch): the position of each sequence's first row, None: its length

    @property
    def turns(self) -> bool:
        return self.cos is not None or self.sin is not None

    def turn(self, rows: Tensor, positions: Tensor) -> Tensor:
        """In float32, rounded once, as flashjit.append does it."""
        for name, table in (("rotary_cos", self.cos), ("rotary_sin", self.sin)):
            if table is None or table.dim() != 2 or 2 * table.shape[1] > rows.shape[-1] or table.shape != self.cos.shape:
                was = "None" if table is None else f"{tuple(table.shape)}"
                raise flashjit.InvalidArgument(
                    f"{name}: must be (positions, rotary_dim / 2), of at most {rows.shape[-1] // 2} pairs, was {was}"
                )
        half, places = self.cos.shape[1], positions.clamp(0, self.cos.shape[0] - 1)
        cos, sin = (table[places].float().view(*rows.shape[:-2], 1, half) for table in (self.cos, self.sin))
        x = rows.float()
        turning, rest = x[..., : 2 * half], x[..., 2 * half :]
        a, b = (turning[..., 0::2], turning[..., 1::2]) if self.interleaved else turning.split(half, dim=-1)
        pairs = (a * cos - b * sin, b * cos + a * sin)
        turned = torch.stack(pairs, dim=-1).flatten(-2) if self.interleaved else torch.cat(pairs, dim=-1)
        return torch.cat([turned, rest], dim=-1).to(rows.dtype)


# Of flashjit.append, whose k is another one than that of flashjit.attention.
_WORDS_OF_APPEND = {"k": "k_new", "v": "v_new", "positions": "seqlens_rotary", "cu_seqlens": "cu_seqlens_k_new"}


@in_words({"k": "k_cache", "v": "v_cache"})
def _attention_of_cache(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> "tuple[Tensor, Tensor]":
    return flashjit.attention(q, k, v, **options)


@in_words(_WORDS_OF_APPEND)
def _append_to_cache(*arrays: Tensor, **options: Any) -> Tensor:
    return flashjit.append(*arrays, **options)


def _append(q, k, v, k_new, v_new, cu_seqlens_new, rotary, cache, options) -> "tuple[Tensor, Tensor]":
    """Writes the new keys and values behind those that count. Returns q, turned, and the lengths with the new ones."""
    before, cu_seqlens_q = options.get("seqused_kv"), options.get("cu_seqlens_q")
    if before is None:
        raise flashjit.InvalidArgument("seqused_kv: must be given beside new keys, was None")
    if cu_seqlens_new is None and before.shape[0] != k_new.shape[0]:
        raise flashjit.InvalidArgument(f"k_new: batch must be {before.shape[0]}, was {k_new.shape[0]}")
    scales = _given(k_scale=options.get("k_scale"), v_scale=options.get("v_scale"))
    if any(scale.dim() == 3 for scale in scales.values()):
        raise flashjit.Unsupported("k_scale: must be the same for all sequences beside new keys, was one for each")
    # Of no rows, so that nothing is written where attention is refused then.
    _attention_of_cache(q[:0] if cu_seqlens_q is not None else q[:, :0], k, v, **cache, **options)
    news = k_new.shape[1] if cu_seqlens_new is None else cu_seqlens_new[1:] - cu_seqlens_new[:-1]
    starts = before if rotary.starts is None else rotary.starts
    is_local = _is_local(q, k, cache, options)
    turns_q = rotary.turns and is_local and _are_same_tokens(q, k_new, cu_seqlens_q, cu_seqlens_new)
    positions = None  # by default those behind the first key, whatever is left of it
    if rotary.turns and (rotary.starts is not None or "leftpad_kv" in cache):
        positions = _positions(k_new, cu_seqlens_new, starts, 1)
    others = rotary.turn(q, _positions(q, cu_seqlens_q, starts, int(is_local))) if rotary.turns and not turns_q else q
    turned = _append_to_cache(
        k_new, v_new, k, v, seqused_kv=before + news, cu_seqlens=cu_seqlens_new, rotary_cos=rotary.cos,
        rotary_sin=rotary.sin, rotary_interleaved=rotary.turns and rotary.interleaved, positions=positions,
        q=q if turns_q else None, **scales, **cache,
    )  # fmt: skip
    return (turned if turns_q else others), before + news


def _is_local(q: Tensor, k: Tensor, cache: "dict[str, Any]", options: "dict[str, Any]") -> bool:
    """Whether queries stand at places of their own: below a causal mask, chunks, or a window that hides a key."""
    queries = options.get("max_seqlen_q") or q.shape[-3]
    keys = k.shape[1] * (cache["page_table"].shape[1] if "page_table" in cache else 1)
    left, right = options.get("window", (-1, -1))
    return options["causal"] or "chunk" in options or 0 <= left < keys - 1 or 0 <= right < queries - 1


def _are_same_tokens(q: Tensor, k: Tensor, of_q: Optional[Tensor], of_k: Optional[Tensor]) -> bool:
    """Whose queries flashjit.append turns with the keys."""
    are_packed_alike = of_q is of_k or (of_q is not None and of_k is not None and of_q.data_ptr() == of_k.data_ptr())
    return are_packed_alike and q.shape[:-2] == k.shape[:-2]


def _positions(rows: Tensor, offsets: Optional[Tensor], starts: Tensor, step: int) -> Tensor:
    """(total) in int32, of each row: its sequence's start and a step for each row before it there."""
    if offsets is None:
        steps = step * torch.arange(rows.shape[1], dtype=torch.int32, device=rows.device)
        return (starts.unsqueeze(1) + steps).flatten()
    places = torch.arange(rows.shape[0], dtype=torch.int32, device=rows.device)
    # Rows behind the last offset are of no sequence.
    sequence = torch.searchsorted(offsets[1:], places, right=True).clamp(max=len(starts) - 1)
    return starts[sequence] + step * (places - offsets[sequence])


# --- torch.ops.flash_attn_3 -------------------------------------------------------------------------------------------

# The interface's: arguments may be added behind these.
_SCHEMAS = {
    "fwd": "(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new=None, Tensor(v_new!)? v_new=None, Tensor? q_v=None, "
    "Tensor(out!)? out=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? cu_seqlens_k_new=None, "
    "Tensor? seqused_q=None, Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, "
    "Tensor? page_table=None, Tensor? kv_batch_idx=None, Tensor? leftpad_k=None, Tensor? rotary_cos=None, "
    "Tensor? rotary_sin=None, Tensor? seqlens_rotary=None, Tensor? q_descale=None, Tensor? k_descale=None, "
    "Tensor? v_descale=None, float? softmax_scale=None, bool is_causal=False, int window_size_left=-1, "
    "int window_size_right=-1, int attention_chunk=0, float softcap=0.0, bool is_rotary_interleaved=False, "
    "Tensor? scheduler_metadata=None, int num_splits=0, bool? pack_gqa=None, int sm_margin=0, Tensor? s_aux=None) "
    "-> (Tensor(out!), Tensor, Tensor, Tensor)",
    "bwd": "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(dq!)? dq=None, "
    "Tensor(dk!)? dk=None, Tensor(dv!)? dv=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "Tensor? seqused_q=None, Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, "
    "float? softmax_scale=None, bool is_causal=False, int window_size_left=-1, int window_size_right=-1, "
    "float softcap=0.0, bool deterministic=False, int sm_margin=0) "
    "-> (Tensor(dq!), Tensor(dk!), Tensor(dv!), Tensor, Tensor, Tensor, Tensor, Tensor)",
    "fwd_combine": "(Tensor out_partial, Tensor lse_partial, Tensor(out!)? out=None, ScalarType? out_dtype=None) "
    "-> (Tensor(out!), Tensor)",
    "get_scheduler_metadata": "(int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, int num_heads_k, "
    "int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k, Tensor? cu_seqlens_q=None, "
    "Tensor? cu_seqlens_k=None, Tensor? cu_seqlens_k_new=None, Tensor? seqused_q=None, Tensor? leftpad_k=None, "
    "int? page_size=None, int max_seqlen_k_new=0, bool is_causal=False, int window_size_left=-1, "
    "int window_size_right=-1, int attention_chunk=0, bool has_softcap=False, int num_splits=0, bool? pack_gqa=None, "
    "int sm_margin=0) -> Tensor",
}


def _shapes_of_fwd(q, k, v, k_new=None, v_new=None, q_v=None, out=None, *others, **named):
    *rows, heads, _ = q.shape
    made = q.new_empty((*rows, heads, v.shape[-1])) if out is None else out
    return made, *(q.new_empty(shape, dtype=torch.float32) for shape in ((*rows[:-1], heads, rows[-1]), 0, 0))


def _shapes_of_bwd(dout, q, k, v, out, softmax_lse, dq=None, dk=None, dv=None, *others, **named):
    made = (torch.empty_like(x) if into is None else into for x, into in ((q, dq), (k, dk), (v, dv)))
    return *made, torch.empty_like(softmax_lse), *(softmax_lse.new_empty(0) for _ in range(4))


def _shapes_of_combine(out_partial, lse_partial, out=None, out_dtype=None):
    made = out_partial.new_empty(out_partial.shape[1:], dtype=out_dtype) if out is None else out
    return made, lse_partial[0].transpose(-1, -2).contiguous().transpose(-1, -2)


def _metadata(batch_size, max_seqlen_q, max_seqlen_k, num_heads, num_heads_k, headdim, headdim_v, qkv_dtype, seqused_k,
              *others, **named):  # fmt: skip
    return seqused_k.new_empty(0, dtype=torch.int32)


def _with_defaults(name: str, function: "Callable[..., Any]") -> "Callable[..., Any]":
    """A dispatcher leaves out last arguments that are as the schema has them by default."""
    every = getattr(torch.ops.flash_attn_3, name).default._schema.arguments

    def call(*arguments):
        return function(*arguments, *(argument.default_value for argument in every[len(arguments) :]))

    return call


_library: Optional[torch.library.Library] = None


def install() -> None:
    """Registers torch.ops.flash_attn_3.{fwd, bwd, fwd_combine, get_scheduler_metadata}, and this module as
    flash_attn_interface, for code that looks for FlashAttention-3 by these names. Once for the process; a second call
    does nothing. Raises flashjit.Unsupported where FlashAttention-3 itself is installed."""
    global _library
    if _library is not None:
        return
    is_there = "flash_attn_interface" in sys.modules or importlib.util.find_spec("flash_attn_interface") is not None
    try:
        library = None if is_there else torch.library.Library("flash_attn_3", "DEF")
    except RuntimeError:  # somebody has it
        library = None
    if library is None:
        raise flashjit.Unsupported(
            "flash_attn_interface: must not be installed beside FlashJIT, whose install() stands in its place, was"
        )
    kernels = {
        "fwd": (_flash_attn_forward, _shapes_of_fwd), "bwd": (_backward, _shapes_of_bwd),
        "fwd_combine": (flash_attn_combine, _shapes_of_combine), "get_scheduler_metadata": (_metadata, _metadata),
    }  # fmt: skip
    for name, (kernel, shapes) in kernels.items():
        library.define(name + _SCHEMAS[name])
        for backend in ("CUDA", "CPU"):  # the latter for an engine that emulates
            library.impl(name, _with_defaults(name, kernel), backend)
        torch.library.register_fake(f"flash_attn_3::{name}", shapes, lib=library)
    sys.modules["flash_attn_interface"] = sys.modules[__name__]
    _library = library
