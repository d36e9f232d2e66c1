"""The low-water mark spares dead rows and hides no message: late ones come within the bound."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService, TestDatabase

# What a look costs decides when the next one comes.
pytestmark = pytest.mark.timing

# The documented bound is a second on a healthy table; the rest is for a busy machine.
BOUND = 10.0


def seconds_until(queue: Queue, late: object) -> float:
    """Consume one by one under a steady load until ``late`` comes; how long that took."""
    began = time.monotonic()
    while time.monotonic() < began + BOUND:
        queue.publish_many(["load"] * 3)
        for message in queue.consume(2):
            message.ack()
            if message.payload == late:
                return time.monotonic() - began
    raise AssertionError(f"{late!r} did not come within {BOUND} s")


def warmed_up(service: QueueService) -> Queue:
    """A queue whose consumer has a mark, well above what comes next."""
    queue = service.create_queue("jobs")
    queue.publish_many(["old"] * 20)
    time.sleep(0.25)
    queue.publish_many(["load"] * 20)
    for _ in range(15):
        queue.ack(queue.consume(2))
    return queue


@pytest.mark.threads("its publisher's engine is a synchronous one")
def test_a_late_commit_is_found_under_load(service: QueueService, database: TestDatabase) -> None:
    """A publisher that commits long after it published is served, though newer ones wait."""
    queue = warmed_up(service)
    if database.engine == "sqlite":
        # There is one writer: a publish cannot stay open while others publish.
        queue.publish("late", at=datetime.now(UTC) - timedelta(seconds=30))
        seconds_until(queue, "late")
        return
    engine = create_engine(database.url)
    with engine.begin() as publisher:
        queue.publish("late", connection=publisher)
        time.sleep(0.3)
        for _ in range(10):
            queue.publish_many(["load"] * 2)
            queue.ack(queue.consume(2))
    seconds_until(queue, "late")
    engine.dispose()


def test_a_back_dated_message_is_found_under_load(service: QueueService) -> None:
    """``at`` in the past puts a message behind the mark."""
    queue = warmed_up(service)
    queue.publish("late", at=datetime.now(UTC) - timedelta(days=1))
    seconds_until(queue, "late")


def test_a_message_restored_by_another_is_found_under_load(
    service: QueueService, make_service: MakeService
) -> None:
    """What another consumer gives back lands behind this one's mark, and is found."""
    queue = service.create_queue("jobs")
    queue.publish("late")
    other = make_service().queue("jobs")
    held = other.consume()
    warmed_up(service)
    other.release(held)
    seconds_until(queue, "late")


@pytest.mark.threads("a look on a busy loop costs what the other tasks cost, too")
def test_an_idle_queue_hides_nothing(service: QueueService, make_service: MakeService) -> None:
    """Without load the very next look finds what came back, however old its place is."""
    queue = service.create_queue("jobs")
    queue.publish("late")
    other = make_service().queue("jobs")
    held = other.consume()
    warmed_up(service)
    while rest := queue.consume(100):
        queue.ack(rest)
    for _ in range(5):
        other.release(held)
        found = queue.consume()
        assert ["late"] == [message.payload for message in found]
        queue.release(found)
        held = other.consume()
        assert 1 == len(held)
