# SPDX-License-Identifier: Apache-2.0
"""The way of arrays whose library has no table of C functions for DLPack: some microseconds of Python for each."""

from __future__ import annotations

import functools
import importlib
import operator
import re
import sys
from typing import Any, NamedTuple, Sequence

from . import _core
from ._errors import InvalidArgument, Unsupported
from ._functions import AnyMask, AnyScore, Mask, Score, to_function

# DLPack's numbers.
_CPU, _CUDA = 1, 2
_INT, _FLOAT, _BFLOAT, _BOOL, _E4M3, _E5M2 = 0, 2, 4, 6, 10, 12
_LEGACY_STREAM = 1  # the default stream, where 0 stands for nothing
# (code, bits) by the names that libraries have in common.
DLPACK_DTYPES = {"float16": (_FLOAT, 16), "bfloat16": (_BFLOAT, 16), "float32": (_FLOAT, 32)}


def attention(q: Any, k: Any, v: Any, causal: Any = None, window: Any = None, chunk: Any = None, scale: Any = None,
              softcap: Any = None, dropout: Any = None, dropout_seed: Any = None, dropout_offset: Any = None,
              max_seqlen_q: Any = None, max_seqlen_kv: Any = None, fixed_split_size: Any = None, accumulate: Any = None,
              score: AnyScore | None = None, mask: AnyMask | None = None, out: Any = None, lse: Any = None, stream: Any = None, variant: Any = None,
              plan: Any = None, engine: Any = None, tensors: dict[str, Any] | None = None) -> Any:
    """As flashjit.attention, whose further arrays are in a dict by their names."""
    library, tensors = _library_of("q", q), tensors or {}
    for name, array, offsets in (("q", q, "cu_seqlens_q"), ("v", v, "cu_seqlens_kv")):
        _require_rank(name, array, may_lack_batch=offsets in tensors)
    if out is None:
        out = _empty_out(library, q, (*q.shape[:-1], v.shape[-1]))
    else:
        library.check_out("out", out)
    *batch, seqlen, heads, _ = q.shape
    rows = library.empty(q, (*batch, heads, seqlen), "float32") if _flag("lse", lse) else None
    numbers = (causal, window, chunk, scale, softcap, dropout, dropout_seed, dropout_offset, max_seqlen_q,
               max_seqlen_kv, fixed_split_size, accumulate, variant)

    def launch(handle: int) -> None:
        _core.launch(engine, _export("q", q, handle), _export("k", k, handle), _export("v", v, handle),
                     _export("out", out, handle), None if rows is None else _export("lse", rows, handle),
                     export_all(tensors, handle), export_function("score", score, handle),
                     export_function("mask", mask, handle), numbers, plan, handle)

    results = library.run(launch, None if stream is None else stream_handle(stream), q,
                          [out] if rows is None else [out, rows])
    library.mark_written(out)
    return results[0] if rows is None else tuple(results)


def _empty_out(library: "_ArrayApi", q: Any, shape: Sequence[int]) -> Any:
    """Of bfloat16 where q is of 8 bits."""
    if _name_of_8_bits(q) is None:
        return library.empty(q, shape)
    try:
        return library.empty(q, shape, "bfloat16")
    except AttributeError as error:
        raise InvalidArgument(f"out: must be given beside q of {_name_of_8_bits(q)}, as its library has no bfloat16; float16 "
                              "will do") from error


# Options that are no arrays and no functions, as _core takes them.
_NUMBERS = ("causal", "window", "chunk", "scale", "softcap", "dropout", "dropout_seed", "dropout_offset",
            "max_seqlen_q", "max_seqlen_kv", "fixed_split_size", "accumulate", "variant")
_NAMES = frozenset((*_NUMBERS, "score", "mask", *_core.TENSOR_OPTIONS))


class CallOptions:
    """Options of calls, given by their names to the function."""

    def __init__(self, options: dict[str, Any], function: str) -> None:
        for name in options:
            if name not in _NAMES:
                raise TypeError(f"{function}() got an unknown argument {name!r}")
        self._tensors = {name: options.get(name) for name in _core.TENSOR_OPTIONS}
        self._score, self._mask = to_function(Score, options.get("score")), to_function(Mask, options.get("mask"))
        self._numbers = tuple(options.get(name) for name in _NUMBERS)

    def export(self, stream: int) -> tuple[Any, ...]:
        """(tensors, score, mask, numbers), as _core takes them."""
        return (export_all(self._tensors, stream), export_function("score", self._score, stream),
                export_function("mask", self._mask, stream), self._numbers)


