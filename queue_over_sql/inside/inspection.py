"""Reads the state of a database from outside: few rows, short statements, no changes."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sqlalchemy import func, inspect, select

from queue_over_sql.consumers import registrations
from queue_over_sql.errors import QueueError
from queue_over_sql.existing_tables import store as existing_store
from queue_over_sql.existing_tables.adopt import Adopter
from queue_over_sql.groups.blocking import find_blocked_by_nothing
from queue_over_sql.groups.repair import find_broken
from queue_over_sql.groups.strategy import GroupRules
from queue_over_sql.inside.operations import EngineFacts
from queue_over_sql.limits import tokens
from queue_over_sql.limits.slots import find_others
from queue_over_sql.queues import registry
from queue_over_sql.queues.stats import subtractable
from queue_over_sql.recovery.clock_steps import newest_stamp
from queue_over_sql.recovery.dead_claims import half_claimed, unclaim_half_claimed
from queue_over_sql.schema.queue_tables import QueueTables, queue_tables
from queue_over_sql.schema.system_tables import system_tables
from queue_over_sql.service import parts_of
from queue_over_sql.settings import StoredSettings
from queue_over_sql.sql.checkup import Asking
from queue_over_sql.sql.compiled import StatementCache, run_text
from queue_over_sql.sql.ddl import accepting_any_type
from queue_over_sql.values.durations import optional_number
from queue_over_sql.values.rates import Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import ClauseElement, Connection, Table

    from queue_over_sql.catalog.service_parts import ServiceParts
    from queue_over_sql.consumers.handling import HandledQueue
    from queue_over_sql.consumers.registrations import ConsumerInfo
    from queue_over_sql.database.connections import Connections
    from queue_over_sql.queues.registry import QueueRecord
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.service import QueueService
    from queue_over_sql.sql.checkup import Section
    from queue_over_sql.values.findings import Finding


@dataclasses.dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The state of a queue at one moment; ages are seconds.

    Attributes:
        name: of the queue.
        paused: whether the queue is paused.
        oldest_ready: how long the oldest ready message has been due; None if none is ready.
        oldest_lease: how long ago the earliest lease ended; negative if none has ended.
        is_claimed: whether a consumer holds a message.
        problem: why it could not be read.
        critical_age: the setting of the queue; None: none.
    """

    name: str
    paused: bool = False
    oldest_ready: float | None = None
    oldest_lease: float | None = None
    is_claimed: bool = False
    problem: str | None = None
    critical_age: float | None = None


class _Definitions:
    """The tables of a service as inspections read them.

    They are kept, because SQLAlchemy compiles each statement anew for new definitions, and keeps
    hundreds of the old ones.
    """

    def __init__(self, parts: ServiceParts) -> None:
        # Not the tables of the catalog, which creates missing ones.
        self.system = system_tables(parts.connections.dialect.expressions, parts.settings.schema)
        self.queues: dict[str, tuple[str, QueueTables, int]] = {}


_definitions: WeakKeyDictionary[Connections, _Definitions] = WeakKeyDictionary()


