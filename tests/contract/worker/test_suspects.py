"""A worker whose messages were with a consumer that died."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import Publication
from queue_over_sql.claiming.claimer import Claimer
from tests.contract.groups.account import Account
from tests.contract.queue_state import set_columns
from tests.contract.test_reaper import kill
from tests.contract.worker.running_worker import running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Message
    from queue_over_sql.testing.plugin import MakeService

REASON = "the consumer died while it held the message: lost, process 1 on host here"


@pytest.mark.driver_decides
@pytest.mark.default_on("sqlite", "postgresql")
@pytest.mark.parametrize(("services", "workers"), [(1, 1), (1, 2), (2, 1)])
def test_suspects_run_with_nothing_else_in_hand(
    services: int, workers: int, make_service: MakeService, engine: Engine
) -> None:
    """Not beside other handlers, workers and services; all others run together as before."""
    service = make_service()
    queues = {name: service.create_queue(name) for name in ("jobs", "others")}
    suspects = {m.id for m in queues["jobs"].publish_many(range(4))}
    lost = make_service()
    assert 4 == len(lost.queue("jobs").consume(4))
    kill(engine, lost)
    service.reap()
    queues["jobs"].publish_many(range(4, 24))
    queues["others"].publish_many(range(20))

    lock, in_work, handled = threading.Lock(), set[tuple[str, int]](), list[tuple[str, int]]()
    beside: dict[tuple[str, int], int] = {}

    def handler(name: str) -> Callable[[Message], None]:
        def work(message: Message) -> None:
            me = (name, message.id)
            with lock:
                in_work.add(me)
                handled.append(me)
            # Long enough for others to begin beside it.
            time.sleep(0.02)
            with lock:
                for each in in_work:
                    beside[each] = max(beside.get(each, 0), len(in_work))
                in_work.remove(me)

        return work

    ours = [make_service() for _ in range(services)]
    with ExitStack() as stack:
        for one in ours * workers:
            worker = one.worker(concurrency=4, poll_interval=(0.005, 0.02))
            for name in queues:
                worker.handle(name)(handler(name))
            stack.enter_context(running(worker, until_empty=True))
    assert 44 == len(handled)
    assert 44 == len(set(handled))
    assert {1} == {beside["jobs", suspect] for suspect in suspects}
    assert 1 < max(beside.values())
    assert 0 == sum(queue.stats().live for queue in queues.values())


@pytest.mark.default_on("sqlite", "postgresql")
@pytest.mark.threads("the same supply")
def test_suspects_of_groups_run_alone_and_in_order(
    make_service: MakeService, engine: Engine
) -> None:
    """What was with a dead consumer runs with nothing else in hand, and in its group's order."""
    service = make_service()
    queue = service.create_queue("jobs", group_limit=1)
    groups = ["a", "b"] * 3
    ids = [
        each.id
        for each in queue.publish_many([Publication(n, group=g) for n, g in enumerate(groups)])
    ]
    lost = make_service()
    assert 6 == len(lost.queue("jobs").consume(6))
    kill(engine, lost)
    service.reap()
    late = [
        each.id
        for each in queue.publish_many([Publication(n, group=g) for n, g in enumerate("abc")])
    ]

    account = Account(
        {name: [*ids[place::2], late[place]] for place, name in enumerate("ab")} | {"c": late[2:]}
    )
    beside: dict[int, int] = {}
    worker = make_service().worker(concurrency=4, prefetch=4, poll_interval=(0.005, 0.02))

    @worker.handle("jobs")
    def work(message: Message) -> None:
        with account.running([message]):
            beside[message.id] = account.runs
            # Long enough for others to begin beside it.
            time.sleep(0.02)
            beside[message.id] = max(beside[message.id], account.runs)

    with running(worker, until_empty=True):
        pass
    assert [] == account.mistakes
    assert sorted([*ids, *late]) == sorted(account.done)
    # What was behind these cannot have crashed it, so it was not counted.
    assert {1} == {beside[head] for head in ids[:2]}
    assert [[2]] * 2 + [[1]] * 4 == [account.attempts[each] for each in ids]


@pytest.mark.driver_decides
@pytest.mark.engines("sqlite")
def test_a_worker_that_drains_gives_a_waiting_suspect_back(
    make_service: MakeService, engine: Engine
) -> None:
    """It waits for the end of a long call, and was not begun: its attempt is not counted."""
    service = make_service()
    queue, long = service.create_queue("jobs"), service.create_queue("long")
    begun, go_on = threading.Event(), threading.Event()
    worker = make_service().worker(concurrency=2, poll_interval=(0.005, 0.02))

    @worker.handle("long")
    def wait(message: Message) -> None:
        assert "long" == message.payload
        begun.set()
        assert go_on.wait(30)

    @worker.handle("jobs")
    def never(message: Message) -> None:
        raise AssertionError(message)

    suspect = queue.publish("suspect", delay=3600)
    set_columns(engine, queue, suspect.id, last_error=REASON)
    long.publish("long")
    with running(worker):
        assert begun.wait(30)
        queue.messages().reschedule(delay=0)
        wait_until(lambda: queue.stats().claimed == 1)
        worker.stop()
        go_on.set()
    (message,) = queue.consume()
    assert 1 == message.attempt
    assert REASON == message.last_error


