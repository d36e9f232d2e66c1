"""Columns of PostgreSQL: read through ADBC or a binary cursor, written by COPY, taken as CSV."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import logging
import os
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import Array, RecordBatch, csv
from sqlalchemy import (
    CTE,
    BigInteger,
    BindParameter,
    Boolean,
    ColumnElement,
    Connection,
    Float,
    Integer,
    LargeBinary,
    Select,
    SmallInteger,
    String,
    Table,
    Text,
    cast,
    delete,
    event,
    func,
    insert,
    literal_column,
    null,
    select,
)
from sqlalchemy.dialects.postgresql import asyncpg
from sqlalchemy.exc import DisconnectionError, SQLAlchemyError
from sqlalchemy.pool import QueuePool
from sqlalchemy.sql.dml import ReturningDelete
from sqlalchemy.sql.elements import ClauseList
from sqlalchemy.sql.visitors import replacement_traverse
from sqlalchemy.types import NullType, TypeEngine

from queue_over_sql.archive import statements as archive
from queue_over_sql.arrow.rows import (
    FACTS,
    HEADERS,
    INSTANT,
    RowColumns,
    batches_of_rows,
    bounded,
    conformed_batches,
    converters_of,
    rows_of,
    schema_of,
)
from queue_over_sql.arrow.types import conformed, is_plain
from queue_over_sql.dialects.postgresql.insert import copy_in, copy_statement
from queue_over_sql.dialects.postgresql.pooler import conninfo_of
from queue_over_sql.queues.registry import may_claim
from queue_over_sql.schema.queue_tables import QueueTables
from queue_over_sql.sql.compiled import CompiledStatement, StatementCache
from queue_over_sql.sql.driver_calls import driver_connection, driver_errors, translated
from queue_over_sql.statements import claims as claim
from queue_over_sql.statements.parameters import next_attempt, number
from queue_over_sql.values.states import Outcome

_log = logging.getLogger(__name__)
# How long ADBC connections are kept, because a new one first reads the server's types.
_KEPT_SECONDS: Final = 60
# Drivers up to 1.3 lose the settings that hold a statement's values, and so silently find no rows.
# Those up to 1.10 end the process when they notice a lost connection.
_OLDEST_ADBC: Final = (1, 11)
HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER: Final = b"\xff\xff"
_WIDEST_SINGLE: Final = 24


def wire_type(kind: TypeEngine[Any]) -> str | None:
    """The layout of a column's values: a NumPy type, or "" for bytes; None if unknown."""
    # From special to general, since a BigInteger is also an Integer.
    known = ((SmallInteger, ">i2"), (BigInteger, ">i8"), (Integer, ">i4"), (Boolean, ">u1"))
    for family, layout in known:
        if isinstance(kind, family):
            return layout
    if isinstance(kind, Float):
        return ">f8" if kind.precision is None or kind.precision > _WIDEST_SINGLE else None
    plain = isinstance(kind, String | LargeBinary) or type(kind).__name__ == "JsonText"
    return "" if plain else None


def encoded(batch: RecordBatch, layouts: Mapping[str, str]) -> Iterator[memoryview]:
    """The rows of a batch in binary form: the columns of ``layouts``, in this order."""
    for part in bounded(batch.select(list(layouts))):
        if part.num_rows:
            yield _joined(_pieces(part, list(layouts.values())))


def _joined(pieces: Sequence[Array]) -> memoryview:
    rows = pc.binary_join_element_wise(*pieces, b"") if len(pieces) > 1 else pieces[0]
    offsets = np.frombuffer(rows.buffers()[1], np.int32)
    data = memoryview(rows.buffers()[2])
    return data[int(offsets[rows.offset]) : int(offsets[rows.offset + len(rows)])]


