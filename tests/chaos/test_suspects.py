"""A message that kills its process dies alone: none of its neighbours becomes a dead letter."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import FixedDelay
from queue_over_sql.testing.servers import DEFAULT_ENGINES
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queue_over_sql.testing.plugin import MakeService, TestDatabase

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

# Two processes, each replaced at once, as `worker --processes 2` does after a pause. They are
# forked before there is a service, so that one costs no import.
ARENA = """
import os, random, sys, time
from queue_over_sql import QueueService

url, name, prefetch = sys.argv[1], sys.argv[2], int(sys.argv[3]) or None

def work():
    service = QueueService(url, consumer_timeout=2, reaper_interval=0.1)
    worker = service.worker(concurrency=4, prefetch=prefetch, poll_interval=(0.005, 0.05))

    @worker.handle(name)
    def handle(message):
        time.sleep(random.random() * 0.04)
        if message.payload == "crash":
            os._exit(9)

    worker.run(signals=True)
    service.stop()

def start():
    number = os.fork()
    if not number:
        random.seed()
        work()
        os._exit(0)
    print(number, flush=True)

start()
start()
while os.wait()[1]:
    start()
"""


def victims(
    seeds: Iterable[int], make_service: MakeService, database: TestDatabase, max_attempts: int
) -> dict[int, list[str]]:
    """Run seeds side by side; returns what became a dead letter besides the one that crashes."""
    service = make_service()
    queues = {}
    with ExitStack() as stack:
        for seed in seeds:
            chance = random.Random(seed)  # noqa: S311 - no secret
            queue = queues[seed] = service.create_queue(
                f"jobs{seed}", retry=FixedDelay(0), max_attempts=max_attempts, archive="all"
            )
            good = [f"good {number}" for number in range(40)]
            good.insert(chance.randrange(41), "crash")
            queue.publish_many(good)
            arena = stack.enter_context(
                subprocess.Popen(
                    [
                        sys.executable,
                        "-c",
                        ARENA,
                        database.url,
                        queue.name,
                        f"{chance.choice((0, 3))}",
                    ],
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
            stack.callback(_end, arena)
        for seed, queue in queues.items():
            eventually(lambda: queue.stats().live == 0, f"seed {seed} ends", within=300)  # noqa: B023 - runs at once
    found: dict[int, list[str]] = {}
    for seed, queue in queues.items():
        dead = queue.archive.messages(status="failed").list()
        assert 40 + 1 == queue.stats().archived, seed
        (crasher,) = [message for message in dead if message.payload == "crash"]
        found[seed] = [message.payload for message in dead if message.payload != "crash"]
        # One more, unless it came last and so was alone from the beginning.
        assert found[seed] or max_attempts <= crasher.attempt, seed
        service.drop_queue(queue.name)
    return {seed: names for seed, names in found.items() if names}


def _end(arena: subprocess.Popen[str]) -> None:
    os.killpg(arena.pid, signal.SIGKILL)


def test_neighbours_of_a_message_that_crashes_are_no_victims(
    make_service: MakeService, database: TestDatabase
) -> None:
    """Forty good ones, four at once in each of two processes, and two attempts."""
    assert {} == victims((1, 2), make_service, database, max_attempts=2)


@pytest.mark.full
def test_no_neighbour_is_a_victim_whatever_the_order(
    make_service: MakeService, database: TestDatabase
) -> None:
    """A hundred runs, twenty on each engine, with the attempts of a usual queue."""
    first = 20 * DEFAULT_ENGINES.index(database.engine)
    # Each process of H2 starts a JVM. If too many do at once, heartbeats come too late.
    side_by_side = 2 if database.engine == "h2" else 5
    for start in range(first, first + 20, side_by_side):
        seeds = range(start, start + side_by_side)
        assert {} == victims(seeds, make_service, database, max_attempts=3)
