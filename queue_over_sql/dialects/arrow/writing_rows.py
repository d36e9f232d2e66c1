"""Columns into rows through the driver's ``executemany``: SQLite's best path, and anybody's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql.dialects.arrow.columns import converters_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyarrow import RecordBatch
    from sqlalchemy import Connection, Table

# How many rows are Python objects at a time.
_ROWS_AT_ONCE = 10_000


def write(
    connection: Connection, table: Table, names: Sequence[str], batches: Iterable[RecordBatch]
) -> int:
    """Insert the rows of batches; see ``QueueDialect.write_arrow``."""
    text = _insert(connection, table, names)
    converters = converters_of(connection, table, names)
    count = 0
    for batch in batches:
        wanted = batch.select(list(names))
        for start in range(0, wanted.num_rows, _ROWS_AT_ONCE):
            rows = rows_of(wanted.slice(start, _ROWS_AT_ONCE), converters)
            connection.exec_driver_sql(text, rows).close()
            count += len(rows)
    return count


def _insert(connection: Connection, table: Table, names: Sequence[str]) -> str:
    """The statement, with positional parameters in the order of the names."""
    dialect = connection.dialect
    quote = dialect.identifier_preparer.quote
    target = dialect.identifier_preparer.format_table(table)
    columns = ", ".join(quote(name) for name in names)
    mark = {"qmark": "?", "format": "%s", "pyformat": "%s"}[dialect.paramstyle]
    return f"INSERT INTO {target} ({columns}) VALUES ({', '.join([mark] * len(names))})"
