"""Exits: what else happens when a message of a group ends, or changes its state.

A group with parked messages has a carrier: a message that is not parked, and that notes in
``blocks`` that others wait behind it. Whoever ends a carrier, or makes it due later, wakes the next
message of its group in the same transaction. Nothing else has to be done for groups.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import Select, select

from queue_over_sql.database.notify import note_ready
from queue_over_sql.errors import visible
from queue_over_sql.groups import exit_statements as statements
from queue_over_sql.groups.operations import own_limits, put_off
from queue_over_sql.groups.statements import group_values, set_carriers
from queue_over_sql.sql.compiled import StatementCache
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.operations import (
    change_by_ids,
    is_careful,
    rows_by_ids,
    write_apart,
)
from queue_over_sql.statements.parameters import batches, bucket_of, id_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.message import Claim
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.features import Features

_log = logging.getLogger(__name__)

# Each group has a part of its own in the statement.
_AT_ONCE: Final = 64
# How many parked messages behind locked ones to look at.
_FURTHER: Final = 20
_WAKING: Final = "queue_over_sql_wake"


class Held(NamedTuple):
    """A message that this transaction has locked.

    Attributes:
        group: its group, if it has one.
        blocks: whether others of its group may be parked behind it.
    """

    id: int
    group: str | None
    blocks: bool


def lock(connection: Connection, sql: StatementCache, ids: Sequence[int]) -> list[Held]:
    """Lock messages, whoever holds them."""
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    rows = rows_by_ids(connection, sql, statements.lock, ids)
    return [Held(row[0], row[1], bool(row[2])) for row in rows]


def lock_held(
    connection: Connection, sql: StatementCache, ids: Sequence[int], claim: Claim
) -> list[Held]:
    """Lock those of the messages that the claim still holds."""
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    stamp = {"p_consumer": claim.consumer_id, "p_round": claim.consumer_round}
    rows = rows_by_ids(connection, sql, statements.lock_held, ids, stamp)
    return [Held(row[0], row[1], bool(row[2])) for row in rows]


def carried(held: Iterable[Held]) -> list[str]:
    """The groups that wait for these messages: a group as often as it has carriers among them."""
    return [each.group for each in held if each.blocks and each.group is not None]


@contextlib.contextmanager
def leaving(connection: Connection, sql: StatementCache, ids: Sequence[int]) -> Iterator[None]:
    """Lock messages that end in the block, or come back later, and wake who waits for them.

    In a transaction. It does nothing for a queue without groups and limits.
    """
    if not sql.subject.grouped:
        yield
        note_capacity(sql)
        return
    groups = carried(lock(connection, sql, ids))
    yield
    wake(connection, sql, groups)
    note_capacity(sql)


def note_capacity(sql: StatementCache) -> None:
    """Note that a message left the hands of a consumer: a limit of the queue may allow another."""
    if sql.subject.limited:
        note_ready(sql)


@contextlib.contextmanager
def leaving_some(
    connection: Connection, tables: QueueTables, which: ColumnElement[bool]
) -> Iterator[None]:
    """As ``leaving``, for the messages that meet a condition."""
    if not tables.exits_make_ready:
        yield
        return
    live, sql = tables.live, StatementCache(tables, connection.dialect)
    if not tables.grouped:
        yield
        note_capacity(sql)
        return
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    # All that have a group, because others may come to wait for one until it is locked.
    grouped = select(live.c.id, live.c.group_key, live.c.blocks).where(
        live.c.group_key.is_not(None)
    )
    rows = connection.execute(grouped.where(which).with_for_update())
    groups = carried(Held(row[0], row[1], bool(row[2])) for row in rows)
    yield
    wake(connection, sql, groups)
    note_capacity(sql)


def wake(connection: Connection, sql: StatementCache, group_keys: Iterable[str]) -> int:
    """Move the next parked messages of groups back into the claim index; returns how many.

    Call it in the transaction that ended the carriers, after that. Waiting consumers look again
    when it has committed. A group that is paused is woken, too: the next claim that meets the
    message parks it again.

    Args:
        connection: with a transaction.
        sql: the queue's statements.
        group_keys: the groups; one that comes several times gets as many messages.
    """
    wanted, woken = Counter(group_keys), list[int]()
    for skipping, further in _ways(sql.subject.features):
        if not wanted:
            break
        found = _parked(connection, sql, wanted, skipping=skipping, further=further)
        woken += [row_id for ids in found.values() for row_id in ids]
        if sql.subject.features.reads_the_past:
            woken += _newest(connection, sql, {k: wanted[k] for k, ids in found.items() if not ids})
        wanted = Counter({key: wanted[key] for key in wanted if key not in found})
    return _unpark(connection, sql, woken)


def let_out(connection: Connection, sql: StatementCache, at: Mapping[str, Sequence[int]]) -> None:
    """Let claims meet the next parked messages of groups, at these times, unless they are locked.

    Of groups with a rate, by the claim that took what these waited for. What it took still wakes
    others when it ends.
    """
    if not at:
        return
    wanted = Counter({key: len(times) for key, times in at.items()})
    further = 0 if sql.subject.features.locks_inside else _FURTHER
    found = _parked(connection, sql, wanted, skipping=True, further=further)
    messages = {each: key for key, ids in found.items() for each in ids}
    for key, ids in found.items():
        for row_id, time in zip(ids, at[key], strict=False):
            put_off(connection, sql, {row_id: key}, {key: time})
    change_by_ids(connection, sql, set_carriers, sorted(messages))


@operation(atomic=True)
def wake_these(connection: Connection, sql: StatementCache, ids: Sequence[int]) -> int:
    """Move these messages back into the claim index, if they are still parked; how many were."""
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    free = rows_by_ids(connection, sql, lock_skipping, ids)
    return _unpark(connection, sql, [row[0] for row in free])


def lock_skipping(tables: QueueTables, size: int) -> Select[Any]:
    """As ``exit_statements.lock_parked``; it skips what others have locked."""
    return statements.lock_parked(tables, size, skipping=True)


def _newest(connection: Connection, sql: StatementCache, wanted: Mapping[str, int]) -> list[int]:
    """What was parked after the snapshot of a caller's transaction: only a locking read sees it."""
    found: list[int] = []
    for key in sorted(wanted):
        values = group_values([key], 1) | {"p_count": wanted[key]}
        rows = sql.get(statements.newest_parked).run(connection, values)
        found += [row[0] for row in rows]
    return found


