"""PostgreSQL: its capabilities, expressions, sessions, errors, and what it does otherwise."""

from __future__ import annotations

import codecs
import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final

from sqlalchemy import (
    ARRAY,
    JSON,
    ColumnElement,
    Connection,
    Dialect,
    Float,
    Insert,
    Integer,
    Numeric,
    String,
    Table,
    Text,
    TypeDecorator,
    and_,
    bindparam,
    case,
    cast,
    false,
    func,
    literal_column,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.types import TypeEngine

from queue_over_sql.claiming.strategy import Claims
from queue_over_sql.dialects.at_once import AtOnceDialect
from queue_over_sql.dialects.postgresql.archive import PostgreSQLArchiving
from queue_over_sql.dialects.postgresql.checkup import PostgreSQLCheckup
from queue_over_sql.dialects.postgresql.claim import PostgreSQLClaims
from queue_over_sql.dialects.postgresql.errors import PostgreSQLErrors
from queue_over_sql.dialects.postgresql.insert import JsonText, PostgreSQLInserts
from queue_over_sql.dialects.postgresql.notifications import ListenNotify
from queue_over_sql.dialects.postgresql.plain_values import read_otherwise
from queue_over_sql.dialects.postgresql.pooler import Pooler
from queue_over_sql.dialects.postgresql.rounds import PostgreSQLRounds
from queue_over_sql.durable.rounds import Rounds
from queue_over_sql.publishing.strategy import Inserts
from queue_over_sql.settling.strategy import Archiving
from queue_over_sql.sql.checkup import Checkup
from queue_over_sql.sql.columns import Columns
from queue_over_sql.sql.compiled import direct_calls, run_text
from queue_over_sql.sql.conditions import LONE, NUL, JsonPath, JsonScalar, without_nul
from queue_over_sql.sql.dialect import BRIEF_SECONDS, OLDEST_SESSION
from queue_over_sql.sql.driver_calls import driver_connection, read_all_values, read_values_as_usual
from queue_over_sql.sql.error_kinds import Errors
from queue_over_sql.sql.expressions import microseconds
from queue_over_sql.sql.notifications import Notifications

# A number that other programs are unlikely to lock: the letters of "queue".
_CREATION_LOCK = 0x7175657565
# How long all others may wait behind a waiting ALTER.
_BRIEF_MILLISECONDS: Final = 100
# A disabled plan looks so expensive that the server would compile it, which takes 0.1 s.
_BY_INDEX = "SET enable_seqscan = off; SET enable_sort = off; SET jit = off"
_AS_USUAL = "RESET enable_seqscan; RESET enable_sort; RESET jit"
# A lone surrogate in JSON: a high one without a low one after it, or a low one alone.
_FIRST, _SECOND = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE_SURROGATE = rf"{_FIRST}(?!{_SECOND})|(?<!{_FIRST}){_SECOND}"
_READS_ONLY: Final = """
    SELECT pg_is_in_recovery(), setting, source
    FROM pg_settings WHERE name = 'default_transaction_read_only'"""
_TURN_OFF: Final = "SET default_transaction_read_only = off."
# Where a setting comes from that is not the whole server's, and how to undo it.
_OF_LOGINS: Final = {
    "user": f"Turn it off: ALTER ROLE … {_TURN_OFF}",
    "database": f"Turn it off: ALTER DATABASE … {_TURN_OFF}",
    "database user": f"Turn it off: ALTER ROLE … IN DATABASE … {_TURN_OFF}",
    "client": "Remove it from the options of the URL or engine, or from PGOPTIONS.",
    "session": "Remove what sets it when a connection opens.",
}
# https://www.postgresql.org/docs/current/catalog-pg-type.html: the oid of each type.
_FLOAT8, _NUMERIC = 701, 1700


# SQL_ASCII keeps the bytes that it gets.
_UNICODE: Final = ("UTF8", "SQL_ASCII")


class InEncoding(TypeDecorator[str]):
    """A text whose characters that an encoding of the server lacks are escaped."""

    impl = String
    cache_ok = True

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self.encoding = encoding
        try:
            # Python's names are the server's, but for those of Windows and KOI8.
            name = encoding.replace("WIN", "cp").replace("KOI8", "KOI8-")
            self._codec = codecs.lookup(name).name
        except LookupError:
            self._codec = "ascii"

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return value.encode(self._codec, "backslashreplace").decode(self._codec)


@functools.lru_cache(maxsize=1000)
def _identity_of(schema: str | None, table: str) -> str:
    # Each use of a caller's connection needs it.
    preparer = postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]
    name = preparer.quote(table)
    if schema is not None:
        name = f"{preparer.quote_schema(schema)}.{name}"
    name = name.replace("'", "''")
    return (
        "SELECT current_database() || ' ' || EXTRACT(EPOCH FROM pg_postmaster_start_time())"
        f" || ' ' || COALESCE(CAST(to_regclass('{name}') AS oid), 0)"
    )


