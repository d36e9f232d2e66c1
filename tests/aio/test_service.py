"""Many tasks of one loop on one service, and its refusals."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.util import await_only

from queue_over_sql import (
    ConsumerExpired,
    DatabaseUnavailable,
    QueueService,
    ServiceClosed,
    UnsupportedByEngine,
    WrongDatabase,
)
from queue_over_sql.aio import AsyncMessage, AsyncQueueService
from queue_over_sql.aio.proxies import run as proxied
from queue_over_sql.database.urls import read_url
from queue_over_sql.dialects.async_engines import AsyncEngineForm
from queue_over_sql.inside.operations import start
from queue_over_sql.message import lease_ends_at
from queue_over_sql.service import parts_of
from tests.refusals import refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncEngine

    from queue_over_sql.testing.plugin import TestDatabase

engines = pytest.mark.engines("sqlite", "postgresql", "mariadb")
LONGEST_WAIT = 30.0


def own_engine(url: str) -> AsyncEngine:
    """An engine of the user's own."""
    return create_async_engine(AsyncEngineForm().with_driver(read_url(url)))


def run(
    url: str, operation: Callable[[AsyncQueueService], Awaitable[object]], **settings: Any
) -> None:
    """Run it on a service that is started and stopped."""

    async def main() -> None:
        async with AsyncQueueService(url, **settings) as service:
            await operation(service)

    asyncio.run(main())


@engines
def test_two_hundred_tasks_share_a_service(url: str) -> None:
    """Each publishes, claims and acks at once with the others; none twice, none lost."""

    async def operation(service: AsyncQueueService) -> None:
        queue = await service.create_queue("jobs")
        seen: list[int] = []

        async def work(number: int) -> None:
            await queue.publish(number)
            for message in await queue.consume(wait=60):
                seen.append(message.payload)
                await message.ack()

        await asyncio.gather(*(work(number) for number in range(200)))
        assert list(range(200)) == sorted(seen)
        assert 0 == (await queue.stats()).claimed

    run(url, operation, max_connections=5)


@pytest.mark.engines("sqlite")
def test_other_tasks_keep_no_connection_from_renewals_and_jobs(url: str) -> None:
    """Leases are renewed, and jobs run undisturbed, while callers use all connections."""

    async def operation(service: AsyncQueueService) -> None:
        queue = await service.create_queue("jobs", lease=3)
        await queue.publish("x")
        (message,) = await queue.consume()
        free, done = asyncio.Event(), asyncio.Event()
        connections = parts_of(service._sync).connections

        def use() -> None:
            connections.run(lambda _: await_only(free.wait()))

        def job() -> None:
            connections.runtime.undisturbed(lambda: connections.run(lambda _: done.set()))

        async with queue.keep(message):
            until = lease_ends_at(message._sync)
            callers = [asyncio.create_task(proxied(use)) for _ in range(2)]
            await asyncio.sleep(0)
            await proxied(start, service._sync, "a job", job)
            async with asyncio.timeout(LONGEST_WAIT):
                await done.wait()
                while not message.cancelled and lease_ends_at(message._sync) == until:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
            assert not message.cancelled
            assert not any(caller.done() for caller in callers)
            free.set()
            await asyncio.gather(*callers)
        await message.ack()

    run(url, operation, max_connections=2)


@engines
def test_the_loop_goes_on_while_a_lock_is_contended(database: TestDatabase, url: str) -> None:
    """A publish that waits for somebody else's lock holds up no other task."""
    other = create_engine(database.url, isolation_level="AUTOCOMMIT")
    locks = {
        "sqlite": ("BEGIN IMMEDIATE", "ROLLBACK"),
        "postgresql": ("BEGIN", "LOCK TABLE queue_jobs IN EXCLUSIVE MODE", "ROLLBACK"),
        "mariadb": ("LOCK TABLES queue_jobs WRITE", "UNLOCK TABLES"),
    }[database.engine]

    async def operation(service: AsyncQueueService) -> None:
        queue = await service.create_queue("jobs")
        with other.connect() as connection:
            for statement in locks[:-1]:
                connection.execute(text(statement))
            publishing = asyncio.create_task(queue.publish("x"))
            for _ in range(5):
                await asyncio.sleep(0.01)
            assert not publishing.done()
            connection.execute(text(locks[-1]))
        await publishing
        assert 1 == (await queue.stats()).ready

    run(url, operation)
    other.dispose()


