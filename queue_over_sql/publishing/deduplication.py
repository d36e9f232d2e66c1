"""Statements about keys of finished messages, which stay taken for the dedup window."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from sqlalchemy import Delete, Insert, Select, delete, insert, select

from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.parameters import (
    among_ids,
    batches,
    bucket_of,
    by_id,
    fence,
    id_values,
    number,
    words,
)
from queue_over_sql.values.durations import stored_number
from queue_over_sql.values.texts import is_unicode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqlalchemy import ColumnElement, Connection, Table

    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache
    from queue_over_sql.statements.requests import Settlement


def key_values(keys: Sequence[str], size: int) -> dict[str, Any]:
    """The bind parameters of keys; the last key fills the unused parameters of their bucket."""
    filled = [*keys, *[keys[-1]] * (size - len(keys))]
    return {f"p_key_{index}": key for index, key in enumerate(filled)}


def held_keys(tables: QueueTables, size: int) -> Select[Any]:
    """Lock those of the ids that the claim still holds, and read their keys."""
    live = tables.live
    held = select(live.c.id, live.c.message_key).where(fence(tables, size)).with_for_update()
    return by_id(tables, held, live)


def remember_keys_of_messages(tables: QueueTables, size: int) -> Insert:
    """Store the keys of locked messages that are about to end."""
    live, now = tables.live, tables.expressions.now()
    ending = select(live.c.message_key, live.c.id, now + number("p_dedup")).where(
        among_ids(live, size), live.c.message_key.is_not(None)
    )
    names = ["message_key", "message_id", "expires_at"]
    return insert(tables.dedup_keys).from_select(names, by_id(tables, ending, live))


def forget_keys(tables: QueueTables, size: int) -> Delete:
    """Delete stored keys before messages that have them end again."""
    return delete(tables.dedup_keys).where(_among_keys(tables.dedup_keys, size))


def forget_expired(tables: QueueTables, size: int) -> Delete:
    """Delete expired keys, unless they were stored again since they were read."""
    memory = tables.dedup_keys
    return delete(memory).where(
        _among_keys(memory, size), memory.c.expires_at <= tables.expressions.now()
    )


def forget_keys_of_messages(tables: QueueTables, size: int) -> Delete:
    """Delete the stored keys of messages that are requeued, but not those of later messages."""
    memory = tables.dedup_keys
    ids = [number(f"p_id_{index}") for index in range(size)]
    return delete(memory).where(_among_keys(memory, size), memory.c.message_id.in_(ids))


def taken_keys(tables: QueueTables, size: int) -> Select[Any]:
    """Which of the keys belong to a message that finished within the dedup window.

    Run it after the insert. A message may finish while the insert waits for its key, and only then
    is its key stored. The lock makes a transaction with an older snapshot read the newest state.
    """
    memory = tables.dedup_keys
    return (
        select(memory.c.message_key, memory.c.message_id)
        .where(_among_keys(memory, size), memory.c.expires_at > tables.expressions.now())
        .with_for_update(read=True)
    )


def expired_keys(tables: QueueTables) -> Select[Any]:
    """The next expired keys."""
    memory = tables.dedup_keys
    return (
        select(memory.c.message_key)
        .where(memory.c.expires_at <= tables.expressions.now())
        .order_by(memory.c.expires_at)
        .limit(number("p_count"))
    )


def _among_keys(table: Table, size: int) -> ColumnElement[bool]:
    return table.c.message_key.in_([words(f"p_key_{index}") for index in range(size)])


def remember_keys(
    connection: Connection, sql: StatementCache, settlement: Settlement
) -> Settlement:
    """Store the keys of messages that are about to end, if their queue has a dedup window.

    Returns:
        The settlement, reduced to the messages that the claim still holds; they are now locked.
    """
    if settlement.dedup_us is None:
        return settlement
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    held: list[int] = []
    for batch in batches(settlement.ids):
        look = sql.get(held_keys, bucket_of(len(batch)))
        rows: Iterable[Any] = look.run(connection, id_values(batch) | settlement.fence_values())
        locked = [(row[0], row[1]) for row in rows]
        remember_locked(connection, sql, locked, settlement.dedup_us)
        held += [message_id for message_id, _ in locked]
    return dataclasses.replace(settlement, ids=held)


def remember_locked(
    connection: Connection,
    sql: StatementCache,
    messages: Sequence[tuple[int, str | None]],
    dedup_us: int,
) -> None:
    """Store the keys of locked messages that are about to end, given as ids and keys."""
    for size, values in _keyed(messages):
        sql.get(forget_keys, size).run(connection, values)
        remember = sql.get(remember_keys_of_messages, size)
        remember.run(connection, values | {"p_dedup": dedup_us})


def _keyed(messages: Sequence[tuple[int, str | None]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The messages that have keys, as bind parameters with the size of their bucket."""
    # A key that is no UTF-8, which no publisher can repeat, cannot be sent to the database.
    keyed = [(id_, key) for id_, key in messages if key is not None and is_unicode(key)]
    for batch in batches(keyed):
        size, ids = bucket_of(len(batch)), [message_id for message_id, _ in batch]
        yield size, key_values([key for _, key in batch], size) | id_values(ids)


def recently_finished(
    connection: Connection, sql: StatementCache, wanted: Sequence[str]
) -> dict[str, int]:
    """Which keys a finished message still has, with the ids of these messages."""
    found: dict[str, int] = {}
    for batch in batches(wanted):
        size = bucket_of(len(batch))
        taken = sql.get(taken_keys, size)
        rows: Iterable[Any] = taken.run(connection, key_values(batch, size))
        found |= {row[0]: stored_number("message_id of a key", row[1]) for row in rows}
    return found


def forget_messages(
    connection: Connection, sql: StatementCache, messages: Sequence[tuple[int, str | None]]
) -> None:
    """Free the stored keys of finished messages, given as ids and keys, that are requeued."""
    for size, values in _keyed(messages):
        sql.get(forget_keys_of_messages, size).run(connection, values)


@operation(atomic=True)
def prune_keys(connection: Connection, sql: StatementCache, limit: int) -> int:
    """Delete the next expired keys; returns how many."""
    old = [row[0] for row in sql.get(expired_keys).run(connection, {"p_count": limit})]
    for batch in batches(old):
        size = bucket_of(len(batch))
        sql.get(forget_expired, size).run(connection, key_values(batch, size))
    return len(old)
