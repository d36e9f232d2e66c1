"""What engines do for the rounds of durable consumers, in the portable form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql.dialects.statements import rounds
from queue_over_sql.dialects.statements.parameters import batches, bucket_of, id_values

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from sqlalchemy import Connection

    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.dialects.requests import RoundRequest


class HoldsRounds:
    """The part of a dialect that claims rounds and ends them, each by sets."""

    skip_locked: bool
    claims_rounds_apart = False
    """Claims of one consumer gain from running side by side, so its readers claim their rounds."""

    def claim_round(
        self, connection: Connection, sql: StatementCache, request: RoundRequest
    ) -> int:
        """Claim messages of one level for a round, inside a transaction; returns how many."""
        values = request.values()
        pick = rounds.lock_ids if self.skip_locked else rounds.pick_ids
        picked = sql.get(pick).run(connection, values).all()
        marked = 0
        for batch in batches([row[0] for row in picked]):
            mark = sql.get(rounds.mark, bucket_of(len(batch)), self.skip_locked)
            marked += mark.run(connection, id_values(batch) | values).rowcount
        return marked

    def rounds_index_hint(self, base: str) -> str | None:
        """A hint that leads to what rounds hold, where the engine would read the whole table.

        Args:
            base: as in ``add_queue_indexes``.
        """
        del base
        return None

    def remove_rounds(
        self, connection: Connection, sql: StatementCache, values: Mapping[str, Any]
    ) -> int:
        """Remove the messages of rounds, or end them in place; returns how many."""
        return sql.get(rounds.remove_rounds).run(connection, values).rowcount

    def unclaim_rounds(
        self, connection: Connection, sql: StatementCache, values: Mapping[str, Any]
    ) -> int:
        """Give the messages of rounds back, uncounted; returns how many."""
        return sql.get(rounds.unclaim_rounds).run(connection, values).rowcount

    def archive_rounds(
        self, connection: Connection, sql: StatementCache, values: Mapping[str, Any]
    ) -> int:
        """Move the messages of rounds, which are locked, to the archive; returns how many."""
        sql.get(rounds.copy_rounds_to_archive).run(connection, values)
        return self.remove_rounds(connection, sql, values)
