# SPDX-License-Identifier: Apache-2.0
"""FlashJIT for transformers 5: after register(), models take attn_implementation="flashjit".

FlashJIT computes full and causal attention over all keys, and causal attention in a sliding window or in chunks, of
scores that may be capped, with or without attention sinks. A mask that is one of these costs nothing; every other one
(padding, packed sequences, static caches) is refused, or read from memory, or left to SDPA."""

import functools
import inspect
from typing import Any, Callable, Iterator, NamedTuple, Optional, Union

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
    "dropout": "there is no backward pass, and no other use of dropout; call model.eval()",
    "position_bias": 'scores take no bias; use attn_implementation="sdpa"',
    "cu_seq_lens_q": "sequences are not packed; pass them one at a time",
    "output_attentions": 'the weights are never in memory; use attn_implementation="eager"',
}


class LocalMask(NamedTuple):
    """Stands for the mask of a causal sliding window or of causal chunks. It is no tensor, so that a model which
    changes masks fails."""

    keys: int  # of the layer
    window: Optional["tuple[int, int]"] = None
    chunk: Optional[int] = None
    first: int = 0  # key of the first query's chunk: no query sees those before it

    @property
    def ndim(self) -> int:
        """Asked for, like the next, by generate() and the model where generate() makes the masks: for static caches."""
        return 4

    def contiguous(self) -> "LocalMask":
        return self


def register(fallback: Optional[str] = None) -> None:
    """Makes attn_implementation="flashjit" known to transformers: before a model is made or told to use it. May be
    called again to change the fallback.

    fallback says what becomes of masks that FlashJIT cannot express: None raises flashjit.Unsupported; "mask" writes the
    mask to memory, where FlashJIT reads it; "sdpa" does so, too, and leaves the layers that it is for to SDPA.
    """
    if fallback not in (None, "mask", "sdpa"):
        raise flashjit.InvalidArgument(f'fallback: must be None, "mask" or "sdpa", was {fallback!r}')
    if "q_length" not in inspect.signature(sdpa_mask).parameters:
        raise flashjit.Unsupported(f"transformers: must be version 5.17 or later, was {_transformers_version}")
    _translate_name("_check_and_adjust_attn_implementation")  # of a model
    _translate_name("get_correct_attn_implementation")  # of a model inside another
    AttentionInterface.register(_INTERNAL_NAME, functools.partial(attention_forward, fallback=fallback))
    AttentionMaskInterface.register(_INTERNAL_NAME, functools.partial(make_mask, fallback=fallback))


def _wrap(owner: Any, name: str, wrapped: Callable) -> None:
    """Once: the function owner.name becomes wrapped, which is given it in front of its arguments."""
    function = getattr(owner, name)
    if hasattr(function, "knows_flashjit"):
        return
    wrapper = functools.wraps(function)(lambda *args, **kwargs: wrapped(function, *args, **kwargs))
    wrapper.knows_flashjit = True
    setattr(owner, name, wrapper)


def _translate_name(method: str) -> None:
    """Models whose method is given NAME take _INTERNAL_NAME."""

    def corrected(correct, self, attn_implementation, *args, **kwargs):
        name = _INTERNAL_NAME if attn_implementation == NAME else attn_implementation
        return correct(self, name, *args, **kwargs)

    _wrap(PreTrainedModel, method, corrected)


def _refuse_mask(reason: str) -> None:
    raise flashjit.Unsupported(
        f'{reason}; or use attn_implementation="sdpa", or flashjit.transformers.register(fallback="mask")'
    )


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Union[Tensor, LocalMask, None],
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    is_causal: Optional[bool] = None,
    softcap: Optional[float] = None,
    s_aux: Optional[Tensor] = None,
    fallback: Optional[str] = None,
    **kwargs: Any,
) -> "tuple[Tensor, None]":
    """The attention function of a model: query is [batch, heads_q, seqlen_q, head_dim], key and value are
    [batch, heads_kv, seqlen_kv, ...]; s_aux are the sinks, [heads_q]. Returns [batch, seqlen_q, heads_q, head_dim_v]
    and no weights.

    No mask stands for a causal or a full one, as is_causal or else the module says: make_mask has seen to that. Whether
    a layer has a window its mask says, not the argument sliding_window, which not all models pass.
    """
    _refuse_what_is_not_computed(dropout=dropout, **kwargs)
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    options = {"scale": scaling, "softcap": softcap, "sinks": None if s_aux is None else s_aux.float()}
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        return attention(q, k, v, causal=causal, **options), None
    if isinstance(attention_mask, LocalMask):
        return _attention_nearby(q, k, v, attention_mask, **options), None
    if fallback is None:
        _refuse_mask(f"attention_mask: must be None in each layer, was a tensor of shape {tuple(attention_mask.shape)}")
    if fallback == "mask":
        return attention(q, k, v, **_in_memory(attention_mask[..., : k.shape[1]]), **options), None
    _refuse_what_sdpa_drops(softcap=softcap, s_aux=s_aux)
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)


def _attention_nearby(q: Tensor, k: Tensor, v: Tensor, mask: LocalMask, **options: Any) -> Tensor:
    """Masks end at the last key, wherever that is; one in memory would not fit other keys either."""
    if k.shape[1] != mask.keys:
        raise flashjit.Unsupported(
            f'key: must have {mask.keys} tokens like the mask, had {k.shape[1]}; use attn_implementation="eager"'
        )
    if mask.chunk is not None:
        k, v = k[:, mask.first :], v[:, mask.first :]
    return attention(q, k, v, causal=True, window=mask.window, chunk=mask.chunk, **options)


