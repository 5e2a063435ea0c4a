# SPDX-License-Identifier: Apache-2.0
"""FlashJIT as an attention backend of vLLM 0.33: an entry point of vllm.general_plugins, which vLLM calls by itself.

>>> llm = vllm.LLM(model, attention_backend="CUSTOM")

Importing this needs neither vLLM nor PyTorch; flashjit.vllm.backend, which vLLM imports for who chooses the backend,
needs both.
"""

import logging

__all__ = ["register"]

_BACKEND = "flashjit.vllm.backend.FlashJITBackend"
_logger = logging.getLogger(__name__)


def register() -> None:
    """Makes FlashJIT what vLLM knows as its attention backend CUSTOM, and chooses nothing. vLLM calls it in each of its
    processes; further calls do nothing. Where vLLM has no such registry, or another package is CUSTOM there, a warning
    says so: it is called for everybody who has both packages, whatever backend they use."""
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError as error:
        _logger.warning("FlashJIT is no attention backend of this vLLM: it must be version 0.33, and %s", error)
        return
    custom = AttentionBackendEnum.CUSTOM
    if not custom.is_overridden():
        register_backend(custom, _BACKEND)
    elif custom.get_path() != _BACKEND:
        _logger.warning("FlashJIT is not vLLM's attention backend CUSTOM, which is %s; VLLM_PLUGINS=flashjit loads no "
                        "other plugin", custom.get_path())
