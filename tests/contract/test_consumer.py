"""Heartbeats, and the effect of missing ones."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import column, table, text, update

from queue_over_sql import (
    ClaimLost,
    ConsumerExpired,
    DatabaseUnavailable,
    HandledQueue,
    __version__,
)
from queue_over_sql.consumers import consumer, handling, registrations
from queue_over_sql.database import repetition
from queue_over_sql.dialects.sqlite.hooks import SQLiteHooks
from queue_over_sql.errors import Locked
from queue_over_sql.service import parts_of
from queue_over_sql.values.limits import HANDLES_LENGTH
from tests.contract.queue_state import counts, ids, live_rows, payloads
from tests.contract.worker.running_worker import running
from tests.forks import in_a_child
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from sqlalchemy import Engine

    from queue_over_sql import Message, QueueService
    from queue_over_sql.testing.plugin import MakeService

consumers = table("queue_over_sql_consumers", column("consumer_id"), column("expires_at"))


def expire(engine: Engine, consumer_id: str | None) -> None:
    """Make a consumer's row look like that of a dead one."""
    change = update(consumers).where(consumers.c.consumer_id == consumer_id)
    with engine.begin() as connection:
        connection.execute(change.values(expires_at=1))


@contextmanager
def no_heartbeats(engine: Engine) -> Iterator[None]:
    """Take the consumers' table away, so that no heartbeat can be written."""

    def rename(old: str, new: str) -> None:
        with engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))

    rename("queue_over_sql_consumers", "taken_away")
    try:
        yield
    finally:
        rename("taken_away", "queue_over_sql_consumers")


def heartbeat_of(service: QueueService) -> datetime:
    """When a service's own consumer was renewed last."""
    own = (one for one in service.consumers() if one.consumer_id == service.consumer_id)
    return next(own).heartbeat_at


def test_the_consumer_timeout_is_in_seconds(make_service: MakeService, engine: Engine) -> None:
    """The row lives as long as asked for, by the database's clock."""
    service = make_service(consumer_timeout=timedelta(seconds=90))
    service.create_queue("jobs").consume()
    with engine.connect() as connection:
        query = text("SELECT heartbeat_at, expires_at FROM queue_over_sql_consumers")
        heartbeat_at, expires_at = connection.execute(query).one()
    assert 90_000_000 == expires_at - heartbeat_at


def test_messages_of_an_expired_consumer_come_back(
    make_service: MakeService, engine: Engine
) -> None:
    """Dead by its row: a reaper restores its claims, and it is refused afterwards."""
    service = make_service(consumer_timeout=60)
    queue = service.create_queue("jobs", lease=600)
    queue.publish_many(["a", "b", "c"])
    taken = queue.consume(2)
    with make_service(reaper_interval=0.05) as reaper:
        expire(engine, service.consumer_id)
        wait_until(lambda: counts(queue) == (3, 0, 0))
        with pytest.raises(ClaimLost):
            queue.ack(taken)
        again = consume_exactly(reaper.queue("jobs"), 3)
        assert [("a", 2), ("b", 2), ("c", 1)] == [(one.payload, one.attempt) for one in again]


