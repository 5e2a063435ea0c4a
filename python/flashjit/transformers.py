# SPDX-License-Identifier: Apache-2.0
"""FlashJIT for transformers 5: after register(), models take attn_implementation="flashjit".

FlashJIT computes full and causal attention over all keys, and causal attention in a sliding window or in chunks, of
scores that may be capped, with or without attention sinks. A mask that is one of these costs nothing; every other one
(padding, packed sequences, static caches) is refused, or read from memory, or left to SDPA. Continuous batching needs no
masks: its sequences are those of a ragged batch, and where each has one new token their keys are read in their pages."""

import functools
import inspect
from typing import Any, Callable, Iterator, NamedTuple, Optional, Union

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, ContinuousBatchingManager, PreTrainedModel
from transformers import __version__ as _transformers_version
from transformers.generation.continuous_batching import PagedAttentionCache, initialization
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import flashjit
from flashjit.torch import attention

__all__ = ["register"]

NAME = "flashjit"
# What models are told instead: transformers takes any name with "flash" in it for a package of FlashAttention, which it
# wants to load, and which finds packed sequences by itself.
_INTERNAL_NAME = "fjit"
# While continuous batching has the model, which makes no masks for such names.
_PACKED_NAME = "flashjit_packed"

# Arguments of attention functions that change the result, and why they are refused. SDPA drops some of them silently.
_NOT_COMPUTED = {
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
    if "kwargs" in inspect.signature(PagedAttentionCache.update).parameters:  # since 5.19
        _batch_continuously()


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
        if attn_implementation == _PACKED_NAME:
            return _PACKED_NAME
        ours = attn_implementation in (NAME, f"paged|{NAME}")
        return correct(self, _INTERNAL_NAME if ours else attn_implementation, *args, **kwargs)

    _wrap(PreTrainedModel, method, corrected)


def _batch_continuously() -> None:
    """A model with _INTERNAL_NAME has _PACKED_NAME while a manager of continuous batching runs, which then makes block
    tables: else it does so for FlashAttention only."""

    def switched(switch, manager, model, *args, **kwargs):
        if model.config._attn_implementation == _INTERNAL_NAME:
            model.set_attn_implementation(_PACKED_NAME)
            manager._original_attn_impl = _INTERNAL_NAME  # what it goes back to
        switch(manager, model, *args, **kwargs)

    def ensured(ensure, config, cb_config, *args):
        if config._attn_implementation != _PACKED_NAME:
            return ensure(config, cb_config, *args)
        _leave_out_graphs(cb_config)

    AttentionInterface.register(_PACKED_NAME, packed_attention_forward)
    _wrap(ContinuousBatchingManager, "switch_to_cb_friendly_attn", switched)
    _wrap(initialization, "ensure_decode_fast_path_is_available", ensured)


def _leave_out_graphs(cb_config: Any) -> None:
    """Before transformers decides, who captures graphs for names with "flash" in them. Replayed ones gave wrong tokens:
    docs/pytorch.md, "Continuous batching"."""
    if any(cb_config.cuda_graph_booleans):
        raise flashjit.Unsupported(
            "continuous_batching_config: use_cuda_graph must be False or None beside "
            f"attn_implementation={NAME!r}, was {cb_config.use_cuda_graph}"
        )
    cb_config.use_cuda_graph = False


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
    _refuse_what_is_not_computed(**kwargs)
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    options = {"scale": scaling, "softcap": softcap, "sinks": None if s_aux is None else s_aux.float()}
    if dropout:
        options |= {"dropout": dropout, "dropout_state": _random_state(query.device)}
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
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
    )


def _random_state(device: torch.device) -> Tensor:
    """Seed and offset of dropout, of PyTorch's generator: checkpoints draw the same ones again."""
    return torch.randint(torch.iinfo(torch.int64).max, (2,), dtype=torch.int64, device=device)


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


def packed_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: Optional[float] = None,
    softcap: Optional[float] = None,
    s_aux: Optional[Tensor] = None,
    cu_seq_lens_q: Optional[Tensor] = None,
    cache: Optional[PagedAttentionCache] = None,
    **kwargs: Any,
) -> "tuple[Tensor, None]":
    """The attention function of continuous batching: query is [1, heads_q, total, head_dim], sequences one behind the
    other, whose keys may begin before. Returns [1, total, heads_q, head_dim_v] and no weights.

    Until transformers 5.24, where models do so themselves, it is given the cache to update: that writes key and value
    and gives all keys and values of the sequences, or, where there is a block table, what says where they are.
    """
    if cu_seq_lens_q is None:
        raise flashjit.Unsupported(
            "cu_seq_lens_q: must be given while continuous batching has the model, was None; stop its manager first"
        )
    _refuse_what_is_not_computed(**kwargs)
    if cache is not None:
        key, value = cache.update(key, value, module.layer_idx, kwargs=kwargs)
    q, k, v = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))  # [total, heads, head_dim]
    options = {"scale": scaling, "softcap": softcap, "sinks": None if s_aux is None else s_aux.float()}
    if kwargs.get("block_table") is not None:
        where = {name: kwargs[name] for name in ("cu_seq_lens_k", "block_table", "k_cache", "v_cache")}
        return _attention_over_pages(q, k, v, **where, **options).transpose(0, 1), None
    out = attention(
        q, k, v, causal=True, window=_window_of_layer(module), cu_seqlens_q=cu_seq_lens_q,
        cu_seqlens_kv=kwargs["cu_seq_lens_k"], max_seqlen_q=kwargs["max_length_q"],
        max_seqlen_kv=kwargs["max_length_k"], **options,
    )  # fmt: skip
    return out.unsqueeze(0), None


def _window_of_layer(module: torch.nn.Module) -> "Optional[tuple[int, int]]":
    """By the config, which the cache goes by, too, when it drops keys."""
    size, types = (getattr(module.config, name, None) for name in ("sliding_window", "layer_types"))
    slides = size is not None if types is None else types[module.layer_idx] == "sliding_attention"
    return (size - 1, 0) if slides else None


def _attention_over_pages(
    q: Tensor, k: Tensor, v: Tensor, cu_seq_lens_k: Tensor, block_table: Tensor, k_cache: Tensor, v_cache: Tensor,
    **options: Any,
) -> Tensor:  # fmt: skip
    """Of one token of each sequence, [sequences, heads, head_dim], whose key and value are not in the cache yet. Returns
    [sequences, 1, heads_q, head_dim_v]."""
    lengths = cu_seq_lens_k.diff()  # with that token; 0 for sequences that pad the batch
    # These write once more what the first one does.
    writer = torch.arange(len(lengths), device=lengths.device).where(lengths > 0, 0)
    place = (lengths[writer] - 1).unsqueeze(1)
    page_size = k_cache.shape[1]
    page = block_table[writer].gather(1, place.long() // page_size)
    k_cache[page, place % page_size] = k[writer].unsqueeze(1)
    v_cache[page, place % page_size] = v[writer].unsqueeze(1)
    return attention(
        q.unsqueeze(1), k_cache, v_cache, causal=True, page_table=block_table, seqused_kv=lengths, **options
    )


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
