"""Processes adopt one table at once, and one of them is killed meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert

from queue_over_sql import AdoptedQueue

if TYPE_CHECKING:
    from queue_over_sql.testing.plugin import MakeService, TestDatabase

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.default_on("sqlite", "postgresql"),
    pytest.mark.empty_database,
    pytest.mark.timeout(180),
]

ROOT = Path(__file__).parents[2]
ROWS = 200
ADOPTER = """
import sys
from queue_over_sql import QueueService
with QueueService(sys.argv[1]) as service:
    queue = service.adopt_queue("jobs", "entities", max_attempts=50)
    print("adopted", flush=True)
    queue.enqueue()
    while messages := queue.consume(5, wait=1.0):
        print(*[message.row["number"] for message in messages], flush=True)
        queue.ack(messages)
"""


def create_entities(url: str) -> None:
    """A table of the user's own with rows that are no messages yet."""
    engine = create_engine(url)
    number = Column("number", Integer, primary_key=True)
    table = Table("entities", MetaData(), number, Column("name", String(20)))
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(insert(table), [{"name": f"row {n}"} for n in range(ROWS)])
    engine.dispose()


def start(url: str) -> subprocess.Popen[str]:
    """A process that adopts the table, enqueues its rows and works on them."""
    return subprocess.Popen(
        [sys.executable, "-c", ADOPTER, url],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_two_processes_adopt_at_once(database: TestDatabase) -> None:
    """Both have the queue; between them each row is delivered exactly once."""
    create_entities(database.url)
    processes = [start(database.url) for _ in range(2)]
    try:
        outputs = [process.communicate(timeout=90)[0].splitlines() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [0, 0] == [process.returncode for process in processes]
    assert ["adopted", "adopted"] == [lines[0] for lines in outputs]
    worked = [int(number) for lines in outputs for line in lines[1:] for number in line.split()]
    assert list(range(1, ROWS + 1)) == sorted(worked)


@pytest.mark.parametrize(
    "after",
    [pytest.param(0.02, marks=pytest.mark.full), 0.1, pytest.param(0.3, marks=pytest.mark.full)],
)
def test_whoever_is_killed_leaves_what_the_next_completes(
    database: TestDatabase, make_service: MakeService, after: float
) -> None:
    """A process that dies while it adopts or works: the next adoption makes the queue whole."""
    create_entities(database.url)
    victim = start(database.url)
    # The time to start Python and a driver is not what is to be hit.
    deadline = time.monotonic() + 60
    while not _has_begun(database.url) and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(after)
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    service = make_service(consumer_timeout=30.0)
    queue = service.adopt_queue("jobs", "entities", max_attempts=50)
    assert isinstance(queue, AdoptedQueue)
    queue.enqueue()
    deadline = time.monotonic() + 60
    while queue.stats().done < ROWS and time.monotonic() < deadline:
        service.reap()
        queue.ack(queue.consume(50, wait=0.1))
    assert ROWS == queue.stats().done


def _has_begun(url: str) -> bool:
    """Whether the victim has written its first record."""
    from queue_over_sql import QueueError, QueueService

    service = QueueService(url)
    try:
        return bool(service.consumers())
    except QueueError:
        return True
    finally:
        service.stop()
