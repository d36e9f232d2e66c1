"""What becomes claimable wakes an idle consumer; without notifications it polls."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update

from queue_over_sql.errors import DatabaseUnavailable, QueueError
from queue_over_sql.queue import core_of
from queue_over_sql.recovery.clock_steps import ClockStep
from queue_over_sql.sql.driver_calls import driver_connection
from queue_over_sql.values.backoff import RateLimit
from tests.contract.test_reaper import kill
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

# For what comes at once: a bound, never a measure of speed.
LONGEST_WAIT = 30.0
# Who waits so long between two looks was woken if it found anything.
NEVER = 600.0
# The engines that tell consumers of what other processes publish; with the others they poll.
hears = pytest.mark.engines("sqlite", "postgresql")
tells = pytest.mark.engines("postgresql")


class Waiting:
    """A consumer that waits in a thread of its own, and notes how often it looks."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.looks = 0
        self.found: list[Message] = []
        self.failure: QueueError | None = None
        claimer = core_of(queue).claimer
        claim = claimer.claim

        def counted(*arguments: object) -> object:
            self.looks += 1
            return claim(*arguments)  # type: ignore[arg-type]

        claimer.claim = counted  # type: ignore[method-assign, assignment]
        self.thread = threading.Thread(target=self._wait, daemon=True)
        self.thread.start()

    def _wait(self) -> None:
        try:
            self.found = self.queue.consume(wait=NEVER)
        except QueueError as error:
            self.failure = error

    def ended(self) -> Waiting:
        self.thread.join(LONGEST_WAIT)
        assert self.found, f"nothing was found in time: {self.failure!r}"
        self.queue.ack(self.found)
        return self


@pytest.fixture
def publisher(service: QueueService) -> Queue:
    return service.create_queue("jobs")


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let consumers who found nothing not look again by themselves."""
    monkeypatch.setattr("queue_over_sql.claiming.claimer.FIRST_POLL", NEVER)
    monkeypatch.setattr("queue_over_sql.claiming.claimer.LAST_POLL", NEVER)


def watched(service: QueueService) -> Any:
    """The watch of a service, which waits for messages once it has begun."""
    queue, wakeups = service.queue("jobs"), service._parts.wakeups
    wait_until(lambda: queue.consume(wait=0.05) == [] and wakeups._watch, timeout=LONGEST_WAIT)
    return wakeups._watch


def cut(watch: Any) -> None:
    """Close the connection of a watch."""
    connection = driver_connection(watch._connection)
    read = getattr(watch, "_read", None)
    if read is None:
        connection.close()
        return

    def closed() -> Any:
        # In the thread that uses it: SQLite crashes where it is closed beside a statement.
        connection.close()
        return read()

    watch._read = closed


@hears
@pytest.mark.threads("waits in threads")
@pytest.mark.usefixtures("seldom")
def test_a_publish_elsewhere_wakes_the_consumer(
    publisher: Queue, make_service: MakeService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the very next look, although it would not look by itself; and not before the commit.

    That another message was notified a moment before says nothing about a transaction's end.
    """
    monkeypatch.setattr("queue_over_sql.database.notify._BURST_SECONDS", NEVER)
    waiting = Waiting(make_service().queue("jobs"))
    wakeups = core_of(waiting.queue).context.wakeups
    # It looks once more when its watch begins.
    wait_until(lambda: wakeups._watch is not None and waiting.looks >= 2, timeout=LONGEST_WAIT)
    before = waiting.looks
    publisher.publish("x")
    waiting.ended()
    assert waiting.looks - before <= 3
    again = Waiting(waiting.queue)
    wait_until(lambda: again.looks >= 1, timeout=LONGEST_WAIT)
    with engine.begin() as connection:
        publisher.publish("x", connection=connection)
        time.sleep(0.05)
        assert not again.found
    again.ended()


