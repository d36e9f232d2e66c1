"""Statements of existing tables: rows begin and end as messages where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Insert, Select, Update, bindparam, func, select, update

from queue_over_sql.dialects.statements.archive import ending_reason
from queue_over_sql.dialects.statements.parameters import (
    CLAIM_CLEARED,
    among_ids,
    number,
    words,
)
from queue_over_sql.schema.existing import NOT_ATTEMPTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement

    from queue_over_sql.schema.existing import ExistingTable
    from queue_over_sql.schema.queue_tables import QueueTables

    Conditions = Sequence[ColumnElement[bool]]


def finish_ids(tables: QueueTables, size: int) -> Update:
    """End locked messages in place by id, for ``take``: that was an attempt."""
    live = tables.live
    counted = {"attempt_count": live.c.attempt_count + 1}
    return update(live).where(among_ids(live, size)).values(finished(tables) | counted)


def finished(tables: QueueTables) -> dict[str, Any]:
    """What a row of the user's shows when it has ended as a message."""
    now = tables.dialect.now()
    return CLAIM_CLEARED | {
        "status": words("p_status", 20),
        "outcome": words("p_outcome", 20),
        "available_at": None,
        "finished_at": now,
        "last_attempt_at": now,
        "last_error": ending_reason(tables.live.c.last_error),
    }


def publish(tables: QueueTables, names: tuple[str, ...]) -> Insert:
    """Insert a row that is a message; ``names`` are the keys of what is given of its columns."""
    live, dialect = tables.live, tables.dialect
    given = {
        name: bindparam(tables.parameters[name], None, type_=live.c[name].type)
        for name in (*names, "headers", "priority", "max_attempts", "lease_us")
    }
    statement = dialect.insert(live).values(given | _begun(tables))
    return statement.returning(live.c.id) if dialect.insert_returning else statement.inline()


def enqueue(tables: ExistingTable, conditions: Conditions) -> Update:
    """Make messages of the rows that match and were never enqueued."""
    return (
        update(tables.live)
        .where(tables.never_enqueued(), *conditions)
        .values(_begun(tables) | {"priority": number("p_priority"), "attempt_count": 0})
    )


def begin_anew(tables: QueueTables, size: int) -> Update:
    """Make finished rows messages again, by id, with all attempts before them."""
    live = tables.live
    fresh = dict.fromkeys(("finished_at", "outcome", "last_attempt_at", "last_error"))
    headers = bindparam("p_headers", None, type_=live.c.headers.type)
    given = {"priority": number("p_priority"), "headers": headers, "attempt_count": 0}
    return (
        update(live)
        .where(among_ids(live, size), *tables.finished_only())
        .values(_begun(tables) | fresh | given)
    )


def count_new(tables: ExistingTable, conditions: Conditions) -> Select[Any]:
    """Count the rows that match and were never enqueued."""
    counted = select(func.count()).select_from(tables.live)
    return counted.where(tables.never_enqueued(), *conditions)


def last_of_next(tables: ExistingTable, conditions: Conditions) -> Select[Any]:
    """The last of the next rows that match and were never enqueued, along the primary key."""
    key = tables.live.c.id
    batch = (
        select(key.label("id"))
        .where(tables.never_enqueued(), key > number("p_after"), *conditions)
        .order_by(key)
        .limit(number("p_count"))
        .subquery()
    )
    return select(func.max(batch.c.id))


def _begun(tables: QueueTables) -> dict[str, Any]:
    now = tables.dialect.now()
    due = func.coalesce(number("p_at"), now + number("p_delay"))
    return {
        "status": NOT_ATTEMPTED,
        "published_at": now,
        "scheduled_at": due,
        "available_at": due,
    }
