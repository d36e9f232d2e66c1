"""How PostgreSQL archives the rounds of durable consumers: in one statement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    Connection,
)

from queue_over_sql.dialects.at_once import RoundsAtOnce
from queue_over_sql.dialects.postgresql.archive import archive_rounds_at_once
from queue_over_sql.sql.compiled import StatementCache


class PostgreSQLRounds(RoundsAtOnce):
    """Rounds of PostgreSQL, archived in one statement."""

    claims_apart = True

    def archive(
        self, connection: Connection, sql: StatementCache, values: Mapping[str, Any]
    ) -> int:
        return sql.get(archive_rounds_at_once).run(connection, values).rowcount
