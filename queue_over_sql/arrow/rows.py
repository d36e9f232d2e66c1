"""Columns through the driver's rows, in batches, for engines without a faster way."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyarrow import RecordBatch
from sqlalchemy import ColumnElement, Connection, LargeBinary, Select, Table
from sqlalchemy.types import TypeEngine

from queue_over_sql.arrow.types import array_of, conformed
from queue_over_sql.arrow.types import arrow_type as usual_type
from queue_over_sql.message import MessageRow
from queue_over_sql.schema.queue_tables import QueueTables
from queue_over_sql.sql.columns import Columns
from queue_over_sql.sql.compiled import CompiledStatement, StatementCache
from queue_over_sql.sql.driver_calls import driver_connection, driver_errors
from queue_over_sql.sql.expressions import Expressions

Fetch = Callable[[int], Sequence[Sequence[Any]]]

# Offsets in an array have 32 bits, which limits the bytes of a joined array.
_MOST_BYTES = 64 * 2**20
INSTANT: Final = pa.timestamp("us", "UTC")
HEADERS: Final = pa.map_(pa.string(), pa.string())
FACTS: Final = (
    ("id", "id", pa.int64()),
    ("key", "message_key", pa.string()),
    ("kind", "kind", pa.string()),
    ("payload", "payload", None),
    ("headers", "headers", HEADERS),
    ("priority", "priority", pa.int32()),
    ("attempt", "attempt_count", pa.int32()),
    ("published_at", "published_at", INSTANT),
    ("scheduled_at", "scheduled_at", INSTANT),
    ("available_at", "available_at", INSTANT),
)
# How many rows are Python objects at once.
_ROWS_AT_ONCE = 10_000


def bounded(batch: RecordBatch) -> Iterator[RecordBatch]:
    """Split a batch into pieces whose bytes can be joined."""
    return within(batch, _MOST_BYTES)


def rows_of(
    batch: RecordBatch, converters: Sequence[Callable[[Any], Any] | None]
) -> list[tuple[Any, ...]]:
    """The rows of a batch, converted for the driver."""
    columns = []
    for column, convert in zip(batch.columns, converters, strict=True):
        values = column.to_pylist()
        columns.append(values if convert is None else [convert(value) for value in values])
    return list(zip(*columns, strict=True))


def converters_of(
    connection: Connection, table: Table, names: Sequence[str]
) -> list[Callable[[Any], Any] | None]:
    """Converters from Python values to the driver's values; None for columns that need none."""
    dialect = connection.dialect
    return [table.c[name].type.dialect_impl(dialect).bind_processor(dialect) for name in names]


# The number of rows to fetch before their size is known, and the largest number.
_FIRST_ROWS: Final = 256
_MOST_ROWS: Final = 65_536


def batches_of_rows(fetch: Fetch, schema: pa.Schema, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Turn rows into batches.

    Args:
        fetch: returns up to so many further rows of a result; none at its end.
        schema: of the batches; the rows have its columns in its order.
        batch_bytes: the largest size of a batch, unless a single row is larger.

    Raises:
        ValueError: a value does not fit the schema.
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
    """Convert the batches of a driver to a schema.

    Raises:
        ValueError: a value does not fit the schema.
    """
    for batch in batches:
        arrays = [conformed(array, field) for array, field in zip(batch, schema, strict=True)]
        whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if whole.num_rows:
            yield from within(whole, batch_bytes)


def within(batch: pa.RecordBatch, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Split a batch into parts that stay within a size, down to single rows."""
    rows = batch.num_rows
    if rows <= 1 or batch.nbytes <= batch_bytes:
        yield batch
        return
    half = rows // 2
    yield from within(batch.slice(0, half), batch_bytes)
    yield from within(batch.slice(half), batch_bytes)


class RowColumns(Columns):
    """Reads, writes and takes columns row by row, through the driver of the connection.

    ``arrow_type`` returns the Arrow type for a column's values.
    """

    def __init__(
        self,
        expressions: Expressions,
        arrow_type: Callable[[TypeEngine[Any]], pa.DataType] = usual_type,
    ) -> None:
        self._expressions = expressions
        self.arrow_type = arrow_type

    def read_column(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return column

    def read_content(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return self._expressions.read_payload(column)

    def read(
        self,
        connection: Connection,
        statement: Select[Any],
        schema: pa.Schema,
        batch_bytes: int,
    ) -> Generator[pa.RecordBatch]:
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
        return None


def _insert(connection: Connection, table: Table, names: Sequence[str]) -> str:
    dialect = connection.dialect
    quote = dialect.identifier_preparer.quote
    target = dialect.identifier_preparer.format_table(table)
    columns = ", ".join(quote(name) for name in names)
    mark = {"qmark": "?", "format": "%s", "pyformat": "%s"}[dialect.paramstyle]
    return f"INSERT INTO {target} ({columns}) VALUES ({', '.join([mark] * len(names))})"


"""The columns that a handler gets, with their columns in the table and their types."""


def schema_of(tables: QueueTables) -> pa.Schema:
    """The columns of messages: their facts, then the queue's own columns."""
    payload = pa.binary() if isinstance(tables.live.c.payload.type, LargeBinary) else pa.string()
    facts = [pa.field(name, payload if kind is None else kind) for name, _, kind in FACTS]
    dialect: Any = tables.dialect
    own = [
        pa.field(tables.shown_as(name), dialect.columns.arrow_type(tables.live.c[name].type))
        for name in tables.own_columns
    ]
    return pa.schema([*facts, *own])


def batch_of(tables: QueueTables, rows: Sequence[MessageRow]) -> pa.RecordBatch:
    """The messages of rows, with stored payloads.

    Raises:
        ValueError: a value does not fit the type of its own column; the message names the column.
    """
    schema = schema_of(tables)
    values: list[list[Any]] = [
        list(map(operator.attrgetter(column), rows)) for _, column, _ in FACTS
    ]
    values += [[row.columns[name] for row in rows] for name in tables.own_columns]
    arrays = [_array(each, field) for each, field in zip(values, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def _array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    if field.type == INSTANT and all(value is None or isinstance(value, int) for value in values):
        return pa.array(values, pa.int64()).cast(INSTANT)
    return array_of(values, field)
