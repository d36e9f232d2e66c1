"""Staged writes for tests: messages as columns, and the existing staging tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlalchemy import inspect, text

from queue_over_sql.durable.staged_write_store import BatchName
from queue_over_sql.durable.staged_writes import StagedPublisher, StagedWrite

if TYPE_CHECKING:
    from sqlalchemy import Engine

BATCH = BatchName("writer", 7)
TYPES = {
    "message_key": pa.string(),
    "payload": pa.string(),
    "headers": pa.string(),
    "priority": pa.int16(),
    "_delay": pa.int64(),
    "_expires": pa.int64(),
    "_at": pa.int64(),
    "amount": pa.int64(),
    "share": pa.float64(),
    "city": pa.string(),
    "group_key": pa.string(),
}


def batch_of(**columns: list[Any]) -> pa.RecordBatch:
    """Messages by the names of their columns."""
    arrays = [pa.array(values, TYPES[name]) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def staged(publisher: StagedPublisher, batch: BatchName = BATCH, /, **columns: Any) -> StagedWrite:
    """Messages that wait for their publisher."""
    return publisher.stage(batch, list(columns), [[batch_of(**columns)]])


def stage_names(engine: Engine) -> list[str]:
    """The stages that there are in the database."""
    names = inspect(engine).get_table_names()
    return [name for name in names if name.startswith("queue_over_sql_stage_")]


def registered(engine: Engine) -> int:
    """How many stages the register knows."""
    with engine.connect() as connection:
        return int(connection.scalar(text("SELECT COUNT(*) FROM queue_over_sql_stages")) or 0)
