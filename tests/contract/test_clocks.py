"""Steps of the clocks: the host's does not matter, and the database's loses and hides nothing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import Observer
from tests.contract.host_clock import HostClock
from tests.contract.test_consumer import heartbeat_of
from tests.contract.worker.running_worker import running
from tests.waiting import wait_until

if TYPE_CHECKING:
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
    assert passes.come(1)
    clock = HostClock(monkeypatch)
    clock.move(YEAR)
    clock.stop()
    assert passes.come(2)
    assert stops(service)
