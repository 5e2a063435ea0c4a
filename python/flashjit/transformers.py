# SPDX-License-Identifier: Apache-2.0
"""FlashJIT for transformers 5: after register(), models take attn_implementation="flashjit".

FlashJIT computes full and causal attention over all keys. A mask that is one of these costs nothing; every other one
(padding, packed sequences, windows shorter than the keys, static caches) is refused, or left to SDPA."""

import functools
import inspect
from typing import Any, Optional, Union

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers import __version__ as _transformers_version
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import flashjit
from flashjit.torch import attention

__all__ = ["register"]

NAME = "flashjit"
# What models are told instead: transformers takes any name with "flash" in it for a package of FlashAttention, which it
# wants to load, and which finds packed sequences by itself.
_INTERNAL_NAME = "fjit"

# Arguments of attention functions that change the result, and why they are refused. SDPA drops some of them silently.
_NOT_COMPUTED = {
    "dropout": "there is no dropout; call model.eval()",
    "position_bias": 'scores take no bias; use attn_implementation="sdpa"',
    "softcap": 'scores are not capped; use attn_implementation="eager"',
    "s_aux": 'there are no attention sinks; use attn_implementation="eager"',
    "cu_seq_lens_q": "sequences are not packed; pass them one at a time",
    "output_attentions": 'the weights are never in memory; use attn_implementation="eager"',
}


def register(fallback: Optional[str] = None) -> None:
    """Makes attn_implementation="flashjit" known to transformers: before a model is made or told to use it. May be
    called again to change the fallback.

    fallback says what becomes of masks that FlashJIT cannot express: None raises flashjit.Unsupported, "sdpa" writes
    the mask to memory and leaves the layers that it is for to SDPA.
    """
    if fallback not in (None, "sdpa"):
        raise flashjit.InvalidArgument(f'fallback: must be None or "sdpa", was {fallback!r}')
    if "q_length" not in inspect.signature(sdpa_mask).parameters:
        raise flashjit.Unsupported(f"transformers: must be version 5.17 or later, was {_transformers_version}")
    _translate_name()
    AttentionInterface.register(_INTERNAL_NAME, functools.partial(attention_forward, fallback=fallback))
    AttentionMaskInterface.register(_INTERNAL_NAME, functools.partial(make_mask, fallback=fallback))


def _translate_name() -> None:
    """Models that are asked for NAME take _INTERNAL_NAME."""
    correct = PreTrainedModel.get_correct_attn_implementation
    if hasattr(correct, "knows_flashjit"):
        return

    @functools.wraps(correct)
    def corrected(self, requested_attention, *args, **kwargs):
        name = _INTERNAL_NAME if requested_attention == NAME else requested_attention
        return correct(self, name, *args, **kwargs)

    corrected.knows_flashjit = True
    PreTrainedModel.get_correct_attn_implementation = corrected


def _refuse_mask(reason: str) -> None:
    raise flashjit.Unsupported(
        f'{reason}; or use attn_implementation="sdpa", or flashjit.transformers.register(fallback="sdpa")'
    )


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Optional[Tensor],
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    is_causal: Optional[bool] = None,
    fallback: Optional[str] = None,
    **kwargs: Any,
) -> "tuple[Tensor, None]":
    """The attention function of a model: query is [batch, heads_q, seqlen_q, head_dim], key and value are
    [batch, heads_kv, seqlen_kv, ...]; returns [batch, seqlen_q, heads_q, head_dim_v] and no weights.

    No mask stands for a causal or a full one, as is_causal or else the module says: make_mask has seen to that.
    """
    _refuse_what_is_not_computed(dropout=dropout, **kwargs)
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        return attention(q, k, v, causal=causal, scale=scaling), None
    if fallback is None:
        _refuse_mask(f"attention_mask: must be None in each layer, was a tensor of shape {tuple(attention_mask.shape)}")
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)


def _refuse_what_is_not_computed(**arguments: Any) -> None:
    for name, reason in _NOT_COMPUTED.items():
        given = arguments.get(name)
        if isinstance(given, Tensor):
            given = f"a tensor of shape {tuple(given.shape)}"
        if given:
            raise flashjit.Unsupported(f"{name}: must not be given, was {given}: {reason}")


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Union[int, Tensor] = 0,
    kv_offset: int = 0,
    attention_mask: Optional[Tensor] = None,
    local_size: Optional[int] = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    config: Any = None,
    fallback: Optional[str] = None,
    **kwargs: Any,
) -> Optional[Tensor]:
    """The mask function of a model: None for a mask that FlashJIT can express. attention_mask is False at padding, bool
    [batch, seqlen]. By the two skips transformers says whether the mask is causal, or full, but for window and padding.
    """
    chunked = getattr(config, "attention_chunk_size", None) is not None
    obstacle = (
        _obstacle_of_cache(q_length, kv_length, q_offset, kv_offset, full=allow_is_bidirectional_skip)
        or _obstacle_of_window(kv_length, kv_offset, local_size, chunked)
        or _obstacle_of_pattern(allow_is_causal_skip or allow_is_bidirectional_skip)
        or _obstacle_of_padding(attention_mask, kv_length, kv_offset)
    )
    if obstacle is None:
        return None
    if fallback is None:
        _refuse_mask(obstacle)
    window = {"attention_mask": attention_mask, "local_size": local_size}
    in_memory = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset, **window, **in_memory, **kwargs)


def _obstacle_of_cache(
    q_length: int, kv_length: int, q_offset: Union[int, Tensor], kv_offset: int, full: bool
) -> Optional[str]:
    """The causal mask is aligned bottom-right: the last query must stand at the last key."""
    if isinstance(q_offset, Tensor) or not (full or kv_length == q_offset + q_length - kv_offset):
        return "past_key_values: must be a cache that grows with the sequence (DynamicCache), was one of fixed size"
    return None


def _obstacle_of_window(kv_length: int, kv_offset: int, local_size: Optional[int], chunked: bool) -> Optional[str]:
    """A window over all keys is none; a chunk is over all keys only as long as it is the first."""
    if local_size is None or (kv_length <= local_size and not (chunked and kv_offset > 0)):
        return None
    return f"sliding window: must be as long as the {kv_offset + kv_length} tokens, was {local_size}; pass fewer tokens"


def _obstacle_of_pattern(plain: bool) -> Optional[str]:
    return None if plain else "mask: must be causal or full, has more to it here, such as packed sequences or images"


def _obstacle_of_padding(unpadded: Optional[Tensor], kv_length: int, kv_offset: int) -> Optional[str]:
    if unpadded is None:
        return None
    if torch.compiler.is_compiling():
        return "attention_mask: must be None in a compiled model, where nothing can look for padding in it"
    if not unpadded[:, kv_offset : kv_offset + kv_length].all():
        return "attention_mask: must have no padding; pass sequences of one length, or one at a time"
    return None