@pytest.mark.driver_decides
@pytest.mark.engines("sqlite")
def test_a_workers_suspect_runs_beside_no_consume(
    make_service: MakeService, engine: Engine
) -> None:
    """It waits for what ``consume`` had got, and ``consume`` gets nothing until it is over."""
    service = make_service()
    queue, others = service.create_queue("jobs"), service.create_queue("others")
    others.publish_many(range(3))
    suspect = queue.publish("suspect", delay=3600)
    set_columns(engine, queue, suspect.id, last_error=REASON)
    begun, go_on = threading.Event(), threading.Event()
    settled: list[bool] = []
    worker = service.worker(concurrency=2, poll_interval=(0.005, 0.02))

    @worker.handle("jobs")
    def wait(message: Message) -> None:
        assert message.payload in ("first", "suspect")
        if message.payload == "suspect":
            settled.append(held.settled)
            begun.set()
            assert go_on.wait(30)

    queue.publish("first")
    with running(worker):
        wait_until(lambda: queue.stats().live == 1)
        (held,) = others.consume()
        queue.messages().reschedule(delay=0)
        wait_until(lambda: queue.stats().claimed == 1)
        held.ack()
        assert begun.wait(30)
        assert [] == others.consume()
        assert [] == others.consume(wait=0.05)
        assert [] == others.exchange([])
        go_on.set()
        assert 1 == len(others.consume(wait=30))
    assert [True] == settled


@pytest.mark.driver_decides
@pytest.mark.engines("sqlite")
def test_a_consumed_suspect_runs_beside_no_worker(
    make_service: MakeService, engine: Engine
) -> None:
    """``consume`` gets it, uncounted until then, when the worker has nothing else in hand."""
    service = make_service()
    queue, others = service.create_queue("jobs"), service.create_queue("others")
    suspect = queue.publish("suspect")
    set_columns(engine, queue, suspect.id, last_error=REASON)
    begun, go_on = threading.Event(), threading.Event()
    settled: list[bool] = []
    worker = service.worker(concurrency=1, poll_interval=(0.005, 0.02))

    @worker.handle("others")
    def work(message: Message) -> None:
        if message.payload == "long":
            begun.set()
            assert go_on.wait(30)
        else:
            settled.append(found.settled)

    others.publish("long")
    with running(worker):
        assert begun.wait(30)
        assert [] == queue.consume()
        others.publish("short")
        go_on.set()
        (found,) = queue.consume(wait=30)
        assert suspect.id == found.id
        assert 1 == found.attempt
        assert 1 == others.stats().live
        found.ack()
        wait_until(lambda: others.stats().live == 0)
    assert [True] == settled


@pytest.mark.engines("sqlite")
@pytest.mark.threads("a claim that hangs in a test would hold up the event loop")
def test_a_suspect_does_not_wait_for_ever_for_what_no_handler_works_on(
    make_service: MakeService,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A claim of another queue that never ends, or any mistake in what counts as in hand.

    The group of the suspect stood still until the process was killed.
    """
    monkeypatch.setattr("queue_over_sql.consumers.isolation._IDLE_SECONDS", 0.2)
    service = make_service()
    queue, others = service.create_queue("jobs", group_limit=1), service.create_queue("others")
    others.publish("hangs")
    hangs, go_on, done = threading.Event(), threading.Event(), threading.Event()
    consume = Claimer.consume

    def consumed(claimer: Claimer, *given: Any, **options: Any) -> list[Message]:
        if claimer._context.name == "others":
            hangs.set()
            assert go_on.wait(60)
        return consume(claimer, *given, **options)

    monkeypatch.setattr(Claimer, "consume", consumed)
    worker = make_service().worker(concurrency=2, poll_interval=(0.005, 0.02))
    worker.handle("others")(lambda _message: None)
    worker.handle("jobs")(lambda _message: done.set())
    suspect = queue.publish("suspect", group="a", delay=3600)
    set_columns(engine, queue, suspect.id, last_error=REASON)
    with running(worker):
        try:
            assert hangs.wait(30)
            queue.messages().reschedule(delay=0)
            assert done.wait(30)
        finally:
            go_on.set()
    assert "still has in hand: queue others: messages: " in caplog.text
    assert "to come from a claim" in caplog.text
