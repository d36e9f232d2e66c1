"""Taking messages as columns: what a dialect has of it that has no faster way than rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from sqlalchemy import Connection

    from queue_over_sql.dialects.compiled import StatementCache


class TakesRows:
    """A dialect whose messages are taken as rows."""

    def take_columns(
        self, connection: Connection, sql: StatementCache, values: Mapping[str, Any], *, keep: bool
    ) -> pa.RecordBatch | None:
        """Take the oldest messages of a level, sorted; None where rows must do.

        Args:
            connection: the caller's, inside a transaction.
            sql: the queue's statements.
            values: ``p_priority``, ``p_low``, ``p_edits`` and ``p_count``.
            keep: whether finished messages go to the archive.
        """
        del connection, sql, values, keep
        return None
