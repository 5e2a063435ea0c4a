# SPDX-License-Identifier: Apache-2.0
"""The library through its C interface (include/flashjit/c_api.h), on tensors of PyTorch."""

import ctypes


class TensorView(ctypes.Structure):
    """flashjit_tensor of c_api.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 4),
        ("strides", ctypes.c_int64 * 4),
    ]
    BF16 = 1

    @classmethod
    def of(cls, tensor):
        extents = ctypes.c_int64 * 4
        return cls(tensor.data_ptr(), cls.BF16, tensor.dim(), extents(*tensor.shape), extents(*tensor.stride()))


class Options(ctypes.Structure):
    """flashjit_attention_options of c_api.h."""

    _fields_ = [
        ("causal", ctypes.c_int32),
        ("has_softmax_scale", ctypes.c_int32),
        ("softmax_scale", ctypes.c_float),
        ("lse", ctypes.POINTER(TensorView)),
        ("stream", ctypes.c_void_p),
        ("variant", ctypes.c_char_p),
    ]


class Library:
    def __init__(self, path):
        self.dll = ctypes.CDLL(str(path))
        view = ctypes.POINTER(TensorView)
        self.dll.flashjit_attention.argtypes = [view, view, view, view, ctypes.POINTER(Options)]
        self.dll.flashjit_attention.restype = ctypes.c_int
        self.dll.flashjit_last_error.restype = ctypes.c_char_p
        self.dll.flashjit_version.restype = ctypes.c_char_p
        self.dll.flashjit_measure_mma_ceiling.restype = ctypes.c_double

    def version(self):
        return self.dll.flashjit_version().decode()

    def last_error(self):
        return self.dll.flashjit_last_error().decode()

    def mma_ceiling(self):
        tflops = self.dll.flashjit_measure_mma_ceiling()
        if tflops < 0:
            raise RuntimeError(self.last_error())
        return tflops

    def launcher(self, tensors, causal, stream, variant=None):
        """A function without arguments that enqueues one attention call on tensors (q, k, v, out) in bf16.
        variant: a spelling, or None for the library's choice."""
        views = [ctypes.byref(TensorView.of(tensor)) for tensor in tensors]
        options = Options(causal=causal, stream=stream, variant=variant.encode() if variant else None)
        by_reference = ctypes.byref(options)

        def launch():
            if self.dll.flashjit_attention(*views, by_reference) != 0:
                raise RuntimeError(self.last_error())

        launch.tensors = tensors  # the views do not keep the memory
        return launch
