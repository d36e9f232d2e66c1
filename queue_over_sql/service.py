"""QueueService: connects to the database, registers a consumer, and creates queues and topics."""

from __future__ import annotations

import functools
import logging
import os
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack, overload

from queue_over_sql.catalog.catalog import Catalog
from queue_over_sql.catalog.reply_boxes import ReplyBoxesOfCatalog
from queue_over_sql.catalog.service_parts import ServiceParts
from queue_over_sql.catalog.temporary_queues import TemporaryQueues
from queue_over_sql.claiming.several import SeveralQueues
from queue_over_sql.consumers.consumer import Consumer
from queue_over_sql.consumers.registered import RegisteredConsumers
from queue_over_sql.database.connections import Connections
from queue_over_sql.database.notify import Arrivals, WakeUps
from queue_over_sql.database.opened_engine import OpenedEngine
from queue_over_sql.database.runtime import THREADS, Background, Runtime
from queue_over_sql.dialects.engines import open_engine
from queue_over_sql.durable.operators import LostConsumers
from queue_over_sql.errors import (
    DatabaseUnavailable,
    Locked,
    NotPermitted,
    QueueError,
    QueueNotFound,
    ServiceClosed,
)
from queue_over_sql.existing_tables.queue import AdoptedQueue, RowPublisher
from queue_over_sql.message import Message, Payload
from queue_over_sql.migrations import Migrations, Upgrader
from queue_over_sql.observer import Observer, ReaperReport, as_observers
from queue_over_sql.queue import Queue, QueueCore, core_of, name_of
from queue_over_sql.queues.context import QueueContext
from queue_over_sql.reaper import ClockWatch, Reaper, StagedWriteCleanup
from queue_over_sql.request_reply.reply_queues import ReplyQueues
from queue_over_sql.retry import RetryPolicies
from queue_over_sql.roles.grants import not_permitted
from queue_over_sql.roles.roles import Roles, keep_rights
from queue_over_sql.schedules import Schedules
from queue_over_sql.schedules.firing import ScheduleFirer
from queue_over_sql.schema.queue_tables import (
    QueueTables,
    check_table_prefix,
)
from queue_over_sql.settings import (
    NOT_GIVEN,
    UNSET,
    EffectiveSettings,
    OptionsOfAdopted,
    QueueOptions,
    QueueSettings,
    ServiceSettings,
    Unset,
)
from queue_over_sql.settling.dead_letter_queue import feed
from queue_over_sql.sql_api import SqlApi
from queue_over_sql.topics import Topic
from queue_over_sql.topics.topics import Topics
from queue_over_sql.values.checks import check_flag, check_name
from queue_over_sql.values.durations import Duration, duration_text, to_timedelta
from queue_over_sql.values.options import check_known, spelled_out
from queue_over_sql.worker.middleware import Middleware
from queue_over_sql.worker.worker import Worker

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine

    from queue_over_sql.consumers.registrations import ConsumerInfo
    from queue_over_sql.payloads.types import Kinds


_log = logging.getLogger(__name__)

# How many services of one database a process makes, without a stop, before it is warned once.
_MANY_SERVICES: Final = 20
_unstopped: Counter[tuple[str, str | None, str]] = Counter()


