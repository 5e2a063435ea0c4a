# SPDX-License-Identifier: Apache-2.0
"""FlexAttention's functions, written in Python, as texts: they are called once, with values that remember what is done to
them.

A function that decides by a value, or does to one what no text can say, raises Unsupported with its line."""

from __future__ import annotations

import inspect
import math
import numbers
import re
import sys
from typing import Any, Callable

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import flashjit

# What a value is, in the order in which one beside another becomes it.
_BOOL, _INT, _FLOAT = range(3)
_KINDS = {
    torch.bool: _BOOL, torch.int32: _INT, torch.int64: _INT, torch.float16: _FLOAT, torch.bfloat16: _FLOAT,
    torch.float32: _FLOAT,
}  # fmt: skip
_INDICES = ("batch", "head", "query", "key")
_MOST_CAPTURES = 16
_PLAIN_NAME = re.compile(r"(?=.{1,60}$)[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")


def score_of(score_mod: Callable[..., Any]) -> flashjit.Score:
    """Of score_mod(score, batch, head, query, key)."""
    text, captures = _Trace("score_mod", score_mod, "Number").run(_FLOAT, _Value(_FLOAT, False, "score"), *_indices())
    return flashjit.Score(text, **captures)


def mask_of(mask_mod: Callable[..., Any]) -> flashjit.Mask:
    """Of mask_mod(batch, head, query, key)."""
    text, captures = _Trace("block_mask", mask_mod, "float").run(_BOOL, *_indices())
    return flashjit.Mask(text, **captures)


def _indices() -> list[_Value]:
    return [_Value(_INT, True, name) for name in _INDICES]


# --- A function -------------------------------------------------------------------------------------------------------


class _Trace:
    """One call of it."""

    current: _Trace | None = None

    def __init__(self, name: str, function: Callable[..., Any], real: str) -> None:
        """name: of the argument that the function is; real: what the text calls a real number."""
        self._name, self._function = name, function
        self.words = {_BOOL: "bool", _INT: "int", _FLOAT: real}
        self._captures: dict[str, Tensor] = {}

    def run(self, kind: int, *values: _Value) -> tuple[str, dict[str, Tensor]]:
        """The text, whose value is of this kind, and what it captures."""
        if not callable(self._function):
            raise flashjit.InvalidArgument(f"{self._name}: must be a function, was {self._function!r:.100}")
        self._names = _names_of_tensors(self._function)
        before, _Trace.current = _Trace.current, self
        try:
            with _Indexing():
                return _render(_cast(self._function(*values), kind)), self._captures
        except flashjit.Error:
            raise
        except Exception as error:
            raise self.refusal(f"{type(error).__name__}: {error}", error) from error
        finally:
            _Trace.current = before

    def capture(self, tensor: Tensor) -> str:
        """Its name in the text."""
        for name, known in self._captures.items():
            if known is tensor:
                return name
        if len(self._captures) == _MOST_CAPTURES:
            raise self.refusal(f"more than {_MOST_CAPTURES} tensors are captured")
        name = self._names.get(id(tensor), f"captured_{len(self._captures)}")
        self._captures[name] = tensor
        return name

    def refusal(self, why: str, error: BaseException | None = None) -> flashjit.Unsupported:
        """With the innermost line that is neither of this file nor of PyTorch."""
        if error is None:
            frame, lines = sys._getframe(1), []
            while frame is not None:
                lines.append((frame.f_code.co_filename, frame.f_lineno))
                frame = frame.f_back
        else:
            trace, lines = error.__traceback__, []
            while trace is not None:
                lines.insert(0, (trace.tb_frame.f_code.co_filename, trace.tb_lineno))
                trace = trace.tb_next
        theirs = (f"{file}:{line}: " for file, line in lines if not file.startswith((__file__, torch.__path__[0])))
        return flashjit.Unsupported(f"{self._name}: {next(theirs, '')}{why}")


def _refusal(why: str) -> flashjit.Unsupported:
    if _Trace.current is None:
        return flashjit.Unsupported("score_mod: values of a function must not be used once it has returned")
    return _Trace.current.refusal(why)


