"""Statements that remember the keys of finished messages for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Delete, Insert, Select, delete, insert, select

from queue_over_sql.dialects.statements.parameters import among_ids, fence, number, words

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Table

    from queue_over_sql.schema import QueueTables


def key_values(keys: list[str], size: int) -> dict[str, str]:
    """Bind keys to the parameters of their bucket, padded with the last one."""
    filled = [*keys, *[keys[-1]] * (size - len(keys))]
    return {f"p_key_{index}": key for index, key in enumerate(filled)}


def held_keys(tables: QueueTables, size: int) -> Select[Any]:
    """Lock those of the ids that the claim still holds, and read their keys."""
    live = tables.live
    return select(live.c.id, live.c.message_key).where(fence(tables, size)).with_for_update()


def remember(tables: QueueTables, size: int) -> Insert:
    """Note the keys of locked messages that are about to end."""
    live, now = tables.live, tables.dialect.now()
    ending = select(live.c.message_key, live.c.id, now + number("p_dedup")).where(
        among_ids(live, size), live.c.message_key.is_not(None)
    )
    return insert(tables.dedup_keys).from_select(
        ["message_key", "message_id", "expires_at"], ending
    )


def forget_keys(tables: QueueTables, size: int) -> Delete:
    """Forget keys, because messages that have them end anew."""
    return delete(tables.dedup_keys).where(_among_keys(tables.dedup_keys, size))


def forget_expired(tables: QueueTables, size: int) -> Delete:
    """Forget keys whose time is over, unless they were taken anew since they were looked for."""
    memory = tables.dedup_keys
    return delete(memory).where(
        _among_keys(memory, size), memory.c.expires_at <= tables.dialect.now()
    )


def forget_messages(tables: QueueTables, size: int) -> Delete:
    """Forget the keys of finished messages that are to live again, and of no later ones."""
    memory = tables.dedup_keys
    ids = [number(f"p_id_{index}") for index in range(size)]
    return delete(memory).where(_among_keys(memory, size), memory.c.message_id.in_(ids))


def taken(tables: QueueTables, size: int) -> Select[Any]:
    """Which keys belong to a message that finished a short while ago.

    Asked after the insert: a message that finished while the insert waited for its key is seen
    only then. The lock makes this read the newest state in a transaction with an older snapshot.
    """
    memory = tables.dedup_keys
    return (
        select(memory.c.message_key, memory.c.message_id)
        .where(_among_keys(memory, size), memory.c.expires_at > tables.dialect.now())
        .with_for_update(read=True)
    )


def expired(tables: QueueTables) -> Select[Any]:
    """The next keys whose time is over."""
    memory = tables.dedup_keys
    return (
        select(memory.c.message_key)
        .where(memory.c.expires_at <= tables.dialect.now())
        .order_by(memory.c.expires_at)
        .limit(number("p_count"))
    )


def _among_keys(table: Table, size: int) -> ColumnElement[bool]:
    return table.c.message_key.in_([words(f"p_key_{index}") for index in range(size)])
