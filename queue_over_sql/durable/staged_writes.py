"""Staged writes: many processes store messages, and one publishes all of them exactly once."""

from __future__ import annotations

import dataclasses
import logging
import random
import tempfile
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queue_over_sql.claiming.low_watermark import SLACK_US
from queue_over_sql.durable import staged_write_store as store
from queue_over_sql.durable.staged_write_store import (
    AT,
    DELAY,
    EXPIRES,
    SEQUENCE,
    BatchName,
    KeysTaken,
    PublishedBatch,
    StagedTable,
    staged_table,
)
from queue_over_sql.errors import (
    DatabaseRefused,
    DatabaseUnavailable,
    DuplicateKey,
    PayloadInvalid,
    QueueError,
    UnsupportedByEngine,
)
from queue_over_sql.publishing.statements import EXPIRY
from queue_over_sql.queue import core_of
from queue_over_sql.queues import registry
from queue_over_sql.sql.operation import Operation
from queue_over_sql.statements.clock import server_now
from queue_over_sql.values.checks import check_choice
from queue_over_sql.values.json_text import check_json_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyarrow import RecordBatch
    from sqlalchemy import Connection

    from queue_over_sql.queue import Queue
    from queue_over_sql.schema.queue_tables import QueueTables


_log = logging.getLogger(__name__)

STAGE_TTL: Final = 86_400.0
"""How long a staged write waits for its publisher, in seconds."""

_SECOND: Final = 1_000_000
_MEMORY_BYTES: Final = 128 * 2**20
_KEY_RACES: Final = 50
_ON_CONFLICT: Final = ("raise", "skip", "replace")
# Columns that the time of the publish turns into others.
_RELATIVE: Final = (AT, DELAY, EXPIRES)
_TIMES: Final = ("published_at", "scheduled_at", "available_at")


@dataclasses.dataclass(frozen=True, slots=True)
class StagedWrite:
    """A table with messages of a batch, sent from the process that fills it to the publisher.

    Its ``columns`` are columns that a publish sets, ``_delay`` and ``_at``.
    """

    table: str
    columns: tuple[str, ...]
    rows: int


class InMemoryBatch:
    """Messages that can be read repeatedly; many messages go to a temporary file."""

    def __init__(self, columns: Sequence[str], batches: Iterable[RecordBatch]) -> None:
        self.columns = tuple(columns)
        self.rows = 0
        self._kept: list[RecordBatch] = []
        self._file: Any = None
        writer: Any = None
        size = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            self.rows += batch.num_rows
            size += batch.nbytes
            if size <= _MEMORY_BYTES:
                self._kept.append(batch)
                continue
            if writer is None:
                self._file = tempfile.TemporaryFile(prefix="queue-over-sql-")  # noqa: SIM115 - kept open
                writer = pa.ipc.new_file(self._file, batch.schema)
            writer.write_batch(batch)
        if writer is not None:
            writer.close()

    def __iter__(self) -> Iterator[RecordBatch]:
        yield from self._kept
        if self._file is None:
            return
        self._file.seek(0)
        reader = pa.ipc.open_file(self._file)
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)

    def close(self) -> None:
        """Delete everything."""
        self._kept = []
        if self._file is not None:
            self._file.close()


class _Repeated(QueueError):
    """The batch was already published."""


