"""Bounds: what the limit and the rate of a whole queue leave for a claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from queue_over_sql.limits import slots, tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from queue_over_sql.message import Claim
    from queue_over_sql.sql.compiled import StatementCache


class Outlook(NamedTuple):
    """Whether another message may start.

    Attributes:
        has_room: whether a claim may find something.
        seconds: until the next token comes; 0 if there is one, or nobody knows.
    """

    has_room: bool
    seconds: float = 0.0


class Reserved(NamedTuple):
    """What a claim may use until its transaction ends.

    Attributes:
        most: how many messages it may claim.
        slots: a slot for each of them, if the queue has a limit.
    """

    most: int
    slots: Sequence[int] = ()


def outlook(connection: Connection, sql: StatementCache) -> Outlook:
    """Whether another message seems to be allowed; outside of a transaction.

    It writes nothing, unless the clock was set back.
    """
    if sql.subject.rated:
        bucket = tokens.look(connection, sql)
        if bucket is None:
            return Outlook(has_room=False)
        if not bucket.tokens:
            wait = max(0, bucket.next_at - bucket.now)
            return Outlook(has_room=False, seconds=wait / 1_000_000)
    return Outlook(not sql.subject.limited or slots.has_room(connection, sql))


def reserve(connection: Connection, sql: StatementCache, count: int) -> Reserved:
    """Lock what a claim of up to ``count`` messages needs; it writes nothing if there is none."""
    if sql.subject.rated:
        # First: a claim that has to wait for another one has no locks that others wait for.
        bucket = tokens.lock(connection, sql, briefly=True)
        count = 0 if bucket is None else min(count, bucket.tokens)
    if not count or not sql.subject.limited:
        return Reserved(count)
    free = slots.reserve(connection, sql, count)
    return Reserved(len(free), free)


def use(
    connection: Connection,
    sql: StatementCache,
    reserved: Reserved,
    ids: Sequence[int],
    stamp: Claim,
) -> None:
    """Note which messages a claim got."""
    if sql.subject.rated and ids:
        tokens.spend(connection, sql, len(ids))
    if reserved.slots:
        slots.occupy(connection, sql, reserved.slots, ids, stamp)


def set_bounds(
    connection: Connection, sql: StatementCache, limit: int | None, rate: str | None
) -> None:
    """Give a queue the slots of its limit, and its rate. In a transaction."""
    slots.set_slots(connection, sql, limit)
    tokens.set_rate(connection, sql, rate)
