"""Statements that remember the keys of finished messages for a while."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from sqlalchemy import Delete, Insert, Select, delete, insert, select

from queue_over_sql.dialects.statements.parameters import (
    among_ids,
    batches,
    bucket_of,
    fence,
    id_values,
    number,
    words,
)
from queue_over_sql.durations import stored_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqlalchemy import ColumnElement, Connection, Table

    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.dialects.requests import Settlement
    from queue_over_sql.schema.queue_tables import QueueTables


def key_values(keys: Sequence[str], size: int) -> dict[str, Any]:
    """Bind keys to the parameters of their bucket, padded with the last one."""
    filled = [*keys, *[keys[-1]] * (size - len(keys))]
    return {f"p_key_{index}": key for index, key in enumerate(filled)}


def held_keys(tables: QueueTables, size: int) -> Select[Any]:
    """Lock those of the ids that the claim still holds, and read their keys."""
    live = tables.live
    return select(live.c.id, live.c.message_key).where(fence(tables, size)).with_for_update()


def remember_keys_of_messages(tables: QueueTables, size: int) -> Insert:
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


def forget_keys_of_messages(tables: QueueTables, size: int) -> Delete:
    """Forget the keys of finished messages that are to live again, and of no later ones."""
    memory = tables.dedup_keys
    ids = [number(f"p_id_{index}") for index in range(size)]
    return delete(memory).where(_among_keys(memory, size), memory.c.message_id.in_(ids))


def taken_keys(tables: QueueTables, size: int) -> Select[Any]:
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


def expired_keys(tables: QueueTables) -> Select[Any]:
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


def remember_keys(
    connection: Connection, sql: StatementCache, settlement: Settlement
) -> Settlement:
    """Note the keys of messages that are about to end, where their queue wants that.

    Returns:
        The settlement of those that the claim still holds, which are locked now.
    """
    if settlement.dedup_us is None:
        return settlement
    sql.subject.dialect.lock_for_writing(connection, sql)
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
    """Note the keys of locked messages, given as ids and keys, that are about to end."""
    for size, values in _keyed(messages):
        sql.get(forget_keys, size).run(connection, values)
        remember = sql.get(remember_keys_of_messages, size)
        remember.run(connection, values | {"p_dedup": dedup_us})


def _keyed(messages: Sequence[tuple[int, str | None]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The bind parameters of messages, given as ids and keys, that have a key; and their bucket."""
    keyed = [(message_id, key) for message_id, key in messages if key is not None]
    for batch in batches(keyed):
        size, ids = bucket_of(len(batch)), [message_id for message_id, _ in batch]
        yield size, key_values([key for _, key in batch], size) | id_values(ids)


def recently_finished(
    connection: Connection, sql: StatementCache, wanted: Sequence[str]
) -> dict[str, int]:
    """Which keys are still taken by a finished message, with the ids of those messages."""
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
    """Let finished messages, given as ids and keys, have their keys again: they live again."""
    for size, values in _keyed(messages):
        sql.get(forget_keys_of_messages, size).run(connection, values)


def prune_keys(connection: Connection, sql: StatementCache, limit: int) -> int:
    """Forget the next keys whose time is over; returns how many."""
    old = [row[0] for row in sql.get(expired_keys).run(connection, {"p_count": limit})]
    for batch in batches(old):
        size = bucket_of(len(batch))
        sql.get(forget_expired, size).run(connection, key_values(batch, size))
    return len(old)
