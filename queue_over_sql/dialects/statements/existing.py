"""Statements of adopted tables, whose rows are enqueued and finished in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Update, bindparam, func, update

from queue_over_sql.dialects.statements.archive import ending_reason
from queue_over_sql.dialects.statements.parameters import (
    CLAIM_CLEARED,
    among_ids,
    number,
    words,
)
from queue_over_sql.schema.existing import NOT_ATTEMPTED

if TYPE_CHECKING:
    from queue_over_sql.schema.queue_tables import QueueTables


def finish_ids(tables: QueueTables, size: int, attempted: bool) -> Update:
    """Finish locked messages in place by id; a ``take`` counts as an attempt."""
    live = tables.live
    counted = {"attempt_count": live.c.attempt_count + 1} if attempted else {}
    return update(live).where(among_ids(live, size)).values(finished(tables) | counted)


def finished(tables: QueueTables) -> dict[str, Any]:
    """The values of a user's row that is finished as a message."""
    now = tables.dialect.now()
    return CLAIM_CLEARED | {
        "status": words("p_status", 20),
        "outcome": words("p_outcome", 20),
        "available_at": None,
        "finished_at": now,
        "last_attempt_at": now,
        "last_error": ending_reason(tables.live.c.last_error),
    }


def begin_anew(tables: QueueTables, size: int) -> Update:
    """Requeue finished rows, by id; their attempts start again."""
    live = tables.live
    fresh = dict.fromkeys(("finished_at", "outcome", "last_attempt_at", "last_error"))
    headers = bindparam("p_headers", None, type_=live.c.headers.type)
    given = {"priority": number("p_priority"), "headers": headers, "attempt_count": 0}
    return (
        update(live)
        .where(among_ids(live, size), *tables.finished_only())
        .values(begun(tables) | fresh | given)
    )


def begun(tables: QueueTables) -> dict[str, Any]:
    """The values of a user's row that becomes a message."""
    now = tables.dialect.now()
    due = func.coalesce(number("p_at"), now + number("p_delay"))
    return {
        "status": NOT_ATTEMPTED,
        "published_at": now,
        "scheduled_at": due,
        "available_at": due,
    }
