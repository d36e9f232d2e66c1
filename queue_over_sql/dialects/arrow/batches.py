"""Batches that stay within a number of bytes, from rows and from larger batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.dialects.arrow.values import array_of, conformed

if TYPE_CHECKING:
    import pyarrow as pa

    Fetch = Callable[[int], Sequence[Sequence[Any]]]

# How many rows are fetched before it is known how large they are, and at most.
_FIRST_ROWS: Final = 256
_MOST_ROWS: Final = 65_536


def batches_of_rows(fetch: Fetch, schema: pa.Schema, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Turn rows into batches.

    Args:
        fetch: gives so many further rows of a result, fewer at its end, then none.
        schema: of the batches; the rows have their columns in its order.
        batch_bytes: the size that a batch may have; a single row may be larger.

    Raises:
        ValueError: a value cannot be what the schema says.
    """
    import pyarrow as pa

    count = _FIRST_ROWS
    while rows := fetch(count):
        columns = zip(*rows, strict=True)
        arrays = [array_of(values, field) for values, field in zip(columns, schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        yield from within(batch, batch_bytes)
        each = max(1, batch.nbytes // batch.num_rows)
        count = max(1, min(batch_bytes // each, count * 4, _MOST_ROWS))


def conformed_batches(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Turn the batches of a driver into those that a schema describes.

    Raises:
        ValueError: a value cannot be what the schema says.
    """
    import pyarrow as pa

    for batch in batches:
        arrays = [conformed(array, field) for array, field in zip(batch, schema, strict=True)]
        whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if whole.num_rows:
            yield from within(whole, batch_bytes)


def within(batch: pa.RecordBatch, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into parts that stay within a size, down to single rows."""
    rows = batch.num_rows
    if rows <= 1 or batch.nbytes <= batch_bytes:
        yield batch
        return
    half = rows // 2
    yield from within(batch.slice(0, half), batch_bytes)
    yield from within(batch.slice(half), batch_bytes)
