"""The interface of a dialect: capabilities, clock, errors, acts and parts."""

from __future__ import annotations

import abc
import contextlib
import enum
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from sqlalchemy import Connection, Table, bindparam, inspect, select, text
from sqlalchemy.exc import DBAPIError, SAWarning
from sqlalchemy.types import TypeEngine

from queue_over_sql.dialects.compiled import StatementCache, run_text
from queue_over_sql.dialects.driver_calls import sever
from queue_over_sql.dialects.requests import (
    ClaimRequest,
    NewRows,
    RoundRequest,
    Settlement,
    read_rows,
    stamped_row,
)
from queue_over_sql.dialects.statements import archive, rounds, settle
from queue_over_sql.dialects.statements import claim as claiming
from queue_over_sql.dialects.statements.parameters import batches, bucket_of, id_values
from queue_over_sql.errors import UnsupportedByEngine
from queue_over_sql.message import MessageRow
from queue_over_sql.schema.dialect import SqlDialect
from queue_over_sql.schema.queue_tables import QueueTables

if TYPE_CHECKING:
    from queue_over_sql.dialects.arrow.rows import RowColumns
    from queue_over_sql.dialects.checkup import Checkup


Pause = Callable[[float], None]
BRIEF_SECONDS: Final = 1
"""How long background work waits for the locks of others."""


