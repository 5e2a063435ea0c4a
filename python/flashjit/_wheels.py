# SPDX-License-Identifier: Apache-2.0
"""What other wheels have for flashjit, beside which this interpreter imports it: NVRTC, and kernels."""

from __future__ import annotations

import glob
import importlib.util
import os

# Newest first, as in the library's own search.
_NVRTC_FILES = ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12")


def find_nvrtc() -> str | None:
    """The file that one of NVIDIA's brought, or None: then the library searches. Nothing is imported."""
    if os.environ.get("FLASHJIT_NVRTC"):
        return None
    candidates = (os.path.join(directory, file) for file in _NVRTC_FILES for directory in _directories("nvidia"))
    return next(filter(os.path.isfile, candidates), None)


def find_bundles() -> str | None:
    """FLASHJIT_BUNDLES and behind it the bundles of flashjit-kernels, or None where that is not installed, or where the
    variable is empty, which names no bundle at all: then the library reads it. Nothing is imported."""
    named = os.environ.get("FLASHJIT_BUNDLES")
    if named == "":
        return None
    files = [file for directory in _directories("flashjit_kernels")
             for file in sorted(glob.glob(os.path.join(glob.escape(directory), "*.fjb")))]
    return ":".join([*([named] if named else []), *files]) if files else None


def _directories(package: str) -> list[str]:
    spec = importlib.util.find_spec(package)
    return list(spec.submodule_search_locations or ()) if spec else []
