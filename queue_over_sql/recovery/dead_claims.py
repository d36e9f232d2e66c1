"""Recovery: claims of dead consumers, and what only an edit by hand or old settings can leave."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Select,
    Update,
    and_,
    case,
    exists,
    func,
    literal_column,
    or_,
    select,
    update,
)

from queue_over_sql.consumers.registrations import lives, others_of
from queue_over_sql.message import Claim
from queue_over_sql.queues import registry
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.operations import change_by_ids, rows_by_ids
from queue_over_sql.statements.parameters import (
    CLAIM_CLEARED,
    among_ids,
    by_id,
    number,
    update_by_id,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache


def claims_with_expired_leases(tables: QueueTables, size: int) -> Select[Any]:
    """Claims whose lease has expired."""
    condition = and_(
        tables.expressions.is_claimed(tables.live),
        tables.live.c.lease_expires_at <= tables.expressions.now(),
    )
    return _claims(tables, condition, size)


def claims_of_the_dead(tables: QueueTables, size: int) -> Select[Any]:
    """Claims of consumers that are declared dead or gone."""
    live, consumers = tables.live, tables.system.consumers
    alive = exists().where(consumers.c.consumer_id == live.c.consumer_id, lives(consumers))
    return _claims(tables, and_(tables.expressions.is_claimed(live), ~alive), size)


def _claims(tables: QueueTables, condition: ColumnElement[bool], size: int) -> Select[Any]:
    """Claims to recover: what ``DeadClaim`` has.

    Size 0 finds them. Another size locks those of the given ids that still match.
    """
    live = tables.live
    statement = select(
        live.c.id,
        live.c.consumer_id,
        live.c.consumer_round,
        live.c.attempt_count,
        func.coalesce(live.c.max_attempts, number("p_max_attempts")),
        live.c.available_at,
        live.c.last_error,
        live.c.claimed_at,
        *([_is_behind(tables).label("behind"), live.c.group_key] if tables.grouped else []),
    ).where(condition)
    if size:
        among = statement.where(among_ids(live, size))
        locked = among.with_for_update(skip_locked=tables.features.skip_locked)
        return by_id(tables, locked, live)
    statement = statement.limit(number("p_count"))
    return statement.with_for_update(skip_locked=True) if tables.features.skip_locked else statement


def _is_behind(tables: QueueTables) -> ColumnElement[int]:
    """Whether the claim has an earlier message of the same group."""
    live, earlier = tables.live, tables.live.alias("earlier")
    same = [
        earlier.c[name] == live.c[name] for name in ("group_key", "consumer_id", "consumer_round")
    ]
    there: Select[Any] = select(literal_column("1")).where(*same, earlier.c.id < live.c.id)
    there = there.where(earlier.c.lease_expires_at.is_not(None)).correlate(live)
    return case((there.exists(), literal_column("1")), else_=literal_column("0"))


@dataclasses.dataclass(frozen=True, slots=True)
class DeadClaim:
    """A claim to recover.

    Attributes:
        behind: 1 if the same claim has an earlier message of the same group; else 0.
        group: None if it has none.
    """

    message_id: int
    claim: Claim
    attempts: int
    max_attempts: int
    available_at: int | None
    last_error: str | None
    claimed_at: int | None
    behind: int = 0
    group: str | None = None

    @property
    def out_of_attempts(self) -> bool:
        """Whether the message has used all its attempts."""
        return self.attempts >= self.max_attempts


def expired_leases(
    connection: Connection, sql: StatementCache, max_attempts: int, limit: int
) -> list[DeadClaim]:
    """Claims whose lease has expired, locked if the engine can skip locked rows."""
    bounds, recheck = (max_attempts, limit), not sql.subject.features.skip_locked
    return _dead_claims(connection, sql, claims_with_expired_leases, bounds, recheck=recheck)


def orphaned_claims(
    connection: Connection, sql: StatementCache, max_attempts: int, limit: int
) -> list[DeadClaim]:
    """Claims of consumers that are declared dead or gone, locked in the same way.

    This checks twice. A statement reads the newest version of a row that it locks, but the
    consumers as of its start. So the first look may miss a consumer that registered and claimed
    meanwhile.
    """
    return _dead_claims(connection, sql, claims_of_the_dead, (max_attempts, limit), recheck=True)


def _dead_claims(
    connection: Connection,
    sql: StatementCache,
    builder: Callable[..., Any],
    bounds: tuple[int, int],
    *,
    recheck: bool,
) -> list[DeadClaim]:
    values = {"p_max_attempts": bounds[0], "p_count": bounds[1]}
    rows: Sequence[Any] = sql.get(builder, 0).run(connection, values).all()
    if rows and recheck:
        # Check these alone again, under a lock, because a lease may have been renewed.
        rows = rows_by_ids(connection, sql, builder, [row[0] for row in rows], values)
    return [DeadClaim(row[0], Claim(row[1], row[2]), *row[3:]) for row in rows]


@dataclasses.dataclass(frozen=True, slots=True)
class DeadHolder:
    """A consumer that holds claims to recover.

    Attributes:
        late: whether it has missed a heartbeat, or has expired.
        others: how many messages besides one it held in all queues; below zero if that is unknown.
    """

    name: str
    host: str
    pid: int
    durable: bool
    late: bool
    others: int = -1


def holders_of(
    connection: Connection, sql: StatementCache, consumer_ids: Collection[str]
) -> dict[str, DeadHolder]:
    """The consumers of these ids that are registered."""
    consumers, now = sql.subject.system.consumers, sql.subject.expressions.heartbeat_now()
    names = ("consumer_id", "name", "host", "pid", "durable", "heartbeat_at", "expires_at")
    columns = [consumers.c[name] for name in names]
    registered = select(*columns, now).where(consumers.c.consumer_id.in_(consumer_ids))
    return {row[0]: _holder(row) for row in connection.execute(registered)}


def _holder(row: Sequence[Any]) -> DeadHolder:
    _, name, host, pid, durable, heartbeat_at, expires_at, now = row
    # It sends three heartbeats in its timeout.
    late = (now - heartbeat_at) * 2 > expires_at - heartbeat_at
    return DeadHolder(name, host, pid, bool(durable), late, others_of(expires_at))


def held_by(tables: QueueTables, consumer_ids: Collection[str]) -> Select[Any]:
    """Count the messages that each of these consumers holds."""
    live = tables.live
    held = (tables.expressions.is_claimed(live), live.c.consumer_id.in_(consumer_ids))
    return select(live.c.consumer_id, func.count()).where(*held).group_by(live.c.consumer_id)


# -- claims that somebody has edited


def half_claimed(tables: QueueTables) -> ColumnElement[bool]:
    """The condition for rows with a consumer, but without the rest of a claim.

    No consumer gets them, and none holds them.
    """
    live = tables.live
    lacks = or_(live.c.lease_expires_at.is_(None), live.c.consumer_round.is_(None))
    return and_(live.c.consumer_id.is_not(None), lacks)


def next_claims(tables: QueueTables) -> Select[Any]:
    """The next rows by id, with their claims; no index leads to half a claim."""
    c = tables.live.c
    columns = (c.id, c.consumer_id, c.consumer_round, c.lease_expires_at, c.priority)
    following = select(*columns).where(c.id > number("p_after")).order_by(c.id)
    return following.limit(number("p_count"))


def unclaim_half_claimed(tables: QueueTables) -> Update:
    """Clear what is left of the claim of such rows."""
    live = tables.live
    return update(live).where(half_claimed(tables)).values(CLAIM_CLEARED)


def unclaim_half_claimed_ids(tables: QueueTables, size: int) -> Update:
    """As ``unclaim_half_claimed``, for some ids."""
    half = (half_claimed(tables), among_ids(tables.live, size))
    return update_by_id(tables).where(*half).values(CLAIM_CLEARED)


def find_half_claimed(
    connection: Connection, sql: StatementCache, after: int, limit: int, levels: int
) -> tuple[list[int], list[int], int | None]:
    """Look at the next rows after an id.

    Returns:
        The ids of those with half a claim, the ids of unclaimed ones whose priority the queue does
        not have, and the last id; None at the end.
    """
    values = {"p_after": after, "p_count": limit}
    rows: Sequence[Any] = sql.get(next_claims).run(connection, values).all()
    half = [row[0] for row in rows if row[1] is not None and None in (row[2], row[3])]
    beyond = [row[0] for row in rows if row[1] is None and not 0 <= row[4] < levels]
    return half, beyond, rows[-1][0] if len(rows) == limit else None


def move_to_level(tables: QueueTables, size: int) -> Update:
    """Move unclaimed messages to a priority."""
    wanted = (*tables.in_claim_index(), among_ids(tables.live, size))
    return update_by_id(tables).where(*wanted).values(priority=number("p_priority"))


@operation(atomic=True)
def move_to_last_level(
    connection: Connection, sql: StatementCache, ids: Sequence[int], levels: int
) -> int:
    """Move unclaimed messages to the last priority of the queue, where every consumer looks."""
    changed = change_by_ids(connection, sql, move_to_level, ids, {"p_priority": levels - 1})
    if changed:
        registry.count_edit(connection, sql.subject)
    return changed
