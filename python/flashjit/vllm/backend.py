# SPDX-License-Identifier: Apache-2.0
"""The attention backend of vLLM 0.33 that flashjit.vllm.register names: its class, its metadata with their builder, and
what each layer does.

A cache is what vLLM has it be, [blocks, heads_kv, block_size, 2 * head_size] in strides of any of its layouts, with
keys in the first half of a row and values in the second; FlashJIT reads it where it is, as pages. All that says how
long sequences are is read on the device. Errors name arguments as vLLM does.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)

import flashjit
from flashjit._words import in_words

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.platforms.interface import DeviceCapability
    from vllm.v1.attention.backend import AttentionLayer
    from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheSpec

if not hasattr(AttentionBackend, "supported_kv_cache_layouts"):
    raise ImportError("flashjit.vllm needs vLLM 0.33, whose caches have keys and values in one row")

__all__ = ["FlashJITBackend", "FlashJITImpl", "FlashJITMetadata", "FlashJITMetadataBuilder"]

_FORMATS = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
_CACHE_DTYPES = ("auto", "float16", "bfloat16", *_FORMATS)
_WITHOUT_CACHE = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)
# For which there are kernels.
_CAPABILITIES = ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1))

# What the library calls them, and what vLLM does.
_WORDS = {
    "q": "query", "k": "kv_cache", "v": "kv_cache", "out": "output", "softcap": "logits_soft_cap",
    "window": "sliding_window", "cu_seqlens_q": "query_start_loc", "seqused_kv": "seq_lens",
    "page_table": "block_table", "max_seqlen_q": "max_query_len", "max_seqlen_kv": "max_seq_len",
    "k_scale": "_k_scale", "v_scale": "_v_scale",
}  # fmt: skip
_WORDS_OF_UPDATE = {
    "k": "key", "v": "value", "k_cache": "kv_cache", "v_cache": "kv_cache", "slots": "slot_mapping",
    "k_scale": "_k_scale", "v_scale": "_v_scale",
}  # fmt: skip


class FlashJITBackend(AttentionBackend):
    """What vLLM asks before it makes a layer. What is not here is as vLLM has it by default: no MLA, no sparse
    attention, no bidirectional ranges of images, no R-SWA, no context parallelism, no batch invariance."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = list(_CACHE_DTYPES)
    forward_includes_kv_cache_update: bool = False
    supports_kv_cache_update_bypass: bool = True

    @staticmethod
    def get_name() -> str:
        """The member of AttentionBackendEnum, by which vLLM looks for it."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[FlashJITImpl]:
        return FlashJITImpl

    @staticmethod
    def get_builder_cls() -> type[FlashJITMetadataBuilder]:
        return FlashJITMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: KVCacheSpec | None = None) -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and 8 <= head_size <= 512

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in tuple(AttentionType)

    @classmethod
    def supports_compute_capability(cls, capability: DeviceCapability) -> bool:
        return (capability.major, capability.minor) in _CAPABILITIES

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: DeviceCapability,
    ) -> str | None:
        """Why not, where each by itself is supported."""
        if kv_cache_dtype in ("float16", "bfloat16") and getattr(torch, kv_cache_dtype) != dtype:
            return f"kv_cache_dtype: must be that of the model, {dtype}, fp8 or fp8_e5m2, was {kv_cache_dtype}"
        if kv_cache_dtype not in _FORMATS:
            return None
        if (device_capability.major, device_capability.minor) != (9, 0):
            return f"kv_cache_dtype: must not be {kv_cache_dtype} but on compute capability 9.0"
        if head_size % 16 != 0 or head_size > 256:
            return f"head_size: must be a multiple of 16 up to 256 with a cache of {kv_cache_dtype}, was {head_size}"
        return None


@dataclasses.dataclass
class _SharedPlan:
    """What layers with the same problem find out of a batch but once (flashjit.plan)."""

    plan: flashjit.Plan
    first: FlashJITImpl | None  # the layer that made it: meeting it again is another forward, maybe of other lengths
    outlives_graphs: bool


@dataclasses.dataclass
class FlashJITMetadata(AttentionMetadata):
    """Of one batch, for all layers of a group. Tensors are vLLM's own, so that a graph which is captured with them
    reads what they say at its replay."""

    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int  # may be more than any sequence has
    query_start_loc: Tensor  # int32 [requests + 1]
    seq_lens: Tensor  # int32 [requests]
    block_table: Tensor  # int32 [requests, blocks of the longest]
    slot_mapping: Tensor
    causal: bool | Tensor  # of all, or int32 [requests]
    plans: dict[Any, _SharedPlan] = dataclasses.field(default_factory=dict)

    @property
    def sizes(self) -> tuple[Any, ...]:
        """What a plan is for, beside a problem."""
        kind = self.causal if isinstance(self.causal, bool) else "of each request"
        return self.num_actual_tokens, self.max_query_len, tuple(self.block_table.shape), kind


class FlashJITMetadataBuilder(AttentionMetadataBuilder[FlashJITMetadata]):
    """Makes metadata of vLLM's, without a look at the device. Kernels for its layers are made with it, so that a call
    may be captured in a graph at once and none compiles while requests wait.

    Graphs may be of any batch: what is captured makes the list of tiles by the lengths of each replay, which
    max_query_len and max_seq_len of the capture bound.
    """

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS
    supports_update_block_table: bool = True

    def __init__(self, kv_cache_spec: AttentionSpec, layer_names: list[str], vllm_config: VllmConfig,
                 device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._dtype = vllm_config.model_config.dtype
        self._plans_of_graphs: dict[Any, flashjit.Plan] = {}  # as long as graphs may run
        for layer, impl in self._layers():
            impl.prepare(self._dtype, self.device)
            if impl.has_cache:
                self._prepare_update(layer, impl)

    def _layers(self) -> list[tuple[Any, FlashJITImpl]]:
        """Those of this group, which vLLM has made by now, one for each problem."""
        by_name = self.vllm_config.compilation_config.static_forward_context
        layers = [by_name[name] for name in self.layer_names]
        pairs = [(layer, impl) for layer in layers for impl in layer.impl.get_impl_variants()]
        return list({impl.problem: (layer, impl) for layer, impl in pairs if isinstance(impl, FlashJITImpl)}.values())

    def _prepare_update(self, layer: Any, impl: FlashJITImpl) -> None:
        """By a first call, which writes nothing: flashjit.prepare is not for this kernel."""
        spec, like = self.kv_cache_spec, {"dtype": self._dtype, "device": self.device}
        row = torch.zeros((1, impl.num_kv_heads, impl.head_size), **like)
        block = torch.zeros((1, impl.num_kv_heads, 16, 2 * impl.head_size), dtype=spec.dtype, device=self.device)
        impl.do_kv_cache_update(layer, row, row, block, torch.full((1,), -1, device=self.device))

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata,
              fast_build: bool = False) -> FlashJITMetadata:
        """Of what is the same for all backends. common_prefix_len makes no difference: the blocks of a prefix are in
        the table of each request."""
        common, requests = common_attn_metadata, common_attn_metadata.num_reqs
        for name in ("mm_req_doc_ranges", "rswa_prefix_lens", "dcp_local_seq_lens"):
            if getattr(common, name) is not None:
                raise flashjit.Unsupported(f"{name}: must be None, as there are no kernels for it, was given")
        return FlashJITMetadata(
            num_actual_tokens=common.num_actual_tokens, max_query_len=common.max_query_len,
            max_seq_len=common.max_seq_len, query_start_loc=common.query_start_loc[: requests + 1],
            seq_lens=common.seq_lens[:requests], block_table=common.block_table_tensor[:requests],
            slot_mapping=common.slot_mapping, causal=common.causal,
        )  # fmt: skip

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> FlashJITMetadata:
        """With plans that live as long as this, one for graphs of the same sizes, which run one after the other."""
        metadata = super().build_for_cudagraph_capture(common_attn_metadata)
        for layer, impl in self._layers():
            key = impl.problem, metadata.sizes
            if key not in self._plans_of_graphs:
                like = {"dtype": self._dtype, "device": self.device}
                q, key_rows = (torch.empty((metadata.num_actual_tokens, heads, impl.head_size), **like)
                               for heads in (impl.num_heads, impl.num_kv_heads))
                operands, options = impl.call(layer, q, key_rows, key_rows, layer.kv_cache, metadata)
                self._plans_of_graphs[key] = flashjit.plan(*operands, **options)
            metadata.plans[impl.problem] = _SharedPlan(self._plans_of_graphs[key], None, True)
        return metadata

    def update_block_table(self, metadata: FlashJITMetadata, blk_table: Tensor,
                           slot_mapping: Tensor) -> FlashJITMetadata:
        """The same for a group with other blocks."""
        return dataclasses.replace(metadata, block_table=blk_table, slot_mapping=slot_mapping, plans={})


class FlashJITImpl(AttentionImpl[FlashJITMetadata]):
    """The attention of a layer. It has no state but what it was made with: calls of several threads are for different
    metadata."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        if kv_cache_dtype not in _CACHE_DTYPES:
            known = ", ".join(_CACHE_DTYPES)
            raise flashjit.Unsupported(f"kv_cache_dtype: must be one of {known}, was {kv_cache_dtype}")
        if not FlashJITBackend.supports_head_size(head_size):
            raise flashjit.Unsupported(f"head_size: must be a multiple of 8 from 8 to 512, was {head_size}")
        if sinks is not None and tuple(sinks.shape) != (num_heads,):
            was = tuple(sinks.shape)
            raise flashjit.InvalidArgument(f"sinks: must be ({num_heads},), one for each head, was {was}")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.sliding_window, self.logits_soft_cap = sliding_window, logits_soft_cap or 0.0
        self.kv_cache_dtype, self.attn_type = kv_cache_dtype, attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks

    @property
    def has_cache(self) -> bool:
        return self.attn_type not in _WITHOUT_CACHE

    @property
    def _format(self) -> "torch.dtype | None":
        """Of a cache of 8 bits, None of others."""
        return _FORMATS.get(self.kv_cache_dtype) if self.has_cache else None

    @property
    def problem(self) -> tuple[Any, ...]:
        """What kernels and plans are for: layers that have the same share both."""
        return (self.num_heads, self.num_kv_heads, self.head_size, self.sliding_window, self.logits_soft_cap != 0,
                self.alibi_slopes is not None, self.sinks is not None, self.has_cache, self._format)

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        """Makes the kernels of calls with the mask that this type of attention has."""
        flashjit.prepare(
            dtype, self.head_size, causal=self.attn_type == AttentionType.DECODER,
            device=-1 if device.index is None else device.index, window=self.sliding_window is not None,
            softcap=self.logits_soft_cap != 0, alibi=self.alibi_slopes is not None, sinks=self.sinks is not None,
            ragged=True, paged=self.has_cache, e4m3=self._format is not None, e5m2=self._format == torch.float8_e5m2,
        )  # fmt: skip

    @in_words(_WORDS)
    def forward(
        self,
        layer: AttentionLayer,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: FlashJITMetadata,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Writes output, [tokens, heads, head_size], and returns it.

        query is like that, of float16 or bfloat16; of both the first num_actual_tokens count, and rows that belong to
        no request are not written. With a cache key and value are not looked at: do_kv_cache_update has written them.
        What has none reads them, [tokens, heads_kv, head_size]. Without attn_metadata, in a profiling run, output
        becomes zeros. Raises flashjit.Unsupported for output_scale and output_block_scale, and what flashjit.attention
        raises.
        """
        for name, scale in (("output_scale", output_scale), ("output_block_scale", output_block_scale)):
            if scale is not None:
                raise flashjit.Unsupported(f"{name}: must be None, as outputs are not quantised, was a tensor")
        if attn_metadata is None:
            return output.zero_()
        operands, options = self.call(layer, query, key, value, kv_cache, attn_metadata)
        plan = self._plan(attn_metadata, operands, options)
        flashjit.attention(*operands, out=output[: attn_metadata.num_actual_tokens], plan=plan, **options)
        return output

    def call(self, layer: AttentionLayer, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor,
             metadata: FlashJITMetadata) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]:
        """(q, k, v) and options of flashjit.attention."""
        options = {
            "scale": self.scale, "softcap": self.logits_soft_cap, "alibi_slopes": self.alibi_slopes,
            # Weights may be loaded anew at any time, so a copy is of this call alone.
            "sinks": None if self.sinks is None else self.sinks.float(),
            "cu_seqlens_q": metadata.query_start_loc, "max_seqlen_q": metadata.max_query_len,
            **self._mask(metadata),
        }  # fmt: skip
        tokens = metadata.num_actual_tokens
        if not self.has_cache:
            options |= {"cu_seqlens_kv": metadata.query_start_loc, "max_seqlen_kv": metadata.max_query_len}
            return (query[:tokens], key[:tokens], value[:tokens]), options
        options |= {"seqused_kv": metadata.seq_lens, "page_table": metadata.block_table,
                    "max_seqlen_kv": metadata.max_seq_len, **self._scales(layer)}
        return (query[:tokens], *self._keys_and_values(kv_cache)), options

    def _mask(self, metadata: FlashJITMetadata) -> dict[str, Any]:
        causal, window = metadata.causal if self.has_cache else False, self.sliding_window
        if isinstance(causal, Tensor):
            if window is not None:
                raise flashjit.Unsupported("causal: must be a bool beside a sliding_window, was a tensor")
            # Who sees all keys has all of them for a prefix.
            return {"causal": True, "prefix": (causal == 0).to(torch.int32) * metadata.max_seq_len}
        if window is None:
            return {"causal": causal}
        return {"causal": causal, "window": (window - 1, 0 if causal else window - 1)}

    def _plan(self, metadata: FlashJITMetadata, operands: Any, options: dict[str, Any]) -> flashjit.Plan | None:
        """That of the forward, which its first layer makes. Under capture that becomes part of the graph, and memory
        has to be there as long; without it each call makes a list of its own."""
        shared = metadata.plans.get(self.problem)
        if _is_captured(operands[0]) and not (shared and shared.outlives_graphs):
            return None
        if shared is None:
            shared = metadata.plans[self.problem] = _SharedPlan(flashjit.plan(*operands, **options), self, False)
        elif shared.first is None or shared.first is self:
            shared.first = self
            shared.plan.update(*operands, **options)
        return shared.plan

    @in_words(_WORDS_OF_UPDATE)
    def do_kv_cache_update(self, layer: AttentionLayer, key: Tensor, value: Tensor, kv_cache: Tensor,
                           slot_mapping: Tensor) -> None:
        """Writes key and value, [tokens, heads_kv, head_size], to row slot_mapping[t] % block_size of block
        slot_mapping[t] // block_size each, or nowhere where that is negative. slot_mapping, int32 or int64, may have
        fewer tokens, which are those that count."""
        if not self.has_cache:
            return
        tokens = slot_mapping.shape[0]
        flashjit.append(key[:tokens], value[:tokens], *self._keys_and_values(kv_cache), slots=slot_mapping,
                        **self._scales(layer))

    def _keys_and_values(self, kv_cache: Tensor) -> tuple[Tensor, ...]:
        """Views, [blocks, block_size, heads_kv, head_size] each."""
        rows = kv_cache.view(self._format) if self._format else kv_cache  # vLLM has bytes
        return rows.transpose(1, 2).split(self.head_size, dim=-1)

    def _scales(self, layer: AttentionLayer) -> dict[str, Tensor]:
        """Of the cache, one for all heads or one for each."""
        if not self._format:
            return {}
        return {"k_scale": layer._k_scale.reshape(-1), "v_scale": layer._v_scale.reshape(-1)}


def _is_captured(tensor: Tensor) -> bool:
    """Whether what is done with it now becomes part of a graph."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
