# SPDX-License-Identifier: Apache-2.0
"""FlashJIT for JAX 0.10 or later: functions for jax.jit, jax.grad, jax.vmap, jax.checkpoint, jax.lax.scan and arrays
that are sharded by batch and heads.

flashjit.attention takes arrays of JAX, too, outside of such functions. Calls here go to the default engine, which is
made when this module is imported. Functions are thread-safe."""

from __future__ import annotations

import ctypes
import functools
import math
import operator
import pathlib
import re
from typing import Any, Iterable, NamedTuple, Sequence

import jax
import jax.numpy as jnp
import numpy
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from . import _core
from ._errors import InvalidArgument, Unsupported

__all__ = ["attention", "dot_product_attention"]

# --- The handlers --------------------------------------------------------------------------------------------------

# By the names of XLA's targets. The function of each platform has this name and that of the platform.
_FORWARD, _BACKWARD = "flashjit_jax_attention", "flashjit_jax_attention_backward"


def _load_handlers() -> ctypes.CDLL:
    path = pathlib.Path(__file__).with_name("libflashjit_jax.so")
    if not path.exists():
        raise ImportError("this build of flashjit has no handlers for JAX: build it where jaxlib can be imported, or "
                          "with FLASHJIT_XLA_INCLUDE_DIR; docs/jax.md says how", name=__name__, path=str(path))
    return ctypes.CDLL(str(path))


_handlers = _load_handlers()


_used_engines: list[Any] = []  # kept, as calls may be on their way in threads of XLA's


def _use_engine(engine: Any) -> None:
    """For all calls that follow, also of functions that were compiled before. None is the default one."""
    _used_engines.append(engine)
    _handlers.flashjit_jax_use_engine(ctypes.c_void_p(_core.engine_address(engine)))


def _register() -> None:
    for target in (_FORWARD, _BACKWARD):
        for platform in ("CUDA", "cpu"):
            handler = getattr(_handlers, f"{target}_{platform.lower()}")
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(handler), platform=platform)


_use_engine(None)
_register()

# --- What calls are of ---------------------------------------------------------------------------------------------

# A letter for each dimension: batch, query, key, head of q, group of heads (a head of k), head_dim, that of v.
_WORDS = {"b": "batch", "q": "seqlen_q", "k": "seqlen_kv", "h": "heads", "g": "heads", "d": "head_dim",
          "e": "head_dim"}
_DIMS = {"q": "bqhd", "k": "bkgd", "v": "bkge", "out": "bqhe", "lse": "bhq", "dout": "bqhe", "dlse": "bhq",
         "alibi_slopes": "bh", "sinks": "bh", "bias": "bhqk", "boolean_mask": "bhqk", "documents": "bk", "prefix": "b",
         "seqused_kv": "b", "leftpad_kv": "b", "dq": "bqhd", "dk": "bkgd", "dv": "bkge", "dbias": "bhqk",
         "dslopes": "bh", "dsinks": "bh"}
# Of which a size of 1 stands for all.
_SHARED = {"bias": "bhq", "boolean_mask": "bhq", "documents": "b", "dbias": "bhq"}
_MAY_LACK_BATCH = ("alibi_slopes", "sinks")
_DTYPES = {"alibi_slopes": ("float32", ), "sinks": ("float32", ), "bias": ("float16", "bfloat16", "float32"),
           "boolean_mask": ("bool", ), "documents": ("int32", ), "prefix": ("int32", ), "seqused_kv": ("int32", ),
           "leftpad_kv": ("int32", )}
# What each gradient is of.
_GRADIENTS = {"dq": "q", "dk": "k", "dv": "v", "dbias": "bias", "dslopes": "alibi_slopes", "dsinks": "sinks"}


def _sizes_of(arrays: dict[str, Any]) -> dict[str, int]:
    """By the letters of dimensions."""
    sizes = dict(zip(_DIMS["v"], arrays["v"].shape))
    return {**sizes, **dict(zip(_DIMS["k"], arrays["k"].shape)), **dict(zip(_DIMS["q"], arrays["q"].shape))}


