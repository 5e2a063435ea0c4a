# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class KVCacheSpec:
    block_size: int


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(KVCacheSpec):
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    pass
