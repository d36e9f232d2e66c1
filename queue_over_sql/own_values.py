"""Values of a queue's own columns: checked here, because SQLite would keep a value of any type."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import TEXT, VARCHAR, Boolean, Float, Integer, String, Text

if TYPE_CHECKING:
    from sqlalchemy import Column

_INT64: Final = 2**63


def check_own_value(column: Column[Any], value: Any, *, utf16: bool = False) -> None:
    """Refuse a value that is not of its column's type; what is no plain type is let pass.

    Args:
        column: the queue's own.
        value: what is to be stored in it.
        utf16: whether this engine counts units of UTF-16 instead of characters.

    Raises:
        TypeError: it is of another type.
        ValueError: it does not fit.
    """
    if value is None:
        return
    kind = column.type
    if isinstance(kind, Boolean):
        _expect(column, value, "True or False", fits=isinstance(value, bool))
    elif isinstance(kind, Integer):
        whole = isinstance(value, int) and not isinstance(value, bool)
        _expect(column, value, "a whole number", fits=whole)
        if not -_INT64 <= value < _INT64:
            msg = f"column {column.name!r}: {value} does not fit into 64 bits"
            raise ValueError(msg)
    elif isinstance(kind, Float):
        number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
        _expect(column, value, "a number", fits=number)
    elif isinstance(kind, String) and type(kind) in (String, Text, VARCHAR, TEXT):
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
