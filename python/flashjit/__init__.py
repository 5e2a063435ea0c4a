# SPDX-License-Identifier: Apache-2.0
"""Attention on NVIDIA GPUs, by kernels that are compiled when they are first needed.

>>> out = flashjit.attention(q, k, v, causal=True)

where q, k and v are [batch, seqlen, heads, head_dim], of PyTorch, CuPy, JAX or any library that speaks DLPack.
"""

from __future__ import annotations

import importlib
import operator
import os
import pathlib
from typing import Any, Iterable, Sequence, Union

from . import _arrays, _core
from ._core import attention
from ._errors import (CacheMiss, CommunicationError, CompileFailed, DriverError, Error, InvalidArgument, IOFailure,
                      KernelFault, NoCompiler, NoDevice, NoDriver, Unsupported)
from ._functions import AnyMask, AnyScore, Mask, Score, to_function
from ._wheels import find_bundles, find_nvrtc

__all__ = [
    "CacheMiss", "CommunicationError", "CompileFailed", "DriverError", "Engine", "Error", "IOFailure",
    "InvalidArgument", "KernelFault", "Mask", "NoCompiler", "NoDevice", "NoDriver", "Plan", "Score", "Unsupported",
    "__version__", "append", "attention", "attention_backward", "block_mask", "counters", "dropout_mask",
    "library_path", "merge", "plan", "prepare", "prepare_backward", "quantize", "reference", "reference_backward"
]

__version__: str = _core.version()

_Path = Union[str, "os.PathLike[str]"]