def _dims_of(name: str, shape: Sequence[int], sizes: dict[str, int]) -> list[str | None]:
    """The letter of each dimension, None for one that stands for all."""
    letters, shared = _DIMS[name][len(_DIMS[name]) - len(shape):], _SHARED.get(name, "")
    return [None if size == 1 != sizes[letter] and letter in shared else letter for letter, size in zip(letters, shape)]


class _Call(NamedTuple):
    """What is compiled into a function of JAX: options that are no arrays."""

    causal: bool
    window: tuple[int, int]
    chunk: int
    scale: float
    softcap: float
    deterministic: bool
    lse: bool

    def attributes(self) -> dict[str, Any]:
        """As the handlers read them."""
        return {"causal": numpy.bool_(self.causal), "window_left": numpy.int64(self.window[0]),
                "window_right": numpy.int64(self.window[1]), "chunk": numpy.int64(self.chunk),
                "scale": numpy.float32(self.scale), "softcap": numpy.float32(self.softcap),
                "deterministic": numpy.bool_(self.deterministic)}


class _Operation:
    """A call of a handler with operands and results of these names, which may be sharded and mapped."""

    def __init__(self, target: str, call: _Call, operands: tuple[str, ...], results: tuple[str, ...]) -> None:
        self._target, self._operands, self._results = target, operands, results
        names = {"operands": ",".join(operands), "results": ",".join(results)}
        self._attributes = {**names, **call.attributes()}
        partitioned = custom_partitioning(self._launch)
        partitioned.def_partition(self._partition, self._infer, sharding_rule=self._sharding_rule)
        self._mapped = custom_vmap(lambda *arrays: partitioned(*arrays))
        self._mapped.def_vmap(self._map)

    def __call__(self, arrays: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(self._results, self._mapped(*(arrays[name] for name in self._operands))))

    def _launch(self, *arrays):
        given = dict(zip(self._operands, arrays))
        types = tuple(_type_of(name, given) for name in self._results)
        return tuple(jax.ffi.ffi_call(self._target, types)(*arrays, **self._attributes))

    def _sharding_rule(self, mesh, operand_types, result_types):
        """Einsum-like: what batch and heads are sharded by stays, all else is replicated. Grouped heads of q and of k
        are joined by _partition: a factor that both have could be sharded by a part of an axis, which has no name."""
        sizes = _sizes_of(dict(zip(self._operands, operand_types)))

        def texts(names, types):
            for name, value in zip(names, types):
                dims = enumerate(_dims_of(name, value.shape, sizes))
                yield " ".join(letter or f"{name}{place}" for place, letter in dims)

        rule = f"{', '.join(texts(self._operands, operand_types))} -> {', '.join(texts(self._results, result_types))}"
        if sizes["g"] == sizes["h"]:
            rule = re.sub(r"\bh\b", "g", rule)
        in_order = dict.fromkeys(re.findall(r"\w+", rule))
        return rule, {"need_replication_factors": tuple(name for name in in_order if name in {"q", "k", "d", "e"})}

    def _partition(self, mesh, operand_types, result_types):
        given = dict(zip(self._operands, operand_types))
        sizes, axes = _sizes_of(given), _axes_of(mesh, given)

        def launch(*arrays):
            results = zip(self._results, result_types, self._launch(*arrays))
            return tuple(_sum_over(_missing(axes, _dims_of(name, value.shape, sizes)), part)
                         for name, value, part in results)

        of_operands = _shardings_of(mesh, given, self._operands, operand_types)
        return mesh, launch, _shardings_of(mesh, given, self._results, result_types), of_operands

    def _infer(self, mesh, operand_types, result_types):
        """For GSPMD, which knows no rules."""
        return _shardings_of(mesh, dict(zip(self._operands, operand_types)), self._results, result_types)

    def _map(self, axis_size, is_mapped, *arrays):
        """As one call of a batch that is axis_size times as large."""
        given = dict(zip(self._operands, arrays))
        shapes = {name: array.shape[1:] if mapped else array.shape
                  for name, array, mapped in zip(self._operands, arrays, is_mapped)}
        batch, differentiated = shapes["q"][0], {_GRADIENTS.get(name) for name in self._results}
        folded = {}
        for (name, array), mapped in zip(given.items(), is_mapped):
            if mapped or name in differentiated or not _is_of_all(name, shapes[name]):
                array = _fold(name, array if mapped else array[None], axis_size, batch)
            folded[name] = array
        results = tuple(_unfold(array, axis_size, batch, shapes.get(_GRADIENTS.get(name)))
                        for name, array in self(folded).items())
        return results, (True, ) * len(results)


