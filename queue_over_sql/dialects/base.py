"""What a database may do differently: capabilities, types, clock, errors and the acts that vary.

``QueueDialect`` is also the fallback for any other SQLAlchemy engine. It claims with the portable
form (look, mark with the predicate repeated, read back by the stamp), which is correct wherever
UPDATE checks its WHERE again on the current row, and slower under many consumers.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import BigInteger, Index, LargeBinary, String, Text, insert, literal_column, select
from sqlalchemy.exc import DBAPIError

from queue_over_sql.dialects.arrow.reading_rows import ReadsRows
from queue_over_sql.dialects.arrow.taking_rows import TakesRows
from queue_over_sql.dialects.direct import run_text
from queue_over_sql.dialects.holding_rounds import HoldsRounds
from queue_over_sql.dialects.rows import read_rows, stamped_row
from queue_over_sql.dialects.statements import archive, settle
from queue_over_sql.dialects.statements import claim as claiming
from queue_over_sql.dialects.statements.parameters import batches, bucket_of, id_values
from queue_over_sql.dialects.watching import Watches
from queue_over_sql.errors import UnsupportedByEngine

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyarrow import RecordBatch
    from sqlalchemy import ColumnElement, Connection, Insert, Table
    from sqlalchemy.types import TypeEngine

    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.dialects.json_paths import JsonPath, JsonScalar
    from queue_over_sql.dialects.requests import ClaimRequest, NewRows, Settlement
    from queue_over_sql.message import MessageRow


class ErrorKind(enum.Enum):
    """What an error of the database means for what to do next."""

    TRANSIENT = "deadlock, serialization failure or lock timeout: the transaction may be repeated"
    CANCELLED = "an administrator or a time limit ended the statement, which changed nothing"
    DISCONNECT = "the connection is gone; whether the last commit arrived is unknown"
    DUPLICATE = "a unique constraint was violated; which one is not known from the error"
    INVALID_VALUE = "a value does not fit its column or a check constraint"
    MISSING_TABLE = "the table is not there"
    TABLE_EXISTS = "two creators met"
    OTHER = "anything else"


def microseconds(expression: str) -> ColumnElement[int]:
    """An engine's expression of an instant, without parameters, so that it costs none per call."""
    return literal_column(expression, BigInteger())


