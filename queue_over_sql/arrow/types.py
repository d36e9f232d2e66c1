"""The Arrow type of a column, and the conversion of a driver's values to it."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Date,
    DateTime,
    Enum,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    TypeDecorator,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

_MOST_DIGITS: Final = 38
# For a NUMERIC without precision: room on both sides of the point, as with JDBC.
_OPEN_SCALE: Final = 18


def stored_type(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """The type in the database, without the application's own type around it."""
    while isinstance(kind, TypeDecorator):
        kind = kind.impl_instance
    return kind


def is_plain(kind: TypeEngine[Any]) -> bool:
    """Whether all ways of reading return values of this type as Arrow expects them."""
    kind = stored_type(kind)
    if isinstance(kind, ARRAY):
        return not (kind.dimensions or 0) > 1 and is_plain(kind.item_type)
    plain = (Boolean, Integer, Float, String, Date, DateTime, LargeBinary)
    return isinstance(kind, plain) and not isinstance(kind, Enum)


def arrow_type(kind: TypeEngine[Any]) -> pa.DataType:
    """The Arrow type for values of an SQL type; text if Arrow has no equivalent."""
    kind = stored_type(kind)
    if isinstance(kind, ARRAY):
        return pa.list_(arrow_type(kind.item_type)) if is_plain(kind) else pa.string()
    if isinstance(kind, DateTime):
        return pa.timestamp("us", tz="UTC" if kind.timezone else None)
    if isinstance(kind, Numeric) and not isinstance(kind, Float):
        return _decimal_type(kind)
    for sql_type, found in (
        (Boolean, pa.bool_()),
        (SmallInteger, pa.int16()),
        (BigInteger, pa.int64()),
        (Integer, pa.int32()),
        (Float, pa.float64()),
        (Date, pa.date32()),
        (LargeBinary, pa.binary()),
    ):
        if isinstance(kind, sql_type):
            return found
    return pa.string()


def wide_type(kind: TypeEngine[Any]) -> pa.DataType:
    """As ``arrow_type``, with 64 bits for every integer."""
    found = arrow_type(kind)
    return pa.int64() if pa.types.is_integer(found) else found


def mysql_type(kind: TypeEngine[Any]) -> pa.DataType:
    """As ``arrow_type``, for MySQL and MariaDB, which have more integer types."""
    kind = stored_type(kind)
    if isinstance(kind, mysql.TINYINT) and kind.display_width == 1:
        return pa.bool_()
    found = arrow_type(kind)
    if not getattr(kind, "unsigned", False) or not pa.types.is_integer(found):
        return found
    return pa.int64() if found != pa.int64() else pa.decimal128(20, 0)


def _decimal_type(kind: Numeric[Any]) -> pa.DataType:
    if not kind.asdecimal:
        return pa.float64()
    digits, scale = kind.precision, kind.scale
    if digits is None:
        return pa.decimal128(_MOST_DIGITS, _OPEN_SCALE)
    return pa.decimal128(digits, scale or 0) if digits <= _MOST_DIGITS else pa.string()


_EXACT: Final = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_EVEN)


def array_of(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Make an array with a field's type.

    Raises:
        ValueError: a value does not fit that type; the message names the column.
    """
    kind = field.type
    if not pa.types.is_nested(kind):
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, OverflowError):
            pass
    convert = _converter(kind)
    try:
        return pa.array([None if v is None else convert(v) for v in values], kind)
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        msg = (
            f"column {field.name} holds a value that is not a {kind}: {error}. Correct the value, "
            "or read the other columns with the option columns"
        )
        raise ValueError(msg) from error


def conformed(array: pa.Array, field: pa.Field) -> pa.Array:
    """Convert a driver's array to a field's type.

    Raises:
        ValueError: a value does not fit that type; the message names the column.
    """
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if array.type == field.type:
        return array
    if array.null_count == len(array):
        return pa.nulls(len(array), field.type)
    if not pa.types.is_nested(field.type):
        try:
            return array.cast(field.type)
        except pa.ArrowException:
            pass
    return array_of(array.to_pylist(), field)


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    types = pa.types
    for is_kind, convert in (
        (types.is_string, _text),
        (types.is_boolean, _truth),
        (types.is_integer, int),
        (types.is_floating, float),
        (types.is_timestamp, _instant),
        (types.is_date, _date),
        (types.is_binary, _bytes),
        (types.is_map, _pairs),
    ):
        if is_kind(kind):
            return convert
    if types.is_decimal(kind):
        unit = decimal.Decimal(1).scaleb(-kind.scale)
        return lambda value: _decimal(value).quantize(unit, context=_EXACT)
    if types.is_list(kind) and types.is_struct(kind.value_type):
        return _named_bytes
    return lambda value: value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, dict | list | bool):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, dt.timedelta):
        return _clock(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _clock(value: dt.timedelta) -> str:
    seconds, rest = divmod(abs(value), dt.timedelta(seconds=1))
    minutes, hours = seconds // 60 % 60, seconds // 3600
    fraction = f".{rest.microseconds:06}" if rest else ""
    sign = "-" if value < dt.timedelta() else ""
    return f"{sign}{hours:02}:{minutes:02}:{seconds % 60:02}{fraction}"


def _truth(value: Any) -> bool:
    if isinstance(value, bytes):
        return any(value)
    if value not in _TRUTHS:
        msg = f"{value!r} is neither true nor false"
        raise ValueError(msg)
    return bool(value)


_TRUTHS: Final = (0, 1)


def _decimal(value: Any) -> decimal.Decimal:
    # Use a float's shortest decimal form, because its exact value has digits that nobody stored.
    return decimal.Decimal(str(value))


def _instant(value: Any) -> Any:
    return dt.datetime.fromisoformat(value) if isinstance(value, str) else value


def _date(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.date()
    return dt.date.fromisoformat(value[:10]) if isinstance(value, str) else value


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _pairs(value: Any) -> list[tuple[str, str | None]] | None:
    try:
        found = json.loads(value) if isinstance(value, str | bytes) else value
    except ValueError:
        return None
    if isinstance(found, list) and all(isinstance(pair, tuple) for pair in found):
        return found
    if not isinstance(found, dict):
        return None
    return [(key, None if v is None else _text_of_json(v)) for key, v in found.items()]


def _named_bytes(value: Any) -> list[dict[str, Any]] | None:
    pairs = _pairs(value)
    if pairs is None:
        return None
    return [{"key": key, "value": None if v is None else v.encode()} for key, v in pairs]


def _text_of_json(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
