"""The sink: a DataFrame or a stream into a queue."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import tempfile
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from queue_over_sql.durable.stage_store import WHOLE, BatchName
from queue_over_sql.durable.staged_writes import STAGE_TTL, Stage, StagedPublisher
from queue_over_sql.errors import DuplicateKey, PayloadInvalid, PayloadTooLarge
from queue_over_sql.queue import core_of
from queue_over_sql.schema.system_tables import WRITER_LENGTH
from queue_over_sql.settings import check_whole
from queue_over_sql.spark.databases import queue_at
from queue_over_sql.spark.options import (
    QueueOptions,
    ReadOptions,
    a_text,
    one_of,
    option,
    some_seconds,
)
from queue_over_sql.spark.sink_columns import Encoder, plan_of
from queue_over_sql.spark.stream.options import StreamOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql.types import StructType

    from queue_over_sql.spark.sink_columns import ColumnPlan


MEMORY_BYTES: Final = 128 * 2**20
"""What is kept in memory; more goes to a temporary file."""


class Spool:
    """Batches of one schema, which can be gone through again and again.

    Args:
        columns: their names.
        memory_bytes: how much is kept in memory.
    """

    def __init__(self, columns: Sequence[str], *, memory_bytes: int = MEMORY_BYTES) -> None:
        self.columns = tuple(columns)
        self.rows = 0
        self.size = 0
        self._memory_bytes = memory_bytes
        self._batches: list[pa.RecordBatch] = []
        self._file: Any = None
        self._writer: Any = None

    @classmethod
    def of(cls, columns: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Self:
        """Gather batches."""
        spool = cls(columns)
        for batch in batches:
            spool.add(batch)
        return spool

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep one more; an empty one is left out."""
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        self.size += batch.nbytes
        if self.size <= self._memory_bytes:
            self._batches.append(batch)
            return
        if self._writer is None:
            self._file = tempfile.TemporaryFile(prefix="queue-over-sql-")  # noqa: SIM115 - kept open
            self._writer = pa.ipc.new_file(self._file, batch.schema)
        self._writer.write_batch(batch)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._batches
        if self._writer is None:
            return
        self._writer.close()
        self._file.seek(0)
        reader = pa.ipc.open_file(self._file)
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)

    def close(self) -> None:
        """Forget everything."""
        self._batches = []
        if self._file is not None:
            self._file.close()


def to_bytes(batches: Iterable[pa.RecordBatch]) -> bytes:
    """Batches as they travel to the driver; at least one."""
    kept = list(batches)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, kept[0].schema) as stream:
        for batch in kept:
            stream.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def from_bytes(content: bytes) -> list[pa.RecordBatch]:
    """What ``to_bytes`` wrote."""
    return list(pa.ipc.open_stream(content))


# What a task writes at once: each is a transaction, which must neither be small nor last.
_CHUNK_BYTES: Final = 16 * 2**20
# What a task sends to the driver instead of making a table for it.
_INLINE_BYTES: Final = 256 * 2**10
# How long the batch of a job is known that can never come again, except by a straggling task.
_JOB_SECONDS: Final = 86_400.0
_APART: Final = "To keep such rows apart, publish by queue_over_sql.spark.load(…, rejected=…)."


def a_writer(name: str, text: str) -> str:
    """A name of a writer.

    Raises:
        ValueError: it is empty or too long.
    """
    found = a_text(name, text)
    if len(found) > WRITER_LENGTH:
        msg = f"option {name} must be at most {WRITER_LENGTH} characters long"
        raise ValueError(msg)
    return found


def a_number(name: str, text: str) -> int:
    """A whole number from 0 on.

    Raises:
        ValueError: it is none.
    """
    try:
        return check_whole(f"option {name}", int(text.strip()), 0, 2**62)
    except ValueError:
        msg = f"option {name} must be a whole number from 0 on, not {text!r}"
        raise ValueError(msg) from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriteOptions(QueueOptions):
    """What may be said where a queue is written.

    Attributes:
        commit_mode: ``atomic``: a batch is published as a whole and once; ``task``: each task
            publishes its part, which is quicker and may publish parts of a repeated batch again.
        on_conflict: what becomes of a message whose key is taken, as in ``publish``.
        writer_id: who writes; what it has written under one ``batch_id`` is not written again.
            Without it a stream goes by its query's id, and each job is a writer of its own.
        batch_id: the number of the batch in ``foreachBatch``.
        stage_ttl: how long, in seconds, what was staged waits for the driver.
    """

    used_by: ClassVar[str] = "sinks (write, writeStream)"

    commit_mode: str = option(one_of("atomic", "task"), default="atomic")
    on_conflict: str = option(one_of("raise", "skip", "replace"), default="raise")
    writer_id: str | None = option(a_writer, default=None)
    batch_id: int | None = option(a_number, default=None)
    stage_ttl: float = option(some_seconds, default=STAGE_TTL)

    @property
    def atomic(self) -> bool:
        """Whether a batch is published as a whole."""
        return self.commit_mode == "atomic"