class _Record:
    """Consecutive bytes of fixed width in every row."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._fields: list[tuple[str, Any]] = []

    def add(self, layout: str, values: Any) -> None:
        self._fields.append((layout, values))

    def take(self) -> list[Array]:
        """Return the added bytes as one array, or nothing."""
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
        # The conversion to NumPy lost the NULLs of numbers.
        return pc.if_else(column.is_valid(), value, pa.scalar(None, pa.binary()))
    return value.cast(pa.binary())


def _lengths(value: Array) -> Any:
    return pc.binary_length(value).fill_null(-1).to_numpy(zero_copy_only=False)


def _fixed(record: Any) -> Array:
    width = record.dtype.itemsize
    offsets = np.arange(0, width * (len(record) + 1), width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(record)]
    return pa.Array.from_buffers(pa.binary(), len(record), buffers)


_SIZE_HINT: Final = "adbc.postgresql.batch_size_hint_bytes"


class PostgreSQLColumns(RowColumns):
    """Reads columns through ADBC or binary cursors, and writes them by COPY."""

    def read_column(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """As text, unless both ways of reading return the same values."""
        return column if is_plain(column.type) else cast(column, Text)

    def read_content(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Unchanged: both ways return JSON as text, and a cast is slow on the server."""
        return column

    def read(
        self,
        connection: Connection,
        statement: Select[Any],
        schema: pa.Schema,
        batch_bytes: int,
    ) -> Generator[pa.RecordBatch]:
        """Read through ADBC if it is installed, else through a binary cursor."""
        if connection.dialect.driver != "psycopg":
            yield from super().read(connection, statement, schema, batch_bytes)
            return
        with _adbc_link(connection) as link:
            if link is not None:
                yield from _by_copy(connection, link, statement, schema, batch_bytes)
                return
        yield from _by_cursor(connection, statement, schema, batch_bytes)

    def write(
        self,
        connection: Connection,
        table: Table,
        names: Sequence[str],
        batches: Iterable[RecordBatch],
    ) -> int:
        """Write by COPY: binary if all types are plain, else as text."""
        if connection.dialect.driver != "psycopg" or connection.dialect.is_async:
            return super().write(connection, table, names, batches)
        found = {name: wire_type(table.c[name].type) for name in names}
        layouts = {name: layout for name, layout in found.items() if layout is not None}
        with driver_errors(connection, "COPY"):
            if len(layouts) < len(found):
                return _copy_text(connection, table, names, batches)
            # Numbers first, because columns of fixed width are laid out in one step.
            ordered = sorted(names, key=lambda name: not layouts[name])
            return _copy_binary(
                connection, table, {name: layouts[name] for name in ordered}, batches
            )

    def take(
        self, connection: Connection, sql: StatementCache, values: Mapping[str, Any], *, keep: bool
    ) -> pa.RecordBatch | None:
        """Pick, remove and archive in one statement; None if CSV would change the types."""
        schema = schema_of(sql.subject)
        if connection.dialect.driver != "psycopg" or not all(map(_kept_by_csv, schema.types)):
            return None
        if not connection.in_transaction():
            # COPY bypasses SQLAlchemy, which must still know of the transaction.
            connection.begin()
        text, parameters = sql.get(take_at_once, keep).bound(
            {**values, **(_ARCHIVED if keep else {})}
        )
        copied = f"COPY ({text}) TO STDOUT (FORMAT csv, ENCODING 'UTF8')"
        with (
            driver_errors(connection, copied),
            driver_connection(connection).cursor() as cursor,
            cursor.copy(copied, {name: _quoted(each) for name, each in parameters.items()}) as copy,
        ):
            content = b"".join(map(bytes, copy))
        # RETURNING has no order.
        return _read(content, schema).sort_by([("available_at", "ascending"), ("id", "ascending")])


def _quoted(value: Any) -> Any:
    # psycopg writes parameters of COPY into its text, where -9223372036854775808::BIGINT means
    # -(9223372036854775808::BIGINT), which is out of range.
    return str(value) if isinstance(value, int) and value < 0 else value


