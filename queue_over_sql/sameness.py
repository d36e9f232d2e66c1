"""Sameness: whether what came back is what was given, and where it is not.

Models and dataclasses are compared field by field, whatever they say of their own equality: a
comparison of theirs may leave out what would be lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

# Most values are of these, and are looked at no further.
_SIMPLE = frozenset({str, int, float, bool, NoneType, bytes})


def is_model(given: type) -> bool:
    """Whether a class is a Pydantic model, said without an import of Pydantic."""
    return isinstance(getattr(given, "model_fields", None), dict)


def changes(given: Any, back: Any, path: str = "") -> Iterator[str]:
    """The places at which what came back is not what was given.

    An instance of a base class is equal to one of a derived class that has the same fields.
    """
    if given is back:
        return
    mine, other = _parts(given), _parts(back)
    if mine is None or other is None or not isinstance(given, type(back)):
        if not _is_equal(given, back):
            yield path or "the whole payload"
        return
    for name in dict.fromkeys([*mine, *other]):
        place = f"{path}.{name}" if path else str(name)
        if name in mine and name in other:
            yield from changes(mine[name], other[name], place)
        else:
            yield place


def _is_equal(given: Any, back: Any) -> bool:
    return isinstance(given, bool) == isinstance(back, bool) and bool(given == back)


def _parts(value: Any) -> Mapping[Any, Any] | None:
    """The fields or items of a value that has such; None of one that is compared as a whole."""
    if type(value) in _SIMPLE or isinstance(value, type):
        return None
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value):
        return _dataclass_parts(value)
    if is_model(type(value)):
        fields = {name: getattr(value, name, None) for name in type(value).model_fields}
        return fields | (getattr(value, "__pydantic_extra__", None) or {})
    # An object that says nothing of its equality consists of what it holds.
    return None if _says_equal(type(value)) else getattr(value, "__dict__", None)


def _dataclass_parts(value: Any) -> Mapping[str, Any]:
    fields = {
        field.name: getattr(value, field.name, None)
        for field in dataclasses.fields(value)
        if field.compare
    }
    # Pydantic's own dataclasses may hold more than their fields.
    config = getattr(value, "__pydantic_config__", None) or {}
    return fields | vars(value) if config.get("extra") == "allow" else fields


def _says_equal(given: type) -> bool:
    return any("__eq__" in vars(base) for base in given.__mro__ if base is not object)