@engines
@pytest.mark.timing
def test_a_loop_that_was_blocked_fences_itself(url: str) -> None:
    """Who held up the heartbeat for too long may not ack, and goes on as a new consumer."""

    async def operation(service: AsyncQueueService) -> None:
        queue = await service.create_queue("jobs")
        await queue.publish("x")
        (message,) = await queue.consume(wait=5)
        before = service.consumer_id
        time.sleep(1.6)  # noqa: ASYNC251 - this is what must not be done
        with pytest.raises(ConsumerExpired) as caught:
            await message.ack()
        assert [message] == caught.value.messages
        assert isinstance(caught.value.messages[0], AsyncMessage)
        (again,) = await queue.consume(wait=20)
        await again.ack()
        assert before != service.consumer_id

    run(url, operation, consumer_timeout=1.5)


@engines
def test_every_kind_of_transaction_is_taken(url: str) -> None:
    """Of a connection, a session and a scoped one: what is rolled back was not published."""
    engine = own_engine(url)
    scoped = async_scoped_session(async_sessionmaker(engine), lambda: 1)

    async def operation(service: AsyncQueueService) -> None:
        queue = await service.create_queue("jobs")
        caller: Any
        for caller in (engine.connect(), AsyncSession(engine), scoped):
            if isinstance(caller, AsyncConnection):
                await caller.start()
            await queue.publish("no", connection=caller)
            await caller.rollback()
            await queue.publish("yes", connection=caller)
            await caller.commit()
            taken = await queue.take(5, connection=caller)
            await caller.commit()
            await caller.close()
            assert ["yes"] == [message.payload for message in taken], type(caller)
        await engine.dispose()

    run(url, operation)


@engines
def test_a_users_engine_is_left_alone(url: str) -> None:
    """A service on the user's engine works, and its stop does not dispose that engine."""

    async def main() -> None:
        engine = own_engine(url)
        pool = engine.pool
        async with AsyncQueueService(engine) as service:
            queue = await service.create_queue("jobs")
            await queue.publish("x")
            async with queue.receive() as message:
                assert message is not None
        assert pool is engine.pool
        async with engine.connect() as connection:
            assert 0 == await connection.scalar(text("SELECT COUNT(*) FROM queue_jobs"))
        await engine.dispose()

    asyncio.run(main())


async def load_and_consume(service: AsyncQueueService) -> None:
    """What a driver must be able to do."""
    queue = await service.create_queue("jobs")
    assert 100 == await queue.load(range(100))
    messages = await queue.consume(100)
    assert list(range(100)) == [message.payload for message in messages]
    await queue.ack(messages)


@pytest.mark.engines("postgresql")
def test_asyncpg_works_where_it_is_named(url: str) -> None:
    """What it raises for a closed port is an error of ours, too."""

    async def fail() -> None:
        service = AsyncQueueService("postgresql+asyncpg://127.0.0.1:1/db")
        with pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1:1.*cannot be reached"):
            await service.create_queue("jobs")

    run(url.replace("://", "+asyncpg://"), load_and_consume)
    asyncio.run(fail())


@pytest.mark.engines("mariadb")
def test_asyncmy_works_where_it_is_named(url: str) -> None:
    """Another driver of MySQL and MariaDB."""
    run(url.replace("://", "+asyncmy://"), load_and_consume)


def test_other_transactions_are_refused(tmp_path: Path) -> None:
    """Synchronous ones, those elsewhere and those not begun, each in its own words."""

    async def operation(service: AsyncQueueService) -> None:
        queue = await service.create_queue("jobs")
        threads = create_engine(f"sqlite:///{tmp_path / 'q.db'}")
        elsewhere = own_engine(f"sqlite:///{tmp_path / 'other.db'}")
        with (
            threads.connect() as connection,
            pytest.raises(TypeError, match="with QueueService"),
        ):
            await queue.publish("x", connection=connection)  # type: ignore[arg-type]
        async with elsewhere.connect() as far:
            with pytest.raises(WrongDatabase):
                await queue.publish("x", connection=far)
            with QueueService(threads) as other, pytest.raises(TypeError, match="use AsyncQueue"):
                other.queue("jobs").publish("x", connection=far)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="is not open"):
            await queue.publish("x", connection=elsewhere.connect())
        makers: list[Any] = [elsewhere, async_sessionmaker(elsewhere)]
        for maker in makers:
            with pytest.raises(TypeError, match=r"an AsyncConnection.*`async with ….begin\(\)"):
                await queue.publish("x", connection=maker)
        assert 0 == (await queue.stats()).ready
        await elsewhere.dispose()
        threads.dispose()

    run(f"sqlite:///{tmp_path / 'q.db'}", operation)


