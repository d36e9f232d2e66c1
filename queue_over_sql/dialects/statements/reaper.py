"""Statements that find the claims of the dead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Select, and_, exists, func, select

from queue_over_sql.dialects.statements.parameters import among_ids, claimed, number

if TYPE_CHECKING:
    from queue_over_sql.schema import QueueTables


def expired_leases(tables: QueueTables, size: int) -> Select[Any]:
    """Claims whose lease has passed."""
    condition = and_(claimed(tables), tables.live.c.lease_expires_at <= tables.dialect.now())
    return _claims(tables, condition, size)


def orphaned_claims(tables: QueueTables, size: int) -> Select[Any]:
    """Claims of consumers whose row is expired or gone."""
    live, consumers = tables.live, tables.system.consumers
    alive = exists().where(
        consumers.c.consumer_id == live.c.consumer_id,
        consumers.c.expires_at > tables.dialect.now(),
    )
    return _claims(tables, and_(claimed(tables), ~alive), size)


def _claims(tables: QueueTables, condition: ColumnElement[bool], size: int) -> Select[Any]:
    """Claims to take back: id, stamp, attempts and how many there may be, place in the queue.

    Of size 0 it looks for them; of another size it locks those of the given ids that still match.
    """
    live, dialect = tables.live, tables.dialect
    statement = select(
        live.c.id,
        live.c.consumer_id,
        live.c.consumer_round,
        live.c.attempt_count,
        func.coalesce(live.c.max_attempts, number("p_max_attempts")),
        live.c.available_at,
    ).where(condition)
    if size:
        return statement.where(among_ids(live, size)).with_for_update()
    statement = statement.limit(number("p_count"))
    return statement.with_for_update(skip_locked=True) if dialect.skip_locked else statement
