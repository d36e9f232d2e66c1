"""From the values that drivers return to Arrow arrays of a type that was asked for.

Drivers differ in what they return for one type: SQLite has no times and no decimals, MySQL no
truth values. So a column is given to Arrow as it is, and where Arrow refuses it, value by value.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

_EXACT: Final = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_EVEN)


def array_of(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Make an array of a field's type.

    Raises:
        ValueError: a value cannot be one of that type; the text names the column.
    """
    import pyarrow as pa

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
        msg = f"column {field.name} holds a value that is no {kind}: {error}"
        raise ValueError(msg) from error


def conformed(array: pa.Array, field: pa.Field) -> pa.Array:
    """Turn an array that a driver made into one of a field's type.

    Raises:
        ValueError: a value cannot be one of that type; the text names the column.
    """
    import pyarrow as pa

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
    import pyarrow as pa

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
    """A time of day, or a longer or negative one as MySQL has them."""
    seconds, rest = divmod(abs(value), dt.timedelta(seconds=1))
    minutes, hours = seconds // 60 % 60, seconds // 3600
    fraction = f".{rest.microseconds:06}" if rest else ""
    sign = "-" if value < dt.timedelta() else ""
    return f"{sign}{hours:02}:{minutes:02}:{seconds % 60:02}{fraction}"


def _truth(value: Any) -> bool:
    return any(value) if isinstance(value, bytes) else bool(value)


def _decimal(value: Any) -> decimal.Decimal:
    # A float as it is written: the nearest binary fraction has digits that nobody stored.
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
    """A JSON object as a map of texts; what is none reads as if nothing were there."""
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
    """A JSON object as Kafka has headers: names with bytes."""
    pairs = _pairs(value)
    if pairs is None:
        return None
    return [{"key": key, "value": None if v is None else v.encode()} for key, v in pairs]


def _text_of_json(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
