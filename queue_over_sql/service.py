"""QueueService: connect, be a consumer, start and stop; which queues there are is provisioning."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Self

from queue_over_sql.adoption import AdoptedQueue
from queue_over_sql.arrivals import Arrivals
from queue_over_sql.catalog import Catalog
from queue_over_sql.connections import Connections
from queue_over_sql.consumers import Consumer
from queue_over_sql.context import QueueContext
from queue_over_sql.durations import Duration, to_timedelta
from queue_over_sql.errors import ConsumerNotFound, QueueError, QueueNotFound
from queue_over_sql.parts import ServiceParts
from queue_over_sql.provisioning import Provisioning
from queue_over_sql.queue import Queue
from queue_over_sql.reaper import Reaper
from queue_over_sql.reply_queues import ReplyQueues
from queue_over_sql.retry import RetryPolicies
from queue_over_sql.runtime import THREADS, Runtime
from queue_over_sql.schedules import Schedules
from queue_over_sql.schema import QueueTables, check_table_prefix
from queue_over_sql.settings import EffectiveSettings, ServiceSettings
from queue_over_sql.sqlapi import SqlApi
from queue_over_sql.store import consumers as registrations
from queue_over_sql.sweeping import StageSweeper
from queue_over_sql.topics import TopicProvisioning
from queue_over_sql.wakeups import WakeUps
from queue_over_sql.worker import Worker
from queue_over_sql.write_ahead_log import WriteAheadLog

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from sqlalchemy import URL, Engine

    from queue_over_sql.durable import DurableRegistration
    from queue_over_sql.kinds import Kinds
    from queue_over_sql.restoring import ReaperReport
    from queue_over_sql.store.consumers import ConsumerInfo

_log = logging.getLogger(__name__)


class QueueService(Provisioning, TopicProvisioning):
    """Queues in one database, and this process as one consumer of them.

    May be used from any thread. Nothing connects before it is needed; consuming registers the
    consumer and starts its heartbeat, ``start()`` also starts the reaper.

    Args:
        database: an SQLAlchemy URL, as text or object, or an ``Engine``, which is not altered.
        schema: database schema that holds all tables; None for the connection's default.
        table_prefix: what the table of each queue begins with.
        consumer_name: a name for people; the host's by default.
        consumer_timeout: how long this consumer counts as alive without a heartbeat, and how long
            anything waits for a database that does not answer at all (five seconds at least).
        reaper_interval: how often the reaper looks for messages to give back.
        notify: whether consumers are woken by what other processes publish: on PostgreSQL by
            LISTEN and NOTIFY, on SQLite by watching the file. They poll underneath in any case,
            and only poll where a pooler such as PgBouncer shares sessions. False does without.
        retry_policies: names and classes of your own retry policies, the same on every server. A
            queue stores the name and the arguments of its policy. A service that does not know the
            name logs it and uses ``ExponentialBackoff()``.

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
        notify: bool = True,
        retry_policies: Mapping[str, type[Any]] | None = None,
    ) -> None:
        settings = ServiceSettings(
            schema=schema,
            table_prefix=check_table_prefix(table_prefix),
            consumer_name=consumer_name,
            consumer_timeout=consumer_timeout,
            reaper_interval=reaper_interval,
            notify=notify,
            retry_policies=RetryPolicies(retry_policies),
        )
        self._settings = settings
        patience = settings.consumer_timeout_us / 1_000_000
        self.connections = connections = Connections(database, self._runtime(), patience=patience)
        runtime = connections.runtime
        catalog = Catalog(connections, settings, self._make_queue)
        consumer = Consumer(connections, catalog.system, settings, self._start_heartbeat)
        arrivals = Arrivals(runtime)
        wakeups = WakeUps(connections, arrivals, catalog.has_opened, enabled=notify)
        parts = ServiceParts(settings, connections, catalog, consumer, arrivals, wakeups)
        Provisioning.__init__(self, parts)
        TopicProvisioning.__init__(self, parts)
        self._replies = ReplyQueues(parts)
        self._lock = runtime.lock()
        self._started = False
        # By stop(): what is given back already, and whether the log says what is not.
        self._released: list[str] = []
        self._told_what_is_left = False
        self._background = runtime.background()
        self._schedules = Schedules(self._parts)
        sweeper = StageSweeper(self._parts)
        self._reaper = Reaper(
            self.queues,
            self._expired_consumers,
            self._forget_expired,
            chores=[
                self._schedules.fire_due,
                self._replies.reap,
                sweeper.sweep_if_due,
                WriteAheadLog(connections).bound,
            ],
        )

    @property
    def consumer_id(self) -> str | None:
        """The id under which this service claims; None before it is registered."""
        return self._parts.consumer.consumer_id

    @property
    def schedules(self) -> Schedules:
        """Messages that are published again and again."""
        return self._schedules

    @property
    def sql_api(self) -> SqlApi:
        """Installs the functions and procedures through which any SQL client can use the queues."""
        return SqlApi(self._parts)

    # -- life cycle

    def start(self) -> None:
        """Register this consumer and start its heartbeat and the reaper; again does nothing.

        Raises:
            DatabaseUnavailable: the database cannot be reached, so a booting server can end here.
            ServiceClosed: the service was stopped.
        """
        self._parts.check_open()
        with self._lock:
            if self._started:
                return
            self._parts.consumer.identity()
            if self.connections.background:
                seconds = self._settings.reaper_seconds
                self._background.every(seconds, "reaper", self._reaper.run_if_due)
            self._started = True

    @property
    def started(self) -> bool:
        """Whether ``start()`` was called."""
        return self._started

    def stop(self, timeout: Duration = 10.0) -> None:
        """Give back what this consumer still holds and disconnect; final, and again does nothing.

        Where the database cannot be reached, or does not answer in time, the log says what is left
        behind, and it comes back through another's reaper. That is no error.

        Args:
            timeout: how long the database may take, in seconds or as a ``timedelta``. Then all
                connections are ended, also those on which other threads still work.

        Raises:
            TypeError, ValueError: the time-out is no duration above zero.
        """
        seconds = to_timedelta(timeout, "timeout").total_seconds()
        if self._parts.closed:
            return
        consumer_id = self.consumer_id
        if not self.connections.within(seconds, lambda: self._leave(seconds)):
            self._parts.closed = True
            self._background.stop()
            self._tell_what_is_left(consumer_id, "it did not answer in time")
            self.connections.refuse()
        self._parts.wake()

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
        """All consumers that are registered in this database, the oldest first.

        What cannot be read of them is logged and left out.
        """
        self._parts.check_open()
        system = self._parts.catalog.system()
        rows = self.connections.run(lambda connection: registrations.registered(connection, system))
        for row in rows:
            if isinstance(row, QueueError):
                _log.warning("A consumer is left out: %s", row)
        return [row for row in rows if not isinstance(row, QueueError)]

    def release_consumer(self, consumer_id: str) -> int:
        """Give back, uncounted, what a durable consumer holds, and fence the query that has it.

        For a query that died and will not come back; one that still runs ends with
        ``ConsumerFenced``. Its registration stays, so a query may take it over anew.

        Args:
            consumer_id: the query's ``consumerId``.

        Returns:
            How many messages.

        Raises:
            ConsumerNotFound: there is no such consumer.
            ValueError: it is not durable, or of another table prefix.
        """
        return self._durable_consumer(consumer_id).release()

    def drop_consumer(self, consumer_id: str) -> int:
        """Give back, uncounted, what a durable consumer holds, and forget it for good.

        A query that comes back with its old checkpoint is refused with ``RoundsGone``.

        Args:
            consumer_id: the query's ``consumerId``.

        Returns:
            How many messages were given back.

        Raises:
            ConsumerNotFound, ValueError: as in ``release_consumer``.
        """
        try:
            return self._durable_consumer(consumer_id).drop()
        except QueueNotFound:
            # With the queue all that it held is gone.
            self._forget_consumer(consumer_id)
            return 0

    def reap(self) -> ReaperReport:
        """Make one pass of the reaper now; ``start()`` does it at an interval.

        Raises:
            DatabaseUnavailable: the pass was cut short.
        """
        self._parts.check_open()
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
        return Worker(
            self,
            self._parts,
            concurrency=concurrency,
            batch=batch,
            poll_interval=poll_interval,
        )

    # -- inner

    def _runtime(self) -> Runtime:
        """How this service waits, and does several things at once."""
        return THREADS

    def _make_queue(
        self, tables: QueueTables, settings: EffectiveSettings, kinds: Kinds | None
    ) -> Queue:
        form = Queue if tables.adoption is None else AdoptedQueue
        return form(
            QueueContext(
                tables,
                settings,
                connections=self.connections,
                consumer=self._parts.consumer,
                service=self._settings,
                arrivals=self._parts.arrivals,
                wakeups=self._parts.wakeups,
                replies=self._replies,
                kinds=kinds,
            )
        )

    def _start_heartbeat(self) -> None:
        if self.connections.background and not self._parts.closed:
            seconds = self._settings.consumer_timeout_us / 3_000_000
            self._background.every(seconds, "heartbeat", self._parts.consumer.heartbeat)

    def _leave(self, seconds: float) -> None:
        with self._lock:
            if self._parts.closed:
                return
            self._parts.closed = True
        consumer_id = self.consumer_id
        self._background.stop()
        self._parts.wakeups.stop()
        # Half of the time is left for what this consumer itself holds.
        self.connections.close_to_others(seconds / 2)
        try:
            self._retire_consumer()
        except QueueError as error:
            self._tell_what_is_left(consumer_id, str(error))
        self.connections.close()

    def _retire_consumer(self) -> None:
        consumer_id = self._parts.consumer.close()
        if consumer_id is None:
            return
        for queue in self._parts.catalog.opened:
            try:
                queue.release_all(consumer_id)
            except QueueNotFound:
                _log.debug("Queue %s was dropped meanwhile.", queue.name)
            self._released.append(queue.name)
        self._replies.drop_own(consumer_id)
        self._forget_consumer(consumer_id)

    def _tell_what_is_left(self, consumer_id: str | None, reason: str) -> None:
        if self._told_what_is_left:
            return
        self._told_what_is_left = True
        left = [q.name for q in self._parts.catalog.opened if q.name not in self._released]
        seconds = self._settings.consumer_timeout_us / 1_000_000
        if consumer_id is None:
            _log.warning("Stopped without the database: %s", reason)
            return
        _log.warning(
            "Stopped without the database. Consumer %s leaves behind its registration%s; "
            "another's reaper gives that back within %g s: %s",
            consumer_id,
            f" and what it holds in {', '.join(left)}" if left else "",
            seconds,
            reason,
        )

    def _durable_consumer(self, consumer_id: str) -> DurableRegistration:
        known = {consumer.consumer_id: consumer for consumer in self.consumers()}
        found = known.get(consumer_id) if isinstance(consumer_id, str) else None
        if found is None:
            raise ConsumerNotFound(consumer_id)
        if found.queue is None or not found.durable:
            msg = f"{consumer_id!r} is no durable consumer: its process gives back what it holds"
            raise ValueError(msg)
        if found.table_prefix != self._settings.table_prefix:
            msg = f"{consumer_id!r} belongs to the table prefix {found.table_prefix!r}: use that"
            raise ValueError(msg)
        return self.queue(found.queue).durable_consumer(consumer_id, owner="")

    def _expired_consumers(self) -> list[str]:
        system, dialect = self._parts.catalog.system(), self.connections.dialect
        return self.connections.run(lambda c: registrations.expired(c, system, dialect))

    def _forget_consumer(self, consumer_id: str) -> None:
        system = self._parts.catalog.system()
        self.connections.run(lambda c: registrations.remove(c, system, consumer_id))

    def _forget_expired(self, consumer_id: str) -> None:
        system, dialect = self._parts.catalog.system(), self.connections.dialect
        self.connections.run(
            lambda c: registrations.remove_expired(c, system, dialect, consumer_id), atomic=True
        )
