"""Statements about requests and their replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Integer, Select, exists, literal_column, select

from queue_over_sql.dialects.rows import message_columns
from queue_over_sql.dialects.statements.extent import live_only
from queue_over_sql.dialects.statements.parameters import number, words

if TYPE_CHECKING:
    from queue_over_sql.dialects.base import QueueDialect
    from queue_over_sql.schema import QueueTables
    from queue_over_sql.system import SystemTables


def reply(tables: QueueTables) -> Select[Any]:
    """Read the reply to one request, by the unique index of the keys; waits for nobody."""
    live = tables.live
    return select(*message_columns(tables, live)).where(live.c.message_key == words("p_key"))


def oldest_replies(tables: QueueTables) -> Select[Any]:
    """The ids and keys of the replies that have been there for longest."""
    live = tables.live
    return select(live.c.id, live.c.message_key).order_by(live.c.id).limit(number("p_count"))


def unbegun(tables: QueueTables) -> Select[Any]:
    """Lock a request that nobody has begun with, and read its headers.

    One that somebody has locked is about to be begun with: it is passed over where that is
    possible, because who asked may not wait for longer than was said.
    """
    live, dialect = tables.live, tables.dialect
    return (
        select(dialect.read_payload(live.c.headers).label("headers"))
        .where(
            live.c.id == number("p_id_0"),
            live.c.consumer_id.is_(None),
            live.c.attempt_count == literal_column("0"),
            *live_only(tables),
        )
        .with_for_update(skip_locked=dialect.skip_locked)
    )


def kept(tables: QueueTables) -> Select[Any]:
    """Tell whether the queue is there, and keep a temporary one from being dropped meanwhile.

    Only a temporary one: the lock of some engines would keep others from pausing the queue, too.
    """
    columns = tables.system.queues.c
    statement = select(literal_column("1", Integer())).where(
        columns.table_prefix == tables.prefix, columns.name == tables.queue
    )
    return statement.with_for_update(read=True, key_share=True) if tables.temporary else statement


def free(system: SystemTables, dialect: QueueDialect, prefix: str, name: str) -> Select[Any]:
    """Lock the record of a queue, unless a transaction that replies to it is open."""
    columns = system.queues.c
    return (
        select(columns.name)
        .where(columns.table_prefix == prefix, columns.name == name)
        .with_for_update(skip_locked=dialect.skip_locked)
    )


def orphaned(system: SystemTables, dialect: QueueDialect, prefix: str) -> Select[Any]:
    """The names of temporary queues whose consumer is expired or gone, for ever."""
    queues, consumers = system.queues.c, system.consumers.c
    alive = exists().where(
        consumers.consumer_id == queues.owner_id, consumers.expires_at > dialect.now()
    )
    return (
        select(queues.name)
        .where(queues.table_prefix == prefix, queues.owner_id.is_not(None), ~alive)
        .order_by(queues.name)
    )
