"""Which Arrow type the values of a column become, by its SQL type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy.types import TypeEngine

_MOST_DIGITS: Final = 38
# Of a NUMERIC that says nothing: room for both sides of the point, as JDBC users have it.
_OPEN_SCALE: Final = 18


def stored_type(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """The type that is in the database: what an application makes of its values is its own."""
    while isinstance(kind, TypeDecorator):
        kind = kind.impl_instance
    return kind


def is_plain(kind: TypeEngine[Any]) -> bool:
    """Whether drivers return values of this type as Arrow has them, on every way."""
    kind = stored_type(kind)
    if isinstance(kind, ARRAY):
        return not (kind.dimensions or 0) > 1 and is_plain(kind.item_type)
    plain = (Boolean, Integer, Float, String, Date, DateTime, LargeBinary)
    return isinstance(kind, plain) and not isinstance(kind, Enum)


def arrow_type(kind: TypeEngine[Any]) -> pa.DataType:
    """The Arrow type for values of an SQL type; text for those that Arrow has nothing like."""
    import pyarrow as pa

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
    """The same where every integer has 64 bits."""
    import pyarrow as pa

    found = arrow_type(kind)
    return pa.int64() if pa.types.is_integer(found) else found


def mysql_type(kind: TypeEngine[Any]) -> pa.DataType:
    """The same for MySQL and MariaDB, whose integers come in more kinds."""
    import pyarrow as pa

    kind = stored_type(kind)
    if isinstance(kind, mysql.TINYINT) and kind.display_width == 1:
        return pa.bool_()
    found = arrow_type(kind)
    if not getattr(kind, "unsigned", False) or not pa.types.is_integer(found):
        return found
    return pa.int64() if found != pa.int64() else pa.decimal128(20, 0)


def _decimal_type(kind: Numeric[Any]) -> pa.DataType:
    import pyarrow as pa

    if not kind.asdecimal:
        return pa.float64()
    digits, scale = kind.precision, kind.scale
    if digits is None:
        return pa.decimal128(_MOST_DIGITS, _OPEN_SCALE)
    return pa.decimal128(digits, scale or 0) if digits <= _MOST_DIGITS else pa.string()
