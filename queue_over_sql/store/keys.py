"""Acts on the memory of keys: those of messages that finished a short while ago."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from queue_over_sql.dialects.statements import keys
from queue_over_sql.dialects.statements.parameters import batches, bucket_of, id_values
from queue_over_sql.durations import stored_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.dialects.requests import Settlement


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
        look = sql.get(keys.held_keys, bucket_of(len(batch)))
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
    keyed = [(message_id, key) for message_id, key in messages if key is not None]
    for batch in batches(keyed):
        ids, size = [message_id for message_id, _ in batch], bucket_of(len(batch))
        values = keys.key_values([key for _, key in batch], size)
        sql.get(keys.forget_keys, size).run(connection, values)
        sql.get(keys.remember, size).run(connection, id_values(ids) | {"p_dedup": dedup_us})


def recently_finished(
    connection: Connection, sql: StatementCache, wanted: Sequence[str]
) -> dict[str, int]:
    """Which keys are still taken by a finished message, with the ids of those messages."""
    found: dict[str, int] = {}
    for batch in batches(wanted):
        size = bucket_of(len(batch))
        taken = sql.get(keys.taken, size)
        rows: Iterable[Any] = taken.run(connection, keys.key_values(list(batch), size))
        found |= {row[0]: stored_number("message_id of a key", row[1]) for row in rows}
    return found


def forget_messages(
    connection: Connection, sql: StatementCache, messages: Sequence[tuple[int, str | None]]
) -> None:
    """Let finished messages, given as ids and keys, have their keys again: they live again."""
    keyed = [(message_id, key) for message_id, key in messages if key is not None]
    for batch in batches(keyed):
        size = bucket_of(len(batch))
        values = keys.key_values([key for _, key in batch], size)
        ids = id_values([message_id for message_id, _ in batch])
        sql.get(keys.forget_messages, size).run(connection, values | ids)


def prune_keys(connection: Connection, sql: StatementCache, limit: int) -> int:
    """Forget the next keys whose time is over; returns how many."""
    old = [row[0] for row in sql.get(keys.expired).run(connection, {"p_count": limit})]
    for batch in batches(old):
        size = bucket_of(len(batch))
        sql.get(keys.forget_expired, size).run(connection, keys.key_values(list(batch), size))
    return len(old)
