# SPDX-License-Identifier: Apache-2.0
from typing import Any, Literal, TypeVar, Union, overload

from ._functions import AnyMask, AnyScore

_Array = TypeVar("_Array")

# (left, right)
_Window = Union[tuple[int, int], list[int]]
# A DLPack capsule, or (address, device type, device, dtype code, bits, shape, strides or None) in DLPack's terms.
_Tensor = Any

@overload
def attention(q: _Array, k: _Array, v: _Array, *, causal: bool = ..., window: _Window | None = ...,
              chunk: int | None = ..., scale: float | None = ..., softcap: float | None = ...,
              alibi_slopes: Any = ..., sinks: Any = ..., bias: Any = ..., boolean_mask: Any = ...,
              documents: Any = ..., prefix: Any = ..., tree: Any = ..., score: AnyScore | None = ...,
              mask: AnyMask | None = ..., query_offsets: Any = ..., key_offsets: Any = ...,
              block_mask: Any = ..., dropout: float | None = ..., dropout_seed: int | None = ...,
              dropout_offset: int | None = ..., dropout_state: Any = ..., dropout_mask: Any = ...,
              cu_seqlens_q: Any = ..., cu_seqlens_kv: Any = ..., seqused_q: Any = ..., seqused_kv: Any = ...,
              leftpad_kv: Any = ..., batch_indices_kv: Any = ..., page_table: Any = ..., k_scale: Any = ...,
              v_scale: Any = ..., q_scale: Any = ..., k_rotary: Any = ..., out_scale: Any = ...,
              max_seqlen_q: int | None = ..., max_seqlen_kv: int | None = ..., fixed_split_size: int | None = ...,
              accumulate: Literal["exact", "fast"] | None = ..., plan: Plan | None = ...,
              out: _Array | None = ..., lse: Literal[False] = ..., stream: Any = ..., variant: str | None = ...,
              engine: Engine | None = ...) -> _Array: ...
@overload
def attention(q: _Array, k: _Array, v: _Array, *, causal: bool = ..., window: _Window | None = ...,
              chunk: int | None = ..., scale: float | None = ..., softcap: float | None = ...,
              alibi_slopes: Any = ..., sinks: Any = ..., bias: Any = ..., boolean_mask: Any = ...,
              documents: Any = ..., prefix: Any = ..., tree: Any = ..., score: AnyScore | None = ...,
              mask: AnyMask | None = ..., query_offsets: Any = ..., key_offsets: Any = ...,
              block_mask: Any = ..., dropout: float | None = ..., dropout_seed: int | None = ...,
              dropout_offset: int | None = ..., dropout_state: Any = ..., dropout_mask: Any = ...,
              cu_seqlens_q: Any = ..., cu_seqlens_kv: Any = ..., seqused_q: Any = ..., seqused_kv: Any = ...,
              leftpad_kv: Any = ..., batch_indices_kv: Any = ..., page_table: Any = ..., k_scale: Any = ...,
              v_scale: Any = ..., q_scale: Any = ..., k_rotary: Any = ..., out_scale: Any = ...,
              max_seqlen_q: int | None = ..., max_seqlen_kv: int | None = ..., fixed_split_size: int | None = ...,
              accumulate: Literal["exact", "fast"] | None = ..., plan: Plan | None = ...,
              out: _Array | None = ..., lse: Literal[True], stream: Any = ..., variant: str | None = ...,
              engine: Engine | None = ...) -> tuple[_Array, _Array]: ...
@overload
def attention(q: _Array, k: _Array, v: _Array, *, causal: bool = ..., window: _Window | None = ...,
              chunk: int | None = ..., scale: float | None = ..., softcap: float | None = ...,
              alibi_slopes: Any = ..., sinks: Any = ..., bias: Any = ..., boolean_mask: Any = ...,
              documents: Any = ..., prefix: Any = ..., tree: Any = ..., score: AnyScore | None = ...,
              mask: AnyMask | None = ..., query_offsets: Any = ..., key_offsets: Any = ...,
              block_mask: Any = ..., dropout: float | None = ..., dropout_seed: int | None = ...,
              dropout_offset: int | None = ..., dropout_state: Any = ..., dropout_mask: Any = ...,
              cu_seqlens_q: Any = ..., cu_seqlens_kv: Any = ..., seqused_q: Any = ..., seqused_kv: Any = ...,
              leftpad_kv: Any = ..., batch_indices_kv: Any = ..., page_table: Any = ..., k_scale: Any = ...,
              v_scale: Any = ..., q_scale: Any = ..., k_rotary: Any = ..., out_scale: Any = ...,
              max_seqlen_q: int | None = ..., max_seqlen_kv: int | None = ..., fixed_split_size: int | None = ...,
              accumulate: Literal["exact", "fast"] | None = ..., plan: Plan | None = ...,
              out: _Array | None = ..., lse: bool, stream: Any = ..., variant: str | None = ...,
              engine: Engine | None = ...) -> _Array | tuple[_Array, _Array]: ...

