"""Steps of the clocks: the host's does not matter, and the database's loses and hides nothing."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from queue_over_sql import FixedDelay, Observer
from queue_over_sql.consumers import registrations
from queue_over_sql.errors import Locked
from queue_over_sql.observability import Level, diagnose
from queue_over_sql.recovery.recovery import Recovery
from queue_over_sql.service import parts_of
from queue_over_sql.testing import Clock
from tests.contract.host_clock import HostClock
from tests.contract.queue_state import payloads
from tests.contract.test_consumer import heartbeat_of
from tests.contract.worker.running_worker import running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Message, QueueService
    from queue_over_sql.observer import ReaperReport
    from queue_over_sql.testing.plugin import MakeService

HOUR = 3600.0
YEAR = 365 * 24 * HOUR


class Passes(Observer):
    """Counts the passes of the reaper."""

    def __init__(self) -> None:
        self._done = threading.Semaphore(0)

    def reaped(self, report: ReaperReport, seconds: float) -> None:
        """Count one."""
        del report, seconds
        self._done.release()

    def come(self, count: int) -> bool:
        """Whether so many more come."""
        return all(self._done.acquire(timeout=30) for _ in range(count))


def stops(service: QueueService) -> bool:
    """Whether a service stops by itself, and not only when the test ends."""
    stopping = threading.Thread(target=service.stop, daemon=True)
    stopping.start()
    stopping.join(30)
    return not stopping.is_alive()


@pytest.mark.engines("sqlite")
@pytest.mark.driver_decides
def test_a_step_of_the_hosts_clock_stops_no_background_work(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats, passes of the reaper and schedules go on, and so does the worker."""
    passes = Passes()
    service = make_service(observer=passes, reaper_interval=0.05, consumer_timeout=3.0)
    service.create_queue("jobs")
    service.schedules.add("tick", "jobs", None, every=0.2)
    worker, ticks = service.worker(concurrency=1), threading.Semaphore(0)

    @worker.handle("jobs")
    def work(_: Message) -> None:
        ticks.release()

    with running(worker):
        assert passes.come(2)
        clock = HostClock(monkeypatch)
        for seconds in (0.0, -HOUR, HOUR, YEAR, -YEAR):
            clock.move(seconds)
            before, me = heartbeat_of(service), service.consumer_id
            assert passes.come(3), seconds
            wait_until(lambda: heartbeat_of(service) > before, timeout=30)  # noqa: B023 - at once
            assert all(ticks.acquire(timeout=30) for _ in range(2)), seconds
            # Each heartbeat was in time, so it did not have to register anew.
            assert me == service.consumer_id, seconds
    assert stops(service)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("a stopped clock stops all timers of an event loop")
