"""PostgreSQL's ways to insert many messages: one JSON array in one statement, and COPY.

An INSERT with a parameter for each value costs the driver several times what the server needs for
the row. A JSON array is one parameter, which the server splits as fast as it stores rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
    Insert,
    Table,
    Text,
    bindparam,
    cast,
    func,
    literal_column,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import UserDefinedType
from sqlalchemy.util import await_only

from queue_over_sql.payloads.codec import encode_json
from queue_over_sql.publishing import statements as publish
from queue_over_sql.publishing.strategy import Inserts
from queue_over_sql.schema.queue_tables import QueueTables
from queue_over_sql.sql.compiled import StatementCache
from queue_over_sql.sql.driver_calls import driver_connection, driver_errors
from queue_over_sql.statements.requests import NewRows

_NUMBERS: Final = frozenset(
    {"priority", "max_attempts", "lease_us", "scheduled_at", "available_at", "expires_at"}
)
_TEXTS: Final = frozenset({"message_key", "kind", "headers"})
# What PostgreSQL can store but not extract from an array.
_NUL: Final = "\\u0000"


class JsonText(UserDefinedType[str]):
    """A ``json`` column, written and read as text that was already encoded."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """The type's name in DDL."""
        return "JSON"

    def bind_expression(self, bindvalue: BindParameter[str]) -> ColumnElement[str]:
        """A parameter of this type."""
        return _Encoded(bindvalue)


class _Encoded(ColumnElement[str]):
    """A parameter that is already JSON."""

    inherit_cache = True

    def __init__(self, parameter: BindParameter[str]) -> None:
        self.parameter = parameter
        self.type = parameter.type


@compiles(_Encoded)
def _parameter(element: _Encoded, compiler: SQLCompiler, **options: Any) -> str:
    parameter = compiler.process(element.parameter, **options)
    if compiler.dialect.driver != "asyncpg":
        return parameter
    # The user's connection may encode parameters of this type.
    return f"CAST(CAST({parameter} AS TEXT) AS JSON)"


class PostgreSQLInserts(Inserts):
    """Sends one JSON array in one statement, and loads by COPY."""

    rows_at_once = 4096
    loads_as_it_comes = True

    def publish(
        self, connection: Connection, sql: StatementCache, rows: NewRows
    ) -> Sequence[Sequence[Any]] | None:
        """Insert the elements of a JSON array; None if an array cannot hold them."""
        differing = tuple(rows.differing)
        if not _fits(sql.subject, rows):
            return None
        names = sql.subject.parameters
        values = {names[name]: value for name, value in rows.same.items()}
        values["p_rows"] = _array(sql.subject, rows)
        return sql.get(publish_elements, differing, rows.locking).run(connection, values).all()

    def load(self, connection: Connection, sql: StatementCache, rows: NewRows) -> bool:
        """Insert rows by COPY; False for drivers other than psycopg."""
        if connection.dialect.driver != "psycopg":
            return False
        tables: QueueTables = sql.subject
        names = rows.filled()
        copied: Iterable[Sequence[Any]] = rows.tuples(names)
        converters = [sql.bind_converter(tables.live.c[name].type) for name in names]
        if any(converters):
            copied = (
                [
                    value if convert is None else convert(value)
                    for value, convert in zip(row, converters, strict=True)
                ]
                for row in rows.tuples(names)
            )
        copy = _copy_on_loop if connection.dialect.is_async else copy_in
        with driver_errors(connection, "COPY"):
            copy(connection, copy_statement(connection, tables.live, names), copied)
        return True


def copy_statement(connection: Connection, table: Table, names: Sequence[str]) -> str:
    """COPY of these columns, as text."""
    preparer = connection.dialect.identifier_preparer
    columns = ", ".join(preparer.quote(name) for name in names)
    return f"COPY {preparer.format_table(table)} ({columns}) FROM STDIN"


def publish_elements(tables: QueueTables, differing: tuple[str, ...], locking: bool) -> Insert:
    """Insert the elements of an array: each is a payload, or an array of the differing values.

    A payload is stored exactly as it is written in the array. ``locking``: as in ``publish_many``.
    """
    array = cast(bindparam("p_rows", None, type_=Text()), JSON)
    element: ColumnElement[Any] = func.json_array_elements(array).column_valued("element")
    live = tables.live
    given: dict[str, ColumnElement[Any]] = {}
    for name in publish.columns_of(tables, differing):
        if name not in differing:
            given[name] = bindparam(tables.parameters[name], None, type_=live.c[name].type)
        elif _are_elements(tables, differing):
            given[name] = element
        else:
            given[name] = _field(tables, element, name, differing.index(name))
    # With types, because a value in a SELECT does not know its target column.
    chosen = [cast(value, live.c[name].type) for name, value in given.items()]
    statement = tables.expressions.insert(live).from_select(
        list(given), select(*chosen), include_defaults=False
    )
    statement = publish.skip_taken(tables, statement, locking=locking)
    return statement.returning(live.c.id, live.c.message_key)


def _field(
    tables: QueueTables, element: ColumnElement[Any], name: str, index: int
) -> ColumnElement[Any]:
    position: ColumnElement[Any] = literal_column(str(index))
    if name == "payload" and isinstance(tables.live.c.payload.type, JsonText):
        return element.op("->")(position)
    text = element.op("->>")(position)
    return cast(text, BigInteger) if name in _NUMBERS else text


def _fits(tables: QueueTables, rows: NewRows) -> bool:
    others = rows.differing.keys() - _NUMBERS - _TEXTS
    if others != {"payload"} or not isinstance(tables.live.c.payload.type, JsonText | Text):
        return False
    if _are_elements(tables, tuple(rows.differing)):
        return True
    return not any(_NUL in text for text in rows.differing["payload"])


def _are_elements(tables: QueueTables, differing: tuple[str, ...]) -> bool:
    return differing == ("payload",) and isinstance(tables.live.c.payload.type, JsonText)


def _array(tables: QueueTables, rows: NewRows) -> str:
    if _are_elements(tables, tuple(rows.differing)):
        return f"[{','.join(rows.differing['payload'])}]"
    columns = [
        column
        if name == "payload" and isinstance(tables.live.c.payload.type, JsonText)
        else [encode_json(value, name) for value in column]
        for name, column in rows.differing.items()
    ]
    return f"[[{'],['.join(map(','.join, zip(*columns, strict=True)))}]]"


def copy_in(connection: Connection, statement: str, rows: Iterable[Sequence[Any]]) -> None:
    """Run a COPY with these rows, in a thread."""
    with driver_connection(connection).cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)


def _copy_on_loop(connection: Connection, statement: str, rows: Iterable[Sequence[Any]]) -> None:
    async def run() -> None:
        async with driver_connection(connection).cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                await copy.write_row(row)

    await_only(run())