def plan(made: _core.Plan, q: Any, k: Any, v: Any, memory: Any, stream: Any, engine: Any,
         options: dict[str, Any], function: str) -> None:
    """As flashjit.plan, into a plan that is empty, or flashjit.Plan.update: the function. options are those of calls."""
    given, library = CallOptions(options, function), _library_of("q", q)
    if memory is not None:
        library.check_out("memory", memory)

    def launch(handle: int) -> None:
        _core.plan(made, engine, _export("q", q, handle), _export("k", k, handle), _export("v", v, handle),
                   None if memory is None else _export("memory", memory, handle), *given.export(handle), handle)

    library.run(launch, None if stream is None else stream_handle(stream), q, [])
    if memory is not None:
        library.mark_written(memory)


# The options that have gradients, by the names of these, in the order of _core.
OPTION_GRADIENTS = {"dbias": "bias", "dslopes": "alibi_slopes", "dsinks": "sinks"}


def _like_option(name: str, options: dict[str, Any]) -> Any:
    """What the gradient of this name is of."""
    array = options.get(OPTION_GRADIENTS[name])
    if array is None:
        raise InvalidArgument(f"{name}: must not be given without {OPTION_GRADIENTS[name]}, of which it is the "
                              "gradient")
    return array


def _is_asked(value: Any) -> bool:
    """Of an option's gradient: by an array, or by True."""
    return value is not None and value is not False


def attention_backward(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, dlse: Any, into: dict[str, Any],
                       deterministic: bool, stream: Any, engine: Any, options: dict[str, Any]) -> tuple[Any, ...]:
    """As flashjit.attention_backward, whose gradients are in a dict by their names, in the order of _core."""
    given, library = CallOptions(options, "attention_backward"), _library_of("q", q)
    for name, array, offsets in (("q", q, "cu_seqlens_q"), ("k", k, "cu_seqlens_kv"), ("v", v, "cu_seqlens_kv")):
        _require_rank(name, array, may_lack_batch=options.get(offsets) is not None)
    of_keys = "float32" if any(_is_float32(into[name]) for name in ("dk", "dv")) else None  # which both have
    gradients = []
    for (name, array), like, dtype in zip(into.items(), (q, k, v), (None, of_keys, of_keys)):
        if array is None:
            array = library.empty(q, like.shape, dtype)
        elif array is not False:
            library.check_out(name, array)
        gradients.append(None if array is False else array)
    asked = [name for name in OPTION_GRADIENTS if _is_asked(into[name])]
    for name in OPTION_GRADIENTS:
        array = into[name] if name in asked else None
        if array is True:
            like = _like_option(name, options)
            array = _library_of(OPTION_GRADIENTS[name], like).empty(like, tuple(like.shape))
        elif array is not None:
            library.check_out(name, array)
        gradients.append(array)
    wanted = [array for array in gradients if array is not None]
    read = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse}
    is_deterministic = _flag("deterministic", deterministic)

    def launch(handle: int) -> None:
        _core.backward(engine, *(_export(name, array, handle) for name, array in read.items()),
                       None if dlse is None else _export("dlse", dlse, handle),
                       tuple(None if array is None else _export(name, array, handle)
                             for name, array in zip(into, gradients)), is_deterministic, *given.export(handle), handle)

    if not wanted:  # checked all the same
        launch(0)
        return None, None, None
    results = iter(library.run(launch, None if stream is None else stream_handle(stream), q, wanted))
    for array in wanted:
        library.mark_written(array)
    made = [None if array is None else next(results) for array in gradients]
    return (*made[:3], *(array for array in made[3:] if array is not None))


def _is_float32(array: Any) -> bool:
    return str(getattr(array, "dtype", "")).rpartition(".")[2] == "float32"


