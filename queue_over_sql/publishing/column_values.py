"""Checks of the values of a queue's own columns, because SQLite stores a value of any type."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import struct
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    CHAR,
    CLOB,
    INTEGER,
    NCHAR,
    NVARCHAR,
    SMALLINT,
    TEXT,
    VARCHAR,
    Boolean,
    Date,
    DateTime,
    Double,
    Enum,
    Float,
    Integer,
    Interval,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Text,
    Time,
    Unicode,
    UnicodeText,
    Uuid,
)

from queue_over_sql.errors import shown
from queue_over_sql.values.texts import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Column
    from sqlalchemy.types import TypeEngine

    from queue_over_sql.sql.expressions import Expressions


_BITS: Final = {SmallInteger: 16, SMALLINT: 16, Integer: 32, INTEGER: 32}
"""Bits of integer types; all others have 64."""
_SINGLE: Final = 24
"""A float of at most this precision has 32 bits."""
_TEXTS: Final = frozenset(
    {String, Text, Unicode, UnicodeText, CHAR, NCHAR, VARCHAR, NVARCHAR, TEXT, CLOB}
)
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
"""The Python type for each SQLAlchemy type. Drivers accept others but store them differently."""
_READ: Final[dict[type, Callable[[str], Any]]] = {
    DateTime: dt.datetime.fromisoformat,
    Date: dt.date.fromisoformat,
    Time: dt.time.fromisoformat,
    Numeric: Decimal,
    Uuid: uuid.UUID,
}
"""How to read the values that JSON can only hold as text."""


def all_columns(columns: Mapping[str, Any] | None, own: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values given as ``columns`` and those given by themselves; TypeError if one is twice."""
    if columns is None:
        return own
    if not isinstance(columns, Mapping):
        msg = f"columns must be a mapping of names to values, not {type(columns).__name__}"
        raise TypeError(msg)
    if twice := sorted(columns.keys() & own.keys()):
        msg = f"the column {', '.join(twice)} was given twice: in columns and by itself"
        raise TypeError(msg)
    return {**columns, **own}


def own_value(column: Column[Any], value: Any, expressions: Expressions) -> Any:
    """Check a value against its column's type; values of custom types are not checked.

    Text is converted for columns of dates, times, UUIDs and decimal numbers, which JSON lacks.

    Returns:
        The value to store.

    Raises:
        TypeError: the value has another type.
        ValueError: the value does not fit.
    """
    if isinstance(value, str) and not isinstance(column.type, String):
        value = _read(column.type, value)
    return None if value is None else _checked(column, value, expressions)


def _read(kind: TypeEngine[Any], text: str) -> Any:
    if isinstance(kind, Float):
        # In SQLAlchemy 2.0 it is a Numeric, too.
        return text
    for known, read in _READ.items():
        if isinstance(kind, known) and not (isinstance(kind, Uuid) and not kind.as_uuid):
            with contextlib.suppress(ValueError, ArithmeticError):
                return read(text)
    return text


def _checked(column: Column[Any], value: Any, expressions: Expressions) -> Any:
    kind = column.type
    if isinstance(kind, Enum):
        _expect(column, value, f"one of {', '.join(kind.enums)}", fits=_is_choice(kind, value))
        return value
    if isinstance(kind, Uuid):
        words, python = ("a UUID", uuid.UUID) if kind.as_uuid else ("text", str)
        _expect(column, value, words, fits=isinstance(value, python))
        return plain(value)
    if isinstance(kind, String):
        return _text(column, kind, value, expressions) if type(kind) in _TEXTS else value
    return _plain_value(column, value, expressions)


def _plain_value(column: Column[Any], value: Any, expressions: Expressions) -> Any:
    kind = column.type
    known = next((each for each in type(kind).__mro__ if each in _PYTHON), None)
    if known is None:
        return value
    words, python = _PYTHON[known]
    # ``bool`` is a subclass of ``int``.
    fits = isinstance(value, python) and (python is bool or not isinstance(value, bool))
    _expect(column, value, words, fits=fits)
    if isinstance(kind, LargeBinary):
        value = value if type(value) is bytes else bytes(memoryview(value))
    elif isinstance(kind, Integer):
        value = _whole(column, kind, value)
    elif isinstance(kind, Float):
        value = _float(column, kind, value, expressions)
    elif isinstance(kind, Numeric):
        value = _decimal(column, kind, value, expressions)
    elif isinstance(kind, DateTime) and type(value) is not dt.datetime:
        # Drivers choose by the exact type and do not accept a subclass.
        value = dt.datetime.combine(value.date(), value.timetz())
    return value


def _is_choice(kind: Enum, value: Any) -> bool:
    if kind.enum_class is not None and isinstance(value, kind.enum_class):
        return True
    return isinstance(value, str) and value in kind.enums


def _text(column: Column[Any], kind: String, value: Any, expressions: Expressions) -> str:
    _expect(column, value, "text", fits=isinstance(value, str))
    text: str = plain(value)
    utf16 = expressions.features.counts_utf16
    length = len(text.encode("utf-16-le", "surrogatepass")) // 2 if utf16 else len(text)
    if kind.length is not None and length > kind.length:
        msg = f"column {column.name!r} holds at most {kind.length} characters, not {length}"
        if length > len(text):
            msg += ": H2 counts UTF-16 code units, and characters such as emoji have two"
        raise ValueError(msg)
    return text


def _whole(column: Column[Any], kind: Integer, value: int) -> int:
    bits = _BITS.get(type(kind), 64)
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise _too_large(column, value, f"whole numbers of {bits} bits")
    number: int = plain(value)
    return number


def _float(
    column: Column[Any], kind: Float[Any], value: float | Decimal, expressions: Expressions
) -> float:
    try:
        number = float(value)
        single = not isinstance(kind, Double) and 0 < (kind.precision or 0) <= _SINGLE
        struct.pack("<f" if single else "<d", number)
    except OverflowError:
        number = math.inf
    except ValueError:
        # A signalling NaN.
        number = math.nan
    if math.isinf(number) and value != number:
        raise _too_large(column, value, "floating-point numbers that fit its precision")
    _expect_finite(column, number, fits=expressions.holds_number(number, exact=False))
    return number


def _decimal(
    column: Column[Any], kind: Numeric[Any], value: float | Decimal, expressions: Expressions
) -> Any:
    number = Decimal(value)
    whole, scale = (kind.precision or 0) - (kind.scale or 0), kind.scale or 0
    if not number.is_finite():
        fits = number.is_qnan() or (number.is_infinite() and not kind.precision)
        fits = fits and expressions.holds_number(float(number), exact=True)
        _expect_finite(column, value, fits=fits)
    elif kind.precision and min(whole, scale) >= 0:
        # Larger numbers would be rounded to one with too many digits.
        first = Decimal(f"{'9' * whole}.{'9' * scale}5")
        if number.copy_abs() >= first:
            raise _too_large(column, value, f"numbers with at most {whole} digits before the point")
    return plain(value)


def _too_large(column: Column[Any], value: object, held: str) -> ValueError:
    return ValueError(f"column {column.name!r} holds only {held}, not {shown(value)}")


def _expect_finite(column: Column[Any], value: object, *, fits: bool) -> None:
    if not fits:
        msg = (
            f"column {column.name!r} requires a finite number in this database, not {shown(value)}"
        )
        raise ValueError(msg)


def _expect(column: Column[Any], value: Any, expected: str, *, fits: bool) -> None:
    if not fits:
        msg = f"column {column.name!r} requires {expected}, not {shown(value)}"
        raise TypeError(msg)
