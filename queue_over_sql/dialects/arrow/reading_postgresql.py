"""Reading from PostgreSQL: whole columns through ADBC where it is installed, else a binary cursor.

ADBC reads by COPY, which takes no parameters; a statement that has some it reads into memory as
one batch. So the values are handed over as settings of the transaction, and the statement looks
them up there.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import BindParameter, Text, cast, func, literal_column, null
from sqlalchemy.dialects.postgresql import asyncpg
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql.elements import ClauseList
from sqlalchemy.sql.visitors import replacement_traverse
from sqlalchemy.types import NullType

from queue_over_sql.dialects.arrow.adbc_links import adbc_errors, adbc_link
from queue_over_sql.dialects.arrow.batches import batches_of_rows, conformed_batches
from queue_over_sql.dialects.arrow.reading_rows import ReadsRows
from queue_over_sql.dialects.arrow.types import is_plain
from queue_over_sql.dialects.compiled import CompiledStatement
from queue_over_sql.dialects.driver_calls import driver_connection, driver_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import ColumnElement, Connection, Dialect, Select

_SIZE_HINT: Final = "adbc.postgresql.batch_size_hint_bytes"


class ReadsColumns(ReadsRows):
    """How the dialect of PostgreSQL reads."""

    def read_column(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """As text, unless both ways of reading return the same for it."""
        return column if is_plain(column.type) else cast(column, Text)

    def read_content(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """As it is: both ways return JSON as its text, and a cast is dear to the server."""
        return column

    def read_arrow(
        self,
        connection: Connection,
        statement: Select[Any],
        schema: pa.Schema,
        batch_bytes: int,
    ) -> Generator[pa.RecordBatch]:
        """Whole columns through ADBC where it is installed, else through a binary cursor."""
        if connection.dialect.driver != "psycopg":
            yield from super().read_arrow(connection, statement, schema, batch_bytes)
            return
        with adbc_link(connection) as link:
            if link is not None:
                yield from _by_copy(connection, link, statement, schema, batch_bytes)
                return
        yield from _by_cursor(connection, statement, schema, batch_bytes)


def _by_copy(
    connection: Connection,
    link: Any,
    statement: Select[Any],
    schema: pa.Schema,
    batch_bytes: int,
) -> Iterator[pa.RecordBatch]:
    plain, values = _with_settings(connection, statement)
    # The other driver's dialect, because psycopg's would double each percent sign.
    text = str(plain.compile(dialect=_plain_dialect()))
    with adbc_errors(connection):
        if values:
            _set(link, values)
        with link.cursor() as cursor:
            cursor.adbc_statement.set_options(**{_SIZE_HINT: str(batch_bytes)})
            cursor.execute(text)
            yield from conformed_batches(cursor.fetch_record_batch(), schema, batch_bytes)


def _set(link: Any, values: Mapping[str, str]) -> None:
    """Hand values over for the length of the transaction."""
    marks = [f"set_config('{name}', ${index}, true)" for index, name in enumerate(values, start=1)]
    with link.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(marks)}", tuple(values.values()))
        cursor.fetchall()


def _plain_dialect() -> Dialect:
    made: Callable[[], Dialect] = asyncpg.dialect
    return made()


def _json_as_text() -> type[Any]:
    loader: type[Any] = importlib.import_module("psycopg.types.string").TextBinaryLoader
    return loader


def _with_settings(
    connection: Connection, statement: Select[Any]
) -> tuple[Select[Any], dict[str, str]]:
    """The statement without parameters, and the settings that it looks their values up in."""
    values: dict[str, str] = {}

    def looked_up(bind: BindParameter[Any], value: Any) -> ColumnElement[Any]:
        if value is None:
            return null()
        name = f"queue_over_sql.p{len(values)}"
        values[name] = _as_text(connection, bind, value)
        found = func.current_setting(literal_column(f"'{name}'"), type_=Text())
        return found if isinstance(bind.type, NullType) else cast(found, bind.type)

    def replace(element: Any, **_: Any) -> Any:
        if not isinstance(element, BindParameter):
            return None
        value = element.effective_value
        if element.expanding:
            return ClauseList(*[looked_up(element, each) for each in value or ()]).self_group()
        return looked_up(element, value)

    plain: Any = replacement_traverse(statement, {}, replace)
    return plain, values


def _as_text(connection: Connection, bind: BindParameter[Any], value: Any) -> str:
    dialect = connection.dialect
    process = bind.type.dialect_impl(dialect).bind_processor(dialect)
    processed = value if process is None else process(value)
    if isinstance(processed, bytes):
        return f"\\x{processed.hex()}"
    return processed.isoformat() if hasattr(processed, "isoformat") else str(processed)


def _by_cursor(
    connection: Connection, statement: Select[Any], schema: pa.Schema, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Through a cursor of the server's, so that no more than a batch is here at once."""
    text, parameters = CompiledStatement(statement, connection.dialect).bound()
    connection.exec_driver_sql("BEGIN READ ONLY")
    try:
        with (
            driver_errors(connection, text),
            driver_connection(connection).cursor("queue_over_sql_reading") as cursor,
        ):
            # Otherwise psycopg would decode it.
            cursor.adapters.register_loader("json", _json_as_text())
            cursor.execute(text, parameters, binary=True)
            yield from batches_of_rows(cursor.fetchmany, schema, batch_bytes)
    finally:
        with contextlib.suppress(SQLAlchemyError):
            connection.exec_driver_sql("ROLLBACK")
