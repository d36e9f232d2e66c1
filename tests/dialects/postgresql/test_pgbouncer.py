"""PostgreSQL behind PgBouncer, which lends a session of the server to another client each time.

In transaction mode all verbs work, nothing that one client sets is found by the next, and waiting
consumers poll. In session mode everything is as without it; statement mode is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import NullPool, create_engine, make_url

from queue_over_sql import DatabaseRefused, QueueService, UnsupportedByEngine
from queue_over_sql.aio import AsyncQueueService
from queue_over_sql.testing.servers.databases import rendered
from tests.contract.request_reply.asking_and_answering import answering
from tests.dialects.postgresql.pgbouncer import PgBouncer
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import TestDatabase

    MakePooler = Callable[..., PgBouncer]

pytestmark = pytest.mark.engines("postgresql")

LONGEST_WAIT = 30.0
# More than two handlers in transactions hold: what they do beside needs one more.
SESSIONS = 4
# A consumer that has waited for so long looks about once a second.
LONG_IDLE = 4.0
# What a transaction finds that others left in its session.
LEFT = """
    SELECT 'setting ' || name || '=' || setting FROM pg_settings WHERE source = 'session'
    UNION ALL SELECT 'channel ' || pg_listening_channels()
    UNION ALL SELECT 'prepared ' || name FROM pg_prepared_statements WHERE name NOT LIKE 'PGB%%'
    UNION ALL SELECT 'cursor ' || name FROM pg_cursors WHERE is_holdable
    UNION ALL SELECT 'lock ' || objid FROM pg_locks WHERE locktype = 'advisory'
    UNION ALL SELECT 'table ' || relname FROM pg_class WHERE relpersistence = 't'
    ORDER BY 1
"""


@pytest.fixture
def make_pooler(database: TestDatabase) -> Iterator[MakePooler]:
    """Starts PgBouncer before the test's database."""
    with contextlib.ExitStack() as stack:

        def make(mode: str = "transaction", **settings: Any) -> PgBouncer:
            return stack.enter_context(PgBouncer(database.url, mode, **settings))

        yield make


@pytest.fixture(params=["nothing prepared", "prepared and followed"])
def pooled(request: pytest.FixtureRequest) -> dict[str, Any]:
    """How PgBouncer is started: the version of this machine, or one that follows statements."""
    return {"follows": 0 if request.param == "nothing prepared" else 100}


def url_of(pooler: PgBouncer) -> str:
    """Its URL; statements are prepared where it follows them."""
    if not pooler.follows:
        return pooler.url
    return rendered(make_url(pooler.url).update_query_dict({"prepare_threshold": "1"}))


@contextlib.contextmanager
def client(url: str, **options: Any) -> Iterator[Engine]:
    """Another program's engine, which prepares nothing unless told to."""
    options.setdefault("connect_args", {"prepare_threshold": None})
    engine = create_engine(url, **options)
    try:
        yield engine
    finally:
        engine.dispose()


def answer(engine: Engine, statement: str) -> list[Any]:
    """What a statement returns in a session that others have used."""
    with engine.connect() as connection:
        return list(connection.exec_driver_sql(statement).scalars())


def everywhere(engine: Engine, statement: str) -> list[Any]:
    """What it returns in all sessions, each held by a transaction meanwhile."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(engine.connect()) for _ in range(SESSIONS)]
        return sorted(one for each in held for one in each.exec_driver_sql(statement).scalars())


def assert_refused(database: str | Engine, reason: str) -> None:
    """No service can work there."""
    service = QueueService(database)
    try:
        with pytest.raises(UnsupportedByEngine, match=reason):
            service.create_queue("jobs")
    finally:
        service.stop()


# ---------------------------------------------------------------- all that queues are used for


def settle(queue: Queue) -> None:
    """Publish in each way, and end messages in each way."""
    queue.publish("one", key="k")
    queue.publish("one", key="k", on_conflict="skip")
    queue.publish_many([{"n": number} for number in range(20)])
    queue.load(range(30))
    # Often enough for psycopg to prepare all that it would.
    for _ in range(8):
        [message] = queue.consume()
        [message] = queue.exchange(message)
        message.extend(60)
        message.release()
        [first, second] = consume_exactly(queue, 2)
        first.nack(delay=0)
        second.ack()
    messages = consume_exactly(queue, 4)
    messages[0].reject("no good")
    queue.ack(messages[1:])
    assert 0 == queue.stats().claimed
    assert {"done", "rejected"} == {each.outcome for each in queue.archive.messages().list()}
    queue.purge()


def work(service: QueueService, queue: Queue) -> None:
    """Handle messages in threads, some of them in the handler's transaction."""
    done: list[Any] = []
    worker = service.worker(concurrency=2, poll_interval=(0.01, 0.1))

    @worker.handle(queue.name)
    def handle(message: Message) -> None:
        done.append(message.payload)

    @worker.handle("moved", transactional=True)
    def move(message: Message, connection: Any) -> None:
        queue.publish(message.payload, connection=connection)

    service.queue("moved").publish_many(range(10))
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_until(lambda: sorted(done) == list(range(10)), LONGEST_WAIT)
    finally:
        worker.stop()
        thread.join(LONGEST_WAIT)


