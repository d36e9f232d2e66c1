"""What every claim shares: which messages are eligible, their order, and what a claim writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    and_,
    case,
    func,
    literal_column,
    or_,
    select,
)

from queue_over_sql.statements.parameters import next_attempt, number, words
from queue_over_sql.values.durations import LONGEST_US

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.statements.requests import Where


def eligible(
    tables: QueueTables, where: Where | None, *, ranged: bool = False
) -> ColumnElement[bool]:
    """The condition for messages that may be claimed, in the order of the claim index's columns.

    With ``ranged`` the dialect writes the condition for unclaimed rows, for an index range.
    """
    live = tables.live
    unclaimed: ColumnElement[bool] = live.c.consumer_id.is_(None)
    if ranged:
        unclaimed = tables.expressions.unclaimed_range(live.c.consumer_id)
    return and_(
        unclaimed,
        live.c.priority == number("p_priority"),
        live.c.available_at >= number("p_low"),
        live.c.available_at <= tables.expressions.now(),
        *fitting(tables, where),
    )


def fitting(tables: QueueTables, where: Where | None) -> list[ColumnElement[bool]]:
    """The conditions for messages that this consumer may get at all, whatever their state."""
    live = tables.live
    wanted = [] if where is None else [where.on(live)]
    if tables.known_kinds:
        # Messages that this server cannot read stay in the queue for another one.
        wanted.append(or_(live.c.kind.is_(None), live.c.kind.in_(tables.known_kinds)))
    return wanted


def finds_first(tables: QueueTables, where: Where | None) -> bool:
    """Whether a claim has to find messages before it locks them, by ``found_first``."""
    return tables.features.locks_what_it_rejects and bool(fitting(tables, where))


def found_first(
    tables: QueueTables,
    columns: Iterable[ColumnElement[Any]],
    where: Where | None,
    *conditions: ColumnElement[bool],
) -> Select[Any]:
    """Find the oldest ``p_look`` eligible messages, and lock those that nobody has locked.

    It locks them one after another, by their ids, until it has as many as its limit says. A row
    that was found is looked at again under its lock.
    """
    live, fits = tables.live, eligible(tables, where, ranged=where is None)
    oldest = select(live.c.id).where(fits, *conditions).limit(number("p_look"))
    found = in_claim_order(oldest, tables, where).subquery("found")
    statement = select(*columns).select_from(found.join(live, live.c.id == found.c.id))
    # In the order in which they were found.
    in_order = statement.where(eligible(tables, where)).prefix_with("STRAIGHT_JOIN")
    return in_order.with_for_update(skip_locked=True)


def in_claim_order(statement: Select[Any], tables: QueueTables, where: Where | None) -> Select[Any]:
    """Let a statement read eligible messages oldest first.

    If the dialect has an index hint, the index gives the order and there is no ORDER BY, because
    such an engine locks every matching row when it sorts.
    """
    live = tables.live
    hint = tables.expressions.claim_index_hint(tables.base_name)
    if hint is not None:
        return statement.with_hint(live, hint)
    hint = tables.expressions.claim_range_hint(tables.base_name)
    # An index of the user may serve a condition better.
    if hint is None or where is not None:
        return statement.order_by(*oldest_first(tables))
    # With a range condition, the first column of the index is part of the order.
    return statement.order_by(live.c.consumer_id, *oldest_first(tables)).with_hint(live, hint)


def oldest_first(tables: QueueTables) -> tuple[ColumnElement[Any], ...]:
    """Oldest first."""
    return tables.live.c.available_at, tables.live.c.id


def stamp_values(
    tables: QueueTables, now: ColumnElement[int], expires_at: ColumnElement[int] | None = None
) -> dict[str, Any]:
    """The values that a claim writes. It counts the attempt, so that a crash counts, too."""
    live = tables.live
    if expires_at is None:
        # As the attempts: what somebody wrote into the row must not overflow.
        longest = literal_column(str(LONGEST_US), BigInteger())
        own = case((live.c.lease_us > longest, longest), else_=live.c.lease_us)
        lease = func.coalesce(number("p_lease"), own, number("p_queue_lease"))
        expires_at = now + lease
    return {
        "consumer_id": words("p_consumer"),
        "consumer_round": number("p_round"),
        "claimed_at": now,
        "lease_expires_at": expires_at,
        "attempt_count": next_attempt(live),
        # The owner may have enqueued a row again by its due time alone.
        **tables.still_live(),
    }
