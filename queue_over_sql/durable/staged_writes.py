"""Staged writes: many processes write messages, one publishes them, all or none and once."""

from __future__ import annotations

import dataclasses
import logging
import random
import time
import uuid
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queue_over_sql.durable import stage_store as store
from queue_over_sql.durable.stage_store import (
    AT,
    DELAY,
    SEQUENCE,
    BatchName,
    KeysTaken,
    Moved,
    StageTables,
    stage_tables,
)
from queue_over_sql.errors import (
    DatabaseRefused,
    DatabaseUnavailable,
    DuplicateKey,
    PayloadInvalid,
    QueueError,
    UnsupportedByEngine,
)
from queue_over_sql.payloads.codec import check_json_text
from queue_over_sql.queues.low_watermark import SLACK_US
from queue_over_sql.settings import check_choice
from queue_over_sql.store import registry, server_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyarrow import RecordBatch
    from sqlalchemy import Connection

    from queue_over_sql.queues.context import QueueContext


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


_log = logging.getLogger(__name__)

STAGE_TTL: Final = 86_400.0
"""How long a stage waits for its publisher, in seconds."""

_SECOND: Final = 1_000_000
_DAY_US: Final = 86_400 * _SECOND
_KEY_RACES: Final = 50
_ON_CONFLICT: Final = ("raise", "skip", "replace")


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """A table with messages of a batch; travels from who filled it to who publishes it.

    Attributes:
        name: of the table.
        columns: what the messages have: some of the columns that a publish fills, ``_delay`` and
            ``_at``.
        rows: how many messages there are.
    """

    name: str
    columns: tuple[str, ...]
    rows: int


@dataclasses.dataclass(frozen=True, slots=True)
class PublishedBatch:
    """What became of a batch.

    Attributes:
        created: messages published.
        replaced: live messages that got new content.
        left_out: messages whose key was taken.
        repeated: nothing was done, because the batch had been published before.
    """

    created: int = 0
    replaced: int = 0
    left_out: int = 0
    repeated: bool = False


class Loose(Protocol):
    """Messages in hand, which can be gone through again and again."""

    @property
    def columns(self) -> Sequence[str]:
        """As those of a ``Stage``."""
        ...

    @property
    def rows(self) -> int:
        """How many messages there are."""
        ...

    def __iter__(self) -> Iterator[RecordBatch]: ...


class _Repeated(QueueError):
    """The batch had been published before."""