def converse(service: QueueService, queue: Queue) -> None:
    """Topics, schedules, and a request with its reply."""
    topic = service.create_topic("events")
    topic.subscribe(queue, "a.*")
    topic.publish("x", routing_key="a.b")
    [message] = consume_exactly(queue, 1)
    message.ack()
    service.schedules.add("often", queue, "tick", every=timedelta(seconds=1))
    [message] = consume_exactly(queue, 1, LONGEST_WAIT)
    assert "tick" == message.payload
    message.ack()
    service.schedules.remove("often")
    queue.purge()
    with answering(queue, lambda message: message.payload * 2):
        assert 42 == queue.request(21, timeout=LONGEST_WAIT).payload


def use(service: QueueService) -> None:
    """All kinds of use."""
    service.start()
    queue = service.create_queue("jobs", archive="all", lease=30)
    service.create_queue("moved")
    settle(queue)
    work(service, queue)
    converse(service, queue)
    service.reap()


async def use_on_loop(url: str) -> None:
    """The same on an event loop, in short."""
    async with AsyncQueueService(url) as service:
        queue = await service.create_queue("loop", archive="all")
        for number in range(8):
            await queue.publish(number)
            [message] = await queue.consume()
            await message.nack(delay=0)
            [message] = await queue.consume()
            await message.ack()
        await queue.publish_many(range(10))
        await queue.load(range(10))
        messages = await queue.consume(100)
        await queue.ack(messages)
        assert 20 == len(messages)
        request = asyncio.create_task(queue.request("question", timeout=LONGEST_WAIT))
        [message] = await queue.consume(wait=LONGEST_WAIT)
        await message.reply("answer")
        await message.ack()
        assert "answer" == (await request).payload


# ---------------------------------------------------------------- transaction mode


def test_nothing_is_left_in_a_session(make_pooler: MakePooler, pooled: dict[str, Any]) -> None:
    """Few sessions of the server serve all, and are after all their use as they were before."""
    pooler = make_pooler(size=SESSIONS, **pooled)
    with client(pooler.url) as other:
        before = everywhere(other, LEFT)
        sessions = everywhere(other, "SELECT pg_backend_pid()")
        assert SESSIONS == len(set(sessions))
        with QueueService(url_of(pooler)) as service:
            use(service)
            prepared = everywhere(other, "SELECT name FROM pg_prepared_statements")
            assert bool(pooler.follows) is bool(prepared)
            assert before == everywhere(other, LEFT)
        asyncio.run(use_on_loop(url_of(pooler).replace("+psycopg", "")))
        assert before == everywhere(other, LEFT)
        assert sessions == everywhere(other, "SELECT pg_backend_pid()")


def test_consumers_share_two_sessions(make_pooler: MakePooler, pooled: dict[str, Any]) -> None:
    """Four services at once, a caller's own transactions beside: nothing is lost or done twice."""
    pooler = make_pooler(size=2, **pooled)
    count = 200
    done: list[Any] = []

    def consume(service: QueueService) -> None:
        queue = service.queue("jobs")
        while messages := queue.consume(3, wait=0.5):
            queue.ack(messages)
            done.extend(message.payload for message in messages)

    with contextlib.ExitStack() as stack:
        services = [stack.enter_context(QueueService(url_of(pooler))) for _ in range(4)]
        queue = services[0].create_queue("jobs")
        other = stack.enter_context(client(url_of(pooler).partition("?")[0]))
        with ThreadPoolExecutor(len(services)) as pool:
            ended = [pool.submit(consume, service) for service in services]
            for number in range(0, count, 2):
                queue.publish(number)
                with other.begin() as connection:
                    queue.publish(number + 1, connection=connection)
            for each in ended:
                each.result(LONGEST_WAIT)
    assert list(range(count)) == sorted(done)


