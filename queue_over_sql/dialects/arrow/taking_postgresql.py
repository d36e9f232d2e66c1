"""Taking messages from PostgreSQL as columns: one statement, whose rows are never Python objects.

The server writes what DELETE returns as CSV, which Arrow reads as a whole. It is on the caller's
connection, as ADBC's way could not be. Measured by ``scripts/benchmarks/spark_fleet.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    CTE,
    Select,
    delete,
    func,
    insert,
    literal_column,
    select,
)

from queue_over_sql.dialects.arrow.taking_rows import TakesRows
from queue_over_sql.dialects.driver_calls import driver_connection, driver_errors
from queue_over_sql.dialects.statements import archive, claim
from queue_over_sql.dialects.statements.parameters import number
from queue_over_sql.message import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from sqlalchemy import Connection, Table
    from sqlalchemy.sql.dml import ReturningDelete

    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.schema import QueueTables

_ARCHIVED: Final = {"p_outcome": Outcome.DONE, "p_error": None, "p_attempted": None}


class TakesColumns(TakesRows):
    """A dialect whose messages are taken as columns, where the driver has COPY."""

    def take_columns(
        self, connection: Connection, sql: StatementCache, values: Mapping[str, Any], *, keep: bool
    ) -> pa.RecordBatch | None:
        """Pick, remove and archive in one statement; None where CSV does not keep the types."""
        from queue_over_sql.dialects.arrow.handed_out import schema_of

        schema = schema_of(sql.subject)
        if connection.dialect.driver != "psycopg" or not all(map(_kept_by_csv, schema.types)):
            return None
        if not connection.in_transaction():
            # COPY goes past SQLAlchemy, which must know all the same that there is one.
            connection.begin()
        text, parameters = sql.get(take_at_once, keep).bound(
            {**values, **(_ARCHIVED if keep else {})}
        )
        copied = f"COPY ({text}) TO STDOUT (FORMAT csv, ENCODING 'UTF8')"
        with (
            driver_errors(connection, copied),
            driver_connection(connection).cursor() as cursor,
            cursor.copy(copied, parameters) as copy,
        ):
            content = b"".join(map(bytes, copy))
        # RETURNING has no order.
        return _read(content, schema).sort_by([("available_at", "ascending"), ("id", "ascending")])


def take_at_once(tables: QueueTables, keep: bool) -> ReturningDelete[Any] | Select[Any]:
    """Pick, lock and remove; with ``keep`` write to the archive as well.

    By ``ctid``, because the planner would join the ids by a scan of the whole table. A row that
    was changed while it was being locked is then not found: it stays, for the next one.
    """
    live = tables.live
    chosen = select(_picked(tables).c.place).scalar_subquery()
    gone = delete(live).where(literal_column("ctid") == func.any(func.array(chosen)))
    if not keep:
        return gone.returning(*_columns(tables, live))
    removed = gone.returning(*live.c).cte("gone")
    values = select(*archive.archived_values(tables, removed))
    kept = insert(tables.archive).from_select(archive.archived_names(tables), values).cte("kept")
    return select(*_columns(tables, removed)).add_cte(kept)


def _picked(tables: QueueTables) -> CTE:
    """Lock the oldest eligible rows; MATERIALIZED keeps the planner from running it twice."""
    return (
        select(literal_column("ctid").label("place"))
        .select_from(tables.live)
        .where(claim.eligible(tables, None), claim.may_claim(tables))
        .order_by(*claim.oldest_first(tables))
        .limit(number("p_count"))
        .with_for_update(skip_locked=True)
        .cte("picked")
        .prefix_with("MATERIALIZED")
    )


def _columns(tables: QueueTables, source: Table | CTE) -> list[Any]:
    from queue_over_sql.dialects.arrow.handed_out import FACTS

    read = tables.dialect.read_payload
    special = {
        "payload": read(source.c.payload),
        "headers": read(source.c.headers),
        # Which delivery this is; a roll-back uncounts it.
        "attempt_count": source.c.attempt_count + 1,
    }
    facts = [special.get(column, source.c[column]).label(name) for name, column, _ in FACTS]
    return [*facts, *[source.c[name] for name in tables.own_columns]]


def _kept_by_csv(kind: pa.DataType) -> bool:
    import pyarrow as pa

    from queue_over_sql.dialects.arrow.handed_out import HEADERS, INSTANT

    plain = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string)
    return kind in (HEADERS, INSTANT) or any(is_kind(kind) for is_kind in plain)


def _read(content: bytes, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa
    from pyarrow import csv

    from queue_over_sql.dialects.arrow.handed_out import HEADERS, INSTANT
    from queue_over_sql.dialects.arrow.values import conformed

    if not content:
        return pa.RecordBatch.from_pylist([], schema=schema)
    stored = {HEADERS: pa.string(), INSTANT: pa.int64()}
    table = csv.read_csv(
        pa.py_buffer(content),
        read_options=csv.ReadOptions(
            column_names=schema.names, use_threads=False, block_size=max(2**20, len(content))
        ),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types={field.name: stored.get(field.type, field.type) for field in schema},
            # An empty text is quoted, NULL is bare.
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )
    pairs = zip(table.columns, schema, strict=True)
    arrays = [conformed(column.combine_chunks(), field) for column, field in pairs]
    return pa.record_batch(arrays, schema=schema)
