# SPDX-License-Identifier: Apache-2.0
import importlib
from enum import Enum


class AttentionBackendEnum(Enum):
    FLASH_ATTN = "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"
    CUSTOM = None

    def get_path(self, include_classname: bool = True) -> str:
        path = _paths.get(self, self.value)
        return path if include_classname else path.rpartition(".")[0]

    def get_class(self):
        module, _, name = self.get_path().rpartition(".")
        return getattr(importlib.import_module(module), name)

    def is_overridden(self) -> bool:
        return self in _paths

    def clear_override(self) -> None:
        _paths.pop(self, None)


_paths: dict[AttentionBackendEnum, str] = {}


def register_backend(backend, class_path=None, is_mamba=False):
    _paths[backend] = class_path
