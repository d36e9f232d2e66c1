"""How H2 claims: with SKIP LOCKED from 2.2.220 on, by a bounded UPDATE before."""

from __future__ import annotations

from sqlalchemy import (
    Connection,
    Update,
    update,
)

from queue_over_sql.claiming import statements
from queue_over_sql.claiming.strategy import Claims
from queue_over_sql.dialects.skip_locked import LockedClaims
from queue_over_sql.message import MessageRow
from queue_over_sql.queues.registry import may_claim
from queue_over_sql.schema.queue_tables import QueueTables
from queue_over_sql.sql.compiled import StatementCache
from queue_over_sql.sql.dialect import QueueDialect
from queue_over_sql.statements import claims as claim
from queue_over_sql.statements.parameters import number
from queue_over_sql.statements.requests import ClaimRequest, read_rows


class H2Claims(Claims):
    """Claims along the claim index."""

    def __init__(self, dialect: QueueDialect) -> None:
        super().__init__(dialect)
        self._locked = LockedClaims(dialect)

    def claim(
        self, connection: Connection, sql: StatementCache, request: ClaimRequest
    ) -> list[MessageRow]:
        """Lock and stamp; on versions without SKIP LOCKED, stamp and read back.

        FINAL TABLE (UPDATE …) would deliver messages twice.
        """
        if self._features.skip_locked:
            return self._locked.claim(connection, sql, request)
        if request.where is not None:
            # A condition could make H2 use an index of the user, in another order.
            return super().claim(connection, sql, request)
        values = request.stamp() | request.wanted()
        marked = sql.get(mark_first).run(connection, values)
        if not marked.rowcount:
            return []
        return read_rows(
            connection, sql, sql.get(statements.stamped).run(connection, request.stamp())
        )


def mark_first(tables: QueueTables) -> Update:
    """Stamp the first rows along the claim index; wait for locked rows and check them again."""
    return (
        update(tables.live)
        .where(claim.eligible(tables, None), may_claim(tables))
        .values(claim.stamp_values(tables, tables.expressions.now()))
        .with_dialect_options(h2_limit=number("p_count"))
    )
