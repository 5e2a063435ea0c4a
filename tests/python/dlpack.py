# SPDX-License-Identifier: Apache-2.0
"""Producers of DLPack tensors, written with ctypes so that tests see when their deleters are called."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

import numpy as np

CPU = 1
_CODES = {np.dtype(np.float16): (2, 16), np.dtype(np.float32): (2, 32), np.dtype(np.int32): (0, 32),
          np.dtype(np.int64): (0, 64), np.dtype(np.bool_): (6, 8)}
_DTYPES = {value: key for key, value in _CODES.items()}


class Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
                ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16), ("shape", ctypes.POINTER(c_int64)),
                ("strides", ctypes.POINTER(c_int64)), ("byte_offset", c_uint64)]


Deleter = ctypes.CFUNCTYPE(None, c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("owner", c_void_p), ("deleter", Deleter)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("owner", c_void_p), ("deleter", Deleter),
                ("flags", c_uint64), ("tensor", Tensor)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [c_void_p, c_char_p, c_void_p]


def describe(array: np.ndarray, tensor: Tensor) -> object:
    """Fill the tensor, and return what must live as long as it."""
    extents = (c_int64 * (2 * array.ndim))(*array.shape, *(stride // array.itemsize for stride in array.strides))
    tensor.data, tensor.ndim, tensor.device_type, tensor.device_id = array.ctypes.data, array.ndim, CPU, 0
    tensor.code, tensor.bits = _CODES[array.dtype]
    tensor.lanes, tensor.byte_offset = 1, 0
    tensor.shape = ctypes.cast(extents, ctypes.POINTER(c_int64))
    tensor.strides = ctypes.cast(ctypes.addressof(extents) + 8 * array.ndim, ctypes.POINTER(c_int64))
    return extents


class Producer:
    """An array that gives capsules of one kind, and counts them and the calls of their deleters."""

    name: bytes
    kind: type

    def __init__(self, array: np.ndarray, flags: int = 0, major: int = 1) -> None:
        self.shape = array.shape
        self.given = self.deleted = 0
        self._array = array
        self._flags = flags
        self._major = major
        self._kept: list[object] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def make_managed(self) -> ctypes.Structure:
        managed = self.kind()
        managed.deleter = Deleter(self._delete)
        self._kept += [managed, describe(self._array, managed.tensor)]
        return managed

    def make_capsule(self) -> object:
        self.given += 1
        return _new_capsule(ctypes.addressof(self.make_managed()), self.name, None)

    def _delete(self, managed: int) -> None:
        self.deleted += 1


class OldProducer(Producer):
    """From before versions: __dlpack__ takes no max_version."""

    name = b"dltensor"
    kind = Managed

    def __dlpack__(self, stream: object = None) -> object:
        return self.make_capsule()


class NewProducer(Producer):
    name = b"dltensor_versioned"
    kind = Versioned

    def make_managed(self) -> ctypes.Structure:
        managed = super().make_managed()
        managed.major, managed.flags = self._major, self._flags
        return managed

    def __dlpack__(self, *, stream: object = None, max_version: object = None) -> object:
        return self.make_capsule()


# --- A library with the table of C functions --------------------------------------------------------------------------


class ExchangeApi(ctypes.Structure):
    Allocate = ctypes.CFUNCTYPE(c_int, ctypes.POINTER(Tensor), ctypes.POINTER(c_void_p), c_void_p, c_void_p)
    Export = ctypes.CFUNCTYPE(c_int, ctypes.py_object, ctypes.POINTER(c_void_p))
    Import = ctypes.CFUNCTYPE(c_int, c_void_p, ctypes.POINTER(c_void_p))
    View = ctypes.CFUNCTYPE(c_int, ctypes.py_object, ctypes.POINTER(Tensor))
    Stream = ctypes.CFUNCTYPE(c_int, c_int32, c_int32, ctypes.POINTER(c_void_p))
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("previous", c_void_p), ("allocate", Allocate),
                ("export_array", Export), ("import_array", Import), ("view_array", View), ("current_stream", Stream)]


class TableArray:
    """An array of that library. Its type gets the table below."""

    made = deleted = imported = 0  # tensors that the library allocated, and what became of them

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.extents: object = None


def _view(array: TableArray, tensor: object) -> int:
    array.extents = describe(array.array, tensor.contents)
    return 0


def _allocate(prototype: object, made: object, context: int, fail: int) -> int:
    tensor = prototype.contents
    array = np.full(tensor.shape[:tensor.ndim], np.nan, _DTYPES[tensor.code, tensor.bits])
    managed = NewProducer(array).make_managed()
    managed.deleter = _delete_made
    _made[ctypes.addressof(managed)] = (array, managed, describe(array, managed.tensor))
    made[0] = ctypes.addressof(managed)
    TableArray.made += 1
    return 0


def _import(taken: int, result: object) -> int:
    array = TableArray(_made.pop(taken)[0])
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(array))
    result[0] = id(array)
    TableArray.imported += 1
    return 0


def _count_deleted(managed: int) -> None:
    del _made[managed]
    TableArray.deleted += 1


_made: dict[int, tuple[object, ...]] = {}
_delete_made = Deleter(_count_deleted)
_table = ExchangeApi(1, 2, None, ExchangeApi.Allocate(_allocate), ExchangeApi.Export(), ExchangeApi.Import(_import),
                     ExchangeApi.View(_view), ExchangeApi.Stream())
_newer_table = ExchangeApi(2, 0, ctypes.addressof(_table))
_table_name = b"dlpack_exchange_api"  # a capsule keeps no copy
TableArray.__dlpack_c_exchange_api__ = _new_capsule(ctypes.addressof(_newer_table), _table_name, None)
