"""How PostgreSQL claims: in one statement, also together with the ack of the claims before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Select,
    any_,
    case,
    func,
    select,
    true,
)

from queue_over_sql.dialects.at_once import ClaimsAtOnce, claim_at_once
from queue_over_sql.dialects.postgresql.archive import archive_held, held_before, held_values
from queue_over_sql.message import MessageRow
from queue_over_sql.queues.registry import may_claim
from queue_over_sql.schema.queue_tables import QueueTables
from queue_over_sql.settling import statements as settle
from queue_over_sql.sql.compiled import StatementCache
from queue_over_sql.statements import claims as claim
from queue_over_sql.statements.parameters import bucket_of, id_values, number
from queue_over_sql.statements.requests import (
    ClaimRequest,
    Settlement,
    Where,
    count_ids,
    read_rows,
)


class PostgreSQLClaims(ClaimsAtOnce):
    """Claims with SKIP LOCKED, and exchanges acked messages for new ones in one statement."""

    exchanges_at_once = True

    def chosen(
        self, tables: QueueTables, where: Where | None, *conditions: ColumnElement[bool]
    ) -> ColumnElement[bool]:
        """By an array of ids, so that the primary key is probed for each.

        For a join the planner may read the primary key from its beginning, over all dead entries
        that an open transaction keeps: with many rows, or after an ANALYZE of an empty queue.
        """
        picked = _picked(tables, where, *conditions)
        return tables.live.c.id == any_(func.array(select(picked.c.id).scalar_subquery()))

    def exchange(
        self,
        connection: Connection,
        sql: StatementCache,
        settlement: Settlement,
        request: ClaimRequest,
        *,
        keep: bool,
    ) -> tuple[set[int], list[MessageRow]]:
        size = bucket_of(len(settlement.ids))
        values = id_values(settlement.ids) | held_values(settlement.claim)
        values |= exchange_values(sql, [settlement], keep=keep)
        values |= request.stamp() | request.wanted()
        statement = sql.get(exchange_at_once, size, keep, request.where)
        rows: Sequence[Any] = statement.run(connection, values).all()
        messages = [row[2:] for row in rows if row[2] is not None]
        return settled_of(settlement.ids, rows[0]), read_rows(connection, sql, messages)


def _picked(tables: QueueTables, where: Where | None, *conditions: ColumnElement[bool]) -> CTE:
    """Lock the oldest eligible rows; MATERIALIZED keeps the planner from running it twice."""
    live = tables.live
    return (
        select(live.c.id)
        .where(claim.eligible(tables, where), may_claim(tables), *conditions)
        .order_by(*claim.oldest_first(tables))
        .limit(number("p_count"))
        .with_for_update(skip_locked=True)
        .cte("picked")
        .prefix_with("MATERIALIZED")
    )


def exchange_at_once(
    tables: QueueTables, size: int, keep: bool, where: Where | None
) -> Select[Any]:
    """Ack ``size`` messages of one claim, and claim the next ones if no claim was lost.

    Each row has the number of acked messages, their ids if some were lost, and a claimed message.
    If nothing was claimed, there is one row with an empty message.
    """
    acked = end_held(tables, held_before(tables, size), keep=keep)
    claimed = claim_at_once(tables, where, all_acked(acked)).cte("claimed")
    settled = count_acked(acked)
    return select(settled.c.acked, settled.c.ids, *claimed.c).select_from(
        settled.outerjoin(claimed, true())
    )


def end_held(tables: QueueTables, held: ColumnElement[bool], *, keep: bool) -> CTE:
    """Ack messages that a condition with the fence names, beside another claim."""
    if tables.archives(keep=keep):
        return archive_held(tables, held).cte("acked")
    return settle.end(tables, held).returning(tables.live.c.id).cte("acked")


def all_acked(acked: CTE) -> ColumnElement[bool]:
    """Whether none of the ``p_expected`` messages was lost."""
    return select(func.count()).select_from(acked).scalar_subquery() == number("p_expected")


def count_acked(acked: CTE) -> CTE:
    """How many messages were acked, and their ids if some were lost."""
    count = func.count()
    lost_some = case((count < number("p_expected"), func.array_agg(acked.c.id)))
    return select(count.label("acked"), lost_some.label("ids")).select_from(acked).cte("settled")


def exchange_values(
    sql: StatementCache, settlements: Sequence[Settlement], *, keep: bool
) -> dict[str, Any]:
    """The bind parameters of the ack, without those of the fence."""
    values, archived = {"p_expected": count_ids(settlements)}, settlements[0].archive_values
    return values | (archived() if keep else sql.subject.values_of_end(archived))


def settled_of(ids: Sequence[int], row: Sequence[Any]) -> set[int]:
    """The acked ones of these ids, from what ``count_acked`` gave."""
    if row[0] == 0:
        return set()
    return set(ids) if row[1] is None else set(row[1])
