"""The sink: a DataFrame or a stream into a queue."""

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

from queue_over_sql.durable.staged_write_store import WHOLE, BatchName
from queue_over_sql.durable.staged_writes import InMemoryBatch, StagedPublisher, StagedWrite
from queue_over_sql.errors import DuplicateKey, PayloadInvalid, PayloadTooLarge
from queue_over_sql.queue import core_of
from queue_over_sql.spark.databases import queue_at
from queue_over_sql.spark.options import WriteOptions
from queue_over_sql.spark.sink_columns import Encoder, plan_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from queue_over_sql.queues.context import QueueContext

# What a task writes at once: each is a transaction, which must neither be small nor last.
_CHUNK_BYTES: Final = 16 * 2**20
# What a task sends to the driver instead of making a table for it.
_INLINE_BYTES: Final = 256 * 2**10
# How long the batch of a job is known that can never come again, except by a straggling task.
_JOB_SECONDS: Final = 86_400.0
_APART: Final = "To set such rows aside, use queue_over_sql.spark.load(…, rejected=…)."


@dataclasses.dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver: whose part it wrote, and where the messages are.

    Few are in ``content``, as a stream of Arrow's; many are staged; neither where there are none.
    """

    batch: BatchName
    columns: tuple[str, ...] = ()
    staged: StagedWrite | None = None
    content: bytes | None = None


class QueueSink:
    """What both writers do; pickled to each task."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        _, context = self._publisher_and_context()
        self._plans = plan_of(schema, context.tables)

    def write_part(
        self, batches: Iterator[pa.RecordBatch], batch: BatchName, keep: float | None
    ) -> Written:
        """Write one task's messages, so that the driver, or this itself, can publish them."""
        publisher, context = self._publisher_and_context()
        if self._options.atomic and publisher.is_published(batch):
            for _ in batches:
                # Spark wants its input to be taken.
                pass
            return Written(batch)
        encoder = Encoder(context, self._plans)
        encoded = _told(map(encoder.encode, batches))
        if self._options.atomic:
            return self._staged(publisher, batch, encoder.columns, encoded)
        in_memory = InMemoryBatch(encoder.columns, encoded)
        with contextlib.closing(in_memory), _in_words_of_options():
            if in_memory.rows:
                # A plain job never comes again; only its tasks may, with the same partitions.
                part = _part_of(in_memory) if keep is None else _partition()
                name = dataclasses.replace(batch, part=part)
                publisher.publish(name, [], in_memory=in_memory, keep=keep)
        return Written(batch)

    def publish(self, messages: Sequence[Any], keep: float | None) -> None:
        """Publish what all tasks of a batch have written, as a whole and once."""
        written = [message for message in messages if isinstance(message, Written)]
        staged = [each.staged for each in written if each.staged is not None]
        contents = [each.content for each in written if each.content is not None]
        if not staged and not contents:
            return
        columns = next(each.columns for each in written if each.columns)
        parts = itertools.chain.from_iterable(map(pa.ipc.open_stream, contents))
        in_memory = InMemoryBatch(columns, parts) if contents else None
        publisher, _ = self._publisher_and_context()
        with _in_words_of_options():
            publisher.publish(written[0].batch, staged, in_memory=in_memory, keep=keep)

    def discard(self, messages: Sequence[Any], batch: BatchName | None = None) -> None:
        """Drop what the tasks of a batch have staged that will not be published.

        With ``batch``, that of tasks as well that have not ended; only where nobody else can be at
        it.
        """
        publisher, _ = self._publisher_and_context()
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

    def _publisher_and_context(self) -> tuple[StagedPublisher, QueueContext]:
        options = self._options
        context = core_of(queue_at(options.location, options.queue)).context
        publisher = StagedPublisher(
            context, on_conflict=options.on_conflict, stage_ttl=options.stage_ttl
        )
        return publisher, context


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
        # Made once, so that all tasks of the job have the same.
        writer = given.writer_id or f"job-{uuid.uuid4().hex}"
        self._batch = BatchName(writer, given.batch_id or 0, WHOLE)
        self._keep = None if given.writer_id else _JOB_SECONDS

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition, on an executor."""
        return self._sink.write_part(iterator, self._batch, self._keep)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish, on the driver, once all partitions are written."""
        self._sink.publish(messages, self._keep)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave nothing behind, where a partition failed for good."""
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
        # Only tasks are told which query they belong to, so the driver learns it from them.
        query = self._writer_id or _property("sql.streaming.queryId")
        number = int(_property("streaming.sql.batchId"))
        return self._sink.write_part(iterator, BatchName(query, number), None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Publish a micro-batch, on the driver."""
        self._sink.publish(messages, None)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Leave nothing of a failed micro-batch behind."""
        self._sink.discard(messages)


def _told(encoded: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with _in_words_of_options():
        yield from encoded


@contextlib.contextmanager
def _in_words_of_options() -> Iterator[None]:
    """Let an error say what helps at the sink, where it speaks of ``publish``."""
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
    """The number of a part that may be written again: another one where its rows are others.

    A repeated batch may be cut into other partitions. By the number of a partition alone, messages
    would be taken for published that are not. The order of rows does not count, which may differ
    after a shuffle.
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
