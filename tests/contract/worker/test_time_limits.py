"""Time limits of handlers, cancelled messages, and what a hanging handler can still do."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import ClaimLost, FixedDelay, QueueError
from queue_over_sql.worker import threads
from tests.contract.queue_state import add_effect, archived, counts, effect_count
from tests.contract.worker.running_worker import running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import MakeService
    from queue_over_sql.worker.worker import Worker

pytestmark = pytest.mark.default_on("sqlite", "postgresql")

LIMIT = 0.6
# By then a handler has sent its first statements, also on a slow machine.
BY_THEN = 2.0
TIMED_OUT = f"timed out after {LIMIT * 1000:g} ms"


@pytest.fixture
def end() -> Iterator[threading.Event]:
    """What handlers that hang wait for; it comes when the test is over."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def kept(make_service: MakeService) -> Queue:
    """A queue that keeps what is done, and tries again at once."""
    return make_service().create_queue(
        "kept", retry=FixedDelay(0), max_attempts=3, archive="all", lease=60
    )


@pytest.fixture
def single(make_service: MakeService, kept: Queue) -> Worker:
    """A worker of one thread on a service of its own, not yet running."""
    assert "kept" == kept.name
    return make_service().worker(concurrency=1, poll_interval=(0.005, 0.05))


def fates(queue: Queue) -> dict[object, tuple[str, int, str | None]]:
    """How each message ended, at which attempt, and the last failure."""
    return {m.payload: (str(m.outcome), m.attempt, m.last_error) for m in archived(queue)}


def test_a_handler_that_hangs_loses_its_message(
    single: Worker, kept: Queue, end: threading.Event
) -> None:
    """It is nacked with the reason, a fresh thread goes on, and a late ack is refused."""
    late: list[tuple[bool, bool]] = []

    @single.handle("kept", timeout=LIMIT)
    def work(message: Message) -> None:
        if message.payload == "hangs" and message.attempt == 1:
            before = message.cancelled
            end.wait(60)
            late.append((before, message.cancelled))
            with pytest.raises(ClaimLost):
                message.ack()
            late.append((False, True))

    kept.publish_many(["hangs", "next"])
    with running(single):
        wait_until(lambda: counts(kept) == (0, 0, 2))
        assert {"hangs": ("done", 2, TIMED_OUT), "next": ("done", 1, None)} == fates(kept)
        end.set()
        wait_until(lambda: len(late) == 2)
        kept.publish("after")
        wait_until(lambda: counts(kept) == (0, 0, 3))
    assert [(False, True)] * 2 == late


def test_a_message_that_always_hangs_is_a_dead_letter(
    single: Worker, kept: Queue, end: threading.Event
) -> None:
    """Each time counts as an attempt."""

    @single.handle("kept", timeout="600ms")
    def work(message: Message) -> None:
        if message.payload == "hangs":
            end.wait(60)

    kept.publish_many(["hangs", "next"])
    with running(single):
        wait_until(lambda: counts(kept) == (0, 0, 2))
    assert {"hangs": ("failed", 3, TIMED_OUT), "next": ("done", 1, None)} == fates(kept)


@pytest.mark.default_on("sqlite", "postgresql", "mysql", "mariadb", "h2")
def test_a_transaction_of_a_handler_that_hangs_is_broken_off(
    single: Worker, kept: Queue, effects_engine: Engine, end: threading.Event
) -> None:
    """Although it has the message's row locked, somebody else gets the message at once.

    Nothing that the handler did or does on its connection stays.
    """
    late: list[str] = []

    @single.handle("kept", transactional=True, timeout=BY_THEN)
    def work(message: Message, connection: Connection) -> None:
        add_effect(connection, {"x": 0, "y": 2}[message.payload] + message.attempt)
        message.ack(connection=connection)
        if (message.payload, message.attempt) == ("x", 1):
            end.wait(60)
            for number in (10, 11):
                try:
                    add_effect(connection, number)
                except BaseException as error:  # noqa: BLE001 - whatever the driver says
                    late.append(type(error).__name__)
                else:
                    late.append("done")

    kept.publish("x")
    with running(single):
        wait_until(lambda: counts(kept) == (0, 0, 1))
        end.set()
        wait_until(lambda: len(late) == 2)
        kept.publish("y")
        wait_until(lambda: counts(kept) == (0, 0, 2))
    assert ("done", 2, f"timed out after {BY_THEN:g} s") == fates(kept)["x"]
    assert "done" not in late
    assert 2 == effect_count(effects_engine)


