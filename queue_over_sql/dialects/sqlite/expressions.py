"""SQLite's types, expressions and statements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, ClassVar, Final

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Float,
    Insert,
    Integer,
    Numeric,
    Table,
    case,
    false,
    func,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.types import TypeEngine

from queue_over_sql.dialects.at_once import AtOnceExpressions
from queue_over_sql.sql.conditions import NUL, JsonPath, JsonScalar, path_text, without_nul
from queue_over_sql.sql.expressions import microseconds

_TRUTHS: Final = (0, 1, None)
_EXACT_IN_FLOAT: Final = 2**53
# From this number on, integers are floating-point numbers in SQLite.
_INTEGER_END = 2**63


class SQLiteExpressions(AtOnceExpressions):
    """SQLite's SQL."""

    # Without AUTOINCREMENT, ids of finished messages would be reused.
    live_table_options: ClassVar[Mapping[str, Any]] = {"sqlite_autoincrement": True}

    @property
    def identity(self) -> TypeEngine[Any]:
        """INTEGER, because only this type is an alias of the row id, which goes up to 2⁶³ - 1."""
        return Integer()

    def payload_equals(
        self, column: ColumnElement[Any], path: JsonPath, value: JsonScalar
    ) -> ColumnElement[bool]:
        """By ``json_type`` and ``json_extract``; invalid JSON has no fields."""
        where = path_text(path)
        # SQLite ends a text at its first NUL.
        column = case((func.instr(column, "\\u0000") > 0, without_nul(column)), else_=column)
        kind = case((func.json_valid(column) == 1, func.json_type(column, where)))
        if value is None or isinstance(value, bool):
            return kind == {None: "null", True: "true", False: "false"}[value]
        found = func.json_extract(column, where)
        if isinstance(value, str):
            return case((kind == "text", found == value.replace("\0", NUL)), else_=false())
        bounded = value if abs(value) < _INTEGER_END else float(value)
        return case((kind.in_(("integer", "real")), found == bounded), else_=false())

    def now(self) -> ColumnElement[int]:
        """The host's clock in milliseconds; 'now' is constant within a statement."""
        days = "(julianday('now') - 2440587.5)"
        return microseconds(f"(CAST(ROUND({days} * 86400000.0) AS INTEGER) * 1000)")

    def exact_converter(
        self, kind: TypeEngine[Any], convert: Callable[[Any], Any] | None
    ) -> Callable[[Any], Any] | None:
        """A column holds values of any type: text in a BOOLEAN, a large integer in a NUMERIC."""
        if convert is None:
            return None
        if isinstance(kind, Boolean):
            return lambda value: convert(value) if value in _TRUTHS else value
        if isinstance(kind, Numeric) and not isinstance(kind, Float) and kind.asdecimal:
            # SQLAlchemy would make a float of it.
            return lambda value: (
                Decimal(value)
                if isinstance(value, int) and abs(value) > _EXACT_IN_FLOAT
                else convert(value)
            )
        return convert

    def holds_number(self, value: float, *, exact: bool) -> bool:
        """SQLite stores NULL for NaN."""
        return not math.isnan(value)

    def insert(self, table: Table) -> Insert:
        return sqlite.insert(table)
