"""``spark.read``: reads a queue or its archive without claiming messages."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from queue_over_sql import inside
from queue_over_sql.inside.exports import last_id, probe_ids
from queue_over_sql.spark.columns import MessageColumns, message_columns, read_batches
from queue_over_sql.spark.databases import queue_at
from queue_over_sql.spark.filters import pushed
from queue_over_sql.spark.ranges import PROBE_ROWS, Stretch, bounds, survey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType
    from sqlalchemy import ColumnElement

    from queue_over_sql import Queue
    from queue_over_sql.spark.options import ReadOptions


_ROWS_OF_PARTITION: Final = 250_000
_MOST_PARTITIONS: Final = 1_000
_LEAST_ID: Final = -(2**63)


@dataclasses.dataclass
class IdRange(InputPartition):
    """A partition: the ids from ``first`` to ``last``, both included; None: no limit."""

    first: int | None
    last: int | None

    def of(self, ids: ColumnElement[int]) -> list[ColumnElement[bool]]:
        """The condition for its messages, by their ids."""
        bounds = [] if self.first is None else [ids >= self.first]
        return bounds if self.last is None else [*bounds, ids <= self.last]


class QueueBatchReader(DataSourceReader):
    """Reads messages without changes; each partition sees what was committed when it began."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.filters: list[Filter] = []
        check_schema(schema, self._columns(self._queue()))

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of ids with about as many messages in each.

        The first and the last have no limit, because Spark reuses them for later reads of the same
        DataFrame, which must find newer messages.
        """
        stretches = stretches_of(self._queue(), archived=self.options.archived)
        if not stretches:
            return [IdRange(None, None)]
        parts = self.options.num_partitions or partitions_for(stretches)
        found = [IdRange(first, last) for first, last in bounds(stretches, parts)]
        found[0].first = found[-1].last = None
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition."""
        if not isinstance(partition, IdRange):  # pragma: no cover - it is one of those above
            raise TypeError(partition)
        queue = self._queue()
        columns = self._columns(queue)
        wanted = (
            *partition.of(columns.table.c.id),
            *inside.extent(inside.tables(queue), archived=self.options.archived),
            *self._conditions(columns),
        )
        statement = columns.select().where(*wanted)
        yield from read_batches(queue, columns, statement, self.options.batch_bytes)

    def _queue(self) -> Queue:
        return queue_at(self.options.location, self.options.queue)

    def _columns(self, queue: Queue) -> MessageColumns:
        return message_columns(queue, self.options, archived=self.options.archived)

    def _conditions(self, columns: MessageColumns) -> list[ColumnElement[bool]]:
        found = [pushed(wanted, columns) for wanted in self.filters]
        return [each.condition for each in found if each is not None]


class QueuePushdownReader(QueueBatchReader):
    """As ``QueueBatchReader``, with filters in the database.

    It is a separate class, because Spark refuses every read of a reader that can take filters while
    its setting for that is off, which is the default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Keep the filters that the database can check; yield those that Spark must check."""
        columns = self._columns(self._queue())
        for wanted in filters:
            found = pushed(wanted, columns)
            if found is not None:
                self.filters.append(wanted)
            if found is None or not found.exact:
                yield wanted


def check_schema(given: StructType, columns: MessageColumns) -> None:
    """Refuse a schema that is not the queue's."""
    if given.simpleString() != columns.struct.simpleString():
        msg = (
            "the queue defines the columns: leave out .schema(...), and select columns with the "
            f"option columns; they are {columns.struct.simpleString()}"
        )
        raise ValueError(msg)


def stretches_of(queue: Queue, *, archived: bool) -> list[Stretch]:
    """The ranges of ids of a queue's messages."""
    last = last_id(queue, archived=archived)
    if last is None:
        return []

    def probe(start: int) -> tuple[int | None, int | None]:
        return probe_ids(queue, start, PROBE_ROWS, archived=archived)

    if inside.extent(inside.tables(queue), archived=archived):
        # Few rows of the table may be messages, so that a probe could read over all rows.
        first, _ = probe(_LEAST_ID)
        return [] if first is None else [Stretch(first, last, None)]
    return survey(probe, last)


def partitions_for(stretches: Sequence[Stretch]) -> int:
    """A suitable number of partitions for this many messages."""
    rows = sum(stretch.rows for stretch in stretches)
    return min(_MOST_PARTITIONS, max(1, math.ceil(rows / _ROWS_OF_PARTITION)))
