"""What writers of all engines ask of Arrow: sizes, slices, rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyarrow import RecordBatch
    from sqlalchemy import Connection, Table

# Offsets within one array are 32 bits wide, and what is joined must fit into it.
_MOST_BYTES = 64 * 2**20


def bounded(batch: RecordBatch) -> Iterator[RecordBatch]:
    """Cut a batch into pieces whose bytes can be joined."""
    if batch.nbytes <= _MOST_BYTES or batch.num_rows <= 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from bounded(batch.slice(0, half))
    yield from bounded(batch.slice(half))


def rows_of(
    batch: RecordBatch, converters: Sequence[Callable[[Any], Any] | None]
) -> list[tuple[Any, ...]]:
    """The rows of a batch as the driver wants them."""
    columns = []
    for column, convert in zip(batch.columns, converters, strict=True):
        values = column.to_pylist()
        columns.append(values if convert is None else [convert(value) for value in values])
    return list(zip(*columns, strict=True))


def converters_of(
    connection: Connection, table: Table, names: Sequence[str]
) -> list[Callable[[Any], Any] | None]:
    """What turns Python values of the columns into the driver's; None where nothing must."""
    dialect = connection.dialect
    return [table.c[name].type.dialect_impl(dialect).bind_processor(dialect) for name in names]
