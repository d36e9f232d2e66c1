"""Servers publish one schedule together, and are killed: each time exactly once."""

from __future__ import annotations

import random
import time
from datetime import datetime, timedelta

import pytest

from queue_over_sql import Queue, QueueService
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.processes import Crew
from tests.chaos.roles import scheduler
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

EVERY = 0.2
STEP = timedelta(seconds=EVERY)


def scheduled(queue: Queue) -> list[datetime]:
    """The instants that have a message, with repetitions if there are any."""
    return sorted(message.scheduled_at for message in queue.messages().list(limit=100_000))


def check_each_instant_once(service: QueueService, queue: Queue) -> None:
    """After a pass there is one message for each instant from the first on, up to the next."""
    schedule = service.schedules.get("tick")
    service.reap()
    assert schedule.next_at is not None
    found = scheduled(queue)
    first = schedule.created_at + STEP
    assert [first + STEP * number for number in range(len(found))] == found
    assert found[-1] >= schedule.next_at


@pytest.mark.default_on("sqlite", "postgresql")
@pytest.mark.parametrize(("count", "kills"), [(2, 2), pytest.param(3, 6, marks=pytest.mark.full)])
def test_servers_are_killed_while_they_fire(
    count: int, kills: int, make_service: MakeService, database: TestDatabase, crew: Crew
) -> None:
    """Servers with reapers, one of which dies again and again and is replaced."""
    service = make_service()
    queue = service.create_queue("jobs")
    arguments = scheduler.Arguments(database.url, EVERY)
    servers = [crew.spawn(arguments) for _ in range(count)]
    for server in servers:
        server.expect("ready")
    for _ in range(kills):
        before = len(scheduled(queue))
        eventually(lambda: len(scheduled(queue)) > before + 4, "the schedule goes on")  # noqa: B023
        # At any point of its pass, a transaction included.
        time.sleep(random.uniform(0, 0.2))  # noqa: S311
        servers.pop(0).kill()
        servers.append(crew.spawn(arguments))
    for server in servers:
        server.expect("ready")
        server.kill()

    check_each_instant_once(service, queue)


@pytest.mark.full
def test_all_servers_are_gone_for_a_while(
    make_service: MakeService, database: TestDatabase, crew: Crew
) -> None:
    """What was published ahead is due without them; who comes back makes up for all the rest."""
    service = make_service()
    queue = service.create_queue("jobs")
    arguments = scheduler.Arguments(database.url, EVERY)
    first = [crew.spawn(arguments) for _ in range(2)]
    for server in first:
        server.expect("ready")
        server.kill()
    ahead = scheduled(queue)
    assert len(ahead) >= 5 / EVERY - 1

    assert ahead[-1].tzinfo is not None
    eventually(
        lambda: datetime.now(ahead[-1].tzinfo) > ahead[-1] + 15 * STEP, "some instants are missed"
    )
    assert len(ahead) == len(scheduled(queue)) == queue.stats().ready
    second = [crew.spawn(arguments) for _ in range(2)]
    for server in second:
        server.expect("ready")
    eventually(lambda: len(scheduled(queue)) > len(ahead) + 30, "the schedule goes on")
    for server in second:
        server.kill()

    check_each_instant_once(service, queue)


@pytest.mark.full
def test_a_removal_while_servers_fire(
    make_service: MakeService, database: TestDatabase, crew: Crew
) -> None:
    """Servers in the middle of a pass publish nothing for a schedule that is removed."""
    service = make_service()
    queue = service.create_queue("jobs")
    servers = [crew.spawn(scheduler.Arguments(database.url, EVERY, 0.01)) for _ in range(3)]
    for server in servers:
        server.expect("ready")
    for _ in range(10):
        service.schedules.add("tick", "jobs", "tick", every=EVERY, missed="all")
        eventually(lambda: queue.stats().ready > 1, "some are due")
        assert service.schedules.remove("tick")
        queue.purge()
        time.sleep(0.05)
        assert [] == scheduled(queue)
