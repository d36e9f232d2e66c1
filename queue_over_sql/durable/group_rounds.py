"""Rounds of queues with groups: each group is in one round at a time, in its order."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Update, and_, literal

from queue_over_sql.durable.statements import due_by
from queue_over_sql.groups.fair import claims_of
from queue_over_sql.groups.strategy import GroupRequest, GroupRules, group_of
from queue_over_sql.statements.operations import change_by_ids
from queue_over_sql.statements.parameters import among_ids, number, stamped_by, update_by_id
from queue_over_sql.statements.requests import ANY_EDITS, ClaimRequest, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.durable.requests import RoundRequest
    from queue_over_sql.message import MessageRow
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache

# The first lease is replaced in the same transaction.
_SHORT_US: Final = 1_000_000
# How many messages one look meets, and how many looks one claim makes.
_MOST_SEEN, _LEAST_SEEN, _MOST_LOOKS = 10_000, 50, 200


class GroupRounds(NamedTuple):
    """What claims of rounds need to know of groups.

    Attributes:
        rules: of the queue.
        create_rows: creates the rows of groups, apart from the transaction of the claim; returns
            whether any lacked.
    """

    rules: GroupRules
    create_rows: Callable[[Iterable[str | None]], bool]

    def claim(self, connection: Connection, sql: StatementCache, request: RoundRequest) -> int:
        """Claim messages of one level for a round, inside a transaction; returns how many."""
        claims = claims_of(sql, self.rules)
        where = _within(sql.subject, request.up_to_id, request.due_by)
        ids: list[int] = []
        past: tuple[str, ...] = ()
        tries_some, broad = claims.at_once and self.rules.ordered, False
        for _ in range(_MOST_LOOKS):
            left = request.count - len(ids)
            window = min(max(2 * left, _LEAST_SEEN), _MOST_SEEN)
            claim = ClaimRequest(
                consumer_id=request.claim.consumer_id,
                consumer_round=request.claim.consumer_round,
                count=min(left, _MOST_SEEN),
                priority=request.priority,
                low=0,
                lease_us=_SHORT_US,
                queue_lease_us=_SHORT_US,
                edits=ANY_EDITS,
                guarded=False,
                where=where,
            )
            everywhere = self.rules.fair
            looked = GroupRequest(
                claim, self.rules, window, past, everywhere=everywhere, broad=broad
            )
            found = claims.claim(connection, sql, looked)
            ids += [row.id for row in found.rows]
            met = {each.group for each in found.seen} - {None}
            if len(ids) >= request.count or not found.seen:
                break
            if self.create_rows(met):
                continue
            # Nothing may be taken of the groups that it tried, but there are others.
            broad = tries_some and not (broad or found.rows)
            if broad:
                continue
            if len(found.seen) < window or met <= set(past):
                break
            past = tuple({*past, *(name for name in met if name is not None)})
        change_by_ids(connection, sql, set_lease, sorted(ids), request.values())
        return len(ids)


@functools.lru_cache(16)
def _within(tables: QueueTables, up_to_id: int | None, latest: int | None) -> Where | None:
    limits: list[ColumnElement[bool]] = []
    if up_to_id is not None:
        limits.append(tables.live.c.id <= up_to_id)
    if latest is not None:
        limits.append(due_by(tables, literal(latest, BigInteger())))
    return Where(and_(*limits)) if limits else None


def set_lease(tables: QueueTables, size: int) -> Update:
    """Give messages that this transaction has stamped the lease of their round."""
    held = and_(among_ids(tables.live, size), stamped_by(tables))
    return update_by_id(tables).where(held).values(lease_expires_at=number("p_expires"))


def by_groups(rows: Sequence[MessageRow]) -> list[MessageRow]:
    """Oldest first, and the messages of each group together and by id."""
    places: dict[str, tuple[int, int, int]] = {}
    for row in rows:
        group, place = group_of(row), _age(row)
        if group is not None:
            places[group] = min(place, places.get(group, place))

    def key(row: MessageRow) -> tuple[tuple[int, int, int], int]:
        group = group_of(row)
        return _age(row) if group is None else places[group], row.id

    return sorted(rows, key=key)


def _age(row: MessageRow) -> tuple[int, int, int]:
    return row.priority, row.available_at or 0, row.id
