"""Encoding: from the columns of a DataFrame to those of a queue's table.

Which columns there are and of which types is checked once, on the driver, where the error is
seen at once (``plan_of``). What the values may be is checked on the executors, by whole columns.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as spark
from sqlalchemy import (
    Boolean,
    Date,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    String,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import Column

    from queue_over_sql.schema import QueueTables

PAYLOAD: Final = "payload"
_ALIASES: Final = {"value": PAYLOAD}
_DURATION: Final = (spark.NumericType, spark.DayTimeIntervalType)
_TEXT: Final = (spark.StringType, spark.BinaryType)
_ACCEPTED: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    PAYLOAD: (_TEXT, "a string or binary; make JSON of other columns by to_json(struct(...))"),
    "key": (_TEXT, "a string"),
    "kind": ((spark.StringType,), "a string"),
    "headers": (
        (spark.MapType, spark.StringType, spark.ArrayType),
        "a map of strings, the text of a JSON object, or an array of key and value",
    ),
    "priority": ((spark.IntegralType,), "a whole number"),
    "delay": (_DURATION, "seconds, or an interval of days to seconds"),
    "at": ((spark.TimestampType,), "a timestamp with a time zone"),
    "lease": (_DURATION, "seconds, or an interval of days to seconds"),
    "max_attempts": ((spark.IntegralType,), "a whole number"),
}
"""The columns that every queue takes, and which types each may have."""

_NUMBER: Final = (spark.NumericType,)
_OWN: Final[tuple[tuple[type[Any], tuple[type, ...], str], ...]] = (
    (Boolean, (spark.BooleanType,), "a boolean"),
    (Integer, (spark.IntegralType,), "a whole number"),
    (Float, _NUMBER, "a number"),
    (Numeric, (spark.IntegralType, spark.DecimalType), "a decimal"),
    (String, (spark.StringType,), "a string"),
    (LargeBinary, (spark.BinaryType,), "binary"),
    (DateTime, (spark.TimestampType, spark.TimestampNTZType), "a timestamp"),
    (Date, (spark.DateType,), "a date"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnPlan:
    """What becomes of one column of a DataFrame.

    Attributes:
        source: its name.
        role: what it is of a message, a key of the accepted ones, or a queue's own column.
        own: whether it is a queue's own column.
    """

    source: str
    role: str
    own: bool = False


def plan_of(schema: spark.StructType, tables: QueueTables) -> tuple[ColumnPlan, ...]:
    """Find out what each column of a DataFrame is.

    Raises:
        ValueError: a column is unknown or there twice, or one is missing; the text names it.
        TypeError: a column has a type that it cannot have.
    """
    plans = [_plan(field, tables) for field in schema.fields]
    found: dict[str, str] = {}
    for plan in plans:
        if plan.role in found:
            both = f"columns {found[plan.role]} and {plan.source}"
            msg = f"{both} are both the {plan.role}: drop one of them"
            raise ValueError(msg)
        found[plan.role] = plan.source
    _check_complete(found, tables)
    return tuple(plans)


def _plan(field: spark.StructField, tables: QueueTables) -> ColumnPlan:
    name = field.name.lower()
    if name in tables.own_columns:
        _check_own(field, tables.live.c[name])
        return ColumnPlan(field.name, name, own=True)
    role = _ALIASES.get(name, name)
    if role not in _ACCEPTED:
        raise ValueError(_unknown(field.name, tables))
    types, expected = _ACCEPTED[role]
    if not isinstance(field.dataType, types) or not _elements_fit(field.dataType):
        raise TypeError(_misfit(field, expected))
    return ColumnPlan(field.name, role)


def _check_own(field: spark.StructField, column: Column[object]) -> None:
    for family, types, expected in _OWN:
        if isinstance(column.type, family):
            if not isinstance(field.dataType, types):
                raise TypeError(_misfit(field, expected))
            return
    if not isinstance(field.dataType, spark.AtomicType):
        raise TypeError(_misfit(field, "a plain type"))


def _elements_fit(kind: spark.DataType) -> bool:
    if isinstance(kind, spark.MapType):
        return isinstance(kind.keyType, spark.StringType) and isinstance(kind.valueType, _TEXT)
    if isinstance(kind, spark.ArrayType):
        element = kind.elementType
        if not isinstance(element, spark.StructType) or element.names != ["key", "value"]:
            return False
        return all(isinstance(part.dataType, _TEXT) for part in element.fields)
    return True


def _check_complete(found: Iterable[str], tables: QueueTables) -> None:
    there, live = set(found), tables.live.c
    if PAYLOAD not in there:
        msg = "the DataFrame has no column payload (or value), which every message needs"
        raise ValueError(msg)
    missing = [n for n in tables.own_columns if not live[n].nullable and n not in there]
    if missing:
        msg = f"queue {tables.queue!r} needs values of its column {', '.join(missing)}"
        raise ValueError(msg)


def _unknown(name: str, tables: QueueTables) -> str:
    known = [*_ACCEPTED, *_ALIASES, *tables.own_columns]
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.7)
    hint = f": did you mean {near[0]}?" if near else ": drop it, or select what is to be written."
    return (
        f"queue {tables.queue!r} takes no column {name}{hint} It takes: "
        f"{', '.join([*_ACCEPTED, *tables.own_columns])}."
    )


def _misfit(field: spark.StructField, expected: str) -> str:
    return f"column {field.name} must be {expected}, not {field.dataType.simpleString()}"
