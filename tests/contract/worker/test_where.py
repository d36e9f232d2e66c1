"""``where=`` for handlers, exchanges and takes: each gets only matching messages."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, select

from queue_over_sql import FixedDelay, Publication
from tests.contract.queue_state import (
    add_effect,
    archived,
    counts,
    effect_count,
    effects,
    live_rows,
    payloads,
)
from tests.contract.worker.running_worker import HandlerFailed, running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService


@pytest.fixture
def jobs(service: QueueService) -> Queue:
    """A queue of several tenants, seen by a service without a worker."""
    return service.create_queue(
        "jobs", columns=[Column("tenant", Integer)], retry=FixedDelay(0), max_attempts=3
    )


@pytest.fixture
def working(make_service: MakeService, jobs: Queue) -> QueueService:
    """The service of the worker."""
    assert "jobs" == jobs.name
    return make_service(reaper_interval=0.1)


def fill(queue: Queue, count: int, tenants: int = 3) -> None:
    """Publish numbers to the tenants in turn."""
    queue.publish_many(Publication(n, columns={"tenant": n % tenants}) for n in range(count))


def tenant(queue: Queue, number: int) -> ColumnElement[bool]:
    """The condition of one tenant."""
    return queue.table.c.tenant == number


def remaining(queue: Queue) -> list[int]:
    """The payloads that are still in the queue."""
    return [message.payload for message in queue.messages().list()]


# ---------------------------------------------------------------- handlers


def test_handlers_share_a_queue_by_their_conditions(working: QueueService, jobs: Queue) -> None:
    """Each sees its own messages only, and what belongs to none is left untouched."""
    fill(jobs, 60)
    worker = working.worker(concurrency=2, poll_interval=(0.005, 0.05))
    queue = working.queue("jobs")
    seen: dict[int, list[int]] = {0: [], 1: []}

    @worker.handle("jobs", where=tenant(queue, 0))
    def first(message: Message) -> None:
        seen[0].append(message.payload)

    @worker.handle("jobs", where=tenant(queue, 1))
    def second(message: Message) -> None:
        seen[1].append(message.payload)

    with running(worker):
        wait_until(lambda: (20, 0, 0) == counts(jobs))
        jobs.publish(100, columns={"tenant": 1})
        wait_until(lambda: 100 in seen[1])
    assert list(range(0, 60, 3)) == sorted(seen[0])
    assert [*range(1, 60, 3), 100] == sorted(seen[1])
    assert list(range(2, 60, 3)) == remaining(jobs)
    assert {0} == {message.attempt for message in jobs.messages().list()}


@pytest.mark.engines("sqlite")
def test_conditions_of_another_services_table_work(working: QueueService, jobs: Queue) -> None:
    """A handler is often registered before the worker's service has opened the queue."""
    fill(jobs, 30)
    worker = working.worker(concurrency=2, poll_interval=(0.005, 0.05))
    seen: list[int] = []

    @worker.handle(jobs.name, where=tenant(jobs, 1), batch=4)
    def work(messages: list[Message]) -> None:
        seen.extend(message.payload for message in messages)

    with running(worker):
        wait_until(lambda: len(remaining(jobs)) == 20)
    assert list(range(1, 30, 3)) == sorted(seen)


@pytest.mark.default_on("sqlite", "postgresql")
def test_overlapping_conditions_handle_once(working: QueueService, jobs: Queue) -> None:
    """A message that two handlers want is handled by one of them."""
    fill(jobs, 40)
    worker = working.worker(concurrency=4, prefetch=3, poll_interval=(0.005, 0.05))
    seen: list[int] = []
    for condition in (jobs.table.c.tenant < 2, jobs.table.c.tenant > 0):

        @worker.handle("jobs", where=condition)
        def work(message: Message) -> None:
            seen.append(message.payload)

    with running(worker):
        wait_until(lambda: remaining(jobs) == [])
    assert list(range(40)) == sorted(seen)


@pytest.mark.engines("sqlite")
def test_a_handler_with_a_condition_serves_oldest_first(working: QueueService, jobs: Queue) -> None:
    """Among those that match, and through ack and claim in one act."""
    fill(jobs, 60)
    worker = working.worker(concurrency=1, poll_interval=(0.005, 0.05))
    seen: list[int] = []

    @worker.handle("jobs", where=tenant(jobs, 2))
    def work(message: Message) -> None:
        seen.append(message.payload)

    with running(worker):
        wait_until(lambda: len(seen) == 20)
    assert list(range(2, 60, 3)) == seen


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_handler_with_a_condition_retries_and_dead_letters_its_own(
    working: QueueService, jobs: Queue, effects_engine: Engine
) -> None:
    """One that fails, and one in transactions beside it."""
    fill(jobs, 6, 2)
    worker = working.worker(concurrency=2, poll_interval=(0.005, 0.05))
    attempts: list[int] = []

    @worker.handle("jobs", where=tenant(jobs, 0))
    def fail(message: Message) -> None:
        attempts.append(message.attempt)
        raise HandlerFailed("paper jam")

    @worker.handle("jobs", where=tenant(jobs, 1), transactional=True)
    def write(message: Message, connection: Connection) -> None:
        add_effect(connection, message.payload)

    with running(worker):
        wait_until(lambda: (0, 0, 3) == counts(jobs))
    assert [1, 1, 1, 2, 2, 2, 3, 3, 3] == sorted(attempts)
    assert [0, 2, 4] == sorted(payloads(archived(jobs)))
    assert 3 == effect_count(effects_engine)


