"""Values of a queue's own columns: checked here, because SQLite would keep a value of any type."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    TEXT,
    VARCHAR,
    Boolean,
    Date,
    DateTime,
    Enum,
    Float,
    Integer,
    Interval,
    LargeBinary,
    Numeric,
    String,
    Text,
    Time,
    Uuid,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Column
    from sqlalchemy.types import TypeEngine

_INT64: Final = 2**63
_PYTHON: Final[dict[type, tuple[str, Any]]] = {
    Boolean: ("True or False", bool),
    Integer: ("a whole number", int),
    Float: ("a number", int | float | Decimal),
    Numeric: ("a number", int | float | Decimal),
    DateTime: ("a datetime", dt.datetime),
    Date: ("a date", dt.date),
    Time: ("a time", dt.time),
    Interval: ("a timedelta", dt.timedelta),
    LargeBinary: ("bytes", bytes | bytearray | memoryview),
}
"""What Python has for SQLAlchemy's types. Drivers take more, and store something else."""
_READ: Final[dict[type, Callable[[str], Any]]] = {
    DateTime: dt.datetime.fromisoformat,
    Date: dt.date.fromisoformat,
    Time: dt.time.fromisoformat,
    Numeric: Decimal,
    Uuid: uuid.UUID,
}
"""What JSON has text for."""


def own_value(column: Column[Any], value: Any, *, utf16: bool = False) -> Any:
    """Refuse a value that is not of its column's type; what is no plain type is let pass.

    Text that JSON has instead of a date, a time, a UUID or a decimal number is read as one.

    Args:
        column: the queue's own.
        value: what is to be stored in it.
        utf16: whether this engine counts units of UTF-16 instead of characters.

    Returns:
        What is to be stored.

    Raises:
        TypeError: it is of another type.
        ValueError: it does not fit.
    """
    if isinstance(value, str) and not isinstance(column.type, String):
        value = _read(column.type, value)
    if value is not None:
        _check(column, value, utf16=utf16)
    return value


def _read(kind: TypeEngine[Any], text: str) -> Any:
    """What a text says in the words of a type; the text itself where it says nothing."""
    for known, read in _READ.items():
        if isinstance(kind, known) and not (isinstance(kind, Uuid) and not kind.as_uuid):
            with contextlib.suppress(ValueError, ArithmeticError):
                return read(text)
    return text


def _check(column: Column[Any], value: Any, *, utf16: bool) -> None:
    kind = column.type
    if isinstance(kind, Enum):
        _expect(column, value, f"one of {', '.join(kind.enums)}", fits=_is_choice(kind, value))
    elif isinstance(kind, Uuid):
        words, python = ("a UUID", uuid.UUID) if kind.as_uuid else ("text", str)
        _expect(column, value, words, fits=isinstance(value, python))
    elif isinstance(kind, String):
        if type(kind) in (String, Text, VARCHAR, TEXT):
            _check_text(column, kind, value, utf16=utf16)
    else:
        known = next((each for each in type(kind).__mro__ if each in _PYTHON), None)
        if known is not None:
            words, python = _PYTHON[known]
            # To Python True is a number.
            fits = isinstance(value, python) and (python is bool or not isinstance(value, bool))
            _expect(column, value, words, fits=fits)
        if isinstance(kind, Integer) and not -_INT64 <= value < _INT64:
            msg = f"column {column.name!r}: {value} does not fit into 64 bits"
            raise ValueError(msg)


def _is_choice(kind: Enum, value: Any) -> bool:
    if kind.enum_class is not None and isinstance(value, kind.enum_class):
        return True
    return isinstance(value, str) and value in kind.enums


def _check_text(column: Column[Any], kind: String, value: Any, *, utf16: bool) -> None:
    _expect(column, value, "text", fits=isinstance(value, str))
    length = len(value.encode("utf-16-le", "surrogatepass")) // 2 if utf16 else len(value)
    if kind.length is not None and length > kind.length:
        msg = f"column {column.name!r} holds {kind.length} characters, not {length}"
        if length > len(value):
            msg += ": H2 counts UTF-16 units, of which an emoji, for one, has two"
        raise ValueError(msg)


def _expect(column: Column[Any], value: Any, expected: str, *, fits: bool) -> None:
    if not fits:
        msg = f"column {column.name!r} needs {expected}, not {value!r}"
        raise TypeError(msg)
