"""QueueService: connect, create queues, be a consumer, start and stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from queue_over_sql import registry
from queue_over_sql.connections import Connections
from queue_over_sql.consumers import Consumer
from queue_over_sql.context import QueueContext
from queue_over_sql.durations import Duration
from queue_over_sql.errors import (
    QueueError,
    QueueNotFound,
    QueueSchemaMismatch,
    ServiceClosed,
)
from queue_over_sql.queue import Queue
from queue_over_sql.reaper import Background, Reaper
from queue_over_sql.schema import (
    QueueTables,
    SystemTables,
    check_queue_name,
    check_table_prefix,
    queue_tables,
    system_tables,
)
from queue_over_sql.settings import (
    UNSET,
    ArchivePolicy,
    EffectiveSettings,
    PayloadType,
    QueueSettings,
    ServiceSettings,
    Unset,
    stored_columns,
)
from queue_over_sql.worker import Worker

if TYPE_CHECKING:
    from types import TracebackType

    from sqlalchemy import URL, Column, Connection, Engine

    from queue_over_sql.registry import ConsumerInfo, QueueRecord
    from queue_over_sql.restoring import ReaperReport
    from queue_over_sql.retry import RetryPolicy

_log = logging.getLogger(__name__)


class QueueService:
    """Queues in one database, and this process as one consumer of them.

    May be used from any thread. Nothing connects before it is needed; consuming registers the
    consumer and starts its heartbeat, ``start()`` also starts the reaper.

    Args:
        database: an SQLAlchemy URL, as text or object, or an ``Engine``, which is not altered.
        schema: database schema that holds all tables; None for the connection's default.
        table_prefix: what the table of each queue begins with.
        consumer_name: a name for people; the host's by default.
        consumer_timeout: how long this consumer counts as alive without a heartbeat.
        reaper_interval: how often the reaper looks for messages to give back.

    Raises:
        TypeError, ValueError: an argument has no sensible value.
        UnsupportedByEngine: the driver is not installed.
    """

    def __init__(
        self,
        database: str | URL | Engine,
        *,
        schema: str | None = None,
        table_prefix: str = "queue_",
        consumer_name: str | None = None,
        consumer_timeout: Duration = 30.0,
        reaper_interval: Duration = 1.0,
    ) -> None:
        self._settings = ServiceSettings(
            schema=schema,
            table_prefix=check_table_prefix(table_prefix),
            consumer_name=consumer_name,
            consumer_timeout=consumer_timeout,
            reaper_interval=reaper_interval,
        )
        self.connections = Connections(database)
        self._tables: SystemTables | None = None
        self._queues: dict[str, Queue] = {}
        self._arrivals = threading.Condition()
        self._lock = threading.RLock()
        self._started = False
        self._closed = False
        self._background = Background()
        self._consumer = Consumer(
            self.connections, self._system, self._settings, self._start_heartbeat
        )
        self._reaper = Reaper(self.queues, self._expired_consumers, self._forget_consumer)

    @property
    def consumer_id(self) -> str | None:
        """The id under which this service claims; None before it is registered."""
        return self._consumer.consumer_id

    # -- queues

    def create_queue(
        self,
        name: str,
        *,
        lease: Duration | Unset = UNSET,
        max_attempts: int | Unset = UNSET,
        retry: RetryPolicy | Unset = UNSET,
        payload: PayloadType | Unset = UNSET,
        priorities: int | Unset = UNSET,
        archive: ArchivePolicy | Unset = UNSET,
        archive_ttl: Duration | None | Unset = UNSET,
        max_payload_bytes: int | Unset = UNSET,
        columns: Sequence[Column[Any]] | Unset = UNSET,
    ) -> Queue:
        """Create a queue, or open it where it exists; safe from many servers at once.

        Args:
            name: 1 to 40 lower-case letters, digits and underscores, beginning with a letter.
            lease, max_attempts, retry, payload, priorities, archive, archive_ttl,
            max_payload_bytes, columns: see ``QueueSettings``. What is given is applied to an
                existing queue too; what is not stays as it is.

        Raises:
            InvalidQueueName: it is no queue name.
            QueueSchemaMismatch: the queue exists with another payload type or other columns.
            DatabaseUnavailable: nothing was created.
            TypeError, ValueError: a setting has no sensible value.
        """
        asked = QueueSettings(
            lease=lease,
            max_attempts=max_attempts,
            retry=retry,
            payload=payload,
            priorities=priorities,
            archive=archive,
            archive_ttl=archive_ttl,
            max_payload_bytes=max_payload_bytes,
            columns=columns,
        )
        return self.create_queues({name: asked})[name]

    def create_queues(self, queues: Mapping[str, QueueSettings]) -> dict[str, Queue]:
        """Create several queues, as a server does when it boots.

        Args:
            queues: the settings of each, by name.

        Returns:
            The queues, by name.

        Raises:
            As ``create_queue``; all names are checked before the first queue is created.
        """
        self._check_open()
        dialect = self.connections.dialect
        for name in queues:
            check_queue_name(name, self._settings.table_prefix, dialect.identifier_limit)
        self._system()
        return {name: self._create(name, asked) for name, asked in queues.items()}

    def queue(self, name: str) -> Queue:
        """Open a queue that exists.

        Raises:
            QueueNotFound: it does not.
        """
        self._check_open()
        known = self._queues.get(name)
        if known is not None:
            return known
        record = self._record(name) if isinstance(name, str) else None
        if record is None:
            raise QueueNotFound(name)
        return self._open(record)

    def queues(self) -> list[Queue]:
        """All queues under this service's table prefix, by name."""
        self._check_open()
        system, prefix = self._system(), self._settings.table_prefix
        records = self.connections.run(lambda c: registry.queue_records(c, system, prefix))
        for gone in set(self._queues) - {record.name for record in records}:
            self._queues.pop(gone, None)
        return [self._queues.get(record.name) or self._open(record) for record in records]

    def drop_queue(self, name: str) -> bool:
        """Drop a queue with all its messages and its archive; False where there is none."""
        self._check_open()
        record = self._record(name)
        if record is None:
            return False
        tables = self._tables_of(record)
        system, prefix = self._system(), self._settings.table_prefix

        def act(connection: Connection) -> None:
            registry.remove_queue(connection, system, prefix, name)
            registry.drop_tables(connection, tables)

        self.connections.run(act, atomic=True)
        self._queues.pop(name, None)
        return True

    # -- life cycle

    def start(self) -> None:
        """Register this consumer and start its heartbeat and the reaper; again does nothing.

        Raises:
            DatabaseUnavailable: the database cannot be reached, so a booting server can end here.
            ServiceClosed: the service was stopped.
        """
        self._check_open()
        with self._lock:
            if self._started:
                return
            self._consumer.identity()
            if self.connections.background:
                seconds = self._settings.reaper_seconds
                self._background.every(seconds, "reaper", self._reaper.run_if_due)
            self._started = True

    @property
    def started(self) -> bool:
        """Whether ``start()`` was called."""
        return self._started

    def stop(self) -> None:
        """Give back what this consumer still holds and disconnect; final, and again does nothing.

        Where the database cannot be reached, its messages come back through another's reaper.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._background.stop()
        try:
            self.retire_consumer()
        except QueueError as error:
            _log.warning("Stopping without the database; the reaper gives back the rest: %s", error)
        self.connections.close()
        with self._arrivals:
            self._arrivals.notify_all()

    def retire_consumer(self) -> None:
        """Give back what this consumer holds and end its registration; a later consume renews it.

        Raises:
            DatabaseUnavailable: the reaper does it after the timeout.
        """
        consumer_id = self._consumer.deregister()
        if consumer_id is None:
            return
        for queue in list(self._queues.values()):
            try:
                queue.release_all(consumer_id)
            except QueueNotFound:
                _log.debug("Queue %s was dropped meanwhile.", queue.name)
        self._forget_consumer(consumer_id)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # -- consumers and workers

    def consumers(self) -> list[ConsumerInfo]:
        """All consumers that are registered in this database, the oldest first."""
        self._check_open()
        system = self._system()
        return self.connections.run(lambda connection: registry.consumers(connection, system))

    def reap(self) -> ReaperReport:
        """Make one pass of the reaper now; ``start()`` does it at an interval.

        Raises:
            DatabaseUnavailable: the pass was cut short.
        """
        self._check_open()
        return self._reaper.run_once()

    def worker(
        self,
        *,
        concurrency: int = 4,
        batch: int = 1,
        poll_interval: tuple[float, float] = (0.01, 1.0),
    ) -> Worker:
        """Make a worker; give it handlers with ``@worker.handle(queue)``.

        Args:
            concurrency: threads that handle messages.
            batch: messages that a thread claims at once.
            poll_interval: shortest and longest pause in seconds between two looks at empty queues.
        """
        return Worker(self, concurrency=concurrency, batch=batch, poll_interval=poll_interval)

    def await_arrival(self, seconds: float) -> None:
        """Sleep until a message is published in this process, at most ``seconds``."""
        with self._arrivals:
            self._arrivals.wait(seconds)

    def wake(self) -> None:
        """Wake all who wait for a message in this process."""
        with self._arrivals:
            self._arrivals.notify_all()

    # -- inner

    def _check_open(self) -> None:
        if self._closed:
            raise ServiceClosed

    def _system(self) -> SystemTables:
        """The shared tables; created at the first use where they are missing."""
        if self._tables is None:
            with self._lock:
                if self._tables is None:
                    dialect = self.connections.dialect
                    tables = system_tables(dialect, self._settings.schema)
                    shared = (tables.queues, tables.consumers)
                    self.connections.run(
                        lambda c: registry.ensure_tables(c, shared, dialect), atomic=True
                    )
                    self._tables = tables
        return self._tables

    def _create(self, name: str, asked: QueueSettings) -> Queue:
        while (record := self._record(name)) is None:
            fresh = EffectiveSettings().updated(asked)
            tables = self._define(name, fresh)
            text = fresh.to_json(self._column_types(fresh.columns))
            added = self.connections.run(
                lambda c: self._add(c, tables, text),  # noqa: B023 - runs at once
                atomic=True,
            )
            if added:
                _log.info("Created queue %s.", name)
                return self._remember(name, tables, fresh)
        self._change(record, asked)
        return self.queue(name)

    def _add(self, connection: Connection, tables: QueueTables, settings: str) -> bool:
        dialect, system = self.connections.dialect, self._system()
        dialect.creation_lock(connection)
        try:
            prefix = self._settings.table_prefix
            if registry.queue_record(connection, system, prefix, tables.queue) is not None:
                return False
            registry.create_tables(connection, (tables.live, tables.archive), dialect)
            record = {"table_prefix": prefix, "name": tables.queue, "settings": settings}
            return registry.add_queue(connection, system, dialect, record)
        finally:
            dialect.creation_unlock(connection)

    def _change(self, record: QueueRecord, asked: QueueSettings) -> None:
        """Apply what was given explicitly to a queue that exists; the last deployment wins."""
        queue = self._open(record)
        present = queue.settings
        self._check_same_schema(record, present, asked)
        wanted = present.updated(asked)
        types = stored_columns(record.settings)
        if wanted.to_json(types) == present.to_json(types):
            return
        if wanted.priorities < present.priorities:
            self._check_levels(queue, wanted.priorities)
        changed = [n for n in asked.given() if getattr(wanted, n) != getattr(present, n)]
        _log.info("Changing settings of queue %s: %s.", record.name, ", ".join(changed))
        system, prefix = self._system(), self._settings.table_prefix
        self.connections.run(
            lambda c: registry.change_queue(
                c, system, prefix, record.name, settings=wanted.to_json(types)
            )
        )
        queue.refresh()

    def _check_same_schema(
        self, record: QueueRecord, present: EffectiveSettings, asked: QueueSettings
    ) -> None:
        if asked.payload not in (UNSET, present.payload):
            msg = (
                f"Queue {record.name!r} holds {present.payload!r} payloads, but "
                f"{asked.payload!r} was asked for. Use another name, or drop the queue first."
            )
            raise QueueSchemaMismatch(msg)
        if asked.columns is UNSET:
            return
        existing, wanted = stored_columns(record.settings), self._column_types(asked.columns)
        if existing != wanted:
            msg = (
                f"Queue {record.name!r} has the columns {existing or 'none'}, but "
                f"{wanted or 'none'} were asked for. Use another name, or drop the queue first."
            )
            raise QueueSchemaMismatch(msg)

    def _check_levels(self, queue: Queue, priorities: int) -> None:
        highest = queue.highest_priority()
        if highest >= priorities:
            msg = (
                f"priorities cannot be lowered to {priorities}: queue {queue.name!r} holds "
                f"messages of level {highest}, which nobody would get any more"
            )
            raise ValueError(msg)

    def _column_types(self, columns: Sequence[Column[Any]]) -> dict[str, str]:
        dialect = self.connections.engine.dialect
        return {column.name: column.type.compile(dialect=dialect) for column in columns}

    def _record(self, name: str) -> QueueRecord | None:
        system, prefix = self._system(), self._settings.table_prefix
        return self.connections.run(lambda c: registry.queue_record(c, system, prefix, name))

    def _open(self, record: QueueRecord) -> Queue:
        known = self._queues.get(record.name)
        if known is not None:
            return known
        tables = self._tables_of(record)
        own = [tables.live.c[name] for name in tables.own_columns]
        return self._remember(
            record.name, tables, EffectiveSettings.from_json(record.settings, own)
        )

    def _tables_of(self, record: QueueRecord) -> QueueTables:
        settings = EffectiveSettings.from_json(record.settings)
        names = stored_columns(record.settings)
        table, schema = self._settings.table_prefix + record.name, self._settings.schema
        columns: Sequence[Column[Any]] = ()
        if names:
            columns = self.connections.run(
                lambda c: registry.own_columns(c, table, schema, list(names))
            )
        return self._define(record.name, settings.updated(QueueSettings(columns=columns)))

    def _define(self, name: str, settings: EffectiveSettings) -> QueueTables:
        return queue_tables(
            name,
            self._settings.table_prefix,
            settings.payload,
            settings.columns,
            self._system(),
            self.connections.dialect,
        )

    def _remember(self, name: str, tables: QueueTables, settings: EffectiveSettings) -> Queue:
        context = QueueContext(
            tables, settings, self.connections, self._consumer, self._settings, self._arrivals
        )
        return self._queues.setdefault(name, Queue(context))

    def _start_heartbeat(self) -> None:
        if self.connections.background and not self._closed:
            seconds = self._settings.consumer_timeout_us / 3_000_000
            self._background.every(seconds, "heartbeat", self._consumer.heartbeat)

    def _expired_consumers(self) -> list[str]:
        system, dialect = self._system(), self.connections.dialect
        return self.connections.run(lambda c: registry.expired_consumers(c, system, dialect))

    def _forget_consumer(self, consumer_id: str) -> None:
        system = self._system()
        self.connections.run(lambda c: registry.remove_consumer(c, system, consumer_id))

