"""Running operations on the database of a service, and what they are made of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from sqlalchemy.exc import DBAPIError

from queue_over_sql.consumers import registrations
from queue_over_sql.errors import DatabaseUnavailable, QueueNotFound
from queue_over_sql.queue import Queue, core_of
from queue_over_sql.queues import registry, stats
from queue_over_sql.queues import tables as ddl
from queue_over_sql.selection import operations as choices
from queue_over_sql.service import QueueService, parts_of
from queue_over_sql.settings import StoredSettings
from queue_over_sql.sql.errors import ErrorKind
from queue_over_sql.sql.operation import Operation
from queue_over_sql.statements.clock import server_now

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Subquery, Table

    from queue_over_sql.database.connections import Connections
    from queue_over_sql.database.runtime import Condition
    from queue_over_sql.queues.registry import QueueRecord
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.schema.system_tables import SystemTables
    from queue_over_sql.settings import EffectiveSettings, ServiceSettings
    from queue_over_sql.sql.dialect import QueueDialect
    from queue_over_sql.values.rates import Rate
    from queue_over_sql.values.states import Status

T = TypeVar("T")

Target: TypeAlias = QueueService | Queue
"""Where to work: a service, or one of its queues, which gives better errors if it is dropped."""


class EngineFacts:
    """What a guest may know about the database server behind a service.

    Attributes:
        skip_locked: whether a claim can skip messages that others are claiming.
        checks_json: whether the database refuses a payload that is not JSON.
        doubtful_json: a pattern of JSON that it accepts and Python may not; None if there is none.
        nul_in_text: whether its text columns can hold NUL characters.
        table_options: what every ``Table`` of the library is given.
        exact_string: makes a column type for short text that is compared as it is.
        checkup: what only this engine's check-up can ask.
        wal_bytes: reads the size of the write-ahead log; None where that says nothing.
    """

    def __init__(self, dialect: QueueDialect) -> None:
        features, self._dialect = dialect.features, dialect
        self._expressions = dialect.expressions
        self.skip_locked = features.skip_locked
        self.checks_json = features.checks_json
        self.doubtful_json = features.doubtful_json
        self.nul_in_text = features.nul_in_text
        self.table_options = dialect.expressions.table_options
        self.exact_string = dialect.expressions.exact_string
        self.checkup = dialect.checkup
        self.wal_bytes = dialect.files.wal_bytes

    @property
    def now(self) -> Callable[[], ColumnElement[int]]:
        """Makes the clock of the database, in microseconds since the epoch."""
        return self._expressions.now

    def read_clock(self, connection: Connection) -> int:
        """Read that clock."""
        return self._dialect.read_clock(connection)

    def is_claimed(self, live: Table) -> ColumnElement[bool]:
        """The condition for messages that a consumer holds."""
        return self._expressions.is_claimed(live)

    def read_payload(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """A column of payloads or headers as its stored text."""
        return self._expressions.read_payload(column)


class RecordedSettings(NamedTuple):
    """The settings of a registered queue.

    Attributes:
        settings: as ``Queue.settings``, without the columns.
        retry: the retry policy as it is stored: its name and arguments.
        columns: the names of the queue's own columns.
    """

    settings: EffectiveSettings
    retry: dict[str, Any]
    columns: list[str]


def run(
    target: Target,
    operation: Callable[[Connection], T],
    *,
    atomic: bool = False,
    durable: bool = False,
    repeat: bool = True,
    counts: bool = False,
) -> T:
    """Run an operation as the service runs its own: on a session of this thread, with retries.

    Args:
        target: the service, or the queue that it works on.
        operation: gets the connection. It runs again after a deadlock, so it must have no other
            effects.
        atomic: run it inside one transaction; otherwise each statement commits by itself.
        durable: whether the commit must survive a power failure, if the engine has a choice.
        repeat: whether it is safe to run again if the connection broke and nobody knows whether
            the transaction was committed.
        counts: its result says whether, or how often, it found something to change. If a
            repetition finds nothing, the first run may have changed it; then its error is raised.

    Raises:
        QueueNotFound, QueueSchemaMismatch: the queue was dropped, or created anew in another form.
        DatabaseUnavailable: the database cannot be reached, stayed locked, or cancelled it.
        DatabaseRefused: it answered with another error.
        ServiceClosed: the service was stopped.
    """
    given = Operation(operation, atomic, durable, repeat, counts)
    if isinstance(target, Queue):
        return core_of(target).context.run(given)
    return _of(target).run(given)


def read(target: Target, operation: Callable[[Connection], T], *, timeout: float) -> T:
    """Run an operation that only reads, for at most so many seconds.

    Raises:
        DatabaseUnavailable: it took longer; ``was_cancelled`` tells. Otherwise as ``run``.
    """
    with limited(target, timeout):
        return run(target, operation)


def limited(target: Target, seconds: float) -> contextlib.AbstractContextManager[None]:
    """Limit each operation in this block that is not atomic to so many seconds, and to reading.

    This goes for public verbs, too, such as a search.
    """
    return _of(target).limited(seconds)


def was_cancelled(target: Target, error: DatabaseUnavailable) -> bool:
    """Whether an operation was cancelled because its time was over."""
    return _of(target).errors.kind_behind(error) is ErrorKind.CANCELLED


def transaction(target: Target) -> contextlib.AbstractContextManager[Connection]:
    """A connection with a transaction, as handlers get one: it commits at the end of the block.

    Raises:
        DBAPIError: a statement or the commit failed; see ``is_disconnect``.
    """
    return _of(target).transaction()


def handlers_connection(
    target: Target, connection: Connection
) -> contextlib.AbstractContextManager[None]:
    """Let foreign code use a connection of ``transaction``, and refuse that it ends it.

    Raises:
        QueueError: it tried to commit, or it rolled back or closed the connection and went on.
        DatabaseUnavailable: the database undid the transaction, and it went on.
    """
    return _of(target).handlers.using(connection)


def is_disconnect(target: Target, error: DBAPIError) -> bool:
    """Whether a driver's error means that the connection is lost.

    After a commit that ended so, nobody knows whether the transaction took place.
    """
    return _of(target).dialect.errors.classify(error) is ErrorKind.DISCONNECT


def tables(queue: Queue) -> QueueTables:
    """The tables of a queue, as SQLAlchemy knows them, with the conditions of its messages."""
    return core_of(queue).context.tables


def system(service: QueueService) -> SystemTables:
    """The tables that all queues share; created at the first use if they are missing.

    Raises:
        DatabaseUnavailable, DatabaseRefused: as ``run``.
    """
    return parts_of(service).system()


def settings(service: QueueService) -> ServiceSettings:
    """The settings of a service: its schema, table prefix, timeouts and retry policies."""
    return parts_of(service).settings


def known_settings(queue: Queue) -> EffectiveSettings:
    """The settings of a queue as they were last read, without a query."""
    return core_of(queue).context.known_settings


def asks_no_more(queue: Queue) -> None:
    """Say with the next heartbeat that this process, which has no worker, consumes no more here."""
    core_of(queue).context.consumer.handling.forget(queue.name)


def engine(target: Target) -> EngineFacts:
    """What this database server can do, and its expressions; the first use connects."""
    return EngineFacts(_of(target).dialect)


def now(target: Target) -> ColumnElement[int]:
    """The clock of the database as an expression: microseconds since the epoch."""
    return _of(target).dialect.expressions.now()


def read_clock(target: Target) -> int:
    """Read the clock of the database: microseconds since the epoch."""
    if isinstance(target, Queue):
        sql = core_of(target).context.sql
        return _of(target).run(lambda connection: server_now(connection, sql))
    return run(target, _of(target).dialect.read_clock)


def has_status(queue: QueueTables, status: Status) -> ColumnElement[bool]:
    """The condition for the live messages of one status."""
    return choices.has_status(queue, status)


def stays(queue: Queue) -> ColumnElement[bool]:
    """The condition for due messages that no consumer gets, whatever happens to the others.

    They are in what is paused or blocked, or behind a message of their ordered group that is held
    or was never due.
    """
    return choices.stays(tables(queue), queue.settings.group_order == "fifo")


def extent(queue: QueueTables, *, archived: bool) -> list[ColumnElement[bool]]:
    """The conditions for the rows that are live or archived messages; none if all rows are."""
    return choices.extent_of(queue, archived)


def subtractable(columns: Any, name: str = "available_at") -> tuple[ColumnElement[bool], ...]:
    """The conditions for rows whose time is near enough for the database to subtract it."""
    return tuple(stats.subtractable(columns, name))


def group_counts(queue: QueueTables, rate: Rate | None) -> Subquery:
    """One row: how many groups of a queue are blocked, paused and throttled.

    Its columns are ``blocked_groups``, ``paused_groups`` and ``throttled_groups``. ``rate`` is the
    ``group_rate`` of the queue, of ``Inspection.group_rate``.
    """
    return stats.group_counts(queue, rate).subquery("g")


def create_tables(service: QueueService, wanted: Sequence[Table]) -> None:
    """Create a guest's own tables where they are missing, in the order given.

    Raises:
        NotPermitted: one is missing, and the login may not create it. Otherwise as ``run``.
    """
    dialect = _of(service).dialect
    _of(service).run(ddl.ensure_tables.of(wanted, dialect))


def insert_unless_there(
    target: Target, connection: Connection, table: Table, values: Mapping[str, Any]
) -> bool:
    """Insert a row into a guest's own table; False if its primary key is there already."""
    return ddl.insert_unless_there(connection, _of(target).dialect, table, values)


