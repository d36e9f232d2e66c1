"""Statements about requests and their replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Integer, Select, literal_column, select

from queue_over_sql.payloads import codec as payloads
from queue_over_sql.queues.purge import remove_ids
from queue_over_sql.selection.operations import delete_message
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.operations import change_by_ids
from queue_over_sql.statements.parameters import number, words
from queue_over_sql.statements.requests import read_rows
from queue_over_sql.values.headers import CORRELATION_ID

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from sqlalchemy import Connection

    from queue_over_sql.message import MessageRow
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache


# Requesters take a reply within moments of its arrival, except during an outage.
_OLD_US = 3_600_000_000


def reply_by_key(tables: QueueTables) -> Select[Any]:
    """Read the reply to one request, by the unique index on keys; it waits for no lock."""
    live = tables.live
    return select(*tables.message_columns(live)).where(live.c.message_key == words("p_key"))


def oldest_replies(tables: QueueTables) -> Select[Any]:
    """The oldest replies: id, key, headers, and whether they are older than an hour."""
    live = tables.live
    old = live.c.published_at < tables.expressions.now() - literal_column(str(_OLD_US), Integer())
    return (
        select(live.c.id, live.c.message_key, tables.expressions.read_payload(live.c.headers), old)
        .order_by(live.c.id)
        .limit(number("p_count"))
    )


def unbegun(tables: QueueTables) -> Select[Any]:
    """Lock a request that no consumer has claimed, and read its headers.

    If another transaction has locked it, a consumer is about to claim it. Then it is skipped if the
    engine can, because the requester may not wait longer than its timeout.
    """
    live = tables.live
    return (
        select(tables.expressions.read_payload(live.c.headers).label("headers"))
        .where(
            live.c.id == number("p_id_0"),
            live.c.consumer_id.is_(None),
            live.c.attempt_count == literal_column("0"),
            *tables.live_only(),
        )
        .with_for_update(skip_locked=tables.features.skip_locked)
    )


def keep_alive(tables: QueueTables) -> Select[Any]:
    """Check that the queue exists, and keep a temporary one from being dropped meanwhile.

    Only a temporary one, because on some engines the lock would also block pausing the queue.
    """
    columns = tables.system.queues.c
    statement = select(literal_column("1", Integer())).where(
        columns.table_prefix == tables.prefix, columns.name == tables.queue
    )
    return statement.with_for_update(read=True, key_share=True) if tables.temporary else statement


# Further late replies are removed the next time.
_UNWANTED_AT_ONCE = 500


def find_reply(
    connection: Connection, sql: StatementCache, correlation_id: str
) -> MessageRow | None:
    """The reply to one request; None if there is none yet. Locks and changes nothing."""
    rows = read_rows(
        connection, sql, sql.get(reply_by_key).run(connection, {"p_key": correlation_id})
    )
    return rows[0] if rows else None


def remove_unwanted(
    connection: Connection, sql: StatementCache, wanted: Container[str] | None
) -> int:
    """Remove the oldest replies that nobody waits for; returns how many.

    ``wanted`` is checked after they were read, because a requester adds itself before its reply can
    arrive. None: other processes may wait, too, so only replies older than an hour are removed.
    """
    found: Iterable[Any] = sql.get(oldest_replies).run(connection, {"p_count": _UNWANTED_AT_ONCE})
    if wanted is None:
        unwanted = [row[0] for row in found if row[3] and _is_reply(row[1], row[2])]
    else:
        unwanted = [row[0] for row in found if row[1] not in wanted]
    change_by_ids(connection, sql, remove_ids, unwanted)
    return len(unwanted)


def _is_reply(key: str | None, headers: Any) -> bool:
    # The queue may wrongly be used as a reply queue, so do not remove other messages.
    return key is not None and _correlation_id(headers) == key


def _correlation_id(headers: Any) -> Any:
    try:
        return payloads.decode_headers(headers).get(CORRELATION_ID)
    except payloads.UnreadableHeaders:
        return None


@operation(atomic=True)
def withdraw(
    connection: Connection, sql: StatementCache, message_id: int, correlation_id: str
) -> bool:
    """Remove a request, unless a consumer has claimed it or it was replaced."""
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    row: Any = sql.get(unbegun).run(connection, {"p_id_0": message_id}).first()
    if row is None or _correlation_id(row[0]) != correlation_id:
        return False
    return delete_message(connection, sql, message_id)


def is_there(
    connection: Connection, sql: StatementCache, message_id: int, correlation_id: str
) -> bool:
    """Whether a request is in the queue; False if it ended, or was removed or replaced."""
    tables: QueueTables = sql.subject
    headers = tables.expressions.read_payload(tables.live.c.headers)
    found = select(headers).where(tables.live.c.id == message_id, *tables.live_only())
    row = connection.execute(found).first()
    return row is not None and _correlation_id(row[0]) == correlation_id


def keep(connection: Connection, sql: StatementCache) -> bool:
    """Whether the queue exists; a temporary one then stays until the transaction ends."""
    return sql.get(keep_alive).run(connection).first() is not None
