"""The asynchronous service, with its topics, schedules and workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.util import await_only

from queue_over_sql.aio.proxies import (
    Fact,
    Proxy,
    awaited,
    awaited_as,
    awaited_list,
    inward,
    outward,
    proxied,
    proxy_of,
    returned_as,
    run,
)
from queue_over_sql.aio.queue import AsyncAdoptedQueue, AsyncMessage, AsyncQueue
from queue_over_sql.aio.runtime import EventLoop
from queue_over_sql.database.opened_engine import OpenedEngine
from queue_over_sql.dialects.async_engines import open_async_engine
from queue_over_sql.message import Payload, Published
from queue_over_sql.migrations import Migrations
from queue_over_sql.queue import name_of
from queue_over_sql.roles.roles import Roles
from queue_over_sql.schedules import Schedule, Schedules
from queue_over_sql.service import QueueService, parts_of
from queue_over_sql.settings import UNSET, Unset
from queue_over_sql.sql_api import SqlApi
from queue_over_sql.topics import Topic
from queue_over_sql.values.durations import Duration
from queue_over_sql.worker.call import InContext
from queue_over_sql.worker.handler import (
    check_kind,
    check_parameters,
    keep_as_result,
    refuse_unfinished,
)
from queue_over_sql.worker.middleware import awaited_within
from queue_over_sql.worker.time_limits import HandlerStopped
from queue_over_sql.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import tzinfo
    from types import TracebackType

    from sqlalchemy import URL, ColumnElement, Connection

    from queue_over_sql.aio.queue import CallersConnection
    from queue_over_sql.database.runtime import Runtime
    from queue_over_sql.observer import Observer
    from queue_over_sql.schedules.calendar import Missed
    from queue_over_sql.settings import QueueOptions, QueueSettings
    from queue_over_sql.values.options import ScheduleOptions, TopicOptions
    from queue_over_sql.values.states import OnConflict
    from queue_over_sql.worker.handler import HandlerOptions


@proxy_of(Schedules)
class AsyncSchedules(Proxy[Schedules]):
    """The schedules of a service's queues: the asynchronous ``Schedules``."""

    __slots__ = ()

    list = awaited(Schedules.list)
    get = awaited(Schedules.get)
    upcoming = awaited(Schedules.upcoming)
    remove = awaited(Schedules.remove)
    pause = awaited(Schedules.pause)
    resume = awaited(Schedules.resume)
    run = awaited(Schedules.run)

    @proxied(Schedules.add)
    async def add(
        self,
        name: str,
        queue: str | AsyncQueue,
        payload: Any,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str | tzinfo = "UTC",
        missed: Missed = "one",
        **options: Unpack[ScheduleOptions],
    ) -> Schedule: ...


@proxy_of(Roles)
class AsyncRoles(Proxy[Roles]):
    """The roles of a service's database: the asynchronous ``Roles``."""

    __slots__ = ()

    statements = awaited(Roles.statements)
    install = awaited(Roles.install)


@proxy_of(SqlApi)
class AsyncSqlApi(Proxy[SqlApi]):
    """The SQL API of a service's queues: the asynchronous ``SqlApi``."""

    __slots__ = ()

    install = awaited(SqlApi.install)
    uninstall = awaited(SqlApi.uninstall)
    script = awaited(SqlApi.script)


@proxy_of(Migrations)
class AsyncMigrations(Proxy[Migrations]):
    """Upgrades tables of an earlier release: the asynchronous ``Migrations``."""

    __slots__ = ()

    pending = awaited(Migrations.pending)
    apply = awaited(Migrations.apply)


@proxy_of(Topic)
class AsyncTopic(Proxy[Topic]):
    """A topic: the asynchronous ``Topic``. ``AsyncQueueService`` creates it."""

    __slots__ = ()

    subscriptions = awaited(Topic.subscriptions)
    matches = awaited(Topic.matches)

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._sync.name

    @proxied(Topic.subscribe)
    async def subscribe(
        self,
        queue: AsyncQueue | str,
        pattern: str = "#",
        where: Mapping[str, Any] | None = None,
    ) -> None: ...

    @proxied(Topic.unsubscribe)
    async def unsubscribe(self, queue: AsyncQueue | str, pattern: str | None = None) -> bool: ...

    @proxied(Topic.publish)
    async def publish(
        self,
        payload: Any,
        *,
        routing_key: str,
        on_conflict: OnConflict = "raise",
        connection: CallersConnection | None = None,
        **options: Unpack[TopicOptions],
    ) -> list[Published]: ...

    @proxied(Topic.publish_many)
    async def publish_many(
        self,
        items: Iterable[tuple[str, Any]],
        *,
        on_conflict: OnConflict = "raise",
        connection: CallersConnection | None = None,
    ) -> list[list[Published]]: ...


