# SPDX-License-Identifier: Apache-2.0
from typing import Any

import torch
from vllm.v1.attention.backend import AttentionImplBase


class Attention:
    """Its attributes. The scales are those of AttentionLayer, too."""

    impl: AttentionImplBase[Any]
    kv_cache: torch.Tensor
