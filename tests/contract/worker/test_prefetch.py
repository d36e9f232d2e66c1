"""Prefetch: how many messages a worker holds, and who gets those that it does not begin."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import FixedDelay, Publication
from tests.contract.queue_state import counts
from tests.contract.worker.running_worker import running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import MakeService

POLL = (0.005, 0.05)


def test_a_quick_handler_gets_many_at_once(
    make_service: MakeService, outside: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claims grow, all messages are handled once and in order, and the acks follow."""
    # On a busy machine no handler is quick by the usual measure.
    monkeypatch.setattr("queue_over_sql.worker.claims_ahead._AHEAD_SECONDS", 1.0)
    monkeypatch.setattr("queue_over_sql.worker.claims_ahead.HORIZON_SECONDS", 2.0)
    worker = make_service().worker(concurrency=1, poll_interval=POLL)
    seen: list[tuple[int, int | None]] = []

    @worker.handle("jobs")
    def work(message: Message) -> None:
        seen.append((message.payload, message.consumer_round))

    outside.publish_many(list(range(600)))
    with running(worker):
        wait_until(lambda: counts(outside) == (0, 0, 0))
    assert [number for number, _ in seen] == list(range(600))
    rounds = [round_ for _, round_ in seen]
    assert 1 == rounds.count(rounds[0])
    assert len(set(rounds)) < 200


@pytest.mark.default_on("sqlite", "mariadb")
@pytest.mark.parametrize("options", [{"prefetch": 1}, {"prefetch": 1, "ack": "each"}])
def test_one_at_a_time(
    make_service: MakeService, outside: Queue, options: dict[str, object]
) -> None:
    """While a thread works on a message, nothing else is claimed, and the last one is acked."""
    worker = make_service().worker(concurrency=1, poll_interval=POLL, **options)  # type: ignore[arg-type]
    seen: list[tuple[int, int]] = []

    @worker.handle("jobs")
    def work(message: Message) -> None:
        del message
        stats = outside.stats()
        seen.append((stats.claimed, stats.ready))

    outside.publish_many(list(range(10)))
    with running(worker):
        wait_until(lambda: counts(outside) == (0, 0, 0))
    assert seen == [(1, ready) for ready in range(9, -1, -1)]


@pytest.mark.engines("sqlite")
def test_each_of_several_threads_is_acked_before_its_next(
    make_service: MakeService, outside: Queue
) -> None:
    """No more messages are held than there are threads, each with the one that it works on."""
    worker = make_service().worker(concurrency=3, prefetch=1, ack="each", poll_interval=POLL)
    held: list[int] = []

    @worker.handle("jobs")
    def work(message: Message) -> None:
        del message
        held.append(outside.stats().claimed)

    outside.publish_many(list(range(60)))
    with running(worker):
        wait_until(lambda: counts(outside) == (0, 0, 0))
    assert 60 == len(held)
    assert max(held) <= 3


def test_others_get_what_waits_behind_a_stuck_handler(
    make_service: MakeService, outside: Queue
) -> None:
    """Of a worker that was quick until now; no delivery is counted for what it gives back."""
    stuck = make_service().worker(concurrency=1, poll_interval=POLL)
    helping = make_service().worker(concurrency=1, poll_interval=POLL)
    blocked, free = threading.Event(), threading.Event()
    first: list[int] = []
    second: list[tuple[int, int]] = []

    @stuck.handle("jobs")
    def block(message: Message) -> None:
        first.append(message.payload)
        if message.payload == 300:
            blocked.set()
            assert free.wait(60)

    @helping.handle("jobs")
    def help_out(message: Message) -> None:
        second.append((message.payload, message.attempt))

    outside.publish_many(list(range(1000)))
    with running(stuck):
        try:
            assert blocked.wait(30)
            with running(helping):
                wait_until(lambda: len(second) == 699)
        finally:
            free.set()
        wait_until(lambda: counts(outside) == (0, 0, 0))
    assert first == list(range(301))
    assert sorted(second) == [(number, 1) for number in range(301, 1000)]


