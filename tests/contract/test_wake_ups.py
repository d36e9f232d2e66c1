"""An idle consumer is woken by what others publish; without that it finds it by polling."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine

from queue_over_sql.dialects.driver_calls import driver_connection
from queue_over_sql.dialects.watching import Watches
from queue_over_sql.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService, TestDatabase

# A consumer that found nothing for so long looks about once a second.
LONG_IDLE = 4.0
PATIENCE = 20.0


class Waiting:
    """A consumer that waits in a thread of its own, and notes how often it looks."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.looks = 0
        self.found: list[Message] = []
        self.found_at = 0.0
        claimer = queue._claimer
        claim = claimer.claim

        def counted(*arguments: object) -> object:
            self.looks += 1
            return claim(*arguments)  # type: ignore[arg-type]

        claimer.claim = counted  # type: ignore[method-assign, assignment]
        self.thread = threading.Thread(target=self._wait)
        self.thread.start()

    def _wait(self) -> None:
        self.found = self.queue.consume(wait=PATIENCE)
        self.found_at = time.monotonic()

    def ended(self) -> Waiting:
        self.thread.join(2 * PATIENCE)
        assert self.found, "nothing was found in time"
        self.queue.ack(self.found)
        return self


@pytest.fixture
def publisher(service: QueueService) -> Queue:
    return service.create_queue("jobs")


@pytest.fixture
def hears(service: QueueService) -> bool:
    """Whether this engine tells consumers of what other processes publish."""
    dialect = service.connections.dialect
    if not dialect.hears_others:
        pytest.skip(f"{dialect.name} has no way to tell consumers: they poll")
    return True


def looks_between_polls(waiting: Waiting) -> None:
    """Wait until the consumer looks seldom, and has just looked."""
    time.sleep(LONG_IDLE)
    before = waiting.looks
    deadline = time.monotonic() + 5
    while waiting.looks == before and time.monotonic() < deadline:
        time.sleep(0.005)


@pytest.mark.threads("waits in threads")
@pytest.mark.usefixtures("hears")
def test_a_publish_elsewhere_wakes_the_consumer(
    publisher: Queue, make_service: MakeService
) -> None:
    """It comes by the very next look, long before the next poll."""
    waiting = Waiting(make_service().queue("jobs"))
    looks_between_polls(waiting)
    before = waiting.looks
    publisher.publish("x")
    waiting.ended()
    assert waiting.looks - before <= 3
    assert waiting.queue.context.wakeups._running is not None


@pytest.mark.threads("its engine is a synchronous one")
@pytest.mark.usefixtures("hears")
def test_a_publish_in_a_transaction_wakes_when_it_commits(
    publisher: Queue, make_service: MakeService, database: TestDatabase
) -> None:
    """And not before."""
    waiting = Waiting(make_service().queue("jobs"))
    looks_between_polls(waiting)
    engine = create_engine(database.url)
    with engine.begin() as connection:
        publisher.publish("x", connection=connection)
        time.sleep(0.1)
        assert not waiting.found
    committed = time.monotonic()
    waiting.ended()
    assert waiting.found_at - committed < PATIENCE
    engine.dispose()


