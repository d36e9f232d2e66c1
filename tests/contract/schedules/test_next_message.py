"""The message of the next time: it comes back when it is removed, and keeps nobody waiting."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import GroupFull, PublishOutcome
from queue_over_sql.schedules import store
from queue_over_sql.testing import Clock
from tests.contract.queue_state import payloads
from tests.contract.schedules.schedule_times import (
    HOUR,
    everything,
    grid,
    instants,
    next_of,
    on_grid,
    silence,
    stored,
)
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.settings import WhenFull
    from queue_over_sql.testing.plugin import MakeService

SECOND = timedelta(seconds=1)
YEARLY = "0 0 1 1 *"


# ---------------------------------------------------------------- what is removed comes back


def _handle_now(queue: Queue) -> None:
    queue.messages().reschedule(delay=0)
    consume_exactly(queue, 1)[0].ack()


REMOVALS: dict[str, Callable[[Queue], object]] = {
    "purged": lambda queue: queue.purge(),
    "removed": lambda queue: queue.messages(status="delayed").remove(),
    "deleted": lambda queue: queue.delete(everything(queue)[0].id),
    "cancelled": lambda queue: queue.cancel(everything(queue)[0].id),
    "handled earlier": _handle_now,
}


def test_the_next_message_comes_back(service: QueueService, queue: Queue) -> None:
    """However it was removed: the schedule still has its time, and one message for it."""
    for name, remove in REMOVALS.items():
        added = service.schedules.add("s", queue, 1, cron=YEARLY)
        remove(queue)
        assert [] == everything(queue), name
        assert 1 == service.reap().scheduled, name
        assert [next_of(added)] == instants(everything(queue)), name
        assert 0 == service.reap().scheduled, name
        service.schedules.remove("s")


def test_many_reapers_at_once_bring_back_one(make_service: MakeService, queue: Queue) -> None:
    """Passes of six services at the same moment after a purge."""
    services = [make_service() for _ in range(6)]
    added = services[0].schedules.add("s", queue, 1, cron=YEARLY)
    for service in services:
        service.reap()
    queue.purge()
    with ThreadPoolExecutor(6) as threads:
        fired = [report.scheduled for report in threads.map(lambda one: one.reap(), services)]
    fired += [service.reap().scheduled for service in services]
    assert 1 == sum(fired)
    assert [next_of(added)] == instants(everything(queue))


@pytest.mark.engines("sqlite")
@pytest.mark.threads("the clock")
def test_one_that_came_back_runs_once(service: QueueService, queue: Queue) -> None:
    """At its time, and then the schedule goes on; its last run is the message that ran."""
    clock = Clock(service)
    added = service.schedules.add("s", queue, 1, every=HOUR)
    queue.purge()
    service.reap()
    clock.advance(HOUR)
    [message] = queue.consume(10)
    message.ack()
    assert next_of(added) == message.scheduled_at
    assert {next_of(added): message.id} == dict(service.schedules.get("s").last_runs)
    assert grid(next_of(added) + HOUR, HOUR, 1) == instants(everything(queue))
    service.reap()
    assert [] == queue.consume(10)


@pytest.mark.threads("the time that passes in the middle of the pass")
@pytest.mark.engines("sqlite")
def test_a_time_that_comes_meanwhile_does_not_come_back(
    service: QueueService, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is missing since a consumer has handled it, so only the next one follows."""
    added = service.schedules.add("s", queue, 1, every=HOUR)
    is_there = store.is_there

    def be_late(connection: Any, *given: Any) -> bool:
        found = is_there(connection, *given)
        late = int(next_of(added).timestamp() * 1_000_000) + 1
        monkeypatch.setattr(store, "clock", lambda *_: late)
        return found

    queue.purge()
    monkeypatch.setattr(store, "is_there", be_late)
    assert 1 == service.reap().scheduled
    assert grid(next_of(added) + HOUR, HOUR, 1) == instants(everything(queue))


@pytest.mark.engines("sqlite")
@pytest.mark.threads("the clock")
def test_what_is_nearly_due_does_not_come_back(service: QueueService, queue: Queue) -> None:
    """A clock that was set back by seconds shows such a time again after it was handled."""
    clock = Clock(service)
    added = service.schedules.add("s", queue, 1, every=HOUR)
    clock.advance(HOUR - 3 * SECOND)
    assert [next_of(added)] == instants(everything(queue))
    queue.purge()
    service.reap()
    assert next_of(added) not in instants(everything(queue))


@pytest.mark.engines("sqlite")
def test_a_key_that_stays_taken_is_left_alone(service: QueueService, engine: Engine) -> None:
    """Where a key may not come again for a while, a pass neither publishes nor writes."""
    queue = service.create_queue("jobs", dedup_window=HOUR)
    service.schedules.add("s", queue, 1, cron=YEARLY)
    _handle_now(queue)
    before = stored(engine, "s")
    assert 0 == service.reap().scheduled
    assert [] == everything(queue)
    assert before == stored(engine, "s")


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


def test_a_run_that_replaces_what_waits_counts(service: QueueService, engine: Engine) -> None:
    """By hand or by itself: it is a run of the schedule as any other."""
    queue = service.create_queue("jobs", queue_limit=1, when_full="replace")
    added = service.schedules.add("s", queue, "run", every=HOUR)
    queue.publish("work")
    published = service.schedules.run("s")
    assert PublishOutcome.REPLACED == published.outcome
    assert ["run"] == payloads(everything(queue))
    assert [published.id] == [*service.schedules.get("s").last_runs.values()]
    silence(engine, queue, "s", added.created_at)
    queue.publish("work")
    assert 1 == service.reap().scheduled
    [message] = everything(queue)
    assert "run" == message.payload
    assert message.id == service.schedules.get("s").last_runs[added.created_at]


@pytest.mark.engines("sqlite")
def test_a_run_by_hand_finds_no_room(service: QueueService) -> None:
    """It says so at once, and notes no run."""
    queue = service.create_queue("jobs", max_length=1)
    service.schedules.add("s", queue, "run", every=HOUR)
    queue.publish("work")
    with pytest.raises(GroupFull):
        service.schedules.run("s")
    assert {} == dict(service.schedules.get("s").last_runs)


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


@pytest.mark.engines("sqlite")
@pytest.mark.threads("the clock")
def test_the_last_runs_of_short_intervals(service: QueueService, queue: Queue) -> None:
    """The ten that came last, however many are published ahead of them."""
    clock, step = Clock(service), SECOND / 10
    service.schedules.add("s", queue, 1, every=step)
    for _ in range(2):
        clock.advance(3 * SECOND)
        earliest = clock.now() - step
        last = [*service.schedules.get("s").last_runs]
        assert earliest < last[0] <= clock.now()
        assert grid(last[-1], step, 10) == sorted(last)


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
