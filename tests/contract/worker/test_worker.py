"""The worker: handlers, retries, transactions, long work and draining."""

from __future__ import annotations

import contextvars
import itertools
import logging
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import MetaData, Table, select

from queue_over_sql import DatabaseRefused, FixedDelay
from queue_over_sql.consumers import handling
from queue_over_sql.queue import QueueCore
from queue_over_sql.service import parts_of
from tests.contract.queue_state import archived, counts
from tests.contract.worker.running_worker import HandlerFailed, running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import MakeService
    from queue_over_sql.worker.worker import Worker


def test_a_handled_message_is_acked(worker: Worker, outside: Queue) -> None:
    """Each message is handled once and gone; run ends after stop."""
    seen: list[int] = []

    @worker.handle("jobs")
    def work(message: Message) -> None:
        seen.append(message.payload)

    outside.publish_many(list(range(20)))
    with running(worker):
        wait_until(lambda: len(seen) == 20)
        outside.publish(99)
        wait_until(lambda: len(seen) == 21)
    assert sorted(seen[:20]) == list(range(20))
    assert [99] == seen[20:]
    assert (0, 0, 0) == counts(outside)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("runs the worker in the main thread, which its loop of tests is not")
def test_a_worker_takes_signals_only_when_it_is_told_to(
    make_service: MakeService, outside: Queue
) -> None:
    """The program around it keeps its own handlers, also in the main thread, and afterwards."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    for signals in (False, True):
        found: list[object] = []
        worker = make_service().worker(concurrency=1)

        @worker.handle("jobs")
        def look(message: Message, worker: Worker = worker, found: list[object] = found) -> None:
            assert 1 == message.payload
            found.extend(signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT))
            worker.stop()

        outside.publish(1)
        worker.run(signals=signals)
        assert signals is (found != before), f"signals={signals}"
        assert 2 == len(found)
    assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]


@pytest.mark.engines("sqlite")
@pytest.mark.threads("tests/aio/test_worker.py has the case of coroutines")
def test_context_variables_of_one_message_are_not_seen_by_the_next(
    make_service: MakeService, outside: Queue
) -> None:
    """Each call has a fresh context, in which middleware and handler see each other's variables."""
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
    forms: list[dict[str, object]] = [
        {},
        {"batch": 1},
        {"transactional": True},
        {"transactional": True, "commit_every": 4},
    ]
    for form in forms:
        seen: list[str] = []

        def around(_: object, call: Callable[[], None], seen: list[str] = seen) -> None:
            seen.append(tenant.get())
            tenant.set("middleware")
            call()
            seen.append(tenant.get())

        def work(*_: object, seen: list[str] = seen) -> None:
            seen.append(tenant.get())
            tenant.set("handler")

        worker = make_service().worker(concurrency=1, middleware=[around])
        worker.handle("jobs", **form)(work)  # type: ignore[call-overload] # any form
        outside.publish_many(range(4))
        worker.run(until_empty=True)
        assert ["nobody", "middleware", "handler"] * 4 == seen, form


@pytest.mark.engines("sqlite")
def test_several_queues_are_served_by_their_own_handlers(
    worker: Worker, outside: Queue, make_service: MakeService
) -> None:
    """A worker has one handler for each queue."""
    other = make_service().create_queue("other")
    seen: set[tuple[str, str]] = set()

    @worker.handle("jobs")
    def work(message: Message) -> None:
        seen.add(("jobs", message.payload))

    @worker.handle("other")
    def other_work(message: Message) -> None:
        seen.add(("other", message.payload))

    outside.publish("a")
    other.publish("b")
    with running(worker):
        wait_until(lambda: len(seen) == 2)
    assert {("jobs", "a"), ("other", "b")} == seen