def wake_earlier(connection: Connection, sql: StatementCache, ids: Iterable[int]) -> int:
    """Wake what is parked behind messages that come back later, but is before them in its group.

    Such a message was committed late, when a later one was in hand already. Call it in the
    transaction that gave the messages back, after that.
    """
    first, marked = dict[str, int](), set[str]()
    for row_id, key, blocks in rows_by_ids(connection, sql, statements.came_back, sorted(ids)):
        first[key] = min(row_id, first.get(key, row_id))
        if blocks:
            marked.add(key)
    if not marked:
        return 0
    found = _parked(connection, sql, Counter(marked), skipping=False, further=0)
    if sql.subject.features.reads_the_past:
        for key in [key for key, some in found.items() if not some]:
            found[key] = _newest(connection, sql, {key: 1})
    woken = [each for key, some in found.items() for each in some if each < first[key]]
    return _unpark(connection, sql, woken)


def _unpark(connection: Connection, sql: StatementCache, ids: Sequence[int]) -> int:
    if not ids:
        return 0
    unpark, some = partial(change_by_ids, connection, sql, statements.unpark), sorted(ids)
    refused: dict[int, str] = {}
    if is_careful():
        # A constraint or a trigger of the user's must not keep the one before it from ending.
        write_apart(connection, sql, _WAKING, some, unpark, refused=refused)
        _log_refused(sql.subject.queue, refused)
    else:
        unpark(some)
    note_ready(sql)
    return len(some) - len(refused)


def _log_refused(queue: str, refused: Mapping[int, str]) -> None:
    for message_id, why in refused.items():
        _log.error(
            "Message %d of queue %s: the database refuses to let it follow the one before it in "
            "its group: %s. It waits, and the reaper tries again. Mend its row, or remove it.",
            message_id,
            queue,
            visible(why, keep=""),
            extra={"queue": queue, "message_id": message_id},
        )


def _ways(features: Features) -> Sequence[tuple[bool, int]]:
    """How to look for parked messages, one way after another: skipping locked ones, how far."""
    if not features.skip_locked:
        return [(False, 0)]
    # What others have locked may be claimed by them, or stay parked: only its end tells.
    waiting = [(False, 0), (True, 0)]
    return [(True, 0), *([] if features.locks_inside else [(True, _FURTHER)]), *waiting]


def _parked(
    connection: Connection,
    sql: StatementCache,
    wanted: Mapping[str, int],
    *,
    skipping: bool,
    further: int,
) -> dict[str, list[int]]:
    """The first parked messages of groups, locked; only groups that have some, or surely none.

    Without ``locks_inside`` it looks at ``further`` messages beyond those that are wanted.
    """
    keys = sorted(wanted)
    candidates: dict[str, list[int]] = {}
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        size = bucket_of(len(some))
        values = group_values(some, size) | {"p_count": max(wanted[key] for key in some) + further}
        rows = sql.get(statements.next_parked, size, skipping).run(connection, values)
        # A name fills the statement several times.
        for row_id, key in sorted({(row[0], row[1]) for row in rows}):
            if len(candidates.setdefault(key, [])) < wanted[key] + further:
                candidates[key].append(row_id)
    if sql.subject.features.locks_inside:
        return candidates
    ids = sorted(row_id for found in candidates.values() for row_id in found)
    locked: dict[str, list[int]] = {key: [] for key in keys if key not in candidates}
    for batch in batches(ids):
        statement = sql.get(statements.lock_parked, bucket_of(len(batch)), skipping)
        free = [(row[0], row[1]) for row in statement.run(connection, id_values(batch))]
        for row_id, key in sorted(free):
            if len(locked.setdefault(key, [])) < wanted[key]:
                locked[key].append(row_id)
    return locked


def behind(
    connection: Connection, sql: StatementCache, claim: Claim, ids: Sequence[int], limit: int
) -> list[int]:
    """What a claim holds behind messages that it gave back: later ones of their groups."""
    first: dict[str, int] = {}
    for row_id, key, _ in rows_by_ids(connection, sql, statements.came_back, sorted(ids)):
        first[key] = min(row_id, first.get(key, row_id))
    return later_of_claim(connection, sql, claim, first, limit)


def later_of_claim(
    connection: Connection,
    sql: StatementCache,
    claim: Claim,
    first: Mapping[str, int],
    limit: int,
) -> list[int]:
    """What a claim holds behind a message of each of these groups.

    Nothing of those of which several may be in hand, because these run beside each other.
    ``limit`` is that of groups without a limit of their own.
    """
    keys, stamp = sorted(first), {"p_consumer": claim.consumer_id, "p_round": claim.consumer_round}
    found: list[tuple[int, str]] = []
    for some in batches(keys):
        size = bucket_of(len(some))
        rows = sql.get(statements.of_claim, size).run(connection, group_values(some, size) | stamp)
        found += [(row_id, key) for row_id, key in rows if row_id > first[key]]
    if not found:
        return []
    own = own_limits(connection, sql, sorted({key for _, key in found}))
    return sorted(row_id for row_id, key in found if own.get(key, limit) == 1)