def _in_memory(mask: Tensor) -> "dict[str, Tensor]":
    return {"boolean_mask" if mask.dtype == torch.bool else "bias": mask}


def _refuse_what_sdpa_drops(**arguments: Any) -> None:
    for name, given in _spelled(arguments):
        raise flashjit.Unsupported(
            f"{name}: must not be given beside a mask that is left to SDPA, which drops it, was {given}; "
            'use attn_implementation="eager"'
        )


def _refuse_what_is_not_computed(**arguments: Any) -> None:
    for name, given in _spelled({name: arguments.get(name) for name in _NOT_COMPUTED}):
        raise flashjit.Unsupported(f"{name}: must not be given, was {given}: {_NOT_COMPUTED[name]}")


def _spelled(arguments: "dict[str, Any]") -> "Iterator[tuple[str, Any]]":
    """Those that are given, as errors tell them."""
    for name, given in arguments.items():
        if isinstance(given, Tensor):
            yield name, f"a tensor of shape {tuple(given.shape)}"
        elif given:
            yield name, given


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Union[int, Tensor] = 0,
    kv_offset: int = 0,
    attention_mask: Union[Tensor, LocalMask, None] = None,
    local_size: Optional[int] = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    config: Any = None,
    fallback: Optional[str] = None,
    **kwargs: Any,
) -> Union[Tensor, LocalMask, None]:
    """The mask function of a model: None or a LocalMask for a mask that FlashJIT can express. attention_mask is
    False at padding, bool [batch, seqlen], or what this function has made before. By the two skips transformers says
    whether the mask is causal, or full, but for window and padding.
    """
    if isinstance(attention_mask, LocalMask):
        return attention_mask
    chunked = getattr(config, "attention_chunk_size", None) is not None
    sees_all = _sees_all(kv_length, kv_offset, local_size, chunked)
    nearby = _local_mask(kv_length, q_offset, kv_offset, local_size, config) if allow_is_causal_skip else None
    # Padding before the keys of the layer moves the chunks.
    first_of_mask = 0 if nearby and nearby.chunk else kv_offset
    obstacle = (
        _obstacle_of_cache(q_length, kv_length, q_offset, kv_offset, full=allow_is_bidirectional_skip)
        or _obstacle_of_pattern(allow_is_causal_skip or allow_is_bidirectional_skip)
        or _obstacle_of_locality(kv_offset + kv_length, local_size, sees_all or nearby is not None)
        or _obstacle_of_padding(attention_mask, first_of_mask, kv_offset + kv_length)
    )
    if obstacle is None:
        return None if sees_all else nearby
    if fallback is None:
        _refuse_mask(obstacle)
    which = {"attention_mask": attention_mask, "local_size": local_size}
    in_memory = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset, **which, **in_memory, **kwargs)


def _obstacle_of_cache(
    q_length: int, kv_length: int, q_offset: Union[int, Tensor], kv_offset: int, full: bool
) -> Optional[str]:
    """The causal mask is aligned bottom-right: the last query must stand at the last key."""
    if isinstance(q_offset, Tensor) or not (full or kv_length == q_offset + q_length - kv_offset):
        return "past_key_values: must be a cache that grows with the sequence (DynamicCache), was one of fixed size"
    return None


def _sees_all(kv_length: int, kv_offset: int, local_size: Optional[int], chunked: bool) -> bool:
    """A window over all keys is none; a chunk is over all keys only as long as it is the first."""
    return local_size is None or (kv_length <= local_size and not (chunked and kv_offset > 0))


def _local_mask(
    kv_length: int, q_offset: Union[int, Tensor], kv_offset: int, local_size: Optional[int], config: Any
) -> Optional[LocalMask]:
    """Of a causal mask: the config says by its sizes whether local_size is that of a window, in which a query sees its
    own key and the local_size - 1 before it, or that of chunks. None where it does not say so, or says both."""
    if isinstance(q_offset, Tensor) or local_size is None or local_size <= 0:
        return None
    slides, chunked = (local_size == getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    if slides and not chunked:
        return LocalMask(kv_length, window=(local_size - 1, 0))
    first = q_offset // local_size * local_size - kv_offset
    return LocalMask(kv_length, chunk=local_size, first=first) if chunked and not slides and first >= 0 else None


def _obstacle_of_locality(tokens: int, local_size: Optional[int], is_expressible: bool) -> Optional[str]:
    if is_expressible:
        return None
    return (
        "local attention: must be a causal sliding window or causal chunks, of the size that the config gives, or over "
        f"all {tokens} tokens, was over {local_size}; pass fewer tokens"
    )


def _obstacle_of_pattern(plain: bool) -> Optional[str]:
    if plain:
        return None
    return "mask: must be causal or full, has more to it here, such as packed sequences, images or a static cache"


def _obstacle_of_padding(unpadded: Optional[Tensor], begin: int, end: int) -> Optional[str]:
    if unpadded is None:
        return None
    if torch.compiler.is_compiling():
        return "attention_mask: must be None in a compiled model, where nothing can look for padding in it"
    if not unpadded[:, begin:end].all():
        return "attention_mask: must have no padding; pass sequences of one length, or one at a time"
    return None