@pytest.mark.engines("sqlite")
def test_handlers_run_side_by_side(worker: Worker, outside: Queue) -> None:
    """With a concurrency of two, two handlers meet."""
    meeting = threading.Barrier(2, timeout=5)

    @worker.handle("jobs")
    def work(message: Message) -> None:
        del message
        meeting.wait()

    outside.publish_many(["a", "b"])
    with running(worker):
        wait_until(lambda: outside.messages().count() == 0)
    assert not meeting.broken


def test_a_failing_handler_is_retried_then_dead_lettered(worker: Worker, outside: Queue) -> None:
    """Each failure is an attempt; the archive has the last error; others are not disturbed."""
    attempts: list[int] = []

    @worker.handle("jobs")
    def work(message: Message) -> None:
        if message.payload == "bad":
            attempts.append(message.attempt)
            raise HandlerFailed("paper jam")

    outside.publish_many(["good", "bad", "good"])
    with running(worker):
        wait_until(lambda: counts(outside) == (0, 0, 1))
    (dead,) = archived(outside)
    assert [1, 2, 3] == attempts
    assert "bad" == dead.payload
    assert "failed" == dead.outcome
    assert 3 == dead.attempt
    assert dead.last_error is not None
    assert "paper jam" in dead.last_error


@pytest.mark.engines("sqlite")
def test_a_handler_may_settle_by_itself(worker: Worker, outside: Queue) -> None:
    """A handler that rejected or released its message is not acked over."""

    @worker.handle("jobs")
    def work(message: Message) -> None:
        message.reject("not mine")

    outside.publish_many(["a", "b"])
    with running(worker):
        wait_until(lambda: counts(outside) == (0, 0, 2))
    assert {"rejected"} == {str(message.outcome) for message in archived(outside)}


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release"])
def test_a_handler_that_settles_and_raises_has_lost_no_claim(
    worker: Worker, outside: Queue, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    """What it has committed stays, and its error is logged; the worker does not nack it again."""

    @worker.handle("jobs")
    def work(message: Message) -> None:
        given: dict[str, Any] = {"reject": {"reason": "no"}, "ack": {}}.get(verb, {"delay": 3600})
        getattr(message, verb)(**given)
        raise HandlerFailed

    outside.publish("once")
    with caplog.at_level(logging.WARNING, "queue_over_sql"), running(worker, until_empty=True):
        pass
    assert {"ack": 0, "nack": 1, "reject": 0, "release": 1}[verb] == outside.stats().live
    assert [HandlerFailed] == [each.exc_info and each.exc_info[0] for each in caplog.records]


def test_a_stop_drains(worker: Worker, outside: Queue) -> None:
    """What is in work is finished and acked; what is not begun goes back uncounted."""
    begun, stopped, finished = threading.Event(), threading.Event(), threading.Event()

    @worker.handle("jobs")
    def work(message: Message) -> None:
        del message
        begun.set()
        assert stopped.wait(30)
        finished.set()

    outside.publish_many(list(range(30)))
    with running(worker):
        assert begun.wait(30)
        worker.stop()
        stopped.set()
    assert finished.is_set()
    ready, claimed, archived_count = counts(outside)
    assert 0 == claimed
    assert 0 == archived_count
    assert 0 < ready < 30
    assert {1} == {message.attempt for message in outside.consume(30)}


@pytest.mark.engines("sqlite")
def test_a_worker_stopped_before_it_ran_ends_at_once(worker: Worker, outside: Queue) -> None:
    """A stop is not forgotten, and stopping twice is allowed."""

    @worker.handle("jobs")
    def work(message: Message) -> None:
        del message

    with running(worker):
        worker.stop()
        worker.stop()
    assert (0, 0, 0) == counts(outside)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("a hanging start would hold up the loop")
def test_a_worker_that_is_aborted_while_it_starts_handles_nothing(
    make_service: MakeService, outside: Queue
) -> None:
    """Its start goes on beside it, but its consumer does not say that it handles the queue."""
    service = make_service()
    worker = service.worker(concurrency=1)
    worker.handle(outside.name)(lambda _: None)
    reached, go_on = threading.Event(), threading.Event()

    def start() -> None:
        reached.set()
        go_on.wait(60)

    worker._start_service = start
    with running(worker):
        assert reached.wait(60)
        worker.abort()
    (left,) = [each for each in threading.enumerate() if each.name.endswith("-worker-start")]
    go_on.set()
    left.join(60)
    said = handling.read(parts_of(service).consumer.handling.text())
    assert said is not None
    assert () == said.handles


@pytest.mark.engines("sqlite")
def test_a_paused_queue_is_not_handled_until_resumed(worker: Worker, outside: Queue) -> None:
    """The worker goes on by itself when the queue is resumed."""
    seen: list[str] = []

    @worker.handle("jobs")
    def work(message: Message) -> None:
        seen.append(message.payload)

    outside.pause()
    outside.publish("x")
    with running(worker):
        time.sleep(0.05)
        assert [] == seen
        outside.resume()
        wait_until(lambda: seen == ["x"], timeout=8)


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("ack", ["batch", "each"])
def test_what_is_handled_is_kept_whatever_error_its_ack_raises(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch, ack: Any
) -> None:
    """Errors that the library does not know make no handled message run again."""
    failures = itertools.cycle(
        [EOFError("0 bytes read"), None, AttributeError("no reader"), None, DatabaseRefused("full")]
    )

    def failing(verb: Callable[..., Any]) -> Callable[..., Any]:
        def fail(messages: Any, *rest: Any, **options: Any) -> Any:
            if messages and (failure := next(failures)) is not None:
                raise failure
            return verb(messages, *rest, **options)

        return fail

    made = QueueCore.__init__

    def make(core: QueueCore, *rest: Any, **options: Any) -> None:
        made(core, *rest, **options)
        core.ack, core.exchange = failing(core.ack), failing(core.exchange)  # type: ignore[method-assign]

    monkeypatch.setattr(QueueCore, "__init__", make)
    monkeypatch.setattr("queue_over_sql.worker.acks._FIRST_AGAIN", 0.05)
    service = make_service(reaper_interval=0.1)
    queue = service.create_queue("jobs", lease=10.0, retry=FixedDelay(0))
    worker = service.worker(concurrency=2, poll_interval=(0.005, 0.05), ack=ack)
    seen: list[int] = []

    @worker.handle("jobs")
    def work(message: Message) -> None:
        seen.append(message.payload)

    queue.publish_many(list(range(30)))
    with running(worker):
        wait_until(lambda: counts(queue) == (0, 0, 0))
    assert sorted(seen) == list(range(30))


@pytest.mark.engines("sqlite")
@pytest.mark.threads("a trigger and plain SQL beside it")
def test_a_refused_ack_is_tried_again(make_service: MakeService, engine: Engine) -> None:
    """A handled message whose ack is refused for a while is not handled again."""
    service = make_service(reaper_interval=0.1)
    queue = service.create_queue("jobs", lease=1.0)
    worker = service.worker(concurrency=1, poll_interval=(0.005, 0.05))
    seen: list[int] = []

    @worker.handle("jobs")
    def work(message: Message) -> None:
        seen.append(message.payload)

    queue.publish(0)
    table = Table("queue_jobs", MetaData(), autoload_with=engine)
    leases = select(table.c.lease_expires_at)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            # Not a refusal of this row, which would be held then.
            "CREATE TRIGGER refusing BEFORE DELETE ON queue_jobs BEGIN SELECT missing(); END"
        )

    def lease() -> int:
        with engine.connect() as connection:
            return int(connection.execute(leases).scalar_one())

    with running(worker):
        wait_until(lambda: seen == [0])
        before = lease()
        # It outlasts its first lease.
        wait_until(lambda: lease() > before)
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP TRIGGER refusing")
        wait_until(lambda: counts(queue) == (0, 0, 0))
    assert [0] == seen
