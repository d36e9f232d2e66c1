"""PostgreSQL's types, expressions and statements."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from sqlalchemy import (
    ARRAY,
    JSON,
    Column,
    ColumnElement,
    Computed,
    Dialect,
    Float,
    FromClause,
    Insert,
    Integer,
    Numeric,
    String,
    Table,
    Text,
    TypeDecorator,
    and_,
    bindparam,
    case,
    cast,
    false,
    func,
    literal_column,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import TypeEngine

from queue_over_sql.dialects.at_once import AtOnceExpressions
from queue_over_sql.dialects.postgresql.insert import JsonText
from queue_over_sql.sql.conditions import LONE, NUL, JsonPath, JsonScalar, without_nul
from queue_over_sql.sql.expressions import microseconds

# A lone surrogate in JSON: a high one without a low one after it, or a low one alone.
_FIRST, _SECOND = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE_SURROGATE = rf"{_FIRST}(?!{_SECOND})|(?<!{_FIRST}){_SECOND}"
# https://www.postgresql.org/docs/current/catalog-pg-type.html: the oid of each type.
_FLOAT8, _NUMERIC = 701, 1700
# Where a table says its storage parameters.
_STORAGE: Final = "queue_over_sql_storage"


class InEncoding(TypeDecorator[str]):
    """A text whose characters that an encoding of the server lacks are escaped."""

    impl = String
    cache_ok = True

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self.encoding = encoding
        try:
            # Python's names are the server's, but for those of Windows and KOI8.
            name = encoding.replace("WIN", "cp").replace("KOI8", "KOI8-")
            self._codec = codecs.lookup(name).name
        except LookupError:
            self._codec = "ascii"

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return value.encode(self._codec, "backslashreplace").decode(self._codec)


class _CreateWithStorage(CreateTable):
    """Renders the storage parameters of a table; SQLAlchemy can from version 2.1 on."""


@compiles(_CreateWithStorage)
def _with_storage(element: _CreateWithStorage, compiler: Any, **options: Any) -> str:
    text: str = compiler.visit_create_table(element, **options)
    storage = element.element.info.get(_STORAGE)
    if not storage:
        return text
    parameters = ", ".join(f"{name} = {value}" for name, value in storage.items())
    return f"{text.rstrip()}\n WITH ({parameters})\n\n"


class PostgreSQLExpressions(AtOnceExpressions):
    """PostgreSQL's SQL."""

    stage_table_options: ClassVar[Mapping[str, Any]] = {
        "prefixes": ["UNLOGGED"],
        "info": {_STORAGE: {"autovacuum_enabled": "false"}},
    }
    # Frequent vacuums, because claims must read over the dead rows.
    live_table_options: ClassVar[Mapping[str, Any]] = {
        "info": {
            _STORAGE: {
                "autovacuum_vacuum_scale_factor": 0.01,
                "autovacuum_vacuum_threshold": 500,
                "autovacuum_vacuum_insert_scale_factor": 0.1,
                "autovacuum_vacuum_cost_delay": 0,
                "autovacuum_analyze_scale_factor": 0.1,
            }
        }
    }
    # A changed row fits beside its earlier version, so that no index entry is written.
    groups_table_options: ClassVar[Mapping[str, Any]] = {"info": {_STORAGE: {"fillfactor": 45}}}

    def create_table(self, table: Table, *, if_not_exists: bool = False) -> CreateTable:
        return _CreateWithStorage(table, if_not_exists=if_not_exists)

    def lock_conflict(
        self,
        statement: Insert,
        columns: Sequence[Column[Any]],
        values: Mapping[Column[Any], ColumnElement[Any]],
    ) -> Insert:
        """DO UPDATE locks a row before it looks at its WHERE."""
        conflict: postgresql.Insert = statement  # type: ignore[assignment]
        return conflict.on_conflict_do_update(index_elements=columns, set_=values, where=false())

    def as_code_points(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        return text.collate("C")

    def reason_type(self) -> TypeEngine[Any]:
        encoding = self.features.encoding
        return super().reason_type() if encoding is None else InEncoding(encoding)

    def payload_type(self, payload: str) -> TypeEngine[Any]:
        """``json``, because ``jsonb`` halved the publish rate and reorders keys."""
        return JsonText() if payload == "json" else super().payload_type(payload)

    def limit_of_waits(self, milliseconds: int) -> ColumnElement[bool] | None:
        """It is evaluated before the row is locked; the server's own limit is usually none."""
        setting = literal_column(f"set_config('lock_timeout', '{milliseconds:d}', true)", String())
        return setting != literal_column("''", String())

    def read_payload(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Read JSON as its text, unchanged, so that all decoding is in one place."""
        return cast(column, Text) if isinstance(column.type, JsonText) else column

    def differs(self, column: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[bool]:
        """Compare JSON by its text, because the type has no equality."""
        if isinstance(column.type, JsonText | JSON):
            column, other = cast(column, Text), cast(other, Text)
        return column.is_distinct_from(other)

    def payload_equals(
        self, column: ColumnElement[Any], path: JsonPath, value: JsonScalar
    ) -> ColumnElement[bool]:
        """Compare ``json_typeof`` and the field's text; numbers as NUMERIC, which is exact."""
        field: ColumnElement[Any] = _readable(column)
        for step in path:
            kind = Integer() if isinstance(step, int) else Text()
            field = field.op("->")(bindparam(None, step, type_=kind))
        kind_of, found = func.json_typeof(field), field.op("#>>")(literal_column("'{}'"))
        if value is None:
            return kind_of == "null"
        if isinstance(value, bool):
            return and_(kind_of == "boolean", found == ("true" if value else "false"))
        if isinstance(value, str):
            return and_(kind_of == "string", found == value.replace("\0", NUL))
        number = cast(found, Numeric) == cast(repr(value), Numeric)
        # CASE, because AND may evaluate its right side first and cast what is not a number.
        return case((kind_of == "number", number), else_=false())

    def result_code(self, kind: TypeEngine[Any]) -> Any:
        """SQLAlchemy must know whether a number is ``float8`` or ``numeric``."""
        while isinstance(kind, TypeDecorator | ARRAY):
            kind = kind.item_type if isinstance(kind, ARRAY) else kind.impl_instance
        if isinstance(kind, Float):
            return _FLOAT8
        return _NUMERIC if isinstance(kind, Numeric) else None

    def order_in_group(self, table: FromClause) -> Sequence[ColumnElement[Any]]:
        """By name and id, which only the index of groups has in this order."""
        return [table.c.group_key, table.c.id]

    def in_group(
        self, group_key: ColumnElement[Any], name: ColumnElement[Any]
    ) -> ColumnElement[bool]:
        """A range of one name. For an equality the order of ids is enough, for the planner.

        Then it may read the primary key, past all messages of a large group.
        """
        return and_(group_key >= name, group_key <= name)

    def computed(self, expression: ColumnElement[Any]) -> Computed:
        """Stored, because no index can have any other."""
        return Computed(expression, persisted=True)

    def now(self) -> ColumnElement[int]:
        """The statement's start: stable, so an index scan can use it; new in each statement."""
        return microseconds("CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)")

    def insert(self, table: Table) -> Insert:
        return postgresql.insert(table)


def _readable(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """JSON without the escapes that a server stores but then fails to read."""
    text = cast(column, Text)
    readable = func.regexp_replace(without_nul(text), _LONE_SURROGATE, LONE, "g")
    return case((func.strpos(text, "\\u") > 0, cast(readable, JSON)), else_=cast(column, JSON))
