"""Conversion of values for H2 and back; only plain Python types leave this module.

Dates and times are sent as ISO text in both directions, because ``java.sql.Timestamp`` uses the
JVM's time zone and loses the hours that daylight saving skips.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from jaydebeapi import DataError, ProgrammingError

from sqlalchemy_h2 import jvm

Binder = Callable[[Any, int, Any], None]
"""Sets one parameter: ``binder(statement, parameter_number, value)``."""

Reader = Callable[[Any, int], Any]
"""Reads one column of the current row: ``reader(result_set, column_number)``."""

_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_SQL_NULL = 0


# --- Python to H2 ---------------------------------------------------------------------------


def _bind_int(statement: Any, index: int, value: int) -> None:
    if _LONG_MIN <= value <= _LONG_MAX:
        statement.setLong(index, value)
    else:
        statement.setBigDecimal(index, jvm.java().BigDecimal(str(value)))


def _bind_bytes(statement: Any, index: int, value: bytes | bytearray | memoryview) -> None:
    statement.setBytes(index, jvm.java().ByteArray(bytes(value)))


def _bind_decimal(statement: Any, index: int, value: decimal.Decimal) -> None:
    if not value.is_finite():
        raise DataError(f"H2 cannot store {value} as NUMERIC")
    statement.setBigDecimal(index, jvm.java().BigDecimal(str(value)))


def _bind_datetime(statement: Any, index: int, value: dt.datetime) -> None:
    java = jvm.java()
    kind = java.LocalDateTime if value.tzinfo is None else java.OffsetDateTime
    statement.setObject(index, kind.parse(value.isoformat()))


def _bind_time(statement: Any, index: int, value: dt.time) -> None:
    java = jvm.java()
    kind = java.LocalTime if value.utcoffset() is None else java.OffsetTime
    statement.setObject(index, kind.parse(value.isoformat()))


_BINDERS: dict[type, Binder] = {
    type(None): lambda statement, index, _: statement.setNull(index, _SQL_NULL),
    bool: lambda statement, index, value: statement.setBoolean(index, value),
    int: _bind_int,
    str: lambda statement, index, value: statement.setString(index, value),
    float: lambda statement, index, value: statement.setDouble(index, value),
    **dict.fromkeys((bytes, bytearray, memoryview), _bind_bytes),
    decimal.Decimal: _bind_decimal,
    uuid.UUID: lambda statement, index, value: statement.setObject(
        index, jvm.java().UUID.fromString(str(value))
    ),
    dt.datetime: _bind_datetime,
    dt.date: lambda statement, index, value: statement.setObject(
        index, jvm.java().LocalDate.parse(value.isoformat())
    ),
    dt.time: _bind_time,
}
# JPype uses the exact type, and str() of an enum member would be its name.
_PLAIN: dict[type, Callable[[Any], Any]] = {int: int, str: "".join, float: float}


def _bind_subclass(statement: Any, index: int, value: object) -> None:
    for kind, binder in _BINDERS.items():
        if isinstance(value, kind):
            binder(statement, index, _PLAIN.get(kind, lambda same: same)(value))
            return
    raise ProgrammingError(f"parameter {index}: H2 has no type for {type(value).__name__}")


def bind(statement: Any, parameters: Iterable[Any]) -> None:
    """Set all parameters of a Java ``PreparedStatement``.

    Raises DataError for a value that H2 cannot hold and ProgrammingError for an unknown type.
    """
    binders = _BINDERS
    index = 0
    try:
        for index, value in enumerate(parameters, 1):
            binder: Binder = binders.get(type(value), _bind_subclass)
            binder(statement, index, value)
    except UnicodeEncodeError as error:
        raise DataError(f"parameter {index}: not valid Unicode text: {error}") from error


# --- H2 to Python ---------------------------------------------------------------------------


def _read_integer(row: Any, column: int) -> int | None:
    value = row.getLong(column)
    return None if not value and row.wasNull() else int(value)


def _read_boolean(row: Any, column: int) -> bool | None:
    value = bool(row.getBoolean(column))
    return None if not value and row.wasNull() else value


def _read_float(row: Any, column: int) -> float | None:
    value = row.getDouble(column)
    return None if not value and row.wasNull() else float(value)


def _read_text(row: Any, column: int) -> str | None:
    value = row.getString(column)
    return None if value is None else str(value)


def _read_bytes(row: Any, column: int) -> bytes | None:
    value = row.getBytes(column)
    return None if value is None else bytes(value)


def _read_array(row: Any, column: int) -> list[Any] | None:
    value = row.getArray(column)
    return None if value is None else [_element(item) for item in value.getArray()]


def _element(item: Any) -> Any:
    java = jvm.java()
    if item is None:
        return None
    if isinstance(item, (java.Long, java.Integer, java.Short, java.Byte)):
        return int(item)
    if isinstance(item, java.Boolean):
        return bool(item)
    if isinstance(item, (java.Double, java.Float)):
        return float(item)
    return str(item.toString())


def _from_text(convert: Callable[[str], Any]) -> Reader:
    def read(row: Any, column: int) -> Any:
        value = row.getString(column)
        return None if value is None else convert(str(value))

    return read


def _micros(text: str) -> str:
    whole, point, fraction = text.partition(".")
    return f"{whole}.{fraction[:6]:0<6}" if point else whole


def _with_offset(text: str) -> str:
    at = max(text.rfind("+"), text.rfind("-"))
    offset = text[at:]
    return _micros(text[:at]) + (offset if ":" in offset else f"{offset}:00")


def _parse_datetime_tz(text: str) -> dt.datetime:
    day, clock = text.split(" ", 1)
    return dt.datetime.fromisoformat(f"{day} {_with_offset(clock)}")


_read_uuid = _from_text(uuid.UUID)
_READERS: dict[int, Reader] = {  # by java.sql.Types
    **dict.fromkeys((-7, 16), _read_boolean),
    **dict.fromkeys((-6, 5, 4, -5), _read_integer),
    **dict.fromkeys((6, 7, 8), _read_float),
    **dict.fromkeys((2, 3), _from_text(decimal.Decimal)),
    **dict.fromkeys((-2, -3, -4, 2000, 2004), _read_bytes),
    91: _from_text(dt.date.fromisoformat),
    92: _from_text(lambda text: dt.time.fromisoformat(_micros(text))),
    2013: _from_text(lambda text: dt.time.fromisoformat(_with_offset(text))),
    93: _from_text(lambda text: dt.datetime.fromisoformat(_micros(text))),
    2014: _from_text(_parse_datetime_tz),
    2003: _read_array,
}


class Layout(NamedTuple):
    """The columns of a result: enough to describe and read its rows."""

    description: tuple[tuple[Any, ...], ...]
    codes: list[int]
    readers: list[tuple[Reader, int]]

    @classmethod
    def of(cls, meta: Any) -> Layout:
        """Read the layout from a Java ``ResultSetMetaData``."""
        columns = range(1, int(meta.getColumnCount()) + 1)
        codes = [int(meta.getColumnType(column)) for column in columns]
        names = [str(meta.getColumnTypeName(column)) for column in columns]
        labels = [str(meta.getColumnLabel(column)) for column in columns]
        return cls(
            tuple((label, code, *[None] * 5) for label, code in zip(labels, codes, strict=True)),
            codes,
            [
                (_read_uuid if name == "UUID" else _READERS.get(code, _read_text), column)
                for column, code, name in zip(columns, codes, names, strict=True)
            ],
        )

    def still_fits(self, meta: Any) -> bool:
        """Whether a later result of the same SQL text has the same column types."""
        kind = meta.getColumnType
        return all(kind(column) == code for column, code in enumerate(self.codes, 1))
