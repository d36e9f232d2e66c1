"""PostgreSQL's binary COPY format, a whole batch at a time.

A row is a count of fields, and each field is its length and its bytes, -1 for NULL. The bytes
between two texts are the same in number for all rows, so they are laid out as records of fixed
width, and Arrow joins records and texts row by row without a step of Python for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import BigInteger, Boolean, Float, Integer, LargeBinary, SmallInteger, String

from queue_over_sql.dialects.arrow.columns import bounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyarrow import Array, RecordBatch
    from sqlalchemy.types import TypeEngine

HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER: Final = b"\xff\xff"
_WIDEST_SINGLE: Final = 24


def wire_type(kind: TypeEngine[Any]) -> str | None:
    """How a column's values are laid out: a NumPy type, or "" for bytes; None if unknown here."""
    # From the special to the general: a BigInteger is an Integer as well.
    known = ((SmallInteger, ">i2"), (BigInteger, ">i8"), (Integer, ">i4"), (Boolean, ">u1"))
    for family, layout in known:
        if isinstance(kind, family):
            return layout
    if isinstance(kind, Float):
        return ">f8" if kind.precision is None or kind.precision > _WIDEST_SINGLE else None
    plain = isinstance(kind, String | LargeBinary) or type(kind).__name__ == "JsonText"
    return "" if plain else None


def encoded(batch: RecordBatch, layouts: Mapping[str, str]) -> Iterator[memoryview]:
    """The rows of a batch.

    Args:
        batch: has at least the columns of ``layouts``.
        layouts: the columns to write, in this order, with their ``wire_type``.
    """
    for part in bounded(batch.select(list(layouts))):
        if part.num_rows:
            yield _joined(_pieces(part, list(layouts.values())))


def _joined(pieces: Sequence[Array]) -> memoryview:
    rows = pc.binary_join_element_wise(*pieces, b"") if len(pieces) > 1 else pieces[0]
    offsets = np.frombuffer(rows.buffers()[1], np.int32)
    data = memoryview(rows.buffers()[2])
    return data[int(offsets[rows.offset]) : int(offsets[rows.offset + len(rows)])]


class _Record:
    """The bytes of fixed width that follow each other in every row."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._fields: list[tuple[str, Any]] = []

    def add(self, layout: str, values: Any) -> None:
        self._fields.append((layout, values))

    def take(self) -> list[Array]:
        """What was added, as one array of bytes, or nothing."""
        if not self._fields:
            return []
        kind = np.dtype([(f"f{index}", layout) for index, (layout, _) in enumerate(self._fields)])
        record = np.empty(self._rows, kind)
        for index, (_, values) in enumerate(self._fields):
            record[f"f{index}"] = values
        self._fields = []
        return [_fixed(record)]


def _pieces(batch: RecordBatch, layouts: Sequence[str]) -> list[Array]:
    pieces: list[Array] = []
    record = _Record(batch.num_rows)
    record.add(">i2", len(layouts))
    for column, layout in zip(batch.columns, layouts, strict=True):
        if layout and column.null_count == 0:
            values = _numbers(column, layout)
            record.add(">i4", values.dtype.itemsize)
            record.add(layout, values)
            continue
        value = _fixed(_numbers(column.fill_null(_zero(column)), layout)) if layout else column
        value = _bytes_of(value, column)
        record.add(">i4", _lengths(value))
        pieces += [*record.take(), value.fill_null(b"")]
    return pieces + record.take()


def _numbers(column: Array, layout: str) -> Any:
    wanted = np.dtype(layout)
    if wanted.itemsize == 1:
        column = column.cast(pa.uint8())
    return column.to_numpy(zero_copy_only=False).astype(wanted)


def _zero(column: Array) -> Any:
    return pa.scalar(value=False) if pa.types.is_boolean(column.type) else pa.scalar(0, column.type)


def _bytes_of(value: Array, column: Array) -> Array:
    if value is not column:
        # Numbers lost their NULLs on the way through NumPy.
        return pc.if_else(column.is_valid(), value, pa.scalar(None, pa.binary()))
    return value.cast(pa.binary())


def _lengths(value: Array) -> Any:
    return pc.binary_length(value).fill_null(-1).to_numpy(zero_copy_only=False)


def _fixed(record: Any) -> Array:
    """Records of equal width as an array of bytes, without copying them."""
    width = record.dtype.itemsize
    offsets = np.arange(0, width * (len(record) + 1), width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(record)]
    return pa.Array.from_buffers(pa.binary(), len(record), buffers)