@tells
@pytest.mark.threads("waits in threads")
@pytest.mark.usefixtures("seldom")
def test_what_is_not_committed_yet_is_not_notified_instead(
    publisher: Queue, make_service: MakeService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody hears of it before its end, so what is committed meanwhile is notified for itself."""
    monkeypatch.setattr("queue_over_sql.database.notify._BURST_SECONDS", NEVER)
    service = make_service()
    watched(service)
    arrivals = core_of(service.queue("jobs")).context.arrivals
    waiting = Waiting(service.queue("jobs"))
    wait_until(lambda: arrivals.wait_for_waiting(0.05), timeout=LONGEST_WAIT)
    with engine.begin() as connection:
        publisher.publish("later", connection=connection)
        publisher.publish("now")
        assert "now" == waiting.ended().found[0].payload


class Ways:
    """Ways to make a message claimable: each yields while none is, and ends when one is."""

    def __init__(self, queue: Queue, engine: Engine, make_service: MakeService) -> None:
        self.queue = queue
        self.engine = engine
        self.make_service = make_service

    def _claimed(self) -> list[Message]:
        self.queue.publish("x")
        return self.queue.consume()

    def _leave_with_the_dead(self, count: int) -> None:
        dead = self.make_service()
        self.queue.publish_many(range(count))
        assert count == len(dead.queue("jobs").consume(count))
        kill(self.engine, dead)

    def _edit(self, **values: int) -> None:
        """Edit by hand, which wakes nobody."""
        with self.engine.begin() as connection:
            connection.execute(update(self.queue.table).values(**values))

    def release(self) -> Iterator[None]:
        messages = self._claimed()
        yield
        self.queue.release(messages)

    def release_by_caller(self) -> Iterator[None]:
        messages = self._claimed()
        with self.engine.begin() as connection:
            self.queue.release(messages, connection=connection)
            yield

    def nack(self) -> Iterator[None]:
        messages = self._claimed()
        yield
        self.queue.nack(messages, delay=0)

    def nack_by_caller(self) -> Iterator[None]:
        messages = self._claimed()
        with self.engine.begin() as connection:
            self.queue.nack(messages, delay=0, connection=connection)
            yield

    def requeue(self) -> Iterator[None]:
        self.queue.reject(self._claimed(), "no")
        yield
        self.queue.archive.messages().requeue()

    def requeue_by_caller(self) -> Iterator[None]:
        self.queue.reject(self._claimed(), "no")
        with self.engine.begin() as connection:
            self.queue.archive.messages().requeue(connection=connection)
            yield

    def reschedule(self) -> Iterator[None]:
        self.queue.publish("x", delay=60)
        yield
        self.queue.messages().reschedule(delay=0)

    def reschedule_by_caller(self) -> Iterator[None]:
        self.queue.publish("x", delay=60)
        with self.engine.begin() as connection:
            self.queue.messages().reschedule(delay=0, connection=connection)
            yield

    def resume(self) -> Iterator[None]:
        self.queue.pause()
        self.queue.publish("x")
        yield
        self.queue.resume()

    def stop(self) -> Iterator[None]:
        holder = self.make_service()
        self.queue.publish("x")
        assert holder.queue("jobs").consume()
        yield
        holder.stop()

    def recall(self) -> Iterator[None]:
        claimer = core_of(self.queue).claimer
        self.queue.publish("x")
        claimer.abandon(claimer.claim(1, None))
        yield
        claimer.recall()

    def reap(self) -> Iterator[None]:
        reaper = self.make_service()
        reaper.queue("jobs")
        self._leave_with_the_dead(1)
        yield
        reaper.reap()

    def restore_by_claim(self) -> Iterator[None]:
        self._leave_with_the_dead(2)
        core_of(self.queue).recovery.pace = RateLimit(0.0, ready=True)
        yield
        self.queue.ack(self.queue.consume())

    def keep_from_suspect(self) -> Iterator[None]:
        self._leave_with_the_dead(1)
        core_of(self.queue).recovery.restore()
        self.queue.release(self.queue.consume(), delay=60)
        self.queue.publish("x", delay=60)
        yield
        self._edit(available_at=1)
        # It does not know yet that there are suspects.
        other = self.make_service().queue("jobs")
        other.ack(other.consume(2))

    def set_clock_back(self) -> Iterator[None]:
        self.queue.publish("x", delay=60)
        now = int(time.time() * 1_000_000)
        ahead = now + 30_000_000
        self._edit(published_at=ahead, available_at=ahead)
        yield
        core_of(self.queue).recovery.keep_due(ClockStep(now, until=now + 60_000_000))


WAYS = [name for name in vars(Ways) if name[0] != "_"]


@tells
@pytest.mark.threads("waits in threads")
@pytest.mark.usefixtures("seldom")
def test_whatever_makes_a_message_claimable_wakes_consumers_elsewhere(
    publisher: Queue, make_service: MakeService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way after its commit, although they would not look by themselves."""
    monkeypatch.setattr("queue_over_sql.database.notify._BURST_SECONDS", 0)
    # Nor would they restore messages of the dead by themselves.
    service = make_service(reaper_interval=NEVER)
    ways = Ways(publisher, engine, make_service)
    watched(service)
    queue, arrivals = service.queue("jobs"), core_of(service.queue("jobs")).context.arrivals
    for name in WAYS:
        way = getattr(ways, name)()
        next(way)
        waiting = Waiting(queue)
        wait_until(lambda: arrivals.wait_for_waiting(0.05), timeout=LONGEST_WAIT)
        assert not waiting.found, name
        next(way, None)
        waiting.thread.join(LONGEST_WAIT)
        assert waiting.found, name
        queue.ack(waiting.found)


@hears
@pytest.mark.threads("waits in threads")
@pytest.mark.usefixtures("seldom")
def test_the_last_of_a_burst_is_found(
    publisher: Queue, make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its first message is notified, and a consumer may get that one before the last comes."""
    monkeypatch.setattr("queue_over_sql.database.notify._BURST_SECONDS", 1.0)
    service = make_service()
    watched(service)
    arrivals = core_of(service.queue("jobs")).context.arrivals
    for _ in range(2):
        waiting = Waiting(service.queue("jobs"))
        wait_until(lambda: arrivals.wait_for_waiting(0.05), timeout=LONGEST_WAIT)
        publisher.publish("x")
        waiting.ended()


@tells
@pytest.mark.threads("its engine is a synchronous one")
def test_a_transaction_in_two_phases_tells_nobody(
    service: QueueService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL could not prepare it any more."""
    dialect = service._parts.connections.dialect
    queue = service.create_queue("jobs")

    def refuse(*_: object) -> None:
        raise AssertionError("somebody was told")

    monkeypatch.setattr(type(dialect.notifications), "notify", refuse)
    with engine.connect() as connection:
        transaction = connection.begin_twophase()
        queue.publish("x", connection=connection)
        transaction.rollback()


@pytest.mark.engines("sqlite")
@pytest.mark.threads("waits in threads")
def test_without_wake_ups_polling_finds_everything(
    publisher: Queue, make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing hangs on a wake-up."""
    for kind in type(core_of(publisher).context.dialect.notifications).__mro__:
        if "notified_by_others" in vars(kind):
            monkeypatch.setattr(kind, "notified_by_others", False)
    consumer = make_service(notify=False)
    waiting = Waiting(consumer.queue("jobs"))
    wait_until(lambda: waiting.looks >= 2, timeout=LONGEST_WAIT)
    publisher.publish("x")
    waiting.ended()


@hears
@pytest.mark.threads("asks the threads of the service")
def test_notify_false_tells_and_hears_nothing(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No connection more, no statement more."""
    service = make_service(notify=False)
    queue = service.create_queue("jobs")

    def refuse(*_: object) -> None:
        raise AssertionError("somebody was told")

    monkeypatch.setattr(type(service._parts.connections.dialect.notifications), "notify", refuse)
    queue.publish("x")
    [message] = queue.consume(wait=1)
    message.ack()
    assert [] == queue.consume(wait=0.05)
    assert service._parts.wakeups._running is None


@tells
@pytest.mark.threads("asks the threads of the service")
def test_a_burst_is_told_once(service: QueueService, monkeypatch: pytest.MonkeyPatch) -> None:
    """NOTIFY lets one committer through at a time, so it is sent seldom."""
    dialect = service._parts.connections.dialect
    queue = service.create_queue("jobs")
    told = 0
    tell = type(dialect.notifications).notify

    def noted(*arguments: object) -> None:
        nonlocal told
        told += 1
        tell(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(type(dialect.notifications), "notify", noted)
    began = time.monotonic()
    for _ in range(200):
        queue.publish("x")
    seconds = time.monotonic() - began
    assert 1 <= told <= seconds / 0.01 + 2


@hears
@pytest.mark.threads("waits in threads")
@pytest.mark.usefixtures("publisher")
def test_the_end_of_a_service_ends_its_watch(make_service: MakeService) -> None:
    """With its connection."""
    service = make_service()
    watched(service)
    running = service._parts.wakeups._running
    assert running is not None
    assert running.is_alive()
    service.stop()
    running.join(LONGEST_WAIT)
    assert not running.is_alive()


@pytest.mark.engines("sqlite")
@pytest.mark.threads("waits in threads")
@pytest.mark.usefixtures("publisher")
def test_the_end_of_a_service_ends_a_watch_that_has_no_connection(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it would not try again for a while."""
    monkeypatch.setattr("queue_over_sql.database.notify._FIRST_PAUSE", NEVER)
    service = make_service()
    queue = service.queue("jobs")
    refused = threading.Event()

    def refuse() -> None:
        refused.set()
        raise DatabaseUnavailable

    monkeypatch.setattr(service._parts.connections, "apart", refuse)
    wait_until(lambda: queue.consume(wait=0.05) == [] and refused.is_set(), timeout=LONGEST_WAIT)
    running = service._parts.wakeups._running
    assert running is not None
    assert running.is_alive()
    service.stop()
    running.join(LONGEST_WAIT)
    assert not running.is_alive()


@hears
@pytest.mark.threads("waits in threads")
def test_a_lost_watch_is_begun_again(
    publisher: Queue, make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that broke is replaced; meanwhile polling goes on."""
    monkeypatch.setattr("queue_over_sql.database.notify._FIRST_PAUSE", 0.05)
    service = make_service()
    waiting = Waiting(service.queue("jobs"))
    wakeups = service._parts.wakeups
    wait_until(lambda: wakeups._watch is not None, timeout=LONGEST_WAIT)
    watch: Any = wakeups._watch
    cut(watch)
    wait_until(lambda: wakeups._watch is not watch, timeout=LONGEST_WAIT)
    publisher.publish("x")
    waiting.ended()


@tells
@pytest.mark.threads("asks the threads of the service")
def test_what_is_told_is_taken_though_nobody_waits(
    publisher: Queue, make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it fills the server's room for it, and then no transaction that tells can commit."""
    monkeypatch.setattr("queue_over_sql.database.notify._WATCH_SECONDS", 0.05)
    monkeypatch.setattr("queue_over_sql.database.notify._IDLE_SECONDS", 0.05)
    service = make_service()
    watch = watched(service)
    wait, waits, taken = watch.wait, list[float](), list[str]()

    def noted(seconds: float, wanted: Callable[[str], bool]) -> bool:
        waits.append(seconds)
        return bool(wait(seconds, wanted))

    monkeypatch.setattr(watch, "wait", noted)
    service._parts.wakeups.wanted = lambda table: bool(taken.append(table))  # type: ignore[func-returns-value]
    # The watch that was on for the consumer ends first.
    wait_until(lambda: 0 in waits, timeout=LONGEST_WAIT)
    publisher.publish("x")
    wait_until(lambda: taken, timeout=LONGEST_WAIT)
    assert taken == [publisher.table.fullname]


@hears
@pytest.mark.threads("asks the threads of the service")
@pytest.mark.usefixtures("publisher")
def test_a_child_leaves_the_watch_of_its_parent_alone(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork shares the sockets: what the child wrote there would wake the parent for ever."""
    service = make_service()
    watched(service)
    wakeups = service._parts.wakeups
    # As a child finds it, which stops before it has a connection of its own.
    monkeypatch.setattr(wakeups, "_pid", 0)
    monkeypatch.setattr("queue_over_sql.database.notify._Listener.run", lambda _: None)
    wakeups.listen()
    assert wakeups._watch is None
