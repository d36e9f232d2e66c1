"""The sink: writes a DataFrame or a stream to a queue."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import uuid
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from queue_over_sql import inside
from queue_over_sql.errors import DuplicateKey, PayloadInvalid, PayloadTooLarge
from queue_over_sql.inside.columns import (
    WHOLE,
    BatchName,
    InMemoryBatch,
    StagedPublisher,
    StagedWrite,
)
from queue_over_sql.spark.databases import queue_at
from queue_over_sql.spark.options import WriteOptions
from queue_over_sql.spark.sink_columns import Encoder, plan_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from queue_over_sql import Queue

# The messages of a transaction of a task: not too few and not too many.
_CHUNK_BYTES: Final = 16 * 2**20
# A task with fewer bytes sends them to the driver instead of creating a table.
_INLINE_BYTES: Final = 256 * 2**10
# How long to remember the batch of a job; only a straggling task could repeat it.
_JOB_SECONDS: Final = 86_400.0
_APART: Final = "To set such rows aside, use queue_over_sql.spark.load(…, rejected=…)."


@dataclasses.dataclass(frozen=True)
class Written(WriterCommitMessage):
    """A task's message to the driver: its part, and where the messages are.

    Few messages are in ``content``, as an Arrow stream; many are staged. Without messages it has
    neither.
    """

    batch: BatchName
    columns: tuple[str, ...] = ()
    staged: StagedWrite | None = None
    content: bytes | None = None


class QueueSink:
    """The common part of both writers; pickled to each task."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._plans = plan_of(schema, inside.tables(self._queue()))

    def write_part(
        self, batches: Iterator[pa.RecordBatch], batch: BatchName, keep: float | None
    ) -> Written:
        """Write one task's messages, so that the driver or this task can publish them."""
        publisher = self._publisher()
        if self._options.atomic and publisher.is_published(batch):
            for _ in batches:
                # Spark requires that its input is read.
                pass
            return Written(batch)
        encoder = Encoder(self._queue(), self._plans)
        encoded = _explained(map(encoder.encode, batches))
        if self._options.atomic:
            return self._staged(publisher, batch, encoder.columns, encoded)
        in_memory = InMemoryBatch(encoder.columns, encoded)
        with contextlib.closing(in_memory), _in_words_of_options():
            if in_memory.rows:
                # A plain job is never repeated, only its tasks, with the same partitions.
                part = _part_of(in_memory) if keep is None else _partition()
                name = dataclasses.replace(batch, part=part)
                publisher.publish(name, [], in_memory=in_memory, keep=keep)
        return Written(batch)

    def publish(self, messages: Sequence[Any], keep: float | None) -> None:
        """Publish the messages of all tasks of a batch, as a whole and once."""
        written = [message for message in messages if isinstance(message, Written)]
        staged = [each.staged for each in written if each.staged is not None]
        contents = [each.content for each in written if each.content is not None]
        if not staged and not contents:
            return
        columns = next(each.columns for each in written if each.columns)
        parts = itertools.chain.from_iterable(map(pa.ipc.open_stream, contents))
        in_memory = InMemoryBatch(columns, parts) if contents else None
        publisher = self._publisher()
        with _in_words_of_options():
            publisher.publish(written[0].batch, staged, in_memory=in_memory, keep=keep)

    def discard(self, messages: Sequence[Any], batch: BatchName | None = None) -> None:
        """Drop staged messages of a batch that will not be published.

        With ``batch``, also those of tasks that have not ended; only if no other process can be
        writing the batch.
        """
        publisher = self._publisher()
        if batch is not None:
            publisher.discard_all(batch)
        publisher.discard(
            m.staged for m in messages if isinstance(m, Written) and m.staged is not None
        )

    def _staged(
        self,
        publisher: StagedPublisher,
        batch: BatchName,
        columns: tuple[str, ...],
        encoded: Iterable[pa.RecordBatch],
    ) -> Written:
        chunks = _chunks(encoded)
        first = next(chunks, [])
        second = next(chunks, None)
        if not first:
            return Written(batch)
        if second is None and sum(each.nbytes for each in first) <= _INLINE_BYTES:
            return Written(batch, columns, content=_to_bytes(first))
        rest = [first] if second is None else itertools.chain([first, second], chunks)
        return Written(batch, columns, staged=publisher.stage(batch, columns, rest))

    def _queue(self) -> Queue:
        return queue_at(self._options.location, self._options.queue)

    def _publisher(self) -> StagedPublisher:
        options = self._options
        return StagedPublisher(
            self._queue(), on_conflict=options.on_conflict, stage_ttl=options.stage_ttl
        )


class QueueBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame: ``df.write.format("queue_over_sql")``."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, *, overwrite: bool = False
    ) -> None:
        if overwrite:
            msg = (
                'mode("overwrite") would delete messages that others are working on: use '
                'mode("append"). To delete the messages first, call purge() on the queue'
            )
            raise ValueError(msg)
        given = WriteOptions.parse(options)
        self._sink = QueueSink(given, schema)
        if given.batch_id is not None and given.writer_id is None:
            msg = (
                "option batchId requires writerId, because batch numbers are unique only per writer"
            )
            raise ValueError(msg)
        # Created once, so that all tasks of the job have the same.
        writer = given.writer_id or f"job-{uuid.uuid4().hex}"
        self._batch = BatchName(writer, given.batch_id or 0, WHOLE)
        self._keep = None if given.writer_id else _JOB_SECONDS

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition, on an executor."""
        return self._sink.write_part(iterator, self._batch, self._keep)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish on the driver, when all partitions are written."""
        self._sink.publish(messages, self._keep)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove everything after a partition failed for good."""
        self._sink.discard(messages, None if self._keep is None else self._batch)


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream: ``df.writeStream.format("queue_over_sql")``."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, *, overwrite: bool = False
    ) -> None:
        given = WriteOptions.parse(options)
        if overwrite or given.batch_id is not None:
            said = "option batchId" if given.batch_id is not None else 'outputMode("complete")'
            msg = f"{said} is not supported for streams into a queue: use append mode"
            raise ValueError(msg)
        self._sink = QueueSink(given, schema)
        self._writer_id = given.writer_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition of a micro-batch, on an executor."""
        # Only tasks know the query's id, so the driver learns it from them.
        query = self._writer_id or _property("sql.streaming.queryId")
        number = int(_property("streaming.sql.batchId"))
        return self._sink.write_part(iterator, BatchName(query, number), None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Publish a micro-batch, on the driver."""
        self._sink.publish(messages, None)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Remove everything of a failed micro-batch."""
        self._sink.discard(messages)


def _explained(encoded: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with _in_words_of_options():
        yield from encoded


@contextlib.contextmanager
def _in_words_of_options() -> Iterator[None]:
    """Replace advice about ``publish`` in an error by advice about options."""
    try:
        yield
    except DuplicateKey as error:
        text = str(error).replace("Publish with on_conflict=", "Use the option onConflict=")
        error.args = (text,)
        raise
    except (PayloadInvalid, PayloadTooLarge) as error:
        error.args = (f"{error} {_APART}",)
        raise


def _to_bytes(batches: Sequence[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        kept.append(batch)
        size += batch.nbytes
        if size >= _CHUNK_BYTES:
            yield kept
            kept, size = [], 0
    if kept:
        yield kept


def _part_of(in_memory: InMemoryBatch) -> int:
    """The number of a part that may be written again; it depends on the part's rows.

    A repeated batch may have other partitions. Partition numbers alone would make unpublished
    messages look published. The order of rows does not count, because it may change after a
    shuffle.
    """
    found = _hashed(_partition())
    for batch in in_memory:
        found += sum(map(_hashed, zip(*[column.to_pylist() for column in batch], strict=True)))
    return found % 2**63


def _hashed(value: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest())


def _partition() -> int:
    task = TaskContext.get()
    return 0 if task is None else task.partitionId()


def _property(name: str) -> str:
    task = TaskContext.get()
    found = None if task is None else task.getLocalProperty(name)
    if found is None:
        msg = (
            f"Spark did not provide {name} to its task: write each batch in foreachBatch, with "
            "the options writerId and batchId"
        )
        raise ValueError(msg)
    return str(found)
