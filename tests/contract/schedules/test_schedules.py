"""Schedules: what is published when, exactly once per time, and missed times."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import PublishOutcome, ScheduleNotFound
from tests.contract.schedules.schedule_times import (
    HOUR,
    everything,
    grid,
    hourly,
    instants,
    next_of,
    now,
    on_grid,
    silence,
    stored,
)
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.schedules.calendar import Missed
    from queue_over_sql.testing.plugin import MakeService

SECOND = timedelta(seconds=1)


# ---------------------------------------------------------------- what there is


def test_a_schedule_says_what_it_is(service: QueueService, queue: Queue) -> None:
    """What add returns, get finds and list lists is what was given, with the next instant.

    Given to add again it changes nothing.
    """
    before = now() - SECOND
    added = service.schedules.add(
        "report",
        "jobs",
        {"kind": "daily"},
        cron="30  6 * * 1-5",
        timezone="Europe/Zagreb",
        missed="skip",
        headers={"a": 1},
        delay=60,
    )
    assert added == service.schedules.get("report")
    assert [added] == service.schedules.list()
    assert "report" == added.name
    assert queue.name == added.queue
    assert {"kind": "daily"} == added.payload
    assert "30 6 * * 1-5" == added.cron
    assert added.every is None
    assert "Europe/Zagreb" == added.timezone
    assert {"headers": {"a": 1}, "delay": timedelta(seconds=60)} == dict(added.options)
    assert "skip" == added.missed
    assert not added.paused
    assert before < added.created_at <= now() + SECOND
    assert next_of(added) > now()
    again = service.schedules.add(
        added.name,
        added.queue,
        added.payload,
        cron=added.cron,
        timezone=added.timezone,
        missed=added.missed,
        **added.options,
    )
    assert added == again


@pytest.mark.engines("sqlite")
def test_the_expiry_of_a_schedule_counts_from_its_times(
    service: QueueService, queue: Queue
) -> None:
    """Its messages are published ahead, and must not expire before they are due."""
    added = service.schedules.add("codes", "jobs", 1, cron=hourly(), expires=60)
    assert {"expires": timedelta(seconds=60)} == dict(added.options)
    by_hand = service.schedules.run("codes").id
    for message in everything(queue):
        assert message.expires_at is not None
        begins = message.published_at if message.id == by_hand else message.scheduled_at
        left = message.expires_at - begins
        # From a look at the clock just before the publish.
        assert timedelta(seconds=60) <= left < timedelta(seconds=70)
    assert 2 == len(everything(queue))


@pytest.mark.engines("sqlite")
@pytest.mark.usefixtures("queue")
def test_schedules_are_listed_by_name(service: QueueService, make_service: MakeService) -> None:
    """Every service of the same tables sees the same ones, with their next instants.

    Those of other tables do not.
    """
    for name in ("b", "a", "c"):
        service.schedules.add(name, "jobs", name, cron=hourly())
    other = make_service()
    assert ["a", "b", "c"] == [schedule.name for schedule in other.schedules.list()]
    following = grid(next_of(other.schedules.get("a")), HOUR, 3)
    assert following == other.schedules.upcoming("a", 3)
    assert [] == make_service(table_prefix="other_").schedules.list()


@pytest.mark.engines("sqlite")
def test_a_schedule_that_is_not_there(service: QueueService) -> None:
    """Each verb says so by its name; removing is no error."""
    for verb in ("get", "pause", "resume", "run", "upcoming"):
        with pytest.raises(ScheduleNotFound) as caught:
            getattr(service.schedules, verb)("nothing")
        assert "nothing" == caught.value.schedule
    assert service.schedules.remove("nothing") is False


# ---------------------------------------------------------------- run now


def test_a_schedule_is_run_now(service: QueueService, queue: Queue, engine: Engine) -> None:
    """Each run is a message as the schedule publishes it, paused or not; its times stay."""
    options: dict[str, Any] = {"headers": {"a": 1}, "kind": "k", "max_attempts": 2}
    added = service.schedules.add("s", queue, {"n": 1}, cron=hourly(), **options)
    (ahead,) = everything(queue)
    row = stored(engine, "s")
    first = service.schedules.run("s")
    assert row == stored(engine, "s")
    assert added == service.schedules.get("s")
    service.schedules.pause("s")
    second = service.schedules.run("s")
    assert PublishOutcome.CREATED == first.outcome
    assert PublishOutcome.CREATED == second.outcome
    messages = consume_exactly(queue, 2)
    assert [first.id, second.id] == [message.id for message in messages]
    for message in messages:
        assert f"schedule:s:{message.scheduled_at.isoformat()}" == message.key
        assert ahead.payload == message.payload
        assert ahead.headers == message.headers
        assert "k" == message.kind
        assert 2 == message.max_attempts
        assert abs(message.scheduled_at - now()) < 60 * SECOND


# ---------------------------------------------------------------- published ahead


def test_the_next_message_is_there_at_once(service: QueueService, queue: Queue) -> None:
    """It waits for its instant, with a key, a header and all options."""
    added = service.schedules.add(
        "s", queue, {"n": 1}, cron=hourly(), headers={"a": 1}, max_attempts=2, lease=9, kind="k"
    )
    (message,) = everything(queue)
    due = next_of(added)
    assert due == message.scheduled_at
    assert due == message.available_at
    assert f"schedule:s:{due.isoformat()}" == message.key
    assert {"n": 1} == message.payload
    assert "k" == message.kind
    assert 2 == message.max_attempts
    assert {"a": 1, "schedule": "s"} == message.headers
    assert [] == queue.consume()


@pytest.mark.engines("sqlite")
def test_all_messages_of_the_next_seconds_are_there_at_once(
    service: QueueService, queue: Queue
) -> None:
    """Five seconds of them, counted from the instant at which the schedule was added."""
    added = service.schedules.add("s", queue, 1, every=0.5)
    found = instants(everything(queue))
    assert grid(added.created_at + SECOND / 2, SECOND / 2, 10) == found
    assert found[0] == added.created_at + SECOND / 2


def test_messages_come_without_any_reaper(service: QueueService, queue: Queue) -> None:
    """What was published ahead is delivered at its time though nobody fires."""
    added = service.schedules.add("s", queue, 1, every=0.1)
    messages = consume_exactly(queue, 5, timeout=20)
    assert grid(added.created_at + SECOND / 10, SECOND / 10, 5) == instants(messages)
    assert all(one.claimed_at and one.claimed_at >= one.scheduled_at for one in messages)


@pytest.mark.engines("sqlite")
def test_a_delay_is_added_to_each_instant(service: QueueService, queue: Queue) -> None:
    """The key names the instant, and the message is due so much later."""
    added = service.schedules.add("s", queue, 1, cron=hourly(), delay=timedelta(minutes=5))
    (message,) = everything(queue)
    assert next_of(added) + timedelta(minutes=5) == message.scheduled_at
    assert f"schedule:s:{next_of(added).isoformat()}" == message.key


# ---------------------------------------------------------------- fired by the reaper


@pytest.mark.engines("sqlite")
def test_a_pass_that_has_nothing_to_do_does_nothing(
    service: QueueService, queue: Queue, engine: Engine
) -> None:
    """While the next message is there, nothing is published or written."""
    service.schedules.add("s", queue, 1, cron=hourly())
    before = stored(engine, "s")
    assert 0 == service.reap().scheduled
    assert 0 == service.reap().scheduled
    assert 1 == len(everything(queue))
    assert before == stored(engine, "s")


@pytest.mark.engines("sqlite")
def test_a_pass_that_is_asked_for_looks_at_each_schedule(
    service: QueueService, queue: Queue, engine: Engine
) -> None:
    """Also if its row was set back after a pass that had nothing to do until later."""
    added = service.schedules.add("s", queue, 1, cron=hourly())
    assert 0 == service.reap().scheduled
    silence(engine, queue, "s", next_of(added))
    assert 1 == service.reap().scheduled


@pytest.mark.default_on("sqlite", "postgresql")
def test_started_services_fire(make_service: MakeService, queue: Queue) -> None:
    """Two servers with their reapers publish one message for each instant, none is missing."""
    services = [make_service(reaper_interval=0.1) for _ in range(2)]
    for service in services:
        service.start()
    added = services[0].schedules.add("s", queue, 1, every=0.1, missed="all")
    at_once = len(everything(queue))
    wait_until(lambda: len(everything(queue)) >= at_once + 10, timeout=60)
    found = instants(everything(queue))
    assert found[0] == added.created_at + SECOND / 10
    assert on_grid(found, SECOND / 10)


def test_many_reapers_at_once_publish_each_instant_once(
    make_service: MakeService, queue: Queue, engine: Engine
) -> None:
    """Passes of six services at the same moment: one message for each missed instant."""
    services = [make_service() for _ in range(6)]
    services[0].schedules.add("s", queue, 1, cron=hourly(), missed="all")
    first = next_of(services[0].schedules.get("s"))
    silence(engine, queue, "s", first - 50 * HOUR)
    with ThreadPoolExecutor(6) as threads:
        fired = [report.scheduled for report in threads.map(lambda one: one.reap(), services)]
    fired += [service.reap().scheduled for service in services]
    assert 51 == sum(fired)
    assert grid(first - 50 * HOUR, HOUR, 51) == instants(everything(queue))


def test_a_key_that_is_there_already_is_no_second_message(
    service: QueueService, queue: Queue, engine: Engine
) -> None:
    """Even if the record of a schedule was set back, an instant has one message."""
    added = service.schedules.add("s", queue, 1, cron=hourly())
    (message,) = everything(queue)
    silence(engine, queue, "s", next_of(added))
    queue.publish("there", key=message.key, at=message.scheduled_at)
    assert 0 == service.reap().scheduled
    assert ["there"] == [one.payload for one in everything(queue)]


# ---------------------------------------------------------------- missed instants


def test_missed_instants(service: QueueService, queue: Queue, engine: Engine) -> None:
    """After nine hours of silence: each, the latest or none; and the next one in any case."""
    cases: list[tuple[Missed, int]] = [("all", 9), ("one", 1), ("skip", 0)]
    for missed, made_up in cases:
        added = service.schedules.add("s", queue, 1, cron=hourly(), missed=missed)
        following = next_of(added)
        silence(engine, queue, "s", following - 9 * HOUR)
        assert made_up + 1 == service.reap().scheduled, missed
        expected = grid(following - made_up * HOUR, HOUR, made_up + 1)
        assert expected == instants(everything(queue))
        due = queue.consume(100)
        assert made_up == len(due)
        queue.ack(due)
        assert 0 == service.reap().scheduled
        service.schedules.remove("s")


@pytest.mark.engines("sqlite")
def test_many_missed_instants_come_oldest_first(
    service: QueueService, queue: Queue, engine: Engine
) -> None:
    """More than one transaction takes: all of them, in their order."""
    added = service.schedules.add("s", queue, 1, cron=hourly(), missed="all")
    following = next_of(added)
    silence(engine, queue, "s", following - 250 * HOUR)
    assert 251 == service.reap().scheduled
    found = [message.scheduled_at for message in everything(queue)]
    assert grid(following - 250 * HOUR, HOUR, 251) == found


@pytest.mark.engines("sqlite")
def test_years_of_silence_cost_nothing(service: QueueService, queue: Queue, engine: Engine) -> None:
    """The latest of a million missed instants is found without counting them all."""
    service.schedules.add("s", queue, 1, cron="* * * * *")
    silence(engine, queue, "s", datetime(2020, 1, 1, tzinfo=UTC))
    assert 2 <= service.reap().scheduled <= 3
    found = instants(everything(queue))
    assert on_grid(found, timedelta(minutes=1))
    assert found[0] <= now() + SECOND < found[-1] + SECOND


@pytest.mark.engines("sqlite")
def test_an_instant_that_was_missed_by_little_is_not_skipped(
    service: QueueService, queue: Queue, engine: Engine
) -> None:
    """A pass that comes a little late has missed nothing, whatever the policy."""
    added = service.schedules.add("s", queue, 1, every=0.5, missed="skip")
    wait_until(lambda: now() > added.created_at + SECOND, timeout=10)
    silence(engine, queue, "s", added.created_at + SECOND / 2)
    service.reap()
    found = instants(everything(queue))
    assert found[0] <= now()
    assert on_grid(found, SECOND / 2)