def test_a_service_works_and_stops_though_a_test_stopped_the_clock(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As freezegun and time_machine do, which also let the time be another one."""
    passes = Passes()
    service = make_service(observer=passes, reaper_interval=0.05)
    service.start()
    # The third knows what the first two cost.
    assert passes.come(3)
    clock = HostClock(monkeypatch)
    clock.move(YEAR)
    clock.stop()
    assert passes.come(2)
    assert stops(service)


def set_back(clock: Clock) -> None:
    """Set the database's clock back, for the services of a clock that is ahead."""
    clock._time.microseconds = 0


@pytest.mark.threads("what the database holds does not depend on who asks it")
def test_what_is_due_stays_due_when_the_databases_clock_is_set_back(
    make_service: MakeService,
) -> None:
    """In its order, before all that comes later; a delay stays a delay by the clock as it is."""
    service = make_service()
    queue = service.create_queue("jobs", priorities=2, retry=FixedDelay(60))
    # As if the clock had been wrong until it was set back.
    queue.publish("reminder", delay=300, priority=1)
    clock = Clock(service)
    clock.advance(600)
    queue.publish("delay that ended", delay=60, priority=1)
    queue.publish_many(["held", "failing"])
    held, failing = queue.consume(2)
    queue.publish_many(["first", "second"])
    queue.publish("relaxed", priority=1)
    queue.publish("much later", delay=3600)
    clock.advance(60)
    set_back(clock)
    failing.nack()
    queue.publish("delayed", delay=60)
    service.reap()
    queue.publish("last")
    held.release()
    assert ["held", "first", "second", "last"] == payloads(queue.consume(4))
    assert ["delay that ended", "relaxed"] == payloads(queue.consume(5))
    # Once is enough.
    service.reap()
    assert [] == queue.consume()
    assert 4 == queue.stats().delayed


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python remembers it")
def test_what_a_lock_put_off_counts_at_the_next_step_of_the_clock(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second step is the smaller one, and only the first made the message due later."""

    def locked(*_: object) -> int:
        raise Locked("by another transaction")

    service = make_service()
    queue = service.create_queue("jobs")
    clock = Clock(service)
    clock.advance(600)
    queue.publish("first")
    service.reap()
    clock._time.microseconds = 60_000_000
    with monkeypatch.context() as patched:
        patched.setattr(Recovery, "keep_due", locked)
        service.reap()
    set_back(clock)
    service.reap()
    assert ["first"] == payloads(queue.consume())


@pytest.mark.threads("what the database holds does not depend on who asks it")
def test_a_service_that_starts_later_sees_that_the_clock_was_set_back(
    make_service: MakeService,
) -> None:
    """By the time of the newest message; the doctor tells it, too."""
    ahead, service = make_service(), make_service()
    clock = Clock(ahead)
    clock.advance(600)
    queue = ahead.create_queue("jobs")
    queue.publish_many(["first", "second"])
    queue.publish("delayed", delay=60)
    ahead.stop()
    [finding] = [one for one in diagnose(service) if "queue jobs" in one.text]
    assert Level.WARNING == finding.level
    assert "clocks" == finding.about
    assert "10 min" in finding.text
    here = service.queue("jobs")
    assert [] == here.consume()
    service.reap()
    here.publish("last")
    assert ["first", "second", "last"] == payloads(here.consume(5))
    assert [] == here.consume()


@pytest.mark.threads("what the database holds does not depend on who asks it")
def test_who_died_before_the_databases_clock_was_set_back_expires_in_time(
    make_service: MakeService, engine: Engine
) -> None:
    """Its last heartbeat is ahead; its messages waited until the clock got there."""
    dead, service = make_service(consumer_timeout=60), make_service()
    clock = Clock(service)
    clock.advance(600)
    service.reap()
    dead.create_queue("jobs").consume()
    with engine.begin() as connection:
        ahead = "heartbeat_at = heartbeat_at + 600000000, expires_at = expires_at + 600000000"
        connection.exec_driver_sql(f"UPDATE queue_over_sql_consumers SET {ahead}").close()
    set_back(clock)
    service.reap()
    known = {each.consumer_id: each for each in service.consumers()}
    found = known[str(dead.consumer_id)]
    assert timedelta(seconds=60) == found.expires_at - found.heartbeat_at
    assert heartbeat_of(dead) < datetime.now(UTC) + timedelta(seconds=60)


@pytest.mark.threads("what the database holds does not depend on who asks it")
def test_what_a_dead_consumer_held_is_known_although_the_databases_clock_was_set_back(
    make_service: MakeService, engine: Engine
) -> None:
    """Where the dead have no time of expiry, there is the number of their messages."""
    service = make_service()
    service.start()
    connections, system = parts_of(service).connections, parts_of(service).system()
    with engine.begin() as connection:
        ahead = "heartbeat_at = heartbeat_at + 600000000, expires_at = -2"
        connection.exec_driver_sql(f"UPDATE queue_over_sql_consumers SET {ahead}").close()
    step, expressions = 600_000_000, connections.dialect.expressions
    connections.run(lambda c: registrations.set_back(c, system, expressions, step))
    found = connections.run(lambda c: c.execute(select(system.consumers.c.expires_at)).scalar())
    assert -2 == found
    assert 2 == registrations.others_of(found)
