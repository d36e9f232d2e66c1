"""Workers and groups: the messages of a group run one after another, and a failure stops them."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import DatabaseUnavailable, FixedDelay, Publication, QueueSchemaMismatch
from queue_over_sql.claiming.claimer import Claimer
from tests.contract.groups.account import Account
from tests.contract.queue_state import counts
from tests.contract.test_reaper import kill
from tests.contract.worker.running_worker import HandlerFailed, running
from tests.waiting import eventually, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqlalchemy import Connection, Engine

    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.default_on("sqlite", "postgresql")

QUICK = (0.005, 0.05)


@pytest.fixture
def jobs(make_service: MakeService) -> Queue:
    """A queue with ordered groups, as a service sees it that runs no worker."""
    service = make_service()
    return service.create_queue("jobs", group_limit=1, retry=FixedDelay(0), max_attempts=5)


@pytest.fixture
def end() -> Iterator[threading.Event]:
    """What handlers that hang wait for; it comes when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def publish(queue: Queue, groups: Iterable[str | None], **options: Any) -> dict[str, list[int]]:
    """Publish a message for each name, with its number; returns the ids of each group."""
    items = [Publication(n, group=group, **options) for n, group in enumerate(groups)]
    made = queue.publish_many(items)
    ids: dict[str, list[int]] = {}
    for item, each in zip(items, made, strict=True):
        if item.group is not None:
            ids.setdefault(item.group, []).append(each.id)
    return ids


WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one by one": ({}, {}),
    "claimed ahead": ({"prefetch": 8}, {}),
    "acked each": ({"prefetch": 4, "ack": "each"}, {}),
    "in batches": ({}, {"batch": 5}),
    "transactional": ({"prefetch": 4}, {"transactional": True}),
    "committed together": ({"prefetch": 30}, {"transactional": True, "commit_every": 10}),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_group_runs_in_order(jobs: Queue, make_service: MakeService, way: str) -> None:
    """Four threads never meet in a group, and what failed comes before all behind it.

    Of these no attempt is counted.
    """
    of_worker, of_handler = WAYS[way]
    groups = [*(["deep"] * 30), *itertools.chain(*(["a", "b", "c", None] for _ in range(10)))]
    ids = publish(jobs, groups)
    account, failing = Account(ids), {ids["deep"][7], ids["a"][4], ids["b"][0]}
    worker = make_service().worker(concurrency=4, poll_interval=QUICK, **of_worker)

    @worker.handle("jobs", **of_handler)
    def work(given: Any, *_connection: Connection) -> None:
        messages: list[Message] = given if isinstance(given, list) else [given]
        with account.running(messages):
            if any(each.id in failing and each.attempt == 1 for each in messages):
                raise HandlerFailed

    with running(worker, until_empty=True):
        pass
    assert [] == account.mistakes
    assert sorted([*account.done]) == sorted(account.attempts)
    assert len(groups) == len(account.attempts)
    assert (0, 0, 0) == counts(jobs)
    again = {each for each, attempts in account.attempts.items() if [1] != attempts}
    # A batch fails as a whole.
    assert failing <= again
    assert way == "in batches" or failing == again


def test_what_is_claimed_ahead_waits_and_comes_back(
    jobs: Queue, make_service: MakeService, end: threading.Event
) -> None:
    """While one of a group runs, its others wait; if it fails, they come back uncounted."""
    ids = publish(jobs, ["a", "a", "a", "a", "b", "b", None])
    first = ids["a"][0]
    account = Account(ids)
    worker = make_service().worker(concurrency=2, prefetch=4, poll_interval=QUICK)

    @worker.handle("jobs")
    def work(message: Message) -> None:
        with account.running([message]):
            if message.id == first and message.attempt == 1:
                end.wait(60)
                message.nack("not yet", delay=3600)

    with running(worker):
        wait_until(lambda: len(account.done) == 3)
        assert {first, *ids["b"]} <= set(account.attempts)
        assert 4 == len(account.attempts)
        end.set()
        waiting = ids["a"][1:]
        eventually(lambda: {(each, 0, None) for each in waiting} <= _stamps(jobs), "they come back")
        assert not set(waiting) & set(account.attempts)
        assert 1 == jobs.messages(status="delayed").reschedule(delay=0)
        wait_until(lambda: (0, 0, 0) == counts(jobs))
    assert [] == account.mistakes
    assert [[2], *[[1]] * 3] == [account.attempts[each][-1:] for each in ids["a"]]


