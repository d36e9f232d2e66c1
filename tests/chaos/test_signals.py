"""Signals to a running worker: the first one drains it, the second one stops it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.processes import Crew
from tests.chaos.worker_at_work import TOKENS, drain, publish_tasks, start_worker
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.default_on("sqlite"), pytest.mark.timeout(90)]


STRUCK = """
import asyncio, os, signal, sys
from queue_over_sql import QueueService
from queue_over_sql.aio import AsyncQueueService

plain = QueueService.start

def start(self):
    plain(self)
    os.kill(os.getpid(), signal.SIGTERM)

QueueService.start = start

async def on_loop(url):
    worker = AsyncQueueService(url).worker()

    @worker.handle("jobs")
    async def never(message):
        raise SystemExit(7)

    await worker.run(signals=True)

def in_threads(url):
    worker = QueueService(url).worker()
    worker.handle("jobs")(lambda message: sys.exit(7))
    worker.run(signals=True)

if sys.argv[1] == "asyncio":
    asyncio.run(on_loop(sys.argv[2]))
else:
    in_threads(sys.argv[2])
print("drained")
"""


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("runtime", ["threads", "asyncio"])
def test_a_signal_in_the_middle_of_the_start_drains(
    runtime: str, make_service: MakeService, database: TestDatabase
) -> None:
    """As soon as the consumer is registered: it handles nothing, and leaves in order."""
    service = make_service()
    service.create_queue("jobs").publish({})
    ended = subprocess.run(
        [sys.executable, "-c", STRUCK, runtime, database.url],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 == ended.returncode, ended.stderr
    assert "drained\n" == ended.stdout, ended.stderr
    assert [] == service.consumers()
    assert 1 == service.queue("jobs").stats().ready


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains(
    number: signal.Signals,
    make_service: MakeService,
    database: TestDatabase,
    crew: Crew,
) -> None:
    """What was begun is finished and acknowledged; what was only fetched is untouched and free."""
    queue = publish_tasks(make_service)
    process = start_worker(crew, database, seconds=1.5)
    drain(crew, process, queue, number)


def test_the_second_signal_stops_at_once(
    make_service: MakeService,
    database: TestDatabase,
    crew: Crew,
) -> None:
    """A handler that would run for an hour is left behind; every message comes back."""
    queue = publish_tasks(make_service)
    process = start_worker(crew, database, seconds=3600)
    process.send(signal.SIGTERM)
    with pytest.raises(AssertionError, match="still running"):
        process.join(within=1.0)
    process.send(signal.SIGTERM)
    process.join(within=20)

    assert [] == crew.account().tokens("finished")
    with make_service(reaper_interval=0.2):
        eventually(lambda: queue.stats().ready == len(TOKENS), "all messages are back")
    assert TOKENS == [message.payload["token"] for message in queue.consume(len(TOKENS))]
