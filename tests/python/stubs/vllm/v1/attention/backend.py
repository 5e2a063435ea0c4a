# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from vllm.v1.kv_cache_layout import KVCacheLayout

M = TypeVar("M")


class AttentionType(str, Enum):
    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_ONLY = "encoder_only"
    ENCODER_DECODER = "encoder_decoder"


@dataclass(frozen=True)
class MultipleOf:
    base: int


class AttentionBackend:
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update: bool = True
    supports_kv_cache_update_bypass: bool = False

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None):
        return [MultipleOf(1)]

    @staticmethod
    def get_name() -> str:
        raise NotImplementedError

    @staticmethod
    def get_impl_cls():
        raise NotImplementedError

    @staticmethod
    def get_builder_cls():
        raise NotImplementedError

    @classmethod
    def supports_head_size(cls, head_size):
        return True

    @classmethod
    def supports_dtype(cls, dtype):
        return dtype in cls.supported_dtypes

    @classmethod
    def supports_kv_cache_dtype(cls, kv_cache_dtype):
        return kv_cache_dtype is None or kv_cache_dtype in cls.supported_kv_cache_dtypes

    @classmethod
    def supports_block_size(cls, block_size):
        return block_size is None or any(block_size % size.base == 0 for size in cls.get_supported_kernel_block_sizes())

    @classmethod
    def is_mla(cls):
        return False

    @classmethod
    def supports_sink(cls):
        return False

    @classmethod
    def supports_alibi_sqrt(cls):
        return False

    @classmethod
    def supports_mm_prefix(cls):
        return False

    @classmethod
    def is_sparse(cls):
        return False

    @classmethod
    def supports_per_head_quant_scales(cls):
        return False

    @classmethod
    def supports_sliding_window(cls):
        return False

    @classmethod
    def supports_rswa(cls):
        return False

    @classmethod
    def supports_non_causal(cls):
        return False

    @classmethod
    def supports_batch_invariance(cls):
        return False

    @classmethod
    def supports_pcp(cls):
        return cls.get_impl_cls().supports_pcp

    @classmethod
    def supports_dcp(cls):
        return cls.get_impl_cls().supports_dcp

    @classmethod
    def supports_attn_type(cls, attn_type):
        return attn_type == AttentionType.DECODER

    @classmethod
    def supports_compute_capability(cls, capability):
        return True

    @classmethod
    def supports_combination(cls, head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse,
                             use_mm_prefix, device_capability):
        return None

    @classmethod
    def supported_kv_cache_layouts(cls) -> "tuple[KVCacheLayout, ...] | None":
        return None

    @classmethod
    def validate_configuration(cls, head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse,
                               use_mm_prefix, use_per_head_quant_scales, device_capability, attn_type,
                               has_sliding_window=False, use_non_causal=False, use_batch_invariant=False,
                               use_kv_connector=False, use_pcp=False, use_adaptive_verification=False, use_dcp=False,
                               use_rswa=False):
        """Which methods say no: vLLM words each as it likes."""
        answers = {
            "supports_head_size": cls.supports_head_size(head_size),
            "supports_dtype": cls.supports_dtype(dtype),
            "supports_kv_cache_dtype": cls.supports_kv_cache_dtype(kv_cache_dtype),
            "supports_block_size": cls.supports_block_size(block_size),
            "is_mla": use_mla == cls.is_mla(),
            "supports_sink": not has_sink or cls.supports_sink(),
            "is_sparse": use_sparse == cls.is_sparse(),
            "supports_mm_prefix": not use_mm_prefix or cls.supports_mm_prefix(),
            "supports_per_head_quant_scales": not use_per_head_quant_scales or cls.supports_per_head_quant_scales(),
            "supports_compute_capability": cls.supports_compute_capability(device_capability),
            "supports_attn_type": cls.supports_attn_type(attn_type),
            "supports_sliding_window": not has_sliding_window or cls.supports_sliding_window(),
            "supports_non_causal": not use_non_causal or cls.supports_non_causal(),
            "supports_batch_invariance": not use_batch_invariant or cls.supports_batch_invariance(),
            "supports_pcp": not use_pcp or cls.supports_pcp(),
            "supports_dcp": not use_dcp or cls.supports_dcp(),
            "supports_rswa": not use_rswa or cls.supports_rswa(),
        }
        reason = cls.supports_combination(head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse,
                                          use_mm_prefix, device_capability)
        return [name for name, answer in answers.items() if not answer] + ([] if reason is None else [reason])


class AttentionMetadata:
    pass


@dataclass
class CommonAttentionMetadata:
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: "bool | torch.Tensor" = True
    dcp_local_seq_lens: "torch.Tensor | None" = None
    mm_req_doc_ranges: "dict[int, list[tuple[int, int]]] | None" = None
    rswa_prefix_lens: "torch.Tensor | None" = None


class AttentionCGSupport(Enum):
    ALWAYS = 3
    UNIFORM_BATCH = 2
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    NEVER = 0


class AttentionMetadataBuilder(Generic[M]):
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER
    supports_update_block_table: bool = False

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.kv_cache_spec = kv_cache_spec
        self.layer_names = layer_names
        self.vllm_config = vllm_config
        self.device = device

    @classmethod
    def get_cudagraph_support(cls, vllm_config, kv_cache_spec):
        return cls._cudagraph_support

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        raise NotImplementedError

    def update_block_table(self, metadata, blk_table, slot_mapping):
        raise NotImplementedError

    def build_for_cudagraph_capture(self, common_attn_metadata):
        return self.build(common_prefix_len=0, common_attn_metadata=common_attn_metadata)

    def build_for_drafting(self, common_attn_metadata, draft_index):
        return self.build(common_prefix_len=0, common_attn_metadata=common_attn_metadata, fast_build=True)


class AttentionLayer(Protocol):
    _k_scale: torch.Tensor
    _v_scale: torch.Tensor


class AttentionImplBase(Generic[M]):
    num_heads: int
    head_size: int
    scale: float
    can_return_lse_for_decode: bool = False
    supports_pcp: bool = False
    supports_dcp: bool = False
    supports_quant_query_input: bool = False

    def get_impl_variants(self) -> "tuple[AttentionImplBase[Any], ...]":
        return (self,)


class AttentionImpl(AttentionImplBase[M], Generic[M]):
    kv_cache_dtype: str

    def __init__(self, num_heads, head_size, scale, num_kv_heads=None, alibi_slopes=None, sliding_window=None,
                 kv_cache_dtype="auto", logits_soft_cap=None, attn_type=AttentionType.DECODER,
                 kv_sharing_target_layer_name=None):
        raise NotImplementedError

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None,
                output_block_scale=None):
        raise NotImplementedError

    def fused_output_quant_supported(self, quant_key):
        return False
