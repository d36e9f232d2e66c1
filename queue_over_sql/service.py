"""QueueService: connect, create queues, be a consumer, start and stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from queue_over_sql.adoption import AdoptedQueue
from queue_over_sql.catalog import Catalog
from queue_over_sql.connections import Connections
from queue_over_sql.consumers import Consumer
from queue_over_sql.context import QueueContext
from queue_over_sql.durations import Duration
from queue_over_sql.errors import QueueError, QueueNotFound, ServiceClosed
from queue_over_sql.queue import Queue
from queue_over_sql.reaper import Background, Reaper
from queue_over_sql.schema import QueueTables, check_table_prefix
from queue_over_sql.settings import (
    UNSET,
    ArchivePolicy,
    EffectiveSettings,
    PayloadType,
    QueueSettings,
    ServiceSettings,
    Unset,
)
from queue_over_sql.store import consumers as registrations
from queue_over_sql.worker import Worker

if TYPE_CHECKING:
    from types import TracebackType

    from sqlalchemy import URL, Column, Engine

    from queue_over_sql.kinds import Kinds
    from queue_over_sql.restoring import ReaperReport
    from queue_over_sql.retry import RetryPolicy
    from queue_over_sql.store.consumers import ConsumerInfo

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
        self._catalog = Catalog(self.connections, self._settings, self._make_queue)
        self._arrivals = threading.Condition()
        self._lock = threading.RLock()
        self._started = False
        self._closed = False
        self._background = Background()
        self._consumer = Consumer(
            self.connections, self._catalog.system, self._settings, self._start_heartbeat
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
        archive_ttl: Duration | Mapping[str, Duration | None] | Unset | None = UNSET,
        archive_limit: int | Mapping[str, int | None] | Unset | None = UNSET,
        dedup_window: Duration | Unset | None = UNSET,
        max_payload_bytes: int | Unset = UNSET,
        columns: Sequence[Column[Any]] | Unset = UNSET,
        kinds: Sequence[Any] | Mapping[str, Any] | Unset = UNSET,
        kind_timeout: Duration | Unset = UNSET,
    ) -> Queue:
        """Create a queue, or open it where it exists; safe from many servers at once.

        What is given is applied to an existing queue too; what is not stays as it is.

        Args:
            name: 1 to 40 lower-case letters, digits and underscores, beginning with a letter.
            lease: how long a claim holds without being extended (300 s).
            max_attempts: deliveries before a message is a dead letter (5).
            retry: policy after a failure (``ExponentialBackoff()``).
            payload: ``"json"``, ``"text"`` or ``"bytes"``; fixed from then on.
            priorities: number of levels, 1 to 100 (1).
            archive: which finished messages are kept: ``"none"``, ``"failed"`` or ``"all"``.
            archive_ttl: how long they are kept, for all outcomes or by outcome; None for ever.
            archive_limit: how many of each outcome are kept, the newest; None for any number.
            dedup_window: how long a key stays taken after its message finished (not at all).
            max_payload_bytes: largest encoded payload (1 MiB).
            columns: SQLAlchemy columns of the queue's own; fixed from then on.
            kinds: types of payloads that this server's code knows: a list of Pydantic models,
                dataclasses, TypedDicts or types of plain JSON, or a mapping of kinds to types.
            kind_timeout: how long a message of an unknown kind, or that does not fit its kind,
                waits for a server that knows better (1 day).

        Raises:
            InvalidQueueName: it is no queue name.
            QueueSchemaMismatch: the queue exists with another payload type or other columns.
            DatabaseUnavailable: nothing was created.
            ImportError: there are kinds, and Pydantic is not installed.
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
            archive_limit=archive_limit,
            dedup_window=dedup_window,
            max_payload_bytes=max_payload_bytes,
            columns=columns,
            kinds=kinds,
            kind_timeout=kind_timeout,
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
        if not isinstance(queues, Mapping) or not all(
            isinstance(asked, QueueSettings) for asked in queues.values()
        ):
            msg = "queues must be a mapping of names to QueueSettings"
            raise TypeError(msg)
        return self._catalog.create(queues)

    def adopt_queue(
        self,
        name: str,
        table: Any,
        *,
        column_prefix: str = "",
        lease: Duration | Unset = UNSET,
        max_attempts: int | Unset = UNSET,
        retry: RetryPolicy | Unset = UNSET,
        priorities: int | Unset = UNSET,
    ) -> AdoptedQueue:
        """Make a queue of a table of your own: each row may be a message; safe to repeat.

        The columns and indexes of a queue are added to the table, which needs one whole-number
        primary key. No row is a message before ``enqueue`` or ``publish`` makes it one, and none
        is ever deleted: what is finished keeps what became of it in its row.

        Args:
            name: of the queue, as in ``create_queue``.
            table: an SQLAlchemy ``Table`` or a mapped class, whose types and defaults are used;
                or the table's name, with its schema before a dot.
            column_prefix: what the names of the added columns begin with.
            lease: how long a claim holds without being extended (300 s).
            max_attempts: deliveries before a message is a dead letter (5).
            retry: policy after a failure (``ExponentialBackoff()``).
            priorities: number of levels, 1 to 100 (1).

        Raises:
            InvalidQueueName: it is no queue name.
            QueueSchemaMismatch: the table is not there, has no such key or has columns of our
                names, or the queue exists otherwise; nothing was changed.
            DatabaseUnavailable: as its name says; calling again completes what was begun.
            TypeError, ValueError: an argument has no sensible value.
        """
        self._check_open()
        asked = QueueSettings(
            lease=lease, max_attempts=max_attempts, retry=retry, priorities=priorities
        )
        queue = self._catalog.adopt(name, table, column_prefix, asked)
        if not isinstance(queue, AdoptedQueue):
            raise QueueNotFound(name)
        return queue

    def queue(self, name: str) -> Queue:
        """Open a queue that exists.

        Raises:
            QueueNotFound: it does not.
        """
        self._check_open()
        return self._catalog.get(name)

    def queues(self) -> list[Queue]:
        """All queues under this service's table prefix, by name."""
        self._check_open()
        return self._catalog.all()

    def drop_queue(self, name: str) -> bool:
        """Drop a queue with all its messages and its archive; False where there is none.

        Of a queue over a table of your own only the added columns and indexes are dropped.
        """
        self._check_open()
        return self._catalog.drop(name)

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
        self.connections.close_to_others()
        try:
            self._retire_consumer()
        except QueueError as error:
            _log.warning("Stopping without the database; the reaper gives back the rest: %s", error)
        self.connections.close()
        with self._arrivals:
            self._arrivals.notify_all()

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
        system = self._catalog.system()
        return self.connections.run(lambda connection: registrations.registered(connection, system))

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

    def reopen_queue(self, name: str) -> None:
        """Forget a queue that was dropped and created anew elsewhere."""
        self._catalog.forget(name)

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

    def _make_queue(
        self, tables: QueueTables, settings: EffectiveSettings, kinds: Kinds | None
    ) -> Queue:
        form = Queue if tables.adoption is None else AdoptedQueue
        return form(
            QueueContext(
                tables,
                settings,
                connections=self.connections,
                consumer=self._consumer,
                service=self._settings,
                arrivals=self._arrivals,
                kinds=kinds,
            )
        )

    def _start_heartbeat(self) -> None:
        if self.connections.background and not self._closed:
            seconds = self._settings.consumer_timeout_us / 3_000_000
            self._background.every(seconds, "heartbeat", self._consumer.heartbeat)

    def _retire_consumer(self) -> None:
        consumer_id = self._consumer.close()
        if consumer_id is None:
            return
        for queue in self._catalog.opened:
            try:
                queue.release_all(consumer_id)
            except QueueNotFound:
                _log.debug("Queue %s was dropped meanwhile.", queue.name)
        self._forget_consumer(consumer_id)

    def _expired_consumers(self) -> list[str]:
        system, dialect = self._catalog.system(), self.connections.dialect
        return self.connections.run(lambda c: registrations.expired(c, system, dialect))

    def _forget_consumer(self, consumer_id: str) -> None:
        system = self._catalog.system()
        self.connections.run(lambda c: registrations.remove(c, system, consumer_id))
