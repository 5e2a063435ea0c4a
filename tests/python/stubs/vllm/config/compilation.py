# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass, field
from typing import Any


@dataclass
class CompilationConfig:
    static_forward_context: dict[str, Any] = field(default_factory=dict, init=False)
