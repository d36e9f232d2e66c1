"""What PostgreSQL and SQLite share: claims in one statement, ON CONFLICT, partial indexes."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Index,
    Insert,
    Table,
    Update,
    and_,
    literal_column,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from queue_over_sql.claiming.strategy import Claims
from queue_over_sql.durable import statements as rounds
from queue_over_sql.durable.requests import RoundRequest
from queue_over_sql.durable.rounds import Rounds
from queue_over_sql.message import MessageRow
from queue_over_sql.schema.queue_tables import QueueTables
from queue_over_sql.sql.compiled import StatementCache
from queue_over_sql.sql.expressions import Expressions
from queue_over_sql.statements import claims as claim
from queue_over_sql.statements.requests import ClaimRequest, Where, read_rows


class RoundsAtOnce(Rounds):
    """Rounds that are claimed in one statement."""

    def claim(self, connection: Connection, sql: StatementCache, request: RoundRequest) -> int:
        """It returns no rows, because the round is read by its stamp."""
        return sql.get(claim_round_at_once).run(connection, request.values()).rowcount


class AtOnceExpressions(Expressions):
    """An engine whose UPDATE can pick, stamp and return rows."""

    def add_queue_indexes(self, table: Table, base: str, *, sparse: bool = False) -> None:
        """Define the claim index of unclaimed rows and the lease index of claimed rows.

        The fence must not imply the condition of the latter. With ``consumer_id IS NOT NULL`` as
        the condition, PostgreSQL would run every ack through it, over all dead entries of past
        claims.
        """
        columns, option = table.c, f"{self.features.name}_where"
        free: ColumnElement[bool] = columns.consumer_id.is_(None)
        if sparse:
            free = and_(free, columns.available_at.is_not(None))
        unclaimed: dict[str, Any] = {option: free}
        claimed: dict[str, Any] = {option: self.is_claimed(table)}
        Index(f"{base}_claim_ix", columns.priority, columns.available_at, columns.id, **unclaimed)
        Index(f"{base}_lease_ix", columns.lease_expires_at, **claimed)

    def add_group_indexes(self, table: Table, base: str) -> None:
        """Define an index of each group's unclaimed messages, and one of those in hand."""
        columns, option = table.c, f"{self.features.name}_where"
        grouped = columns.group_key.is_not(None)
        unclaimed: dict[str, Any] = {option: and_(columns.consumer_id.is_(None), grouped)}
        claimed: dict[str, Any] = {option: and_(self.is_claimed(table), grouped)}
        Index(f"{base}_group_ix", columns.group_key, columns.id, **unclaimed)
        Index(f"{base}_group_held_ix", columns.group_key, **claimed)

    def add_index_of_rates(self, groups: Table) -> None:
        """Define an index of the groups that have a rate of their own."""
        own = groups.c.own_rate_us
        option: dict[str, Any] = {f"{self.features.name}_where": own.is_not(None)}
        Index(f"{groups.name}_rate_ix", own, **option)

    def add_index_of_errors(self, archive: Table) -> None:
        """Define it without the messages that are done."""
        c, option = archive.c, f"{self.features.name}_where"
        dead: dict[str, Any] = {option: c.outcome != literal_column("'done'")}
        columns = (c.outcome, c.error_fingerprint, c.finished_at)
        Index(f"{archive.name}_err_ix", *columns, **dead)

    def is_claimed(self, table: Table) -> ColumnElement[bool]:
        return table.c.lease_expires_at.is_not(None)

    def ignore_conflict(self, statement: Insert, columns: Sequence[Column[Any]]) -> Insert:
        """ON CONFLICT on the key alone, so that other unique violations still fail."""
        conflict: postgresql.Insert | sqlite.Insert = statement  # type: ignore[assignment]
        return conflict.on_conflict_do_nothing(index_elements=columns)


class ClaimsAtOnce(Claims, abc.ABC):
    """Claims in one statement: UPDATE … RETURNING."""

    at_once = True

    @abc.abstractmethod
    def chosen(
        self, tables: QueueTables, where: Where | None, *conditions: ColumnElement[bool]
    ) -> ColumnElement[bool]:
        """The condition for the oldest rows that may be claimed."""

    def claim(
        self, connection: Connection, sql: StatementCache, request: ClaimRequest
    ) -> list[MessageRow]:
        values = request.stamp() | request.wanted()
        return read_rows(
            connection, sql, sql.get(claim_at_once, request.where).run(connection, values).all()
        )


def claim_at_once(
    tables: QueueTables, where: Where | None, *conditions: ColumnElement[bool]
) -> Update:
    """Pick and stamp. RETURNING has no order, so the client sorts."""
    return (
        update(tables.live)
        .where(_chosen(tables, where, *conditions))
        .values(claim.stamp_values(tables, tables.expressions.now()))
        .returning(*tables.message_columns(tables.live))
    )


def claim_round_at_once(tables: QueueTables) -> Update:
    """Pick and stamp the messages of a round."""
    chosen = _chosen(tables, None, rounds.within(tables))
    return update(tables.live).where(chosen).values(rounds.stamp_values(tables))


def _chosen(
    tables: QueueTables, where: Where | None, *conditions: ColumnElement[bool]
) -> ColumnElement[bool]:
    claims = cast("ClaimsAtOnce", tables.dialect.strategy(Claims))
    return claims.chosen(tables, where, *conditions)
