"""How an engine claims and ends the rounds of durable consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from queue_over_sql.durable import statements as rounds
from queue_over_sql.durable.requests import RoundRequest
from queue_over_sql.sql.compiled import StatementCache
from queue_over_sql.sql.dialect import QueueDialect
from queue_over_sql.statements.parameters import batches, bucket_of, id_values


class Rounds:
    """Claims the rounds of durable consumers and ends them, each with statements on sets."""

    claims_apart = False
    """Whether readers claim their rounds, because parallel claims of one consumer are faster."""

    def __init__(self, dialect: QueueDialect) -> None:
        self._features = dialect.features

    def claim(self, connection: Connection, sql: StatementCache, request: RoundRequest) -> int:
        """Claim messages of one level for a round, inside a transaction; returns how many."""
        values = request.values()
        pick = rounds.lock_ids if self._features.skip_locked else rounds.pick_ids
        picked = sql.get(pick).run(connection, values).all()
        marked = 0
        for batch in batches([row[0] for row in picked]):
            mark = sql.get(rounds.mark, bucket_of(len(batch)), self._features.skip_locked)
            marked += mark.run(connection, id_values(batch) | values).rowcount
        return marked

    def remove(self, connection: Connection, sql: StatementCache, values: Mapping[str, Any]) -> int:
        """Remove the messages of rounds, or end them in place; returns how many."""
        return sql.get(rounds.remove_rounds).run(connection, values).rowcount

    def unclaim(
        self, connection: Connection, sql: StatementCache, values: Mapping[str, Any]
    ) -> int:
        """Give the messages of rounds back, uncounted; returns how many."""
        return sql.get(rounds.unclaim_rounds).run(connection, values).rowcount

    def archive(
        self, connection: Connection, sql: StatementCache, values: Mapping[str, Any]
    ) -> int:
        """Move the messages of rounds, which are locked, to the archive; returns how many."""
        sql.get(rounds.copy_rounds_to_archive).run(connection, values)
        return self.remove(connection, sql, values)
