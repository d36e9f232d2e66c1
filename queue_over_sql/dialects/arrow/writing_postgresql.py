"""Columns into PostgreSQL by COPY: binary where all types are plain, as text where not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql.dialects.arrow import writing_rows
from queue_over_sql.dialects.arrow.binary_rows import HEADER, TRAILER, encoded, wire_type
from queue_over_sql.dialects.arrow.columns import converters_of, rows_of
from queue_over_sql.dialects.driver_calls import driver_connection, driver_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyarrow import RecordBatch
    from sqlalchemy import Connection, Table


def write(
    connection: Connection, table: Table, names: Sequence[str], batches: Iterable[RecordBatch]
) -> int:
    """Insert the rows of batches; see ``QueueDialect.write_arrow``."""
    if connection.dialect.driver != "psycopg" or connection.dialect.is_async:
        return writing_rows.write(connection, table, names, batches)
    found = {name: wire_type(table.c[name].type) for name in names}
    layouts = {name: layout for name, layout in found.items() if layout is not None}
    with driver_errors(connection, "COPY"):
        if len(layouts) < len(found):
            return _copy_text(connection, table, names, batches)
        # Numbers first: what has the same width in all rows is laid out in one step.
        ordered = sorted(names, key=lambda name: not layouts[name])
        return _copy_binary(connection, table, {name: layouts[name] for name in ordered}, batches)


def _copy_binary(
    connection: Connection,
    table: Table,
    layouts: Mapping[str, str],
    batches: Iterable[RecordBatch],
) -> int:
    count = 0
    statement = _statement(connection, table, list(layouts)) + " (FORMAT BINARY)"
    with driver_connection(connection).cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(HEADER)
        for batch in batches:
            for rows in encoded(batch, layouts):
                copy.write(rows)
            count += batch.num_rows
        copy.write(TRAILER)
    return count


def _copy_text(
    connection: Connection, table: Table, names: Sequence[str], batches: Iterable[RecordBatch]
) -> int:
    converters = converters_of(connection, table, names)
    count = 0
    statement = _statement(connection, table, names)
    with driver_connection(connection).cursor() as cursor, cursor.copy(statement) as copy:
        for batch in batches:
            for row in rows_of(batch.select(list(names)), converters):
                copy.write_row(row)
            count += batch.num_rows
    return count


def _statement(connection: Connection, table: Table, names: Sequence[str]) -> str:
    preparer = connection.dialect.identifier_preparer
    columns = ", ".join(preparer.quote(name) for name in names)
    return f"COPY {preparer.format_table(table)} ({columns}) FROM STDIN"
