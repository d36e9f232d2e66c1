"""A service's life: registered by its first consume or start, ended by its stop."""

from __future__ import annotations

import gc
import logging
import os
import socket
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import event

from queue_over_sql import QueueService, ServiceClosed
from queue_over_sql.database.sessions import ThreadSessions
from queue_over_sql.queue import core_of
from tests.contract.existing_tables.users_tables import Invoice, create_invoices, lose_columns
from tests.contract.queue_state import counts, live_rows, payloads
from tests.refusals import refused
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Queue
    from queue_over_sql.testing.plugin import MakeService, TestDatabase


def registered(service: QueueService) -> list[str]:
    """The ids of all consumers that a service sees."""
    return [str(consumer.consumer_id) for consumer in service.consumers()]


def test_a_service_registers_with_its_first_consume(make_service: MakeService) -> None:
    """Before it there is no consumer; after it all services see its facts, until its stop."""
    service, other = make_service(consumer_name="mailer"), make_service()
    queue = service.create_queue("jobs")
    queue.publish("x")
    assert service.consumer_id is None
    assert [] == other.consumers()
    queue.consume()
    (consumer,) = other.consumers()
    assert service.consumer_id == consumer.consumer_id
    assert "mailer" == consumer.name
    assert os.getpid() == consumer.pid
    assert consumer.host == socket.gethostname()
    service.stop()
    assert [] == other.consumers()


@pytest.mark.engines("sqlite")
def test_an_empty_consume_registers_too(service: QueueService, queue: Queue) -> None:
    """A consumer that found nothing is a consumer; to stop it twice is no error."""
    queue.consume()
    assert service.consumer_id is not None
    service.stop()
    service.stop()


@pytest.mark.engines("sqlite")
def test_starting_registers_and_is_idempotent(make_service: MakeService) -> None:
    """A second start changes nothing."""
    service = make_service()
    service.start()
    consumer_id = service.consumer_id
    service.start()
    assert consumer_id is not None
    assert [consumer_id] == registered(service)


def test_stopping_gives_the_claims_back_at_once(make_service: MakeService) -> None:
    """Unfinished messages are another's at once, at their place and uncounted.

    Who still holds one is told why it can settle nothing.
    """
    service, other = make_service(consumer_timeout=60), make_service()
    queue = service.create_queue("jobs", lease=600)
    queue.publish_many(["a", "b", "c"])
    held, _ = queue.consume(2)
    service.stop()
    with pytest.raises(ServiceClosed):
        held.ack()
    again = other.queue("jobs").consume(3)
    assert [("a", 1), ("b", 1), ("c", 1)] == [(one.payload, one.attempt) for one in again]