@pytest.mark.engines("sqlite")
def test_handlers_do_not_wait_for_each_other(working: QueueService, jobs: Queue) -> None:
    """While one handler is stuck, the other one's messages are served."""
    fill(jobs, 20, 2)
    worker = working.worker(concurrency=2, poll_interval=(0.005, 0.05))
    free, seen = threading.Event(), []

    @worker.handle(
        "jobs", where=(tenant(jobs, 0)) & (jobs.table.c.id == jobs.messages().list()[0].id)
    )
    def stuck(message: Message) -> None:
        del message
        assert free.wait(10)

    @worker.handle("jobs", where=tenant(jobs, 1))
    def quick(message: Message) -> None:
        seen.append(message.payload)

    with running(worker):
        try:
            wait_until(lambda: len(seen) == 10)
        finally:
            free.set()
    assert 9 == len(remaining(jobs))


def ignore(message: Message) -> None:
    """A handler that does nothing."""
    del message


@pytest.mark.engines("sqlite")
def test_two_handlers_without_conditions_are_refused(working: QueueService, jobs: Queue) -> None:
    """Every one of several needs a condition, whichever comes first."""
    condition = tenant(jobs, 1)
    for first, second in (({}, {}), ({}, {"where": condition}), ({"where": condition}, {})):
        worker = working.worker()
        worker.handle("jobs", **first)(ignore)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="jobs"):
            worker.handle("jobs", **second)(ignore)  # type: ignore[call-overload]
        worker.handle("other")(ignore)
    title, worker = "Jobs of others", working.worker()
    for name in (title, working.create_queue(title).name):
        worker.handle(name)(ignore)
    with pytest.raises(ValueError, match=r"jobs_of_others_.* already has a handler"):
        worker.run(until_empty=True)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_what_is_no_condition_is_refused(working: QueueService, jobs: Queue) -> None:
    """Where it is given, not when the worker runs."""
    conditions: list[Any] = ["tenant = 1", True, 1, {"tenant": 1}]
    jobs.publish("x")
    (message,) = jobs.consume()
    for condition in conditions:
        with pytest.raises(TypeError, match="SQLAlchemy condition"):
            working.worker().handle("jobs", where=condition)
        with pytest.raises(TypeError, match="SQLAlchemy condition"):
            jobs.exchange(message, where=condition)
    message.ack()


# ---------------------------------------------------------------- exchange, take, consume


def test_an_exchange_claims_only_what_matches(jobs: Queue) -> None:
    """The finished are acked whatever they are; the next ones match, oldest first."""
    fill(jobs, 12)
    mine = tenant(jobs, 1)
    messages = jobs.consume(2)
    assert [0, 1] == payloads(messages)
    messages = jobs.exchange(messages, 2, where=mine)
    assert [4, 7] == payloads(messages)
    messages = jobs.exchange(messages[:1], 5, where=mine) + messages[1:]
    assert [10, 7] == payloads(messages)
    assert [] == jobs.exchange(messages, 5, where=mine)
    assert [] == jobs.exchange([], 5, where=mine)
    assert [2, 3] == payloads(jobs.exchange([], 2))
    assert (5, 2, 0) == counts(jobs)


def test_an_exchange_with_a_condition_works_on_priorities(service: QueueService) -> None:
    """From the most urgent level down."""
    queue = service.create_queue("levels", priorities=3, columns=[Column("tenant", Integer)])
    for level in (2, 1, 0):
        for number in range(2):
            queue.publish(f"{level} {number}", priority=level, columns={"tenant": number})
    mine = tenant(queue, 1)
    messages = queue.consume(where=mine)
    assert ["0 1"] == payloads(messages)
    assert ["1 1", "2 1"] == payloads(queue.exchange(messages, 5, where=mine))


def test_the_table_of_another_service_may_be_used_everywhere(
    make_service: MakeService, jobs: Queue, engine: Engine
) -> None:
    """Consume, exchange, take and selections: never every message because one of them matches."""
    fill(jobs, 12)
    foreign = make_service().queue("jobs")
    assert foreign.table is not jobs.table
    mine = tenant(foreign, 1)
    assert 4 == jobs.messages(where=mine).count()
    messages = jobs.consume(where=mine)
    assert [1] == payloads(messages)
    assert [4] == payloads(jobs.exchange(messages, where=mine))
    with engine.begin() as caller:
        assert [7] == payloads(jobs.take(connection=caller, where=mine))
    removed = jobs.messages(where=mine).remove()
    assert 1 == removed
    assert 1 == removed.skipped
    assert [0, 2, 3, 4, 5, 6, 8, 9, 11] == remaining(jobs)


@pytest.mark.engines("sqlite")
def test_a_condition_on_the_archives_table_of_another_service(
    make_service: MakeService, jobs: Queue
) -> None:
    """The archive's selections take it as well."""
    fill(jobs, 6)
    jobs.reject(jobs.consume(6), "bad")
    foreign = make_service().queue("jobs").archive.table
    assert [1, 4] == payloads(jobs.archive.messages(where=foreign.c.tenant == 1).list())
    assert 2 == jobs.archive.messages(where=foreign.c.tenant == 1).requeue()
    assert 4 == len(archived(jobs))


@pytest.mark.engines("sqlite")
def test_a_condition_with_a_query_inside(jobs: Queue, engine: Engine) -> None:
    """A sub-select on another table belongs to the condition as it is written."""
    effects.create(engine)
    fill(jobs, 6)
    with engine.begin() as connection:
        add_effect(connection, 2)
    wanted = jobs.table.c.tenant.in_(select(effects.c.id))
    before = live_rows(engine, jobs)
    assert [2, 5] == payloads(jobs.messages(where=wanted).list())
    messages = jobs.consume(9, where=wanted)
    assert [2, 5] == payloads(messages)
    jobs.release(messages)
    assert [row[:3] for row in before] == [row[:3] for row in live_rows(engine, jobs)]
