"""The door for whoever moves messages as Arrow columns: reads, takes and staged writes.

It needs PyArrow.

Stability: as ``queue_over_sql.inside``.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from queue_over_sql.arrow.rows import batch_of
from queue_over_sql.arrow.types import stored_type
from queue_over_sql.durable.staged_write_store import AT, DELAY, EXPIRES, WHOLE, BatchName
from queue_over_sql.durable.staged_writes import (
    STAGE_TTL,
    InMemoryBatch,
    StagedPublisher,
    StagedWrite,
)
from queue_over_sql.message import Message, row_of
from queue_over_sql.payloads.codec import encode_headers
from queue_over_sql.queue import core_of

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from sqlalchemy import Column, ColumnElement, Connection, Select

    from queue_over_sql.queue import Queue
    from queue_over_sql.schema.queue_tables import QueueTables

__all__ = [
    "AT",
    "DELAY",
    "EXPIRES",
    "STAGE_TTL",
    "WHOLE",
    "BatchName",
    "InMemoryBatch",
    "StagedPublisher",
    "StagedWrite",
    "batch",
    "content",
    "encode_headers",
    "own_column",
    "read",
    "stored_type",
    "take",
]


def read(
    queue: Queue, statement: Select[Any], schema: pa.Schema, batch_bytes: int
) -> Generator[pa.RecordBatch]:
    """Run a SELECT and yield its rows as columns of a schema, in the driver's fastest way.

    It holds no lock, and after the last batch nothing of the database. A batch is larger than
    ``batch_bytes`` only if a single row is.

    Raises:
        DatabaseUnavailable, DatabaseRefused: as ``inside.run``.
    """
    connections = core_of(queue).context.connections
    with connections.reading() as connection:
        found = connections.dialect.columns.read(connection, statement, schema, batch_bytes)
        # If the caller stops early, the read must end before its connection is closed.
        with contextlib.closing(found):
            yield from found


def content(tables: QueueTables, column: ColumnElement[Any]) -> ColumnElement[Any]:
    """A payload or headers, as ``read`` gets their text or bytes."""
    return tables.dialect.columns.read_content(column)


def own_column(tables: QueueTables, column: Column[Any]) -> tuple[ColumnElement[Any], pa.DataType]:
    """A queue's own column as ``read`` gets it, and the type in which it comes."""
    columns = tables.dialect.columns
    return columns.read_column(column), columns.arrow_type(column.type)


def take(queue: Queue, count: int, connection: Connection) -> pa.RecordBatch | None:
    """Take messages as ``Queue.take`` does, as columns; None if there are none.

    If the transaction rolls back, call ``inside.wake_consumers``.

    Args:
        queue: the queue.
        count: at most so many.
        connection: with the transaction in which they are handled.
    """
    batches = core_of(queue).take_columns(count, connection)
    if batches is None:
        taken = queue.take(count, connection=connection)
        return batch(queue, taken) if taken else None
    if len(batches) > 1:
        return pa.concat_batches(batches)
    return batches[0] if batches else None


def batch(queue: Queue, messages: Sequence[Message]) -> pa.RecordBatch:
    """Messages as columns, with their stored payloads.

    Raises:
        ValueError: a value does not fit the type of its own column; the message names the column.
    """
    return batch_of(core_of(queue).context.tables, [row_of(message) for message in messages])