def _stamps(queue: Queue) -> set[tuple[int, int, str | None]]:
    return {(each.id, each.attempt, each.consumer_id) for each in queue.messages().list()}


@pytest.mark.threads("a task is cancelled at its time limit")
def test_a_hanging_handler_keeps_its_group(
    jobs: Queue, make_service: MakeService, end: threading.Event
) -> None:
    """A call that was abandoned at its time limit still runs, so its group waits for its end."""
    ids = publish(jobs, ["a", "a", "b", "b"], lease=6)
    first = ids["a"][0]
    account = Account(ids)
    worker = make_service(reaper_interval=0.1).worker(concurrency=1, poll_interval=QUICK)
    late: list[bool] = []

    @worker.handle("jobs", timeout=0.3)
    def work(message: Message) -> None:
        with account.running([message]):
            if message.id == first and message.attempt == 1:
                end.wait(60)
                late.append(message.cancelled)
                raise HandlerFailed

    with running(worker):
        wait_until(lambda: set(ids["b"]) <= set(account.done))
        lease = _lease(jobs, first)
        eventually(lambda: _lease(jobs, first) > lease, "its lease is renewed")
        assert {first, *ids["b"]} == set(account.attempts)
        end.set()
        wait_until(lambda: (0, 0, 0) == counts(jobs))
    assert [True] == late
    assert [] == account.mistakes
    assert [[1, 2], [1]] == [account.attempts[each] for each in ids["a"]]


def _lease(queue: Queue, message_id: int) -> int:
    [message] = queue.messages(where=queue.table.c.id == message_id).list()
    assert message.lease_expires_at is not None
    return int(message.lease_expires_at.timestamp() * 1_000_000)


@pytest.mark.threads("a task is cancelled at its time limit")
def test_a_worker_that_ends_leaves_its_groups_in_order(
    jobs: Queue, make_service: MakeService, end: threading.Event
) -> None:
    """What was claimed ahead comes back uncounted, and what hangs is retried at last."""
    ids = publish(jobs, ["a"] * 4)
    begun = threading.Event()
    service = make_service()
    worker = service.worker(concurrency=1, prefetch=4, poll_interval=QUICK)

    @worker.handle("jobs", timeout=0.3)
    def work(message: Message) -> None:
        assert message.id == ids["a"][0]
        begun.set()
        end.wait(60)

    with running(worker):
        assert begun.wait(60)
        wait_until(lambda: {0} == {stamp[1] for stamp in _stamps(jobs)} - {1})
    assert [(each, int(each == ids["a"][0]), None) for each in ids["a"]] == sorted(_stamps(jobs))


def test_a_limit_above_one_is_used_in_one_process(
    make_service: MakeService, end: threading.Event
) -> None:
    """With a limit of 3, three of a group run at once in as many threads, and never four.

    If one fails, it takes none of those along that run beside it.
    """
    queue = make_service().create_queue("jobs", group_limit=3, retry=FixedDelay(0))
    account = Account(ids := publish(queue, ["a"] * 9), limit=3)
    [first, *others] = ids["a"]
    worker = make_service().worker(concurrency=6, prefetch=3, poll_interval=QUICK)

    @worker.handle("jobs")
    def work(message: Message) -> None:
        with account.running([message]):
            if message.id == first and message.attempt == 1:
                wait_until(lambda: account.runs == 3)
                raise HandlerFailed
            end.wait(60)

    with running(worker):
        wait_until(lambda: account.attempts.get(first) == [1, 2] and account.runs == 3)
        end.set()
        wait_until(lambda: (0, 0, 0) == counts(queue))
    assert [] == account.mistakes
    assert 3 == account.most_at_once
    assert [[1]] * 8 == [account.attempts[each] for each in others]


