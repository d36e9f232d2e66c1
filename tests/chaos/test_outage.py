"""The database is down: an error at the start, a wait later."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from queue_over_sql import (
    DatabaseUnavailable,
    FixedDelay,
    Message,
    Publication,
    Queue,
    QueueService,
)
from queue_over_sql.testing.plugin import TestDatabase, TestServer
from tests.chaos.account import create_effects, effects, live_tokens
from tests.chaos.processes import Crew, Process
from tests.chaos.proxy import Proxy
from tests.chaos.roles import booter, worker
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]


@pytest.fixture
def connect(server: TestServer) -> Iterator[Callable[[], QueueService]]:
    """Makes services on the private server; all are stopped after the test."""
    with ExitStack() as stack:

        def make() -> QueueService:
            service = QueueService(server.url)
            stack.callback(service.stop)
            return service

        yield make
        server.start()


@pytest.fixture
def server_sql(server: TestServer) -> Iterator[Engine]:
    """Plain SQLAlchemy on the private server; it keeps no connection that an outage could break."""
    engine = create_engine(server.url, poolclass=NullPool)
    yield engine
    engine.dispose()


def persist(act: Callable[[], object]) -> None:
    """Repeat an act for as long as the database does not answer."""

    def look() -> bool:
        try:
            act()
        except DatabaseUnavailable:
            return False
        return True

    eventually(look, "the database answers again", every=0.1)


def publish_all(queue: Queue, tokens: list[str]) -> None:
    """Publish each exactly once, whatever became of an earlier try."""
    for token in tokens:
        persist(partial(queue.publish, {"token": token}, key=token, on_conflict="skip"))


@pytest.mark.default_on("postgresql")
def test_a_server_without_its_database_ends_with_an_error(server: TestServer, crew: Crew) -> None:
    """A server that boots while its database is down ends by itself, and says why."""
    server.stop()
    process = crew.spawn(booter.Arguments(server.url, ("mails",)))
    process.expect("ready")
    process.tell("go")
    assert 0 != process.join()
    assert "DatabaseUnavailable" in process.errors()


@pytest.mark.engines("postgresql", "mysql", "mariadb")
@pytest.mark.default_on("postgresql", "mariadb")
def test_what_was_removed_is_never_said_to_be_missing(database: TestDatabase) -> None:
    """Wherever one connection ends: a removal is repeated, and says True, or that it is unknown.

    What is removed was there before, so False would be untrue. At some of the places the repetition
    finds it gone, and at some it is the one that removes it.
    """
    with closing(Proxy(database.url)) as proxy, QueueService(proxy.url) as service:
        queue, topic = service.create_queue("jobs", archive="all"), service.create_topic("events")

        def purge() -> object:
            queue.publish("x")
            return queue.purge

        def unsubscribe() -> object:
            topic.subscribe(queue, "a")
            return partial(topic.unsubscribe, queue)

        def drop_topic() -> object:
            service.create_topic("other")
            return partial(service.drop_topic, "other")

        def unschedule() -> object:
            service.schedules.add("hourly", queue, 1, every=3600)
            return partial(service.schedules.remove, "hourly")

        prepared: dict[str, Callable[[], object]] = {
            "delete": lambda: partial(queue.delete, queue.publish("x").id),
            "cancel": lambda: partial(queue.cancel, queue.publish("x").id),
            "purge": purge,
            "unsubscribe": unsubscribe,
            "drop a topic": drop_topic,
            "remove a schedule": unschedule,
        }
        for name, prepare in prepared.items():
            said: set[object] = set()
            for answered in range(0, 420, 24):
                # The connection may have ended right behind an answer that came.
                persist(queue.stats)
                act = cast("Callable[[], object]", prepare())
                proxy.cut_after(answered, once=True)
                try:
                    said.add(act())
                except DatabaseUnavailable as error:
                    assert "unknown" in str(error), name  # noqa: PT017
                    said.add("unknown")
                proxy.cut_after(math.inf)
            assert said <= {1, "unknown"}, name
            assert 1 in said, name


class Brief(Proxy):
    """Cuts the connection instead of passing on an answer, as often as it is told."""

    cuts = 0

    def _pass_on(self, answer: bytes) -> bytes:
        if self.cuts:
            self.cuts -= 1
            return b""
        return super()._pass_on(answer)


@pytest.mark.engines("postgresql", "mysql", "mariadb")
@pytest.mark.default_on("mariadb")
def test_no_queue_is_said_to_reject_what_an_outage_stopped(database: TestDatabase) -> None:
    """A topic reads the settings of its queues before it publishes, and the database is away then.

    The error speaks of the database only, however soon the database is back.
    """
    with closing(Brief(database.url)) as proxy:
        # So often it reads the settings.
        service = QueueService(proxy.url, reaper_interval=0.0001)
        topic = service.create_topic("events")
        topic.subscribe(service.create_queue("jobs"))
        topic.publish("x", routing_key="a")
        said: list[str] = []
        for cuts in range(1, 10):
            proxy.cuts = cuts
            try:
                topic.publish("x", routing_key="a")
            except DatabaseUnavailable as error:
                said.append(str(error))
            proxy.cuts = 0
        service.stop()
        assert said
        assert not [text for text in said if "reject" in text]


def test_a_missing_folder_is_an_unavailable_database(tmp_path: Path) -> None:
    """The embedded database cannot be down, but its folder may be missing: the same error."""
    service = QueueService(f"sqlite:///{tmp_path}/missing/queues.db")
    with pytest.raises(DatabaseUnavailable):
        service.create_queue("jobs")
    service.stop()


def test_every_verb_says_that_the_database_is_gone(
    server: TestServer, connect: Callable[[], QueueService]
) -> None:
    """No error is swallowed as an empty answer; afterwards the same objects work again."""
    service = connect()
    queue = service.create_queue("jobs")
    queue.publish({"token": "claimed"})
    queue.publish({"token": "waiting"})
    [message] = queue.consume()
    server.stop()
    for verb in (
        lambda: queue.publish({"token": "unseen"}),
        lambda: queue.publish_many([{"token": "unseen"}]),
        queue.consume,
        queue.stats,
        message.ack,
        message.nack,
        service.queues,
    ):
        with pytest.raises(DatabaseUnavailable):
            verb()
    server.start()

    persist(message.ack)
    persist(lambda: queue.publish({"token": "later"}, key="later", on_conflict="skip"))
    messages = queue.consume(10)
    assert ["waiting", "later"] == [m.payload["token"] for m in messages]
    queue.ack(messages)


@pytest.mark.default_on("postgresql", "mysql")
def test_the_callers_pool_may_hold_dead_connections(
    server: TestServer, connect: Callable[[], QueueService]
) -> None:
    """After a restart the error names the option that the caller's engine lacks."""
    queue = connect().create_queue("jobs")
    for engine in (create_engine(server.url), create_engine(server.url, pool_pre_ping=True)):
        with engine.begin() as connection:
            queue.publish({"token": "before"}, connection=connection)
        server.stop()
        server.start()
        told = pytest.raises(DatabaseUnavailable, match="pool_pre_ping=True")
        with nullcontext() if engine.pool._pre_ping else told, engine.begin() as connection:
            queue.publish({"token": "after"}, connection=connection)
        engine.dispose()
    assert 3 == queue.stats().live


