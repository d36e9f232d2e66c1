"""Several queues at once: fair, complete, and quiet while all are empty."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from queue_over_sql import Publication, QueueNotFound
from queue_over_sql.claiming.low_watermark import LowWatermark
from queue_over_sql.queue import core_of
from tests.contract.queue_state import payloads
from tests.refusals import refused

if TYPE_CHECKING:
    from queue_over_sql import QueueService
    from queue_over_sql.testing.plugin import MakeService


def test_several_queues_take_turns(service: QueueService, make_service: MakeService) -> None:
    """Each call begins with the next queue, and gets the oldest messages of one.

    So a queue with a backlog starves none, whatever the queues' rules are; and an empty, a paused
    and a later queue hide nothing.
    """
    plain = service.create_queue("plain")
    urgent = service.create_queue("urgent", priorities=3)
    grouped = service.create_queue("grouped", group_limit=1)
    paused = service.create_queue("paused")
    queues = [service.create_queue("empty"), plain, urgent, paused, grouped]
    plain.publish_many([1, 2, 3, 4, 5, 6])
    urgent.publish_many([Publication(2, priority=2), Publication(1, priority=1)])
    grouped.publish_many([Publication(1, group="a"), Publication(2, group="a")])
    paused.publish("later")
    paused.pause()
    taken: list[tuple[str, Any]] = []
    for _ in range(6):
        [message] = service.consume(queues)
        taken.append((message.queue, message.payload))
        message.ack()
    turns = ["plain", "urgent", "grouped"]
    assert [*[(name, 1) for name in turns], *[(name, 2) for name in turns]] == taken
    assert [3, 4, 5] == payloads(service.consume(queues, 3))
    # Names do as well, and what another process makes ready is found.
    make_service().queue("paused").resume()
    [later] = service.consume(["paused", "empty"], hold_for=60)
    assert "later" == later.payload
    assert later.token
    assert [6] == payloads(service.consume(queues, 10))
    assert [] == service.consume(queues)


def test_who_waits_for_several_queues_hears_of_each(
    service: QueueService, make_service: MakeService
) -> None:
    """A publish to any of them, here or by another process, ends the wait."""
    queues = [service.create_queue(f"jobs_{number}") for number in range(12)]
    other = make_service()
    with ThreadPoolExecutor(1) as pool:
        for name in ("jobs_0", "jobs_11", "jobs_5"):
            waiting = pool.submit(service.consume, queues, wait=30)
            other.queue(name).publish(name)
            [message] = waiting.result()
            assert (name, name) == (message.queue, message.payload)
            message.ack()


@pytest.mark.threads("the look is that of threads")
def test_an_edit_below_the_watermark_is_seen_at_once(
    service: QueueService, make_service: MakeService
) -> None:
    """What others edit is found by the next call, even if full looks are dear."""
    queues = [service.create_queue(f"jobs_{number}") for number in range(4)]
    other, past = make_service(), datetime.now(UTC) - timedelta(hours=1)
    with mock.patch.object(LowWatermark, "_pause", return_value=1e9):
        for queue in queues:
            queue.publish("held", key="k", at=past)
            other.queue(queue.name).messages(key="k").hold()
            for new in (1, 2):
                queue.publish(new)
                assert [new] == payloads(queue.consume())
                assert [] == queue.consume()
            assert core_of(queue).claimer.low(0)
            assert [] == service.consume(queues)
            other.queue(queue.name).messages(status="held").unhold()
            found = service.consume(queues)
            assert [(queue.name, "held")] == [(each.queue, each.payload) for each in found]


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_what_are_no_queues_of_the_service_is_refused(
    service: QueueService, make_service: MakeService
) -> None:
    """Nothing is claimed, and the error says what is wrong."""
    jobs = service.create_queue("jobs")
    jobs.publish("x")
    foreign = make_service().queue("jobs")
    wrong: list[Any] = ["jobs", [], None, [None], [foreign]]
    for queues in wrong:
        with refused(queues, TypeError, ValueError):
            service.consume(queues)
    with pytest.raises(QueueNotFound):
        service.consume(["jobs", "gone"])
    with pytest.raises(ValueError, match="either lease= or hold_for="):
        service.consume([jobs], lease=1, hold_for=1)
    assert 1 == jobs.stats().ready
    gone = service.create_queue("gone")
    jobs.purge()
    make_service().drop_queue("gone")
    with pytest.raises(QueueNotFound, match="gone"):
        service.consume([jobs, gone])