@functools.lru_cache(maxsize=None)
def _operation(target: str, call: _Call, operands: tuple[str, ...], results: tuple[str, ...]) -> _Operation:
    return _Operation(target, call, operands, results)


def _type_of(name: str, operands: dict[str, Any]) -> Any:
    """Of a result: where JAX's types say how arrays are sharded, or over which axes they vary, as that of q."""
    sizes, of_q = _sizes_of(operands), jax.typeof(operands["q"])
    like = operands[_GRADIENTS.get(name, "q")]
    shape = like.shape if name in _GRADIENTS else tuple(sizes[letter] for letter in _DIMS[name])
    mesh = of_q.sharding.mesh
    spec = _spec_of(name, shape, sizes, _axes_of(mesh, {**operands, "q": of_q}))
    return of_q.update(shape=shape, dtype=jnp.dtype("float32") if name == "lse" else like.dtype,
                       sharding=NamedSharding(mesh, spec))


# --- Shards ----------------------------------------------------------------------------------------------------------


def _axes_of(mesh: Any, operands: dict[str, Any]) -> dict[str, Any]:
    """The axes of the mesh, as a PartitionSpec has them, that each letter is sharded by: as q is. Heads of q and of k
    are, where there are as many of both or their groups stay whole; all shards have a single head of k."""
    sharding, sizes = operands["q"].sharding, _sizes_of(operands)
    if not isinstance(sharding, NamedSharding):
        raise Unsupported("q: must be sharded by axes of a mesh that JAX knows here; inside of jax.shard_map all axes "
                          "of the mesh must be manual")
    batch, _, heads, _ = sharding.spec
    if sizes["b"] % _size_of(mesh, batch):
        batch = None
    if (sizes["g"] if sizes["g"] > 1 else sizes["h"]) % _size_of(mesh, heads):
        heads = None
    return {"b": batch, "h": heads, "g": heads if sizes["g"] > 1 else None}


def _spec_of(name: str, shape: Sequence[int], sizes: dict[str, int], axes: dict[str, Any]) -> PartitionSpec:
    return PartitionSpec(*map(axes.get, _dims_of(name, shape, sizes)))


def _shardings_of(mesh: Any, operands: dict[str, Any], names: Iterable[str], types: Iterable[Any]) -> tuple[Any, ...]:
    sizes, axes = _sizes_of(operands), _axes_of(mesh, operands)
    return tuple(NamedSharding(mesh, _spec_of(name, value.shape, sizes, axes)) for name, value in zip(names, types))


def _names_of(axes: Any) -> tuple[str, ...]:
    return () if axes is None else axes if isinstance(axes, tuple) else (axes, )


def _size_of(mesh: Any, axes: Any) -> int:
    return math.prod(mesh.shape[name] for name in _names_of(axes))


def _missing(axes: dict[str, Any], letters: Iterable[str | None]) -> tuple[str, ...]:
    """Axes by which a call is sharded and a result of these dimensions is not: each shard has a part of its sum."""
    of_result = {name for letter in letters for name in _names_of(axes.get(letter))}
    of_call = (*_names_of(axes["b"]), *_names_of(axes["h"]))
    return tuple(name for name in of_call if name not in of_result)


def _sum_over(axes: tuple[str, ...], part: Any) -> Any:
    return jax.lax.psum(part, axes) if axes else part


# --- Mapped axes -----------------------------------------------------------------------------------------------------