def test_messages_of_a_consumer_are_given_back_by_its_name(make_service: MakeService) -> None:
    """At once and uncounted, of all its queues; if it lives, it changes nothing and goes on."""
    gone, operator = make_service(), make_service()
    queues = [gone.create_queue(name) for name in ("jobs", "others")]
    for queue in queues:
        queue.publish_many(["a", "b"])
    taken = [queue.consume(2) for queue in queues]
    assert 4 == operator.release_consumer(str(gone.consumer_id))
    for queue, messages in zip(queues, taken, strict=True):
        again = consume_exactly(operator.queue(queue.name), 2)
        assert [("a", 1), ("b", 1)] == [(one.payload, one.attempt) for one in again]
        with pytest.raises(ClaimLost):
            queue.ack(messages)
        operator.queue(queue.name).ack(again)
    assert 1 == len(operator.consumers())


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_reaper_leaves_the_living_alone(make_service: MakeService, engine: Engine) -> None:
    """While heartbeats renew the consumer's one row, its claims are kept beyond its timeout."""
    # Long enough that a busy machine does not end it.
    service = make_service(consumer_timeout=5)
    queue = service.create_queue("jobs", lease=600)
    queue.publish("x")
    taken = queue.consume()
    before, first = live_rows(engine, queue), heartbeat_of(service)
    with make_service(reaper_interval=0.05):
        late = first + timedelta(seconds=6)
        wait_until(lambda: heartbeat_of(service) > late, timeout=60)
    assert 1 == sum(one.consumer_id == service.consumer_id for one in service.consumers())
    assert before == live_rows(engine, queue)
    queue.ack(taken)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_consumer_without_heartbeat_fences_itself_and_goes_on(
    make_service: MakeService, engine: Engine
) -> None:
    """Past its own deadline it refuses to settle; the next consume has a new identity."""
    # Long enough that its second life lasts on a busy machine, too.
    service = make_service(consumer_timeout=4)
    queue = service.create_queue("jobs", lease=600)
    queue.publish_many(list(range(4)))
    first, second, third = queue.consume(), queue.consume(), queue.consume()
    before = live_rows(engine, queue)

    def refused() -> bool:
        try:
            third[0].extend()
        except ConsumerExpired:
            return True
        return False

    with no_heartbeats(engine):
        wait_until(refused, timeout=20)
        for verb in (queue.ack, queue.nack, queue.release):
            with pytest.raises(ConsumerExpired) as caught:
                verb([*first, *second])
            assert ids([*first, *second]) == ids(caught.value.messages)
        assert before[:2] == live_rows(engine, queue)[:2]
    with make_service(reaper_interval=0.05):
        again = consume_exactly(queue, 4)
    assert {service.consumer_id} == {message.consumer_id for message in again}
    assert service.consumer_id != first[0].consumer_id
    assert [0, 1, 2, 3] == sorted(payloads(again))
    rounds = [message.consumer_round or 0 for message in again]
    assert min(rounds) < (third[0].consumer_round or 0)
    for lost in (first, second, third):
        with pytest.raises(ClaimLost):
            queue.ack(lost)
    queue.ack(again)
    assert (0, 0, 0) == counts(queue)


# Of the file, of the table, or of its rows.
LOCKS = {
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": "LOCK TABLE queue_over_sql_consumers",
    "mysql": "LOCK TABLES queue_over_sql_consumers WRITE",
    "mariadb": "SELECT * FROM queue_over_sql_consumers FOR UPDATE",
    "h2": "SELECT * FROM queue_over_sql_consumers FOR UPDATE",
}