def _columns(dialect: PostgreSQLDialect) -> Columns:
    from queue_over_sql.dialects.postgresql.columns import PostgreSQLColumns

    return PostgreSQLColumns(dialect)


class PostgreSQLDialect(AtOnceDialect):
    """PostgreSQL 12 or newer through psycopg 3."""

    name = "postgresql"
    skip_locked = True
    scopes_settings = True
    name_query = "SELECT current_database()"
    checks_json = True
    nul_in_text = False
    # information_schema only shows what the login has rights to.
    columns_query = """
        SELECT t.relname, a.attname
        FROM pg_catalog.pg_class t
        JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid
        JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
        WHERE t.relname IN :names AND a.attnum > 0 AND NOT a.attisdropped
          AND CASE WHEN CAST(:schema AS text) IS NULL THEN pg_table_is_visible(t.oid)
                   ELSE n.nspname = CAST(:schema AS text) END"""
    routines = "plpgsql"
    # The first version with MATERIALIZED.
    oldest_version: ClassVar = (12,)
    too_old = "PostgreSQL {needed} or newer is required; this server is {found}."
    replaces_routines = True
    session_seconds = OLDEST_SESSION
    stage_table_options: ClassVar[Mapping[str, Any]] = {
        "prefixes": ["UNLOGGED"],
        "postgresql_with": {"autovacuum_enabled": False},
    }
    # Frequent vacuums, because claims must read over the dead rows.
    live_table_options: ClassVar[Mapping[str, Any]] = {
        "postgresql_with": {
            "autovacuum_vacuum_scale_factor": 0.01,
            "autovacuum_vacuum_threshold": 500,
            "autovacuum_vacuum_insert_scale_factor": 0.1,
            "autovacuum_vacuum_cost_delay": 0,
            "autovacuum_analyze_scale_factor": 0.1,
        }
    }

    strategies: ClassVar[Mapping[type, Callable[[Any], Any]]] = {
        Archiving: PostgreSQLArchiving,
        Checkup: PostgreSQLCheckup,
        Claims: PostgreSQLClaims,
        Columns: _columns,
        Errors: lambda dialect: PostgreSQLErrors(dialect, dialect.pooler),
        Inserts: PostgreSQLInserts,
        Notifications: lambda dialect: ListenNotify(dialect, dialect.pooler),
        Rounds: PostgreSQLRounds,
    }

    def __init__(self) -> None:
        self.pooler = Pooler()
        self._encoding = "UTF8"

    def notice_pooler(self, connection: Connection) -> None:
        self.pooler.notice(connection)

    def check_caller(self, connection: Connection) -> None:
        self.pooler.check(connection)
        if connection.dialect.driver != "psycopg":
            return
        if odd := read_otherwise(driver_connection(connection)):
            msg = (
                f"connection= reads {', '.join(odd)} as other types than int and str, so the queue "
                "cannot compare them. Register your loaders on cursors instead of the connection; "
                "where texts are bytes, open it with client_encoding=utf8."
            )
            raise ValueError(msg)

    def refine(self, connection: Connection) -> None:
        super().refine(connection)
        self._encoding = str(connection.exec_driver_sql("SHOW server_encoding").scalar_one())

    def reason_type(self) -> TypeEngine[Any]:
        return super().reason_type() if self._encoding in _UNICODE else InEncoding(self._encoding)

    def payload_type(self, payload: str) -> TypeEngine[Any]:
        """``json``, because ``jsonb`` halved the publish rate and reorders keys."""
        return JsonText() if payload == "json" else super().payload_type(payload)

    def read_payload(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Read JSON as its text, unchanged, so that all decoding is in one place."""
        return cast(column, Text) if isinstance(column.type, JsonText) else column

    def differs(self, column: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[bool]:
        """Compare JSON by its text, because the type has no equality."""
        if isinstance(column.type, JsonText | JSON):
            column, other = cast(column, Text), cast(other, Text)
        return column.is_distinct_from(other)

    def payload_equals(
        self, column: ColumnElement[Any], path: JsonPath, value: JsonScalar
    ) -> ColumnElement[bool]:
        """Compare ``json_typeof`` and the field's text; numbers as NUMERIC, which is exact."""
        field: ColumnElement[Any] = _readable(column)
        for step in path:
            kind = Integer() if isinstance(step, int) else Text()
            field = field.op("->")(bindparam(None, step, type_=kind))
        kind_of, found = func.json_typeof(field), field.op("#>>")(literal_column("'{}'"))
        if value is None:
            return kind_of == "null"
        if isinstance(value, bool):
            return and_(kind_of == "boolean", found == ("true" if value else "false"))
        if isinstance(value, str):
            return and_(kind_of == "string", found == value.replace("\0", NUL))
        number = cast(found, Numeric) == cast(repr(value), Numeric)
        # CASE, because AND may evaluate its right side first and cast what is not a number.
        return case((kind_of == "number", number), else_=false())

    def result_code(self, kind: TypeEngine[Any]) -> Any:
        """SQLAlchemy must know whether a number is ``float8`` or ``numeric``."""
        while isinstance(kind, TypeDecorator | ARRAY):
            kind = kind.item_type if isinstance(kind, ARRAY) else kind.impl_instance
        if isinstance(kind, Float):
            return _FLOAT8
        return _NUMERIC if isinstance(kind, Numeric) else None

    def now(self) -> ColumnElement[int]:
        """The statement's start: stable, so an index scan can use it; new in each statement."""
        return microseconds("CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)")

    def table_flaw(self, connection: Connection, table: Table) -> str | None:
        kind, _ = self._kept_as(connection, table)
        if kind not in {"f", "t"}:
            return None
        what = "a temporary table" if kind == "t" else "a foreign table"
        return f"{what} cannot be a queue. Use an ordinary table"

    def is_emptied_by_crash(self, connection: Connection, table: Table) -> bool:
        return self._kept_as(connection, table)[1]

    @staticmethod
    def _kept_as(connection: Connection, table: Table) -> tuple[str, bool]:
        name = connection.dialect.identifier_preparer.format_table(table)
        query = (
            "SELECT CASE relpersistence WHEN 't' THEN 't' ELSE relkind END, relpersistence = 'u'"
            " FROM pg_class WHERE oid = to_regclass(:name)"
        )
        row = connection.execute(text(query), {"name": name}).one_or_none()
        return ("", False) if row is None else (str(row[0]), bool(row[1]))

    def database_identity(self, table: Table) -> str | None:
        """The database, the server's start time in microseconds, and the table."""
        return _identity_of(table.schema, table.name)

    def moves(self, table: Table) -> bool:
        """By its ``search_path``."""
        return table.schema is None

    def prepare_session(self, connection: Connection, *, durable: bool) -> None:
        """Allow only plans along an index, because the server keeps prepared plans.

        A plan from when the queue was nearly empty reads and sorts the whole table until the next
        ANALYZE: after a burst of 200,000 messages a claim took 110 ms instead of 0.4. Planning each
        run (``plan_cache_mode``) would halve the rate of single messages. Behind a pooler that
        shares sessions nothing is set, because the next client would get the settings.
        """
        if self._plans_by_index(connection):
            run_text(connection, _BY_INDEX)
        if connection.dialect.driver == "psycopg":
            read_all_values(driver_connection(connection))

    def restore_session(self, connection: Connection) -> None:
        """Restore the planning and the reading of values for other users."""
        if connection.dialect.driver == "psycopg":
            read_values_as_usual(driver_connection(connection))
        if self._plans_by_index(connection):
            run_text(connection, _AS_USUAL)

    @contextlib.contextmanager
    def reading_all(self, connection: Connection) -> Iterator[None]:
        if connection.dialect.driver != "psycopg" or direct_calls(connection) is not None:
            yield
            return
        read_all_values(driver_connection(connection))
        try:
            yield
        finally:
            read_values_as_usual(driver_connection(connection))

    @contextlib.contextmanager
    def scanning(self, connection: Connection) -> Iterator[None]:
        if direct_calls(connection) is None or not self._plans_by_index(connection):
            yield
            return
        run_text(connection, _AS_USUAL)
        try:
            yield
        finally:
            # A failed transaction accepts no settings; its end undoes them.
            with contextlib.suppress(SQLAlchemyError):
                run_text(connection, _BY_INDEX)

    def _plans_by_index(self, connection: Connection) -> bool:
        return not self.pooler.shares_sessions and _prepares(connection)

    @property
    def keeps_settings(self) -> bool:  # type: ignore[override] # known when it has connected
        return not self.pooler.shares_sessions

    def limit_lock_waits(self, connection: Connection, seconds: int) -> str:
        local = "" if self.keeps_settings else "LOCAL "
        run_text(connection, f"SET {local}lock_timeout = '{seconds}s'")
        return "RESET lock_timeout" if self.keeps_settings else ""

    @contextlib.contextmanager
    def creating(
        self, connection: Connection, schema: str | None, *, brief: bool = False
    ) -> Iterator[None]:
        """CREATE … IF NOT EXISTS can fail in a race; the commit releases the lock.

        The limit comes first, because the server's own is usually none.
        """
        turn, use = (BRIEF_SECONDS,) * 2 if brief else (self.creation_seconds, self.lock_seconds)
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{int(turn * 1000)}ms'")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{use}s'")
        yield

    @contextlib.contextmanager
    def waiting_briefly(self, connection: Connection) -> Iterator[None]:
        """Wait briefly, because all later users of the table wait behind a waiting ALTER."""
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_BRIEF_MILLISECONDS}ms'")
        yield

    def server_reads_only(self, connection: Connection) -> bool:
        """In recovery, or by its configuration, as some services set it on a full disk."""
        in_recovery, value, source = connection.exec_driver_sql(_READS_ONLY).one()
        return in_recovery or (value == "on" and source not in _OF_LOGINS)

    def reading_setting(self, connection: Connection) -> str | None:
        """``default_transaction_read_only``, and where it is set."""
        _, value, source = connection.exec_driver_sql(_READS_ONLY).one()
        if value != "on" or source not in _OF_LOGINS:
            return None
        return (
            "The setting default_transaction_read_only is on for this login, set for the "
            f"{source}. {_OF_LOGINS[source]}"
        )

    def insert(self, table: Table) -> Insert:
        return postgresql.insert(table)


def _readable(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """JSON without the escapes that a server stores but then fails to read."""
    text = cast(column, Text)
    readable = func.regexp_replace(without_nul(text), _LONE_SURROGATE, LONE, "g")
    return case((func.strpos(text, "\\u") > 0, cast(readable, JSON)), else_=cast(column, JSON))


def _prepares(connection: Connection) -> bool:
    driver = driver_connection(connection) if connection.dialect.driver == "psycopg" else None
    return getattr(driver, "prepare_threshold", None) is not None
