"""Statements about kinds: which ones living consumers know, and what waits for none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Delete, Insert, Select, delete, exists, insert, or_, select

from queue_over_sql.dialects.rows import message_columns
from queue_over_sql.dialects.statements.claim import may_claim
from queue_over_sql.dialects.statements.parameters import number

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import ColumnElement

    from queue_over_sql.schema import QueueTables
    from queue_over_sql.system import SystemTables

ANY_KIND = ""
"""What a consumer without kinds of its own tells: it reads every message as plain JSON."""


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


def withdraw(system: SystemTables, consumer_id: str) -> Delete:
    """Forget what a consumer told that it can read."""
    return delete(system.kinds).where(system.kinds.c.consumer_id == consumer_id)


def unknown(tables: QueueTables) -> Select[Any]:
    """Lock the next messages of one level that have been due for long and that nobody can read.

    Not while the queue is paused. As in ``claim.pick_rows`` the order may be that of an index.
    """
    live, dialect = tables.live, tables.dialect
    statement = (
        select(*message_columns(tables, live))
        .where(
            live.c.consumer_id.is_(None),
            live.c.priority == number("p_priority"),
            live.c.available_at <= dialect.now() - number("p_due_for"),
            live.c.kind.is_not(None),
            live.c.kind.not_in(tables.known_kinds),
            ~_readable_by_living(tables),
            may_claim(tables),
        )
        .limit(number("p_count"))
        .with_for_update(of=live, skip_locked=dialect.skip_locked)
    )
    hint = dialect.claim_index_hint(tables.base_name)
    if hint is None:
        return statement.order_by(live.c.available_at, live.c.id)
    return statement.with_hint(live, hint)


def _readable_by_living(tables: QueueTables) -> ColumnElement[bool]:
    """Some living consumer of the queue knows the kind, or takes whatever there is."""
    kinds, consumers = tables.system.kinds, tables.system.consumers
    return exists().where(
        kinds.c.consumer_id == consumers.c.consumer_id,
        consumers.c.expires_at > tables.dialect.now(),
        kinds.c.table_prefix == tables.prefix,
        kinds.c.queue == tables.queue,
        or_(kinds.c.kind == tables.live.c.kind, kinds.c.kind == ANY_KIND),
    )
