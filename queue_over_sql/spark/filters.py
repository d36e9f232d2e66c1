"""Spark's filters as SQL conditions.

A condition must let all rows of the filter pass. If it lets more pass, because the database
compares texts differently, Spark filters again.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import IntegerType, LongType, ShortType, StringType, TimestampType
from sqlalchemy import not_, or_, type_coerce

from queue_over_sql.inside.columns import stored_type
from queue_over_sql.values.durations import instant_to_microseconds

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from queue_over_sql.spark.columns import MessageColumn, MessageColumns

_WHOLE: Final = (IntegerType, LongType, ShortType)
_ORDER: Final[Mapping[type[Filter], Callable[[Any, Any], Any]]] = {
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
# Longer lists of values are compared by Spark.
_MOST_VALUES: Final = 500


@dataclasses.dataclass(frozen=True)
class Pushed:
    """A filter in SQL. If it is ``exact``, no other rows pass, and Spark need not check again."""

    condition: ColumnElement[bool]
    exact: bool


def pushed(wanted: Filter, columns: MessageColumns) -> Pushed | None:
    """The database's part of a filter; None if it can do nothing."""
    if isinstance(wanted, Not):
        inner = pushed(wanted.child, columns)
        # The negation of a condition that lets too much pass would drop rows.
        return Pushed(not_(inner.condition), exact=True) if inner and inner.exact else None
    path: tuple[str, ...] = getattr(wanted, "attribute", ())
    column = columns.find(path[0]) if len(path) == 1 else None
    if column is None or not _comparable(column):
        return None
    condition = _condition(wanted, column)
    # LIKE ignores case in some databases.
    exact = column.exact and not isinstance(wanted, StringStartsWith)
    return None if condition is None else Pushed(condition, exact)


def _comparable(column: MessageColumn) -> bool:
    known = isinstance(column.kind, (*_WHOLE, TimestampType, StringType))
    return known and column.source is not None and column.comparable


def _condition(wanted: Filter, column: MessageColumn) -> ColumnElement[bool] | None:
    source = column.source
    if source is None:
        return None
    if isinstance(wanted, IsNull):
        return source.is_(None)
    if isinstance(wanted, IsNotNull):
        return source.is_not(None)
    # An application's own type may store values differently than Spark.
    plain = type_coerce(source, stored_type(source.type))
    if isinstance(wanted, In):
        return _one_of(wanted.value, column, plain)
    value = _bindable(getattr(wanted, "value", None), column)
    if value is None:
        null_safe = isinstance(wanted, EqualNullSafe) and wanted.value is None
        return source.is_(None) if null_safe else None
    return _comparison(wanted, column, plain, value)


def _comparison(
    wanted: Filter, column: MessageColumn, plain: ColumnElement[Any], value: Any
) -> ColumnElement[bool] | None:
    if isinstance(wanted, EqualTo):
        return _equal(plain, value)
    if isinstance(wanted, EqualNullSafe):
        # Never NULL, so that its negation is correct, too.
        return _equal(plain, value) & plain.is_not(None)
    if isinstance(wanted, StringStartsWith) and column.exact:
        return plain.startswith(value, autoescape=True)
    compare = _ORDER.get(type(wanted))
    # Databases order texts differently.
    if compare is None or isinstance(column.kind, StringType):
        return None
    found: ColumnElement[bool] = compare(plain, value)
    return found


def _equal(plain: ColumnElement[Any], value: Any) -> ColumnElement[bool]:
    equal: ColumnElement[bool] = plain == value
    return equal


def _one_of(
    given: tuple[Any, ...], column: MessageColumn, plain: ColumnElement[Any]
) -> ColumnElement[bool] | None:
    values = [_bindable(value, column) for value in given]
    if not values or None in values or len(values) > _MOST_VALUES:
        return None
    return or_(*[_equal(plain, value) for value in values])


def _bindable(value: Any, column: MessageColumn) -> Any:
    kind = column.kind
    if isinstance(kind, TimestampType):
        aware = isinstance(value, dt.datetime) and value.utcoffset() is not None
        return instant_to_microseconds(value, column.name) if aware else None
    if isinstance(kind, StringType):
        # Some databases refuse a NUL character in a statement.
        return value if isinstance(value, str) and "\0" not in value else None
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole else None
