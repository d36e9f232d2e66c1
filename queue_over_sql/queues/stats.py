"""The counts of a queue at one moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    and_,
    case,
    exists,
    func,
    literal,
    literal_column,
    select,
    true,
)

from queue_over_sql.errors import QueueNotFound
from queue_over_sql.queues import registry
from queue_over_sql.queues.context import once_more
from queue_over_sql.values.durations import stored_number
from queue_over_sql.values.rates import Rate

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache

    Progress = Callable[[int], None]


def select_counts(tables: QueueTables) -> Select[Any]:
    """Count all messages in one statement, so that all counts are of one moment.

    It returns one row per outcome in the archive, or one row without an outcome. Each row has the
    live messages by status, the age of the oldest ready one, the outcome and its count.
    """
    live, archived = _live_counts(tables).subquery("l"), _archive_counts(tables).subquery("a")
    return select(*live.c, *archived.c).select_from(live.outerjoin(archived, true()))


def _live_counts(tables: QueueTables) -> Select[Any]:
    live, now = tables.live, tables.expressions.now()
    unclaimed = live.c.consumer_id.is_(None)
    ready, due = and_(unclaimed, tables.is_due()), tables.due_at()
    old = and_(ready, *subtractable({"available_at": due}))
    return select(
        _count_if(ready).label("ready"),
        _count_if(and_(unclaimed, tables.is_delayed())).label("delayed"),
        _count_if(live.c.consumer_id.is_not(None)).label("claimed"),
        _count_if(and_(unclaimed, tables.is_held())).label("held"),
        (now - _min_if(due, old)).label("age"),
    ).where(*tables.live_only())


def _archive_counts(tables: QueueTables) -> Select[Any]:
    outcome = tables.archive.c.outcome
    return (
        select(outcome.label("outcome"), func.count().label("ended"))
        .where(*tables.finished_only())
        .group_by(outcome)
    )


def subtractable(columns: Any, name: str = "available_at") -> list[ColumnElement[bool]]:
    """The instant can be subtracted from the present without an overflow."""
    return [columns[name] >= literal_column(str(-(2**62)))]


def group_counts(tables: QueueTables, rate: Rate | None) -> Select[Any]:
    """Count the groups that are blocked, paused and throttled, in one row.

    Blocked: by a dead letter. Throttled: a message of it is due, and its rate is used up. All are 0
    for a queue without groups. ``rate`` is that of groups without one of their own.
    """
    names = ("blocked_groups", "paused_groups", "throttled_groups")
    if tables.groups is None:
        none: list[Any] = [literal_column("0").label(name) for name in names]
        return select(*none)
    rows, live = tables.groups, tables.live
    interval, burst = rate or (0, 1)
    every = func.coalesce(rows.c.own_rate_us, literal(interval, BigInteger()))
    # As ``Rate.tokens``.
    most = func.coalesce(rows.c.own_burst, literal(burst, BigInteger()))
    used_up = and_(
        every > literal_column("0"),
        rows.c.tat_us > tables.expressions.now() + (most - literal_column("1")) * every,
    )
    due: Select[Any] = select(literal_column("1")).where(
        live.c.group_key == rows.c.group_key, live.c.consumer_id.is_(None), tables.is_due()
    )
    going = and_(rows.c.blocked_by.is_(None), rows.c.paused_at.is_(None))
    throttled = and_(going, used_up, exists(due.select_from(live).correlate(rows)))
    conditions = (rows.c.blocked_by.is_not(None), rows.c.paused_at.is_not(None), throttled)
    counted: list[Any] = [
        _count_if(which).label(name) for name, which in zip(names, conditions, strict=True)
    ]
    return select(*counted).select_from(rows)


def greatest_priority(tables: QueueTables) -> Select[Any]:
    """The highest priority number in use."""
    return select(func.max(tables.live.c.priority)).where(*tables.live_only())


def grouped_unclaimed(tables: QueueTables) -> Select[Any]:
    """Look for an unclaimed message with a group, by the index on these."""
    live = tables.live
    wanted = (live.c.consumer_id.is_(None), live.c.group_key.is_not(None))
    return select(literal_column("1")).select_from(live).where(*wanted).limit(1)


def grouped_claimed(tables: QueueTables) -> Select[Any]:
    """Look for a claimed message with a group, by the index on these."""
    live = tables.live
    wanted = (tables.expressions.is_claimed(live), live.c.group_key.is_not(None))
    return select(literal_column("1")).select_from(live).where(*wanted).limit(1)


def has_groups(connection: Connection, sql: StatementCache) -> bool:
    """Whether a live message has a group."""
    looks = (sql.get(look).run(connection) for look in (grouped_unclaimed, grouped_claimed))
    return any(found.scalar() is not None for found in looks)


def _count_if(condition: ColumnElement[bool]) -> ColumnElement[Any]:
    return func.count(case((condition, literal_column("1"))))


def _min_if(value: ColumnElement[Any], condition: ColumnElement[bool]) -> ColumnElement[Any]:
    return func.min(case((condition, value)))


def counts(
    connection: Connection, sql: StatementCache
) -> tuple[tuple[int, int, int, int, int], dict[str, int]]:
    """Count all messages at one moment.

    Returns:
        Ready, delayed, claimed, held, and the age of the oldest ready message in microseconds;
        archived messages by outcome.
    """
    with sql.subject.dialect.sessions.scanning(connection):
        rows: Sequence[Any] = sql.get(select_counts).run(connection).all()
    ready, delayed, claimed, held, age = (int(value or 0) for value in rows[0][:5])
    ended = {row[5]: int(row[6]) for row in rows if row[5] is not None}
    return (ready, delayed, claimed, held, max(age, 0)), ended


def counted_groups(
    connection: Connection, sql: StatementCache, rate: Rate | None
) -> tuple[int, int, int]:
    """How many groups are blocked, paused and throttled; see ``group_counts``."""
    with sql.subject.dialect.sessions.scanning(connection):
        row: Any = sql.get(group_counts, rate).run(connection).one()
    blocked, paused, throttled = (int(count) for count in row)
    return blocked, paused, throttled


def highest_priority(connection: Connection, sql: StatementCache) -> int:
    """The highest priority number in use; 0 in an empty queue."""
    return sql.get(greatest_priority).run(connection).scalar() or 0


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
        blocked_groups: groups of messages that a dead letter blocks.
        paused_groups: groups of messages that an operator paused.
        throttled_groups: groups that have messages due, and whose rate is used up.
        queue_limit: how many messages may be claimed at once; None: any number.
        queue_rate: how fast messages may start; None: as fast as they can.
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
    blocked_groups: int = 0
    queue_limit: int | None = None
    paused_groups: int = 0
    throttled_groups: int = 0
    queue_rate: str | None = None

    @property
    def live(self) -> int:
        """The number of unfinished messages."""
        return self.ready + self.delayed + self.claimed + self.held


@once_more
def count_messages(context: QueueContext) -> QueueStats:
    """Count the messages of a queue by status and outcome, all at one moment."""
    (ready, delayed, claimed, held, age), archived = context.run(
        lambda connection: counts(connection, context.sql)
    )
    record, groups = _record(context), (0, 0, 0)
    if context.tables.grouped:
        sql, text = context.sql, context.settings.group_rate
        rate = None if text is None else Rate.of(text)
        groups = context.run(lambda c: counted_groups(c, sql, rate))
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
        wal_bytes=context.run(context.dialect.files.wal_bytes),
        blocked_groups=groups[0],
        queue_limit=context.settings.queue_limit,
        paused_groups=groups[1],
        throttled_groups=groups[2],
        queue_rate=context.settings.queue_rate,
    )


def _record(context: QueueContext) -> registry.QueueRecord:
    tables = context.tables
    record = context.run(
        lambda c: registry.queue_record(c, tables.system, tables.prefix, tables.queue)
    )
    if record is None:
        raise QueueNotFound(context.name)
    return record
