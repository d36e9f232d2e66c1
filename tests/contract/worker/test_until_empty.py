"""A worker that runs until its queues are empty."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import FixedDelay, Publication
from queue_over_sql.queue import core_of
from queue_over_sql.worker import in_hand, supply
from queue_over_sql.worker.supply import State
from tests.contract.queue_state import counts, payloads
from tests.contract.worker.running_worker import HandlerFailed, running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import MakeService
    from queue_over_sql.worker.worker import Worker

pytestmark = pytest.mark.driver_decides


def test_it_ends_when_nothing_is_due(
    make_service: MakeService, worker: Worker, outside: Queue
) -> None:
    """What handlers publish and retries that are due are handled before; what is due later stays.

    A queue that was found empty is looked at again: its message came through another service.
    """
    service = make_service()
    later = service.create_queue("later", retry=FixedDelay(3600))
    seen: list[object] = []

    @worker.handle("later")
    def fail(message: Message) -> None:
        seen.append(message.payload)
        raise HandlerFailed

    @worker.handle("jobs")
    def work(message: Message) -> None:
        seen.append(message.payload)
        if message.payload == "fails once" and message.attempt == 1:
            raise HandlerFailed
        if message.payload == "publishes":
            later.publish("published")

    outside.publish_many(["fails once", *range(20)])
    outside.publish("publishes")
    outside.publish("in an hour", delay=3600)
    with running(worker, until_empty=True):
        pass
    assert 2 == seen.count("fails once")
    assert {*range(20), "fails once", "publishes", "published"} == set(seen)
    assert ["in an hour"] == payloads(outside.messages().list())
    assert 1 == later.stats().delayed


def test_it_may_run_again_and_ends_at_once_where_there_is_nothing(
    worker: Worker, outside: Queue
) -> None:
    """A second run handles what came in between; stop() ends such a run, too, and for good."""
    seen: list[object] = []
    begun, go_on = threading.Event(), threading.Event()

    @worker.handle("jobs", transactional=True)
    def work(message: Message, connection: object) -> None:
        del connection
        seen.append(message.payload)
        if message.payload == "last":
            begun.set()
            assert go_on.wait(10)

    for number in range(3):
        with running(worker, until_empty=True):
            pass
        assert list(range(number)) == seen
        outside.publish(number)
    outside.publish("last")
    with running(worker, until_empty=True):
        assert begun.wait(10)
        worker.stop()
        outside.publish("not begun")
        go_on.set()
    assert (1, 0, 0) == counts(outside)
    with running(worker, until_empty=True):
        pass
    assert "not begun" not in seen


@pytest.mark.engines("sqlite")
@pytest.mark.threads("holds up a thread at a certain place")
def test_it_does_not_end_while_a_call_goes_from_one_list_to_another(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody ends it between ready and called, nor between called and counted as ended."""
    service = make_service()
    queue = service.create_queue("jobs", retry=FixedDelay(0), max_attempts=3)
    worker = service.worker(concurrency=2, poll_interval=(0.001, 0.001))
    seen: list[int] = []
    claimer, drained, ended = core_of(queue).claimer, in_hand._drained, supply.Supply.ended
    consume = claimer.consume
    poll = threading.Condition()

    def counted(*arguments: Any, **options: Any) -> list[Message]:
        found = consume(*arguments, **options)
        with poll:
            poll.notify_all()
        return found

    def held_up() -> None:
        """Until the supply has looked twice more, or the worker drains."""
        with poll:
            for _ in range(2):
                if not worker._draining.is_set():
                    poll.wait(0.5)

    def slowly(items: Any, most: float = math.inf, **options: Any) -> Any:
        taken = drained(items, most, **options)
        if taken and threading.current_thread().name.startswith("queue-over-sql-worker"):
            held_up()
        return taken

    def ended_slowly(*args: Any) -> None:
        ended(*args)
        held_up()

    monkeypatch.setattr(claimer, "consume", counted)
    monkeypatch.setattr(in_hand, "_drained", slowly)
    monkeypatch.setattr(supply.Supply, "ended", ended_slowly)

    @worker.handle("jobs")
    def work(message: Message) -> None:
        seen.append(message.attempt)
        if message.attempt < 3:
            raise HandlerFailed

    queue.publish("x")
    worker.run(until_empty=True)
    assert [1, 2, 3] == seen
    assert 0 == queue.stats().live


@pytest.mark.engines("sqlite")
@pytest.mark.threads("holds up a thread at a certain place")
def test_it_does_not_end_before_a_group_goes_on(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll right before an ack misses what waits behind it in its group, so another one comes."""
    service = make_service()
    queue = service.create_queue("jobs", group_limit=1)
    worker = service.worker(concurrency=2, prefetch=1, poll_interval=(60, 60))
    seen: list[object] = []
    ended, let_go_on = supply.Supply.ended, supply.Supply.let_go_on

    def turn(own: supply.Supply) -> None:
        own.wake()
        wait_until(lambda: own.state is State.OVER or (own.waits and not own._woken))

    def ended_after_a_poll(own: supply.Supply, *arguments: Any) -> None:
        turn(own)
        ended(own, *arguments)

    def let_go_on_after_the_ack(own: supply.Supply, *arguments: Any) -> None:
        own.wake()
        wait_until(lambda: not own._acks.has_any and not own.next_claim.count)
        turn(own)
        let_go_on(own, *arguments)

    monkeypatch.setattr(supply.Supply, "ended", ended_after_a_poll)
    monkeypatch.setattr(supply.Supply, "let_go_on", let_go_on_after_the_ack)

    @worker.handle("jobs")
    def work(message: Message) -> None:
        seen.append(message.payload)

    queue.publish_many([Publication(number, group="a") for number in range(3)])
    worker.run(until_empty=True)
    assert [0, 1, 2] == seen
    assert 0 == queue.stats().live