P = ParamSpec("P")
R = TypeVar("R", bound=Awaitable[Any])


class AsyncHandlerDecorator(Protocol[P]):
    """What ``AsyncWorker.handle`` returns: it takes coroutine functions with these parameters."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...


@proxy_of(Worker)
class AsyncWorker(Proxy[Worker]):
    """Runs coroutine functions as handlers of messages. ``service.worker()`` creates it."""

    __slots__ = ()

    @overload
    def handle(
        self,
        queue: AsyncQueue[Payload] | str,
        *,
        transactional: Literal[False] = False,
        batch: None = None,
        **options: Unpack[HandlerOptions[AsyncMessage]],
    ) -> AsyncHandlerDecorator[[AsyncMessage[Payload]]]: ...
    @overload
    def handle(
        self,
        queue: AsyncQueue[Payload] | str,
        *,
        transactional: Literal[False] = False,
        batch: int,
        **options: Unpack[HandlerOptions[AsyncMessage]],
    ) -> AsyncHandlerDecorator[[list[AsyncMessage[Payload]]]]: ...
    @overload
    def handle(
        self,
        queue: AsyncQueue[Payload] | str,
        *,
        transactional: Literal[True],
        batch: None = None,
        **options: Unpack[HandlerOptions[AsyncMessage]],
    ) -> AsyncHandlerDecorator[[AsyncMessage[Payload], AsyncConnection]]: ...
    @overload
    def handle(
        self,
        queue: AsyncQueue[Payload] | str,
        *,
        transactional: Literal[True],
        batch: int,
        **options: Unpack[HandlerOptions[AsyncMessage]],
    ) -> AsyncHandlerDecorator[[list[AsyncMessage[Payload]], AsyncConnection]]: ...
    @overload
    def handle(
        self,
        queue: AsyncQueue | str,
        *,
        transactional: bool = False,
        batch: int | None = None,
        **options: Unpack[HandlerOptions[AsyncMessage]],
    ) -> AsyncHandlerDecorator[...]: ...
    def handle(
        self,
        queue: AsyncQueue | str,
        *,
        transactional: bool = False,
        lease_keepalive: bool = True,
        batch: int | None = None,
        keep_result: bool = False,
        where: ColumnElement[bool] | None = None,
        commit_every: int = 1,
        timeout: Duration | None = None,
        slow_after: Duration | None = None,
        on_slow: Callable[[AsyncMessage, float], object] | None = None,
    ) -> AsyncHandlerDecorator[...]:
        """Register a coroutine function as the handler of a queue.

        Args:
            queue: the queue or its name; it must exist when the worker starts.
            transactional: call ``function(message, connection)`` with an ``AsyncConnection``, and
                commit its writes together with the ack.
            lease_keepalive: whether to renew the lease while the function runs. The lease of a
                message that waits for its turn is always renewed.
            batch: call the function with a list of up to this many messages.
            keep_result: ack each message with what the function returns; see ``Worker.handle``.
            where: only messages that match this SQLAlchemy condition on the queue's ``table``. With
                ``where`` a queue may have several handlers; messages that match none of them stay
                in the queue.
            commit_every: for ``transactional``: how many messages share a transaction; see
                ``Worker.handle``.
            timeout: time limit for one call. After it the worker cancels the call, rolls back its
                transaction and nacks the message. It stops waiting for a function that does not end
                within 5 s.
            slow_after: log a warning if a call takes longer than this.
            on_slow: a plain function that is also called then, with each message of the call and
                the seconds since it began.

        Raises:
            TypeError: the function is not a coroutine function, or an argument has a wrong type.
            ValueError: the queue already has a handler, and not all of them have a ``where``;
                ``keep_result`` is given with ``batch``; ``commit_every`` is given without
                ``transactional``, or with ``batch``; or a duration is not above zero.
        """
        name = name_of(queue)
        register = self._sync.handle(
            name,
            transactional=transactional,
            lease_keepalive=lease_keepalive,
            batch=batch,
            keep_result=keep_result,
            where=where,
            commit_every=commit_every,
            timeout=timeout,
            slow_after=slow_after,
            on_slow=None if on_slow is None else _outward(on_slow),
        )

        def decorate(function: Callable[..., R]) -> Callable[..., R]:
            check_kind(function, f"the handler of queue {name!r}", asynchronous=True)
            check_parameters(function, name, transactional=transactional, batch=batch is not None)
            called: Callable[..., Any] = _keeping_result(function) if keep_result else function
            register(self._bridge(awaited_within(self._sync.middleware, called)))
            return function

        return decorate

    async def run(self, *, signals: bool = False, until_empty: bool = False) -> None:
        """Handle messages until ``stop()`` or ``abort()``; starts the service if needed.

        If the task of this call is cancelled, it cancels the handlers, and their messages are
        redelivered. A service that was started here is stopped when the event loop ends.

        Args:
            signals: whether SIGTERM and SIGINT stop the worker, for a program that only runs a
                worker. The first signal drains it: running handlers finish, and other claimed
                messages are released. A second one cancels the handlers. This works only if the
                event loop is in the main thread. By default, the worker does not handle signals.
            until_empty: return when no handler has a due message; see ``Worker.run``.

        Raises:
            ValueError: the worker has no handler.
            QueueNotFound: a handler's queue does not exist.
            DatabaseUnavailable: the database cannot be reached at the start. Later the worker waits
                until the database is back.
            QueueError: somebody else has cancelled all tasks of the worker.
        """
        await run(self._sync.run, signals=signals, until_empty=until_empty)

    def stop(self) -> None:
        """Drain: let running handlers finish, then end ``run()``. Call it in the event loop.

        Other claimed messages are released. The service is not stopped.
        """
        self._sync.stop()

    def abort(self) -> None:
        """End ``run()`` immediately: handlers are cancelled, and their messages are redelivered."""
        self._sync.abort()

    def _bridge(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., None]:
        connections = self._sync._parts.connections  # noqa: SLF001 - our own
        engine, runtime = AsyncEngine(connections.engine), connections.runtime

        def handler(argument: Any, *connection: Connection) -> None:
            lent = [AsyncConnection(engine, sync) for sync in connection]
            interruption = runtime.interruption()
            try:
                await_only(InContext(_awaited(function, outward(argument), *lent)))
            except asyncio.CancelledError as error:
                if interruption is not None and interruption.stopped():
                    raise HandlerStopped from error
                raise

        return handler


def _outward(on_slow: Callable[[AsyncMessage, float], object]) -> Callable[[Any, float], object]:
    if not callable(on_slow):
        return on_slow
    check_kind(on_slow, "on_slow")
    return lambda message, seconds: on_slow(outward(message), seconds)


def _keeping_result(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def call(message: AsyncMessage, *rest: Any) -> Any:
        result = await function(message, *rest)
        refuse_unfinished(result)
        keep_as_result(inward(message), result)
        return result

    return call


async def _awaited(function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
    await function(*arguments)


class _Core(QueueService):
    """The synchronous service on the runtime of an event loop."""

    def __init__(self, database: Any, event_loop: EventLoop, **settings: Any) -> None:
        self._event_loop = event_loop
        super().__init__(database, **settings)

    def _runtime(self) -> Runtime:
        return self._event_loop

    def _open_engine(self, database: Any) -> OpenedEngine:
        return open_async_engine(database)


class AsyncQueueService(Proxy[QueueService]):
    """Queues in one database, and this process as one consumer of them, on an event loop.

    The asynchronous ``QueueService``; ``async with`` starts and stops it. Any number of tasks of
    one event loop may use it. It does not block the loop.

    Args:
        database: an SQLAlchemy URL, as text or object, or an ``AsyncEngine``, which is not changed.
        schema, table_prefix, consumer_name, reaper_interval: see ``QueueService``.
        notify, auto_migrate, retry_policies, observer, reply_queue: see ``QueueService``.
        consumer_timeout: see ``QueueService``; if the loop is blocked for longer, its messages go
            to other consumers.
        max_connections: the maximum number of connections for verbs; further tasks wait for their
            turn. Transactions of handlers and background jobs have their own connections. The
            renewals of leases have as many of their own as verbs.

    Raises:
        TypeError, ValueError: an argument has an invalid value, or the driver is synchronous.
        UnsupportedByEngine: the driver is not installed, or does not exist (H2).
    """

    __slots__ = ()

    def __init__(
        self,
        database: str | URL | AsyncEngine,
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
        max_connections: int = 10,
    ) -> None:
        super().__init__(
            _Core(
                database,
                EventLoop(max_connections),
                schema=schema,
                table_prefix=table_prefix,
                consumer_name=consumer_name,
                consumer_timeout=consumer_timeout,
                reaper_interval=reaper_interval,
                notify=notify,
                auto_migrate=auto_migrate,
                retry_policies=retry_policies,
                observer=observer,
                reply_queue=reply_queue,
            )
        )

    consumer_id: Fact[str | None] = Fact(QueueService.consumer_id)
    started: Fact[bool] = Fact(QueueService.started)

    adopt_queue = awaited_as(AsyncAdoptedQueue, QueueService.adopt_queue)
    queues = awaited_list(AsyncQueue[Any], QueueService.queues)
    drop_queue = awaited(QueueService.drop_queue)

    create_topic = awaited_as(AsyncTopic, QueueService.create_topic)
    topic = awaited_as(AsyncTopic, QueueService.topic)
    topics = awaited_list(AsyncTopic, QueueService.topics)
    drop_topic = awaited(QueueService.drop_topic)

    start = awaited(QueueService.start)
    stop = awaited(QueueService.stop)
    consumers = awaited(QueueService.consumers)
    release_consumer = awaited(QueueService.release_consumer)
    drop_consumer = awaited(QueueService.drop_consumer)
    reap = awaited(QueueService.reap)
    worker = returned_as(AsyncWorker, QueueService.worker)

    @proxied(QueueService.consume)
    async def consume(
        self,
        queues: Sequence[AsyncQueue | str],
        count: int = 1,
        *,
        lease: Duration | None = None,
        hold_for: Duration | None = None,
        keep: bool = False,
        wait: Duration = 0.0,
    ) -> list[AsyncMessage]: ...

    @property
    def schedules(self) -> AsyncSchedules:
        """The schedules, which publish messages regularly."""
        return AsyncSchedules(self._sync.schedules)

    @property
    def sql_api(self) -> AsyncSqlApi:
        """The SQL API: functions and procedures with which any SQL client can use the queues."""
        return AsyncSqlApi(self._sync.sql_api)

    @property
    def roles(self) -> AsyncRoles:
        """Database roles for publishers, consumers, operators and viewers."""
        return AsyncRoles(self._sync.roles)

    @property
    def migrations(self) -> AsyncMigrations:
        """The migrations: list and apply the changes that tables of an earlier release need."""
        return AsyncMigrations(self._sync.migrations)

    @overload
    async def create_queue(
        self,
        name: str,
        *,
        kinds: Sequence[type[Payload]] | Mapping[str, type[Payload]],
        temporary: bool = False,
        **settings: Unpack[QueueOptions],
    ) -> AsyncQueue[Payload]: ...
    @overload
    async def create_queue(
        self,
        name: str,
        *,
        kinds: Sequence[Any] | Mapping[str, Any] | Unset = UNSET,
        temporary: bool = False,
        **settings: Unpack[QueueOptions],
    ) -> AsyncQueue: ...
    @proxied(QueueService.create_queue)
    async def create_queue(
        self,
        name: str,
        *,
        kinds: Sequence[Any] | Mapping[str, Any] | Unset = UNSET,
        temporary: bool = False,
        **settings: Unpack[QueueOptions],
    ) -> AsyncQueue: ...

    @overload
    async def queue(
        self, name: str, *, kinds: Sequence[type[Payload]] | Mapping[str, type[Payload]]
    ) -> AsyncQueue[Payload]: ...
    @overload
    async def queue(
        self, name: str, *, kinds: Sequence[Any] | Mapping[str, Any] | Unset = UNSET
    ) -> AsyncQueue: ...
    @proxied(QueueService.queue)
    async def queue(
        self, name: str, *, kinds: Sequence[Any] | Mapping[str, Any] | Unset = UNSET
    ) -> AsyncQueue: ...

    @proxied(QueueService.create_queues)
    async def create_queues(self, queues: Mapping[str, QueueSettings]) -> dict[str, AsyncQueue]: ...

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return f"<AsyncQueueService {parts_of(self._sync).connections.where}>"
