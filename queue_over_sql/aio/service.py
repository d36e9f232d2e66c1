"""AsyncQueueService: queues in one database, for the tasks of one event loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from queue_over_sql.aio.faces import Face, Fact, awaited, awaited_as, awaited_list, twin
from queue_over_sql.aio.queue import AsyncAdoptedQueue, AsyncQueue
from queue_over_sql.aio.runtime import EventLoop
from queue_over_sql.aio.schedules import AsyncSchedules
from queue_over_sql.aio.sql_api import AsyncSqlApi
from queue_over_sql.aio.topics import AsyncTopic
from queue_over_sql.aio.worker import AsyncWorker
from queue_over_sql.durations import Duration
from queue_over_sql.service import QueueService

if TYPE_CHECKING:
    from types import TracebackType

    from sqlalchemy import URL
    from sqlalchemy.ext.asyncio import AsyncEngine

    from queue_over_sql.runtime import Runtime
    from queue_over_sql.settings import QueueSettings


class _Core(QueueService):
    """The synchronous service, on the runtime of an event loop."""

    def __init__(self, database: Any, event_loop: EventLoop, **settings: Any) -> None:
        self._event_loop = event_loop
        super().__init__(database, **settings)

    def _runtime(self) -> Runtime:
        return self._event_loop


class AsyncQueueService(Face[QueueService]):
    """Queues in one database, and this process as one consumer of them, on an event loop.

    ``QueueService`` with verbs to be awaited; ``async with`` starts and stops it. May be used by
    any number of tasks of one event loop. Nothing blocks the loop.

    Args:
        database: an SQLAlchemy URL, as text or object, or an ``AsyncEngine``, which is not altered.
        schema: database schema that holds all tables; None for the connection's default.
        table_prefix: what the table of each queue begins with.
        consumer_name: a name for people; the host's by default.
        consumer_timeout: how long this consumer counts as alive without a heartbeat, and how long
            anything waits for a database that does not answer at all (five seconds at least). A
            loop that is blocked for longer loses what it holds.
        reaper_interval: how often the reaper looks for messages to give back.
        notify: whether consumers are woken by what other processes publish: on PostgreSQL by
            LISTEN and NOTIFY, on SQLite by watching the file. They poll underneath in any case,
            and only poll where a pooler such as PgBouncer shares sessions. False does without.
        retry_policies: names and classes of your own retry policies, the same on every server.
        max_connections: how many acts may run on the database at once; the tasks beyond wait for
            their turn. Transactions of handlers and the background jobs have their own.

    Raises:
        TypeError, ValueError: an argument has no sensible value, or the driver is synchronous.
        UnsupportedByEngine: the driver is not installed, or there is none (H2).
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
        retry_policies: Mapping[str, type[Any]] | None = None,
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
                retry_policies=retry_policies,
            )
        )

    consumer_id = Fact(QueueService.consumer_id)
    started = Fact(QueueService.started)

    create_queue = awaited_as(AsyncQueue, QueueService.create_queue)
    adopt_queue = awaited_as(AsyncAdoptedQueue, QueueService.adopt_queue)
    queue = awaited_as(AsyncQueue, QueueService.queue)
    queues = awaited_list(AsyncQueue, QueueService.queues)
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

    @property
    def schedules(self) -> AsyncSchedules:
        """Messages that are published again and again."""
        return AsyncSchedules(self._sync.schedules)

    @property
    def sql_api(self) -> AsyncSqlApi:
        """Installs the functions and procedures through which any SQL client can use the queues."""
        return AsyncSqlApi(self._sync.sql_api)

    @twin(QueueService.create_queues)
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

    def worker(
        self,
        *,
        concurrency: int = 4,
        batch: int = 1,
        poll_interval: tuple[float, float] = (0.01, 1.0),
    ) -> AsyncWorker:
        """Make a worker; give it handlers with ``@worker.handle(queue)``.

        Args:
            concurrency: tasks that handle messages.
            batch: messages that a task claims at once.
            poll_interval: shortest and longest pause in seconds between two looks at empty queues.
        """
        core = self._sync.worker(concurrency=concurrency, batch=batch, poll_interval=poll_interval)
        return AsyncWorker(core, self._sync)

    def __repr__(self) -> str:
        return f"<AsyncQueueService {self._sync.connections.where}>"