@pytest.mark.full
def test_a_waiting_consumer_polls(make_pooler: MakePooler, pooled: dict[str, Any]) -> None:
    """It does not listen where a notification may go to anybody, and looks again in time."""
    pooler = make_pooler(size=SESSIONS, **pooled)
    with QueueService(url_of(pooler)) as service, QueueService(url_of(pooler)) as publisher:
        queue = service.create_queue("jobs")
        found: list[float] = []

        def wait() -> None:
            [message] = queue.consume(wait=LONGEST_WAIT)
            found.append(time.monotonic())
            message.ack()

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(LONG_IDLE)
        published = time.monotonic()
        publisher.queue("jobs").publish("x")
        thread.join(LONGEST_WAIT)
        assert 0 <= found[0] - published < LONG_IDLE
        with client(pooler.url) as other:
            assert [] == everywhere(other, "SELECT pg_listening_channels()")


# ---------------------------------------------------------------- prepared statements


def test_what_is_not_followed_is_not_prepared_for_long(make_pooler: MakePooler) -> None:
    """Who asks for prepared statements all the same is told what to set, and so is a caller."""
    pooler = make_pooler(follows=0)
    asked = f"{pooler.url}?prepare_threshold=3"
    advice = r"prepare_threshold=None.*\?prepare_threshold=none"
    assert_refused(asked, advice)
    for url in (pooler.url, f"{pooler.url}?prepare_threshold=none"):
        with QueueService(url) as service, client(pooler.url, connect_args={}) as caller:
            queue = service.create_queue("jobs")
            with (
                pytest.raises(UnsupportedByEngine, match=advice),
                caller.begin() as connection,
            ):
                queue.publish("x", connection=connection)
            assert [] == queue.consume()


def test_a_session_that_was_lent_out_is_explained(
    make_pooler: MakePooler, database: TestDatabase
) -> None:
    """A caller's pooler is met only when the server does not know the caller's statement."""
    pooler = make_pooler(size=1, follows=0)
    with (
        QueueService(database.url) as service,
        client(pooler.url, connect_args={"prepare_threshold": 0}, poolclass=NullPool) as caller,
    ):
        queue = service.create_queue("jobs")

        def publish_by_many_connections() -> None:
            for _ in range(5):
                with caller.begin() as connection:
                    queue.publish("x", connection=connection)

        with pytest.raises(DatabaseRefused, match=r"already exists.*prepare_threshold=None"):
            publish_by_many_connections()


# ---------------------------------------------------------------- other modes


@pytest.mark.parametrize("follows", [0, 100])
def test_session_mode_is_as_no_pooler(make_pooler: MakePooler, follows: int) -> None:
    """A session that is lent for the whole of a connection is used as one of the server's own."""
    pooler = make_pooler("session", size=20, follows=follows)
    with QueueService(pooler.url) as service, client(pooler.url) as other:
        queue = service.create_queue("jobs")
        thread = threading.Thread(target=lambda: queue.ack(queue.consume(wait=LONGEST_WAIT)))
        thread.start()
        listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'"
        wait_until(lambda: answer(other, listening) == [1], LONGEST_WAIT)
        queue.publish("x")
        thread.join(LONGEST_WAIT)
        show = "SHOW enable_seqscan"
        assert "off" == service._parts.connections.run(
            lambda c: c.exec_driver_sql(show).scalar_one()
        )
        assert ["on"] == answer(other, show)
        assert [] == answer(other, LEFT)


@pytest.mark.full
def test_session_mode_without_a_session_to_spare(make_pooler: MakePooler) -> None:
    """Where the only session is taken nobody waits for a second one to look at it."""
    pooler = make_pooler("session", size=1)
    with QueueService(pooler.url, notify=False) as service:
        started = time.monotonic()
        queue = service.create_queue("jobs")
        queue.publish("x")
        assert time.monotonic() - started < 10
        assert "x" == consume_exactly(queue, 1)[0].payload


@pytest.mark.parametrize("follows", [0, 100])
def test_statement_mode_is_refused(make_pooler: MakePooler, follows: int) -> None:
    """Where no transaction has two statements nothing can be done, and it says what can."""
    pooler = make_pooler("statement", follows=follows)
    says = "pool_mode=transaction or pool_mode=session"
    with client(pooler.url, isolation_level="AUTOCOMMIT") as engine:
        for database in (pooler.url, engine):
            assert_refused(database, says)

    async def on_loop() -> None:
        async with AsyncQueueService(pooler.url.replace("+psycopg", "")) as service:
            await service.create_queue("jobs")

    with pytest.raises(UnsupportedByEngine, match=says):
        asyncio.run(on_loop())
