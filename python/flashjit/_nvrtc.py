# SPDX-License-Identifier: Apache-2.0
"""NVRTC from NVIDIA's wheels, beside which this interpreter imports flashjit."""

from __future__ import annotations

import importlib.util
import os

# Newest first, as in the library's own search.
_FILES = ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12")


def find_nvrtc() -> str | None:
    """The file that a wheel brought, or None: then the library searches. Nothing is imported."""
    if os.environ.get("FLASHJIT_NVRTC"):
        return None
    spec = importlib.util.find_spec("nvidia")
    directories = list(spec.submodule_search_locations or ()) if spec else []
    candidates = (os.path.join(directory, file) for file in _FILES for directory in directories)
    return next(filter(os.path.isfile, candidates), None)
