"""A stand-in for Spark's micro-batch engine: it calls a stream's reader as that does, without Java.

The order of calls was traced on Spark 4.3: a batch's offset is logged before it is read, its number
is logged once the sink has it, the batch that a restart finds unfinished is planned again from the
log without asking for the latest offset, and ``commit`` comes only with the next batch.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from queue_over_sql import Queue
from queue_over_sql.spark.source import QueueDataSource
from queue_over_sql.spark.stream.reader import QueueStreamReader

Row = dict[str, Any]
Action = Callable[[], list[Row]]
"""Reads a batch, once more at each call: what an action on its DataFrame does."""


class Stop(Exception):
    """What a test raises inside a batch, so that the engine takes it for unfinished."""


@dataclasses.dataclass
class Checkpoint:
    """What Spark keeps on the disk.

    Attributes:
        offsets: the end of each batch that was begun.
        finished: how many batches the sink has.
    """

    offsets: list[str] = dataclasses.field(default_factory=list)
    finished: int = 0


@dataclasses.dataclass
class Stream:
    """Queries on queues under one consumer id, one after another or at the same time.

    Attributes:
        options: of the source.
        batches: number and rows of all that were read, replays included.
    """

    options: dict[str, str]
    batches: list[tuple[int, list[Row]]] = dataclasses.field(default_factory=list)

    def start(self, checkpoint: Checkpoint, *, until_empty: bool = True, **options: Any) -> Query:
        """Start a query, or go on where one has ended."""
        source = QueueDataSource({k.lower(): v for k, v in {**self.options, **options}.items()})
        return Query(self, checkpoint, source.streamReader(source.schema()), until_empty)

    def run(
        self,
        checkpoint: Checkpoint,
        *,
        fail_in: Sequence[int] = (),
        during: Callable[[Action, int], object] | None = None,
        **options: Any,
    ) -> list[list[Row]]:
        """Run a query until there is nothing left; the batches of this run.

        Args:
            checkpoint: its checkpoint.
            fail_in: numbers of batches that fail after their rows were read.
            during: runs in each batch, before it is read.
            options: more options of the source.
        """
        before = len(self.batches)
        query = self.start(checkpoint, **options)
        while query.step(fail_in, during):
            pass
        return [rows for _, rows in self.batches[before:]]


class Query:
    """One life of a query: the reader that the driver keeps."""

    def __init__(
        self, stream: Stream, checkpoint: Checkpoint, reader: QueueStreamReader, until_empty: bool
    ) -> None:
        self.stream = stream
        self.reader = reader
        self._checkpoint = checkpoint
        self._prepared = not until_empty

    def step(
        self,
        fail_in: Sequence[int] = (),
        during: Callable[[Action, int], object] | None = None,
    ) -> bool:
        """Do one micro-batch; False where there is nothing to do."""
        log = self._checkpoint
        if not self._prepared:
            self.reader.prepareForTriggerAvailableNow()
            self._prepared = True
        limit = self.reader.getDefaultReadLimit()
        start = self._start()
        if len(log.offsets) == log.finished:
            end = self.reader.latestOffset(start, limit)
            self.reader.reportLatestOffset()
            if json.dumps(end) == json.dumps(start):
                return False
            log.offsets.append(json.dumps(end))
            if log.finished:
                self.reader.commit(start)
        number = log.finished
        action = self._action(start, json.loads(log.offsets[number]))
        if during is not None:
            during(action, number)
        self.stream.batches.append((number, action()))
        if number in fail_in:
            raise Stop(f"batch {number}")
        log.finished += 1
        return True

    def plan(self) -> list[Any]:
        """Log the next batch and return its partitions, without reading them."""
        start = self._start()
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        self._checkpoint.offsets.append(json.dumps(end))
        return self.reader.partitions(start, end)

    def read(self, part: Any) -> list[Row]:
        """Read a partition as an executor does: with copies of the reader and of the partition."""
        reader, copy = pickle.loads(pickle.dumps((self.reader, part)))  # noqa: S301 - our own
        return [row for batch in reader.read(copy) for row in batch.to_pylist()]

    def _start(self) -> dict[str, Any]:
        log = self._checkpoint
        if log.finished:
            last: dict[str, Any] = json.loads(log.offsets[log.finished - 1])
            return last
        self.reader.initialOffset()
        return self.reader.initialOffset()

    def _action(self, start: dict[str, Any], end: dict[str, Any]) -> Action:
        parts = self.reader.partitions(start, end)
        return lambda: [row for part in parts for row in self.read(part)]


def numbers(batches: Sequence[Sequence[Row]]) -> list[int]:
    """The payloads ``{"n": …}`` of all rows, in the order in which they came."""
    return [json.loads(row["payload"])["n"] for rows in batches for row in rows]


def fill(queue: Queue, count: int, first: int = 0) -> list[int]:
    """Publish so many numbered messages; their numbers."""
    found = list(range(first, first + count))
    queue.publish_many([{"n": n} for n in found])
    return found