def test_a_queue_that_cannot_be_served_keeps_no_other_from_being_released(
    make_service: MakeService, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named in the log; its table lost its columns."""
    create_invoices(engine, 1)
    service, other = make_service(consumer_timeout=60), make_service()
    billing = service.adopt_queue("billing", Invoice)
    queue = service.create_queue("jobs", lease=600)
    billing.enqueue()
    queue.publish("a")
    assert 1 == len(billing.consume())
    assert 1 == len(queue.consume())
    lose_columns(engine)
    service.stop()
    assert ["a"] == payloads(other.queue("jobs").consume())
    [told] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "could not release its messages of queue billing" in told


CLOSED_VERBS: dict[str, Callable[[QueueService, Queue], object]] = {
    "start": lambda service, _: service.start(),
    "create_queue": lambda service, _: service.create_queue("more"),
    "queue": lambda service, _: service.queue("jobs"),
    "queues": lambda service, _: service.queues(),
    "consumers": lambda service, _: service.consumers(),
    "publish": lambda _, queue: queue.publish("x"),
    "publish_many": lambda _, queue: queue.publish_many(["x"]),
    "consume": lambda _, queue: queue.consume(),
    "stats": lambda _, queue: queue.stats(),
}


@pytest.mark.engines("sqlite")
def test_a_stop_is_final(service: QueueService, queue: Queue) -> None:
    """Every verb of a stopped service says that it is stopped."""
    service.stop()
    for name, verb in CLOSED_VERBS.items():
        with refused(name, ServiceClosed):
            verb(service, queue)


@pytest.mark.engines("sqlite")
def test_stopping_a_service_never_used_is_allowed(database: TestDatabase) -> None:
    """Neither a start nor a connection is needed before."""
    unused = QueueService(database.url)
    unused.stop()
    unused.stop()


@pytest.mark.engines("sqlite")
def test_the_context_manager_starts_and_stops(make_service: MakeService) -> None:
    """Inside the block the service is a consumer, after it closed."""
    with make_service() as service:
        queue = service.create_queue("jobs")
        queue.publish("x")
        assert ["x"] == payloads(queue.consume())
        assert [service.consumer_id] == registered(service)
    with pytest.raises(ServiceClosed):
        queue.consume()


@pytest.mark.default_on("sqlite", "postgresql")
@pytest.mark.threads("makes a synchronous service")
def test_a_given_engine_is_used_and_left_alone(database: TestDatabase, engine: Engine) -> None:
    """A service on the user's own engine works, and its stop does not dispose that engine."""
    service, pool = QueueService(engine), engine.pool
    try:
        queue = service.create_queue("jobs")
        queue.publish(database.engine)
        queue.consume()[0].ack()
    finally:
        service.stop()
    assert engine.pool is pool
    assert [] == live_rows(engine, queue)


def _held() -> tuple[int, int]:
    """The files and sockets that this process has open, and our threads."""
    gc.collect()
    ours = [each for each in threading.enumerate() if each.name.startswith("queue-over-sql")]
    return len(list(Path("/proc/self/fd").iterdir())), len(ours)


def _use(database: TestDatabase) -> None:
    service = QueueService(database.url, consumer_timeout=3)
    queue = service.create_queue("jobs")
    queue.publish("x")
    queue.ack(queue.consume())
    # Its thread listens for messages of others.
    queue.consume(wait=0.01)


@pytest.mark.threads("an event loop ends its services")
def test_a_forgotten_service_holds_nothing(
    database: TestDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connections and threads end with it, without stop(); and nothing is logged about that."""
    # Each look collects what was made from here on, and not all that the other tests have imported.
    gc.collect()
    gc.freeze()
    try:
        _use(database)
        wait_until(lambda: _held()[1] == 0)
        files, _ = _held()
        caplog.clear()
        for _ in range(5):
            _use(database)
        wait_until(lambda: _held()[1] == 0)
        wait_until(lambda: _held()[0] <= files)
    finally:
        gc.unfreeze()
    assert [] == [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]


@pytest.mark.engines("sqlite")
@pytest.mark.threads("an event loop ends its services")
def test_a_started_service_serves_until_its_stop(database: TestDatabase, engine: Engine) -> None:
    """Its reaper works for all processes, although this one keeps no reference to it."""

    def begin() -> weakref.ref[QueueService]:
        service = QueueService(database.url, reaper_interval=0.05)
        queue = service.create_queue("jobs")
        queue.publish("x")
        queue.consume(lease=0.05)
        service.start()
        return weakref.ref(service)

    started = begin()
    gc.collect()
    queue = QueueService(database.url).queue("jobs")
    wait_until(lambda: counts(queue) == (1, 0, 0))
    service = started()
    assert service is not None
    service.stop()
    del service
    wait_until(lambda: gc.collect() >= 0 and started() is None)
    assert 1 == len(live_rows(engine, queue))


@pytest.mark.engines("sqlite")
@pytest.mark.threads("an event loop ends its services")
def test_a_queue_keeps_the_heartbeat_of_a_forgotten_service(database: TestDatabase) -> None:
    """Whoever holds a queue or a message still is a living consumer."""

    def begin() -> Queue:
        # A second may pass on a busy machine before the first heartbeat.
        queue = QueueService(database.url, consumer_timeout=6).create_queue("jobs")
        queue.publish("x")
        return queue

    queue = begin()
    (message,) = queue.consume()
    identity = core_of(queue).context.consumer.identity()
    registered_until = identity.deadline
    del queue
    gc.collect()
    # A heartbeat is sent, and not only awaited.
    wait_until(lambda: identity.deadline > registered_until)
    message.ack()


@pytest.mark.engines("sqlite")
@pytest.mark.threads("once is enough")
def test_a_program_that_makes_many_services_is_warned_once(
    database: TestDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that were stopped do not count."""
    for _ in range(30):
        QueueService(database.url).stop()
    assert [] == caplog.messages
    for _ in range(60):
        QueueService(database.url)
    (text,) = caplog.messages
    assert "Make one QueueService for the whole process" in text


@pytest.mark.engines("sqlite")
@pytest.mark.threads("an event loop has no threads of its own")
def test_sessions_of_ended_threads_are_used_again(service: QueueService) -> None:
    """Threads that come and go open no connection each; after a crowd, few are kept."""
    queue = service.create_queue("jobs")
    opened: list[object] = []
    engine = service._parts.connections.engine
    event.listen(engine, "connect", lambda connection, _: opened.append(connection))
    for _ in range(20):
        thread = threading.Thread(target=queue.stats)
        thread.start()
        thread.join()
    assert len(opened) <= 1
    together = threading.Barrier(20)

    def use() -> None:
        queue.stats()
        together.wait(30)

    crowd = [threading.Thread(target=use) for _ in range(20)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert 20 == len(opened)
    for _ in range(20):
        queue.stats()
    sessions = service._parts.connections._sessions
    assert isinstance(sessions, ThreadSessions)
    assert 8 == len(sessions._left)


@pytest.mark.threads("an event loop starts no threads")
def test_a_stop_at_the_end_of_the_interpreter_gives_back(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Python 3.12 on no thread can start then, and the stop does its work itself."""
    service, other = make_service(), make_service()
    queue = service.create_queue("jobs")
    queue.publish("x")
    queue.consume()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        service.stop()
    assert [] == other.consumers()
    assert 1 == other.queue("jobs").stats().ready
