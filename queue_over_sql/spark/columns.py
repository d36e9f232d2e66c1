"""The columns of a DataFrame of messages, and the SELECT that returns them.

There are two styles: ``native`` has the columns of a message. ``kafka`` has the columns of Kafka's
connector, so that a job for Kafka only needs another format name.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from sqlalchemy import Integer, select

from queue_over_sql import inside
from queue_over_sql.inside import columns as stored
from queue_over_sql.spark.options import chosen_names
from queue_over_sql.values.cached import cached_property

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Select, Table

    from queue_over_sql import Queue
    from queue_over_sql.inside import QueueTables
    from queue_over_sql.spark.options import ColumnOptions

_HEADERS: Final = "headers"
_CLAIM: Final = {"consumer_id": StringType(), "consumer_round": LongType()}
_EPOCH: Final = "consumer_epoch"
_TIMES: Final = ("published_at", "scheduled_at", "available_at")
_ENDS: Final[Mapping[str, DataType]] = {
    "claimed_at": TimestampType(),
    "last_attempt_at": TimestampType(),
    "last_error": StringType(),
    "finished_at": TimestampType(),
    "outcome": StringType(),
}
# Columns of live messages that are read only if they are named: the last failure.
_ATTEMPT: Final = ("claimed_at", "last_attempt_at", "last_error")
_KAFKA_HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)


@dataclasses.dataclass(frozen=True)
class MessageColumn:
    """A column of the DataFrame, with a Spark type.

    ``source`` is the selected expression; None if all messages have the ``constant``.
    ``comparable``: the database can compare it. ``exact``: the comparison gives the same result as
    Spark's, and does not let more rows pass.
    """

    name: str
    kind: DataType
    source: ColumnElement[Any] | None
    constant: Any = None
    exact: bool = True
    comparable: bool = True


@dataclasses.dataclass(frozen=True)
class MessageColumns:
    """All columns of the DataFrame, in order."""

    table: Table
    columns: Sequence[MessageColumn]

    @property
    def struct(self) -> StructType:
        """The schema as a Spark type."""
        return StructType([StructField(c.name, c.kind) for c in self.columns])

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema as an Arrow type."""
        return to_arrow_schema(self.struct, timezone="UTC")

    @cached_property
    def stored(self) -> pa.Schema:
        """The part of the schema that is read from the database, at least one column."""
        fields = [
            field
            for field, column in zip(self.schema, self.columns, strict=True)
            if column.source is not None
        ]
        return pa.schema(fields or [pa.field("id", pa.int64())])

    def select(self) -> Select[Any]:
        """The SELECT of ``stored``, from all rows of the table."""
        sources: list[ColumnElement[Any]] = [
            column.source.label(f"c{index}")
            for index, column in enumerate(self.columns)
            if column.source is not None
        ]
        return select(*(sources or [self.table.c.id]))

    def complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add the columns that are constant for all messages."""
        found = iter(batch.columns)
        arrays = [
            pa.array([column.constant] * batch.num_rows, field.type)
            if column.source is None
            else next(found)
            for column, field in zip(self.columns, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def find(self, name: str) -> MessageColumn | None:
        """A column by its name; None if there is none."""
        return next((column for column in self.columns if column.name == name), None)


def message_columns(
    queue: Queue, options: ColumnOptions, *, archived: bool = False, epoch: int | None = None
) -> MessageColumns:
    """The columns of a queue's messages, live or ``archived``.

    With the ``epoch`` of the streaming query that reads them, it is a column, too. Raises
    ValueError if an option names an unknown column, or a style that the queue does not support.
    """
    tables = inside.tables(queue)
    table = tables.archive if archived else tables.live
    if options.schema_style == "kafka":
        columns = _kafka(queue, table)
    else:
        columns = list(_native(queue, table, archived=archived, epoch=epoch))
    if not options.include_headers:
        columns = [column for column in columns if column.name != _HEADERS]
    if options.columns:
        if not archived and options.schema_style == "native":
            columns += _ends(table, _ATTEMPT)
        by_name = {column.name: column for column in columns}
        columns = [by_name[name] for name in chosen_names(options.columns, list(by_name))]
    return MessageColumns(table, columns)


def read_batches(
    queue: Queue, columns: MessageColumns, statement: Select[Any], batch_bytes: int
) -> Generator[pa.RecordBatch]:
    """Run a statement of ``columns.select()`` and yield its rows as Spark expects them.

    After the last batch it holds nothing of the database. A batch is larger than ``batch_bytes``
    only if a single row is.
    """
    found = stored.read(queue, statement, columns.stored, batch_bytes)
    # If the caller stops early, the read must end before its connection is closed.
    with contextlib.closing(found):
        for batch in found:
            yield columns.complete(batch)


def _native(
    queue: Queue, table: Table, *, archived: bool, epoch: int | None
) -> Iterator[MessageColumn]:
    tables, columns = inside.tables(queue), table.c
    yield MessageColumn("id", LongType(), columns.id)
    if tables.has_payloads:
        yield MessageColumn("key", StringType(), columns.message_key)
        yield MessageColumn("kind", StringType(), columns.kind)
        bytes_ = inside.known_settings(queue).payload == "bytes"
        kind = BinaryType() if bytes_ else StringType()
        yield MessageColumn("payload", kind, _payload(tables, table), comparable=False)
    headers = stored.content(tables, columns.headers)
    yield MessageColumn(_HEADERS, MapType(StringType(), StringType()), headers)
    yield MessageColumn("priority", IntegerType(), columns.priority)
    yield MessageColumn("attempt", IntegerType(), columns.attempt_count)
    for name in _TIMES:
        yield MessageColumn(name, TimestampType(), tables.time(table, name))
    for name, claim_kind in _CLAIM.items():
        yield MessageColumn(name, claim_kind, columns[name])
    if epoch is not None:
        yield MessageColumn(_EPOCH, LongType(), None, epoch)
    yield from _own(tables, table)
    if archived:
        yield from _ends(table, list(_ENDS))


def _ends(table: Table, names: Sequence[str]) -> Iterator[MessageColumn]:
    for name in names:
        yield MessageColumn(name, _ENDS[name], table.c[name], comparable=name != "last_error")


def _own(tables: QueueTables, table: Table) -> Iterator[MessageColumn]:
    taken = {"attempt", *_TIMES, *_CLAIM, _EPOCH, *_ENDS, _HEADERS, "id", "priority"}
    if tables.has_payloads:
        taken |= {"key", "kind", "payload"}
    for key in tables.own_columns:
        if key == "id":
            continue
        shown = tables.shown_as(key)
        # In Spark, names must differ by more than case.
        while shown.lower() in taken:
            shown = f"row_{shown}"
        taken.add(shown.lower())
        column = table.c[key]
        source, arrow_type = stored.own_column(tables, column)
        kind = from_arrow_type(arrow_type)
        # A time may be stored in several spellings, and a text may have a collation.
        comparable = source is column and not isinstance(kind, TimestampType)
        exact = isinstance(column.type, Integer)
        yield MessageColumn(shown, kind, source, exact=exact, comparable=comparable)


def _kafka(queue: Queue, table: Table) -> list[MessageColumn]:
    tables, columns = inside.tables(queue), table.c
    msg = (
        f"option schemaStyle: queue {queue.name!r} is an adopted table, which does not "
        "support the style kafka: use native"
    )
    tables.expect_payloads(ValueError(msg))
    published = columns.published_at
    return [
        MessageColumn("key", BinaryType(), columns.message_key),
        MessageColumn("value", BinaryType(), _payload(tables, table)),
        MessageColumn("topic", StringType(), None, queue.name),
        MessageColumn("partition", IntegerType(), None, 0),
        MessageColumn("offset", LongType(), columns.id),
        MessageColumn("timestamp", TimestampType(), published),
        MessageColumn("timestampType", IntegerType(), None, 0),
        MessageColumn(_HEADERS, _KAFKA_HEADERS, stored.content(tables, columns.headers)),
    ]


def _payload(tables: QueueTables, table: Table) -> ColumnElement[Any]:
    return stored.content(tables, table.c.payload)
