"""Reading from MySQL and MariaDB row by row as they arrive, through mysqlclient where it is there.

mysqlclient reads five times as many rows in a second as PyMySQL. It has connections of its own,
so what it reads is what was committed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from queue_over_sql.dialects.arrow.batches import batches_of_rows
from queue_over_sql.dialects.arrow.reading_rows import ReadsRows
from queue_over_sql.dialects.arrow.types import mysql_type
from queue_over_sql.dialects.compiled import CompiledStatement
from queue_over_sql.dialects.driver_calls import driver_connection, driver_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import URL, Connection, Engine, Select
    from sqlalchemy.types import TypeEngine

_log = logging.getLogger(__name__)


class ReadsUnbuffered(ReadsRows):
    """How the dialects of MySQL and MariaDB read."""

    def arrow_type(self, kind: TypeEngine[Any]) -> pa.DataType:
        """TINYINT(1) is what BOOLEAN is stored as; what is unsigned needs the next larger type."""
        return mysql_type(kind)

    def read_arrow(
        self,
        connection: Connection,
        statement: Select[Any],
        schema: pa.Schema,
        batch_bytes: int,
    ) -> Generator[pa.RecordBatch]:
        """Row by row as they arrive."""
        with _fastest(connection) as chosen:
            try:
                yield from _batches(chosen, statement, schema, batch_bytes)
            except BaseException:
                # To go on with this connection, all that is left of the result had to be read.
                chosen.invalidate()
                raise


def _batches(
    connection: Connection, statement: Select[Any], schema: pa.Schema, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    text, parameters = CompiledStatement(statement, connection.dialect).bound()
    with driver_errors(connection, text):
        cursor = driver_connection(connection).cursor(_unbuffered_cursor(connection))
        try:
            cursor.execute(text, parameters)
            yield from batches_of_rows(cursor.fetchmany, schema, batch_bytes)
        except BaseException:
            _abandon(cursor)
            raise
        cursor.close()


def _abandon(cursor: Any) -> None:
    """Keep PyMySQL from waiting for the rest of a result, on a connection that will be broken."""
    result: Any = getattr(cursor, "_result", None)
    if getattr(result, "unbuffered_active", False):
        result.unbuffered_active = False
        result.connection = None
    cursor.connection = None


def _unbuffered_cursor(connection: Connection) -> type[Any]:
    cursors = importlib.import_module(f"{connection.dialect.loaded_dbapi.__name__}.cursors")
    found: type[Any] = cursors.SSCursor
    return found


@contextlib.contextmanager
def _fastest(connection: Connection) -> Iterator[Connection]:
    """A connection through mysqlclient; the one that was given where that cannot be."""
    engine = _mysqlclient(connection.engine.url, os.getpid())
    if engine is None:
        yield connection
        return
    with contextlib.ExitStack() as stack:
        try:
            chosen = stack.enter_context(engine.connect())
        except SQLAlchemyError as error:
            _log.warning("mysqlclient cannot connect, so PyMySQL reads: %s", error)
            chosen = connection
        yield chosen


@functools.lru_cache(maxsize=64)
def _mysqlclient(url: URL, pid: int) -> Engine | None:
    """An engine of this process; None where mysqlclient is missing or the URL names it already."""
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
        own, isolation_level="AUTOCOMMIT", pool_size=1, max_overflow=-1, pool_pre_ping=True
    )
