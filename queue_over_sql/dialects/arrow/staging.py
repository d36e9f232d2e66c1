"""Columns that a batch gets on its way: its places in a stage, its times in a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queue_over_sql.dialects.statements.stages import AT, DELAY, SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyarrow import RecordBatch


def placed(batches: Iterable[RecordBatch], start: int) -> Iterator[RecordBatch]:
    """Number messages from ``start`` on, as ``SEQUENCE``."""
    for batch in batches:
        end = start + batch.num_rows
        yield _with(batch, SEQUENCE, pa.array(np.arange(start, end, dtype=np.int64)))
        start = end


def published(batch: RecordBatch, now: int) -> RecordBatch:
    """Give messages their times, published at ``now``; a delay or an instant is used up."""
    names = batch.schema.names
    whenever = pa.array(np.full(batch.num_rows, now, np.int64))
    due = whenever
    if DELAY in names:
        due = pc.add(due, batch.column(DELAY).fill_null(0))
    if AT in names:
        due = pc.coalesce(batch.column(AT), due)
    plain = batch.select([name for name in names if name not in (AT, DELAY)])
    for name, values in (("published_at", whenever), ("scheduled_at", due), ("available_at", due)):
        plain = _with(plain, name, values)
    return plain


def _with(batch: RecordBatch, name: str, values: pa.Array) -> RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, values], [*batch.schema.names, name])