@contextmanager
def locked_consumers(engine: Engine) -> Iterator[None]:
    """Lock all consumers in another transaction."""
    statement = LOCKS[engine.dialect.name]
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if not statement.startswith(("BEGIN", "LOCK TABLES")):
            connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql(statement).close()
        try:
            yield
        finally:
            connection.exec_driver_sql("ROLLBACK")
            if statement.startswith("LOCK TABLES"):
                connection.exec_driver_sql("UNLOCK TABLES")


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_a_heartbeat_that_failed_is_tried_again_soon(
    make_service: MakeService,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Three failures do not expire a consumer that would be dead at its third regular heartbeat."""
    caplog.set_level(logging.INFO)
    service = make_service(consumer_timeout=6)
    queue = service.create_queue("jobs")
    queue.publish("x")
    (taken,) = queue.consume()
    renew, tries = registrations.renew, threading.Semaphore(0)

    def counted(*arguments: Any, **handles: Any) -> bool:
        tries.release()
        return renew(*arguments, **handles)

    monkeypatch.setattr(registrations, "renew", counted)
    with no_heartbeats(engine):
        for _ in range(3):
            assert tries.acquire(timeout=20)
    wait_until(lambda: "The heartbeat continues" in caplog.text, timeout=20)
    assert 1 == caplog.text.count("The heartbeat waits")
    taken.ack()
    assert service.consumer_id == taken.consumer_id


@pytest.mark.threads("the wait is the database's")
def test_a_lock_on_the_consumers_is_nobodys_death(
    make_service: MakeService,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Heartbeats wait for a lock for longer than the timeout, and a handler keeps its message.

    No reaper takes it, neither while the lock is held nor after that, and the consumer lives on.
    The database answers all the time, so no connection is closed.
    """
    # Shorter than the lock is held.
    monkeypatch.setattr("queue_over_sql.database.watchdog._LEAST_SECONDS", 3.5)
    service = make_service(consumer_timeout=3)
    queue = service.create_queue("jobs", lease=600)
    message = queue.publish("x")
    begun, go_on = threading.Event(), threading.Event()
    attempts: list[int] = []
    worker = service.worker(concurrency=1, poll_interval=(0.01, 0.1))

    @worker.handle("jobs")
    def handle(message: Message) -> None:
        attempts.append(message.attempt)
        begun.set()
        assert go_on.wait(60)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.run)
        try:
            assert begun.wait(60)
            former = service.consumer_id
            reaper = make_service(consumer_timeout=3, reaper_interval=0.05)
            with reaper:
                before = heartbeat_of(service)
                with locked_consumers(engine):
                    until = time.monotonic() + 4.5
                    wait_until(lambda: time.monotonic() > until)
                wait_until(lambda: heartbeat_of(service) > before + timedelta(seconds=4.5))
                reaper.reap()
                assert [] == reaper.queue("jobs").consume()
                go_on.set()
                wait_until(lambda: counts(queue) == (0, 0, 0), timeout=20)
            assert former == service.consumer_id
        finally:
            go_on.set()
            worker.stop()
            running.result(60)
    assert [1] == attempts
    assert message.id not in ids(queue.messages().list())
    assert "connections to it are closed" not in caplog.text