def test_of_messages_that_share_a_transaction_only_one_timed_out(
    single: Worker, kept: Queue, effects_engine: Engine, end: threading.Event
) -> None:
    """The others are given back or handled again, and no effect is there twice."""

    @single.handle("kept", transactional=True, commit_every=10, timeout=LIMIT)
    def work(message: Message, connection: Connection) -> None:
        if message.payload == 3 and message.attempt == 1:
            end.wait(60)
        add_effect(connection, message.payload)

    kept.publish_many(list(range(8)))
    with running(single):
        wait_until(lambda: counts(kept) == (0, 0, 8))
    found = fates(kept)
    assert ("done", 2, TIMED_OUT) == found.pop(3)
    assert {("done", 1, None)} == set(found.values())
    assert 8 == effect_count(effects_engine)


def test_a_batch_that_hangs_is_nacked_as_a_whole(
    single: Worker, kept: Queue, end: threading.Event
) -> None:
    """One call is one time limit."""
    sizes: list[int] = []

    @single.handle("kept", batch=4, timeout=LIMIT)
    def work(messages: list[Message]) -> None:
        sizes.append(len(messages))
        if messages[0].attempt == 1:
            end.wait(60)

    kept.publish_many(list(range(4)))
    with running(single):
        wait_until(lambda: counts(kept) == (0, 0, 4))
    assert 4 == sizes[0]
    assert {("done", 2, TIMED_OUT)} == set(fates(kept).values())


def test_a_stop_waits_for_no_handler_that_timed_out(
    single: Worker, kept: Queue, end: threading.Event
) -> None:
    """It drains as soon as the limit of what runs has passed; no message stays behind."""
    began = threading.Event()

    @single.handle("kept", timeout=LIMIT)
    def work(message: Message) -> None:
        assert "x" == message.payload
        began.set()
        end.wait(60)

    kept.publish("x")
    with running(single):
        assert began.wait(30)
        single.stop()
    (back,) = kept.consume(wait=5)
    assert 2 == back.attempt
    assert TIMED_OUT == back.last_error
    assert not end.is_set()


def test_a_handler_learns_that_its_message_was_cancelled(
    make_service: MakeService, end: threading.Event
) -> None:
    """At the next renewal: the message is a dead letter, and the worker goes on."""
    queue = make_service().create_queue("brief", lease=0.6, archive="all")
    worker = make_service().worker(concurrency=1, poll_interval=(0.005, 0.05))
    told = threading.Event()

    @worker.handle("brief")
    def work(message: Message) -> None:
        if message.payload == "unwanted":
            assert queue.cancel(message.id, "not wanted")
            wait_until(lambda: message.cancelled or end.is_set())
            assert message.cancelled
            told.set()

    queue.publish_many(["unwanted", "next"])
    with running(worker):
        assert told.wait(30)
        wait_until(lambda: counts(queue) == (0, 0, 2))
    assert {
        "unwanted": ("rejected", 1, "cancelled by operator: not wanted"),
        "next": ("done", 1, None),
    } == fates(queue)