class Engine(_core.Engine):
    """Compiles kernels, keeps them and launches them.

    An option that is None is what the environment says (FLASHJIT_POLICY, FLASHJIT_CACHE_DIR, ...). An engine for GPUs
    keeps its kernels loaded until the process ends, as they may still be running when its last reference goes.

    Parameters
    ----------
    policy : "compile", "cache_only" or "off"
    cache_directory : path
        "" keeps kernels in memory only.
    bundles : path or sequence of paths
        When None, FLASHJIT_BUNDLES and those of the wheel flashjit-kernels, where that is installed; an empty
        FLASHJIT_BUNDLES turns these off.
    tuning : "off", "recorded", "on_first_use" or "frozen"
    emulate : str
        An architecture, "sm_90a": kernels run on the CPU, on arrays in host memory.
    nvrtc_path : path
        When None, FLASHJIT_NVRTC, else the one in this interpreter's nvidia wheels, else the library searches.
    """

    def __init__(self, policy: str | None = None, cache_directory: _Path | None = None,
                 bundles: _Path | Iterable[_Path] | None = None, tuning: str | None = None,
                 emulate: str | None = None, nvrtc_path: _Path | None = None) -> None:
        for name, word in (("policy", policy), ("tuning", tuning), ("emulate", emulate)):
            if word is not None and not isinstance(word, str):
                raise InvalidArgument(f"{name}: must be a str or None, was {word!r:.100}")
        super().__init__(policy=policy, cache_directory=_to_text("cache_directory", cache_directory),
                         bundles=find_bundles() if bundles is None else _join(bundles), tuning=tuning,
                         emulate=emulate, nvrtc_path=_to_text("nvrtc_path", nvrtc_path) or find_nvrtc())

    def prepare(self, dtype: Any, head_dim: int, head_dim_v: int | None = None, causal: bool = False,
                device: int = -1, *, window: bool = False, chunk: bool = False, softcap: bool = False,
                alibi: bool = False, sinks: bool = False, bias: Any = None, boolean_mask: bool = False,
                documents: bool = False, prefix: bool = False, tree: bool = False, score: AnyScore | None = None,
                mask: AnyMask | None = None, block_mask: bool = False, dropout: bool = False,
                dropout_mask: bool = False, ragged: bool = False, paged: bool = False, e4m3: bool = False,
                token_scales: bool = False, e4m3_queries: bool = False, fast_sums: bool = False,
                block_scales: bool = False, k_rotary: bool = False, latent: bool = False,
                values_transposed: bool = False, out_e4m3: bool = False, e5m2: bool = False) -> None:
        """As flashjit.prepare, with this engine."""
        prepare(dtype, head_dim, head_dim_v, causal, device, engine=self, window=window, chunk=chunk, softcap=softcap,
                alibi=alibi, sinks=sinks, bias=bias, boolean_mask=boolean_mask, documents=documents, prefix=prefix,
                tree=tree, score=score, mask=mask, block_mask=block_mask, dropout=dropout, dropout_mask=dropout_mask,
                ragged=ragged, paged=paged, e4m3=e4m3, token_scales=token_scales, e4m3_queries=e4m3_queries,
                fast_sums=fast_sums, block_scales=block_scales, k_rotary=k_rotary, latent=latent,
                values_transposed=values_transposed, out_e4m3=out_e4m3, e5m2=e5m2)

    def prepare_backward(self, dtype: Any, head_dim: int, head_dim_v: int | None = None, causal: bool = False,
                         device: int = -1, *, dbias: bool = False, dslopes: bool = False, dsinks: bool = False,
                         deterministic: bool = False, float32: bool = False, window: bool = False,
                         chunk: bool = False, softcap: bool = False, alibi: bool = False, sinks: bool = False,
                         bias: Any = None, boolean_mask: bool = False, documents: bool = False, prefix: bool = False,
                         tree: bool = False, score: AnyScore | None = None, mask: AnyMask | None = None,
                         dropout: bool = False, dropout_mask: bool = False, ragged: bool = False) -> None:
        """As flashjit.prepare_backward, with this engine."""
        prepare_backward(dtype, head_dim, head_dim_v, causal, device, engine=self, dbias=dbias, dslopes=dslopes,
                         dsinks=dsinks, deterministic=deterministic, float32=float32, window=window, chunk=chunk,
                         softcap=softcap, alibi=alibi, sinks=sinks, bias=bias, boolean_mask=boolean_mask,
                         documents=documents, prefix=prefix, tree=tree, score=score, mask=mask, dropout=dropout,
                         dropout_mask=dropout_mask, ragged=ragged)

    def block_mask(self, q: Any, k: Any, *, boolean_mask: Any = None, documents: Any = None, tree: Any = None,
                   mask: AnyMask | None = None, query_offsets: Any = None, key_offsets: Any = None, into: Any = None,
                   stream: Any = None) -> Any:
        """As flashjit.block_mask, with this engine."""
        return block_mask(q, k, boolean_mask=boolean_mask, documents=documents, tree=tree, mask=mask,
                          query_offsets=query_offsets, key_offsets=key_offsets, into=into, stream=stream, engine=self)

    def plan(self, q: Any, k: Any, v: Any, *, memory: Any = None, stream: Any = None, **options: Any) -> Plan:
        """As flashjit.plan, with this engine."""
        return plan(q, k, v, memory=memory, stream=stream, engine=self, **options)

    def attention_backward(self, dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, dlse: Any = None,
                           dq: Any = None, dk: Any = None, dv: Any = None, dbias: Any = None, dslopes: Any = None,
                           dsinks: Any = None, deterministic: bool = False, stream: Any = None,
                           **options: Any) -> tuple[Any, ...]:
        """As flashjit.attention_backward, with this engine."""
        into = {"dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dslopes": dslopes, "dsinks": dsinks}
        return _arrays.attention_backward(dout, q, k, v, out, lse, dlse, into, deterministic, stream, self, options)

    def reference(self, q: Any, k: Any, v: Any, **options: Any) -> tuple[Any, Any]:
        """As flashjit.reference, with this engine."""
        return _arrays.reference(q, k, v, self, options)

    def reference_backward(self, dout: Any, q: Any, k: Any, v: Any, *, dlse: Any = None, dbias: bool = False,
                           dslopes: bool = False, dsinks: bool = False, **options: Any) -> tuple[Any, ...]:
        """As flashjit.reference_backward, with this engine."""
        asked = {"dbias": dbias, "dslopes": dslopes, "dsinks": dsinks}
        return _arrays.reference_backward(dout, q, k, v, dlse, self, asked, options)

    def merge(self, parts: Sequence[tuple[Any, Any]], *, out: Any = None, lse: Any = None,
              stream: Any = None) -> tuple[Any, Any]:
        """As flashjit.merge, with this engine."""
        return merge(parts, out=out, lse=lse, stream=stream, engine=self)

    def append(self, k: Any, v: Any, k_cache: Any, v_cache: Any, *, slots: Any = None, seqused_kv: Any = None,
               cu_seqlens: Any = None, page_table: Any = None, batch_indices_kv: Any = None, leftpad_kv: Any = None,
               rotary_cos: Any = None, rotary_sin: Any = None, rotary_interleaved: bool = False,
               positions: Any = None, q: Any = None, q_out: Any = None, k_scale: Any = None, v_scale: Any = None,
               k_rotary: Any = None, k_rotary_cache: Any = None, stream: Any = None) -> Any:
        """As flashjit.append, with this engine."""
        return append(k, v, k_cache, v_cache, slots=slots, seqused_kv=seqused_kv, cu_seqlens=cu_seqlens,
                      page_table=page_table, batch_indices_kv=batch_indices_kv, leftpad_kv=leftpad_kv,
                      rotary_cos=rotary_cos, rotary_sin=rotary_sin, rotary_interleaved=rotary_interleaved,
                      positions=positions, q=q, q_out=q_out, k_scale=k_scale, v_scale=v_scale, k_rotary=k_rotary,
                      k_rotary_cache=k_rotary_cache, stream=stream, engine=self)

    def quantize(self, x: Any, *, scale_of: str = "head", block_size: int = 0, scale_is_given: bool = False,
                 rotation_seed: int | None = None, rotary_cos: Any = None, rotary_sin: Any = None,
                 rotary_interleaved: bool = False, positions: Any = None, out: Any = None, scale: Any = None,
                 dtype: Any = None, stream: Any = None) -> tuple[Any, Any]:
        """As flashjit.quantize, with this engine."""
        return quantize(x, scale_of=scale_of, block_size=block_size, scale_is_given=scale_is_given,
                        rotation_seed=rotation_seed, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
                        rotary_interleaved=rotary_interleaved, positions=positions, out=out, scale=scale,
                        dtype=dtype, stream=stream, engine=self)

    def counters(self) -> dict[str, int]:
        """As flashjit.counters, of this engine."""
        return _core.counters(self)


