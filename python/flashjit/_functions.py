# SPDX-License-Identifier: Apache-2.0
"""Functions that users write as text: what becomes of a score, and which keys a query sees."""

from __future__ import annotations

import operator
from typing import Any, TypeVar, Union

from ._errors import InvalidArgument


class _Function:
    """A text, and what it takes by names: arrays and numbers, each by name, so that their order means nothing."""

    _kind = "function"

    def __init__(self, text: str, /, **captures: Any) -> None:
        if not isinstance(text, str):
            raise InvalidArgument(f"{self._kind}: must be a str, was {text!r:.100}")
        tensors, numbers = [], []
        for name in sorted(captures):  # which torch.compile can trace; it cannot sort pairs
            value = captures[name]
            if isinstance(value, (int, float)):
                numbers.append((name, value))
            elif _is_array(value):
                tensors.append((name, value))
            else:
                numbers.append((name, _to_number(f"{self._kind}: capture {name}", value)))
        self.text = text
        self.tensors = tuple(tensors)
        self.numbers = tuple(numbers)

    def __repr__(self) -> str:
        names = "".join(f", {name}=..." for name, _ in self.tensors)
        return f"{type(self).__name__}({self.text!r}{names}{''.join(f', {n}={v!r}' for n, v in self.numbers)})"


class Score(_Function):
    """What becomes of a score before the softmax, as text: C++ for the GPU, an expression or a body with return.

    >>> flashjit.Score("score - slope(head) * abs(query - key) * tilt", slope=slopes, tilt=0.5)

    The text has score (scaled, after softcap and ALiBi; a number of the type Number), batch, head, query, key, seqlen_q
    and seqlen_kv. query and key are positions in the sequence, from 0 or from what the call's offsets say. -infinity
    hides the key. Gradients go through it: attention_backward differentiates it by the score.

    Parameters
    ----------
    text : str
    captures : arrays, floats, ints and bools
        What the text takes by these names. An array has rank 0 to 4 and is called like a function, slope(head), where
        an index outside of it gives 0; it is float16, bfloat16, float32, int32, int64 or bool, of any library, on the
        device of q, and of any strides that are not negative. A float is one of 32 bits; an int is of 32 bits, and True
        is 1. New values compile nothing.
    """

    _kind = "score"


class Mask(_Function):
    """Which keys a query sees of those that it would else, as text: true where it sees the key.

    >>> flashjit.Mask("query - key <= reach(head)", reach=reaches)

    Text and captures are as those of flashjit.Score, but there is no score.
    """

    _kind = "mask"


# What is taken for one: a str has no captures.
AnyScore = Union[Score, str]
AnyMask = Union[Mask, str]


_Kind = TypeVar("_Kind", bound=_Function)


def to_function(kind: type[_Kind], function: Any) -> _Kind | None:
    """What a caller gave for a Score or a Mask."""
    if function is None or isinstance(function, kind):
        return function
    if isinstance(function, str):
        return kind(function)
    raise InvalidArgument(f"{kind._kind}: must be a flashjit.{kind.__name__}, a str or None, was "
                          f"{' '.join(repr(function).split()):.100}")


def _is_array(value: Any) -> bool:
    return (hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__")
            or hasattr(value, "__dlpack_c_exchange_api__"))


def _to_number(label: str, value: Any) -> int | float:
    """Of the scalars of NumPy and the like."""
    for convert in (operator.index, float):
        if not isinstance(value, (str, bytes)):
            try:
                return convert(value)
            except (TypeError, ValueError):
                pass
    raise InvalidArgument(f"{label}: must be an array, a float, an int or a bool, was {type(value).__name__}")