class Inspection:
    """A reading of the database of a service, which need not be started.

    It reads as the tables are, and creates none.

    Args:
        service: of the database.
        seconds: the time limit of each statement.

    Attributes:
        dialect: what this database server can do, and its expressions.
        system: the tables that all queues share, which may not exist.
    """

    def __init__(self, service: QueueService, seconds: float) -> None:
        parts = self._parts = parts_of(service)
        self._seconds = seconds
        self.dialect = EngineFacts(parts.connections.dialect)
        known = _definitions.get(parts.connections)
        if known is None:
            known = _definitions[parts.connections] = _Definitions(parts)
        self._known = known
        self.system = known.system

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection for short readings; it raises our errors."""
        with (
            self._parts.connections.reading() as connection,
            self.dialect.checkup.bounded(connection, self._seconds),
        ):
            yield connection

    def text_of(self, statement: ClauseElement) -> str:
        """A statement as text with its values, for ``rows_of_text``.

        A text without parameters is compiled once, and PostgreSQL keeps its plan.
        """
        literals = {"literal_binds": True, "render_postcompile": True}
        engine = self._parts.connections.engine
        return str(statement.compile(dialect=engine.dialect, compile_kwargs=literals))

    @staticmethod
    def rows_of_text(connection: Connection, text: str) -> Sequence[Any]:
        """The rows of a statement that is a text without parameters."""
        return run_text(connection, text).all()

    @staticmethod
    def reflected(connection: Connection, table: Table) -> tuple[list[Any], list[Any]]:
        """The indexes and the unique constraints that a table has, as SQLAlchemy reflects them.

        Raises:
            NoSuchTableError: it does not exist.
        """
        inspector = inspect(connection)
        with accepting_any_type():
            return (
                list(inspector.get_indexes(table.name, table.schema)),
                list(inspector.get_unique_constraints(table.name, table.schema)),
            )

    @staticmethod
    def lost_columns(connection: Connection, tables: QueueTables) -> set[str]:
        """The keys of the columns of an adopted table that the queue had added and that are gone.

        Raises:
            NoSuchTableError: the table does not exist.
        """
        return set() if tables.has_payloads else existing_store.lost_columns(connection, tables)

    @staticmethod
    def newest_stamp(connection: Connection, tables: QueueTables) -> int | None:
        """When the newest message was published, in microseconds; not for adopted tables."""
        return connection.execute(newest_stamp(tables)).scalar()

    @staticmethod
    def half_claimed(connection: Connection, tables: QueueTables, *, most: int) -> tuple[int, str]:
        """How many messages, at most so many, have half a claim; the statement that clears it."""
        some = select(tables.live.c.id).where(half_claimed(tables)).limit(most).subquery()
        count = connection.execute(select(func.count()).select_from(some)).scalar_one()
        mend = unclaim_half_claimed(tables).compile(
            dialect=connection.dialect, compile_kwargs={"literal_binds": True}
        )
        return int(count), " ".join(str(mend).split())

    @staticmethod
    def broken_groups(connection: Connection, tables: QueueTables, *, most: int) -> list[str]:
        """Groups whose parked messages nobody would wake, among so many of the oldest messages."""
        if not tables.grouped:
            return []
        sql = StatementCache(tables, connection.dialect)
        # With the least limit; whether more may be in hand only the queue's settings say.
        return find_broken(connection, sql, GroupRules(1, ordered=True), None, most)[0]

    @staticmethod
    def blocked_by_nothing(
        connection: Connection, tables: QueueTables, record: QueueRecord, *, most: int
    ) -> list[str]:
        """At most so many groups that a dead letter blocks which is not there any more."""
        stored = StoredSettings.read(record.name, record.settings).data
        if not tables.grouped or stored.get("archive") == "none":
            return []
        sql = StatementCache(tables, connection.dialect)
        return [group for group, _ in find_blocked_by_nothing(connection, sql, most)]

    @staticmethod
    def beside_limit(connection: Connection, tables: QueueTables) -> int:
        """How many messages were claimed without regard to the queue's limit, and do not count."""
        if not tables.limited:
            return 0
        return len(find_others(connection, StatementCache(tables, connection.dialect)))

    @staticmethod
    def lacks_rate(connection: Connection, tables: QueueTables) -> bool:
        """Whether the row of the queue's rate is gone, so that nobody claims."""
        if not tables.rated:
            return False
        return tokens.read(connection, StatementCache(tables, connection.dialect)) is None

    @staticmethod
    def bounds(record: QueueRecord) -> tuple[int | None, str | None]:
        """How many messages of a queue may be in hand at once, and how fast they may start."""
        data = StoredSettings.read(record.name, record.settings).data
        return data.get("queue_limit"), data.get("queue_rate")

    @staticmethod
    def ages(record: QueueRecord) -> tuple[float | None, float | None]:
        """The seconds of ``warn_age`` and ``critical_age`` of a queue."""
        data = StoredSettings.read(record.name, record.settings).data
        found = (data.get("warn_age_us"), data.get("critical_age_us"))
        warn, critical = (each / 1_000_000 if isinstance(each, int) else None for each in found)
        return warn, critical

    @staticmethod
    def group_rate(record: QueueRecord) -> Rate | None:
        """How fast messages of one group of a queue may start; None: as fast as they can."""
        text = StoredSettings.read(record.name, record.settings).data.get("group_rate")
        return None if text is None else Rate.of(text)

    def findings(self, section: Section, tables: Sequence[Table]) -> Iterator[Finding]:
        """What one section of the engine's check-up finds about these tables."""
        with self.connection() as connection:
            yield from section(Asking(connection, tables, self._parts.settings.schema))

    def missing_tables(self) -> list[str]:
        """The shared tables that do not exist."""
        with self.connection() as connection:
            schema = self._parts.settings.schema
            there = set(inspect(connection).get_table_names(schema))
        return [table.name for table in self.system.all if table.name not in there]

    def now(self) -> int:
        """The database's clock, in microseconds since the epoch."""
        with self.connection() as connection:
            return self.dialect.read_clock(connection)

    def consumers(self) -> tuple[list[ConsumerInfo], list[tuple[ConsumerInfo, float]]]:
        """The consumers that are alive, and those that have been dead for this many seconds."""
        with self.connection() as connection:
            heartbeats = self._parts.connections.dialect.expressions.heartbeat_now()
            now = connection.execute(select(heartbeats)).scalar_one() / 1_000_000
            found = registrations.registered(connection, self.system)
        known = [
            (each, now - each.expires_at.timestamp())
            for each in found
            if not isinstance(each, QueueError)
        ]
        alive = [each for each, overdue in known if overdue <= 0]
        return alive, [(each, overdue) for each, overdue in known if overdue > 0]

    def handlers_of(
        self, consumers: Sequence[ConsumerInfo], queue: str
    ) -> list[tuple[ConsumerInfo, HandledQueue]]:
        """Those of these consumers that handle a queue of the service, and what they say of it.

        Clients of HTTP and of the SQL API are never among them: they say nothing.
        """
        return registrations.handlers_of(consumers, self._parts.settings.table_prefix, queue)

    def overdue_schedules(self, seconds: float) -> int:
        """How many schedules have been due for this long without being published."""
        c = self.system.schedules.c
        due = self.dialect.now() - int(seconds * 1_000_000)
        count = select(func.count()).where(
            c.table_prefix == self._parts.settings.table_prefix,
            c.paused_at.is_(None),
            c.next_at < due,
        )
        with self.connection() as connection:
            return int(connection.execute(count).scalar_one())

    def records(self) -> list[QueueRecord]:
        """The queues under the service's table prefix, without temporary ones."""
        prefix = self._parts.settings.table_prefix
        with self.connection() as connection:
            found = registry.queue_records(connection, self.system, prefix)
        records = [record for record in found if record.owner is None]
        for name in self._known.queues.keys() - {record.name for record in records}:
            self._known.queues.pop(name, None)
        return records

    def queues(self) -> list[QueueSnapshot]:
        """The state of each queue, by name."""
        return [self._state_of(record) for record in self.records()]

    def _state_of(self, record: QueueRecord) -> QueueSnapshot:
        try:
            return self._read(record)
        except QueueError as error:
            return QueueSnapshot(record.name, problem=str(error))

    def _read(self, record: QueueRecord) -> QueueSnapshot:
        tables, levels = self.tables(record)
        live, dialect = tables.live, self.dialect
        claimed = select(live.c.id).where(dialect.is_claimed(live)).limit(1)
        lease = select(dialect.now() - func.min(live.c.lease_expires_at)).where(
            dialect.is_claimed(live), *subtractable(live.c, "lease_expires_at")
        )
        with self.connection() as connection:

            def seconds(statement: Any) -> float | None:
                found = connection.execute(statement).scalar()
                number = optional_number("an instant of a message", found)
                return None if number is None else number / 1_000_000

            ages = [seconds(_age(tables, level)) for level in range(levels)]
            return QueueSnapshot(
                record.name,
                paused=record.paused,
                oldest_ready=max((age for age in ages if age is not None), default=None),
                oldest_lease=seconds(lease),
                is_claimed=connection.execute(claimed).first() is not None,
                critical_age=self.ages(record)[1],
            )

    def tables(self, record: QueueRecord) -> tuple[QueueTables, int]:
        """The tables of a queue, without its own columns, and its number of priorities.

        Raises:
            QueueSchemaMismatch: its settings cannot be read, or its table does not exist.
        """
        known = self._known.queues.get(record.name)
        if known is not None and known[0] == record.settings:
            return known[1:]
        parts, stored = self._parts, StoredSettings.read(record.name, record.settings)
        settings = stored.effective(parts.settings.retry_policies)
        if stored.adoption is not None:
            adopter = Adopter(parts.connections, parts.settings)
            tables = adopter.tables(record.name, stored.adoption, self.system)
            tables = tables.bounded_by(limited=settings.limited, rated=settings.rated)
            return tables, settings.priorities
        prefix, payload = parts.settings.table_prefix, settings.payload
        tables = queue_tables(
            record.name,
            prefix,
            payload,
            (),
            system=self.system,
            dialect=parts.connections.dialect,
            grouped=settings.grouped,
            limited=settings.limited,
            rated=settings.rated,
        )
        self._known.queues[record.name] = record.settings, tables, settings.priorities
        return tables, settings.priorities


def _age(tables: QueueTables, level: int) -> Any:
    # The age of the oldest ready message of a priority, the first one in the claim index.
    c, now, due = tables.live.c, tables.expressions.now(), tables.due_at()
    return select(now - func.min(due)).where(
        c.consumer_id.is_(None),
        c.priority == level,
        tables.is_due(),
        *subtractable({"available_at": due}),
        *tables.live_only(),
    )


def within(service: QueueService, seconds: float | None, do: Callable[[], object]) -> bool:
    """Do something within a time limit; returns whether it was done.

    After the limit it continues in the background, because a driver's attempt to connect cannot be
    cancelled. Without a limit the caller does it, for as long as it takes, and so where the
    service's only connection belongs to this thread.
    """
    if seconds is None or not parts_of(service).connections.background:
        do()
        return True
    failed: list[BaseException] = []

    def run() -> None:
        try:
            do()
        except BaseException as error:  # noqa: BLE001 - it is raised by who waits
            failed.append(error)

    thread = threading.Thread(target=run, name="queue-over-sql-inspection", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    return not thread.is_alive()
