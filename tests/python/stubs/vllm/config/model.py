# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass
from typing import Any


@dataclass
class ModelConfig:
    dtype: Any = "auto"
