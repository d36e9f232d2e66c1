"""Statements of an operator, and the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    Select,
    Update,
    and_,
    case,
    func,
    literal_column,
    select,
)

from queue_over_sql.dialects.statements.extent import finished_only, live_only, removal
from queue_over_sql.dialects.statements.parameters import number

if TYPE_CHECKING:
    from queue_over_sql.schema import QueueTables


def clock(tables: QueueTables) -> Select[Any]:
    """Read the database's clock."""
    return select(tables.dialect.now().label("now"))


def edit_count(tables: QueueTables) -> Select[Any]:
    """How often messages were put to other places by hand."""
    columns = tables.system.queues.c
    return select(columns.edit_count).where(
        columns.table_prefix == tables.prefix, columns.name == tables.queue
    )


def delete_message(tables: QueueTables) -> Delete | Update:
    """Remove one message, whoever holds it."""
    return removal(tables).where(tables.live.c.id == number("p_id_0"))


def purge(tables: QueueTables, with_claimed: bool) -> Delete | Update:
    """Remove all messages, or all that nobody holds."""
    statement = removal(tables)
    return statement if with_claimed else statement.where(tables.live.c.consumer_id.is_(None))


def live_counts(tables: QueueTables) -> Select[Any]:
    """Count live messages by status; the age of the oldest ready one comes last."""
    live, now = tables.live, tables.dialect.now()
    unclaimed = live.c.consumer_id.is_(None)
    ready = and_(unclaimed, live.c.available_at <= now)
    return select(
        _count_if(ready),
        _count_if(and_(unclaimed, live.c.available_at > now)),
        _count_if(live.c.consumer_id.is_not(None)),
        _count_if(and_(unclaimed, live.c.available_at.is_(None))),
        now - _min_if(live.c.available_at, ready),
    ).where(*live_only(tables))


def archive_counts(tables: QueueTables) -> Select[Any]:
    """Count archived messages by outcome."""
    outcome = tables.archive.c.outcome
    return select(outcome, func.count()).where(*finished_only(tables)).group_by(outcome)


def highest_priority(tables: QueueTables) -> Select[Any]:
    """The largest level number in use."""
    return select(func.max(tables.live.c.priority)).where(*live_only(tables))


def _count_if(condition: ColumnElement[bool]) -> ColumnElement[Any]:
    return func.count(case((condition, literal_column("1"))))


def _min_if(value: ColumnElement[Any], condition: ColumnElement[bool]) -> ColumnElement[Any]:
    return func.min(case((condition, value)))