def test_what_no_loop_can_use_is_refused() -> None:
    """With what to write instead."""
    wrong: dict[type[Exception], list[tuple[Any, str]]] = {
        ValueError: [
            ("sqlite+pysqlite://", r"sqlite\+aiosqlite"),
            ("postgresql+psycopg2://x", r"postgresql\+psycopg:"),
            ("mysql+pymysql://x", r"mysql\+aiomysql"),
            ("h2:mem:x", "URL"),
        ],
        UnsupportedByEngine: [("h2+jaydebeapi://x", "H2"), ("h2://localhost/x", "H2")],
        TypeError: [(7, "AsyncEngine"), (create_engine("sqlite://"), "create_async_engine")],
    }
    for error, databases in wrong.items():
        for database, said in databases:
            with refused(database, error, match=said):
                AsyncQueueService(database)


def test_threads_refuse_what_is_for_a_loop() -> None:
    """And say who can use it."""
    url = "sqlite+aiosqlite://"
    for database in (url, create_async_engine(url).sync_engine):
        with pytest.raises(ValueError, match="AsyncQueueService"):
            QueueService(database)


def test_a_service_stays_in_its_loop(tmp_path: Path) -> None:
    """In another loop it says so, instead of waiting for ever."""
    service = AsyncQueueService(f"sqlite:///{tmp_path / 'q.db'}")

    async def again() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await service.queue("other")

    with asyncio.Runner() as first:
        first.run(service.create_queue("jobs"))
        asyncio.run(again())
        first.run(service.stop())


def test_after_the_stop_nothing_goes_on(tmp_path: Path) -> None:
    """What was claimed is given back, and every verb says that it is over."""

    async def main() -> None:
        url = f"sqlite:///{tmp_path / 'q.db'}"
        async with AsyncQueueService(url) as service:
            queue = await service.create_queue("jobs")
            await queue.publish("x")
            (held,) = await queue.consume()
            waiting = asyncio.create_task(queue.consume(wait=60))
            await asyncio.sleep(0.05)
        with pytest.raises(ServiceClosed):
            await queue.publish("y")
        with pytest.raises(ServiceClosed):
            await waiting
        with pytest.raises(ServiceClosed):
            await held.ack()
        async with AsyncQueueService(url) as other:
            (again,) = await (await other.queue("jobs")).consume()
            assert held.id == again.id
            assert 1 == again.attempt

    asyncio.run(main())


@pytest.mark.engines("sqlite", "postgresql")
def test_a_connection_that_opens_after_the_stop_is_closed(url: str) -> None:
    """Its task was cancelled, and the pool that would keep it is disposed of."""

    async def main() -> None:
        service, opened = AsyncQueueService(url), list[Any]()
        connecting, stopped = asyncio.Event(), asyncio.Event()

        def wait_for_stop(raw: Any, _: object) -> None:
            opened.append(raw.driver_connection)
            connecting.set()
            await_only(stopped.wait())

        event.listen(parts_of(service._sync).connections.engine, "connect", wait_for_stop)
        creating = asyncio.create_task(service.create_queue("jobs"))
        await connecting.wait()
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        await service.stop()
        stopped.set()
        [raw] = opened
        async with asyncio.timeout(LONGEST_WAIT):
            while not (raw.closed if hasattr(raw, "closed") else raw._connection is None):  # noqa: ASYNC110 - drivers have no event for it
                await asyncio.sleep(0.01)

    asyncio.run(main())


@pytest.mark.engines("postgresql", "mariadb", "mysql")
@pytest.mark.usefixtures("functions_allowed")
def test_the_functions_for_other_languages_are_installed(url: str) -> None:
    """A message that plain SQL puts is consumed on the loop, until they are taken away again."""
    engine = own_engine(url)
    put = text("SELECT put_message_in_queue('jobs', '{\"n\": 1}', 0, 0)")

    async def operation(service: AsyncQueueService) -> None:
        queue = await service.create_queue("jobs")
        await service.sql_api.install()
        async with engine.begin() as connection:
            message_id = await connection.scalar(put)
        (message,) = await queue.consume(wait=20)
        assert message_id == message.id
        assert {"n": 1} == message.payload
        await message.ack()
        assert "put_message_in_queue" in await service.sql_api.script()
        assert await service.sql_api.uninstall()
        assert not await service.sql_api.uninstall()
        await engine.dispose()

    run(url, operation)
