"""Columns into MySQL and MariaDB: INSERT of many rows, its text made a whole batch at a time.

Drivers write out each value as a literal with a step of Python, which costs more than the server
takes to store it. Here Arrow quotes columns and joins rows. In UTF-8 no byte of a longer character
is a quote or a backslash, so doubling those two is all the quoting that there is to do.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Boolean, Float, Integer, LargeBinary, String, Text
from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT

from queue_over_sql.dialects.arrow import writing_rows
from queue_over_sql.dialects.arrow.columns import bounded
from queue_over_sql.dialects.driver_calls import driver_connection, driver_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyarrow import Array, RecordBatch
    from sqlalchemy import Connection, Table

# Larger statements gain nothing, and the server keeps a copy of each.
_STATEMENT_BYTES: Final = 1_000_000
_PLAIN: Final = (Integer, Float, Boolean, String, Text, LargeBinary, LONGTEXT, LONGBLOB)
_UTF8: Final = ("utf8", "utf8mb3", "utf8mb4")


@dataclasses.dataclass(frozen=True)
class _Session:
    """What decides how literals are read.

    Attributes:
        charset: of the statements' text.
        escapes: whether a backslash means something.
        packet: how long a statement may be, in bytes.
    """

    charset: str
    escapes: bool
    packet: int

    @classmethod
    def of(cls, connection: Connection) -> _Session:
        asked = "SELECT @@character_set_client, @@sql_mode, @@max_allowed_packet"
        charset, mode, packet = connection.exec_driver_sql(asked).one()
        return cls(str(charset), "NO_BACKSLASH_ESCAPES" not in str(mode), int(packet))


def write(
    connection: Connection, table: Table, names: Sequence[str], batches: Iterable[RecordBatch]
) -> int:
    """Insert the rows of batches; see ``QueueDialect.write_arrow``."""
    session = _Session.of(connection)
    plain = all(isinstance(table.c[name].type, _PLAIN) for name in names)
    if connection.dialect.is_async or not plain or session.charset not in _UTF8:
        return writing_rows.write(connection, table, names, batches)
    preparer = connection.dialect.identifier_preparer
    columns = ", ".join(preparer.quote(name) for name in names)
    head = f"INSERT INTO {preparer.format_table(table)} ({columns}) VALUES ".encode()
    most = min(_STATEMENT_BYTES, session.packet - len(head) - 1024)
    count = 0
    with driver_errors(connection, "INSERT"):
        cursor = driver_connection(connection).cursor()
        try:
            for batch in batches:
                for rows in _rows(batch.select(list(names)), session, most):
                    cursor.execute(b"".join((head, rows)))
                count += batch.num_rows
        finally:
            cursor.close()
    return count


def _rows(batch: RecordBatch, session: _Session, most: int) -> Iterator[memoryview]:
    """The rows as literals, in as many pieces as statements are needed."""
    for part in bounded(batch):
        if not part.num_rows:
            continue
        rows = _literal_rows(part, session)
        data = memoryview(rows.buffers()[2])
        offsets = np.frombuffer(rows.buffers()[1], np.int32)[: len(rows) + 1]
        start = 0
        while start < len(rows):
            end = int(np.searchsorted(offsets, offsets[start] + most, side="right")) - 1
            end = max(end, start + 1)
            # The first byte is the comma that parts a row from the one before.
            yield data[int(offsets[start]) + 1 : int(offsets[end])]
            start = end


def _literal_rows(batch: RecordBatch, session: _Session) -> Array:
    pieces: list[Any] = []
    for index, column in enumerate(batch.columns):
        pieces += [b"," if index else b",(", _literals(column, session)]
    return pc.binary_join_element_wise(*pieces, b")", b"")


def _literals(column: Array, session: _Session) -> Array:
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return column.cast(pa.string()).cast(pa.binary()).fill_null(b"NULL")
    quote = b"'" if pa.types.is_string(kind) else b"_binary'"
    text = column.cast(pa.binary())
    if session.escapes:
        text = pc.replace_substring(text, b"\\", b"\\\\")
    text = pc.replace_substring(text, b"'", b"''")
    return pc.binary_join_element_wise(quote, text, b"'", b"").fill_null(b"NULL")
