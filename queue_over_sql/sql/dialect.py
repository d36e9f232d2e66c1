"""The interface to an engine: its capabilities, sessions and errors, and its strategies."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar, cast

from sqlalchemy import Connection, Table, bindparam, inspect, select, text
from sqlalchemy.exc import DBAPIError, SAWarning
from sqlalchemy.types import TypeEngine

from queue_over_sql.errors import UnsupportedByEngine
from queue_over_sql.sql.checkup import Checkup
from queue_over_sql.sql.columns import Columns
from queue_over_sql.sql.compiled import StatementCache, run_text
from queue_over_sql.sql.driver_calls import sever
from queue_over_sql.sql.error_kinds import Errors
from queue_over_sql.sql.expressions import SqlDialect
from queue_over_sql.sql.notifications import Notifications
from queue_over_sql.values.cached import cached_property

P = TypeVar("P")
BRIEF_SECONDS: Final = 1
"""How long background work waits for the locks of others."""


@contextlib.contextmanager
def accepting_any_type() -> Iterator[None]:
    """Reflect tables of users without a warning; values of an unknown type come from the driver."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Did not recognize type", SAWarning)
        yield


OLDEST_SESSION: Final = 900.0
"""How many seconds a session of a server may last, for ``session_seconds``."""


class QueueDialect(SqlDialect):
    """The portable dialect, and the base class of those for known engines.

    The class attributes are capabilities; a dialect refines them from the server's version in
    ``refine``.
    """

    # -- capabilities
    id_step: ClassVar[str | None] = None
    """SQL for the distance between the ids of a multi-row INSERT, in the session that runs it.

    The ids begin at the last insert id. None: they cannot be computed.
    """
    aborts_on_error = True
    """A failed statement aborts the transaction, so one that may fail needs a savepoint."""
    undoes_failed_insert = True
    """A multi-row INSERT that fails leaves none of its rows."""
    scopes_settings = False
    """SET LOCAL and SET TRANSACTION end with the transaction."""
    ddl_commits = True
    """DDL commits, so a killed process may leave tables without a record."""
    index_if_not_exists = True
    """CREATE INDEX IF NOT EXISTS works."""
    columns_query: str | None = None
    """A query for tables ``:names`` in ``:schema`` and their columns; None: use the inspector."""
    name_query: str | None = None
    """A query for the name of the connected database, for messages; empty if it has none."""
    alters_in_view = False
    """A table can seem to be missing or broken for a moment while another process alters it."""
    alters_alone = False
    """An ALTER beside other work can destroy the database, so an upgrade waits to be alone."""
    statement_bytes: int | None = None
    """The server's limit for the size of a statement; None: none that matters."""
    unreachable_hint = (
        "check that it is running, that address and password are correct, and that it has a "
        "connection left for each thread"
    )
    """Advice for when the database cannot be reached."""
    locked_hint = ""
    """Further advice for when the database stays locked."""
    creation_seconds = 30.0
    """How long the creation of tables is repeated while the database is locked."""
    creation_hint = ""
    """What to ask when it stays locked for a creation, or for the first connection."""
    session_seconds = math.inf
    """How old a session may become; a switchover can leave the old server's alive."""
    lock_seconds = 10
    """How long the creation and removal of tables waits for transactions that use them."""
    look_first = False
    """An idle claim should read before it writes, because writing takes the only write lock."""
    keeps_settings = True
    """A session keeps its settings between transactions."""
    separate_durable_sessions = False
    """Publishing needs a connection with a stricter durability than claiming."""
    has_files = False
    """This process itself reads and writes the files of the database, so it can lose them."""
    routines: str | None = None
    """The server's word for stored routines in the SQL API; None: it has no SQL API."""
    replaces_routines = False
    """CREATE OR REPLACE works for stored routines and keeps the rights on them."""

    oldest_version: ClassVar[tuple[int, ...]] = ()
    """Servers of earlier versions are refused."""
    too_old: ClassVar[str] = ""
    """The error for them, with the versions ``needed`` and ``found``."""

    # -- strategies

    strategies: ClassVar[Mapping[type, Callable[[Any], Any]]] = {}
    """What this engine does otherwise: its class, or a maker of it, by the portable class."""

    @cached_property
    def _made(self) -> dict[type, Any]:
        return {}

    def strategy(self, portable: type[P]) -> P:
        """The engine's own way to do something; the portable one where it has none.

        Args:
            portable: the class of the portable way, which the engine's class extends.
        """
        found = self._made.get(portable)
        if found is None:
            make = self.strategies.get(portable, portable)
            found = self._made[portable] = make(self)
        return cast("P", found)

    @property
    def errors(self) -> Errors:
        """Says what the errors of this engine's drivers mean."""
        return self.strategy(Errors)

    @property
    def columns(self) -> Columns:
        """Reads, writes and takes Arrow columns; needs PyArrow."""
        return self.strategy(Columns)  # type: ignore[type-abstract]

    @property
    def notifications(self) -> Notifications:
        """Notifies consumers of messages that other processes publish."""
        return self.strategy(Notifications)

    @property
    def checkup(self) -> Checkup:
        """The check-up of this engine for operators."""
        return self.strategy(Checkup)

    # -- versions and poolers

    def refine(self, connection: Connection) -> None:
        """Set capabilities by the server's version; called once, on the first connection.

        Raises:
            UnsupportedByEngine: the server is too old, or its clock cannot be read.
        """
        if self.oldest_version:
            self._refuse_older(connection.dialect.server_version_info)
            return
        self.insert_returning = connection.dialect.insert_returning
        try:
            self.read_clock(connection)
        except DBAPIError as error:
            msg = (
                f"The engine {connection.dialect.name!r} cannot run queues: the portable dialect "
                "needs EXTRACT(EPOCH FROM CURRENT_TIMESTAMP)."
            )
            raise UnsupportedByEngine(msg) from error

    def read_clock(self, connection: Connection) -> int:
        """The database's clock, in microseconds since the epoch."""
        return int(connection.execute(select(self.now())).scalar_one())

    def present_columns(
        self, connection: Connection, tables: Sequence[Table]
    ) -> dict[str, set[str]]:
        """The columns of the existing tables among these, which are of one schema, by table."""
        names, schema = [table.name for table in tables], tables[0].schema
        if self.columns_query is None:
            inspector = inspect(connection)
            return {
                name: {column["name"] for column in inspector.get_columns(name, schema)}
                for name in names
                if inspector.has_table(name, schema)
            }
        found: dict[str, set[str]] = {}
        sa_dialect = connection.dialect
        if sa_dialect.requires_name_normalize:
            names = [sa_dialect.denormalize_name(name) for name in names]
            schema = None if schema is None else sa_dialect.denormalize_name(schema)
        query = text(self.columns_query).bindparams(bindparam("names", expanding=True))
        for row in connection.execute(query, {"names": names, "schema": schema}):
            table, column = row
            if sa_dialect.requires_name_normalize:
                table, column = map(sa_dialect.normalize_name, row)
            found.setdefault(table, set()).add(column)
        return found

    def index_names(self, connection: Connection, table: Table) -> set[str | None]:
        """The names of a table's indexes in the database."""
        with accepting_any_type():
            found = inspect(connection).get_indexes(table.name, schema=table.schema)
        return {index["name"] for index in found}

    def table_flaw(self, connection: Connection, table: Table) -> str | None:
        """Why a user's table cannot hold messages safely, and what to do; None if it can."""
        return None

    def is_emptied_by_crash(self, connection: Connection, table: Table) -> bool:
        """Whether a user's table is empty after a crash of the server."""
        return False

    def _refuse_older(self, version: tuple[Any, ...] | None) -> None:
        if version is not None and version < self.oldest_version:
            needed, found = (".".join(map(str, v)) for v in (self.oldest_version, version))
            raise UnsupportedByEngine(self.too_old.format(needed=needed, found=found))

    def notice_pooler(self, connection: Connection) -> None:
        """Find out whether sessions are shared with others; called once, on the service's engine.

        Raises:
            UnsupportedByEngine: the driver's options do not work with this pooler.
        """

    def check_caller(self, connection: Connection) -> None:
        """Refuse a caller's connection whose driver options do not work with us or its pooler.

        Raises:
            UnsupportedByEngine: they do not work with its pooler.
            ValueError: it reads whole numbers or texts as other types.
        """

    def result_code(self, kind: TypeEngine[Any]) -> Any:
        """The driver's type code, if SQLAlchemy needs it to read values of the type."""
        return None

    def exact_converter(
        self, kind: TypeEngine[Any], convert: Callable[[Any], Any] | None
    ) -> Callable[[Any], Any] | None:
        """A converter that returns a driver's value as it is, where ``convert`` would change it."""
        return convert

    def add_columns(self, table: str, specifications: Sequence[str]) -> list[str]:
        """The statements that add columns to a table that may be large."""
        return [f"ALTER TABLE {table} ADD COLUMN {column}" for column in specifications]

    def add_column_in_use(self, table: str, specification: str) -> list[str]:
        """Alternative statements that add a column while others use the table, the best first."""
        return [f"ALTER TABLE {table} ADD COLUMN {specification}"]

    def drop_columns(self, table: str, names: Sequence[str]) -> list[str]:
        """The statements that drop columns of a table that may be large."""
        return [f"ALTER TABLE {table} DROP COLUMN {name}" for name in names]

    def database_identity(self, table: Table) -> str | None:
        """SQL that identifies a database in its first column; None if nothing does.

        If a session can choose its schema, it includes the identity of ``table``. Further columns
        are the settings of the session for ``respecting``.
        """
        return None

    def moves(self, table: Table) -> bool:
        """Whether a session can come to take another table for this one, as by ``USE``."""
        return False

    @contextlib.contextmanager
    def respecting(
        self, connection: Connection, settings: Sequence[Any] | None = None
    ) -> Iterator[None]:
        """Run our statements in a session whose settings are not ours.

        Args:
            connection: a caller's, or a handler's.
            settings: what ``database_identity`` read; None: those with which we opened it.

        Raises:
            ValueError: values would be stored changed.
        """
        yield

    # -- connections

    def prepare_session(self, connection: Connection, *, durable: bool) -> None:
        """Set up the session of a long-held connection."""

    def restore_session(self, connection: Connection) -> None:
        """Undo what ``prepare_session`` set and others must not find."""

    @contextlib.contextmanager
    def reading_all(self, connection: Connection) -> Iterator[None]:
        """Read rows on a caller's connection even if Python cannot hold one of their values.

        Sessions read so from ``prepare_session`` on.
        """
        yield

    @contextlib.contextmanager
    def scanning(self, connection: Connection) -> Iterator[None]:
        """Let the engine read whole tables during the block."""
        yield

    def begin(self, connection: Connection) -> None:
        """Begin a transaction on an autocommit connection."""
        run_text(connection, "BEGIN")

    def commit(self, connection: Connection) -> None:
        """Commit what ``begin`` began."""
        run_text(connection, "COMMIT")

    def rollback(self, connection: Connection) -> None:
        """Roll back what ``begin`` began."""
        run_text(connection, "ROLLBACK")

    def limit_lock_waits(self, connection: Connection, seconds: int) -> str:
        """Limit how long this session waits for locks; returns the statement that undoes this.

        Where the session does not keep its settings, this transaction. Empty if there is nothing to
        set: then the engine does not wait by itself.
        """
        return ""

    @contextlib.contextmanager
    def creating(
        self, connection: Connection, schema: str | None, *, brief: bool = False
    ) -> Iterator[None]:
        """Let one creator of tables run at a time, in a transaction.

        This may commit what the transaction did before.

        Args:
            connection: in a transaction.
            schema: the schema of the tables; None for the connection's.
            brief: give up after ``BRIEF_SECONDS`` on another creator, or on a table in use.

        Raises:
            Locked: another creator held the lock for longer than ``brief`` allows.
        """
        yield

    @contextlib.contextmanager
    def waiting_briefly(self, connection: Connection) -> Iterator[None]:
        """Inside ``creating``: give up soon on a table in use, because others wait behind."""
        yield

    def count_others(self, connection: Connection) -> int | None:
        """How many other sessions are open, where ``alters_alone``; None: this login cannot see."""
        return 0

    def wait_until_unused(self, connection: Connection, table: Table) -> None:
        """Wait for transactions that use a table, if DDL cannot be rolled back.

        A table that the same transaction drops needs no such wait.
        """

    def misplaced_file(self, connection: Connection) -> str | None:
        """Why a file of this connection is not in its place, and what to do; None if it is."""
        return None

    def maintenance(
        self, run: Callable[[Callable[[Connection], Any]], Any], where: str
    ) -> Sequence[Callable[[], None]]:
        """The background jobs of this engine, one run per interval of the reaper.

        Args:
            run: runs an act on a connection of the service.
            where: the database, for the log.
        """
        return ()

    def wal_bytes(self, connection: Connection) -> int | None:
        """The size of the write-ahead log; None if the server looks after it."""
        return None

    def lock_for_writing(self, connection: Connection, sql: StatementCache) -> None:
        """Take the lock that a transaction needs before it reads rows to change."""

    def lock_database(self, connection: Connection, table: Table) -> None:
        """Take the lock of ``lock_for_writing`` through a shared table, without a queue."""

    def break_off(self, connection: Connection) -> None:
        """Interrupt a connection from another thread; the server rolls its transaction back."""
        raw: Any = connection.connection.dbapi_connection
        sever(connection.dialect, raw)

    # -- servers that only read

    def server_reads_only(self, connection: Connection) -> bool:
        """Whether the server itself only reads, such as a standby, so that waiting can help."""
        return False

    def reading_setting(self, connection: Connection) -> str | None:
        """The setting by which this login's sessions only read, and how to undo it."""
        return None