class Plan(_core.Plan):
    """The list of tiles of a ragged batch, which flashjit.plan makes for flashjit.attention(..., plan=).

    It keeps the caller's memory and its engine alive. Calls with it must follow one another on the device, as on one
    stream; no thread may update it while others call. They must have finished on the device before memory of the caller
    is used otherwise.

    Attributes
    ----------
    problem : str
        What is compiled in, "fwd-bf16-d128-causal-ragged".
    variant : str
        The kernel of its calls, as variant= takes it.
    words : int
        Its memory, in int32.
    """

    _engine: Engine | None = None
    _memory: Any = None

    def update(self, q: Any, k: Any, v: Any, *, stream: Any = None, **options: Any) -> None:
        """Make it anew in place, of what offsets, lengths, padding and indices say when the stream comes to it.

        One kernel on the stream, which a CUDA graph may capture. Arguments are as of flashjit.plan, for the sizes that
        it was made for.
        """
        _ = self.problem  # an empty one is refused
        _arrays.plan(self, q, k, v, self._memory, stream, self._engine, options, "update")


def plan(q: Any, k: Any, v: Any, *, memory: Any = None, stream: Any = None, engine: Engine | None = None,
         **options: Any) -> Plan:
    """Make the list of tiles of a ragged batch once, for any number of calls: all layers of a serving step.

    >>> plan = flashjit.plan(q, k, v, causal=True, cu_seqlens_q=starts, cu_seqlens_kv=starts)
    >>> out = flashjit.attention(q, k, v, causal=True, cu_seqlens_q=starts, cu_seqlens_kv=starts, plan=plan)

    Such a call makes no list, allocates nothing for one, and launches attention alone, or where keys are split and tiles
    have more than 16 rows, that and what combines them. Partial results have memory in the plan, also in one of equally
    long sequences, so calls with the same plan must follow one another on the device. The list is made on the stream, of what the lengths say then; the kernels that the calls need are made, too. A call must
    have the same options as here, those that are numbers and arrays with whatever values, and the same sizes.

    Parameters
    ----------
    q, k, v : arrays, as those of the calls
        Their elements are not read. Of head dims above 256 v is a view of the first columns of k for all of them or none.
    memory : array [words] of int32
        For the list and partial results, on the device of q, contiguous and aligned to 16 bytes; Plan.words says how
        many a plan for these sizes has, and there may be more. Nobody else may write to it as long as calls have the
        plan. Memory of the library's pool when None.
    stream, engine :
        As of flashjit.attention.
    options :
        As of flashjit.attention, without plan, out and lse.
    """
    made = Plan()
    _arrays.plan(made, q, k, v, memory, stream, engine, options, "plan")
    made._engine, made._memory = engine, memory
    return made


def attention_backward(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, dlse: Any = None, dq: Any = None,
                       dk: Any = None, dv: Any = None, dbias: Any = None, dslopes: Any = None, dsinks: Any = None,
                       deterministic: bool = False, stream: Any = None, engine: Engine | None = None,
                       **options: Any) -> tuple[Any, ...]:
    """Gradients (dq, dk, dv) of a number that depends on what flashjit.attention gave, on out by dout.

    >>> out, lse = flashjit.attention(q, k, v, causal=True, lse=True)
    >>> dq, dk, dv = flashjit.attention_backward(dout, q, k, v, out, lse, causal=True)

    Heads of keys and values get the sums of their groups' gradients. Probabilities are computed anew from scores and
    lse: with scores beyond 2**17 in magnitude, at head dim 512 beyond 2**14, gradients lose digits, and far beyond they
    are wrong, so hide keys by masks and not by a bias of -1e9.

    Parameters
    ----------
    dout : array, as out
    q, k, v : arrays, as those of the call
        float16 or bfloat16.
    out, lse : arrays
        What the call returned, with lse=True.
    dlse : array, as lse
        By which the number depends on lse. None: not.
    dq, dk, dv : arrays, or False
        Written, and returned; new arrays of q's library and dtype when None. dk and dv may be given in float32, and
        a new one beside it has that, too.
        Not computed when False, and None is returned for it.
    dbias, dslopes, dsinks : arrays, or True
        Gradients of bias, alibi_slopes and sinks, each the sum over all that a number stands for. Written, and returned
        behind dv in this order; new arrays like the options when True. dbias may be given in float32, too; dslopes and
        dsinks are float32. Not computed, and not returned, when None.
    deterministic : bool
        All of them are the same, bit by bit, in every run with the same inputs. False: dq, and dbias of a bias that
        several batch entries, heads or queries share, are sums in any order, whose last bits may differ. True refuses
        the latter: Unsupported.
    stream, engine :
        As of flashjit.attention.
    options :
        Those of the call, without out, lse, plan and fixed_split_size; variant is one of the backward kernels,
        "mma-q64-kv128-w8-r1-s1" or "hopper-q64-kv128". Above head dim 256 it is one like "mma-q64-kv64-w8-r2-s2", or
        on sm_90a "hopper-q64-kv64" of equal head dims below masks that are spans of keys. A score is differentiated by
        the score alone: what it captures gets no gradient. There are no backward kernels yet for batch_indices_kv and
        page_table: Unsupported. Keys and values of no sequence get gradients of 0.
    """
    into = {"dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dslopes": dslopes, "dsinks": dsinks}
    return _arrays.attention_backward(dout, q, k, v, out, lse, dlse, into, deterministic, stream, engine, options)