@dataclasses.dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver.

    Attributes:
        batch: whose part it wrote.
        columns: of its messages.
        stage: where they are; None where there is none.
        content: the messages themselves, where they are few.
    """

    batch: BatchName
    columns: tuple[str, ...] = ()
    stage: Stage | None = None
    content: bytes | None = None


class QueueSink:
    """What both writers do; pickled to each task.

    Args:
        options: as Spark hands them over.
        schema: of the DataFrame.

    Raises:
        ValueError, TypeError: an option or a column is wrong; the text names it.
        QueueNotFound, DatabaseUnavailable: as their names say.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = WriteOptions.parse(options, foreign=(ReadOptions, StreamOptions))
        tables = self._publisher_and_context()[1].tables
        self._plans: Sequence[ColumnPlan] = plan_of(schema, tables)

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
        spool = Spool.of(encoder.columns, encoded)
        try:
            if spool.rows:
                # A plain job never comes again; only its tasks may, with the same partitions.
                part = _part_of(spool) if keep is None else _partition()
                name = dataclasses.replace(batch, part=part)
                with _in_words_of_options():
                    publisher.publish(name, [], loose=spool, keep=keep)
        finally:
            spool.close()
        return Written(batch)

    def publish(self, messages: Sequence[Any], keep: float | None) -> None:
        """Publish what all tasks of a batch have written, as a whole and once."""
        written = [message for message in messages if isinstance(message, Written)]
        stages = [each.stage for each in written if each.stage is not None]
        small = [each for each in written if each.content is not None]
        if not stages and not small:
            return
        loose = None
        if small:
            parts = (from_bytes(each.content) for each in small if each.content is not None)
            loose = Spool.of(small[0].columns, itertools.chain.from_iterable(parts))
        publisher, _ = self._publisher_and_context()
        with _in_words_of_options():
            publisher.publish(written[0].batch, stages, loose=loose, keep=keep)

    def discard(self, messages: Sequence[Any], batch: BatchName | None = None) -> None:
        """Drop what the tasks of a batch have staged that will not be published.

        Args:
            messages: of the tasks that have ended.
            batch: drop the stages of other tasks as well; only where nobody else can be at it.
        """
        publisher, _ = self._publisher_and_context()
        if batch is not None:
            publisher.discard_all(batch)
        publisher.discard(
            m.stage for m in messages if isinstance(m, Written) and m.stage is not None
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
            return Written(batch, columns, content=to_bytes(first))
        rest = [first] if second is None else itertools.chain([first, second], chunks)
        return Written(batch, columns, stage=publisher.stage(batch, columns, rest))

    def _publisher_and_context(self) -> tuple[StagedPublisher, Any]:
        options = self._options
        context = core_of(queue_at(options.location, options.queue)).context
        publisher = StagedPublisher(
            context, on_conflict=options.on_conflict, stage_ttl=options.stage_ttl
        )
        return publisher, context


class QueueBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame: ``df.write.format("queue_over_sql")``.

    Raises:
        ValueError: ``mode("overwrite")``, or as in ``QueueSink``.
    """

    def __init__(
        self, options: Mapping[str, str], schema: StructType, *, overwrite: bool = False
    ) -> None:
        if overwrite:
            msg = (
                'mode("overwrite") would throw away messages that others work on: '
                'use mode("append"), after purge() on the queue where that is meant'
            )
            raise ValueError(msg)
        self._sink = QueueSink(options, schema)
        given = WriteOptions.parse(options, foreign=(ReadOptions, StreamOptions))
        if given.batch_id is not None and given.writer_id is None:
            msg = (
                "option batchId needs writerId: the same number of another writer is another batch"
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
    """Writes a stream: ``df.writeStream.format("queue_over_sql")``.

    Raises:
        ValueError: the output mode is ``complete``, or as in ``QueueSink``.
    """

    def __init__(
        self, options: Mapping[str, str], schema: StructType, *, overwrite: bool = False
    ) -> None:
        given = WriteOptions.parse(options, foreign=(ReadOptions, StreamOptions))
        if overwrite or given.batch_id is not None:
            said = "option batchId" if given.batch_id is not None else 'outputMode("complete")'
            msg = f"{said} is not for streams into a queue: each micro-batch is appended, once"
            raise ValueError(msg)
        self._sink = QueueSink(options, schema)
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


def _part_of(spool: Spool) -> int:
    """The number of a part that may be written again: another one where its rows are others.

    A repeated batch may be cut into other partitions. By the number of a partition alone, messages
    would be taken for published that are not. The order of rows does not count, which may differ
    after a shuffle.
    """
    found = _hashed(_partition())
    for batch in spool:
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
            f"Spark does not tell its task {name}: write each batch in foreachBatch, with the "
            "options writerId and batchId"
        )
        raise ValueError(msg)
    return str(found)