def test_a_last_attempt_is_never_claimed_ahead(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill would count it for what no handler has begun; what is given back is not counted."""
    # On a busy machine no handler is quick by the usual measure, and heartbeats come late.
    monkeypatch.setattr("queue_over_sql.worker.claims_ahead._AHEAD_SECONDS", 1.0)
    monkeypatch.setattr("queue_over_sql.worker.claims_ahead.HORIZON_SECONDS", 60.0)
    service = make_service(consumer_timeout=3600)
    queue = service.create_queue("once", max_attempts=2, retry=FixedDelay(0))
    queue.publish_many(list(range(100)))
    queue.publish_many(Publication(number, max_attempts=1) for number in range(100, 120))
    outside = make_service().queue("once")
    worker = service.worker(concurrency=1, poll_interval=POLL)
    seen: list[tuple[int, int, int]] = []
    most = 0

    @worker.handle("once")
    def work(message: Message) -> None:
        nonlocal most
        claimed = outside.stats().claimed
        last = message.attempt == message.max_attempts
        most = most if last else max(most, claimed)
        seen.append((message.payload, message.attempt, claimed))
        if message.payload == 7 and message.attempt == 1:
            raise ValueError

    with running(worker):
        wait_until(lambda: counts(queue) == (0, 0, 0), timeout=300)
    assert set(range(120)) == {number for number, _, _ in seen}
    assert [1, 2] == [attempt for number, attempt, _ in seen if number == 7]
    assert most > 2
    last = [claimed for number, _, claimed in seen if number >= 100]
    # Beside the first of them, others may be finished and not acked yet.
    assert [1] * 19 == last[1:]


@pytest.mark.default_on("sqlite", "mariadb")
def test_what_is_more_urgent_overtakes_what_was_not_begun(make_service: MakeService) -> None:
    """It waits at most for the messages that a thread had in hand when it was published."""
    service = make_service()
    queue = make_service().create_queue("levels", priorities=2, retry=FixedDelay(0))
    worker = service.worker(concurrency=1, prefetch=40, poll_interval=POLL)
    seen: list[str] = []

    @worker.handle("levels")
    def work(message: Message) -> None:
        if not seen:
            queue.publish("urgent", priority=0)
        seen.append(message.payload)

    queue.publish_many(Publication("normal", priority=1) for _ in range(300))
    with running(worker):
        wait_until(lambda: counts(queue) == (0, 0, 0))
    assert 301 == len(seen)
    assert seen.index("urgent") <= 40


@pytest.mark.engines("sqlite")
def test_a_batch_handler_is_given_more_than_one_call_ahead(
    make_service: MakeService, outside: Queue
) -> None:
    """Each call has a full batch while there are enough messages."""
    worker = make_service().worker(concurrency=1, poll_interval=POLL)
    sizes: list[int] = []

    @worker.handle("jobs", batch=10)
    def work(messages: list[Message]) -> None:
        sizes.append(len(messages))

    outside.publish_many(list(range(200)))
    with running(worker):
        wait_until(lambda: counts(outside) == (0, 0, 0))
    assert 200 == sum(sizes)
    assert sizes.count(10) >= 15


@pytest.mark.default_on("sqlite", "mariadb")
def test_a_busy_queue_keeps_no_other_from_its_turn(
    make_service: MakeService, outside: Queue
) -> None:
    """Although its quick handler always has messages in hand."""
    service = make_service()
    worker = service.worker(concurrency=1, poll_interval=POLL)
    busy, rare = service.queue("jobs"), service.create_queue("rare")
    served: list[int] = []

    @worker.handle("jobs")
    def work(message: Message) -> None:
        if len(served) < 10:
            busy.publish(message.payload)

    @worker.handle("rare")
    def seldom(message: Message) -> None:
        served.append(message.payload)

    outside.publish_many(list(range(100)))
    rare.publish_many(list(range(10)))
    with running(worker):
        wait_until(lambda: len(served) == 10)
        wait_until(lambda: counts(outside) == (0, 0, 0) and counts(rare) == (0, 0, 0))
    assert served == list(range(10))


@pytest.mark.default_on("sqlite", "mariadb")
@pytest.mark.parametrize("options", [{}, {"prefetch": 1, "ack": "each"}])
def test_a_dropped_queue_keeps_no_other_from_its_messages(
    make_service: MakeService, outside: Queue, options: dict[str, object]
) -> None:
    """Although a message of it was being handled; and the worker still ends."""
    service = make_service()
    worker = service.worker(concurrency=1, poll_interval=POLL, **options)  # type: ignore[arg-type]
    gone = service.create_queue("gone")
    served: list[int] = []

    @worker.handle("gone")
    def drop(message: Message) -> None:
        del message
        service.drop_queue("gone")

    @worker.handle("jobs")
    def work(message: Message) -> None:
        served.append(message.payload)

    gone.publish_many(list(range(3)))
    with running(worker):
        wait_until(lambda: [queue.name for queue in service.queues()] == ["jobs"])
        outside.publish_many(list(range(20)))
        wait_until(lambda: counts(outside) == (0, 0, 0))
    assert served == list(range(20))


@pytest.mark.engines("sqlite")
def test_bad_options_are_refused(make_service: MakeService) -> None:
    """At once, and named."""
    service = make_service()
    for options, message in (
        ({"prefetch": 0}, "prefetch"),
        ({"ack": "later"}, "ack must be one of 'batch', 'each'"),
        ({"prefetch": 2, "batch": 2}, "use prefetch= only"),
    ):
        with pytest.raises(ValueError, match=message):
            service.worker(**options)