def reference(q: Any, k: Any, v: Any, *, engine: Engine | None = None, **options: Any) -> tuple[Any, Any]:
    """What flashjit.attention computes, on the CPU in double precision: (out, lse), NumPy arrays of float64.

    >>> out, lse = flashjit.reference(q, k, v, causal=True)

    Parameters
    ----------
    q, k, v : arrays in host memory
        float16, bfloat16, float32 or float64, k and v also float8_e4m3fn or float8_e5m2, and q beside these, of any
        head_dim.
    engine :
        Its device applies score and mask, which are texts; nothing else needs one. The default engine when None.
    options :
        As of flashjit.attention, without plan, out, lse and stream; those that are arrays in host memory. variant and
        block_mask make no difference, and scale and softcap are of float32, as kernels have them.
    """
    return _arrays.reference(q, k, v, engine, options)


def reference_backward(dout: Any, q: Any, k: Any, v: Any, *, dlse: Any = None, dbias: bool = False,
                       dslopes: bool = False, dsinks: bool = False, engine: Engine | None = None,
                       **options: Any) -> tuple[Any, ...]:
    """Gradients (dq, dk, dv) of a number that depends on what flashjit.reference gives by dout, and on lse by dlse.

    NumPy arrays of float64. Arguments are as there; dout is of any of those dtypes, dlse of float32 or float64. A score
    that is a text is differentiated by dual numbers of float64. With dbias, dslopes and dsinks the gradients of bias,
    alibi_slopes and sinks are returned behind dv, in this order.
    """
    asked = {"dbias": dbias, "dslopes": dslopes, "dsinks": dsinks}
    return _arrays.reference_backward(dout, q, k, v, dlse, engine, asked, options)


def block_mask(q: Any, k: Any, *, boolean_mask: Any = None, documents: Any = None, tree: Any = None,
               mask: AnyMask | None = None, query_offsets: Any = None, key_offsets: Any = None, into: Any = None,
               stream: Any = None, engine: Engine | None = None) -> Any:
    """Which blocks of keys these masks hide, for flashjit.attention(..., block_mask=): it passes over them then.

    >>> blocks = flashjit.block_mask(q, k, documents=documents)
    >>> out = flashjit.attention(q, k, v, documents=documents, block_mask=blocks)

    It is for all calls with the same of these arguments and the same lengths as q and k, whose elements are not read:
    for every layer of a model. Without it the output is the same but for rounding.

    Parameters
    ----------
    q, k : arrays, as those of the calls
    boolean_mask, documents, tree, mask, query_offsets, key_offsets :
        As of flashjit.attention; at least one of the first four.
    into : array of int32
        Written, and returned; a new array of q's library when None, of batch size 1 or for 1 head where none of the
        masks tells batch entries or heads apart. One given must have the shape of one made.
    stream, engine :
        As of flashjit.attention.
    """
    masks = {"boolean_mask": boolean_mask, "documents": documents, "tree": tree}
    offsets = {"query_offsets": query_offsets, "key_offsets": key_offsets}
    return _arrays.block_mask(q, k, **masks, **offsets, mask=to_function(Mask, mask), into=into, stream=stream,
                              engine=engine)