class Engine:
    def __init__(self, policy: str | None = ..., cache_directory: str | None = ..., bundles: str | None = ...,
                 tuning: str | None = ..., emulate: str | None = ..., nvrtc_path: str | None = ...) -> None: ...
    @overload
    def attention(self, q: _Array, k: _Array, v: _Array, *, causal: bool = ..., window: _Window | None = ...,
                  chunk: int | None = ..., scale: float | None = ..., softcap: float | None = ...,
                  alibi_slopes: Any = ..., sinks: Any = ..., bias: Any = ..., boolean_mask: Any = ...,
                  documents: Any = ..., prefix: Any = ..., tree: Any = ..., score: AnyScore | None = ...,
                  mask: AnyMask | None = ..., query_offsets: Any = ..., key_offsets: Any = ...,
                  block_mask: Any = ..., dropout: float | None = ..., dropout_seed: int | None = ...,
                  dropout_offset: int | None = ..., dropout_state: Any = ..., dropout_mask: Any = ...,
                  cu_seqlens_q: Any = ..., cu_seqlens_kv: Any = ..., seqused_q: Any = ..., seqused_kv: Any = ...,
                  leftpad_kv: Any = ..., batch_indices_kv: Any = ..., page_table: Any = ..., k_scale: Any = ...,
                  v_scale: Any = ..., q_scale: Any = ..., k_rotary: Any = ..., out_scale: Any = ...,
                  max_seqlen_q: int | None = ..., max_seqlen_kv: int | None = ..., fixed_split_size: int | None = ...,
                  accumulate: Literal["exact", "fast"] | None = ..., plan: Plan | None = ...,
                  out: _Array | None = ..., lse: Literal[False] = ..., stream: Any = ...,
                  variant: str | None = ...) -> _Array: ...
    @overload
    def attention(self, q: _Array, k: _Array, v: _Array, *, causal: bool = ..., window: _Window | None = ...,
                  chunk: int | None = ..., scale: float | None = ..., softcap: float | None = ...,
                  alibi_slopes: Any = ..., sinks: Any = ..., bias: Any = ..., boolean_mask: Any = ...,
                  documents: Any = ..., prefix: Any = ..., tree: Any = ..., score: AnyScore | None = ...,
                  mask: AnyMask | None = ..., query_offsets: Any = ..., key_offsets: Any = ...,
                  block_mask: Any = ..., dropout: float | None = ..., dropout_seed: int | None = ...,
                  dropout_offset: int | None = ..., dropout_state: Any = ..., dropout_mask: Any = ...,
                  cu_seqlens_q: Any = ..., cu_seqlens_kv: Any = ..., seqused_q: Any = ..., seqused_kv: Any = ...,
                  leftpad_kv: Any = ..., batch_indices_kv: Any = ..., page_table: Any = ..., k_scale: Any = ...,
                  v_scale: Any = ..., q_scale: Any = ..., k_rotary: Any = ..., out_scale: Any = ...,
                  max_seqlen_q: int | None = ..., max_seqlen_kv: int | None = ..., fixed_split_size: int | None = ...,
                  accumulate: Literal["exact", "fast"] | None = ..., plan: Plan | None = ...,
                  out: _Array | None = ..., lse: Literal[True], stream: Any = ...,
                  variant: str | None = ...) -> tuple[_Array, _Array]: ...
    @overload
    def attention(self, q: _Array, k: _Array, v: _Array, *, causal: bool = ..., window: _Window | None = ...,
                  chunk: int | None = ..., scale: float | None = ..., softcap: float | None = ...,
                  alibi_slopes: Any = ..., sinks: Any = ..., bias: Any = ..., boolean_mask: Any = ...,
                  documents: Any = ..., prefix: Any = ..., tree: Any = ..., score: AnyScore | None = ...,
                  mask: AnyMask | None = ..., query_offsets: Any = ..., key_offsets: Any = ...,
                  block_mask: Any = ..., dropout: float | None = ..., dropout_seed: int | None = ...,
                  dropout_offset: int | None = ..., dropout_state: Any = ..., dropout_mask: Any = ...,
                  cu_seqlens_q: Any = ..., cu_seqlens_kv: Any = ..., seqused_q: Any = ..., seqused_kv: Any = ...,
                  leftpad_kv: Any = ..., batch_indices_kv: Any = ..., page_table: Any = ..., k_scale: Any = ...,
                  v_scale: Any = ..., q_scale: Any = ..., k_rotary: Any = ..., out_scale: Any = ...,
                  max_seqlen_q: int | None = ..., max_seqlen_kv: int | None = ..., fixed_split_size: int | None = ...,
                  accumulate: Literal["exact", "fast"] | None = ..., plan: Plan | None = ...,
                  out: _Array | None = ..., lse: bool, stream: Any = ...,
                  variant: str | None = ...) -> _Array | tuple[_Array, _Array]: ...

