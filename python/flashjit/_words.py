# SPDX-License-Identifier: Apache-2.0
"""Errors in the words of another interface, where that is what was called."""

import functools
from typing import Any, Callable, TypeVar

import torch

import flashjit

_Function = TypeVar("_Function", bound=Callable[..., Any])


def in_words(words: "dict[str, str]") -> "Callable[[_Function], _Function]":
    """A decorator: errors of the function, which begin with the name of an argument, get that of the other interface.
    words: by the library's names."""

    def decorate(function):
        @functools.wraps(function)
        def call(*arguments, **named):
            if torch.compiler.is_compiling():
                return function(*arguments, **named)
            try:
                return function(*arguments, **named)
            except flashjit.Error as error:
                name, colon, what = str(error).partition(":")
                error.args = (words.get(name, name) + colon + what,)
                raise

        return call

    return decorate