@pytest.mark.threads("its engine is a synchronous one")
def test_a_transaction_in_two_phases_tells_nobody(
    service: QueueService, database: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL could not prepare it any more."""
    dialect = service.connections.dialect
    if not dialect.tells_others:
        pytest.skip(f"{dialect.name} tells nobody")
    queue = service.create_queue("jobs")

    def refuse(*_: object) -> None:
        raise AssertionError("somebody was told")

    monkeypatch.setattr(type(dialect), "tell", refuse)
    engine = create_engine(database.url)
    with engine.connect() as connection:
        transaction = connection.begin_twophase()
        queue.publish("x", connection=connection)
        transaction.rollback()
    engine.dispose()


@pytest.mark.threads("waits in threads")
def test_without_wake_ups_polling_finds_everything(
    publisher: Queue, make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing hangs on a wake-up."""
    monkeypatch.setattr(Watches, "hears_others", False)
    for kind in type(publisher.context.tables.dialect).__mro__:
        if "hears_others" in vars(kind):
            monkeypatch.setattr(kind, "hears_others", False)
    consumer = make_service(notify=False)
    waiting = Waiting(consumer.queue("jobs"))
    time.sleep(1.0)
    publisher.publish("x")
    waiting.ended()


@pytest.mark.threads("asks the threads of the service")
def test_notify_false_tells_and_hears_nothing(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No connection more, no statement more."""
    service = make_service(notify=False)
    queue = service.create_queue("jobs")

    def refuse(*_: object) -> None:
        raise AssertionError("somebody was told")

    monkeypatch.setattr(type(service.connections.dialect), "tell", refuse)
    queue.publish("x")
    [message] = queue.consume(wait=1)
    message.ack()
    assert queue.consume(wait=0.2) == []
    assert service._parts.wakeups._running is None


@pytest.mark.threads("asks the threads of the service")
def test_a_burst_is_told_once(service: QueueService, monkeypatch: pytest.MonkeyPatch) -> None:
    """NOTIFY lets one committer through at a time, so it is sent seldom."""
    dialect = service.connections.dialect
    if not dialect.tells_others:
        pytest.skip(f"{dialect.name} tells nobody")
    queue = service.create_queue("jobs")
    told: list[float] = []
    tell = type(dialect).tell

    def noted(*arguments: object) -> None:
        told.append(time.monotonic())
        tell(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(type(dialect), "tell", noted)
    began = time.monotonic()
    for _ in range(200):
        queue.publish("x")
    seconds = time.monotonic() - began
    assert told
    assert len(told) <= seconds / 0.01 + 2
    gaps = [later - earlier for earlier, later in itertools.pairwise(told)]
    assert all(gap >= 0.0099 for gap in gaps)


@pytest.mark.threads("waits in threads")
@pytest.mark.usefixtures("hears")
def test_the_end_of_a_service_ends_its_watch(publisher: Queue, make_service: MakeService) -> None:
    """At once, with its connection."""
    del publisher
    service = make_service()
    queue = service.queue("jobs")
    assert queue.consume(wait=0.5) == []
    wakeups = service._parts.wakeups
    running = wakeups._running
    assert running is not None
    assert running.is_alive()
    service.stop()
    assert not running.is_alive()


@pytest.mark.threads("waits in threads")
@pytest.mark.usefixtures("hears")
def test_the_end_of_a_service_ends_a_watch_that_has_no_connection(
    publisher: Queue, make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it would not try again for a while."""
    monkeypatch.setattr("queue_over_sql.wakeups._FIRST_PAUSE", PATIENCE)
    service = make_service()
    queue = service.queue(publisher.name)

    def refuse() -> None:
        raise DatabaseUnavailable

    monkeypatch.setattr(service.connections, "apart", refuse)
    assert queue.consume(wait=0.5) == []
    running = service._parts.wakeups._running
    assert running is not None
    assert running.is_alive()
    service.stop()
    assert not running.is_alive()


@pytest.mark.threads("waits in threads")
@pytest.mark.usefixtures("hears")
def test_a_lost_watch_is_begun_again(
    publisher: Queue, make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that broke is replaced; meanwhile polling goes on."""
    monkeypatch.setattr("queue_over_sql.wakeups._FIRST_PAUSE", 0.1)
    service = make_service()
    waiting = Waiting(service.queue("jobs"))
    time.sleep(0.5)
    watch = service._parts.wakeups._watch
    assert watch is not None
    driver_connection(watch._connection).close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + PATIENCE
    while service._parts.wakeups._watch is watch and time.monotonic() < deadline:
        time.sleep(0.01)
    assert service._parts.wakeups._watch is not watch
    publisher.publish("x")
    waiting.ended()


@pytest.mark.threads("asks the threads of the service")
def test_what_is_told_is_taken_though_nobody_waits(
    publisher: Queue, make_service: MakeService
) -> None:
    """Else it fills the server's room for it, and then no transaction that tells can commit."""
    if not publisher.context.tables.dialect.tells_others:
        pytest.skip("what nobody reads is nowhere")
    service = make_service()
    assert service.queue("jobs").consume(wait=0.5) == []
    wakeups = service._parts.wakeups
    assert wakeups._watch is not None
    taken: list[str] = []
    wakeups._wanted = lambda table: bool(taken.append(table))  # type: ignore[func-returns-value]
    # The watch that was on for the consumer ends first.
    time.sleep(1.5)
    publisher.publish("x")
    deadline = time.monotonic() + PATIENCE
    while not taken and time.monotonic() < deadline:
        time.sleep(0.01)
    assert taken == [publisher.table.fullname]


@pytest.mark.threads("asks the threads of the service")
@pytest.mark.usefixtures("hears")
def test_a_child_leaves_the_watch_of_its_parent_alone(
    publisher: Queue, make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork shares the sockets: what the child wrote there would wake the parent for ever."""
    del publisher
    service = make_service()
    assert service.queue("jobs").consume(wait=0.5) == []
    wakeups = service._parts.wakeups
    assert wakeups._watch is not None
    # As a child finds it, which stops before it has a connection of its own.
    monkeypatch.setattr(wakeups, "_pid", 0)
    monkeypatch.setattr(wakeups, "_run", lambda: None)
    wakeups.listen()
    assert wakeups._watch is None