class StagedPublisher:
    """Publishes batches of messages in columns to one queue.

    ``on_conflict`` applies to taken keys, as in ``Queue.publish``. A staged write waits
    ``stage_ttl`` seconds for its publisher. Adopted tables are refused.
    """

    def __init__(
        self, queue: Queue, *, on_conflict: str = "raise", stage_ttl: float = STAGE_TTL
    ) -> None:
        check_choice("on_conflict", on_conflict, _ON_CONFLICT)
        context = core_of(queue).context
        msg = (
            f"Queue {context.name!r} is an adopted table: insert the rows into the table, "
            "then call enqueue()."
        )
        context.tables.expect_payloads(UnsupportedByEngine(msg))
        if context.settings.when_full != "wait":
            msg = (
                f"Queue {context.name!r} has when_full={context.settings.when_full!r}, but batches "
                "from Spark and staged writes publish all or nothing, without a look at limits. "
                "Change it to 'wait', or publish with publish_many or load."
            )
            raise ValueError(msg)
        self._context = context
        self._on_conflict = on_conflict
        self._ttl = int(stage_ttl * _SECOND)

    @property
    def _tables(self) -> QueueTables:
        return self._context.tables

    # -- staging

    def is_published(self, batch: BatchName) -> bool:
        """Whether a batch, or this part of it, is already published."""
        return self._context.run(lambda c: store.is_committed(c, self._tables, batch))

    def published_count(self, batch: BatchName) -> int | None:
        """How many messages a published batch created; None if it is not published or forgotten."""
        return self._context.run(lambda c: store.committed_count(c, self._tables, batch))

    def forget(self, batch: BatchName) -> None:
        """Forget that a batch was published; publish it again only if that is wanted."""
        self._context.run(lambda c: store.forget_commit(c, self._tables, batch))

    def stage(
        self, batch: BatchName, columns: Sequence[str], chunks: Iterable[Sequence[RecordBatch]]
    ) -> StagedWrite:
        """Write messages into a new table, one transaction per chunk.

        Args:
            batch: the batch of the messages.
            columns: the columns of each message, encoded for the table.
            chunks: lists of record batches with these columns.

        Raises:
            PayloadInvalid: the database refused a value; the table was dropped.
            DatabaseUnavailable: the reaper will drop the table; stage the messages again.
        """
        creating = Operation(
            lambda c: self._create(c, batch, columns), atomic=True, durable=True, repeatable=False
        )
        staged = self._context.run(creating)
        rows = 0
        try:
            for chunk in chunks:
                rows += self._fill(staged, chunk, rows)
            self._context.run(lambda c: store.complete_staged(c, staged, rows))
        except DatabaseUnavailable:
            raise
        except BaseException:
            self.discard([StagedWrite(staged.table.name, tuple(columns), rows)])
            raise
        return StagedWrite(staged.table.name, tuple(columns), rows)

    def _create(
        self, connection: Connection, batch: BatchName, columns: Sequence[str]
    ) -> StagedTable:
        # Each try has a new name, because with autocommitted DDL the former one is registered.
        staged = self._define(f"queue_over_sql_stage_{uuid.uuid4().hex[:16]}", columns)
        store.create_staged(connection, staged, batch, lifetime=self._ttl)
        return staged

    def _define(self, name: str, columns: Sequence[str]) -> StagedTable:
        merged = self._on_conflict != "raise" and "message_key" in columns
        return staged_table(self._tables, name, columns, merged=merged)

    def _fill(self, staged: StagedTable, chunk: Sequence[RecordBatch], start: int) -> int:
        names = [column.name for column in staged.table.c]
        if SEQUENCE in names:
            chunk = list(_numbered(chunk, start))
        write = self._context.dialect.columns.write
        writing = Operation(
            lambda c: write(c, staged.table, names, chunk),
            atomic=True,
            durable=True,
            repeatable=False,
        )
        try:
            return self._context.run(writing)
        except (DatabaseRefused, PayloadInvalid):
            self.explain(chunk, start)
            raise

    def explain(self, batches: Iterable[RecordBatch], start: int = 0) -> None:
        """Find the first message that is not JSON, after the database refused one."""
        if self._context.known_settings.payload != "json":
            return
        for batch in batches:
            for number, text in enumerate(batch.column("payload").to_pylist(), start):
                check_json_text(text, f"payload of row {number} of its partition")
            start += batch.num_rows

    def discard(self, writes: Iterable[StagedWrite]) -> None:
        """Drop staged writes; if that fails, the reaper does it later."""
        system, names = self._tables.system, [staged.table for staged in writes]
        if names:
            self._leniently(store.drop_stages.of(system, names))

    def discard_all(self, batch: BatchName) -> None:
        """Drop all staged writes of an abandoned batch, also those of dead tasks."""
        tables = self._tables
        dropping = Operation(
            lambda c: store.drop_stages(c, tables.system, store.staged_of(c, tables, batch)),
            atomic=True,
        )
        self._leniently(dropping)

    def _leniently(self, operation: Operation[None]) -> None:
        try:
            self._context.run(operation)
        except QueueError as error:
            _log.warning(
                "Staging tables could not be dropped. The reaper will drop them later: %s", error
            )

    # -- publishing

    def publish(
        self,
        batch: BatchName,
        writes: Sequence[StagedWrite],
        *,
        in_memory: InMemoryBatch | None = None,
        keep: float | None = None,
    ) -> PublishedBatch:
        """Publish all messages of a batch in one transaction, unless that was already done.

        Safe to repeat. It drops the staged writes afterwards.

        Args:
            batch: the batch.
            writes: the staged writes of its messages.
            in_memory: further messages of the batch.
            keep: how many seconds to remember the batch; None: until the writer's later batches.

        Raises:
            DuplicateKey: a key is taken and ``on_conflict`` is ``"raise"``; nothing was published.
            StageLost: some staged messages are missing; nothing was published.
            PayloadInvalid: the database refused a value; nothing was published.
        """
        own: list[StagedWrite] = []
        if in_memory is not None and "message_key" in in_memory.columns:
            # Keys are compared by SQL, so the messages must be in a table.
            own = [self.stage(batch, in_memory.columns, ([each] for each in in_memory))]
            in_memory = None
        try:
            published = self._publish(batch, [*writes, *own], in_memory, keep)
        except _Repeated:
            self.discard([*writes, *own])
            return PublishedBatch(repeated=True)
        except BaseException:
            self.discard(own)
            raise
        self.discard([*writes, *own])
        self._context.wake_consumers()
        return published

    def _publish(
        self,
        batch: BatchName,
        writes: Sequence[StagedWrite],
        in_memory: InMemoryBatch | None,
        keep: float | None,
    ) -> PublishedBatch:
        kept = None if keep is None else int(keep * _SECOND)
        tables = [(self._define(staged.table, staged.columns), staged.rows) for staged in writes]

        publishing = Operation(
            lambda c: self._transaction(c, batch, tables, in_memory, kept),
            atomic=True,
            durable=True,
        )
        for _ in range(_KEY_RACES):
            try:
                return self._context.run(publishing)
            except KeysTaken as error:
                self._refuse_taken([staged for staged, _ in tables], error)
            except (DatabaseRefused, PayloadInvalid):
                self.explain(in_memory or ())
                raise
            # Another process published one of the keys at this moment.
            time.sleep(random.uniform(0.001, 0.02))  # noqa: S311 - spreads writers, guards nothing
        msg = (
            f"Queue {self._context.name!r}: keys of the batch were taken in each of {_KEY_RACES} "
            "attempts, but free when they were checked. Nothing was published. Publish the batch "
            "again."
        )
        raise QueueError(msg)

    def _transaction(
        self,
        connection: Connection,
        batch: BatchName,
        writes: Sequence[tuple[StagedTable, int]],
        in_memory: InMemoryBatch | None,
        keep: int | None,
    ) -> PublishedBatch:
        tables, sql = self._tables, self._context.sql
        if not store.note_commit(connection, tables, batch, keep=keep):
            raise _Repeated
        if (
            self._expires_us is not None
            or any(EXPIRES in each.table.c for each, _ in writes)
            or (in_memory is not None and EXPIRES in in_memory.columns)
        ):
            registry.note_expiring(connection, sql)
        now, began = server_now(connection, sql), time.monotonic()
        published = PublishedBatch()
        if in_memory is not None:
            published = self._write(connection, in_memory, now)
        for staged, rows in writes:
            published += self._move(connection, staged, rows, now)
        store.complete_commit(connection, tables, batch, published.created + published.replaced)
        if (time.monotonic() - began) * _SECOND > SLACK_US / 2:
            # These messages may lie below the low watermark of consumers that continued meanwhile.
            registry.count_edit(connection, tables)
        return published

    @property
    def _expires_us(self) -> int | None:
        return self._context.known_settings.expires_us

    def _write(self, connection: Connection, in_memory: InMemoryBatch, now: int) -> PublishedBatch:
        expires = self._expires_us
        names = [*(name for name in in_memory.columns if name not in _RELATIVE), *_TIMES]
        if expires is not None or EXPIRES in in_memory.columns:
            names.append(EXPIRY)
        batches = (_timed(batch, now, expires) for batch in in_memory)
        write = self._context.dialect.columns.write
        return PublishedBatch(created=write(connection, self._tables.live, names, batches))

    def _move(
        self, connection: Connection, staged: StagedTable, rows: int, now: int
    ) -> PublishedBatch:
        dedup = staged.keyed and self._context.known_settings.dedup_window is not None
        after = store.newest_id(connection, staged) if dedup else 0
        moved = store.publish_staged(
            connection,
            staged,
            rows=rows,
            now=now,
            on_conflict=self._on_conflict,
            expires=self._expires_us,
        )
        if not dedup:
            return moved
        if self._on_conflict == "raise":
            found = store.finished_key(connection, staged, after=after, now=now)
            if found is not None:
                raise DuplicateKey(self._context.name, *found, finished=True)
            return moved
        back = store.take_back(connection, staged, after=after, now=now)
        return moved + PublishedBatch(created=-back, left_out=back)

    def _refuse_taken(self, writes: Sequence[StagedTable], error: KeysTaken) -> None:
        if self._on_conflict != "raise":
            return
        found = self._context.run(lambda c: store.taken_key(c, writes))
        if found is not None:
            raise DuplicateKey(self._context.name, *found) from error


def _numbered(batches: Iterable[RecordBatch], start: int) -> Iterator[RecordBatch]:
    for batch in batches:
        end = start + batch.num_rows
        yield batch.append_column(SEQUENCE, pa.array(np.arange(start, end, dtype=np.int64)))
        start = end


def _timed(batch: RecordBatch, now: int, expires: int | None) -> RecordBatch:
    names = batch.schema.names
    whenever = pa.array(np.full(batch.num_rows, now, np.int64))
    due = whenever
    if DELAY in names:
        due = pc.add(due, batch.column(DELAY).fill_null(0))
    if AT in names:
        due = pc.coalesce(batch.column(AT), due)
    plain = batch.select([name for name in names if name not in _RELATIVE])
    for name, values in zip(_TIMES, (whenever, due, due), strict=True):
        plain = plain.append_column(name, values)
    if EXPIRES in names or expires is not None:
        usual = pa.scalar(expires, pa.int64())
        own = batch.column(EXPIRES) if EXPIRES in names else pa.array([usual] * batch.num_rows)
        begins = pc.max_element_wise(whenever, batch.column(AT)) if AT in names else whenever
        plain = plain.append_column(EXPIRY, pc.add(begins, pc.coalesce(own, usual)))
    return plain
