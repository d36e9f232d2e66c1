"""After the database's clock was set back: what was due stays due.

Messages that were ready have due times that are ahead of such a clock. They would wait until it
gets there, and messages that are published meanwhile would overtake them.

Only messages whose last stamp is ahead of the clock are made due again. Nobody knows whether the
clock was wrong before or is wrong now, so what was delayed earlier waits for its time.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, Update, and_, false, func, or_, select

from queue_over_sql.queues import registry
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.operations import change_by_ids
from queue_over_sql.statements.parameters import among_ids, number, update_by_id
from queue_over_sql.values.durations import stored_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache


@dataclasses.dataclass(frozen=True, slots=True)
class ClockStep:
    """A step back of the database's clock; all times are microseconds by that clock.

    Attributes:
        now: what the clock shows now.
        until: what it would show now without the step.
    """

    now: int
    until: int


def newest_stamp(tables: QueueTables) -> Select[Any]:
    """Read when the newest message was published; not for adopted tables."""
    live = tables.live
    return select(live.c.published_at).order_by(live.c.id.desc()).limit(1)


def were_due(tables: QueueTables, claimed: bool) -> Select[Any]:
    """The ids of messages that were due before a step, and are not due after it."""
    live = tables.live
    place = (
        [tables.expressions.is_claimed(live)]
        if claimed
        else [live.c.consumer_id.is_(None), live.c.priority == number("p_priority")]
    )
    statement = (
        select(live.c.id)
        .where(*place, *_moved(tables), _stamped_ahead(tables))
        .limit(number("p_count"))
    )
    return statement.with_for_update(skip_locked=True) if tables.features.skip_locked else statement


def make_due(tables: QueueTables, size: int) -> Update:
    """Make messages due now; claimed ones stay claimed."""
    change = update_by_id(tables).where(among_ids(tables.live, size), *_moved(tables))
    return change.values(available_at=number("p_now"))


def _moved(tables: QueueTables) -> list[ColumnElement[bool]]:
    due = tables.live.c.available_at
    before: ColumnElement[bool] = due <= number("p_until")
    # What was put off for a token was due, however long that takes.
    return [due > number("p_now"), or_(before, _was_put_off(tables))]


def _was_put_off(tables: QueueTables) -> ColumnElement[bool]:
    return tables.live.c.parked_at.is_not(None) if tables.grouped else false()


def _stamped_ahead(tables: QueueTables) -> ColumnElement[bool]:
    live = tables.live
    last = func.coalesce(live.c.last_attempt_at, tables.time(live, "published_at"))
    return or_(last > number("p_now"), _was_put_off(tables), _was_woken(tables))


def _was_woken(tables: QueueTables) -> ColumnElement[bool]:
    """Others of its group ended, so that it became due at that time, and not at its own."""
    if not tables.grouped:
        return false()
    c = tables.live.c
    return and_(
        c.blocks.is_not(None), c.last_attempt_at.is_(None), tables.due_first() <= number("p_now")
    )


def latest_stamp(connection: Connection, sql: StatementCache) -> int | None:
    """When the newest live message was published; None if there is none."""
    found = sql.get(newest_stamp).run(connection).scalar()
    return None if found is None else stored_number("published_at", found)


@operation(atomic=True)
def keep_due(
    connection: Connection, sql: StatementCache, step: ClockStep, level: int | None, limit: int
) -> int:
    """Make messages due again that were due before a step; those that others lock are left out.

    Args:
        connection: with a transaction.
        sql: the statements of the queue.
        step: the step of the clock.
        level: the priority of unclaimed messages; None for claimed ones, which keep their place in
            case they come back.
        limit: the largest number of messages.
    """
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    times = {"p_now": step.now, "p_until": step.until}
    wanted = {**times, "p_priority": level or 0, "p_count": limit}
    found: Sequence[Any] = sql.get(were_due, level is None).run(connection, wanted).all()
    ids = [row[0] for row in found]
    changed = change_by_ids(connection, sql, make_due, ids, times) if ids else 0
    if changed:
        registry.count_edit(connection, sql.subject)
    return changed


def let_all_look(connection: Connection, sql: StatementCache) -> None:
    """Let consumers look below their watermarks, which may be ahead of the clock."""
    registry.count_edit(connection, sql.subject)