def _is_of_all(name: str, shape: Sequence[int]) -> bool:
    """Whether what is not mapped serves a larger batch as it is."""
    return len(shape) < len(_DIMS[name]) or (shape[0] == 1 and "b" in _SHARED.get(name, ""))


def _fold(name: str, array: Any, axis_size: int, batch: int) -> Any:
    """[1 or axis_size, ...] becomes [axis_size * batch, ...]."""
    if array.ndim == len(_DIMS[name]):
        array = array[:, None]
    array = jnp.broadcast_to(array, (axis_size, batch, *array.shape[2:]))
    return array.reshape(axis_size * batch, *array.shape[2:])


def _unfold(array: Any, axis_size: int, batch: int, shape: Sequence[int] | None) -> Any:
    """[axis_size * batch, ...] becomes [axis_size, batch, ...], or for a gradient of an array of this shape, which may
    be of all batch entries, [axis_size, *shape]."""
    array = array.reshape(axis_size, batch, *array.shape[1:])
    if shape is None or array.shape[1:] == tuple(shape):
        return array
    return array.astype(jnp.float32).sum(1).astype(array.dtype).reshape(axis_size, *shape)


# --- Gradients -------------------------------------------------------------------------------------------------------


def _forward(call: _Call, arrays: dict[str, Any], results: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(_operation(_FORWARD, call, tuple(arrays), results)(arrays).values())


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, ))
def _differentiable(call: _Call, arrays: dict[str, Any]) -> tuple[Any, ...]:
    return _forward(call, arrays, ("out", "lse") if call.lse else ("out", ))


def _run_forward(call: _Call, arrays: dict[str, Any]) -> Any:
    values = {name: array.value for name, array in arrays.items()}
    # Which gradients are wanted, as a size of 0 or 1 for each array: what is no array but a matter of structure JAX may
    # take from another trace of this function.
    wanted = jnp.zeros([int(array.perturbed) for array in arrays.values()])
    out, lse = _forward(call, values, ("out", "lse"))
    return (out, lse) if call.lse else (out, ), (values, wanted, out, lse)


def _run_backward(call: _Call, kept: Any, cotangents: tuple[Any, ...]) -> Any:
    values, wanted, out, lse = kept
    dout, *dlse = cotangents
    operands = {**values, "out": out, "lse": lse}
    operands["dout"] = jnp.zeros_like(out) if isinstance(dout, SymbolicZero) else dout
    if dlse and not isinstance(dlse[0], SymbolicZero):
        operands["dlse"] = dlse[0]
    names = [name for name, size in zip(values, wanted.shape) if size]
    results = tuple(gradient for gradient, name in _GRADIENTS.items() if name in names)
    made = _operation(_BACKWARD, call, tuple(operands), results)(operands) if results else {}
    gradients = {_GRADIENTS[name]: gradient for name, gradient in made.items()}
    return ({name: gradients.get(name) for name in values}, )


_differentiable.defvjp(_run_forward, _run_backward, symbolic_zeros=True)
# Compiled where it is called outside of jax.jit, too, as partitioning is the compiler's.
_attend = jax.jit(_differentiable, static_argnums=0)

# --- Arguments -------------------------------------------------------------------------------------------------------


def _require_inputs(names: tuple[str, str, str], q: Any, k: Any, v: Any) -> None:
    """names: as the caller calls them."""
    of_q, of_k, of_v = names
    for name, array in zip(names, (q, k, v)):
        if array.ndim != 4:
            raise InvalidArgument(f"{name}: must be [batch, seqlen, heads, head_dim], had {array.ndim} dimensions")
    if q.dtype not in (jnp.float16, jnp.bfloat16):
        raise InvalidArgument(f"{of_q}: must be float16 or bfloat16, was {q.dtype}")
    for name, array in ((of_k, k), (of_v, v)):
        if array.dtype != q.dtype:
            raise InvalidArgument(f"{name}: must be {q.dtype} like {of_q}, was {array.dtype}")
    wanted = ((of_k, "batch", k.shape[0], q.shape[0], of_q), (of_k, "head_dim", k.shape[3], q.shape[3], of_q),
              (of_v, "batch", v.shape[0], q.shape[0], of_q), (of_v, "seqlen", v.shape[1], k.shape[1], of_k),
              (of_v, "heads", v.shape[2], k.shape[2], of_k))
    for name, what, was, must, like in wanted:
        if was != must:
            raise InvalidArgument(f"{name}: {what} must be {must} like that of {like}, was {was}")
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise InvalidArgument(f"{of_k}: heads must divide the {q.shape[2]} of {of_q}, was {k.shape[2]}")


