# SPDX-License-Identifier: Apache-2.0
"""The exceptions, one for each status of the library."""

from __future__ import annotations


class Error(RuntimeError):
    """What every exception of flashjit is. Its text is the library's."""

    status = "failure"


class InvalidArgument(Error, ValueError):
    """An argument is wrong: the text names it, what it must be and what it was. Nothing was launched or written."""

    status = "invalid_argument"


class Unsupported(Error, NotImplementedError):
    """This device, problem or state cannot do it."""

    status = "unsupported"


class NoDriver(Error):
    """libcuda could not be loaded."""

    status = "no_driver"


class NoDevice(Error):
    """There is a driver but no usable GPU."""

    status = "no_device"


class NoCompiler(Error):
    """A kernel has to be compiled and NVRTC was not found: pip install flashjit[cuda13] brings it."""

    status = "no_compiler"


class CompileFailed(Error):
    """NVRTC refused a kernel's source."""

    status = "compile_failed"


class CacheMiss(Error):
    """The policy forbids compiling and the cache lacks the kernel."""

    status = "cache_miss"


class DriverError(Error):
    """A call of the CUDA driver failed."""

    status = "driver"


class IOFailure(Error, OSError):
    """A file could not be read or written."""

    status = "io"


class KernelFault(Error):
    """The emulator found a kernel at fault."""

    status = "kernel_fault"


class CommunicationError(Error):
    """GPUs could not communicate."""

    status = "communication"


_KINDS = (InvalidArgument, Unsupported, NoDriver, NoDevice, NoCompiler, CompileFailed, CacheMiss, DriverError,
          IOFailure, KernelFault, CommunicationError)
_BY_STATUS = {kind.status: kind for kind in _KINDS}
for _kind in (Error, *_KINDS):
    _kind.__module__ = "flashjit"


def class_of(status: str) -> type[Error]:
    """The exception for a status, as flashjit_status_name() spells it."""
    return _BY_STATUS.get(status, Error)
