"""Batch handlers: a list of messages for each call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queue_over_sql import FixedDelay, Publication
from tests.contract.queue_state import add_effect, archived, counts, effect_count
from tests.contract.worker.running_worker import HandlerFailed, running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import MakeService
    from queue_over_sql.worker.worker import Worker


@pytest.mark.engines("sqlite")
def test_a_batch_handler_gets_lists(worker: Worker, outside: Queue) -> None:
    """Each call has at least one and at most so many messages; all are acked."""
    sizes: list[int] = []
    seen: list[int] = []

    @worker.handle("jobs", batch=4)
    def work(messages: list[Message]) -> None:
        sizes.append(len(messages))
        seen.extend(message.payload for message in messages)

    outside.publish_many(list(range(20)))
    with running(worker):
        wait_until(lambda: outside.messages().count() == 0)
    assert sorted(seen) == list(range(20))
    assert all(1 <= size <= 4 for size in sizes)
    assert max(sizes) > 1
    assert (0, 0, 0) == counts(outside)


@pytest.mark.engines("sqlite")
def test_a_failing_batch_is_retried_whole(worker: Worker, outside: Queue) -> None:
    """An exception fails every message of its call, each up to its own attempts."""

    @worker.handle("jobs", batch=5)
    def work(messages: list[Message]) -> None:
        raise HandlerFailed(f"{len(messages)} at once")

    outside.publish_many(["a", "b", "c"])
    with running(worker):
        wait_until(lambda: counts(outside) == (0, 0, 3))
    assert {3} == {message.attempt for message in archived(outside)}


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("grouped", [False, True])
def test_one_bad_message_takes_none_of_its_batch_along(
    make_service: MakeService, *, grouped: bool
) -> None:
    """The last attempt is a list of one: only the message that fails becomes a dead letter."""
    service = make_service(reaper_interval=0.1)
    queue = service.create_queue(
        "jobs",
        retry=FixedDelay(0),
        max_attempts=3,
        archive="all",
        group_limit=1 if grouped else None,
    )
    worker = service.worker(concurrency=2)
    sizes: list[int] = []

    @worker.handle("jobs", batch=5)
    def work(messages: list[Message]) -> None:
        sizes.append(len(messages))
        if any(message.payload == 7 for message in messages):
            raise HandlerFailed("seven")

    groups = [f"g{number % 3}" if grouped else None for number in range(20)]
    queue.publish_many([Publication(n, group=group) for n, group in enumerate(groups)])
    with running(worker):
        wait_until(lambda: queue.messages().count() == 0)
    ends = [
        (message.payload, message.attempt)
        for message in archived(queue)
        if message.outcome != "done"
    ]
    assert [(7, 3)] == ends
    assert 5 == max(sizes)


@pytest.mark.engines("sqlite")
def test_a_batch_handler_may_settle_some_by_itself(worker: Worker, outside: Queue) -> None:
    """What the handler settled stays so; the rest of the batch is acked."""

    @worker.handle("jobs", batch=5)
    def work(messages: list[Message]) -> None:
        for message in messages:
            if message.payload == "bad":
                message.reject("cannot read it")

    outside.publish_many(["good", "bad", "good"])
    with running(worker):
        wait_until(lambda: outside.messages().count() == 0)
    assert ["bad"] == [message.payload for message in archived(outside)]


def test_a_transactional_batch_commits_once(
    worker: Worker, outside: Queue, effects_engine: Engine
) -> None:
    """All effects and acks of a call are one transaction; a failure leaves none of them."""

    @worker.handle("jobs", transactional=True, batch=10)
    def work(messages: list[Message], connection: Connection) -> None:
        for message in messages:
            add_effect(connection, message.payload)
        if any(message.attempt == 1 for message in messages):
            raise HandlerFailed("the first time")

    outside.publish_many(list(range(6)))
    with running(worker):
        wait_until(lambda: outside.messages().count() == 0)
    assert 6 == effect_count(effects_engine)
    assert (0, 0, 0) == counts(outside)