def merge(parts: Sequence[tuple[Any, Any]], *, out: Any = None, lse: Any = None, stream: Any = None,
          engine: Engine | None = None) -> tuple[Any, Any]:
    """Join attention over parts of the keys to attention over all of them: (out, lse).

    >>> prefix = flashjit.attention(q, k_prefix, v_prefix, lse=True)
    >>> suffix = flashjit.attention(q, k_suffix, v_suffix, causal=True, lse=True)
    >>> out, lse = flashjit.merge([prefix, suffix])

    Parameters
    ----------
    parts : pairs of arrays, at least one
        out (batch, seqlen_q, heads, head_dim_v) in float16, bfloat16 or float32, the same for all, and lse (batch,
        heads, seqlen_q) in float32, as flashjit.attention returns them. A stride may be 0, for what rows share. Where
        a row saw no key its lse is -infinity, and its out is not looked at. Sinks belong to one part alone.
    out, lse : arrays
        Written, and returned; new arrays of the library of the first part, out in the dtype of the parts, when None.
        An out of another dtype is rounded to that. They may be those of a part, which is then joined in place. With
        more than 16 parts a 16-bit out is rounded every 15 parts, is of the dtype of the parts, and what is joined in
        place is among the first 16.
    stream, engine :
        As of flashjit.attention.
    """
    return _arrays.merge(parts, out, lse, stream, engine)


def append(k: Any, v: Any, k_cache: Any, v_cache: Any, *, slots: Any = None, seqused_kv: Any = None,
           cu_seqlens: Any = None, page_table: Any = None, batch_indices_kv: Any = None, leftpad_kv: Any = None,
           rotary_cos: Any = None, rotary_sin: Any = None, rotary_interleaved: bool = False, positions: Any = None,
           q: Any = None, q_out: Any = None, k_scale: Any = None, v_scale: Any = None, k_rotary: Any = None,
           k_rotary_cache: Any = None, stream: Any = None, engine: Engine | None = None) -> Any:
    """Write new keys and values into the cache that attention reads, turned by their positions or as they are.

    >>> q = flashjit.append(k, v, k_pages, v_pages, slots=slots, rotary_cos=cos, rotary_sin=sin, positions=positions,
    ...                     q=q)

    One launch, which reads all that says where on the device. Where anything points outside of the caches nothing is
    written.

    Parameters
    ----------
    k : array [batch, seqlen, heads_kv, head_dim]
    v : array [batch, seqlen, heads_kv, head_dim_v]
        float16 or bfloat16. Beside slots or cu_seqlens also [total, heads_kv, ...].
    k_cache, v_cache : arrays [pages, page_size, heads_kv, ...]
        Written. Without pages [batch, seqlen, heads_kv, ...]. Any strides, but a contiguous last dimension. The dtype
        of k, or float8_e4m3fn or float8_e5m2, into which numbers are rounded, at most to 448 or 57344 (compute
        capability 8.9 or more).
    slots : array [total]
        int32 or int64: token t goes to row slots[t] % page_size of page slots[t] // page_size; negative: nowhere. Beside
        none of the following five.
    seqused_kv : array [batch]
        int32: the rows of each sequence with its new tokens, which are the last of them: the same as for the
        flashjit.attention of the step. Must be given without slots.
    cu_seqlens : array [batch + 1]
        int32: sequence b has the new tokens from cu_seqlens[b] to cu_seqlens[b + 1], where k and v are packed.
    page_table : array [batch, entries]
        int32: row r of sequence b is row r % page_size of page [b, r // page_size].
    batch_indices_kv : array [batch]
        int32: the batch entry of the caches, or the row of the table, of each sequence.
    leftpad_kv : array [batch]
        int32: rows before a sequence's first key. Not beside page_table.
    rotary_cos, rotary_sin : arrays [positions, rotary_dim // 2]
        float16, bfloat16 or float32: each pair (x, y) of the first rotary_dim elements of a row of k, and of q, becomes
        (x cos - y sin, y cos + x sin), in float32. Nothing turns when None.
    rotary_interleaved : bool
        Pairs are elements 2 i and 2 i + 1, as in GPT-J, and not i and i + rotary_dim // 2, as in GPT-NeoX.
    positions : array [total]
        int32 or int64, of each token. Must be given beside slots. Its place in its sequence when None.
    q : array [batch, seqlen, heads_q, head_dim], or [total, heads_q, head_dim]
        Queries of the same tokens, which turn as k does; beside k_rotary their last columns, q[..., head_dim:].
    q_out : array, as q
        Written, and returned; may be q itself. A new array of q's library when None, whose rows of tokens that go
        nowhere are not written.
    k_scale, v_scale : arrays
        float32, for caches of 8 bits, as flashjit.attention takes them. [1] or [heads_kv]: rows are divided by
        them. k_cache without its last dimension: written, of each row the largest finite magnitude over 448, of
        float8_e5m2 57344. Both or none; 1 when None.
    k_rotary : array, as k but for the head dim
        The last columns of keys, which turn in place of k, in k's dtype.
    k_rotary_cache : array [pages, page_size, heads_kv, rotary_dim]
        Written: k_rotary of flashjit.attention. Beside it v and v_cache may be k and k_cache, and v_scale k_scale, as
        caches of MLA have it. Both or none.
    stream, engine :
        As of flashjit.attention.
    """
    tensors = {"slots": slots, "seqused_kv": seqused_kv, "cu_seqlens": cu_seqlens, "page_table": page_table,
               "batch_indices_kv": batch_indices_kv, "leftpad_kv": leftpad_kv, "rotary_cos": rotary_cos,
               "rotary_sin": rotary_sin, "positions": positions, "q": q, "k_scale": k_scale, "v_scale": v_scale,
               "k_rotary": k_rotary}
    return _arrays.append(k, v, k_cache, v_cache, q_out, k_rotary_cache, rotary_interleaved, stream, engine, tensors)


