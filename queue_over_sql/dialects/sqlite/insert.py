"""How SQLite inserts many messages: by statements of many rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    Select,
    func,
    select,
)

from queue_over_sql.publishing import statements as publish
from queue_over_sql.publishing.strategy import Inserts
from queue_over_sql.schema.queue_tables import QueueTables
from queue_over_sql.sql.compiled import StatementCache, direct_calls
from queue_over_sql.statements.requests import NewRows

# The largest number of rows of an INSERT, and of parameters of a statement:
# https://www.sqlite.org/limits.html
_ROWS_PER_INSERT, _PARAMETERS = 128, 32_766


class SQLiteInserts(Inserts):
    """Inserts by multi-row statements, whose ids are consecutive."""

    rows_at_once = 100_000

    def publish(
        self, connection: Connection, sql: StatementCache, rows: NewRows
    ) -> Sequence[Sequence[Any]] | None:
        """As ``load`` does; without keys all rows are new, and nobody else writes meanwhile.

        So their ids are consecutive: https://www.sqlite.org/autoinc.html. Not in a caller's
        transaction: if the driver fails at one row, the rows before it would stay.
        """
        if rows.same.get("message_key", "") is not None or direct_calls(connection) is None:
            return None
        self.load(connection, sql, rows)
        last = int(sql.get(last_id).run(connection).scalar_one())
        return [(number, None) for number in range(last - rows.count + 1, last + 1)]

    def load(self, connection: Connection, sql: StatementCache, rows: NewRows) -> bool:
        """Multi-row statements; repeated single-row ones take twice the time."""
        names = rows.filled()
        left = rows.count
        # Its parameters are in the order of the columns, row by row.
        columns = {f"{sql.subject.parameters[name]}_0": name for name in names}
        first = sql.get(publish.publish_rows, 1, names).order
        values = itertools.chain.from_iterable(
            rows.tuples([columns[parameter] for parameter in first])
        )
        most = max(1, min(_ROWS_PER_INSERT, _PARAMETERS // len(names)))
        while left:
            size = min(most, 1 << (left.bit_length() - 1))
            statement = sql.get(publish.publish_rows, size, names)
            statement.run_ordered(connection, tuple(itertools.islice(values, size * len(names))))
            left -= size
        return True


def last_id(tables: QueueTables) -> Select[Any]:
    """The last id that this connection generated."""
    del tables
    return select(func.last_insert_rowid())
