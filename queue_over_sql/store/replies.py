"""Acts on requests, their replies, and the temporary queues of these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queue_over_sql import payload as payloads
from queue_over_sql.dialects.rows import read_rows
from queue_over_sql.dialects.statements import replies
from queue_over_sql.dialects.statements.claim import remove_ids
from queue_over_sql.dialects.statements.parameters import batches, bucket_of, id_values
from queue_over_sql.headers import CORRELATION_ID
from queue_over_sql.store.administration import delete_message

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from sqlalchemy import Connection

    from queue_over_sql.dialects.base import QueueDialect
    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.message import MessageRow
    from queue_over_sql.system import SystemTables

# More late replies than that wait for the next look.
_UNWANTED_AT_ONCE = 500


def find_reply(
    connection: Connection, sql: StatementCache, correlation_id: str
) -> MessageRow | None:
    """The reply to one request; None where there is none yet. Locks and changes nothing."""
    rows = read_rows(
        connection, sql, sql.get(replies.reply).run(connection, {"p_key": correlation_id})
    )
    return rows[0] if rows else None


def remove_unwanted(connection: Connection, sql: StatementCache, wanted: Container[str]) -> int:
    """Remove the oldest replies, but for those that somebody waits for; returns how many.

    Args:
        connection: where.
        sql: the statements of the queue of replies.
        wanted: keys of replies that are waited for, looked at after the replies were read: who
            waits said so before there could be a reply.
    """
    found: Iterable[Any] = sql.get(replies.oldest_replies).run(
        connection, {"p_count": _UNWANTED_AT_ONCE}
    )
    unwanted = [row[0] for row in found if row[1] not in wanted]
    for batch in batches(unwanted):
        sql.get(remove_ids, bucket_of(len(batch))).run(connection, id_values(batch))
    return len(unwanted)


def withdraw(
    connection: Connection, sql: StatementCache, message_id: int, correlation_id: str
) -> bool:
    """Remove a request, unless somebody has begun with it or put something in its place."""
    sql.subject.dialect.lock_for_writing(connection, sql)
    row: Any = sql.get(replies.unbegun).run(connection, {"p_id_0": message_id}).first()
    if row is None or payloads.decode_headers(row[0]).get(CORRELATION_ID) != correlation_id:
        return False
    return delete_message(connection, sql, message_id)


def keep(connection: Connection, sql: StatementCache) -> bool:
    """Whether the queue is there; a temporary one then stays until the transaction ends."""
    return sql.get(replies.kept).run(connection).first() is not None


def free(
    connection: Connection, system: SystemTables, dialect: QueueDialect, prefix: str, name: str
) -> bool:
    """Lock the record of a queue; False where it is gone, or where a reply to it is under way."""
    return connection.execute(replies.free(system, dialect, prefix, name)).first() is not None


def orphaned_queues(
    connection: Connection, system: SystemTables, dialect: QueueDialect, prefix: str
) -> list[str]:
    """The names of temporary queues whose consumer is expired or gone."""
    return [row[0] for row in connection.execute(replies.orphaned(system, dialect, prefix))]
