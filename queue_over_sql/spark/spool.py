"""Spool: record batches that are kept until they can be written, in memory or in a file.

A transaction must not stay open while Spark still computes what goes into it, and must be able to
begin again; so what belongs into one is gathered first.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MEMORY_BYTES: Final = 128 * 2**20
"""What is kept in memory; more goes to a temporary file."""


class Spool:
    """Batches of one schema, which can be gone through again and again.

    Args:
        columns: their names.
        memory_bytes: how much is kept in memory.
    """

    def __init__(self, columns: Sequence[str], *, memory_bytes: int = MEMORY_BYTES) -> None:
        self.columns = tuple(columns)
        self.rows = 0
        self.size = 0
        self._memory_bytes = memory_bytes
        self._batches: list[pa.RecordBatch] = []
        self._file: Any = None
        self._writer: Any = None

    @classmethod
    def of(cls, columns: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Self:
        """Gather batches."""
        spool = cls(columns)
        for batch in batches:
            spool.add(batch)
        return spool

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep one more; an empty one is left out."""
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        self.size += batch.nbytes
        if self.size <= self._memory_bytes:
            self._batches.append(batch)
            return
        if self._writer is None:
            self._file = tempfile.TemporaryFile(prefix="queue-over-sql-")  # noqa: SIM115 - kept open
            self._writer = pa.ipc.new_file(self._file, batch.schema)
        self._writer.write_batch(batch)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._batches
        if self._writer is None:
            return
        self._writer.close()
        self._file.seek(0)
        reader = pa.ipc.open_file(self._file)
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)

    def close(self) -> None:
        """Forget everything."""
        self._batches = []
        if self._file is not None:
            self._file.close()


def to_bytes(batches: Iterable[pa.RecordBatch]) -> bytes:
    """Batches as they travel to the driver; at least one."""
    kept = list(batches)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, kept[0].schema) as stream:
        for batch in kept:
            stream.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def from_bytes(content: bytes) -> list[pa.RecordBatch]:
    """What ``to_bytes`` wrote."""
    return list(pa.ipc.open_stream(content))