def _require_option(name: str, array: Any, sizes: dict[str, int], option: str) -> None:
    """name: as the caller calls the option."""
    letters, dtypes = _DIMS[option], _DTYPES[option]
    if array.dtype not in dtypes:
        raise InvalidArgument(f"{name}: must be {' or '.join(dtypes)}, was {array.dtype}")
    if array.ndim != len(letters) and (option not in _MAY_LACK_BATCH or array.ndim != 1):
        words = ", ".join(_WORDS[letter] for letter in letters)
        raise InvalidArgument(f"{name}: must be [{words}], had {array.ndim} dimensions")
    for letter, size in zip(letters[len(letters) - array.ndim:], array.shape):
        may_be_one = letter in _SHARED.get(option, "")
        if size != sizes[letter] and not (size == 1 and may_be_one):
            must = f"{sizes[letter]} or 1" if may_be_one else sizes[letter]
            raise InvalidArgument(f"{name}: {_WORDS[letter]} must be {must}, was {size}")


def _to_array(name: str, value: Any) -> Any:
    try:
        return jnp.asarray(value)
    except TypeError:
        raise InvalidArgument(f"{name}: must be an array, was {type(value).__name__}") from None


def _to_int(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name}: must be an int, which jax.jit has to know, was {value!r:.100}") from None
    if not -1 << 63 <= number < 1 << 63:
        raise InvalidArgument(f"{name}: must be an int of 64 bits, was {number}")
    return number


def _to_float(name: str, value: Any) -> float:
    if isinstance(value, (int, float, numpy.number)) and not isinstance(value, bool):
        return float(value)
    raise InvalidArgument(f"{name}: must be a number, which jax.jit has to know, was {value!r:.100}")


def _to_window(name: str, window: Any) -> tuple[int, int]:
    if window is None:
        return -1, -1
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise InvalidArgument(f"{name}: must be (left, right) or None, was {window!r:.100}")
    return _to_int(name, window[0]), _to_int(name, window[1])


def _require_bools(**flags: Any) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, (bool, numpy.bool_)):
            raise InvalidArgument(f"{name}: must be True or False, was {flag!r:.100}")


