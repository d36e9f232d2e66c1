"""Acts of an operator, and the database's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queue_over_sql.dialects.statements import administration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from queue_over_sql.dialects.compiled import StatementCache


def server_now(connection: Connection, sql: StatementCache) -> int:
    """The database's clock in microseconds since the epoch."""
    return int(sql.get(administration.clock).run(connection).scalar_one())


def delete_message(connection: Connection, sql: StatementCache, message_id: int) -> bool:
    """Remove one message, whoever holds it; False where there is none."""
    statement = sql.get(administration.delete_message)
    return statement.run(connection, {"p_id_0": message_id}).rowcount > 0


def purge(connection: Connection, sql: StatementCache, *, with_claimed: bool) -> int:
    """Remove all messages, or those that nobody holds; returns how many."""
    with sql.subject.dialect.scanning(connection):
        return sql.get(administration.purge, with_claimed).run(connection).rowcount


def counts(
    connection: Connection, sql: StatementCache
) -> tuple[tuple[int, int, int, int, int], dict[str, int]]:
    """Count all messages at one moment.

    Returns:
        Ready, delayed, claimed, held, and the age of the oldest ready message in microseconds;
        archived messages by outcome.
    """
    with sql.subject.dialect.scanning(connection):
        rows: Sequence[Any] = sql.get(administration.counts).run(connection).all()
    ready, delayed, claimed, held, age = (int(value or 0) for value in rows[0][:5])
    ended = {row[5]: int(row[6]) for row in rows if row[5] is not None}
    return (ready, delayed, claimed, held, max(age, 0)), ended


def highest_priority(connection: Connection, sql: StatementCache) -> int:
    """The largest level number in use; 0 in an empty queue."""
    return sql.get(administration.highest_priority).run(connection).scalar() or 0