def quantize(x: Any, *, scale_of: str = "head", block_size: int = 0, scale_is_given: bool = False,
             rotation_seed: int | None = None, rotary_cos: Any = None, rotary_sin: Any = None,
             rotary_interleaved: bool = False, positions: Any = None, out: Any = None, scale: Any = None,
             dtype: Any = None, stream: Any = None, engine: Engine | None = None) -> tuple[Any, Any]:
    """Make queries, keys or values float8_e4m3fn or float8_e5m2: (out, scale), x being about out times its scale.

    >>> q8, q_scale = flashjit.quantize(q, scale_of="block", block_size=128, rotation_seed=7)

    Takes compute capability 8.9 or more.

    Parameters
    ----------
    x : array [batch, seqlen, heads, head_dim], or [total, heads, head_dim]
        float16 or bfloat16. head_dim is a multiple of 16 up to 256.
    scale_of : "head", "tensor" or "block"
        What has a scale of its own, the largest magnitude there over 448, of float8_e5m2 57344, or 1 where all is 0:
        each head of a batch entry, all of x, or of a head block_size rows.
    block_size : int
        Rows of a block; 0 unless scale_of is "block".
    scale_is_given : bool
        Whether scale is read in place of being written: positive numbers.
    rotation_seed : int
        Each row is multiplied by the random signs of this seed and a Hadamard matrix, which spreads outliers; the same
        seed for queries and keys leaves their products as they were. Not when None.
    rotary_cos, rotary_sin, rotary_interleaved, positions :
        As of flashjit.append: x turns first. positions has one for each token, and must be given for x of three
        dimensions; a row's place in its batch entry when None.
    out : array, as x
        float8_e4m3fn, float8_e5m2, or uint8 for bytes of dtype. A new one of x's library when None, of uint8 where that
        has no such dtype.
    scale : array
        float32: [batch, heads], [1] or [batch, heads, ceil(seqlen / block_size)]; of x of three dimensions without the
        first. A new one when None.
    dtype : "float8_e4m3fn", "float8_e5m2", or what a library has for them
        Of out, which may be new or of bytes. That of out when None, and of others float8_e4m3fn.
    stream, engine :
        As of flashjit.attention.
    """
    tensors = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "positions": positions}
    return _arrays.quantize(x, scale_of, block_size, scale_is_given, rotation_seed, rotary_interleaved, out, scale,
                            dtype, stream, engine, tensors)


