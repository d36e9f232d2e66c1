"""The report's tables as files, and as rows for the page."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from queue_over_sql.spark.pipelines.files import Files

# What a spreadsheet would take for the beginning of a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_INSTANT: Final = pa.timestamp("us", "UTC")


def computed(frame: DataFrame, order: Sequence[str]) -> pa.Table:
    """Compute a table in one job; instants are in UTC.

    Args:
        frame: the table.
        order: by which columns; with a ``-`` from the highest value on.
    """
    found = frame.toArrow()
    fields = [
        field.with_type(_INSTANT) if pa.types.is_timestamp(field.type) else field
        for field in found.schema
    ]
    columns = [
        (name.removeprefix("-"), "descending" if name.startswith("-") else "ascending")
        for name in order
    ]
    return found.cast(pa.schema(fields)).sort_by(columns)


def write_table(files: Files, name: str, table: pa.Table) -> str:
    """Write a table as Parquet and CSV; returns the folder of the Parquet.

    In the CSV file instants are ISO 8601 in UTC, and a text that a spreadsheet would run as a
    formula has an apostrophe before it.
    """
    folder = f"parquet/{name}"
    files.remove(folder)
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    files.write(f"{folder}/{name}.parquet", buffer.getvalue())
    files.write(f"csv/{name}.csv", _as_csv(table).encode())
    return f"{files.root}/{folder}"


def _as_csv(table: pa.Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(table.schema.names)
    for batch in table.to_batches():
        for row in batch.to_pylist():
            writer.writerow([_harmless(value) for value in row.values()])
    return text.getvalue()


def _harmless(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