class Plan:
    @property
    def problem(self) -> str: ...
    @property
    def variant(self) -> str: ...
    @property
    def words(self) -> int: ...

# The options of attention that are arrays, but for lse.
TENSOR_OPTIONS: tuple[str, ...]

# What _functions.Score and Mask have, with _Tensor in place of arrays.
_Function = tuple[str, tuple[tuple[str, _Tensor], ...], tuple[tuple[str, Union[int, float]], ...]]

# numbers: (causal, window, chunk, scale, softcap, dropout, dropout_seed, dropout_offset, max_seqlen_q, max_seqlen_kv,
# fixed_split_size, accumulate, variant), None where they are not given
def launch(engine: Engine | None, q: _Tensor, k: _Tensor, v: _Tensor, out: _Tensor, lse: _Tensor | None,
           tensors: dict[str, _Tensor], score: _Function | None, mask: _Function | None, numbers: tuple[Any, ...],
           plan: Plan | None, stream: int) -> None: ...
# gradients: (dq, dk, dv, dbias, dslopes, dsinks), None where one is not to be computed
def backward(engine: Engine | None, dout: _Tensor, q: _Tensor, k: _Tensor, v: _Tensor, out: _Tensor, lse: _Tensor,
             dlse: _Tensor | None, gradients: tuple[_Tensor | None, ...], deterministic: bool,
             tensors: dict[str, _Tensor], score: _Function | None, mask: _Function | None, numbers: tuple[Any, ...],
             stream: int) -> None: ...
def plan(plan: Plan, engine: Engine | None, q: _Tensor, k: _Tensor, v: _Tensor, memory: _Tensor | None,
         tensors: dict[str, _Tensor], score: _Function | None, mask: _Function | None, numbers: tuple[Any, ...],
         stream: int) -> None: ...
def reference(engine: Engine | None, q: _Tensor, k: _Tensor, v: _Tensor, out: _Tensor, lse: _Tensor,
              tensors: dict[str, _Tensor], score: _Function | None, mask: _Function | None,
              numbers: tuple[Any, ...]) -> None: ...
def reference_backward(engine: Engine | None, dout: _Tensor, q: _Tensor, k: _Tensor, v: _Tensor, dlse: _Tensor | None,
                       gradients: tuple[_Tensor | None, ...], tensors: dict[str, _Tensor],
                       score: _Function | None, mask: _Function | None, numbers: tuple[Any, ...]) -> None: ...
# sizes: (batch, heads, seqlen_q, seqlen_kv)
def block_mask(engine: Engine | None, into: _Tensor, tensors: dict[str, _Tensor], mask: _Function | None, stream: int,
               sizes: tuple[int, int, int, int]) -> None: ...
def block_mask_dims(batch: int, heads: int, seqlen_q: int, seqlen_kv: int) -> tuple[int, int, int, int, int]: ...
# sizes: (batch, heads, seqlen_q, seqlen_kv)
def dropout_mask(probability: float, seed: int, offset: int, sizes: tuple[int, ...]) -> bytes: ...
def merge(engine: Engine | None, parts: tuple[tuple[_Tensor, _Tensor], ...], out: _Tensor, lse: _Tensor,
          stream: int) -> None: ...
# tensors: the options that are arrays, but for those before it.
def append(engine: Engine | None, k: _Tensor, v: _Tensor, k_cache: _Tensor, v_cache: _Tensor, q_out: _Tensor | None,
           k_rotary_cache: _Tensor | None, tensors: dict[str, _Tensor], rotary_interleaved: bool,
           stream: int) -> None: ...
# tensors: the options that are arrays. scale_of: a flashjit_scale_of.
def quantize(engine: Engine | None, x: _Tensor, out: _Tensor, scale: _Tensor, tensors: dict[str, _Tensor],
             scale_of: int, scale_is_given: bool, block_size: int, rotates: bool, rotation_seed: int,
             rotary_interleaved: bool, bytes_are_e5m2: bool, stream: int) -> None: ...
# dtype and bias: (code, bits) in DLPack's terms, (0, 0) for no bias. flags: (causal, window, chunk, softcap, alibi,
# sinks, boolean_mask, documents, prefix, tree, block_mask, dropout, dropout_mask, ragged, paged, e4m3, token_scales,
# e4m3_queries, fast_sums, block_scales, k_rotary, latent, values_transposed, out_e4m3, e5m2)
def prepare(engine: Engine | None, dtype: tuple[int, int], head_dim: int, head_dim_v: int, flags: tuple[bool, ...],
            bias: tuple[int, int], score: _Function | None, mask: _Function | None, kinds: tuple[bool, ...] | None,
            device: int) -> None: ...
def counters(engine: Engine | None) -> dict[str, int]: ...
def engine_address(engine: Engine | None) -> int: ...
def version() -> str: ...
