"""Claimed messages as Arrow columns, for handlers of batches."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import LargeBinary

from queue_over_sql.dialects.arrow.types import array_of
from queue_over_sql.message import MessageRow
from queue_over_sql.schema.queue_tables import QueueTables

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
"""The columns that a handler gets, with their columns in the table and their types."""


def schema_of(tables: QueueTables) -> pa.Schema:
    """The columns of messages: their facts, then the queue's own columns."""
    payload = pa.binary() if isinstance(tables.live.c.payload.type, LargeBinary) else pa.string()
    facts = [pa.field(name, payload if kind is None else kind) for name, _, kind in FACTS]
    dialect: Any = tables.dialect
    own = [
        pa.field(name, dialect.columns.arrow_type(tables.live.c[name].type))
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
