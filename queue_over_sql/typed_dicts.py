"""Typed dictionaries that Pydantic understands on every Python.

Before Python 3.12 it refuses those of ``typing``, which do not keep enough of what was written;
here they are made anew with ``typing_extensions``, together with all that they are nested in.
"""

from __future__ import annotations

import functools
import operator
import sys
import types
import typing
from typing import Any

_KEPT = (
    "__doc__",
    "__module__",
    "__optional_keys__",
    "__pydantic_config__",
    "__qualname__",
    "__required_keys__",
    "__total__",
)


def understood(given: Any) -> Any:
    """The same type, with each ``typing.TypedDict`` in it replaced where Pydantic refuses them.

    Raises:
        NameError: an annotation names what cannot be found.
    """
    if sys.version_info >= (3, 12):
        return given
    return _replaced(given, {})


def _replaced(given: Any, done: dict[Any, Any]) -> Any:
    if typing.is_typeddict(given):
        return done[given] if given in done else _made_anew(given, done)
    arguments = typing.get_args(given)
    new = tuple(_replaced(argument, done) for argument in arguments)
    if all(mine is other for mine, other in zip(arguments, new, strict=True)):
        return given
    return _with_arguments(given, new)


def _with_arguments(given: Any, arguments: tuple[Any, ...]) -> Any:
    origin = typing.get_origin(given)
    if origin is typing.Annotated:
        return typing.Annotated[arguments]
    if origin is types.UnionType:
        return functools.reduce(operator.or_, arguments)
    return given.copy_with(arguments) if hasattr(given, "copy_with") else origin[arguments]


def _made_anew(given: Any, done: dict[Any, Any]) -> Any:
    import typing_extensions  # noqa: PLC0415 - only where there are kinds

    make: Any = typing_extensions.TypedDict
    # Known before its fields are, which may name it.
    new = done[given] = make(given.__name__, {})
    hints = typing.get_type_hints(given, include_extras=True)
    new.__annotations__ = {name: _replaced(hint, done) for name, hint in hints.items()}
    for name in _KEPT:
        if name in vars(given):
            setattr(new, name, vars(given)[name])
    return new