@pytest.mark.engines("sqlite")
@pytest.mark.threads("the wait is the database's")
def test_a_heartbeat_that_waited_beyond_the_timeout_for_a_lock_keeps_its_claims(
    make_service: MakeService, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """A second passes before it knows of the lock; by then a short timeout is over."""
    service = make_service(consumer_timeout=0.9)
    queue = service.create_queue("jobs", lease=600)
    queue.publish("x")
    (message,) = queue.consume()
    before = heartbeat_of(service)
    with locked_consumers(engine):
        wait_until(lambda: "The heartbeat waits" in caplog.text, timeout=20)
    wait_until(lambda: heartbeat_of(service) > before + timedelta(seconds=1))
    message.ack()
    assert message.consumer_id == service.consumer_id


@pytest.mark.engines("mariadb", "h2")
@pytest.mark.threads("the wait is the database's")
def test_who_was_locked_gets_time_from_when_it_is_free(
    make_service: MakeService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reaper that saw a consumer's row locked declares no death as soon as it sees it free."""
    service, reaper = make_service(consumer_timeout=60), make_service(consumer_timeout=3)
    service.create_queue("jobs").consume()
    deaths = parts_of(reaper).consumer.deaths
    with engine.begin() as connection:
        # Overdue, and not declared dead.
        connection.execute(update(consumers).values(expires_at=2))
    now = [0.0]
    monkeypatch.setattr(deaths, "_clock", lambda: now[0])
    with locked_consumers(engine):
        assert [] == deaths.declare()
    for seconds, dead in ((0.5, []), (1.0, []), (0.5, []), (1.0, [service.consumer_id])):
        now[0] += seconds * deaths.grace
        assert dead == deaths.declare()


@pytest.mark.engines("sqlite")
@pytest.mark.threads("the wait is the database's")
@pytest.mark.parametrize("verb", ["consume", "exchange"])
def test_a_claim_that_waited_beyond_the_timeout_counts_no_attempt(
    make_service: MakeService, engine: Engine, verb: str
) -> None:
    """Another one locks the file for so long that heartbeats and claims wait.

    The late claim is given back and made again. A message with a single attempt became a dead
    letter though no handler had begun.
    """
    service = make_service(consumer_timeout=1.0)
    queue = service.create_queue("jobs", max_attempts=1)
    queue.publish("finished")
    finished = queue.consume()
    queue.publish("waiting")
    former = service.consumer_id
    got: list[Message] = []
    with contextlib.closing(sqlite3.connect(str(engine.url.database), isolation_level=None)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        claim = queue.consume if verb == "consume" else partial(queue.exchange, finished)
        thread = threading.Thread(target=lambda: got.extend(claim(1)))
        thread.start()
        wait_until(lambda: not queue.holds(finished[0]))
        raw.execute("ROLLBACK")
    thread.join(30)
    assert [("waiting", 1)] == [(one.payload, one.attempt) for one in got]
    assert former != got[0].consumer_id
    assert service.consumer_id == got[0].consumer_id
    queue.ack(got)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_one_registers_for_all_who_wait(
    make_service: MakeService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one caller finds unreachable no other one tries again in turn: a stop would wait."""
    monkeypatch.setattr(SQLiteHooks._until_timeout, "__defaults__", (1.0,))
    monkeypatch.setattr(repetition, "CONFLICT_SECONDS", 1.0)
    service = make_service()
    queues = [service.create_queue(f"q{n}") for n in range(6)]
    tries: list[float] = []
    register = consumer.Consumer._register

    def counted(self: consumer.Consumer) -> Any:
        tries.append(time.monotonic())
        return register(self)

    monkeypatch.setattr(consumer.Consumer, "_register", counted)

    def consume(queue: Any) -> str:
        with pytest.raises(DatabaseUnavailable) as caught:
            queue.consume()
        return str(caught.value)

    with ThreadPoolExecutor(6) as threads:
        with contextlib.closing(sqlite3.connect(str(engine.url.database))) as other:
            other.execute("BEGIN IMMEDIATE")
            told = list(threads.map(consume, queues))
        assert len(tries) < len(queues)
        assert 1 == len(set(told))
        assert "locked" in told[0]
        assert [[]] * 6 == list(threads.map(lambda queue: queue.consume(), queues))


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_an_identity_that_was_found_late_does_not_live_again(
    make_service: MakeService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a heartbeat comes after the deadline, and a message was refused meanwhile.

    It is delivered again when the registration ends, and not only when its lease does.
    """
    ahead, renew = 0.0, registrations.renew
    monkeypatch.setattr(consumer, "elapsed_clock", lambda: time.monotonic() + ahead)
    service = make_service(consumer_timeout=30)
    queue = service.create_queue("jobs", lease=600)
    queue.publish("x")
    (taken,) = queue.consume()

    def answered_late(*arguments: Any, **handles: Any) -> bool:
        nonlocal ahead
        renewed = renew(*arguments, **handles)
        ahead = 31.0
        with pytest.raises(ConsumerExpired):
            taken.ack()
        return renewed

    monkeypatch.setattr(registrations, "renew", answered_late)
    ahead = 20.0
    parts_of(service).consumer.heartbeat()
    monkeypatch.setattr(registrations, "renew", renew)
    with pytest.raises(ConsumerExpired):
        taken.ack()
    assert [] == queue.consume()
    assert service.consumer_id != taken.consumer_id
    expire(engine, taken.consumer_id)
    with make_service(reaper_interval=0.05):
        (again,) = consume_exactly(queue, 1)
    assert 2 == again.attempt
    again.ack()


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_a_lock_revives_nobody_who_was_suspended(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process was stopped for longer than its timeout, and then its heartbeat met a lock.

    Others may have its messages by then, so it begins no handler and settles nothing.
    """
    ahead = 0.0
    monkeypatch.setattr(consumer, "elapsed_clock", lambda: time.monotonic() + ahead)
    service = make_service(consumer_timeout=3)
    queue = service.create_queue("jobs", lease=600)
    queue.publish("x")
    (taken,) = queue.consume()

    def locked(*_: Any, **__: Any) -> bool:
        nonlocal ahead
        ahead = 4.0
        raise Locked("another one writes")

    monkeypatch.setattr(registrations, "renew", locked)
    parts_of(service).consumer.heartbeat()
    assert not queue.holds(taken)
    with pytest.raises(ConsumerExpired):
        taken.ack()


def handled(looking: QueueService, service: QueueService) -> tuple[HandledQueue, ...]:
    """What a service is said to handle, as another one reads it."""
    (own,) = [one for one in looking.consumers() if one.consumer_id == service.consumer_id]
    return own.handles


@pytest.mark.threads("tests/aio/test_worker.py has what an asynchronous worker says")
def test_consumers_say_what_they_handle(
    make_service: MakeService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker from its start to its end; a program with its own loop for five minutes."""
    looking = make_service()
    looking.create_queue("jobs")
    service = make_service()
    service.create_queue("jobs", kinds={"Order": dict})
    service.create_queue("mail")
    service.start()
    beat = parts_of(service).consumer.heartbeat
    assert () == handled(looking, service)
    # A loop is known by its first claim, before it says so itself.
    loop = HandledQueue("jobs", kinds=("Order",))
    assert [] == service.queue("jobs").consume()
    assert (loop,) == handled(looking, service)
    begun, go_on = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        del message
        begun.set()
        go_on.wait(60)

    # The second one ends before a heartbeat.
    for beats in (True, False):
        begun.clear()
        go_on.clear()
        service.queue("mail").publish("x")
        worker = service.worker(concurrency=3)
        worker.handle("mail")(handle)
        with running(worker):
            assert begun.wait(60)
            assert (loop, HandledQueue("mail", 3)) == handled(looking, service)
            if beats:
                beat()
                assert (loop, HandledQueue("mail", 3)) == handled(looking, service)
                assert __version__ == looking.consumers()[-1].version
            go_on.set()
        beat()
        assert (loop,) == handled(looking, service)
    monkeypatch.setattr(handling, "_LATELY_SECONDS", -1.0)
    beat()
    assert () == handled(looking, service)
    monkeypatch.undo()
    with engine.begin() as connection:
        assert [] == service.queue("mail").take(connection=connection)
    beat()
    assert (loop, HandledQueue("mail")) == handled(looking, service)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_what_a_consumer_handles_has_a_bound() -> None:
    """Of many queues the first ones are named, and the reader knows that there are more."""
    handles = handling.Handling("queue_")
    for number in range(300):
        handles.asked(f"jobs_{number:03}", ("Order",))
    said = handling.read(handles.text())
    assert said is not None
    assert len(handles.text()) <= HANDLES_LENGTH
    assert (HandledQueue("jobs_000"), False) == (said.handles[0], said.whole)
    assert len(said.handles) > 100
    assert [None] * 4 == [handling.read(text) for text in (None, "", "[1", '{"queues": 1}')]


@pytest.mark.engines("sqlite")
@pytest.mark.threads("an event loop does not outlive a fork")
def test_a_forked_child_handles_nothing_of_its_parent() -> None:
    """Even if another thread of the parent looks at that just now."""
    handles = handling.Handling("queue_")
    handles.begin("a worker", 4, {"jobs": ()})
    handles.asked("mail", ())
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with handles._lock:
            held.set()
            over.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    said = in_a_child(lambda: (found := handling.read(handles.text())) and found.handles == ())
    over.set()
    holder.join()
    assert said
    known = handling.read(handles.text())
    assert known is not None
    assert (HandledQueue("jobs", 4), HandledQueue("mail")) == known.handles