@contextlib.contextmanager
def _adbc_link(connection: Connection) -> Iterator[Any]:
    """An ADBC connection to the same database; None if that is impossible.

    Its transaction begins with its first statement, and is rolled back at the end.
    """
    link = _link(connection)
    if link is None:
        yield None
        return
    try:
        yield link
    except BaseException:
        link.invalidate()
        raise
    finally:
        link.close()


@contextlib.contextmanager
def _adbc_errors(connection: Connection) -> Iterator[None]:
    """Raise SQLAlchemy's errors for ADBC's."""
    adbc_error = importlib.import_module("adbc_driver_manager").Error
    try:
        yield
    except adbc_error as error:
        # Errors without a server code are connection errors.
        lost = not getattr(error, "sqlstate", None)
        raise translated("COPY", error, adbc_error, connection.dialect, lost=lost) from error


def _link(connection: Connection) -> Any:
    try:
        driver = importlib.import_module("adbc_driver_postgresql.dbapi")
    except ImportError:
        return None
    if not _is_new_enough(importlib.import_module("adbc_driver_postgresql").__version__):
        return None
    try:
        return _pool(driver, conninfo_of(connection), os.getpid()).connect()
    except Exception as error:  # noqa: BLE001 - whatever it is, there is another way
        _log.warning("ADBC cannot connect, so psycopg is used instead: %s", error)
        return None


@functools.cache
def _is_new_enough(version: str) -> bool:
    if tuple(map(int, re.findall(r"\d+", version)[:2])) >= _OLDEST_ADBC:
        return True
    _log.warning(
        "adbc-driver-postgresql %s is older than %s, so psycopg is used instead: "
        "install the extra adbc of queue-over-sql",
        version,
        ".".join(map(str, _OLDEST_ADBC)),
    )
    return False


@functools.lru_cache(maxsize=64)
def _pool(driver: Any, conninfo: str, pid: int) -> QueuePool:
    """The pool of this process; a forked child must not touch its parent's connections."""
    pool = QueuePool(
        lambda: driver.connect(conninfo), pool_size=8, max_overflow=-1, recycle=_KEPT_SECONDS
    )
    event.listen(pool, "checkout", _check)
    atexit.register(lambda: pool.dispose() if pid == os.getpid() else None)
    return pool


def _check(link: Any, *_: object) -> None:
    try:
        with link.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchall()
    except Exception as error:
        raise DisconnectionError from error


def _by_copy(
    connection: Connection,
    link: Any,
    statement: Select[Any],
    schema: pa.Schema,
    batch_bytes: int,
) -> Iterator[pa.RecordBatch]:
    plain, values = _with_settings(connection, statement)
    # Another driver's dialect, because psycopg's would double each percent sign.
    text = str(plain.compile(dialect=asyncpg.dialect()))  # type: ignore[no-untyped-call]
    with _adbc_errors(connection):
        if values:
            _set(link, values)
        with link.cursor() as cursor:
            cursor.adbc_statement.set_options(**{_SIZE_HINT: str(batch_bytes)})
            cursor.execute(text)
            yield from conformed_batches(cursor.fetch_record_batch(), schema, batch_bytes)


def _set(link: Any, values: Mapping[str, str]) -> None:
    marks = [f"set_config('{name}', ${index}, true)" for index, name in enumerate(values, start=1)]
    with link.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(marks)}", tuple(values.values()))
        cursor.fetchall()


def _json_as_text() -> type[Any]:
    loader: type[Any] = importlib.import_module("psycopg.types.string").TextBinaryLoader
    return loader


def _with_settings(
    connection: Connection, statement: Select[Any]
) -> tuple[Select[Any], dict[str, str]]:
    """The statement without parameters, and the settings from which it reads their values."""
    values: dict[str, str] = {}

    def looked_up(bind: BindParameter[Any], value: Any) -> ColumnElement[Any]:
        if value is None:
            return null()
        name = f"queue_over_sql.p{len(values)}"
        values[name] = _as_text(connection, bind, value)
        found = func.current_setting(literal_column(f"'{name}'"), type_=Text())
        return found if isinstance(bind.type, NullType) else cast(found, bind.type)

    def replace(element: Any, **_: Any) -> Any:
        if not isinstance(element, BindParameter):
            return None
        value = element.effective_value
        if element.expanding:
            return ClauseList(*[looked_up(element, each) for each in value or ()]).self_group()
        return looked_up(element, value)

    plain: Any = replacement_traverse(statement, {}, replace)
    return plain, values