# --- Functions -------------------------------------------------------------------------------------------------------


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: Sequence[int] | None = None,
    chunk: int | None = None,
    scale: float | None = None,
    softcap: float | None = 0.0,
    alibi_slopes: Any = None,
    sinks: Any = None,
    bias: Any = None,
    boolean_mask: Any = None,
    documents: Any = None,
    prefix: Any = None,
    seqused_kv: Any = None,
    leftpad_kv: Any = None,
    deterministic: bool = False,
    lse: bool = False,
) -> Any:
    """flashjit.attention inside of JAX's transformations. q, k, v, bias, alibi_slopes and sinks get gradients, those of
    flashjit.attention_backward, and so does what depends on the log-sum-exp; they have none themselves, and there is no
    forward-mode derivative.

    >>> loss = jax.jit(jax.grad(lambda q, k, v: flashjit.jax.attention(q, k, v, causal=True).sum()))

    jax.vmap makes one call of a larger batch. Where q is sharded by batch and by heads, so is the call, with no
    exchange between devices but sums of the gradients of what shards share; heads of k and v are sharded alike where
    the number of shards divides theirs, and are replicated where there is one. All else is gathered.

    Parameters
    ----------
    q : array [batch, seqlen_q, heads, head_dim]
    k : array [batch, seqlen_kv, heads_kv, head_dim]
    v : array [batch, seqlen_kv, heads_kv, head_dim_v]
        float16 or bfloat16; the number of heads is a multiple of heads_kv.
    causal, deterministic, lse : bool
        With causal, query i sees the keys up to i + seqlen_kv - seqlen_q. With deterministic, gradients are the same,
        bit by bit, in every run. With lse, the log-sum-exp of each row is returned, too.
    window : (left, right)
        A query sees at most left keys before its own, that one, and at most right keys after it; -1 is all there are.
    chunk, scale, softcap :
        As of flashjit.attention. These and the above are Python's numbers, which are known when a function is compiled.
    alibi_slopes, sinks : array [heads] or [batch, heads]
        float32.
    bias : array [batch, heads, seqlen_q, seqlen_kv], 1 for all but the last
        float16, bfloat16 or float32.
    boolean_mask : array of bool, likewise
    documents : array [batch, seqlen_kv], batch may be 1 for all
    prefix, seqused_kv, leftpad_kv : array [batch]
        int32. As of flashjit.attention.

    Returns
    -------
    An array [batch, seqlen_q, heads, head_dim_v] in the dtype of q, with lse a pair of it and of float32
    [batch, heads, seqlen_q].

    Raises
    ------
    flashjit.InvalidArgument
        When the call is traced, of what can be told from types.
    jax.errors.JaxRuntimeError, ValueError
        When it runs, as JAX has it: with the message of the library.
    """
    q, k, v = (_to_array(name, array) for name, array in (("q", q), ("k", k), ("v", v)))
    options = {"alibi_slopes": alibi_slopes, "sinks": sinks, "bias": bias, "boolean_mask": boolean_mask,
               "documents": documents, "prefix": prefix, "seqused_kv": seqused_kv, "leftpad_kv": leftpad_kv}
    tensors = {name: _to_array(name, array) for name, array in options.items() if array is not None}
    _require_inputs(("q", "k", "v"), q, k, v)
    _require_bools(causal=causal, deterministic=deterministic, lse=lse)
    sizes = _sizes_of({"q": q, "k": k, "v": v})
    for name, array in tensors.items():
        _require_option(name, array, sizes, name)
    scale = 1 / math.sqrt(max(sizes["d"], 1)) if scale is None else _to_float("scale", scale)
    call = _Call(bool(causal), _to_window("window", window), _to_int("chunk", 0 if chunk is None else chunk),
                 scale, _to_float("softcap", 0.0 if softcap is None else softcap), bool(deterministic), bool(lse))
    results = _attend(call, {"q": q, "k": k, "v": v, **tensors})
    return results if lse else results[0]


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """jax.nn.dot_product_attention by FlashJIT, for what FlashJIT can do of it.

    query is [batch, seqlen_q, heads, head_dim], key and value are [batch, seqlen_kv, heads_kv, ...], float16 or
    bfloat16, or all lack the batch; returns an array shaped as query is, with the head_dim of value. With
    return_residual, a pair of it and of the log-sum-exp of each row, [batch, seqlen_q, heads] in the dtype of key,
    which has no gradient. bias, float16, bfloat16 or float32, and mask, of bool, have at most 4 dimensions and are
    broadcast to [batch, heads, seqlen_q, seqlen_kv]; lengths are int32 [batch]. With is_causal, query i sees the keys
    up to i, as JAX has it.

    Where a query sees no key, and beyond query_seq_lengths, the output is 0 and the log-sum-exp -infinity; JAX has the
    mean of all values in the former case, and large negative numbers.

    Raises InvalidArgument where JAX's function, too, would refuse, and Unsupported for implementation, and for
    is_causal and local_window_size with other lengths of queries and keys, but for those with fewer queries and
    nothing on the right. Errors of the library, when the call runs, name query, key and value q, k and v; mask is
    boolean_mask.
    """
    if implementation is not None:
        raise Unsupported(f"implementation: must be None, as it is FlashJIT's, was {implementation!r:.100}; use "
                          "jax.nn.dot_product_attention")
    names = "query", "key", "value"
    arrays = [_to_array(name, array) for name, array in zip(names, (query, key, value))]
    has_batch = arrays[0].ndim != 3
    q, k, v = arrays if has_batch else (array[None] for array in arrays)
    _require_inputs(names, q, k, v)
    _require_bools(is_causal=is_causal, return_residual=return_residual)
    sizes = _sizes_of({"q": q, "k": k, "v": v})
    options = {"bias": _to_scores("bias", bias, sizes, "bias"),
               "boolean_mask": _to_scores("mask", mask, sizes, "boolean_mask")}
    of_queries = _to_lengths("query_seq_lengths", query_seq_lengths, sizes, "q")
    of_keys = _to_lengths("key_value_seq_lengths", key_value_seq_lengths, sizes, "k")
    window = _to_symmetric_window(local_window_size)
    if is_causal or window is not None:
        keys = _visible_keys(sizes, is_causal, window)
        k, v = k[:, :keys], v[:, :keys]
        options = {name: None if array is None else array[..., :keys] for name, array in options.items()}
        options["boolean_mask"] = _and_lengths(options["boolean_mask"], of_keys, keys)
    else:
        options["seqused_kv"] = of_keys
    made = attention(q, k, v, causal=is_causal, window=window, scale=scale, lse=return_residual, **options)
    out, lse = made if return_residual else (made, None)
    out = _only_rows(of_queries, out, 0)
    out = out if has_batch else out[0]
    if not return_residual:
        return out
    lse = _only_rows(of_queries, jax.lax.stop_gradient(lse.swapaxes(1, 2)), -jnp.inf).astype(k.dtype)
    return out, lse if has_batch else lse[0]