class StagedPublisher:
    """Publishes batches of messages that are held in columns into one queue.

    Args:
        context: of the queue.
        on_conflict: what to do about taken keys, as in ``Queue.publish``.
        stage_ttl: how long a stage may wait for its publisher, in seconds.

    Raises:
        UnsupportedByEngine: the queue lives in a table of the user's.
        ValueError: ``on_conflict`` is none.
    """

    def __init__(
        self, context: QueueContext, *, on_conflict: str = "raise", stage_ttl: float = STAGE_TTL
    ) -> None:
        check_choice("on_conflict", on_conflict, _ON_CONFLICT)
        if not context.tables.has_payloads:
            msg = (
                f"Queue {context.name!r} lives in a table of your own: write the rows there, then "
                "make them messages with enqueue()."
            )
            raise UnsupportedByEngine(msg)
        self._context = context
        self._tables = context.tables
        self._on_conflict = on_conflict
        self._ttl = int(stage_ttl * _SECOND)

    # -- who fills a stage

    def is_published(self, batch: BatchName) -> bool:
        """Whether a batch, or this part of it, needs no writing any more."""
        return self._context.run(lambda c: store.is_committed(c, self._tables, batch))

    def stage(
        self, batch: BatchName, columns: Sequence[str], chunks: Iterable[Sequence[RecordBatch]]
    ) -> Stage:
        """Write messages into a stage of their own, one transaction for each chunk.

        Args:
            batch: what they belong to.
            columns: what each message has, encoded as the table has it.
            chunks: lists of record batches, each with these columns.

        Raises:
            PayloadInvalid: the database refused a value; the stage is gone again.
            DatabaseUnavailable: the stage is left to the reaper; fill another.
        """
        tables = self._context.run(
            lambda c: self._create(c, batch, columns), atomic=True, durable=True, repeat=False
        )
        rows = 0
        try:
            for chunk in chunks:
                rows += self._fill(tables, chunk, rows)
            self._context.run(lambda c: store.complete_stage(c, tables, rows))
        except DatabaseUnavailable:
            raise
        except BaseException:
            self.discard([Stage(tables.stage.name, tuple(columns), rows)])
            raise
        return Stage(tables.stage.name, tuple(columns), rows)

    def _create(
        self, connection: Connection, batch: BatchName, columns: Sequence[str]
    ) -> StageTables:
        # A new name at each try: where DDL commits, the one before is registered already.
        tables = self._define(f"queue_over_sql_stage_{uuid.uuid4().hex[:16]}", columns)
        store.create_stage(connection, tables, batch, lifetime=self._ttl)
        return tables

    def _define(self, name: str, columns: Sequence[str]) -> StageTables:
        merged = self._on_conflict != "raise" and "message_key" in columns
        return stage_tables(self._tables, name, columns, merged=merged)

    def _fill(self, tables: StageTables, chunk: Sequence[RecordBatch], start: int) -> int:
        names = [column.name for column in tables.stage.c]
        if SEQUENCE in names:
            chunk = list(placed(chunk, start))
        write = self._context.dialect.columns.write
        try:
            return self._context.run(
                lambda c: write(c, tables.stage, names, chunk),
                atomic=True,
                durable=True,
                repeat=False,
            )
        except (DatabaseRefused, PayloadInvalid):
            self.explain(chunk, start)
            raise

    def explain(self, batches: Iterable[RecordBatch], start: int = 0) -> None:
        """Name the first message that is no JSON, where the database has refused one.

        Raises:
            PayloadInvalid: there is one.
        """
        if self._context.known_settings.payload != "json":
            return
        for batch in batches:
            for number, text in enumerate(batch.column("payload").to_pylist(), start):
                check_json_text(text, f"payload of row {number} of its partition")
            start += batch.num_rows

    def discard(self, stages: Iterable[Stage]) -> None:
        """Drop stages; where that fails now, the reaper will."""
        system, names = self._tables.system, [stage.name for stage in stages]
        if names:
            self._leniently(lambda c: store.drop_stages(c, system, names))

    def discard_all(self, batch: BatchName) -> None:
        """Drop all stages of a batch that nobody will publish, those of dead tasks as well."""
        tables = self._tables

        def act(connection: Connection) -> None:
            names = store.stages_of(connection, tables, batch)
            store.drop_stages(connection, tables.system, names)

        self._leniently(act)

    def _leniently(self, act: Callable[[Connection], None]) -> None:
        try:
            self._context.run(act, atomic=True)
        except QueueError as error:
            _log.warning("Stages are left to the reaper: %s", error)

    # -- who publishes

    def publish(
        self,
        batch: BatchName,
        stages: Sequence[Stage],
        *,
        loose: Loose | None = None,
        keep: float | None = None,
    ) -> PublishedBatch:
        """Publish all messages of a batch in one transaction, unless that was done before.

        Safe to repeat. The stages are dropped afterwards.

        Args:
            batch: which.
            stages: where its messages are.
            loose: more of them, in hand.
            keep: know the batch for so many seconds; None: until later ones of the writer came.

        Raises:
            DuplicateKey: a key is taken and ``on_conflict`` is ``"raise"``; nothing was published.
            StageLost: not all that was staged is there; nothing was published.
            PayloadInvalid: the database refused a value; nothing was published.
        """
        own: list[Stage] = []
        if loose is not None and "message_key" in loose.columns:
            # Keys are looked after by sets, which needs them in a table.
            own = [self.stage(batch, loose.columns, ([each] for each in loose))]
            loose = None
        try:
            moved = self._publish(batch, [*stages, *own], loose, keep)
        except _Repeated:
            self.discard([*stages, *own])
            return PublishedBatch(repeated=True)
        except BaseException:
            self.discard(own)
            raise
        self.discard([*stages, *own])
        self._context.announce()
        return PublishedBatch(moved.created, moved.replaced, moved.left_out)

    def _publish(
        self,
        batch: BatchName,
        stages: Sequence[Stage],
        loose: Loose | None,
        keep: float | None,
    ) -> Moved:
        kept = None if keep is None else int(keep * _SECOND)
        staged = [(self._define(stage.name, stage.columns), stage.rows) for stage in stages]

        def act(connection: Connection) -> Moved:
            return self._transaction(connection, batch, staged, loose, kept)

        for _ in range(_KEY_RACES):
            try:
                return self._context.run(act, atomic=True, durable=True)
            except KeysTaken as error:
                self._refuse_taken([tables for tables, _ in staged], error)
            except (DatabaseRefused, PayloadInvalid):
                self.explain(loose or ())
                raise
            # Somebody else published one of the keys in this moment.
            time.sleep(random.uniform(0.001, 0.02))  # noqa: S311 - spreads writers, guards nothing
        msg = (
            f"Queue {self._context.name!r}: keys of a batch were taken at each of {_KEY_RACES} "
            "tries, and free when looked at; nothing was published. Publish the batch again."
        )
        raise QueueError(msg)

    def _transaction(
        self,
        connection: Connection,
        batch: BatchName,
        stages: Sequence[tuple[StageTables, int]],
        loose: Loose | None,
        keep: int | None,
    ) -> Moved:
        tables, sql = self._tables, self._context.sql
        if not store.note_commit(connection, tables, batch, keep=keep):
            raise _Repeated
        now, began = server_now(connection, sql), time.monotonic()
        moved = Moved() if loose is None else self._write_loose(connection, loose, now)
        for stage, rows in stages:
            moved += self._move(connection, stage, rows, now)
        count = moved.created + moved.replaced
        store.complete_commit(connection, tables, batch, count, earlier=_DAY_US)
        if (time.monotonic() - began) * _SECOND > SLACK_US / 2:
            # These messages begin below the marks of consumers that went on meanwhile.
            registry.count_edit(connection, tables)
        return moved

    def _write_loose(self, connection: Connection, loose: Loose, now: int) -> Moved:
        times = ("published_at", "scheduled_at", "available_at")
        names = [*(name for name in loose.columns if not name.startswith("_")), *times]
        batches = (published(batch, now) for batch in loose)
        write = self._context.dialect.columns.write
        return Moved(created=write(connection, self._tables.live, names, batches))

    def _move(self, connection: Connection, tables: StageTables, rows: int, now: int) -> Moved:
        dedup = tables.keyed and self._context.known_settings.dedup_window is not None
        after = store.newest_id(connection, tables) if dedup else 0
        moved = store.move_stage(
            connection, tables, rows=rows, now=now, on_conflict=self._on_conflict
        )
        if not dedup:
            return moved
        if self._on_conflict == "raise":
            found = store.finished_key(connection, tables, after=after, now=now)
            if found is not None:
                raise DuplicateKey(self._context.name, *found, finished=True)
            return moved
        back = store.take_back(connection, tables, after=after, now=now)
        return moved + Moved(created=-back, left_out=back)

    def _refuse_taken(self, tables: Sequence[StageTables], error: KeysTaken) -> None:
        if self._on_conflict != "raise":
            return
        found = self._context.run(lambda c: store.taken_key(c, tables))
        if found is not None:
            raise DuplicateKey(self._context.name, *found) from error