def prepare(dtype: Any, head_dim: int, head_dim_v: int | None = None, causal: bool = False, device: int = -1,
            engine: Engine | None = None, *, window: bool = False, chunk: bool = False, softcap: bool = False,
            alibi: bool = False, sinks: bool = False, bias: Any = None, boolean_mask: bool = False,
            documents: bool = False, prefix: bool = False, tree: bool = False, score: AnyScore | None = None,
            mask: AnyMask | None = None, block_mask: bool = False, dropout: bool = False,
            dropout_mask: bool = False, ragged: bool = False, paged: bool = False, e4m3: bool = False,
            token_scales: bool = False, e4m3_queries: bool = False, fast_sums: bool = False,
            block_scales: bool = False, k_rotary: bool = False, latent: bool = False,
            values_transposed: bool = False, out_e4m3: bool = False, e5m2: bool = False) -> None:
    """Make and load every kernel that calls for this problem may need: after it they compile and read nothing.

    >>> flashjit.prepare("bfloat16", 128, causal=True, bias="float32")

    Parameters
    ----------
    dtype : "float16", "bfloat16", or what a library has for them: torch.bfloat16
    head_dim_v : int
        head_dim when None.
    causal : bool
        Whether calls have causal=True, or a window with nothing on the right.
    device : int
        -1 is the one of the current CUDA context, or 0.
    window : bool
        Whether calls have a window, of whatever size; (-1, 0) is none, but a causal mask.
    chunk : bool
        Whether calls have a chunk, of whatever size.
    softcap : bool
        Whether calls have a softcap, of whatever value; 0 is none.
    alibi : bool
        Whether calls have alibi_slopes.
    sinks : bool
        Whether calls have sinks.
    bias : "float16", "bfloat16", "float32", or what a library has for them
        The dtype of the bias that calls have; they have none when None.
    boolean_mask, documents, tree : bool
        Whether calls have these.
    prefix : bool
        Whether calls have a prefix, with causal=True or without.
    score : flashjit.Score or str
    mask : flashjit.Mask or str
        As calls have them, with captures of the same types: arrays of the same dtype and rank, with a contiguous last
        dimension or without, floats and ints. Their values and shapes may be others, and their memory is not read.
    block_mask : bool
        Whether calls have a block_mask, beside what it is made of. The kernel that makes one is made, too.
    dropout : bool
        Whether calls have dropout, of whatever probability; 0 is none.
    dropout_mask : bool
        Whether calls have a dropout_mask.
    ragged : bool
        Whether calls have any of cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv, leftpad_kv, batch_indices_kv and
        page_table.
    paged : bool
        Whether calls have a page_table, with pages of whatever size; beside ragged=True.
    e4m3 : bool
        Whether calls have k and v of float8_e4m3fn.
    token_scales : bool
        Whether these have a k_scale and a v_scale for each token; beside e4m3=True.
    e4m3_queries : bool
        Whether these have q of float8_e4m3fn, too; dtype is that of the output then.
    fast_sums : bool
        Whether these have accumulate="fast".
    block_scales : bool
        Whether q_scale, k_scale or v_scale of these is of blocks of rows.
    k_rotary : bool
        Whether calls have k_rotary; head_dim is that of q then, and head_dim_v that of k and v.
    latent : bool
        Whether calls have v = k[..., :head_dim_v], a view, as MLA's latent caches are called with; of head_dim above 256
        and a head_dim_v of whole 128s, which calls are then found out to be.
    values_transposed : bool
        Whether calls have v.transpose(...) of memory in which the keys of each dim follow one another, which they are
        then found out to have; beside e4m3_queries=True, and not ragged.
    out_e4m3 : bool
        Whether calls have an out of float8_e4m3fn; beside e4m3_queries=True, and dtype is bfloat16 then.
    e5m2 : bool
        Whether k and v, and q, are of float8_e5m2 where e4m3 and e4m3_queries say float8_e4m3fn; beside e4m3=True.
    """
    _prepare(dtype, head_dim, head_dim_v, device, engine, score, mask, bias, None,
             causal=causal, window=window, chunk=chunk, softcap=softcap, alibi=alibi, sinks=sinks,
             boolean_mask=boolean_mask, documents=documents, prefix=prefix, tree=tree, block_mask=block_mask,
             dropout=dropout, dropout_mask=dropout_mask, ragged=ragged, paged=paged, e4m3=e4m3,
             token_scales=token_scales, e4m3_queries=e4m3_queries, fast_sums=fast_sums, block_scales=block_scales,
             k_rotary=k_rotary, latent=latent, values_transposed=values_transposed, out_e4m3=out_e4m3, e5m2=e5m2)


def prepare_backward(dtype: Any, head_dim: int, head_dim_v: int | None = None, causal: bool = False, device: int = -1,
                     engine: Engine | None = None, *, dbias: bool = False, dslopes: bool = False,
                     dsinks: bool = False, deterministic: bool = False, float32: bool = False, window: bool = False,
                     chunk: bool = False, softcap: bool = False, alibi: bool = False, sinks: bool = False,
                     bias: Any = None, boolean_mask: bool = False, documents: bool = False, prefix: bool = False,
                     tree: bool = False, score: AnyScore | None = None, mask: AnyMask | None = None,
                     dropout: bool = False, dropout_mask: bool = False, ragged: bool = False) -> None:
    """Make and load every kernel that calls of flashjit.attention_backward for dq, dk and dv of this problem may need.

    >>> flashjit.prepare_backward("bfloat16", 128, causal=True, deterministic=True)

    The forward is another matter: flashjit.prepare.

    Parameters
    ----------
    dbias, dslopes, dsinks : bool
        Whether calls want these, too, of the bias, the alibi_slopes and the sinks that they have.
    deterministic : bool
        Whether calls have deterministic=True.
    float32 : bool
        Whether calls have dk and dv in float32.
    dtype, head_dim, head_dim_v, causal, device, engine, window, ..., ragged :
        As of flashjit.prepare. What that has beside these has no backward kernels.
    """
    kinds = {"float32": float32, "dbias": dbias, "dslopes": dslopes, "dsinks": dsinks, "deterministic": deterministic}
    _prepare(dtype, head_dim, head_dim_v, device, engine, score, mask, bias, _flags(kinds),
             causal=causal, window=window, chunk=chunk, softcap=softcap, alibi=alibi, sinks=sinks,
             boolean_mask=boolean_mask, documents=documents, prefix=prefix, tree=tree, block_mask=False,
             dropout=dropout, dropout_mask=dropout_mask, ragged=ragged, paged=False, e4m3=False, token_scales=False,
             e4m3_queries=False, fast_sums=False, block_scales=False, k_rotary=False, latent=False,
             values_transposed=False, out_e4m3=False, e5m2=False)


def _flags(flags: dict[str, bool]) -> tuple[bool, ...]:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InvalidArgument(f"{name}: must be True or False, whatever value calls have, was {flag!r:.100}")
    return tuple(flags.values())


