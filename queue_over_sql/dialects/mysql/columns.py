"""Columns of MySQL and MariaDB: read unbuffered, written by multi-row INSERTs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import logging
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import Array, RecordBatch
from sqlalchemy import (
    URL,
    Boolean,
    Connection,
    Engine,
    Float,
    Integer,
    LargeBinary,
    Select,
    String,
    Table,
    Text,
    create_engine,
)
from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT
from sqlalchemy.exc import SQLAlchemyError

from queue_over_sql.arrow.rows import RowColumns, batches_of_rows, bounded
from queue_over_sql.errors import PayloadTooLarge
from queue_over_sql.sql.compiled import CompiledStatement
from queue_over_sql.sql.driver_calls import driver_connection, driver_errors

_log = logging.getLogger(__name__)


class MySQLColumns(RowColumns):
    """Reads columns through unbuffered cursors, and writes them by multi-row INSERTs."""

    def read(
        self,
        connection: Connection,
        statement: Select[Any],
        schema: pa.Schema,
        batch_bytes: int,
    ) -> Generator[pa.RecordBatch]:
        with _fastest(connection) as chosen:
            try:
                yield from _batches(chosen, statement, schema, batch_bytes)
            except BaseException:
                # Before further use of this connection, the rest of the result would have to be
                # read.
                chosen.invalidate()
                raise

    def write(
        self,
        connection: Connection,
        table: Table,
        names: Sequence[str],
        batches: Iterable[RecordBatch],
    ) -> int:
        """Multi-row INSERTs, built without Python code per row."""
        session = _Session.of(connection)
        plain = all(isinstance(table.c[name].type, _PLAIN) for name in names)
        if connection.dialect.is_async or not plain or session.charset not in _UTF8:
            return super().write(connection, table, names, batches)
        preparer = connection.dialect.identifier_preparer
        columns = ", ".join(preparer.quote(name) for name in names)
        head = f"INSERT INTO {preparer.format_table(table)} ({columns}) VALUES ".encode()
        most = min(_STATEMENT_BYTES, session.packet - len(head) - _REST)
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


def _batches(
    connection: Connection, statement: Select[Any], schema: pa.Schema, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    text, parameters = CompiledStatement(statement, connection.dialect).bound()
    with driver_errors(connection, text):
        cursors = importlib.import_module(f"{connection.dialect.loaded_dbapi.__name__}.cursors")
        cursor = driver_connection(connection).cursor(cursors.SSCursor)
        try:
            cursor.execute(text, parameters)
            yield from batches_of_rows(cursor.fetchmany, schema, batch_bytes)
        except BaseException:
            _abandon(cursor)
            raise
        cursor.close()


def _abandon(cursor: Any) -> None:
    """Keep PyMySQL from reading the rest of a result on a connection that will be closed."""
    result: Any = getattr(cursor, "_result", None)
    if getattr(result, "unbuffered_active", False):
        result.unbuffered_active = False
        result.connection = None
    cursor.connection = None


@contextlib.contextmanager
def _fastest(connection: Connection) -> Iterator[Connection]:
    engine = _mysqlclient(connection.engine.url, os.getpid())
    if engine is None:
        yield connection
        return
    with contextlib.ExitStack() as stack:
        try:
            chosen = stack.enter_context(engine.connect())
        except SQLAlchemyError as error:
            _log.warning("mysqlclient cannot connect, so PyMySQL is used instead: %s", error)
            chosen = connection
        yield chosen


@functools.lru_cache(maxsize=64)
def _mysqlclient(url: URL, pid: int) -> Engine | None:
    """An engine of this process; None if mysqlclient is missing or the URL already names it."""
    del pid  # a forked process must not use its parent's connections
    if url.get_driver_name() != "pymysql":
        return None
    try:
        importlib.import_module("MySQLdb")
    except ImportError:
        return None
    own = url.set(drivername=f"{url.get_backend_name()}+mysqldb")
    own = own.update_query_dict({"charset": str(url.query.get("charset", "utf8mb4"))})
    return create_engine(
        own,
        isolation_level="AUTOCOMMIT",
        pool_size=1,
        max_overflow=-1,
        pool_pre_ping=True,
        hide_parameters=True,
    )


# Larger statements are no faster, and the server keeps a copy of each.
_STATEMENT_BYTES: Final = 1_000_000
# More than the packet of a statement has besides the statement.
_REST: Final = 1024
_PLAIN: Final = (Integer, Float, Boolean, String, Text, LargeBinary, LONGTEXT, LONGBLOB)
_UTF8: Final = ("utf8", "utf8mb3", "utf8mb4")


@dataclasses.dataclass(frozen=True)
class _Session:
    """The session settings that decide how literals are read."""

    charset: str
    escapes: bool
    """Whether a backslash is an escape character."""
    packet: int
    """The largest size of a statement in bytes."""

    @classmethod
    def of(cls, connection: Connection) -> _Session:
        query = "SELECT @@character_set_client, @@sql_mode, @@max_allowed_packet"
        charset, mode, packet = connection.exec_driver_sql(query).one()
        return cls(str(charset), "NO_BACKSLASH_ESCAPES" not in str(mode), int(packet))


def _rows(batch: RecordBatch, session: _Session, most: int) -> Iterator[memoryview]:
    for part in bounded(batch):
        if not part.num_rows:
            continue
        rows = _literal_rows(part, session)
        data = memoryview(rows.buffers()[2])
        offsets = np.frombuffer(rows.buffers()[1], np.int32)[: len(rows) + 1]
        start = 0
        while start < len(rows):
            end = int(np.searchsorted(offsets, offsets[start] + most, side="right")) - 1
            if end <= start:
                # The server would close the connection without an answer.
                size = int(offsets[start + 1] - offsets[start])
                what, raises = "statement with a row", "raise the server's max_allowed_packet"
                if size > session.packet - _REST:
                    raise PayloadTooLarge(what, size, session.packet - _REST, raises)
                end = start + 1
            # The first byte is the comma that separates a row from the one before.
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
