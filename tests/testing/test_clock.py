"""A clock that tests move: everything on the database's time follows it, on every engine."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import column, create_engine, table, update

from queue_over_sql import ClaimLost, FixedDelay, QueueService
from queue_over_sql.testing import Clock
from tests.contract.queue_state import counts, payloads

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Queue
    from queue_over_sql.testing.plugin import MakeService, TestDatabase


def test_time_passes_without_waiting(database: TestDatabase, make_service: MakeService) -> None:
    """Delays, leases, retries, windows of keys, schedules and ages in the archive follow.

    So do statements that were compiled before, publishes on the caller's own connection, and
    another service of the clock. The services stay alive as consumers.
    """
    service, other = make_service(), make_service()
    queue = service.create_queue(
        "jobs", retry=FixedDelay(600), lease=300, dedup_window=600, archive="all", archive_ttl=7200
    )
    there = other.queue("jobs")
    queue.publish("delayed", delay=600)
    assert [] == queue.consume()
    clock = Clock(service, other)
    began = clock.now()
    clock.advance(601)
    [message] = there.consume()
    assert timedelta(seconds=601) <= clock.now() - began < timedelta(seconds=661)
    message.nack()
    assert [] == queue.consume()

    clock.advance(601)
    [retried] = queue.consume()
    assert 2 == retried.attempt
    clock.advance(timedelta(seconds=301))
    [lost] = there.consume()
    assert 3 == lost.attempt
    with pytest.raises(ClaimLost):
        retried.ack()
    lost.ack()

    engine = create_engine(database.url)
    with engine.begin() as connection:
        queue.publish("mine", delay=60, key="k", connection=connection)
    engine.dispose()
    assert [] == queue.consume()
    clock.advance(61)
    queue.ack(queue.consume())
    assert "skipped" == queue.publish("again", key="k", on_conflict="skip").outcome
    clock.advance(601)
    assert "created" == queue.publish("again", key="k", on_conflict="skip").outcome
    assert ["again"] == payloads(queue.consume(2))
    assert 2 == counts(queue)[2]
    clock.advance(7201)
    assert 0 == counts(queue)[2]
    assert {True} == {each.consumer_id is not None for each in (service, other)}


def test_schedules_publish_what_falls_due(service: QueueService, queue: Queue) -> None:
    """One pass of the reaper is part of each move."""
    clock = Clock(service)
    service.schedules.add("daily", queue, "report", cron="0 6 * * *", missed="all")
    assert [] == queue.consume()
    clock.advance(timedelta(days=1))
    with queue.receive() as message:
        assert message is not None
    assert [] == queue.consume()
    clock.advance(timedelta(days=2))
    assert ["report"] * 2 == payloads(queue.consume(5))
    with pytest.raises(ValueError, match="by"):
        clock.advance(0)


def test_a_second_clock_of_a_service_joins_the_first(make_service: MakeService) -> None:
    """Both show one time and move all their services, so no service is left behind."""
    service, other, third = make_service(), make_service(), make_service()
    queue = service.create_queue("jobs")
    there = other.queue("jobs")
    assert [] == queue.consume() + there.consume()
    first, second = Clock(service), Clock(service, other)
    first.advance(600)
    assert abs(second.now() - first.now()) < timedelta(seconds=60)
    assert 600_000_000 == second.microseconds
    queue.publish("late", delay=600)
    second.advance(300)
    first.advance(301)
    assert first.microseconds == second.microseconds
    [message] = there.consume()
    message.ack()
    assert {True} == {each.consumer_id is not None for each in (service, other)}

    Clock(third).advance(1)
    with pytest.raises(ValueError, match="different Clocks"):
        Clock(service, third).advance(1)
    assert 1201_000_000 == first.microseconds
    other.stop()
    first.advance(1)


def test_consumers_of_other_processes_stay_alive(make_service: MakeService, engine: Engine) -> None:
    """A started service that follows a clock gives back what its own process lost, nothing else."""
    mine, lost, theirs = make_service(), make_service(), make_service()
    mine.start()
    queue = mine.create_queue("jobs", lease=7200)
    queue.publish_many(["lost", "theirs"])
    [gone] = lost.queue("jobs").consume()
    [held] = theirs.queue("jobs").consume()
    consumers = table("queue_over_sql_consumers", column("consumer_id"), column("pid"))
    their_row = update(consumers).where(consumers.c.consumer_id == theirs.consumer_id)
    with engine.begin() as connection:
        connection.execute(their_row.values(pid=consumers.c.pid + 1))
    Clock(mine).advance(3600)
    mine.reap()
    held.ack()
    with pytest.raises(ClaimLost):
        gone.ack()
    left = {one.consumer_id for one in mine.consumers()}
    assert mine.consumer_id in left
    assert theirs.consumer_id in left
    assert ["lost"] == payloads(queue.consume())