def sqlstate_of(error: BaseException | None) -> str:
    """The SQLSTATE of a driver's error; empty where it has none."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None and error is not None and error.args and isinstance(error.args[0], dict):
        # pg8000 gives the fields of the server's message as they are.
        state = error.args[0].get("C")
    return str(state or "")


class QueueDialect(ReadsRows, TakesRows, HoldsRounds, Watches):
    """The portable dialect, and the base of those for known engines.

    The class attributes are capabilities; a dialect refines them from the server's version in
    ``refine``.
    """

    name: ClassVar[str] = "generic"

    # -- capabilities
    identifier_limit = 63
    skip_locked = False
    """SELECT … FOR UPDATE SKIP LOCKED works."""
    update_returning = False
    """UPDATE … RETURNING works and sees each row once."""
    delete_returning = False
    """DELETE … RETURNING works."""
    insert_returning = False
    """INSERT … VALUES (…), (…) RETURNING works."""
    conflict_clause = False
    """INSERT … ON CONFLICT DO NOTHING works."""
    counts_utf16 = False
    """The length of a text is its units of UTF-16, of which an emoji has two."""
    consecutive_ids = False
    """The ids of a multi-row INSERT go up by ``id_step`` from the last insert id."""
    id_step = 1
    aborts_on_error = True
    """A failed statement spoils the transaction, so a statement that may fail needs a savepoint."""
    undoes_failed_insert = True
    """A multi-row INSERT that fails leaves none of its rows."""
    nul_in_text = True
    """Text columns hold NUL characters."""
    index_if_not_exists = True
    """CREATE INDEX IF NOT EXISTS works."""
    alters_in_view = False
    """A table that somebody alters can seem to be gone or broken for a moment."""
    rows_at_once: int | None = None
    """How many messages ``publish_rows`` takes at most; None where there is no such statement."""
    loads_as_it_comes = False
    """``load`` sends rows while it is still given others, and holds no lock that others need."""
    claims_at_once = False
    """A claim is one statement, so it needs no transaction around it."""
    archives_at_once = False
    """The move to the archive is one statement."""
    exchanges_at_once = False
    """Ack and claim are one statement."""
    unreachable_hint = (
        "is it running, are its address and the password right, and has it a connection left for "
        "each thread?"
    )
    """What to ask when the database cannot be reached."""
    locked_hint = ""
    """What else to say when the database stays locked."""
    lock_seconds = 10
    """How long what creates and drops tables waits for transactions that use them."""
    look_first = False
    """An idle claim should look before it writes, because writing takes the only write lock."""
    separate_durable_lanes = False
    """Publishing needs a connection with a stricter durability than claiming."""
    routines: str | None = None
    """The language of the server's stored routines, as the SQL API has them; None: it has none."""
    replaces_routines = False
    """CREATE OR REPLACE works for stored routines and keeps the rights on them."""
    collation: ClassVar[str] = ""
    """What an ``exact_string`` is compared by, where that has a name."""
    table_options: ClassVar[Mapping[str, Any]] = {}
    live_table_options: ClassVar[Mapping[str, Any]] = {}
    stage_table_options: ClassVar[Mapping[str, Any]] = {}
    """Of tables whose rows are counted when they are read, so that a crash may lose some."""
    updates_from = False
    """UPDATE takes its values from another table by a join."""
    stage_piece: int | None = None
    """How many messages of a stage one INSERT moves, which keeps others waiting; None for all."""
    checks_json = False
    """A queue's table refuses payloads that are no JSON."""
    doubtful_json: str | None = None
    """A regular expression found in whatever the table takes for JSON though it is none."""

    def refine(self, connection: Connection) -> None:
        """Set capabilities by the server's version; called once, on the first connection.

        Raises:
            UnsupportedByEngine: the server is too old, or its clock cannot be read.
        """
        self.insert_returning = connection.dialect.insert_returning
        try:
            connection.scalar(select(self.now()))
        except DBAPIError as error:
            msg = (
                f"The engine {connection.dialect.name!r} cannot run queues: the portable dialect "
                "needs EXTRACT(EPOCH FROM CURRENT_TIMESTAMP)."
            )
            raise UnsupportedByEngine(msg) from error

    def notice_pooler(self, connection: Connection) -> None:
        """Learn whether others use the sessions of this service; called once, on its own engine.

        Raises:
            UnsupportedByEngine: what the driver was told to do cannot be done there.
        """

    def check_pooled(self, connection: Connection) -> None:
        """Refuse a caller's connection whose driver was told to do what cannot be done there.

        Raises:
            UnsupportedByEngine: it was.
        """

    # -- types

    @property
    def identity(self) -> TypeEngine[Any]:
        """The type of the identity column."""
        return BigInteger()

    def exact_string(self, length: int) -> TypeEngine[Any]:
        """A string that compares by its characters alone: case, accents and spaces count."""
        return String(length)

    def payload_type(self, payload: str) -> TypeEngine[Any]:
        """The column type of a payload type."""
        return LargeBinary() if payload == "bytes" else Text()

    def holds_number(self, value: float, *, exact: bool) -> bool:
        """Whether a column of floats, or one of exact decimal numbers, keeps NaN or an infinity.

        Finite numbers always are held.
        """
        del value, exact
        return True

    def result_code(self, kind: TypeEngine[Any]) -> Any:
        """The driver's code of a type, where SQLAlchemy needs it to read values of that type."""
        del kind
        return None

    def json_check(self, column: str) -> str | None:
        """A check constraint that keeps other clients from storing what is no JSON."""
        del column
        return None

    def differs(self, column: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[bool]:
        """Two columns of one type do not hold the same, exactly; NULL is the same as NULL."""
        return column.is_distinct_from(other)

    def payload_equals(
        self, column: ColumnElement[Any], path: JsonPath, value: JsonScalar
    ) -> ColumnElement[bool]:
        """A field of a JSON payload is there and equal, by type and value; 1 equals 1.0.

        Raises:
            UnsupportedByEngine: this engine cannot look into JSON.
        """
        del column, path, value
        msg = f"{self.name} cannot search by fields of the payload: use columns of the queue's own."
        raise UnsupportedByEngine(msg)

    def add_queue_indexes(self, table: Table, base: str, *, sparse: bool = False) -> None:
        """Define the claim index and, where it is needed, the index on the lease.

        Args:
            table: the table of the queue's messages.
            base: what the names of its indexes begin with.
            sparse: most rows of the table are no live messages.
        """
        del sparse
        columns = table.c
        Index(
            f"{base}_claim_ix",
            columns.consumer_id,
            columns.priority,
            columns.available_at,
            columns.id,
        )

    def add_columns(self, table: str, specifications: Sequence[str]) -> list[str]:
        """The statements that add columns to a table that may be large."""
        return [f"ALTER TABLE {table} ADD COLUMN {column}" for column in specifications]

    def drop_columns(self, table: str, names: Sequence[str]) -> list[str]:
        """The statements that drop columns of a table that may be large."""
        return [f"ALTER TABLE {table} DROP COLUMN {name}" for name in names]

    def is_claimed(self, table: Table) -> ColumnElement[bool]:
        """The row is claimed, in the words under which an index finds such rows."""
        return table.c.consumer_id.is_not(None)

    # -- clock

    def now(self) -> ColumnElement[int]:
        """The database's clock as microseconds since the epoch, one value per statement."""
        return microseconds("CAST(EXTRACT(EPOCH FROM CURRENT_TIMESTAMP) * 1000000 AS BIGINT)")

    def database_identity(self, table: Table) -> str | None:
        """SQL for what tells one database from every other; None where nothing does.

        Where a session says in which schema it looks, that ``table`` is the same one is part of it.
        """
        del table
        return None

    # -- connections

    def prepare_lane(self, connection: Connection, *, durable: bool) -> None:
        """Set what the session of a long-held connection needs."""

    def restore_session(self, connection: Connection) -> None:
        """Undo what ``prepare_lane`` set that others must not find."""

    @contextlib.contextmanager
    def scanning(self, connection: Connection) -> Iterator[None]:
        """While a statement is meant to read whole tables, let the engine do that."""
        del connection
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

    @contextlib.contextmanager
    def creating(self, connection: Connection, schema: str | None) -> Iterator[None]:
        """Let one creator of tables through at a time, in a transaction.

        What the transaction did before may be committed by that.

        Args:
            connection: with a transaction.
            schema: the tables' own; None for the connection's.
        """
        del connection, schema
        yield

    def wait_until_unused(self, connection: Connection, table: Table) -> None:
        """Wait for transactions that use a table, where DDL cannot be undone.

        A table that is dropped later in the same transaction needs no such wait.
        """

    def wal_bytes(self, connection: Connection) -> int | None:
        """The size of the write-ahead log; None where it is not ours to look after."""
        del connection
        return None

    def cut_wal(self, connection: Connection) -> None:
        """Make the write-ahead log small if nobody needs it; never keeps writers waiting long."""

    def lock_for_writing(self, connection: Connection, sql: StatementCache) -> None:
        """Get the lock that a transaction needs before it reads what it will change."""

    def lock_database(self, connection: Connection, table: Table) -> None:
        """Get the lock of ``lock_for_writing`` where no queue is at hand, by a shared table."""

    # -- errors

    def classify(self, error: DBAPIError) -> ErrorKind:
        """Tell what an error means; never by its text."""
        if error.connection_invalidated:
            return ErrorKind.DISCONNECT
        return self.classify_driver_error(error.orig)

    def classify_driver_error(self, error: BaseException | None) -> ErrorKind:
        """Tell what an error of the driver means, by its code."""
        return _STATES.get(sqlstate_of(error)[:5], ErrorKind.OTHER)

    def value_hint(self, error: BaseException | None) -> str:
        """What else to say when the server refused a value."""
        del error
        return ""

    def refusal_hint(self, error: BaseException | None) -> str:
        """What else to say when the server refused a statement."""
        del error
        return ""

    @staticmethod
    def unfit_way(error: BaseException | None) -> str | None:
        """Why queues can never work over this way to the server; None of any other error."""
        del error
        return None

    # -- acts

    def insert(self, table: Table) -> Insert:
        """An INSERT of the engine's own kind."""
        return insert(table)

    def ignore_conflict(self, statement: Insert, column: ColumnElement[Any]) -> Insert:
        """Let an INSERT pass over rows whose ``column`` is taken; needs ``conflict_clause``."""
        del column
        return statement

    def claim_index_hint(self, base: str) -> str | None:
        """A hint under which a locking pick needs no ORDER BY, because it follows the index.

        Args:
            base: as in ``add_queue_indexes``.
        """
        del base
        return None

    def claim_range_hint(self, base: str) -> str | None:
        """A hint under which a pick enters the claim index at its mark and not at its level."""
        del base
        return None

    def archive_index_hint(self, base: str) -> str | None:
        """A hint under which pruning enters the archive's index at the outcome that it prunes."""
        del base
        return None

    def unclaimed_range(self, consumer_id: ColumnElement[Any]) -> ColumnElement[bool]:
        """Nobody holds a message, said so that a pick enters the claim index at its mark."""
        return consumer_id.is_(None)

    def claim(
        self, connection: Connection, sql: StatementCache, request: ClaimRequest
    ) -> list[MessageRow]:
        """Claim messages of one priority level, in no particular order, inside a transaction."""
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

    def claim_locked(
        self, connection: Connection, sql: StatementCache, request: ClaimRequest
    ) -> list[MessageRow]:
        """Claim by locking the rows first: for engines with SKIP LOCKED but no UPDATE RETURNING."""
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

        The rows are locked first, so that what is copied is what is removed.
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
        """Ack and claim as one statement; only called where ``exchanges_at_once``.

        Returns:
            The ids that were still held, and what was claimed: nothing unless all were held.
        """
        del connection, sql, settlement, request, keep
        raise UnsupportedByEngine(f"{self.name} has no exchange in one statement")

    def publish_rows(
        self, connection: Connection, sql: StatementCache, rows: NewRows
    ) -> Sequence[Sequence[Any]] | None:
        """Insert messages in one statement of the engine's own, passing over keys that are taken.

        Returns:
            Id and key of each that was inserted; None where the usual statement has to do.
        """
        del connection, sql, rows
        return None

    def load(self, connection: Connection, sql: StatementCache, rows: NewRows) -> bool:
        """Insert rows by the engine's own bulk path; False where it has none."""
        del connection, sql, rows
        return False

    @contextlib.contextmanager
    def trusting_rows(self, connection: Connection, table: Table) -> Iterator[None]:
        """While rows are inserted that have passed this table's CHECKs elsewhere, leave them out.

        Where the engine can, and the table has none but ours: those of others were not passed.
        """
        del connection, table
        yield

    def write_arrow(
        self,
        connection: Connection,
        table: Table,
        names: Sequence[str],
        batches: Iterable[RecordBatch],
    ) -> int:
        """Insert rows that are held in columns, by the engine's fastest path; needs PyArrow.

        Args:
            connection: with a transaction, as all of it is one act.
            table: where to.
            names: the columns to fill; each batch has them, perhaps among others.
            batches: columns as their SQL types have them; texts as ``string``, not larger ones.

        Returns:
            How many rows there were.
        """
        from queue_over_sql.dialects.arrow import writing_rows  # noqa: PLC0415 - needs Arrow

        return writing_rows.write(connection, table, names, batches)


_STATES = {
    "40001": ErrorKind.TRANSIENT,
    "40P01": ErrorKind.TRANSIENT,
    "55P03": ErrorKind.TRANSIENT,
    "57014": ErrorKind.CANCELLED,
    "23505": ErrorKind.DUPLICATE,
    "23514": ErrorKind.INVALID_VALUE,
    "22001": ErrorKind.INVALID_VALUE,
    "42P01": ErrorKind.MISSING_TABLE,
    "42P07": ErrorKind.TABLE_EXISTS,
}
