# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass, field

from vllm.config.compilation import CompilationConfig
from vllm.config.model import ModelConfig


@dataclass
class VllmConfig:
    model_config: ModelConfig = None
    compilation_config: CompilationConfig = field(default_factory=CompilationConfig)
