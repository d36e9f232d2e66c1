"""How an engine claims rows: the portable way, which engines replace by faster ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from queue_over_sql.claiming import statements
from queue_over_sql.errors import UnsupportedByEngine
from queue_over_sql.statements.parameters import batches, bucket_of, id_values
from queue_over_sql.statements.requests import read_rows

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.message import MessageRow
    from queue_over_sql.sql.compiled import StatementCache
    from queue_over_sql.sql.dialect import QueueDialect
    from queue_over_sql.statements.requests import ClaimRequest, Settlement


class Claims:
    """Claims messages by the portable way: looks for them, stamps them and reads them back."""

    at_once: ClassVar[bool] = False
    """A claim is one statement, so that it needs no transaction around it."""
    exchanges_at_once: ClassVar[bool] = False
    """Ack and claim are one statement."""

    def __init__(self, dialect: QueueDialect) -> None:
        self._features = dialect.features

    def claim(
        self, connection: Connection, sql: StatementCache, request: ClaimRequest
    ) -> list[MessageRow]:
        """Claim messages of one priority level, in no particular order, inside a transaction."""
        candidates = (
            sql.get(statements.pick_ids, request.where).run(connection, request.wanted()).all()
        )
        for batch in batches([row[0] for row in candidates]):
            mark = sql.get(statements.mark_where_eligible, bucket_of(len(batch)), request.where)
            mark.run(connection, id_values(batch) | request.stamp() | request.wanted())
        if not candidates:
            return []
        return read_rows(
            connection, sql, sql.get(statements.stamped).run(connection, request.stamp())
        )

    def exchange(
        self,
        connection: Connection,
        sql: StatementCache,
        settlement: Settlement,
        request: ClaimRequest,
        *,
        keep: bool,
    ) -> tuple[set[int], list[MessageRow]]:
        """Ack and claim in one statement; only called if ``exchanges_at_once``.

        Returns:
            The ids that were still held, and the claimed messages: none unless all were held.
        """
        raise UnsupportedByEngine("This engine cannot ack and claim in one statement.")
