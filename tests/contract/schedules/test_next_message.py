"""The message of the next time: it keeps nobody waiting."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import GroupFull
from queue_over_sql.testing import Clock
from tests.contract.queue_state import payloads
from tests.contract.schedules.schedule_times import (
    HOUR,
    everything,
    instants,
    next_of,
    on_grid,
    silence,
)
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import QueueService
    from queue_over_sql.settings import WhenFull
    from queue_over_sql.testing.plugin import MakeService

SECOND = timedelta(seconds=1)
YEARLY = "0 0 1 1 *"


# ---------------------------------------------------------------- nobody waits for it

LIMITED: dict[str, dict[str, Any]] = {
    "the largest length": {"max_length": 1},
    "the limit": {"queue_limit": 1, "when_full": "reject"},
    "the largest length of the newest": {"max_length": 1, "when_full": "replace"},
}


def test_a_group_does_not_wait_for_the_next_message(service: QueueService, engine: Engine) -> None:
    """It is published when it is due, behind what the group has by then."""
    queue = service.create_queue("orders", group_limit=1)
    added = service.schedules.add("s", queue, "report", cron=YEARLY, group="a")
    queue.publish("order", group="a")
    service.schedules.run("s")
    for expected in ("order", "report"):
        [message] = consume_exactly(queue, 1)
        assert expected == message.payload
        message.ack()
    assert 0 == service.reap().scheduled
    assert [] == everything(queue)
    silence(engine, queue, "s", added.created_at)
    assert 1 == service.reap().scheduled
    assert ["report"] == payloads(consume_exactly(queue, 1))


def test_the_next_message_takes_no_room(service: QueueService, engine: Engine) -> None:
    """Ordinary messages have all of it, and none replaces or keeps out what is not due yet."""
    for name, limit in LIMITED.items():
        queue = service.create_queue("jobs", **limit)
        added = service.schedules.add("s", queue, "run", cron=YEARLY)
        queue.publish("work")
        service.reap()
        assert ["work"] == payloads(everything(queue)), name
        consume_exactly(queue, 1)[0].ack()
        silence(engine, queue, "s", added.created_at)
        assert 1 == service.reap().scheduled, name
        assert ["run"] == payloads(everything(queue)), name
        service.drop_queue("jobs")


@pytest.mark.engines("sqlite")
def test_a_queue_that_is_full_at_the_time(service: QueueService, engine: Engine) -> None:
    """That run is left out or replaces what waits, as the queue says; the schedule goes on."""
    cases: list[tuple[WhenFull, str]] = [("reject", "work"), ("replace", "run")]
    for when_full, expected in cases:
        queue = service.create_queue("jobs", max_length=1, when_full=when_full)
        added = service.schedules.add("s", queue, "run", every=HOUR)
        silence(engine, queue, "s", added.created_at)
        queue.publish("work")
        service.reap()
        assert [expected] == payloads(everything(queue))
        if when_full == "reject":
            with pytest.raises(GroupFull):
                queue.publish("more")
        assert next_of(added) == next_of(service.schedules.get("s"))
        service.drop_queue("jobs")


@pytest.mark.engines("sqlite")
@pytest.mark.threads("the clock")
def test_a_message_is_due_when_it_is_published(service: QueueService) -> None:
    """Hour by hour in a queue with a limit: none before its time, none left out."""
    clock = Clock(service)
    queue = service.create_queue("jobs", max_length=9)
    added = service.schedules.add("s", queue, 1, every=HOUR)
    for hour in range(3):
        assert [] == everything(queue)
        clock.advance(HOUR)
        [message] = queue.consume(10)
        assert next_of(added) + hour * HOUR == message.scheduled_at
        message.ack()


@pytest.mark.default_on("sqlite", "postgresql")
def test_short_intervals_keep_all_their_times(make_service: MakeService) -> None:
    """A pass that comes after several times of a group publishes each of them."""
    services = [make_service(reaper_interval=0.3) for _ in range(2)]
    queue = services[0].create_queue("orders", group_limit=1)
    for service in services:
        service.start()
    added = services[0].schedules.add("s", queue, 1, every=0.1, group="a")
    wait_until(lambda: len(everything(queue)) >= 10, timeout=60)
    found = instants(everything(queue))
    assert found[0] == added.created_at + SECOND / 10
    assert on_grid(found, SECOND / 10)
    assert all(one.published_at >= one.scheduled_at for one in everything(queue))
