"""Operations on a queue: list, count, pause, purge, delete."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from queue_over_sql import store
from queue_over_sql.durations import stored_number
from queue_over_sql.errors import QueueNotFound
from queue_over_sql.store import registry

if TYPE_CHECKING:
    from queue_over_sql.queues.context import QueueContext


@dataclasses.dataclass(frozen=True, slots=True)
class QueueStats:
    """The counts of a queue at one moment.

    Attributes:
        ready: messages that can be claimed now.
        delayed: messages that are due later.
        claimed: messages that a consumer holds.
        held: messages that an operator put on hold.
        archived: messages in the archive.
        done, failed, rejected, expired: archived messages by outcome.
        discarded: dead letters that were not stored, because the queue has ``archive="none"``.
        oldest_ready_age: how long the oldest ready message has been due; None if there is none.
        paused: whether the queue is paused.
        wal_bytes: size of SQLite's write-ahead log; None on other engines.
    """

    ready: int
    delayed: int
    claimed: int
    held: int
    archived: int
    done: int
    failed: int
    rejected: int
    expired: int
    discarded: int
    oldest_ready_age: timedelta | None
    paused: bool
    wal_bytes: int | None = None

    @property
    def live(self) -> int:
        """The number of unfinished messages."""
        return self.ready + self.delayed + self.claimed + self.held


def count_messages(context: QueueContext) -> QueueStats:
    """Count the messages of a queue by status and outcome, all at one moment."""
    (ready, delayed, claimed, held, age), archived = context.run(
        lambda connection: store.counts(connection, context.sql)
    )
    record = _record(context)
    return QueueStats(
        ready=ready,
        delayed=delayed,
        claimed=claimed,
        held=held,
        archived=sum(archived.values()),
        done=archived.get("done", 0),
        failed=archived.get("failed", 0),
        rejected=archived.get("rejected", 0),
        expired=archived.get("expired", 0),
        discarded=stored_number("discarded_count", record.discarded),
        oldest_ready_age=timedelta(microseconds=age) if ready else None,
        paused=record.paused,
        wal_bytes=context.run(context.dialect.wal_bytes),
    )


def read_traceback(context: QueueContext, message_id: int) -> str | None:
    """The traceback of a message's last failure; see ``Queue.last_traceback``."""
    for table in dict.fromkeys((context.tables.live, context.tables.archive)):
        if "last_traceback" in table.c:
            wanted = select(table.c.last_traceback).where(table.c.id == message_id)
            found = context.run(lambda c: c.execute(wanted).first())  # noqa: B023 - runs at once
            if found is not None:
                text: str | None = found[0]
                return text
    return None


def change_record(context: QueueContext, **values: Any) -> None:
    """Change columns of a queue's record.

    Raises:
        QueueNotFound: the queue was dropped.
    """
    tables = context.tables
    changed = context.run(
        lambda c: registry.change_queue(c, tables.system, tables.prefix, context.name, **values)
    )
    if not changed:
        raise QueueNotFound(context.name)


def _record(context: QueueContext) -> registry.QueueRecord:
    tables = context.tables
    record = context.run(
        lambda c: registry.queue_record(c, tables.system, tables.prefix, tables.queue)
    )
    if record is None:
        raise QueueNotFound(context.name)
    return record
