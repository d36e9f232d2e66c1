"""Statements about kinds: which ones living consumers know, and what waits for none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Delete, Insert, Select, delete, insert, select

from queue_over_sql.dialects.rows import message_columns
from queue_over_sql.dialects.statements.parameters import number

if TYPE_CHECKING:
    from collections.abc import Collection

    from queue_over_sql.schema import QueueTables, SystemTables


def declare(tables: QueueTables, consumer_id: str, names: Collection[str]) -> Insert:
    """Note which kinds of a queue a consumer knows."""
    known = {"consumer_id": consumer_id, "table_prefix": tables.prefix, "queue": tables.queue}
    return insert(tables.system.kinds).values([known | {"kind": name} for name in names])


def declared(tables: QueueTables, consumer_id: str) -> Select[Any]:
    """Which kinds of a queue a consumer has told that it knows."""
    kinds = tables.system.kinds
    return select(kinds.c.kind).where(
        kinds.c.consumer_id == consumer_id,
        kinds.c.table_prefix == tables.prefix,
        kinds.c.queue == tables.queue,
    )


def withdraw_gone(system: SystemTables) -> Delete:
    """Forget what consumers knew that are not registered any more."""
    registered = select(system.consumers.c.consumer_id)
    return delete(system.kinds).where(system.kinds.c.consumer_id.not_in(registered))


def known_by_living(tables: QueueTables) -> Select[Any]:
    """The kinds of a queue that some living consumer knows."""
    kinds, consumers = tables.system.kinds, tables.system.consumers
    return (
        select(kinds.c.kind)
        .distinct()
        .join(consumers, consumers.c.consumer_id == kinds.c.consumer_id)
        .where(
            kinds.c.table_prefix == tables.prefix,
            kinds.c.queue == tables.queue,
            consumers.c.expires_at > tables.dialect.now(),
        )
    )


def unknown(tables: QueueTables, known: Collection[str], level: int, due_for: int) -> Select[Any]:
    """Lock the next messages of one level that have been due for long and that nobody knows."""
    live, dialect = tables.live, tables.dialect
    return (
        select(*message_columns(tables, live))
        .where(
            live.c.consumer_id.is_(None),
            live.c.priority == level,
            live.c.available_at <= dialect.now() - due_for,
            live.c.kind.is_not(None),
            live.c.kind.not_in(sorted(known)),
        )
        .order_by(live.c.available_at, live.c.id)
        .limit(number("p_count"))
        .with_for_update(skip_locked=dialect.skip_locked)
    )