def reference(q: Any, k: Any, v: Any, engine: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """As flashjit.reference."""
    given, numpy = CallOptions(options, "reference"), importlib.import_module("numpy")
    for name, array, offsets in (("q", q, "cu_seqlens_q"), ("v", v, "cu_seqlens_kv")):
        _require_rank(name, array, may_lack_batch=options.get(offsets) is not None)
    *batch, seqlen, heads, _ = q.shape
    out, lse = numpy.empty((*batch, seqlen, heads, v.shape[-1])), numpy.empty((*batch, heads, seqlen))
    _core.reference(engine, *(_export_host(name, array) for name, array in (("q", q), ("k", k), ("v", v))),
                    _export("out", out, 0), _export("lse", lse, 0), *given.export(0))
    return out, lse


def _export_host(name: str, array: Any) -> Any:
    """Of any dtype that the reference takes: calls of kernels refuse float64 of PyTorch, and tell how to round it."""
    if str(getattr(array, "dtype", "")) != "torch.float64":
        return _export(name, array, 0)
    if str(array.layout) != "torch.strided" or array.is_meta:
        raise InvalidArgument(f"{name}: must be a dense tensor that has memory, was on {array.device} with layout "
                              f"{array.layout}")
    check_tensor(name, array)
    return _export(name, array.detach().cpu().numpy(), 0)


def reference_backward(dout: Any, q: Any, k: Any, v: Any, dlse: Any, engine: Any, asked: dict[str, Any],
                       options: dict[str, Any]) -> tuple[Any, ...]:
    """As flashjit.reference_backward, whose flags are in a dict by their names, in the order of _core."""
    given, numpy = CallOptions(options, "reference_backward"), importlib.import_module("numpy")
    read = {"dout": dout, "q": q, "k": k, "v": v}
    views = [_export_host(name, array) for name, array in read.items()]
    like = dict(zip(("dq", "dk", "dv"), (q, k, v)))
    like.update((name, _like_option(name, options)) for name, is_asked in asked.items() if _flag(name, is_asked))
    gradients = {name: numpy.empty(tuple(array.shape)) for name, array in like.items()}
    _core.reference_backward(engine, *views, None if dlse is None else _export_host("dlse", dlse),
                             tuple(_export(name, gradients[name], 0) if name in gradients else None
                                   for name in ("dq", "dk", "dv", *asked)), *given.export(0))
    return tuple(gradients.values())


def block_mask(q: Any, k: Any, *, mask: Mask | None, into: Any, stream: Any, engine: Any, **tensors: Any) -> Any:
    """As flashjit.block_mask. tensors are those that the block mask depends on, None where they are not given."""
    library = _library_of("q", q)
    for name, array in (("q", q), ("k", k)):
        _require_rank(name, array)
    batch, heads = _sizes_of_block_mask(q, mask, **tensors) if into is None else tuple(into.shape[:2])
    sizes = batch, heads, q.shape[1], k.shape[1]
    if into is None:
        into = library.empty(q, _core.block_mask_dims(*sizes), "int32")
    else:
        library.check_out("into", into)

    def launch(handle: int) -> None:
        _core.block_mask(engine, _export("into", into, handle), export_all(tensors, handle),
                         export_function("mask", mask, handle), handle, sizes)

    results = library.run(launch, None if stream is None else stream_handle(stream), q, [into])
    library.mark_written(into)
    return results[0]


def _sizes_of_block_mask(q: Any, mask: Mask | None, boolean_mask: Any, documents: Any, tree: Any, query_offsets: Any,
                         key_offsets: Any) -> tuple[int, int]:
    """Those of q, but 1 where nothing tells batch entries or heads apart."""
    names = set(re.findall(r"\w+", "" if mask is None else mask.text))
    shapes = [tuple(getattr(array, "shape", ())) for array in (boolean_mask, documents, tree) if array is not None]
    by_batch = "batch" in names or query_offsets is not None or key_offsets is not None
    by_batch = by_batch or any(shape[:1] != (1, ) for shape in shapes)
    by_head = "head" in names or (boolean_mask is not None and shapes[0][1:2] != (1, ))
    return q.shape[0] if by_batch else 1, q.shape[2] if by_head else 1


def merge(parts: Sequence[tuple[Any, Any]], out: Any, lse: Any, stream: Any, engine: Any) -> tuple[Any, Any]:
    """As flashjit.merge."""
    pairs = _pairs_of(parts)
    first = pairs[0][0]
    library = _library_of("parts[0].out", first)
    _require_rank("parts[0].out", first)
    batch, seqlen, heads, _ = first.shape
    outputs = []
    for name, given, shape, dtype in (("out", out, first.shape, None), ("lse", lse, (batch, heads, seqlen), "float32")):
        if given is not None:
            library.check_out(name, given)
        outputs.append(library.empty(first, shape, dtype) if given is None else given)

    def launch(handle: int) -> None:
        described = tuple((_export(f"parts[{i}].out", rows, handle), _export(f"parts[{i}].lse", sums, handle))
                          for i, (rows, sums) in enumerate(pairs))
        _core.merge(engine, described, _export("out", outputs[0], handle), _export("lse", outputs[1], handle), handle)

    results = library.run(launch, None if stream is None else stream_handle(stream), first, outputs)
    for output in outputs:
        library.mark_written(output)
    return results[0], results[1]


def append(k: Any, v: Any, k_cache: Any, v_cache: Any, q_out: Any, k_rotary_cache: Any, interleaved: Any, stream: Any,
           engine: Any, tensors: dict[str, Any]) -> Any:
    """As flashjit.append, whose further arrays are in a dict by their names."""
    interleaved, q = _flag("rotary_interleaved", interleaved), tensors["q"]
    if q is not None and q_out is None:
        q_out = _library_of("q", q).empty(q, q.shape)
    optional = {"q_out": q_out, "k_rotary_cache": k_rotary_cache}
    views_of = {"k_cache": k_cache, "v_cache": v_cache,
                **{name: array for name, array in optional.items() if array is not None}}
    # Those of tokens are written, too.
    scales = {name: tensors[name] for name in ("k_scale", "v_scale") if len(getattr(tensors[name], "shape", ())) > 1}
    written = {**views_of, **scales}
    libraries = {name: _library_of(name, array) for name, array in written.items()}
    for name, array in written.items():
        libraries[name].check_out(name, array)

    def launch(handle: int) -> None:
        views = {name: _export(name, array, handle) for name, array in views_of.items()}
        _core.append(engine, _export("k", k, handle), _export("v", v, handle), views["k_cache"], views["v_cache"],
                     views.get("q_out"), views.get("k_rotary_cache"), export_all(tensors, handle), interleaved, handle)

    library = libraries["k_cache"]
    library.run(launch, None if stream is None else stream_handle(stream), k_cache, [])
    for name, array in written.items():
        libraries[name].mark_written(array)
    return q_out


# By the numbers of flashjit_scale_of.
_SCALES_OF = {"head": 0, "tensor": 1, "block": 2}


def quantize(x: Any, scale_of: Any, block_size: Any, scale_is_given: Any, rotation_seed: Any, interleaved: Any,
             out: Any, scale: Any, dtype: Any, stream: Any, engine: Any, tensors: dict[str, Any]) -> tuple[Any, Any]:
    """As flashjit.quantize, whose further arrays are in a dict by their names."""
    library = _library_of("x", x)
    _require_rank("x", x, may_lack_batch=True)
    if scale_of not in _SCALES_OF:
        raise InvalidArgument(f"scale_of: must be one of {', '.join(map(repr, _SCALES_OF))}, was {scale_of!r:.100}")
    interleaved, is_given = _flag("rotary_interleaved", interleaved), _flag("scale_is_given", scale_is_given)
    block_size, seed = _whole("block_size", block_size, 63), _whole("rotation_seed", rotation_seed or 0, 64)
    if is_given and scale is None:
        raise InvalidArgument("scale: must be given with scale_is_given=True, was not")
    if out is None:
        name = "float8_e4m3fn" if dtype is None else _name_of_format(dtype)
        out = library.empty_of_8_bits(x, x.shape, name)
    else:
        library.check_out("out", out)
        if getattr(out, "dtype", None) is not None and not (_name_of_8_bits(out) or _is_of_bytes(out)):
            raise InvalidArgument(f"out: dtype must be float8_e4m3fn, float8_e5m2 or uint8, was {out.dtype}")
        wanted = "float8_e4m3fn" if dtype is None else _name_of_format(dtype)
        name = _name_of_8_bits(out) or wanted  # bytes are what dtype says
        if dtype is not None and wanted != name:
            raise InvalidArgument(f"dtype: must be {name} like that of out, was {wanted}")
    if scale is None:
        scale = library.empty(x, _shape_of_scales(x, scale_of, block_size), "float32")
    elif not is_given:
        library.check_out("scale", scale)
    numbers = (_SCALES_OF[scale_of], is_given, block_size, rotation_seed is not None, seed, interleaved,
               name == "float8_e5m2")

    def launch(handle: int) -> None:
        _core.quantize(engine, _export("x", x, handle), _export("out", _of_8_bits(out, name), handle),
                       _export("scale", scale, handle), export_all(tensors, handle), *numbers, handle)

    outputs = [out] if is_given else [out, scale]
    results = library.run(launch, None if stream is None else stream_handle(stream), x, outputs)
    for output in outputs:
        library.mark_written(output)
    return library.to_8_bits(results[0], name), scale if is_given else results[1]


def _shape_of_scales(x: Any, scale_of: str, block_size: int) -> tuple[int, ...]:
    *batch, seqlen, heads, _ = x.shape
    if scale_of == "tensor":
        return (1, )
    return (*batch, heads, -(-seqlen // max(block_size, 1))) if scale_of == "block" else (*batch, heads)


_FORMATS = ("float8_e4m3fn", "float8_e5m2")


def _name_of_8_bits(array: Any) -> str | None:
    """Of an array's dtype, None where it is another."""
    name = str(getattr(array, "dtype", "")).rpartition(".")[2]
    return name if name in _FORMATS else None


def _name_of_format(dtype: Any) -> str:
    name = (dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))).rpartition(".")[2]
    if name not in _FORMATS:
        raise InvalidArgument(f"dtype: must be float8_e4m3fn or float8_e5m2, was {dtype!r:.100}")
    return name


def _is_of_bytes(array: Any) -> bool:
    return str(array.dtype).rpartition(".")[2] == "uint8"


def _of_8_bits(array: Any, name: str) -> Any:
    """Bytes as what they are, where their library has it."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor) and _is_of_bytes(array):
        return array.view(getattr(torch, name))
    return array


def _whole(name: str, value: Any, bits: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name}: must be a whole number, was {value!r:.100}") from None
    if not 0 <= number < 1 << bits:
        raise InvalidArgument(f"{name}: must be from 0 to 2**{bits} - 1, was {number}")
    return number


def _pairs_of(parts: Any) -> list[tuple[Any, Any]]:
    try:
        pairs = [(out, lse) for out, lse in parts]
    except (TypeError, ValueError):
        raise InvalidArgument("parts: must be pairs of out and lse, as flashjit.attention(..., lse=True) returns them, "
                              f"was {type(parts).__name__}") from None
    if not pairs:
        raise InvalidArgument("parts: must have at least 1, had 0")
    return pairs


def _flag(name: str, value: Any) -> bool:
    try:
        return bool(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name}: must be True or False, was {value!r:.100}") from None


def stream_handle(stream: Any) -> int:
    """The number of a stream: an int, or an object of CUDA Python, PyTorch or CuPy."""
    handle = _handle_of(stream)
    if not 0 <= handle < 1 << 64:
        raise InvalidArgument(f"stream: must be a handle from 0 to 2**64 - 1, was {handle}")
    return handle


def _handle_of(stream: Any) -> int:
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise InvalidArgument("stream: must be an int or have __cuda_stream__, cuda_stream or ptr, "
                          f"was {type(stream).__name__}")


def check_tensor(name: str, tensor: Any) -> None:
    """Raise for a tensor whose derivative is wanted, or whose memory is not what it says."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if tensor.requires_grad and torch.is_grad_enabled():
        raise Unsupported(f"{name}: must not require a gradient, which flashjit.attention does not record; pass "
                          f"{name}.detach(), call under torch.no_grad(), or use flashjit.torch")
    if not hasattr(tensor, "is_neg"):  # another library's
        return
    if tensor.is_neg():
        raise InvalidArgument(f"{name}: must be what its memory says, was a view that negates it; use "
                              f"{name}.resolve_neg()")
    if torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None:
        raise Unsupported(f"{name}: must have no tangent, as flashjit.attention has no forward-mode derivative; pass "
                          f"torch.autograd.forward_ad.unpack_dual({name}).primal")


def refuse_array(name: str, array: Any) -> None:
    """Raise for an array that its library cannot describe as memory with strides."""
    layout = f" with layout {array.layout}" if hasattr(array, "layout") else ""
    raise InvalidArgument(f"{name}: must be a dense {_dtypes_of(name).names} array with memory on a CUDA device, was a "
                          f"{type(array).__name__} of {getattr(array, 'dtype', None)} on "
                          f"{getattr(array, 'device', None)}{layout}")


class _Dtypes(NamedTuple):
    """As errors tell them."""

    names: str
    torch_method: str  # which makes a tensor of one
    typestr: str


_F32 = _Dtypes("float32", "float", "float32 (typestr <f4)")
_I32 = _Dtypes("int32", "int", "int32 (typestr <i4)")
_I64 = _Dtypes("int64", "long", "int64 (typestr <i8)")
_I32_OR_I64 = _Dtypes("int32 or int64", "int", "int32 or int64 (typestr <i4, <i8)")
_FLOATS = _Dtypes("float16, bfloat16 or float32", "bfloat16", "float16 or float32 (typestr <f2, <f4; bfloat16 needs "
                  "__dlpack__)")
_BOOLEAN = _Dtypes("bool", "bool", "bool (typestr |b1)")
_OF_ROWS = _Dtypes("float16 or bfloat16", "bfloat16", "float16 (typestr <f2; bfloat16 needs __dlpack__)")
_DTYPES = {
    "alibi_slopes": _F32, "sinks": _F32, "lse": _F32, "documents": _I32, "prefix": _I32, "query_offsets": _I32,
    "key_offsets": _I32, "block_mask": _I32, "into": _I32, "memory": _I32, "cu_seqlens_q": _I32, "cu_seqlens_kv": _I32,
    "seqused_q": _I32, "seqused_kv": _I32, "leftpad_kv": _I32, "batch_indices_kv": _I32, "page_table": _I32,
    "cu_seqlens": _I32, "slots": _I32_OR_I64, "positions": _I32_OR_I64,
    "tree": _I64, "dropout_state": _I64, "boolean_mask": _BOOLEAN, "dropout_mask": _BOOLEAN,
    "rotary_cos": _FLOATS, "rotary_sin": _FLOATS, "bias": _FLOATS, "k_scale": _F32, "v_scale": _F32, "q_scale": _F32,
    "k_rotary": _OF_ROWS, "out_scale": _F32, "scale": _F32,
    "dlse": _F32, "dk": _FLOATS, "dv": _FLOATS}
_OF_KEYS = _Dtypes("float16, bfloat16, float8_e4m3fn or float8_e5m2", "bfloat16",
                   "float16 (typestr <f2; bfloat16 and those of 8 bits need __dlpack__)")
_OF_CAPTURES = _Dtypes("float16, bfloat16, float32, int32, int64 or bool", "float",
                       "float16, float32, int32, int64 or bool (typestr <f2, <f4, <i4, <i8, |b1; bfloat16 needs "
                       "__dlpack__)")


def _dtypes_of(name: str) -> _Dtypes:
    """Of an argument, or of "score: capture slope"."""
    if ": capture " in name:
        return _OF_CAPTURES
    if name.startswith("parts["):
        return _F32 if name.endswith("lse") else _FLOATS
    return _DTYPES.get(name, _OF_KEYS if name in ("q", "k", "v", "k_cache", "v_cache") else _OF_ROWS)


def mark_written(tensor: Any) -> None:
    """Count a write into a tensor of PyTorch, so that autograd notices if it had saved the tensor."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch.autograd.graph, "increment_version") and not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def _require_rank(name: str, array: Any, may_lack_batch: bool = False) -> None:
    if not hasattr(array, "shape"):
        raise _no_array(name, array)
    rank = len(array.shape)
    if rank != 4 and not (may_lack_batch and rank == 3):
        wanted = "3 or 4" if may_lack_batch else "4"
        raise InvalidArgument(f"{name}: rank must be {wanted}, was {rank} with shape {list(array.shape)}")


# --- Libraries: whose arrays are made, and on which stream -----------------------------------------------------------


class _ArrayApi:
    """Any library that follows the Python array API standard."""

    def empty(self, like: Any, shape: Sequence[int], dtype: str | None = None) -> Any:
        namespace = like.__array_namespace__()
        return namespace.empty(shape, dtype=getattr(namespace, dtype) if dtype else like.dtype, device=like.device)

    def empty_of_8_bits(self, like: Any, shape: Sequence[int], dtype: str) -> Any:
        """Of bytes where the library has no such dtype."""
        try:
            return self.empty(like, shape, dtype)
        except AttributeError:
            return self.empty(like, shape, "uint8")

    def to_8_bits(self, out: Any, dtype: str) -> Any:
        """What was made so, as the caller gets it."""
        return out

    def check_out(self, name: str, out: Any) -> None:
        """Raise when an array of this library cannot be written."""
        if not getattr(getattr(out, "flags", None), "writeable", True):  # NumPy's
            raise InvalidArgument(f"{name}: must be writable, was read-only")

    def mark_written(self, out: Any) -> None:
        """Tell the library that its array was written, where it asks to be told."""

    def run(self, launch: Any, stream: int | None, q: Any, outputs: list[Any]) -> list[Any]:
        """Launch into the outputs, and return them as the caller may use them."""
        launch(self.current_stream(q) if stream is None else stream)
        return outputs

    def current_stream(self, array: Any) -> int:
        return 0


class _NumPy(_ArrayApi):

    def empty(self, like: Any, shape: Sequence[int], dtype: str | None = None) -> Any:
        numpy = importlib.import_module("numpy")
        return numpy.empty(shape, dtype=getattr(numpy, dtype) if dtype else like.dtype)

    def empty_of_8_bits(self, like: Any, shape: Sequence[int], dtype: str) -> Any:
        bytes_of_it = self.empty(like, shape, "uint8")
        ml_dtypes = sys.modules.get("ml_dtypes")
        return bytes_of_it if ml_dtypes is None else bytes_of_it.view(getattr(ml_dtypes, dtype))


class _CuPy(_ArrayApi):

    def empty(self, like: Any, shape: Sequence[int], dtype: str | None = None) -> Any:
        cupy = importlib.import_module("cupy")
        with like.device:
            return cupy.empty(shape, dtype=getattr(cupy, dtype) if dtype else like.dtype)

    def current_stream(self, array: Any) -> int:
        return importlib.import_module("cupy").cuda.get_current_stream(array.device.id).ptr


class _Torch(_ArrayApi):
    """Before 2.10, and together with arrays of other libraries."""

    def mark_written(self, out: Any) -> None:
        if isinstance(out, importlib.import_module("torch").Tensor):
            mark_written(out)

    def empty(self, like: Any, shape: Sequence[int], dtype: str | None = None) -> Any:
        torch = importlib.import_module("torch")
        return torch.empty(shape, dtype=getattr(torch, dtype) if dtype else like.dtype, device=like.device)

    def current_stream(self, array: Any) -> int:
        torch = importlib.import_module("torch")
        return torch.cuda.current_stream(array.device).cuda_stream if array.is_cuda else 0


class _Jax(_ArrayApi):
    """Arrays of JAX are immutable, and JAX alone knows when its memory may be used: it lends a stream to whoever gives
    it an array, and waits for what runs there. So the kernel runs while JAX takes the outputs over."""

    def empty(self, like: Any, shape: Sequence[int], dtype: str | None = None) -> Any:
        jax = importlib.import_module("jax")
        if isinstance(like, jax.core.Tracer):
            raise Unsupported("q: must be an array with values, was traced by a transformation of JAX; call "
                              "flashjit.attention outside jax.jit, jax.grad and jax.vmap, or flashjit.jax.attention")
        with jax.default_device(next(iter(like.devices()))):
            return jax.numpy.empty(shape, dtype=getattr(jax.numpy, dtype) if dtype else like.dtype)

    def empty_of_8_bits(self, like: Any, shape: Sequence[int], dtype: str) -> Any:
        return self.empty(like, shape, "uint8")  # its DLPack has no word for the others

    def to_8_bits(self, out: Any, dtype: str) -> Any:
        return out.view(getattr(importlib.import_module("jax").numpy, dtype))

    def check_out(self, name: str, out: Any) -> None:
        raise InvalidArgument(f"{name}: must not be an array of JAX, which are immutable")

    def run(self, launch: Any, stream: int | None, q: Any, outputs: list[Any]) -> list[Any]:
        if stream is not None:
            raise InvalidArgument(f"stream: must be None for arrays of JAX, which has its own, was {stream}")
        jax = importlib.import_module("jax")
        first, *others = outputs or [self.empty(q, (1, ))]  # without one nothing lends a stream
        results = [jax.dlpack.from_dlpack(_Pending(first, launch))]
        results += [jax.dlpack.from_dlpack(other) for other in others]
        # JAX may give the memory of q, k and v away when the caller drops them, without regard to this kernel.
        return jax.block_until_ready(results)


class _Pending:
    """An array for from_dlpack() that is computed on the stream which that asks for."""

    def __init__(self, array: Any, launch: Any) -> None:
        self._array = array
        self._launch = launch

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        self._launch(stream or 0)
        return self._array.__dlpack__(stream=stream, **options)


class _Unknown(_ArrayApi):
    """A library whose arrays can be read and written, but which does not say how one is made."""

    def empty(self, like: Any, shape: Sequence[int], dtype: str | None = None) -> Any:
        made, hint = "lse: must be False", ""
        if dtype != "float32":
            made, hint = f"{'into' if dtype else 'out'}: must be given", "; pass an array to write to"
        raise InvalidArgument(f"{made}, as nothing says how to make an array like q, a {type(like).__name__}{hint}")

    def current_stream(self, array: Any) -> int:
        return getattr(array, "__cuda_array_interface__", {}).get("stream") or 0


_LIBRARIES = {"numpy": _NumPy(), "cupy": _CuPy(), "torch": _Torch(), "jax": _Jax(), "jaxlib": _Jax()}


@functools.lru_cache(maxsize=64)
def _known_library(kind: Any) -> _ArrayApi | None:
    """By the packages that the type and its bases come from."""
    packages = (base.__module__.partition(".")[0] for base in kind.__mro__)
    return next((_LIBRARIES[package] for package in packages if package in _LIBRARIES), None)


def _library_of(name: str, array: Any) -> _ArrayApi:
    library = _known_library(type(array))
    if library is not None and hasattr(array, "shape"):
        return library
    if hasattr(array, "__array_namespace__"):
        return _ArrayApi()
    if hasattr(array, "shape") and (hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__")):
        return _Unknown()
    raise _no_array(name, array)


def _no_array(name: str, array: Any) -> InvalidArgument:
    has_content = hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__")
    wanted = "shape" if has_content else "__dlpack__ or __cuda_array_interface__"
    return InvalidArgument(f"{name}: must be an array that has {wanted}, was {type(array).__name__}; make one with "
                           "torch.tensor or the like")


# --- Views: a capsule, or a description as _core.launch takes it -----------------------------------------------------


def _export(name: str, array: Any, stream: int) -> Any:
    if _known_library(type(array)) is _LIBRARIES["torch"]:
        return _describe_torch(name, array)
    if _name_of_8_bits(array) and _known_library(type(array)) is _LIBRARIES["numpy"]:
        return _describe_8_bits_of_numpy(array)
    if hasattr(array, "__dlpack__"):
        return _to_capsule(name, array, stream)
    if hasattr(array, "__cuda_array_interface__"):
        return _describe_cuda_array(name, array)
    raise _no_array(name, array)


def export_all(arrays: dict[str, Any], stream: int) -> dict[str, Any]:
    return {name: _export(name, array, stream) for name, array in arrays.items() if array is not None}


def export_function(kind: str, function: AnyScore | AnyMask | None, stream: int) -> Any:
    """(text, tensors, numbers), as _core takes them."""
    if function is None:
        return None
    if isinstance(function, str):
        return function, (), ()
    tensors = tuple((name, _export(f"{kind}: capture {name}", array, stream)) for name, array in function.tensors)
    return function.text, tensors, function.numbers


def _to_capsule(name: str, array: Any, stream: int) -> Any:
    on_host = array.__dlpack_device__()[0] == _CPU
    options = {} if on_host else {"stream": stream or _LEGACY_STREAM}
    try:
        try:
            return array.__dlpack__(max_version=(1, 0), **options)
        except TypeError:  # from before versions
            return array.__dlpack__(**options)
    except (BufferError, TypeError, RuntimeError) as error:
        raise InvalidArgument(f"{name}: must be an array that DLPack can describe, in {_dtypes_of(name).names}, was "
                              f"{type(array).__name__} of {getattr(array, 'dtype', None)}: {error}") from error


_TORCH_CODES = {
    "torch.float16": _FLOAT, "torch.bfloat16": _BFLOAT, "torch.float32": _FLOAT, "torch.int32": _INT,
    "torch.int64": _INT, "torch.bool": _BOOL, "torch.float8_e4m3fn": _E4M3, "torch.float8_e5m2": _E5M2}
_TYPESTR_CODES = {"<f2": _FLOAT, "<f4": _FLOAT, "<i4": _INT, "<i8": _INT, "|b1": _BOOL}


def _describe_torch(name: str, tensor: Any) -> Any:
    check_tensor(name, tensor)
    if str(tensor.layout) != "torch.strided" or tensor.is_meta:
        refuse_array(name, tensor)
    devices = {"cpu": _CPU, "cuda": _CUDA}
    if tensor.device.type not in devices:
        raise InvalidArgument(f"{name}: must be on a CUDA device, was on {tensor.device}; use {name}.cuda()")
    if str(tensor.dtype) not in _TORCH_CODES:
        wanted = _dtypes_of(name)
        raise InvalidArgument(f"{name}: dtype must be {wanted.names}, was {tensor.dtype}; use "
                              f"{name.rpartition(' ')[2]}.{wanted.torch_method}()")
    return (tensor.data_ptr(), devices[tensor.device.type], tensor.device.index or 0, _TORCH_CODES[str(tensor.dtype)],
            8 * tensor.element_size(), tensor.shape, tensor.stride())


def _describe_8_bits_of_numpy(array: Any) -> Any:
    """Of ml_dtypes, which NumPy has no word of DLPack for. An element is a byte."""
    code = _E5M2 if _name_of_8_bits(array) == "float8_e5m2" else _E4M3
    return array.ctypes.data, _CPU, 0, code, 8, array.shape, array.strides


_WRITTEN = ("out", "lse", "into", "memory", "k_cache", "v_cache", "q_out", "dq", "dk", "dv")


def _describe_cuda_array(name: str, array: Any) -> Any:
    interface = array.__cuda_array_interface__
    kind = interface["typestr"]
    if kind not in _TYPESTR_CODES:
        raise InvalidArgument(f"{name}: dtype must be {_dtypes_of(name).typestr}, was {kind}")
    address, is_read_only = interface["data"]
    if is_read_only and name in _WRITTEN:
        raise InvalidArgument(f"{name}: must be writable, was read-only")
    size = int(kind[2:])
    strides = interface.get("strides")
    if strides and any(stride % size for stride in strides):
        raise InvalidArgument(f"{name}: strides must be multiples of {size} bytes, were {strides}")
    steps = None if strides is None else tuple(stride // size for stride in strides)
    return address or 0, _CUDA, 0, _TYPESTR_CODES[kind], 8 * size, interface["shape"], steps