@pytest.mark.parametrize("hold_for", [None, 60])
def test_a_stream_yields_nothing_behind_a_failure(jobs: Queue, hold_for: float | None) -> None:
    """What it has claimed behind a message that came back comes again after that."""
    ids = publish(jobs, ["a", "a", "b", "a"])
    seen: list[tuple[int, int]] = []
    for message in jobs.stream(prefetch=4, hold_for=hold_for):
        seen.append((message.id, message.attempt))
        if len(seen) == 1:
            message.nack("again", delay=0)
        else:
            message.ack()
    of_a = [each for each in seen if each[0] in ids["a"]]
    first, *others = ids["a"]
    assert [(first, 1), (first, 2), *((each, 1) for each in others)] == of_a
    assert [(ids["b"][0], 1)] == [each for each in seen if each not in of_a]
    assert (0, 0, 0) == counts(jobs)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("the same supply")
def test_a_series_ends_although_its_queue_was_replaced_by_one_without_groups(
    jobs: Queue, make_service: MakeService, end: threading.Event
) -> None:
    """Else its group would wait for ever for the end of that call, once the queue has it again."""
    service = make_service()
    publish(jobs, ["a", "a"])
    begun = threading.Event()
    worker = make_service().worker(concurrency=2, prefetch=2, poll_interval=QUICK)

    @worker.handle("jobs")
    def work(_message: Message) -> None:
        if not begun.is_set():
            begun.set()
            assert end.wait(60)

    with running(worker, until_empty=True):
        assert begun.wait(30)
        service.drop_queue("jobs")
        service.create_queue("jobs")
        (supply,) = worker._threads.supplies
        wait_until(lambda: not supply._is_grouped)
        end.set()
        wait_until(lambda: not (supply.has_any or supply._in_hand._running))


@pytest.mark.engines("sqlite")
@pytest.mark.threads("the same supply")
def test_a_thread_goes_on_although_what_is_behind_a_failure_cannot_be_released(
    jobs: Queue, make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as while the definition of the queue changes: its other messages are still handled."""

    def refused(*_given: object) -> None:
        msg = "the definition of the queue has changed"
        raise QueueSchemaMismatch(msg)

    monkeypatch.setattr("queue_over_sql.worker.supply.release_quietly", refused)
    publish(jobs, ["a", "a"])
    begun, done = threading.Event(), threading.Event()
    worker = make_service().worker(concurrency=1, prefetch=4, poll_interval=QUICK)

    @worker.handle("jobs")
    def work(message: Message) -> None:
        if message.group is None:
            done.set()
        elif not begun.is_set():
            begun.set()
            raise HandlerFailed

    with running(worker):
        assert begun.wait(30)
        jobs.publish("later")
        assert done.wait(30)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("the same supply")
@pytest.mark.parametrize("suspected", [False, True])
def test_a_claim_whose_groups_cannot_be_read_comes_back(
    jobs: Queue,
    make_service: MakeService,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    *,
    suspected: bool,
) -> None:
    """Its messages are claimed again at once, uncounted, and not when their leases end."""
    publish(jobs, ["a", "a", "a"])
    service = make_service()
    if suspected:
        dead = make_service()
        dead.queue("jobs").consume(3)
        kill(engine, dead)
        service.reap()
    series, failed = Claimer.series, threading.Event()

    def cut_off(self: Claimer, messages: Sequence[Message]) -> list[str | None]:
        if failed.is_set():
            return series(self, messages)
        failed.set()
        msg = "the connection is lost"
        raise DatabaseUnavailable(msg)

    monkeypatch.setattr(Claimer, "series", cut_off)
    worker = service.worker(concurrency=1, prefetch=4, poll_interval=QUICK)
    attempts: list[int] = []
    worker.handle("jobs")(lambda message: attempts.append(message.attempt))
    worker.run(until_empty=True)
    assert failed.is_set()
    assert [1 + suspected, 1, 1] == attempts
