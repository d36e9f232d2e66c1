"""Partial indexes, where engines have them: unclaimed rows in the one, claimed in the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import Index, and_

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Table


class PartialIndexes:
    """The indexes of a queue for an engine whose name is the prefix of SQLAlchemy's ``where``."""

    name: ClassVar[str]

    def add_queue_indexes(self, table: Table, base: str, *, sparse: bool = False) -> None:
        """Define the claim index and the one on the lease, which the fence must not imply.

        With ``consumer_id IS NOT NULL`` as the predicate of the latter PostgreSQL's planner runs
        every ack through it, over all dead entries of past claims.
        """
        columns = table.c
        free: ColumnElement[bool] = columns.consumer_id.is_(None)
        if sparse:
            free = and_(free, columns.available_at.is_not(None))
        unclaimed: dict[str, Any] = {f"{self.name}_where": free}
        claimed: dict[str, Any] = {f"{self.name}_where": self.is_claimed(table)}
        Index(
            f"{base}_claim_ix",
            columns.priority,
            columns.available_at,
            columns.id,
            **unclaimed,
        )
        Index(f"{base}_lease_ix", columns.lease_expires_at, **claimed)

    def is_claimed(self, table: Table) -> ColumnElement[bool]:
        """The row is claimed, in the words of the index on the lease."""
        return table.c.lease_expires_at.is_not(None)
