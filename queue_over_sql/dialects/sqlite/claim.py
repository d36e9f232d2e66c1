"""How SQLite claims: in one statement."""

from __future__ import annotations

from sqlalchemy import (
    ColumnElement,
    and_,
    select,
)

from queue_over_sql.dialects.at_once import ClaimsAtOnce
from queue_over_sql.queues.registry import may_claim
from queue_over_sql.schema.queue_tables import QueueTables
from queue_over_sql.statements import claims as claim
from queue_over_sql.statements.parameters import number
from queue_over_sql.statements.requests import Where


class SQLiteClaims(ClaimsAtOnce):
    """Claims without locks on rows, because the writer has the whole file."""

    def chosen(
        self, tables: QueueTables, where: Where | None, *conditions: ColumnElement[bool]
    ) -> ColumnElement[bool]:
        """The condition is repeated outside, because nothing is locked inside."""
        live = tables.live
        oldest = (
            select(live.c.id)
            .where(claim.eligible(tables, where), may_claim(tables), *conditions)
            .order_by(*claim.oldest_first(tables))
            .limit(number("p_count"))
        )
        return and_(live.c.id.in_(oldest), live.c.consumer_id.is_(None))