def _to_scores(name: str, value: Any, sizes: dict[str, int], option: str) -> Any:
    """What JAX broadcasts to [batch, heads, seqlen_q, seqlen_kv], as an option of attention."""
    if value is None:
        return None
    array = _to_array(name, value)
    if array.ndim > 4:
        raise InvalidArgument(f"{name}: must have at most 4 dimensions, had {array.ndim}")
    array = array[(None, ) * (4 - array.ndim)]
    if array.shape[3] == 1:
        array = jnp.broadcast_to(array, (*array.shape[:3], sizes["k"]))
    _require_option(name, array, sizes, option)
    return array


def _to_lengths(name: str, value: Any, sizes: dict[str, int], letter: str) -> Any:
    if value is None:
        return None
    lengths = _to_array(name, value)
    _require_option(name, lengths, sizes, "seqused_kv")
    return jnp.clip(lengths, 0, sizes[letter])


def _to_symmetric_window(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    window = _to_window("local_window_size", size if isinstance(size, (tuple, list)) else (size, size))
    if min(window) < 0:
        raise InvalidArgument(f"local_window_size: must be at least 0 on both sides, was {size!r:.100}")
    return window


def _visible_keys(sizes: dict[str, int], is_causal: bool, window: tuple[int, int] | None) -> int:
    """JAX aligns these masks top-left: without anything on the right no query sees the keys beyond as many as there are
    queries, and without those the masks are FlashJIT's, which are aligned bottom-right."""
    queries, keys = sizes["q"], sizes["k"]
    if queries == keys or (queries < keys and (is_causal or window[1] == 0)):
        return queries
    name, must = ("is_causal", "False") if is_causal else ("local_window_size", "None")
    raise Unsupported(f"{name}: must be {must} with {queries} queries and {keys} keys; use "
                      "jax.nn.dot_product_attention")


def _and_lengths(mask: Any, lengths: Any, keys: int) -> Any:
    """Beside masks that are aligned by the number of keys lengths are a mask, too."""
    if lengths is None:
        return mask
    shown = (jnp.arange(keys) < lengths[:, None])[:, None, None]
    return shown if mask is None else mask & shown


def _only_rows(lengths: Any, array: Any, otherwise: float) -> Any:
    """Of [batch, seqlen_q, ...]."""
    if lengths is None:
        return array
    counts = jnp.arange(array.shape[1]) < lengths[:, None]
    return jnp.where(counts.reshape(*counts.shape, *(1, ) * (array.ndim - 2)), array, otherwise)
