"""History: its rows per minute, what is read from them, and outages."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from sqlalchemy import select, update

from queue_over_sql import DatabaseUnavailable, QueueService
from queue_over_sql.observability import history
from queue_over_sql.observability.history import BOUNDS, History, quantile, read_history
from queue_over_sql.service import parts_of
from queue_over_sql.values.limits import HISTORY_COUNTS
from tests.cli.command_line import run, succeed
from tests.contract.host_clock import HostClock
from tests.observability.test_prometheus import use
from tests.waiting import wait_until

if TYPE_CHECKING:
    from queue_over_sql.observability.history import Minute
    from queue_over_sql.testing.plugin import MakeService, TestDatabase


def total(minutes: list[Minute]) -> Minute:
    """All of them together."""
    first, *others = minutes
    for minute in others:
        first.add(minute)
    return first


def test_what_happened_is_written_by_queue_and_minute(make_service: MakeService) -> None:
    """On each engine, at the latest when a service stops; processes are added up."""
    for _ in range(2):
        service = make_service(observer=History())
        queue = use(service)
        queue.purge()
        service.stop()
    reader = make_service()
    found = total(read_history(reader, 3600))
    counts = {name: getattr(found, name) for name in HISTORY_COUNTS}
    assert {
        "published": 12,
        "claimed": 16,
        "redelivered": 2,
        "done": 6,
        "retried": 4,
        "failed": 2,
        "rejected": 2,
        "expired": 0,
        "released": 2,
        "claims_lost": 2,
        "handler_failures": 2,
    } == counts
    assert 14 == sum(found.waited)
    assert 6 == sum(found.handled)
    age = datetime.now(UTC) - found.begins_at
    assert timedelta(minutes=-1) < age < timedelta(minutes=10)
    assert [] == read_history(reader, 3600, "others")


@pytest.mark.engines("sqlite")
def test_a_step_of_the_hosts_clock_moves_no_counts(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was counted before and after it has the minute of the database's clock."""
    service = make_service(observer=History())
    queue, clock = service.create_queue("jobs"), HostClock(monkeypatch)
    queue.publish("before")
    clock.move(-7200)
    queue.publish("after")
    service.stop()
    found = read_history(make_service(), 3600)
    assert 2 == sum(minute.published for minute in found)
    assert all(minute.begins_at <= datetime.now(UTC) for minute in found)


def test_the_present_minute_is_written_again_and_again(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process loses seconds, not a minute; the minute keeps its one row."""
    monkeypatch.setattr(history, "_WRITE_SECONDS", 0.05)
    service, reader = make_service(observer=History()), make_service()
    queue = service.create_queue("jobs")
    for number in range(1, 4):
        queue.publish("x")
        wait_until(
            lambda: number == sum(m.published for m in read_history(reader, 3600))  # noqa: B023
        )
    table = parts_of(reader).system().history
    rows = parts_of(reader).connections.run(lambda c: c.execute(select(table.c.minute)).all())
    assert len({row.minute for row in rows}) == len(rows)
    service.stop()
    assert 3 == total(read_history(reader, 3600)).published


@pytest.mark.engines("sqlite")
def test_later_counts_of_a_finished_minute_have_a_row_of_their_own(
    make_service: MakeService,
) -> None:
    """As where the clock was set back."""
    service = make_service(observer=(observer := History()))
    queue = service.create_queue("jobs")
    for _ in range(2):
        queue.publish("x")
        observer._flush(float("inf"))
    assert 2 == total(read_history(service, 3600)).published


@pytest.mark.engines("sqlite")
def test_an_outage_loses_nothing_and_old_rows_go(make_service: MakeService) -> None:
    """What cannot be written waits in memory for the next minute; rows older than ``keep`` go."""
    service = make_service(observer=(observer := History(keep=timedelta(hours=1))))
    service.create_queue("jobs").publish("x")
    connections = parts_of(service).connections
    with mock.patch.object(connections, "run", side_effect=DatabaseUnavailable("away")):
        observer._flush(float("inf"))
    observer._flush(float("inf"))
    assert 1 == total(read_history(service, 3600)).published

    table = parts_of(service).system().history
    connections.run(lambda c: c.execute(update(table).values(minute=table.c.minute - 120)))
    observer._pruned_at = float("-inf")
    service.queue("jobs").publish("y")
    observer._flush(float("inf"))
    rows = connections.run(lambda c: c.execute(select(table.c.published)).scalars().all())
    assert [1] == list(rows)


@pytest.mark.engines("sqlite")
def test_rows_of_somebody_else(make_service: MakeService) -> None:
    """A histogram that is none counts as empty."""
    service = make_service(observer=(observer := History()))
    service.create_queue("jobs").publish("x")
    observer._flush(float("inf"))
    table = parts_of(service).system().history
    run_ = parts_of(service).connections.run
    for text in ("", "{}", "[1]", json.dumps(["x"] * (len(BOUNDS) + 1))):
        change = update(table).values(waited=text)
        run_(lambda c: c.execute(change))  # noqa: B023 - runs at once
        (minute,) = read_history(service, 3600)
        assert 1 == minute.published, text
        assert 0 == sum(minute.waited), text


def test_quantiles() -> None:
    """The upper bound of the class in which the value lies."""
    nothing = [0] * (len(BOUNDS) + 1)
    assert quantile(nothing, 0.5) is None
    values = [50, 0, 45, *nothing[4:], 5]
    assert [0.001, 0.004, float("inf")] == [quantile(values, q) for q in (0.5, 0.95, 0.99)]


@pytest.mark.engines("sqlite")
def test_a_second_service_needs_its_own(database: TestDatabase) -> None:
    """Its rows would go to the wrong database."""
    observer = History()
    with QueueService(database.url, observer=observer), pytest.raises(ValueError, match="another"):
        QueueService(database.url, observer=observer)


@pytest.mark.engines("sqlite")
def test_stats_since(database: TestDatabase, make_service: MakeService) -> None:
    """The command draws it for people, and writes each minute for machines."""
    nothing = run("stats", "--since", "1h", url=database.url)
    assert 3 == nothing.exit_code
    assert "observer=History()" in nothing.err
    service = make_service(observer=History())
    use(service)
    service.stop()
    shown = succeed("stats", "--since", "1h", url=database.url).out
    _, first, *others = (line.split() for line in shown.splitlines())
    assert ["jobs", "published", "█", "6"] == first[:4], shown
    assert [["done", "▄", "3"], ["failures", "▂", "1"], ["dead", "▃", "2"]] == others, shown
    record = succeed("stats", "jobs", "--since", "1h", "--json", url=database.url).record
    assert "jobs" == record["queue"]
    assert 6 == record["published"]
    assert 3 == record["done"]