def records(service: QueueService) -> list[QueueRecord]:
    """The queues of a service as they are registered, by name, without temporary ones.

    It opens none, so it also lists those that this release cannot read.
    """
    shared, prefix = system(service), settings(service).table_prefix
    found = run(service, lambda c: registry.queue_records(c, shared, prefix))
    return [record for record in found if record.owner is None]


def record(service: QueueService, name: str) -> QueueRecord:
    """A queue as it is registered.

    Raises:
        QueueNotFound: there is no such queue.
    """
    shared, prefix = system(service), settings(service).table_prefix
    found = run(service, lambda c: registry.queue_record(c, shared, prefix, name))
    if found is None:
        raise QueueNotFound(name)
    return found


def settings_of(service: QueueService, record: QueueRecord) -> RecordedSettings:
    """The settings of a registered queue, without opening it.

    Raises:
        QueueSchemaMismatch: they cannot be read.
    """
    policies = settings(service).retry_policies
    stored = StoredSettings.read(record.name, record.settings)
    effective = stored.effective(policies)
    return RecordedSettings(effective, policies.describe(effective.retry), list(stored.columns))


def wake_consumers(queue: Queue) -> None:
    """Wake the consumers that wait for messages of a queue, here and in other processes."""
    core_of(queue).wake_consumers()


def opened(service: QueueService) -> list[Queue]:
    """The queues that this service has opened so far."""
    return parts_of(service).catalog.opened


def condition(service: QueueService) -> Condition:
    """A condition for background work of this service, which runs in threads or on its loop."""
    return parts_of(service).connections.runtime.condition()


def start(service: QueueService, name: str, function: Callable[[], object]) -> None:
    """Run a function in the background of a service, until it or the process ends."""
    parts_of(service).connections.runtime.start(name, function, job=True)


def is_alive(service: QueueService, consumer_id: str) -> bool:
    """Whether a consumer is registered and its heartbeat is recent."""
    connections, shared = _of(service), system(service)
    return connections.run(
        lambda c: registrations.alive(c, shared, connections.dialect.expressions, consumer_id)
    )


def forget_consumer(service: QueueService, consumer_id: str) -> None:
    """Remove the registration of a consumer that is gone; its messages are then given back.

    If its process still runs, its next heartbeat fails, and it can settle nothing any more.
    """
    shared = system(service)
    _of(service).run(lambda c: registrations.remove(c, shared, consumer_id))


def _of(target: Target) -> Connections:
    if isinstance(target, Queue):
        return core_of(target).context.connections
    return parts_of(target).connections