@contextlib.contextmanager
def accepting_any_type() -> Iterator[None]:
    """Reflect tables of users without a warning; values of an unknown type come from the driver."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Did not recognize type", SAWarning)
        yield


class Watch(abc.ABC):
    """Watches for messages of other processes on one connection."""

    bursts = True
    """Whether more may have come than was notified."""

    @abc.abstractmethod
    def wait(self, seconds: float, wanted: Callable[[str], bool]) -> bool:
        """Wait for messages, at most ``seconds``.

        Args:
            seconds: the limit; it returns earlier if messages come, or after ``interrupt``.
            wanted: whether this process uses a queue, by the full name of its table.

        Returns:
            Whether there may be messages.
        """

    def interrupt(self) -> None:
        """Interrupt the wait of another thread; a task is cancelled instead."""
        return

    def close(self) -> None:
        """Release what it needed besides its connection."""
        return


class Notifications:
    """Notifications between processes. Here there are none, so consumers poll."""

    hears_others = False
    """Whether ``watch`` may succeed."""
    tells_others = False
    """Whether ``tell`` does anything."""

    def watch(self, connection: Connection, pause: Pause) -> Watch | None:
        """Start a watch on a connection of its own; None if that is not possible.

        Args:
            connection: in autocommit mode.
            pause: sleeps without blocking others.
        """
        return None

    def tell(self, connection: Connection, sql: StatementCache) -> None:
        """Notify watches, when it commits, that a queue may have got messages."""


class Rounds:
    """Claims the rounds of durable consumers and ends them, each with statements on sets."""

    claims_apart = False
    """Whether readers claim their rounds, because parallel claims of one consumer are faster."""

    def __init__(self, dialect: SqlDialect) -> None:
        self._dialect = dialect

    def claim(self, connection: Connection, sql: StatementCache, request: RoundRequest) -> int:
        """Claim messages of one level for a round, inside a transaction; returns how many."""
        values = request.values()
        pick = rounds.lock_ids if self._dialect.skip_locked else rounds.pick_ids
        picked = sql.get(pick).run(connection, values).all()
        marked = 0
        for batch in batches([row[0] for row in picked]):
            mark = sql.get(rounds.mark, bucket_of(len(batch)), self._dialect.skip_locked)
            marked += mark.run(connection, id_values(batch) | values).rowcount
        return marked

    def remove(self, connection: Connection, sql: StatementCache, values: Mapping[str, Any]) -> int:
        """Remove the messages of rounds, or end them in place; returns how many."""
        return sql.get(rounds.remove_rounds).run(connection, values).rowcount

    def unclaim(
        self, connection: Connection, sql: StatementCache, values: Mapping[str, Any]
    ) -> int:
        """Give the messages of rounds back, uncounted; returns how many."""
        return sql.get(rounds.unclaim_rounds).run(connection, values).rowcount

    def archive(
        self, connection: Connection, sql: StatementCache, values: Mapping[str, Any]
    ) -> int:
        """Move the messages of rounds, which are locked, to the archive; returns how many."""
        sql.get(rounds.copy_rounds_to_archive).run(connection, values)
        return self.remove(connection, sql, values)


class ErrorKind(enum.Enum):
    """The meaning of a database error: what the caller can do."""

    TRANSIENT = "deadlock, serialization failure or lock timeout: the transaction may be repeated"
    CANCELLED = "an administrator or a time limit ended the statement, which changed nothing"
    READ_ONLY = "the server, the session or the transaction may only read; nothing was changed"
    DISCONNECT = "the connection is gone; it is unknown whether the last commit succeeded"
    DUPLICATE = "a unique constraint was violated; which one is not known from the error"
    INVALID_VALUE = "a value does not fit its column or a check constraint"
    MISSING_TABLE = "the table is not there"
    TABLE_EXISTS = "two creators met"
    FORBIDDEN = "the login lacks a right"
    OTHER = "anything else"


OLDEST_SESSION: Final = 900.0
"""How many seconds a session of a server may last, for ``session_seconds``."""


def sqlstate_of(error: BaseException | None) -> str:
    """The SQLSTATE of a driver's error; empty if it has none."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None and error is not None and error.args and isinstance(error.args[0], dict):
        # pg8000 has the fields of the server's message as a dictionary.
        state = error.args[0].get("C")
    return str(state or "")


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
    rows_at_once: int | None = None
    """How many messages ``publish_rows`` accepts at most; None if there is no such statement."""
    loads_as_it_comes = False
    """``load`` sends rows while it receives further ones, without a lock that others need."""
    claims_at_once = False
    """A claim is one statement, so that it needs no transaction around it."""
    archives_at_once = False
    """The move to the archive is one statement."""
    exchanges_at_once = False
    """Ack and claim are one statement."""
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

    # -- parts

    rounds_class: ClassVar[type[Rounds]] = Rounds
    """Claims and ends the rounds of durable consumers."""
    checkup_class: ClassVar[str] = "Checkup"
    """The class of ``checkup``, by name, because few processes load it."""

    @functools.cached_property
    def columns(self) -> RowColumns:
        """Reads, writes and takes Arrow columns; needs PyArrow."""
        from queue_over_sql.dialects.arrow.rows import RowColumns  # noqa: PLC0415 - needs Arrow

        return RowColumns(self)

    @functools.cached_property
    def rounds(self) -> Rounds:
        """Claims and ends the rounds of durable consumers on this server."""
        return self.rounds_class(self)

    @functools.cached_property
    def notifications(self) -> Notifications:
        """Notifies consumers of messages that other processes publish."""
        return Notifications()

    @functools.cached_property
    def checkup(self) -> Checkup:
        """The check-up of this engine for operators."""
        from queue_over_sql.dialects import checkup  # noqa: PLC0415 - only for a check-up

        found: type[Checkup] = getattr(checkup, self.checkup_class)
        return found(self.name)

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

    # -- errors

    def classify(self, error: DBAPIError) -> ErrorKind:
        """Classify an error, never by its text."""
        if error.connection_invalidated:
            return ErrorKind.DISCONNECT
        return self.classify_driver_error(error.orig)

    def classify_driver_error(self, error: BaseException | None) -> ErrorKind:
        """Classify a driver's error by its code."""
        return _STATES.get(sqlstate_of(error)[:5], ErrorKind.OTHER)

    def undoes_transaction(self, connection: Connection, error: BaseException) -> bool:
        """Whether the database undid the whole transaction with this error of a statement.

        False where it refuses all further statements until the caller rolls back.
        """
        return False

    def refuses_row(self, error: DBAPIError) -> bool:
        """Whether a constraint or a trigger refused a row, so that other rows may be accepted."""
        if self.classify(error) in {ErrorKind.DUPLICATE, ErrorKind.INVALID_VALUE}:
            return True
        return self.refuses_row_by(error.orig)

    def refuses_row_by(self, error: BaseException | None) -> bool:
        """As ``refuses_row``, by the code of a driver's error."""
        # Data, integrity, a view's check option, and what SQL of the user's own raises.
        return sqlstate_of(error)[:2] in {"22", "23", "44", "45", "P0"}

    def server_reads_only(self, connection: Connection) -> bool:
        """Whether the server itself only reads, such as a standby, so that waiting can help."""
        return False

    def reading_setting(self, connection: Connection) -> str | None:
        """The setting by which this login's sessions only read, and how to undo it."""
        return None

    def value_hint(self, error: BaseException | None) -> str:
        """Further advice for when the server refused a value."""
        return ""

    def refusal_hint(self, error: BaseException | None) -> str:
        """Further advice for when the server refused a statement."""
        return ""

    @staticmethod
    def unfit_way(error: BaseException | None) -> str | None:  # noqa: ARG004 - as in methods
        """Why this connection to the server can never serve queues; None for other errors."""
        return None

    # -- acts

    def claim(
        self, connection: Connection, sql: StatementCache, request: ClaimRequest
    ) -> list[MessageRow]:
        """Claim messages of one priority level, in no particular order, inside a transaction."""
        if self.skip_locked:
            return self._claim_locked(connection, sql, request)
        candidates = (
            sql.get(claiming.pick_ids, request.where).run(connection, request.wanted()).all()
        )
        for batch in batches([row[0] for row in candidates]):
            mark = sql.get(claiming.mark_where_eligible, bucket_of(len(batch)), request.where)
            mark.run(connection, id_values(batch) | request.stamp() | request.wanted())
        if not candidates:
            return []
        return read_rows(
            connection, sql, sql.get(claiming.stamped).run(connection, request.stamp())
        )

    def _claim_locked(
        self, connection: Connection, sql: StatementCache, request: ClaimRequest
    ) -> list[MessageRow]:
        # A bounded UPDATE along the index would collect the whole backlog on MySQL.
        picked = sql.get(claiming.pick_rows, request.where).run(connection, request.wanted()).all()
        if not picked:
            return []
        now = picked[0][-1]
        for batch in batches([row[0] for row in picked]):
            mark = sql.get(claiming.mark, bucket_of(len(batch)))
            mark.run(connection, id_values(batch) | request.stamp() | {"p_now": now})
        return [stamped_row(connection, sql, row, request, now) for row in picked]

    def archive(
        self, connection: Connection, sql: StatementCache, settlement: Settlement
    ) -> set[int]:
        """Move messages to the archive under the fence; returns the ids that were still held.

        It locks the rows first, so that exactly the copied rows are removed.
        """
        moved: set[int] = set()
        self.lock_for_writing(connection, sql)
        for batch in batches(settlement.ids):
            fence = settlement.fence_values()
            lock = sql.get(settle.held, bucket_of(len(batch)))
            held = [row[0] for row in lock.run(connection, id_values(batch) | fence)]
            if not held:
                continue
            size, values = bucket_of(len(held)), id_values(held) | fence
            copy = sql.get(archive.copy_to_archive, size)
            copy.run(connection, values | settlement.archive_values())
            sql.get(settle.remove, size).run(connection, values)
            moved.update(held)
        return moved

    def exchange(
        self,
        connection: Connection,
        sql: StatementCache,
        settlement: Settlement,
        request: ClaimRequest,
        *,
        keep: bool,
    ) -> tuple[set[int], list[MessageRow]]:
        """Ack and claim in one statement; only called if ``exchanges_at_once``.

        Returns:
            The ids that were still held, and the claimed messages: none unless all were held.
        """
        raise UnsupportedByEngine(f"{self.name} cannot ack and claim in one statement")

    def publish_rows(
        self, connection: Connection, sql: StatementCache, rows: NewRows
    ) -> Sequence[Sequence[Any]] | None:
        """Insert messages in one statement of the engine's own, skipping taken keys.

        Returns:
            Id and key of each inserted message; None if the usual statement must be used.
        """
        return None

    def check_sent(self, values: Iterable[Any]) -> None:
        """Refuse values that together may exceed ``statement_bytes``.

        Raises:
            PayloadTooLarge: they do.
        """

    def load(self, connection: Connection, sql: StatementCache, rows: NewRows) -> bool:
        """Insert rows in the engine's own bulk way; False if it has none."""
        return False

    @contextlib.contextmanager
    def trusting_rows(self, connection: Connection, table: Table) -> Iterator[None]:
        """Skip this table's CHECKs during the block, for rows that passed them elsewhere.

        Only if the engine can do this, and the table has no other CHECKs than ours.
        """
        yield


def engine_of(tables: QueueTables) -> QueueDialect:
    """The dialect of a queue's tables, which themselves only know its part for statements."""
    return cast("QueueDialect", tables.dialect)


_STATES = {
    "40001": ErrorKind.TRANSIENT,
    "40P01": ErrorKind.TRANSIENT,
    "55P03": ErrorKind.TRANSIENT,
    "57014": ErrorKind.CANCELLED,
    "25006": ErrorKind.READ_ONLY,
    "23505": ErrorKind.DUPLICATE,
    "23514": ErrorKind.INVALID_VALUE,
    "22001": ErrorKind.INVALID_VALUE,
    # Characters that the database's encoding lacks, and bytes that are none.
    "22P05": ErrorKind.INVALID_VALUE,
    "22021": ErrorKind.INVALID_VALUE,
    "42P01": ErrorKind.MISSING_TABLE,
    "42P07": ErrorKind.TABLE_EXISTS,
    "42501": ErrorKind.FORBIDDEN,
}