# features: in the order in which _core.prepare takes them.
def _prepare(dtype: Any, head_dim: int, head_dim_v: int | None, device: int, engine: Engine | None,
             score: AnyScore | None, mask: AnyMask | None, bias: Any, kinds: tuple[bool, ...] | None,
             **features: bool) -> None:
    dim, dim_v = _to_int("head_dim", head_dim), head_dim if head_dim_v is None else head_dim_v
    if (dim_v := _to_int("head_dim_v", dim_v)) == 0:  # which would stand for head_dim in the library
        raise InvalidArgument("head_dim_v: must be a multiple of 8 from 8 to 512, or None for head_dim, was 0")
    flags = _flags(features)
    functions = (_arrays.export_function("score", to_function(Score, score), 0),
                 _arrays.export_function("mask", to_function(Mask, mask), 0))
    _core.prepare(engine, _to_dtype("dtype", dtype, '"float16" or "bfloat16"'), dim, dim_v, flags,
                  (0, 0) if bias is None else _to_dtype("bias", bias, '"float16", "bfloat16", "float32" or None'),
                  *functions, kinds, _to_int("device", device))


def dropout_mask(shape: tuple[int, int, int, int], probability: float, seed: int = 0, offset: int = 0) -> Any:
    """Which probabilities flashjit.attention keeps, with dropout=probability, dropout_seed=seed, dropout_offset=offset.

    A NumPy array of bool. shape is (batch, heads_q, seqlen_q, seqlen_kv), those of the call. The choice of key j for
    query i of head h and batch entry b is a number of 16 bits: half j % 2 of word j // 8 % 4 of a block of Philox4x32
    with seven rounds. Its counter is i, j & ~25, b * heads_q + h and the lower half of offset; its key is the lower
    half of seed, and the upper half of seed ^ offset. As a float16 it is compared with a threshold, so that the share
    which stays is within 2**-16 of 1 - probability.
    """
    numpy = importlib.import_module("numpy")
    counters = [_to_counter(name, number) for name, number in (("seed", seed), ("offset", offset))]
    sizes = tuple(_to_int("shape", size) for size in shape)
    if len(sizes) != 4 or not all(0 <= size < 1 << 31 for size in sizes):
        raise InvalidArgument(f"shape: must be (batch, heads_q, seqlen_q, seqlen_kv), was {shape!r:.100}")
    kept = _core.dropout_mask(_to_float("probability", probability), *counters, sizes)
    return numpy.frombuffer(kept, dtype=bool).reshape(sizes)


def counters() -> dict[str, int]:
    """What the default engine did so far: memory_hits, disk_hits, misses, compiles, tunings, ..."""
    return _core.counters(None)


def library_path() -> str:
    """The libflashjit.so of this package: C programs may open it."""
    return str(next(pathlib.Path(__file__).parent.glob("libflashjit.so*")))


def _make_default_engine() -> Engine | None:
    """None is the library's own default engine. It knows all but what this interpreter's wheels have."""
    return Engine() if find_nvrtc() or find_bundles() else None


def _to_counter(name: str, number: Any) -> int:
    try:
        value = operator.index(number)
    except TypeError:
        value = -1
    if isinstance(number, bool) or not 0 <= value < 1 << 64:
        raise InvalidArgument(f"{name}: must be an int from 0 to 2**64 - 1, was {number!r:.100}")
    return value


def _to_float(name: str, number: Any) -> float:
    try:
        return float(number)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"{name}: must be a number, was {number!r:.100}") from None


def _to_int(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name}: must be an int, was {value!r:.100}") from None
    if not -1 << 31 <= number < 1 << 31:
        raise InvalidArgument(f"{name}: must be an int of 32 bits, was {number}")
    return number


def _to_text(name: str, path: _Path | None) -> str | None:
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if text is None or isinstance(text, str):
        return text
    raise InvalidArgument(f"{name}: must be a path or None, was {path!r:.100}")


def _join(paths: _Path | Iterable[_Path]) -> str | None:
    if isinstance(paths, (str, os.PathLike)):
        return _to_text("bundles", paths)
    if isinstance(paths, bytes) or not hasattr(paths, "__iter__"):
        raise InvalidArgument(f"bundles: must be a path, paths or None, was {paths!r:.100}")
    return ":".join(_to_text("bundles", path) or "" for path in paths)


def _to_dtype(name: str, dtype: Any, must: str) -> tuple[int, int]:
    """(code, bits) in DLPack's terms of "bfloat16", torch.bfloat16, numpy.dtype("bfloat16") and jax.numpy.bfloat16."""
    word = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or str(dtype)
    word = word.rpartition(".")[2]
    if word in _arrays.DLPACK_DTYPES and f'"{word}"' in must:
        return _arrays.DLPACK_DTYPES[word]
    raise InvalidArgument(f"{name}: must be {must}, was {dtype!r:.100}")