class ShopError(Exception):
    """A handler's own: neither Python's nor a driver's."""


@pytest.mark.default_on("postgresql")
def test_who_fails_while_the_database_is_away_is_tried_again(
    server: TestServer,
    connect: Callable[[], QueueService],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The failure is told as soon as the database is back, and not when its lease ends."""
    service = connect()
    service.create_queue("jobs", retry=FixedDelay(0), lease=600).publish("once more")
    attempts: list[int] = []
    worker = service.worker(concurrency=1)

    @worker.handle("jobs")
    def fail_once(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            server.stop()
            raise ShopError("while the database is away")

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(worker.run)
        eventually(lambda: "The handler of queue jobs raised" in caplog.text, "the failure")
        server.start()
        eventually(lambda: 2 == len(attempts), "the second attempt")
        worker.stop()
        ended.result(60.0)
    assert [1, 2] == attempts


@contextmanager
def explained(sql: Engine, process: Process) -> Iterator[None]:
    """Add to a failure what is left in the queue, and what the worker said."""
    try:
        yield
    except AssertionError as error:
        with sql.connect() as connection:
            left = connection.execute(text("SELECT * FROM queue_jobs")).mappings().all()
        error.add_note("\n".join([*map(str, left), process.errors()[-5_000:]]))
        raise


@pytest.mark.default_on("postgresql", "mysql")
@pytest.mark.parametrize(
    "outage",
    [
        pytest.param(("stop", 3.0, False), marks=pytest.mark.full),
        ("kill", 0.5, False),
        ("kill", 0.5, True),
    ],
    ids=["long", "crash", "crash-groups"],
)
def test_a_worker_outlives_an_outage(
    outage: tuple[str, float, bool],
    server: TestServer,
    connect: Callable[[], QueueService],
    server_sql: Engine,
    crew: Crew,
) -> None:
    """The database goes away under a busy worker: it goes on, and each effect is there once.

    Once the outage is longer than the consumer's timeout, and once it is a crash. SQLAlchemy logs
    no traceback of a connection that the server has ended. With groups each keeps its order.
    """
    ending, seconds, grouped = outage
    settings: Any = {"group_limit": 1} if grouped else {}
    queue = connect().create_queue("jobs", retry=FixedDelay(0.1), max_attempts=100, **settings)
    create_effects(server_sql)
    early = [f"early-{number:03}" for number in range(200)]
    late = [f"late-{number:03}" for number in range(20)]
    items = [Publication({"token": token}, group=token[-1] if grouped else None) for token in early]
    queue.publish_many(items)
    process = crew.spawn(
        worker.Arguments(
            server.url,
            str(crew.journals),
            concurrency=4,
            seconds=0.03,
            transactional=True,
            consumer_timeout=2.0,
        )
    )
    process.expect("ready")
    eventually(lambda: len(crew.account().tokens("finished")) >= 40, "forty messages handled")
    getattr(server, ending)()
    time.sleep(seconds)
    assert process.alive
    server.start()
    publish_all(queue, late)

    with explained(server_sql, process):
        eventually(lambda: not live_tokens(server_sql), "nothing left", within=60, every=0.1)
    assert early + late == [token for token, _ in effects(server_sql)]
    begun = [token for token in crew.account().tokens("started") if token in early]
    for digit in "0123456789" if grouped else "":
        of_group = [token for token in begun if token.endswith(digit)]
        assert sorted(of_group) == of_group
    assert process.alive
    assert "Exception during reset" not in process.errors()


@pytest.mark.default_on("postgresql")
def test_a_request_rides_out_a_restart(
    server: TestServer, connect: Callable[[], QueueService]
) -> None:
    """Killed while it waits: the request is there after it, and who asked gets its reply."""
    queue = connect().create_queue("jobs")
    asked = connect().queue("jobs")
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(asked.request, {"token": "a"}, timeout=100.0)
        [message] = queue.consume(wait=30.0)
        server.kill()
        # As long as it takes that looks for the reply have failed.
        time.sleep(1.0)
        assert not asking.done()
        server.start()
        persist(partial(message.reply, "b"))
        assert "b" == asking.result(60.0).payload
    persist(message.ack)