class QueueService:
    """Queues in one database, and this process as one consumer of them.

    It may be used from any thread. It connects when a verb first needs the database. The first
    ``consume`` registers the consumer and starts its heartbeat. ``start()`` also starts the reaper.

    Make one for the whole process and stop it at the end. A started service runs until then. One
    that was not started closes its connections when nothing refers to it, its queues and messages
    any more; what it had claimed is then released when its heartbeat is overdue.

    Args:
        database: an SQLAlchemy URL, as text or object, or an ``Engine``, which is not changed.
        schema: database schema that holds all tables; None for the connection's default.
        table_prefix: prefix of the names of all tables of queues.
        consumer_name: a name to show to people; by default the host name.
        consumer_timeout: a consumer with no heartbeat for this long is considered dead. It is also
            the time limit for a database that does not answer at all (at least five seconds).
        reaper_interval: how often the reaper runs.
        notify: whether a publish in another process wakes waiting consumers: on PostgreSQL by
            LISTEN and NOTIFY, on SQLite by watching the file. Consumers also poll. They only poll
            if this is False, or behind a pooler that shares sessions, such as PgBouncer.
        auto_migrate: whether the service upgrades tables of an earlier release when it starts or
            opens a queue; safe while workers of that release run. Use False if the login may not
            alter tables: then ``SchemaOutdated`` lists the pending changes, and ``queue-over-sql
            migrate`` makes them.
        retry_policies: your own retry policies: a mapping of names to classes, the same on every
            server. A queue stores the name and the arguments of its policy. A service that does not
            know the name logs a warning and uses ``ExponentialBackoff()``.
        observer: one ``Observer`` or several, which are notified of what this service does.
        reply_queue: name of a queue for the replies to ``request``, and for nothing else; several
            services may share it. By default each service creates a temporary one, so its login
            must be allowed to create tables.

    Raises:
        TypeError, ValueError: an argument has an invalid value.
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
        auto_migrate: bool = True,
        retry_policies: Mapping[str, type[Any]] | None = None,
        observer: Observer | Sequence[Observer] | None = None,
        reply_queue: str | None = None,
    ) -> None:
        settings = ServiceSettings(
            schema=schema,
            table_prefix=check_table_prefix(table_prefix),
            consumer_name=consumer_name,
            consumer_timeout=consumer_timeout,
            reaper_interval=reaper_interval,
            notify=notify,
            auto_migrate=auto_migrate,
            retry_policies=RetryPolicies(retry_policies),
            reply_queue=reply_queue,
        )
        self._settings = settings
        silence = settings.consumer_timeout_us / 1_000_000
        missing_right = functools.partial(not_permitted, table_prefix)
        connections = Connections(
            self._open_engine(database),
            self._runtime(),
            silence=silence,
            forbidden=missing_right,
        )
        runtime = connections.runtime
        self._upgrader = Upgrader(
            connections, settings, lambda system: keep_rights(self._parts, system)
        )
        catalog = Catalog(connections, settings, self._make_queue, self._upgrader)
        consumer = Consumer(connections, catalog.system, settings, self._registered_anew)
        arrivals = Arrivals(runtime)
        wakeups = WakeUps(connections, arrivals, catalog.has_opened, enabled=notify)
        self._background = Background(runtime)
        self._parts = parts = ServiceParts(
            settings,
            connections,
            catalog,
            consumer,
            arrivals,
            wakeups,
            self._background,
            as_observers(observer),
        )
        self._several = SeveralQueues()
        self._topics = Topics(parts)
        self._registered = RegisteredConsumers(connections, catalog.system)
        self._durable = LostConsumers(parts, self._registered)
        self._reply_queues = ReplyQueues(ReplyBoxesOfCatalog(parts), consumer, settings)
        self._temporary = TemporaryQueues(parts)
        self._lock = runtime.lock()
        # The process that started it: a fork has none of the threads.
        self._started_in: int | None = None
        # For stop(): the queues that were released, and whether the log lists the others.
        self._released: list[str] = []
        self._told_what_is_left = False
        self._schedules = Schedules(self._parts)
        self._migrations = Migrations(self._upgrader, parts.check_open)
        self._firer = ScheduleFirer(parts)
        consumer.deaths.held = self._held_by
        self._reaper = Reaper(
            parts.catalog.served,
            consumer.deaths.declare,
            self._registered.forget_dead,
            chores=[
                ClockWatch(parts, self.queues).look,
                self._temporary.reap,
                StagedWriteCleanup(parts).run_if_due,
                self._maintain,
            ],
            elsewhere=[self._firer.fire_all],
            observer=parts.observer,
            giving_way=connections.giving_way,
        )
        if parts.observer is not None:
            parts.observer.opened(self)
        self._place = connections.where, schema, settings.table_prefix
        self._warn_of_many()

    @property
    def consumer_id(self) -> str | None:
        """The id of this service as a consumer; None before it is registered."""
        return self._parts.consumer.consumer_id

    @property
    def schedules(self) -> Schedules:
        """The schedules, which publish messages regularly."""
        return self._schedules

    @property
    def sql_api(self) -> SqlApi:
        """The SQL API: functions and procedures with which any SQL client can use the queues."""
        return SqlApi(self._parts)

    @property
    def roles(self) -> Roles:
        """Database roles for publishers, consumers, operators and viewers."""
        return Roles(self._parts)

    @property
    def migrations(self) -> Migrations:
        """The migrations: list and apply the changes that tables of an earlier release need."""
        return self._migrations

    # -- life cycle

    def start(self) -> None:
        """Register this consumer and start its heartbeat and the reaper; repeated calls do nothing.

        First it upgrades tables of an earlier release, unless ``auto_migrate`` is False. If the
        login may not register a consumer, as a publisher's login, the service works without
        consumer, heartbeat and reaper.

        A started service serves all processes: its reaper and schedules work until ``stop()``, even
        if the program keeps no reference to it. One that was never started ends with the last
        reference to it, its queues and messages.

        Raises:
            SchemaTooNew: a newer release created the tables of a queue; nothing was written.
            SchemaOutdated: an earlier release created tables, and this service may not upgrade
                them.
            DatabaseUnavailable: the database cannot be reached.
            ServiceClosed: the service was stopped.
            RuntimeError: the system refuses a thread for heartbeat or reaper; call it again.
        """
        self._parts.check_open()
        with self._lock:
            if self.started:
                return
            self._upgrader.start(self._parts.system())
            try:
                self._parts.consumer.identity()
            except NotPermitted as error:
                _log.info("This service cannot consume and runs no reaper: %s", error)
            else:
                if self._parts.connections.background:
                    seconds = self._settings.reaper_seconds
                    self._background.every(seconds, "reaper", self._reaper.run_if_due)
                    self._background.every(seconds, "schedules", self._firer.run_if_due)
            self._started_in = os.getpid()

    @property
    def started(self) -> bool:
        """Whether ``start()`` was called in this process; False in a child after a fork."""
        return self._started_in == os.getpid()

    def stop(self, timeout: Duration = 10.0) -> None:
        """Release the messages that this consumer holds, and disconnect.

        If the database cannot be reached or does not answer in time, this is not an error: the log
        says what was not released, and the reaper of another service releases it later. A stopped
        service cannot be started again.

        Args:
            timeout: time limit for the database, in seconds or as a ``timedelta``. After it, all
                connections are closed, even those that other threads still use.

        Raises:
            TypeError, ValueError: the timeout is not a duration above zero.
        """
        seconds = to_timedelta(timeout, "timeout").total_seconds()
        if self._parts.closed:
            return
        _unstopped[self._place] -= 1
        consumer_id = self.consumer_id
        if not self._parts.connections.within(seconds, lambda: self._leave(seconds)):
            self._parts.closed = True
            self._background.stop()
            self._log_what_is_left(consumer_id, "it did not answer in time")
            self._parts.connections.refuse()
        self._parts.arrivals.notify()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    # -- queues and topics

    @overload
    def create_queue(
        self,
        name: str,
        *,
        kinds: Sequence[type[Payload]] | Mapping[str, type[Payload]],
        temporary: bool = False,
        **settings: Unpack[QueueOptions],
    ) -> Queue[Payload]: ...
    @overload
    def create_queue(
        self,
        name: str,
        *,
        kinds: Sequence[Any] | Mapping[str, Any] | Unset = UNSET,
        temporary: bool = False,
        **settings: Unpack[QueueOptions],
    ) -> Queue: ...
    @spelled_out(QueueOptions, NOT_GIVEN)
    def create_queue(
        self,
        name: str,
        *,
        kinds: Sequence[Any] | Mapping[str, Any] | Unset = UNSET,
        temporary: bool = False,
        **settings: Unpack[QueueOptions],
    ) -> Queue:
        """Create a queue, or open it if it exists; safe to call from many servers at once.

        Arguments that you give change an existing queue, too. Its other settings stay unchanged.

        Args:
            name: 1 to 255 characters. Up to 40 lower-case letters, digits and underscores that
                begin with a letter are also the name of the tables. Of any other name a readable
                ``queue.name`` is made, as ``celery_host_pidbox_1a2b3c4d``. ``queue.title`` has what
                you gave; either opens the queue.
            lease: how long a consumer holds a message unless it extends the lease (300 s).
            max_attempts: deliveries before a message becomes a dead letter (5).
            retry: the retry policy (``ExponentialBackoff()``).
            payload: ``"json"`` (default), ``"text"`` or ``"bytes"``; cannot be changed later.
            priorities: number of priority levels, 1 (default) to 100; 0 is the most urgent.
            archive: which finished messages the archive keeps: ``"none"``, ``"failed"`` (default)
                or ``"all"``.
            archive_ttl: how long the archive keeps them; None (default) forever. Also a mapping of
                outcomes (``done``, ``failed``, ``rejected``, ``expired``) to durations.
            archive_limit: how many messages the archive keeps per outcome; it removes the oldest
                first. None (default): any number. Also a mapping of outcomes to numbers.
            unique: which messages keep their key taken: ``"live"`` (default) all that are not
                finished, ``"waiting"`` only those that no consumer holds; cannot be changed later.
            dedup_window: how long a key stays taken after its message is finished; None (default):
                not at all.
            expires: how long a message may wait for its first start, unless it has an ``expires``
                of its own; None (default): for ever.
            group_limit: how many messages of one ``group`` are in hand at once; None (default):
                messages have no groups.
            group_order: ``"fifo"`` (default): messages of a group start in the order in which they
                were published, and one that waits for a retry holds up those behind it. ``"any"``:
                they do not wait for each other's order.
            group_rate: how fast messages of one group may start: how many in a second, minute,
                hour or day, as ``"100/min"``. So many may also start at once after a rest, or as
                many as ``"100/min burst 10"`` says. Without a ``group_limit`` any number of them
                is in hand at once, in any order. None (default): as fast as they can.
            group_fair: whether consumers share between groups: the one with the fewest messages in
                hand for its weight is next. It goes with ``group_order="any"``, which it brings
                along with groups without a limit where the queue has none. False (default): the
                oldest message is next.
            block_on_failure: whether a message of a FIFO group that fails for the last time, or is
                rejected, blocks its group until ``queue.groups[…].unblock()``, or until it is
                requeued or removed. False (default): the next one follows.
            queue_limit: how many messages of the whole queue are in hand at once, over all
                processes, 1 to 1,000; None (default): any number.
            queue_rate: how fast messages of the whole queue start, over all processes, as
                ``group_rate`` says it for one group; None (default): as fast as they can.
            max_length: how many unfinished messages the queue may have; None (default): any number.
                A publish counts them, which takes longer the more there are. Two publishers at the
                same time may exceed the number.
            when_full: what a publish does when the queue has ``max_length`` messages; then the
                default is ``"reject"``. In a queue without a ``max_length``: when its group, or the
                queue if it has no group, has as many unfinished messages as its limit allows to be
                in hand. ``"wait"`` (default):
                the message waits. ``"reject"``: the publish raises ``GroupFull``. ``"replace"``: it
                replaces the newest one that nobody holds; if there is none, it is added. Two
                publishers at the same time may exceed the number.
            max_payload_bytes: largest encoded payload (1 MiB).
            columns: additional SQLAlchemy columns of the queue; cannot be changed later.
            dead_letter_queue: name of another queue, to which each dead letter is published when it
                is archived, in the same transaction; None (default): none. There its header
                ``dead_letter`` has the queue, id, key and attempts, the outcome and the reason. It
                has no key, group or own columns. A message with this header stays in the archive,
                so that none goes round. So do dead letters of the SQL API, and of a login that may
                not publish to the other queue, such as one with the role of a consumer alone. The
                ``max_length`` and ``when_full`` of the other queue are for publishers, not for
                these copies.
            unused_for: drop the queue, with all its messages, when no living consumer has asked
                for its messages for this long; None (default): never. Clients over HTTP count as
                consumers. Clients of the SQL API count only while they hold a message.
            temporary: drop the queue, with all its messages, when this service stops or dies. If
                the queue exists, it must be temporary, and ends with this service from now on. A
                reaper drops it after it has seen the service dead for ``consumer_timeout``. A
                service that was declared dead, but lives, keeps it if it registers anew before
                that: at its next claim, or when its reaper runs.
            kinds: the payload types that this program knows: a list of Pydantic models,
                dataclasses, TypedDicts or plain JSON types, or a mapping of kinds to types. They
                are not stored in the database.
            kind_timeout: how long a message waits for a consumer that knows its kind and can read
                its payload as this kind (1 day). Then it becomes a dead letter.
            warn_age: the dashboard marks the queue when its oldest ready message has been due for
                longer; None (default): never.
            critical_age: the same, and ``check_queues`` fails; None (default): never.

        Raises:
            InvalidQueueName: the name is not valid for a queue.
            QueueSchemaMismatch: the queue exists with another payload type, other columns or
                another ``unique``, or is not ``temporary``.
            QueueNotFound: there is no ``dead_letter_queue`` of this name.
            DatabaseUnavailable: nothing was created.
            ImportError: there are kinds, and Pydantic is not installed.
            UnsupportedByEngine: there is a ``group_limit``, ``queue_limit`` or ``queue_rate``, and
                H2 is older than 2.2.220.
            TypeError, ValueError: a setting has an invalid value.
        """
        check_known("QueueService.create_queue", settings, QueueOptions)
        requested = QueueSettings(kinds=kinds, **settings)
        self._parts.check_open()
        # Check first: an invalid name may not even be hashable.
        self._parts.catalog.checked_name(name)
        if check_flag("temporary", temporary):
            return self._temporary.create(name, requested)
        return self.create_queues({name: requested})[name]

    def create_queues(self, queues: Mapping[str, QueueSettings]) -> dict[str, Queue]:
        """Create several queues, or open them if they exist.

        Args:
            queues: the settings of each, by name.

        Returns:
            The queues, by name.

        Raises:
            As ``create_queue``; it checks all names before it creates the first queue.
        """
        self._parts.check_open()
        if not isinstance(queues, Mapping) or not all(
            isinstance(requested, QueueSettings) for requested in queues.values()
        ):
            msg = "queues must be a mapping of names to QueueSettings"
            raise TypeError(msg)
        return self._parts.catalog.create(queues)

    @spelled_out(OptionsOfAdopted, NOT_GIVEN)
    def adopt_queue(
        self,
        name: str,
        table: Any,
        *,
        column_prefix: str = "",
        group: str | None = None,
        unlogged: bool = False,
        **settings: Unpack[OptionsOfAdopted],
    ) -> AdoptedQueue:
        """Turn an existing table into a queue whose messages are its rows; safe to repeat.

        It adds the columns and indexes of a queue to the table, which must have an integer primary
        key of one column. A row becomes a message by ``enqueue`` or ``publish``. No row is ever
        deleted: a finished row stores its outcome.

        Args:
            name: of the queue, as in ``create_queue``.
            table: an SQLAlchemy ``Table`` or a mapped class, whose types and defaults are used; or
                the table's name, as ``table`` or ``schema.table``.
            column_prefix: prefix of the names of the added columns.
            group: the column of your table that names a row's group: text, whole numbers or UUIDs.
                ``group_limit`` is 1 unless you give it. On PostgreSQL this rewrites the table.
            unlogged: accept an UNLOGGED table of PostgreSQL, which a crash of the server empties.
            settings: as in ``create_queue``.

        Raises:
            InvalidQueueName: the name is not valid for a queue.
            QueueSchemaMismatch: the table does not exist, has no such key or already has columns of
                these names; or its storage engine has no transactions, or a crash empties it; or
                the queue exists with another table, or with this one, which has rows but lost the
                columns; nothing was changed.
            DatabaseRefused: the database refuses the columns; nothing was changed.
            DatabaseUnavailable: call again to complete the adoption.
            TypeError, ValueError: an argument has an invalid value.
        """
        self._parts.check_open()
        check_known("QueueService.adopt_queue", settings, OptionsOfAdopted)
        requested = QueueSettings(**settings)
        unlogged = check_flag("unlogged", unlogged)
        queue = self._parts.catalog.adopt(
            name, table, column_prefix, requested, unlogged=unlogged, group=group
        )
        if not isinstance(queue, AdoptedQueue):
            raise QueueNotFound(name)
        return queue

    @overload
    def queue(
        self, name: str, *, kinds: Sequence[type[Payload]] | Mapping[str, type[Payload]]
    ) -> Queue[Payload]: ...
    @overload
    def queue(
        self, name: str, *, kinds: Sequence[Any] | Mapping[str, Any] | Unset = UNSET
    ) -> Queue: ...
    def queue(
        self, name: str, *, kinds: Sequence[Any] | Mapping[str, Any] | Unset = UNSET
    ) -> Queue:
        """Open an existing queue; tables of an earlier release are upgraded first.

        Args:
            name: of the queue.
            kinds: the payload types that this program knows, as in ``create_queue``. If they are
                not given, those that this service was given before stay.

        Raises:
            QueueNotFound: there is no such queue.
            SchemaTooNew: a newer release created its tables; nothing was written.
            SchemaOutdated: an earlier release created them, and this service may not upgrade them.
            ImportError: there are kinds, and Pydantic is not installed.
            TypeError, ValueError: the kinds are not valid, or the queue cannot have any.
        """
        self._parts.check_open()
        check_name(name)
        if isinstance(kinds, Unset):
            return self._parts.catalog.get(name)
        return self._parts.catalog.get_with_kinds(name, kinds)

    def queues(self, *, temporary: bool = False) -> list[Queue]:
        """List all queues with this service's table prefix, ordered by name.

        Args:
            temporary: whether to include temporary queues, also those of replies.
        """
        self._parts.check_open()
        check_flag("temporary", temporary)
        return self._parts.catalog.all(temporary=temporary)

    def drop_queue(self, name: str) -> bool:
        """Drop a queue with all its messages and its archive; False if there is none.

        This also drops its schedules, its subscriptions to topics and its durable consumers.

        For an adopted table it only drops the added columns and indexes.

        Other services that opened the queue notice within 5 seconds. If you create it again with
        another payload type, stop publishers first: for these 5 seconds they would still store
        payloads of the former type.

        Raises:
            DatabaseUnavailable: other transactions used the queue for about half a minute.
        """
        self._parts.check_open()
        check_name(name)
        return self._parts.catalog.drop(name)

    def create_topic(self, name: str) -> Topic:
        """Create a topic, or open it if it exists; safe to call from many servers at once.

        Args:
            name: 1 to 40 lower-case letters, digits and underscores, beginning with a letter.

        Raises:
            InvalidQueueName: the name is not valid for a topic.
            DatabaseUnavailable: nothing was created.
        """
        return self._topics.create(name)

    def topic(self, name: str) -> Topic:
        """Open an existing topic.

        Raises:
            TopicNotFound: there is no such topic.
        """
        return self._topics.get(name)

    def topics(self) -> list[Topic]:
        """List all topics with this service's table prefix, ordered by name."""
        return self._topics.list()

    def drop_topic(self, name: str) -> bool:
        """Drop a topic with its subscriptions; False if there is none.

        The queues and their messages stay.
        """
        return self._topics.drop(name)

    # -- consumers and workers

    def consume(
        self,
        queues: Sequence[Queue | str],
        count: int = 1,
        *,
        lease: Duration | None = None,
        hold_for: Duration | None = None,
        keep: bool = False,
        wait: Duration = 0.0,
    ) -> list[Message]:
        """Claim messages of several queues: of the first one, in turn, that has any.

        Calls with the same queues begin with another one each time, so that none starves. While
        all are empty, it waits for all at once, and one query looks at all of them.

        Args:
            queues: the queues, or their names.
            count: the maximum number of messages.
            lease: as in ``Queue.consume``.
            hold_for: as in ``Queue.consume``.
            keep: as in ``Queue.consume``.
            wait: how long to wait for the first message.

        Returns:
            Up to ``count`` messages of one queue, oldest first; ``message.queue`` names it.

        Raises:
            QueueNotFound, DatabaseUnavailable, ServiceClosed: nothing was claimed.
            TypeError, ValueError: an argument has an invalid value, there is no queue, or one is
                another service's.
        """
        self._parts.check_open()
        seconds = to_timedelta(wait, "wait", zero=True).total_seconds()
        if isinstance(queues, str) or not isinstance(queues, Sequence):
            msg = "queues must be a list of queues or of their names"
            raise TypeError(msg)
        cores = [self._own_core(queue) for queue in queues]
        keep = check_flag("keep", keep)
        sources = [core.source(count, lease, hold_for, keep=keep) for core in dict.fromkeys(cores)]
        if not sources:
            msg = "queues must name at least one queue"
            raise ValueError(msg)
        return self._several.consume(sources, seconds)

    def consumers(self) -> list[ConsumerInfo]:
        """List all consumers registered in this database, the oldest first.

        Consumers whose rows cannot be read are logged and left out.
        """
        self._parts.check_open()
        return self._registered.list()

    def release_consumer(self, consumer_id: str) -> int:
        """Release the messages that a consumer holds, and fence it.

        Call it if its process is gone and you do not want to wait until its heartbeat is overdue,
        or if a streaming query has died and will not be started again. The deliveries are not
        counted. A process that still runs loses its claims and registers anew. A query that still
        runs fails with ``ConsumerFenced``; its registration stays, so a later query can take it
        over.

        Args:
            consumer_id: of a process as in ``consumers()``, or the query's ``consumerId``.

        Returns:
            How many messages.

        Raises:
            ConsumerNotFound: there is no such consumer.
            ValueError: it is this service, it never expires, or it belongs to another table prefix.
        """
        return self._durable.release(consumer_id)

    def drop_consumer(self, consumer_id: str) -> int:
        """Release the messages that a durable consumer holds, and delete its registration.

        The deliveries are not counted. A query that restarts with its old checkpoint fails with
        ``RoundsGone``.

        Args:
            consumer_id: the query's ``consumerId``.

        Returns:
            How many messages were released.

        Raises:
            ConsumerNotFound: there is no such consumer.
            ValueError: it is not durable, or belongs to another table prefix.
        """
        return self._durable.drop(consumer_id)

    def reap(self) -> ReaperReport:
        """Run one pass of the reaper now; a started service does it regularly.

        Raises:
            DatabaseUnavailable: the pass was cut short.
        """
        self._parts.check_open()
        return self._reaper.run_once()

    def worker(
        self,
        *,
        concurrency: int = 4,
        prefetch: int | None = None,
        ack: Literal["batch", "each"] = "batch",
        batch: int | None = None,
        poll_interval: tuple[float, float] = (0.01, 1.0),
        middleware: Sequence[Middleware] = (),
    ) -> Worker:
        """Create a worker; add handlers to it with ``@worker.handle(queue)``.

        Args:
            concurrency: threads that handle messages; on an event loop, tasks.
            prefetch: messages to claim for each of them, including the one in work. By default the
                worker measures its handlers and claims as many as they finish in 25 ms, at least
                one. Messages that waited 50 ms are released.
            ack: ``"batch"`` acks finished messages together with the next claim, or after 5 ms;
                ``"each"`` acks each message before its thread begins another one.
            batch: deprecated; the former name of ``prefetch``.
            poll_interval: shortest and longest pause in seconds between two polls of an empty
                queue.
            middleware: functions that wrap each handler call, the first one outermost:
                ``function(message, call)`` gets the handler's argument and runs the handler with
                ``call()``. An exception from it counts as a failure of the handler. On an event
                loop they are coroutine functions, which await ``call()``.

        Raises:
            TypeError, ValueError: an argument has an invalid value.
        """
        if batch is not None:
            if prefetch is not None:
                msg = "batch= is the former name of prefetch=: use prefetch= only"
                raise ValueError(msg)
            warnings.warn("batch= is deprecated: use prefetch=", DeprecationWarning, stacklevel=2)
            prefetch = batch
        return Worker(
            self._parts,
            self._start_for_worker,
            concurrency,
            prefetch=prefetch,
            ack=ack,
            poll_interval=poll_interval,
            middleware=middleware,
        )

    # -- inner

    def _own_core(self, queue: Queue | str) -> QueueCore:
        name = name_of(queue)
        core = core_of(self._parts.queue(name) if isinstance(queue, str) else queue)
        if core.context.connections is not self._parts.connections:
            msg = f"queue {name!r} is another service's: open it here, or give its name"
            raise ValueError(msg)
        return core

    def _runtime(self) -> Runtime:
        return THREADS

    def _open_engine(self, database: Any) -> OpenedEngine:
        return open_engine(database)

    def _warn_of_many(self) -> None:
        _unstopped[self._place] += 1
        if _unstopped[self._place] == _MANY_SERVICES:
            # Warn only once: it does not count up to the limit again.
            _unstopped[self._place] = -sys.maxsize
            _log.warning(
                "This process has made %d services for %s and has not stopped them. Make one "
                "QueueService for the whole process, not one for each request. Stop a service "
                "that you no longer need, or use it as a context manager.",
                _MANY_SERVICES,
                self._place[0],
            )

    def _make_queue(
        self, tables: QueueTables, settings: EffectiveSettings, kinds: Kinds | None
    ) -> Queue:
        context = QueueContext(
            tables,
            settings,
            connections=self._parts.connections,
            consumer=self._parts.consumer,
            service=self._settings,
            arrivals=self._parts.arrivals,
            wakeups=self._parts.wakeups,
            feed=partial(feed, lambda name, on: core_of(self._parts.queue(name, on)).context),
            kinds=kinds,
            observer=self._parts.observer,
        )
        if tables.has_payloads:
            return Queue(QueueCore(context, self._reply_queues))
        return AdoptedQueue(QueueCore(context, self._reply_queues, RowPublisher))

    def _maintain(self) -> ReaperReport:
        for job in self._parts.connections.maintenance:
            job()
        return ReaperReport()

    def _registered_anew(self) -> None:
        self._start_heartbeat()
        self._temporary.keep_own()

    def _start_heartbeat(self) -> None:
        if self._parts.connections.background and not self._parts.closed:
            seconds = self._settings.consumer_timeout_us / 3_000_000
            heartbeat = self._parts.consumer.heartbeat
            self._background.every(seconds, "heartbeat", heartbeat, weak=True)

    def _start_for_worker(self) -> None:
        if not self.started:
            # The service outlives the worker's run, and must stop at exit even without stop().
            self._parts.connections.runtime.at_exit(self.stop)
            self.start()

    def _held_by(self, consumer_ids: Sequence[str]) -> dict[str, int]:
        """How many messages consumers hold in all queues that this service can read."""
        held = Counter[str]()
        for queue in self._parts.catalog.served():
            try:
                held.update(core_of(queue).recovery.held_by(consumer_ids))
            except Locked as error:
                _log.debug("The messages of queue %s are not counted: %s", queue.name, error)
            except (DatabaseUnavailable, ServiceClosed):
                raise
            except QueueError as error:
                _log.debug("The messages of queue %s are not counted: %s", queue.name, error)
        return held

    def _leave(self, seconds: float) -> None:
        with self._lock:
            if self._parts.closed:
                return
            self._parts.closed = True
        consumer_id = self.consumer_id
        try:
            self._background.stop()
            if self._parts.observer is not None:
                self._parts.observer.closing()
            self._parts.wakeups.stop()
            # The other half of the time is left to release this consumer's messages.
            self._parts.connections.close_to_others(seconds / 2)
            self._retire_consumer()
        except QueueError as error:
            self._log_what_is_left(consumer_id, str(error))
        finally:
            # Also if the caller is cancelled: nobody stops this service again.
            self._parts.connections.close()

    def _retire_consumer(self) -> None:
        consumer_id = self._parts.consumer.close()
        if consumer_id is None:
            return
        for queue in self._parts.catalog.opened:
            try:
                core_of(queue).release_all(consumer_id)
            except QueueNotFound:
                _log.debug("Queue %s was dropped meanwhile.", queue.name)
            except NotPermitted:
                _log.debug("Queue %s cannot have claimed messages.", queue.name)
            except (DatabaseUnavailable, ServiceClosed):
                raise
            except QueueError as error:
                # One queue that cannot be served must not keep the messages of the others.
                _log.warning(
                    "Consumer %s could not release its messages of queue %s: %s",
                    consumer_id,
                    queue.name,
                    error,
                )
            self._released.append(queue.name)
        self._temporary.drop_own(consumer_id)
        self._registered.forget(consumer_id)

    def _log_what_is_left(self, consumer_id: str | None, reason: str) -> None:
        if self._told_what_is_left:
            return
        self._told_what_is_left = True
        left = [q.name for q in self._parts.catalog.opened if q.name not in self._released]
        seconds = self._settings.consumer_timeout_us / 1_000_000
        if consumer_id is None:
            _log.warning("The service stopped, but could not reach the database: %s", reason)
            return
        _log.warning(
            "The service stopped, but could not reach the database: %s Consumer %s is still "
            "registered%s. The reaper of another service removes it within %s.",
            f"{reason.removesuffix('.')}.",
            consumer_id,
            f", and messages of {', '.join(left)} are not released" if left else "",
            duration_text(seconds),
        )


def start_to_serve(service: QueueService) -> None:
    """Start a service that consumes nothing: with a reaper, and without a registered consumer.

    It registers first, as ``start`` does, so a login without the rights runs no reaper, and a
    database that takes no writes is an error. A consumer that was there before stays.
    """
    is_new = service.consumer_id is None
    service.start()
    consumer_id = parts_of(service).consumer.resign() if is_new else None
    if consumer_id is not None:
        service._registered.forget(consumer_id)  # noqa: SLF001 - its own module


def parts_of(service: QueueService) -> ServiceParts:
    """The parts of a service, for the other modules of this package."""
    return service._parts  # noqa: SLF001 - this is the one way to them