def _names_of_tensors(function: Callable[..., Any]) -> dict[int, str]:
    """What the function calls the tensors that it captures, so that texts can be read."""
    if not inspect.isfunction(function):
        return {}
    seen = inspect.getclosurevars(function)
    named = {**seen.globals, **seen.nonlocals}.items()
    # With an underscore behind it a name is no word of C++ and no function of texts.
    return {id(x): f"{name}_" for name, x in named if isinstance(x, Tensor) and _PLAIN_NAME.fullmatch(name)}


class _Indexing(TorchFunctionMode):
    """While a function runs: tensors that its values index are captured."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is Tensor.__getitem__:
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(index, _Value) for index in indices):
                return _Element(args[0], ())[indices]
        elif any(isinstance(x, (_Value, _Element)) for x in (*args, *(kwargs or {}).values())):
            return _Value.__torch_function__(function, types, args, kwargs)
        return function(*args, **(kwargs or {}))


class _Element:
    """Of a captured tensor, as far as it has been indexed."""

    def __init__(self, tensor: Tensor, indices: tuple[Any, ...]) -> None:
        self._tensor, self._indices = tensor, indices

    def __getitem__(self, index: Any) -> Any:
        indices = (*self._indices, *(index if isinstance(index, tuple) else (index,)))
        return _load(self._tensor, indices) if len(indices) == self._tensor.dim() else _Element(self._tensor, indices)

    def refusal(self) -> flashjit.Unsupported:
        return _refusal(f"a captured tensor must be indexed by as many numbers as it has dimensions, "
                        f"{self._tensor.dim()}, was by {len(self._indices)}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.refusal()


def _load(tensor: Tensor, indices: tuple[Any, ...]) -> _Value:
    if tensor.dtype not in _KINDS:
        raise _refusal(f"a captured tensor must be of one of {', '.join(map(str, _KINDS))}, was of {tensor.dtype}")
    trace, parts = _Trace.current, []
    for size, index in zip(tensor.shape, indices):
        if isinstance(index, (slice, type(None), type(Ellipsis))) or (value := _to_value(index)).kind != _INT:
            raise _refusal(f"an index of a captured tensor must be a whole number, was {index!r:.100}")
        # PyTorch counts negative ones from the end.
        parts += [value] if value.is_natural else ["(", value, " < 0 ? int(", value, f") + {size} : int(", value, "))"]
        parts.append(", ")
    return _Value(_KINDS[tensor.dtype], False, f"{trace.capture(tensor)}(", *parts[:-1], ")")


# --- Values -----------------------------------------------------------------------------------------------------------


class _Value:
    """A number of the text: words, with other values between them."""

    __array_priority__ = 1000  # NumPy's scalars leave operators to it
    __hash__ = object.__hash__
    device, shape, ndim, requires_grad = torch.device("cpu"), torch.Size(()), 0, False

    def __init__(self, kind: int, is_natural: bool, *parts: str | _Value) -> None:
        """is_natural: whole, and never negative."""
        self.kind, self.is_natural, self.parts = kind, is_natural, parts

    @property
    def dtype(self) -> torch.dtype:
        return (torch.bool, torch.int32, torch.float32)[self.kind]

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return _operation(getattr(function, "__name__", str(function)))(*args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        operation = _operation(name)
        return lambda *args, **named: operation(self, *args, **named)

    def dim(self) -> int:
        return 0

    def __bool__(self) -> bool:
        raise _refusal("Python cannot decide by a value of the kernel; use torch.where")

    def __index__(self) -> int:
        raise _refusal("a value of the kernel is no number in Python")

    __int__ = __float__ = __index__

    def __repr__(self) -> str:
        return f"<{_render(self)}>"


class _Constant(_Value):
    """One that is known now."""

    def __init__(self, number: bool | int | float) -> None:
        kind = _BOOL if isinstance(number, bool) else _INT if isinstance(number, int) else _FLOAT
        super().__init__(kind, kind == _INT and number >= 0, _literal(number))
        self.number = number


def _operation(name: str) -> Callable[..., _Value]:
    plain = name.strip("_") if name.startswith("__") else name.rstrip("_")
    found = _OPERATIONS.get(_ALIASES.get(plain, plain))
    if found is None:
        raise _refusal(f"FlashJIT does not know '{name}' of a value")
    return found


def _to_value(x: Any) -> _Value:
    if isinstance(x, _Value):
        return x
    if isinstance(x, _Element):
        raise x.refusal()
    if isinstance(x, Tensor):
        return _load(x, ()) if x.dim() == 0 else _to_value(_Element(x, ()))
    if isinstance(x, bool):
        return _Constant(x)
    if isinstance(x, numbers.Integral) and -(2**31) < x < 2**31:
        return _Constant(int(x))
    if isinstance(x, numbers.Real) and not isinstance(x, numbers.Integral):
        return _Constant(float(x))
    raise _refusal(f"a number must be real, or whole and of 32 bits, or made of the arguments, was {x!r:.100}")


def _literal(x: bool | int | float) -> str:
    if isinstance(x, bool):
        return "true" if x else "false"
    if isinstance(x, int):
        return f"{x}" if x >= 0 else f"({x})"
    if math.isnan(x):
        return "(infinity - infinity)"
    if math.isinf(x):
        return "infinity" if x > 0 else "(-infinity)"
    return f"{x!r}f" if math.copysign(1, x) > 0 else f"({x!r}f)"


def _render(value: _Value) -> str:
    """An expression; a body where values are used more than once."""
    uses: dict[int, int] = {}

    def count(each: _Value) -> None:
        uses[id(each)] = uses.get(id(each), 0) + 1
        if uses[id(each)] == 1:
            for part in each.parts:
                if isinstance(part, _Value):
                    count(part)

    names: dict[int, str] = {}
    statements: list[str] = []

    def write(each: _Value) -> str:
        if id(each) in names:
            return names[id(each)]
        text = "".join(part if isinstance(part, str) else write(part) for part in each.parts)
        if uses[id(each)] == 1 or len(each.parts) == 1:
            return text
        names[id(each)] = name = f"value_{len(names)}"
        statements.append(f"const auto {name} = {text};")
        return name

    count(value)
    result = write(value)
    return "\n".join([*statements, f"return {result};"]) if statements else result


# --- Operations -------------------------------------------------------------------------------------------------------


def _cast(x: Any, kind: int) -> _Value:
    value = _to_value(x)
    if value.kind == kind:
        return value
    if isinstance(value, _Constant) and (kind != _INT or math.isfinite(value.number)):
        return _to_value((bool, int, float)[kind](value.number))
    if kind == _BOOL:
        return _Value(_BOOL, False, "(", value, " != 0)")
    return _Value(kind, kind == _INT and value.kind == _BOOL, f"{_Trace.current.words[kind]}(", value, ")")


def _number(x: Any) -> _Value:
    """What arithmetic takes: truths are 0 and 1. Positions stay what they are, with which kernels are fast."""
    value = _to_value(x)
    return _cast(value, _INT) if value.kind == _BOOL else value


def _plain(x: Any, kind: int) -> _Value:
    """No position, which is a type of its own."""
    value = _cast(x, kind)
    if kind != _INT or isinstance(value, _Constant):
        return value
    return _Value(_INT, value.is_natural, "int(", value, ")")


def _common(*values: _Value) -> int:
    return max(value.kind for value in values)


def _infix(sign: str, *, keeps_natural: bool = False, kind: int | None = None) -> Callable[..., _Value]:
    """kind: of the result; None: as of its operands."""

    def run(a: Any, b: Any, *, alpha: Any = 1) -> _Value:
        a, b = _number(a), _number(b if type(alpha) is int and alpha == 1 else _OPERATIONS["mul"](b, alpha))
        is_natural = keeps_natural and a.is_natural and b.is_natural
        common = _common(a, b)
        a, b = (_cast(x, common) if isinstance(x, _Constant) else x for x in (a, b))
        return _Value(common if kind is None else kind, is_natural, "(", a, f" {sign} ", b, ")")

    return run


def _bits(sign: str, of_truths: str) -> Callable[..., _Value]:
    def run(a: Any, b: Any) -> _Value:
        a, b = _to_value(a), _to_value(b)
        if _common(a, b) == _FLOAT:
            raise _refusal(f"'{sign}' must be between whole numbers or truths, was between real ones")
        if _common(a, b) == _BOOL:
            return _Value(_BOOL, False, "(", a, f" {of_truths} ", b, ")")
        return _Value(_INT, a.is_natural and b.is_natural, "(", _plain(a, _INT), f" {sign} ", _plain(b, _INT), ")")

    return run


def _logical(sign: str) -> Callable[..., _Value]:
    return lambda a, b: _Value(_BOOL, False, "(", _cast(a, _BOOL), f" {sign} ", _cast(b, _BOOL), ")")


def _function(name: str) -> Callable[..., _Value]:
    """Of a real number."""
    return lambda x: _Value(_FLOAT, False, f"{name}(", _cast(x, _FLOAT), ")")


def _divide(a: Any, b: Any, *, rounding_mode: str | None = None) -> _Value:
    a, b = _number(a), _number(b)
    if rounding_mode is None or _common(a, b) == _FLOAT:
        quotient = _Value(_FLOAT, False, "(", _cast(a, _FLOAT), " / ", _cast(b, _FLOAT), ")")
        return quotient if rounding_mode is None else _function(rounding_mode)(quotient)
    if a.is_natural and b.is_natural:
        return _Value(_INT, True, "(", a, " / ", b, ")")
    a, b = _plain(a, _INT), _plain(b, _INT)
    quotient = _Value(_INT, False, "(", a, " / ", b, ")")
    if rounding_mode == "trunc":
        return quotient
    return _Value(_INT, False, "(", quotient, " - ", _cast(_differ(a, b), _INT), ")")


def _remainder(a: Any, b: Any) -> _Value:
    """Of the sign of b, as in Python."""
    a, b = _number(a), _number(b)
    if _common(a, b) == _FLOAT:
        return _OPERATIONS["sub"](a, _OPERATIONS["mul"](b, _divide(a, b, rounding_mode="floor")))
    if a.is_natural and b.is_natural:
        return _Value(_INT, True, "(", a, " % ", b, ")")
    a, b = _plain(a, _INT), _plain(b, _INT)
    return _Value(_INT, b.is_natural, "(", a, " % ", b, " + (", _differ(a, b), " ? ", b, " : 0))")


def _differ(a: _Value, b: _Value) -> _Value:
    """Whether C++'s quotient is above Python's."""
    return _Value(_BOOL, False, "(", a, " % ", b, " != 0 && (", a, " < 0) != (", b, " < 0))")


def _negate(x: Any) -> _Value:
    value = _number(x)
    return _Value(value.kind, False, "(-", value, ")")


def _invert(x: Any) -> _Value:
    value = _to_value(x)
    if value.kind == _FLOAT:
        raise _refusal("'~' must be of a whole number or a truth, was of a real one")
    return _Value(_BOOL, False, "!", value) if value.kind == _BOOL else _Value(_INT, False, "(~", _plain(value, _INT), ")")


def _absolute(x: Any) -> _Value:
    value = _number(x)
    return value if value.is_natural else _Value(value.kind, value.kind == _INT, "abs(", value, ")")


def _extreme(name: str) -> Callable[..., _Value]:
    def run(a: Any, b: Any) -> _Value:
        a, b = _number(a), _number(b)
        return _Value(_common(a, b), a.is_natural and b.is_natural, f"{name}(", a, ", ", b, ")")

    return run


def _clamp(x: Any, min: Any = None, max: Any = None) -> _Value:
    value = _to_value(x)
    value = value if min is None else _OPERATIONS["maximum"](value, min)
    return value if max is None else _OPERATIONS["minimum"](value, max)


def _where(condition: Any, a: Any, b: Any) -> _Value:
    a, b = _to_value(a), _to_value(b)
    kind, is_natural = _common(a, b), a.is_natural and b.is_natural
    return _Value(kind, is_natural, "(", _cast(condition, _BOOL), " ? ", _plain(a, kind), " : ", _plain(b, kind), ")")


def _masked_fill(x: Any, condition: Any, value: Any) -> _Value:
    return _where(condition, value, x)


def _power(a: Any, b: Any) -> _Value:
    if type(b) is int and 1 <= b <= 4:
        value = first = _number(a)
        for _ in range(b - 1):
            value = _OPERATIONS["mul"](value, first)
        return value
    if _common(_number(a), _number(b)) != _FLOAT:
        raise _refusal("a whole number must be to the power of 1, 2, 3 or 4, or of a real number")
    return _Value(_FLOAT, False, "pow(", _cast(a, _FLOAT), ", ", _cast(b, _FLOAT), ")")


def _convert(kind: int) -> Callable[..., _Value]:
    return lambda x: _cast(x, kind)


def _to(x: Any, *to: Any, **named: Any) -> _Value:
    """Of dtypes, and of devices, of which a kernel has no others."""
    for wanted in (*to, *named.values()):
        dtype = wanted.dtype if isinstance(wanted, (_Value, Tensor)) else wanted
        if isinstance(dtype, torch.dtype):
            return _cast(x, _KINDS.get(dtype, _FLOAT if dtype.is_floating_point else _INT))
    return _to_value(x)


def _filled(number: int) -> Callable[..., _Value]:
    return lambda x, *size, dtype=None, **named: _to(number, dtype or _to_value(x).dtype)


# What Python's operators, PyTorch's functions and its tensors' methods of these names do.
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": _infix("+", keeps_natural=True), "sub": _infix("-"), "mul": _infix("*", keeps_natural=True), "div": _divide,
    "floordiv": lambda a, b: _divide(a, b, rounding_mode="floor"), "mod": _remainder, "pow": _power, "neg": _negate,
    "abs": _absolute, "eq": _infix("==", kind=_BOOL), "ne": _infix("!=", kind=_BOOL), "lt": _infix("<", kind=_BOOL),
    "le": _infix("<=", kind=_BOOL), "gt": _infix(">", kind=_BOOL), "ge": _infix(">=", kind=_BOOL),
    "and": _bits("&", "&&"), "or": _bits("|", "||"), "xor": _bits("^", "!="), "invert": _invert,
    "logical_and": _logical("&&"), "logical_or": _logical("||"), "logical_xor": _logical("!="),
    "logical_not": lambda x: _invert(_cast(x, _BOOL)), "maximum": _extreme("max"), "minimum": _extreme("min"),
    "clamp": _clamp, "where": _where, "masked_fill": _masked_fill, "to": _to, "float": _convert(_FLOAT),
    "double": _convert(_FLOAT), "half": _convert(_FLOAT), "bfloat16": _convert(_FLOAT), "int": _convert(_INT),
    "long": _convert(_INT), "bool": _convert(_BOOL), "new_ones": _filled(1), "new_zeros": _filled(0),
    "ones_like": _filled(1), "zeros_like": _filled(0), "square": lambda x: _power(x, 2), "round": _function("rint"),
    "reciprocal": lambda x: _divide(1.0, x), "item": _Value.__index__, "tolist": _Value.__index__,
    **{name: _function(name) for name in (
        "cos", "exp", "exp2", "log", "log2", "rsqrt", "sigmoid", "sin", "sqrt", "tanh", "floor", "ceil", "trunc", "erf",
        "expm1", "log1p",
    )},
}  # fmt: skip
_ALIASES = {
    "truediv": "div", "true_divide": "div", "divide": "div", "floor_divide": "floordiv", "remainder": "mod",
    "subtract": "sub", "multiply": "mul", "negative": "neg", "absolute": "abs", "bitwise_and": "and",
    "bitwise_or": "or", "bitwise_xor": "xor", "bitwise_not": "invert", "max": "maximum", "min": "minimum",
    "clip": "clamp", "clamp_min": "maximum", "clamp_max": "minimum", "greater": "gt", "greater_equal": "ge",
    "less": "lt", "less_equal": "le", "not_equal": "ne", "type": "to", "type_as": "to", "special_erf": "erf",
    "special_expit": "sigmoid", "special_expm1": "expm1", "special_log1p": "log1p", "rdiv": "rtruediv",
}  # fmt: skip


def _define_operators() -> None:
    """Of values, and of what stands before them: numbers, and tensors through PyTorch."""
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
        run = _OPERATIONS[_ALIASES.get(name, name)]
        _OPERATIONS[f"r{name}"] = lambda a, b, run=run: run(b, a)
        setattr(_Value, f"__{name}__", lambda a, b, run=run: run(a, b))
        setattr(_Value, f"__r{name}__", _OPERATIONS[f"r{name}"])
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(_Value, f"__{name}__", lambda a, b, run=_OPERATIONS[name]: run(a, b))
    for name in ("neg", "abs", "invert"):
        setattr(_Value, f"__{name}__", lambda a, run=_OPERATIONS[name]: run(a))


_define_operators()
