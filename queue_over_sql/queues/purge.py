"""Remove messages, even those that a consumer holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import ClauseElement, Delete, Update

from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.parameters import id_parameters, number

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache


def delete_by_id(tables: QueueTables) -> Delete | Update:
    """Remove one message, even if a consumer holds it."""
    return tables.removal().where(tables.live.c.id == number("p_id_0"))


def delete_unclaimed(tables: QueueTables, with_claimed: bool) -> Delete | Update:
    """Remove all messages, or only those that no consumer holds."""
    statement = tables.removal()
    return statement if with_claimed else statement.where(tables.live.c.consumer_id.is_(None))


@operation(durable=True, counts=True)
def purge(connection: Connection, sql: StatementCache, *, with_claimed: bool) -> int:
    """Remove all messages, or only those that no consumer holds; returns how many."""
    with sql.subject.dialect.sessions.scanning(connection):
        return sql.get(delete_unclaimed, with_claimed).run(connection).rowcount


def remove_ids(tables: QueueTables, size: int) -> ClauseElement:
    """Remove rows by id, even if a consumer holds them."""
    return tables.expressions.delete_by_ids(tables.live, id_parameters(size))