@pytest.mark.engines("sqlite")
def test_a_slow_handler_is_reported_once(
    single: Worker, kept: Queue, end: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning and the hook, while it runs; it may take its time."""
    slow: list[tuple[str, float]] = []

    def note(message: Message, seconds: float) -> None:
        slow.append((message.payload, seconds))
        end.set()

    @single.handle("kept", slow_after=0.5, on_slow=note)
    def work(message: Message) -> None:
        if message.payload == "slow":
            assert end.wait(30)

    kept.publish_many(["slow", "quick"])
    with running(single), caplog.at_level(logging.WARNING):
        wait_until(lambda: counts(kept) == (0, 0, 2))
    assert ["slow"] == [payload for payload, _ in slow]
    assert slow[0][1] >= 0.5
    assert 1 == sum("has been running for" in record.message for record in caplog.records)


@pytest.mark.engines("sqlite")
def test_a_hook_that_fails_stops_no_time_limit(
    single: Worker, kept: Queue, end: threading.Event
) -> None:
    """The call that it was told of is still ended in time."""

    def fail(message: Message, seconds: float) -> None:
        raise HookFailed(message, seconds)

    @single.handle("kept", slow_after=LIMIT / 2, on_slow=fail, timeout=LIMIT)
    def work(message: Message) -> None:
        if message.attempt == 1:
            end.wait(60)

    kept.publish("x")
    with running(single):
        wait_until(lambda: counts(kept) == (0, 0, 1))
    assert {"x": ("done", 2, TIMED_OUT)} == fates(kept)


class HookFailed(Exception):
    """What a hook of a test raises."""


@pytest.mark.engines("sqlite")
@pytest.mark.threads("only threads are left behind at once")
def test_no_more_threads_than_the_bound_are_replaced(
    single: Worker, kept: Queue, end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When none is left the worker ends with an error, and what hung can be had by others."""
    monkeypatch.setattr(threads, "_MOST_STUCK", 2)

    @single.handle("kept", timeout=0.05)
    def work(message: Message) -> None:
        assert "hangs" == message.payload
        end.wait(60)

    kept.publish("hangs", max_attempts=10)
    with pytest.raises(QueueError, match="3 handlers hang"):
        single.run()
    (back,) = kept.consume(wait=5)
    assert 4 == back.attempt
    assert "timed out after 50 ms" == back.last_error


@pytest.mark.engines("sqlite")
@pytest.mark.threads("only threads are left behind at once")
def test_a_thread_that_was_not_replaced_goes_on_when_its_call_ends(
    make_service: MakeService,
    kept: Queue,
    end: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Past the bound the worker has fewer threads, until one comes back."""
    monkeypatch.setattr(threads, "_MOST_STUCK", 2)
    worker = make_service().worker(concurrency=2, poll_interval=(0.005, 0.05))
    meeting = threading.Barrier(2, timeout=30)

    @worker.handle("kept", timeout=5)
    def meet(message: Message) -> None:
        assert "meets" == message.payload
        meeting.wait()

    @worker.handle("hanging", timeout=0.05)
    def hang(message: Message) -> None:
        assert "hangs" == message.payload
        end.wait(60)

    hanging = make_service().create_queue("hanging", max_attempts=1)
    hanging.publish_many(["hangs"] * 3)
    with running(worker):
        wait_until(lambda: counts(hanging) == (0, 0, 3))
        wait_until(lambda: "3 handler calls hang" in caplog.text)
        end.set()
        kept.publish_many(["meets"] * 2)
        wait_until(lambda: counts(kept) == (0, 0, 2))
    assert {("done", 1, None)} == {
        (str(m.outcome), m.attempt, m.last_error) for m in archived(kept)
    }


@pytest.mark.engines("sqlite")
def test_impossible_limits_are_refused(single: Worker) -> None:
    """A limit is a duration above zero, a hook is a function."""
    wrong: Any
    for wrong, error in ((0, ValueError), (-1, ValueError), ("soon", ValueError), ([], TypeError)):
        with pytest.raises(error, match="timeout"):
            single.handle("kept", timeout=wrong)
        with pytest.raises(error, match="slow_after"):
            single.handle("kept", slow_after=wrong)
    wrong = "print"
    with pytest.raises(TypeError, match="on_slow"):
        single.handle("kept", on_slow=wrong)