def _as_text(connection: Connection, bind: BindParameter[Any], value: Any) -> str:
    dialect = connection.dialect
    process = bind.type.dialect_impl(dialect).bind_processor(dialect)
    processed = value if process is None else process(value)
    if isinstance(processed, bytes):
        return f"\\x{processed.hex()}"
    return processed.isoformat() if hasattr(processed, "isoformat") else str(processed)


def _by_cursor(
    connection: Connection, statement: Select[Any], schema: pa.Schema, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    text, parameters = CompiledStatement(statement, connection.dialect).bound()
    connection.exec_driver_sql("BEGIN READ ONLY")
    try:
        with (
            driver_errors(connection, text),
            driver_connection(connection).cursor("queue_over_sql_reading") as cursor,
        ):
            # Otherwise psycopg would decode it.
            cursor.adapters.register_loader("json", _json_as_text())
            cursor.execute(text, parameters, binary=True)
            yield from batches_of_rows(cursor.fetchmany, schema, batch_bytes)
    finally:
        with contextlib.suppress(SQLAlchemyError):
            connection.exec_driver_sql("ROLLBACK")


def _copy_binary(
    connection: Connection,
    table: Table,
    layouts: Mapping[str, str],
    batches: Iterable[RecordBatch],
) -> int:
    count = 0
    statement = copy_statement(connection, table, list(layouts)) + " (FORMAT BINARY)"
    with driver_connection(connection).cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(HEADER)
        for batch in batches:
            for rows in encoded(batch, layouts):
                copy.write(rows)
            count += batch.num_rows
        copy.write(TRAILER)
    return count


def _copy_text(
    connection: Connection, table: Table, names: Sequence[str], batches: Iterable[RecordBatch]
) -> int:
    converters = converters_of(connection, table, names)
    count = 0

    def rows() -> Iterator[Sequence[Any]]:
        nonlocal count
        for batch in batches:
            yield from rows_of(batch.select(list(names)), converters)
            count += batch.num_rows

    copy_in(connection, copy_statement(connection, table, names), rows())
    return count


_ARCHIVED: Final = {"p_outcome": Outcome.DONE, "p_error": None, "p_attempted": None}


def take_at_once(tables: QueueTables, keep: bool) -> ReturningDelete[Any] | Select[Any]:
    """Pick, lock and remove; with ``keep`` also write to the archive.

    It joins by ``ctid``, because for ids the planner would scan the whole table. A row that changed
    while it was being locked is not found, and stays in the queue for the next take.
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
        # What may expire needs a look at each message.
        .where(claim.eligible(tables, None), may_claim(tables), tables.live.c.expires_at.is_(None))
        .order_by(*claim.oldest_first(tables))
        .limit(number("p_count"))
        .with_for_update(skip_locked=True)
        .cte("picked")
        .prefix_with("MATERIALIZED")
    )


def _columns(tables: QueueTables, source: Table | CTE) -> list[Any]:
    read = tables.expressions.read_payload
    special = {
        "payload": read(source.c.payload),
        "headers": read(source.c.headers),
        # The number of this delivery; a rollback undoes it.
        "attempt_count": next_attempt(source),
    }
    facts = [special.get(column, source.c[column]).label(name) for name, column, _ in FACTS]
    return [*facts, *[source.c[name] for name in tables.own_columns]]


def _kept_by_csv(kind: pa.DataType) -> bool:
    plain = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string)
    return kind in (HEADERS, INSTANT) or any(is_kind(kind) for is_kind in plain)


def _read(content: bytes, schema: pa.Schema) -> pa.RecordBatch:
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
            # CSV quotes an empty text, but not NULL.
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
