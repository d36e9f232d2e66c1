"""How MySQL and MariaDB claim and end the rounds of durable consumers: by joins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    Connection,
)

from queue_over_sql.durable import statements as rounds
from queue_over_sql.durable.requests import RoundRequest
from queue_over_sql.durable.rounds import Rounds
from queue_over_sql.sql.compiled import StatementCache


class JoinedRounds(Rounds):
    """Rounds of MySQL and MariaDB, whose statements join the table with the chosen rows."""

    claims_apart = True

    def claim(self, connection: Connection, sql: StatementCache, request: RoundRequest) -> int:
        """Lock the rows in a derived table and stamp them by a join, in one statement."""
        return sql.get(rounds.mark_picked).run(connection, request.values()).rowcount

    def remove(self, connection: Connection, sql: StatementCache, values: Mapping[str, Any]) -> int:
        """Join with the ids, because DELETE accepts no hint."""
        return sql.get(rounds.remove_picked).run(connection, values).rowcount

    def unclaim(
        self, connection: Connection, sql: StatementCache, values: Mapping[str, Any]
    ) -> int:
        """Join with the ids, because the statement changes the hinted index."""
        return sql.get(rounds.unclaim_picked).run(connection, values).rowcount
