"""Columns through rows of the driver, in batches: for engines that have no faster way."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyarrow import RecordBatch
from sqlalchemy import ColumnElement, Connection, Select, Table
from sqlalchemy.types import TypeEngine

from queue_over_sql.dialects.arrow.types import array_of, conformed
from queue_over_sql.dialects.arrow.types import arrow_type as usual_type
from queue_over_sql.dialects.compiled import CompiledStatement, StatementCache
from queue_over_sql.dialects.driver_calls import driver_connection, driver_errors
from queue_over_sql.schema.dialect import SqlDialect

Fetch = Callable[[int], Sequence[Sequence[Any]]]

# Offsets within one array are 32 bits wide, and what is joined must fit into it.
_MOST_BYTES = 64 * 2**20


def bounded(batch: RecordBatch) -> Iterator[RecordBatch]:
    """Cut a batch into pieces whose bytes can be joined."""
    return within(batch, _MOST_BYTES)


def rows_of(
    batch: RecordBatch, converters: Sequence[Callable[[Any], Any] | None]
) -> list[tuple[Any, ...]]:
    """The rows of a batch as the driver wants them."""
    columns = []
    for column, convert in zip(batch.columns, converters, strict=True):
        values = column.to_pylist()
        columns.append(values if convert is None else [convert(value) for value in values])
    return list(zip(*columns, strict=True))


def converters_of(
    connection: Connection, table: Table, names: Sequence[str]
) -> list[Callable[[Any], Any] | None]:
    """What turns Python values of the columns into the driver's; None where nothing must."""
    dialect = connection.dialect
    return [table.c[name].type.dialect_impl(dialect).bind_processor(dialect) for name in names]


# How many rows are fetched before it is known how large they are, and at most.
_FIRST_ROWS: Final = 256
_MOST_ROWS: Final = 65_536


def batches_of_rows(fetch: Fetch, schema: pa.Schema, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Turn rows into batches.

    Args:
        fetch: gives so many further rows of a result, fewer at its end, then none.
        schema: of the batches; the rows have their columns in its order.
        batch_bytes: the size that a batch may have; a single row may be larger.

    Raises:
        ValueError: a value cannot be what the schema says.
    """
    count = _FIRST_ROWS
    while rows := fetch(count):
        columns = zip(*rows, strict=True)
        arrays = [array_of(values, field) for values, field in zip(columns, schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        yield from within(batch, batch_bytes)
        each = max(1, batch.nbytes // batch.num_rows)
        count = max(1, min(batch_bytes // each, count * 4, _MOST_ROWS))


def conformed_batches(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Turn the batches of a driver into those that a schema describes.

    Raises:
        ValueError: a value cannot be what the schema says.
    """
    for batch in batches:
        arrays = [conformed(array, field) for array, field in zip(batch, schema, strict=True)]
        whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if whole.num_rows:
            yield from within(whole, batch_bytes)


def within(batch: pa.RecordBatch, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into parts that stay within a size, down to single rows."""
    rows = batch.num_rows
    if rows <= 1 or batch.nbytes <= batch_bytes:
        yield batch
        return
    half = rows // 2
    yield from within(batch.slice(0, half), batch_bytes)
    yield from within(batch.slice(half), batch_bytes)


class RowColumns:
    """How columns are read, written and taken: row by row, through the driver of the connection.

    ``arrow_type`` tells which Arrow type the values of a column become.
    """

    def __init__(
        self,
        dialect: SqlDialect,
        arrow_type: Callable[[TypeEngine[Any]], pa.DataType] = usual_type,
    ) -> None:
        self._dialect = dialect
        self.arrow_type = arrow_type

    def read_column(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """How a column of the user's is selected so that ``read`` gets what it can read."""
        return column

    def read_content(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """How a payload or headers are selected so that ``read`` gets their text or bytes."""
        return self._dialect.read_payload(column)

    def read(
        self,
        connection: Connection,
        statement: Select[Any],
        schema: pa.Schema,
        batch_bytes: int,
    ) -> Generator[pa.RecordBatch]:
        """Run a SELECT and yield its result as Arrow batches, by the fastest way there is here.

        Args:
            connection: one of ``Connections.reading()``. What is read is what was committed,
                because the way may lead over another connection to the same database.
            statement: its columns are those of the schema, in that order; times are microseconds
                since the epoch where the schema has instants, objects of JSON where it has maps.
            schema: of the batches.
            batch_bytes: the size that a batch may have; a single row may be larger.

        Raises:
            sqlalchemy.exc.DBAPIError: the database refused it or cannot be reached.
            ValueError: a value cannot be what the schema says; the text names the column.
        """
        text, parameters = CompiledStatement(statement, connection.dialect).bound()
        with driver_errors(connection, text):
            cursor = driver_connection(connection).cursor()
            try:
                cursor.execute(text, parameters)
                yield from batches_of_rows(cursor.fetchmany, schema, batch_bytes)
            finally:
                cursor.close()

    def write(
        self,
        connection: Connection,
        table: Table,
        names: Sequence[str],
        batches: Iterable[RecordBatch],
    ) -> int:
        """Insert rows that are held in columns, by the engine's fastest path.

        Args:
            connection: with a transaction, as all of it is one act.
            table: where to.
            names: the columns to fill; each batch has them, perhaps among others.
            batches: columns as their SQL types have them; texts as ``string``, not larger ones.

        Returns:
            How many rows there were.
        """
        text = _insert(connection, table, names)
        converters = converters_of(connection, table, names)
        count = 0
        for batch in batches:
            wanted = batch.select(list(names))
            for start in range(0, wanted.num_rows, _ROWS_AT_ONCE):
                rows = rows_of(wanted.slice(start, _ROWS_AT_ONCE), converters)
                connection.exec_driver_sql(text, rows).close()
                count += len(rows)
        return count

    def take(
        self, connection: Connection, sql: StatementCache, values: Mapping[str, Any], *, keep: bool
    ) -> RecordBatch | None:
        """Take the oldest messages of a level, sorted; None where rows must do.

        Args:
            connection: the caller's, inside a transaction.
            sql: the queue's statements.
            values: ``p_priority``, ``p_low``, ``p_edits`` and ``p_count``.
            keep: whether finished messages go to the archive.
        """
        return None


# How many rows are Python objects at a time.
_ROWS_AT_ONCE = 10_000


def _insert(connection: Connection, table: Table, names: Sequence[str]) -> str:
    dialect = connection.dialect
    quote = dialect.identifier_preparer.quote
    target = dialect.identifier_preparer.format_table(table)
    columns = ", ".join(quote(name) for name in names)
    mark = {"qmark": "?", "format": "%s", "pyformat": "%s"}[dialect.paramstyle]
    return f"INSERT INTO {target} ({columns}) VALUES ({', '.join([mark] * len(names))})"
