"""Acts about kinds: tell which ones a consumer knows, and end what nobody knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queue_over_sql.dialects.requests import ANY_EDITS
from queue_over_sql.dialects.rows import read_rows
from queue_over_sql.dialects.statements import kinds
from queue_over_sql.store.claiming import TakenFate, end_locked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.message import MessageRow


def declare_kinds(
    connection: Connection, sql: StatementCache, consumer_id: str, names: Collection[str]
) -> None:
    """Note which kinds of a queue a consumer knows, besides those that are noted already.

    No names at all: it takes whatever there is.
    """
    noted = {row[0] for row in connection.execute(kinds.declared(sql.subject, consumer_id))}
    if missing := sorted(set(names or (kinds.ANY_KIND,)) - noted):
        connection.execute(kinds.declare(sql.subject, consumer_id, missing))


def bury_unknown(
    connection: Connection,
    sql: StatementCache,
    *,
    level: int,
    due_for: int,
    limit: int,
    fate: Callable[[MessageRow], TakenFate],
) -> int:
    """End messages of one level that nobody can read and that are due for too long.

    Args:
        connection: where.
        sql: the queue's statements.
        level: their priority.
        due_for: for how long, in microseconds.
        limit: at most so many.
        fate: what becomes of each.

    Returns:
        How many.
    """
    sql.subject.dialect.lock_for_writing(connection, sql)
    wanted = {"p_priority": level, "p_due_for": due_for, "p_count": limit, "p_edits": ANY_EDITS}
    found: Sequence[Any] = sql.get(kinds.unknown).run(connection, wanted).all()
    rows = read_rows(connection, sql, found)
    end_locked(connection, sql, [(row, fate(row)) for row in rows])
    return len(rows)
