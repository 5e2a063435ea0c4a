# SPDX-License-Identifier: Apache-2.0
"""The library through its C interface (include/flashjit.h), on tensors of PyTorch."""

import ctypes


class TensorView(ctypes.Structure):
    """DLTensor of dlpack/dlpack.h, with DLDevice and DLDataType as their fields."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]
    CUDA = 2
    BFLOAT = 4

    @classmethod
    def of(cls, tensor):
        """Of a tensor in bf16 on a GPU. Keeps the sizes alive, but not the tensor's memory."""
        extents = ctypes.c_int64 * tensor.dim()
        return cls(data=tensor.data_ptr(), device_type=cls.CUDA, device_id=tensor.get_device(), ndim=tensor.dim(),
                   code=cls.BFLOAT, bits=16, lanes=1, shape=extents(*tensor.shape), strides=extents(*tensor.stride()))


class Window(ctypes.Structure):
    """flashjit_window of flashjit.h."""

    _fields_ = [("left", ctypes.c_int64), ("right", ctypes.c_int64)]


class Options(ctypes.Structure):
    """flashjit_attention_options of flashjit.h."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("causal", ctypes.c_int32),
        ("has_softmax_scale", ctypes.c_int32),
        ("softmax_scale", ctypes.c_float),
        ("lse", ctypes.POINTER(TensorView)),
        ("stream", ctypes.c_void_p),
        ("variant", ctypes.c_char_p),
        ("window", ctypes.POINTER(Window)),
        ("alibi_slopes", ctypes.POINTER(TensorView)),
        ("sinks", ctypes.POINTER(TensorView)),
        ("chunk", ctypes.c_int64),
        ("softcap", ctypes.c_float),
        ("reserved", ctypes.c_int32),
    ]

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(Options), **fields)


class Library:
    """The default engine of a libflashjit.so."""

    DEFAULT_ENGINE = None

    def __init__(self, path):
        self.dll = ctypes.CDLL(str(path))
        engine, view = ctypes.c_void_p, ctypes.POINTER(TensorView)
        self.dll.flashjit_attention.argtypes = [engine, view, view, view, view, ctypes.POINTER(Options)]
        self.dll.flashjit_last_error.restype = ctypes.c_char_p
        self.dll.flashjit_version.restype = ctypes.c_char_p
        self.dll.flashjit_measure_mma_ceiling.argtypes = [engine, ctypes.POINTER(ctypes.c_double)]

    def version(self):
        return self.dll.flashjit_version().decode()

    def require(self, status):
        if status != 0:
            raise RuntimeError(self.dll.flashjit_last_error().decode())

    def mma_ceiling(self):
        tflops = ctypes.c_double()
        self.require(self.dll.flashjit_measure_mma_ceiling(self.DEFAULT_ENGINE, ctypes.byref(tflops)))
        return tflops.value

    def launcher(self, tensors, causal, stream, variant=None, window=None):
        """A function without arguments that enqueues one attention call on tensors (q, k, v, out) in bf16.
        variant: a spelling, or None for the library's choice; window: (left, right), or None."""
        views = [ctypes.byref(TensorView.of(tensor)) for tensor in tensors]
        options = Options(causal=causal, stream=stream, variant=variant.encode() if variant else None)
        if window:
            options.window = ctypes.pointer(Window(*window))
        by_reference = ctypes.byref(options)

        def launch():
            self.require(self.dll.flashjit_attention(self.DEFAULT_ENGINE, *views, by_reference))

        launch.tensors = tensors  # the views do not keep the memory
        return launch
