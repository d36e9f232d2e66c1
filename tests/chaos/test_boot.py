"""Many servers start at once and all create the same queues."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, inspect

from queue_over_sql import QueueService
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.processes import Crew, Process
from tests.chaos.roles import booter

pytestmark = [pytest.mark.chaos, pytest.mark.empty_database, pytest.mark.timeout(300)]

QUEUES = ("mails", "orders", "reports", "thumbnails", "webhooks")


def indexes(sql: Engine, queue: str) -> list[dict[str, Any]]:
    """What the database knows of the indexes of a queue's table."""
    return [dict(index) for index in inspect(sql).get_indexes(f"queue_{queue}")]


def booting(crew: Crew, count: int, arguments: booter.Arguments) -> list[Process]:
    """Start servers, and let all of them boot at once."""
    servers = [crew.spawn(arguments) for _ in range(count)]
    for server in servers:
        server.expect("ready", within=120)
    for server in servers:
        server.tell("go")
    return servers


@pytest.mark.parametrize("count", [6, pytest.param(20, marks=pytest.mark.full)])
def test_many_servers_boot_the_same_queues(
    count: int, make_service: MakeService, database: TestDatabase, sql: Engine, crew: Crew
) -> None:
    """All get through; each queue exists once, has its own indexes, and works."""
    for server in booting(crew, count, booter.Arguments(database.url, QUEUES)):
        server.expect("done", within=120)
        assert 0 == server.join()

    service = make_service()
    assert sorted(QUEUES) == sorted(queue.name for queue in service.queues())
    assert [count] * len(QUEUES) == [service.queue(name).stats().ready for name in QUEUES]
    found = {name: indexes(sql, name) for name in QUEUES}
    first = [index["column_names"] for index in found[QUEUES[0]]]
    for name in QUEUES:
        assert sorted(map(str, first)) == sorted(str(i["column_names"]) for i in found[name])
    every = [index["name"] for name in QUEUES for index in found[name]]
    assert sorted(set(every)) == sorted(every)
    assert first


@pytest.mark.full
def test_many_servers_boot_on_one_file_of_h2(crew: Crew, tmp_path: Path) -> None:
    """The first one to open it serves the others, which wait until it does."""
    url = f"h2:///{tmp_path / 'shared'}?AUTO_SERVER=TRUE"
    for server in booting(crew, 10, booter.Arguments(url, QUEUES, stays=True)):
        server.expect("done", within=120)
    service = QueueService(url)
    assert [10] * len(QUEUES) == [service.queue(name).stats().ready for name in QUEUES]
    service.stop()


def test_creators_that_are_killed_keep_nobody_from_creating(
    make_service: MakeService,
    database: TestDatabase,
    crew: Crew,
) -> None:
    """Half of the servers die by kill -9 while they create; the others and the next get through."""
    servers = booting(crew, 8, booter.Arguments(database.url, QUEUES))
    luck = random.Random(7)  # noqa: S311 - chance, not a secret
    for server in servers[::2]:
        time.sleep(luck.uniform(0.0, 0.4))
        server.kill()
    for server in servers[1::2]:
        server.expect("done", within=120)
        assert 0 == server.join()

    service = make_service()
    for name in (*QUEUES, "fresh"):
        queue = service.create_queue(name, priorities=3)
        queue.publish("x")
        assert queue.consume()
