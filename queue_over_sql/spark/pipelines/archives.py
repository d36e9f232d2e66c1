"""Messages of many queues as one DataFrame with the columns of a history.

The format reads one queue, and Spark plans each read in separate processes. For a hundred queues
that would take longer than the reading. So the driver splits all tables into parts, and the
executors read them in one job with the format's statements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from queue_over_sql import inside
from queue_over_sql.spark.batch import partitions_for, stretches_of
from queue_over_sql.spark.columns import message_columns, read_batches
from queue_over_sql.spark.databases import queue_at
from queue_over_sql.spark.options import ColumnOptions
from queue_over_sql.spark.pipelines.frames import HISTORY
from queue_over_sql.spark.ranges import bounds
from queue_over_sql.values.json_lines import to_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from sqlalchemy import ColumnElement, Table

    from queue_over_sql import Queue
    from queue_over_sql.inside import QueueTables
    from queue_over_sql.spark.options import Location

LIVE: Final = "live"
ARCHIVE: Final = "archive"
# How many ids one statement has.
_MOST_IDS: Final = 500
_OUR_OWN: Final = frozenset({"payload_bytes", "columns", "queue", "date"})
_NOT_OF_LIVE: Final = frozenset({"finished_at", "outcome"})
_NOT_OF_ROWS: Final = frozenset({"key", "kind", "payload"})
_TYPES: Final[dict[str, pa.DataType]] = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


@dataclasses.dataclass(frozen=True)
class Part:
    """A task's part of a queue's ``live`` or ``archive``: ids from ``first`` to ``last``.

    In an archive: what finished after ``after`` and not after ``up_to``, in microseconds; with
    ``ids``, only these.
    """

    queue: str
    table: str
    first: int
    last: int
    after: int | None = None
    up_to: int | None = None
    ids: tuple[int, ...] = ()

    @property
    def archived(self) -> bool:
        """Whether it is a part of an archive."""
        return self.table == ARCHIVE


def live_parts(queue: Queue) -> list[Part]:
    """All live messages of a queue, in parts."""
    return [Part(queue.name, LIVE, *each) for each in _ranges(queue, archived=False)]


def archive_parts(queue: Queue, after: int | None = None, up_to: int | None = None) -> list[Part]:
    """The messages that finished after one time and not after another, in parts."""
    return [
        Part(queue.name, ARCHIVE, first, last, after, up_to)
        for first, last in _ranges(queue, archived=True)
    ]


def parts_by_id(queue: Queue, ids: Sequence[int], up_to: int | None) -> list[Part]:
    """Finished messages by their ids, if they had finished by a given time."""
    ordered = sorted(ids)
    chunks = [ordered[start : start + _MOST_IDS] for start in range(0, len(ordered), _MOST_IDS)]
    return [
        Part(queue.name, ARCHIVE, chunk[0], chunk[-1], None, up_to, tuple(chunk))
        for chunk in chunks
    ]


def read_parts(
    spark: SparkSession, location: Location, parts: Sequence[Part], columns: Sequence[str]
) -> DataFrame:
    """Read parts on the executors, one task each.

    The columns are some of a history's, without ``date``. Missing values are null.
    """
    schema = ", ".join(f"{name} {HISTORY[name]}" for name in columns)
    if not parts:
        return spark.createDataFrame([], schema)
    numbers = spark.range(0, len(parts), 1, len(parts))
    return numbers.mapInArrow(_Reading(location, tuple(parts), tuple(columns)), schema)


def _ranges(queue: Queue, *, archived: bool) -> list[tuple[int, int]]:
    stretches = stretches_of(queue, archived=archived)
    return bounds(stretches, partitions_for(stretches)) if stretches else []


@dataclasses.dataclass(frozen=True)
class _Reading:
    """The executors' work; pickled to them."""

    location: Location
    parts: tuple[Part, ...]
    columns: tuple[str, ...]

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self._read(self.parts[number])

    def _read(self, part: Part) -> Iterator[pa.RecordBatch]:
        queue = queue_at(self.location, part.queue)
        options = ColumnOptions(
            locations={"": self.location}, queue=part.queue, columns=self._asked(part, queue)
        )
        columns = message_columns(queue, options, archived=part.archived)
        statement = columns.select().where(
            *inside.extent(inside.tables(queue), archived=part.archived),
            *_wanted(part, columns.table, inside.tables(queue)),
        )
        for batch in read_batches(queue, columns, statement, options.batch_bytes):
            yield self._as_history(batch, queue)

    def _asked(self, part: Part, queue: Queue) -> tuple[str, ...]:
        if "columns" in self.columns:
            return ()
        missing = _not_read(queue)
        if not part.archived:
            missing |= _NOT_OF_LIVE
        return tuple(name for name in self.columns if name not in missing)

    def _as_history(self, batch: pa.RecordBatch, queue: Queue) -> pa.RecordBatch:
        others = _not_read(queue)
        theirs = {name for name in batch.schema.names if name in HISTORY and name not in others}
        arrays: list[pa.Array] = []
        for name in self.columns:
            kind = _TYPES[HISTORY[name]]
            if name == "queue":
                arrays.append(pa.repeat(pa.scalar(queue.name, kind), batch.num_rows))
            elif name == "columns":
                arrays.append(_own_columns(batch, theirs))
            elif name in {"payload", "payload_bytes"}:
                arrays.append(_payload(batch, theirs, kind))
            else:
                arrays.append(batch.column(name) if name in theirs else _nulls(batch, kind))
        return pa.RecordBatch.from_arrays(arrays, names=list(self.columns))


def _not_read(queue: Queue) -> frozenset[str]:
    has_payloads = inside.tables(queue).has_payloads
    return _OUR_OWN if has_payloads else _OUR_OWN | _NOT_OF_ROWS


def _wanted(part: Part, table: Table, tables: QueueTables) -> Iterator[ColumnElement[bool]]:
    columns = table.c
    yield columns.id.between(part.first, part.last)
    if part.ids:
        yield columns.id.in_(part.ids)
    if not part.archived:
        return
    yield from tables.of_any_outcome()
    if part.after is not None:
        yield columns.finished_at > part.after
    if part.up_to is not None:
        yield columns.finished_at <= part.up_to


def _payload(batch: pa.RecordBatch, theirs: set[str], kind: pa.DataType) -> pa.Array:
    if "payload" in theirs and batch.schema.field("payload").type == kind:
        return batch.column("payload")
    return _nulls(batch, kind)


def _own_columns(batch: pa.RecordBatch, theirs: set[str]) -> pa.Array:
    own = [name for name in batch.schema.names if name not in theirs]
    if not own:
        return _nulls(batch, pa.string())
    rows: list[dict[str, Any]] = batch.select(own).to_pylist()
    return pa.array([to_json(row) for row in rows], pa.string())


def _nulls(batch: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
    return pa.nulls(batch.num_rows, kind)
