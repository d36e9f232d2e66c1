"""The kill tests in full length, for ``scripts/chaos/spark``; no test of the usual runs.

Each run publishes numbered messages, lets queries drain them through kills, and then accounts for
every message in the sink, in the queue and in the archive.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_over_sql import QueueService
from queue_over_sql.testing.plugin import TestDatabase, TestServer
from tests.chaos.processes import Crew, Process
from tests.chaos.roles import consumer
from tests.chaos.roles.spark_driver import Query
from tests.chaos.spark.crashes import Victim
from tests.chaos.spark.runs import Run, arrived_at, rows_left
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.timeout(3600)]

LIVES = int(os.environ.get("QUEUE_OVER_SQL_CHAOS_LIVES", "15"))
SMALL = {"maxMessagesPerTrigger": "400", "messagesPerPartition": "150"}
SINKS = ("parquet", "queue", "batches")

ON_DRIVER = (
    *("before_ack", "in_ack", "in_open", "after_claim", "after_ack", "before_partitions"),
    *("after_partitions", "before_commit", "after_commit"),
)
ON_EXECUTORS = ("in_claim", "after_executor_claim", "in_read", "after_read", "in_work")
WHEN = ("before", "in", "after")
OF_SINKS = {
    "parquet": (),
    "queue": tuple(f"{when}_{act}" for act in ("stage", "publish") for when in WHEN),
    "batches": ("before_write", "after_write"),
}


def points_of(sink: str) -> Iterator[tuple[str, Victim]]:
    """Every crash point of a query with this sink, and who dies there."""
    for point in (*ON_DRIVER, *ON_EXECUTORS, *OF_SINKS[sink]):
        yield point, "driver"
    for point in (*ON_EXECUTORS, *OF_SINKS[sink][:3]):
        if sink != "batches" or point in ON_EXECUTORS:
            yield point, "worker"


@pytest.mark.parametrize("sink", SINKS)
def test_each_crash_point(sink: str, database: TestDatabase, crew: Crew, tmp_path: Path) -> None:
    """Killed once at every point, in the order in which chance brings them up."""
    run = Run(crew, tmp_path)
    name = f"{database.engine}-{sink}"
    run.add(name, database.url, sink, messages=12_000, **SMALL)
    chance = random.Random(name)  # noqa: S311 - chance, not a secret
    for point, victim in points_of(sink):
        run.flags.arm(name, point, victim=victim, passes=chance.randrange(3))
    run.drain(most_lives=60)
    print(f"{name}: {run.lives} lives; killed at {run.flags.fired()}")  # noqa: T201
    assert [] == run.flags.left()
    run.check()


def test_random_moments(database: TestDatabase, crew: Crew, tmp_path: Path) -> None:
    """Three queries of one driver, killed again and again whatever they do."""
    run = Run(crew, tmp_path)
    for sink in SINKS:
        run.add(sink, database.url, sink, messages=8_000, queue=f"for_{sink}", **SMALL)
    chance = random.Random(database.engine)  # noqa: S311 - chance, not a secret
    for _ in range(LIVES):
        driver = run.start()
        driver.expect("started")
        time.sleep(chance.uniform(0.0, 8.0))
        end_group(driver)
    run.drain(most_lives=run.lives + 3)
    run.check()


def test_workers_of_spark_die(database: TestDatabase, crew: Crew, tmp_path: Path) -> None:
    """Python workers are killed at random while the driver goes on: Spark repeats their tasks."""
    run = Run(crew, tmp_path)
    query = run.add("reports", database.url, "parquet", messages=15_000, **SMALL)
    driver = run.start(until_empty=False)
    driver.expect("started")
    chance = random.Random(database.engine)  # noqa: S311 - chance, not a secret
    killed = 0
    while rows_left(query) and driver.alive:
        for pid in workers_below(driver.pid):
            if chance.random() < 0.3:
                os.kill(pid, signal.SIGKILL)
                killed += 1
        time.sleep(chance.uniform(0.2, 1.5))
    finish(driver)
    print(f"{database.engine}: {killed} workers killed")  # noqa: T201
    assert killed > 0
    run.check()


def test_other_sizes_after_a_kill(database: TestDatabase, crew: Crew, tmp_path: Path) -> None:
    """The partition size changes between crash and restart: the replay keeps the old one."""
    run = Run(crew, tmp_path)
    query = run.add("reports", database.url, "queue", messages=6_000, **SMALL)
    sizes = (37, 400, 90, 150, 61, 222)
    for number, size in enumerate(sizes):
        options = {**query.options, "messagesPerPartition": str(size)}
        run.queries = [Query(**{**vars(query), "options": options})]
        point = ("after_publish", "in_publish", "after_stage")[number % 3]
        run.flags.arm("reports", point, passes=number % 2)
        driver = run.start()
        assert -9 == driver.join(within=300.0)
    run.drain(most_lives=run.lives + 2)
    run.check()


def test_a_deleted_checkpoint(database: TestDatabase, crew: Crew, tmp_path: Path) -> None:
    """What was not acknowledged comes again, then the rest: only that batch comes twice."""
    run = Run(crew, tmp_path)
    query = run.add("reports", database.url, "batches", messages=4_000, **SMALL)
    run.flags.arm("reports", "after_write", passes=3)
    assert -9 == run.start().join(within=300.0)
    shutil.rmtree(Path(query.folder) / "checkpoint")
    shutil.move(Path(query.folder) / "batches.db", Path(query.folder) / "first.db")
    run.drain(most_lives=4)
    arrived = Counter(arrived_at(query))
    assert {1} == set(arrived.values())
    first = 4 * int(SMALL["maxMessagesPerTrigger"])
    # The fourth batch was written and not acknowledged.
    assert len(run.published["reports"]) - first + first // 4 == len(arrived)
    assert [] == rows_left(query)


def test_twins_of_a_query(database: TestDatabase, crew: Crew, tmp_path: Path) -> None:
    """Two drivers run the same query on one checkpoint, each started when it was thrown out."""
    run = Run(crew, tmp_path)
    query = run.add("reports", database.url, "queue", messages=10_000, **SMALL)
    twins = [run.start(until_empty=False), run.start(until_empty=False)]
    deadline = time.monotonic() + 600.0
    while rows_left(query) and time.monotonic() < deadline:
        for index, twin in enumerate(twins):
            if not twin.alive and run.lives < 2 * LIVES:
                twins[index] = run.start(until_empty=False)
        time.sleep(1.0)
    for twin in twins:
        finish(twin)
    run.drain(most_lives=run.lives + 3)
    run.check()


def test_ordinary_workers_beside(database: TestDatabase, crew: Crew, tmp_path: Path) -> None:
    """Workers and a query that is killed drain one queue: each message is done by one of them."""
    run = Run(crew, tmp_path)
    query = run.add("reports", database.url, "parquet", messages=12_000, **SMALL)
    helpers = [
        crew.spawn(consumer.Arguments(database.url, str(crew.journals), batch=20)) for _ in range(2)
    ]
    driver = run.start(until_empty=False)
    driver.expect("started")
    for helper in helpers:
        helper.expect("ready")
        helper.tell("go")
    time.sleep(4.0)
    end_group(driver)
    run.drain(most_lives=4)
    eventually(lambda: not rows_left(query), "nothing is left", within=120.0)
    for helper in helpers:
        helper.tell("stop")
        helper.expect("done")
    theirs = crew.account().tokens("settled", "ack")
    arrived = Counter(arrived_at(query)) + Counter(theirs)
    assert Counter(run.published["reports"]) == arrived
    assert theirs


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_outages(ending: str, server: TestServer, crew: Crew, tmp_path: Path) -> None:
    """The database restarts again and again under a running query, which goes on by itself."""
    run = Run(crew, tmp_path)
    query = run.add("reports", server.url, "queue", messages=20_000, **SMALL)
    driver = run.start(until_empty=False)
    driver.expect("started")
    for _ in range(4):
        time.sleep(3.0)
        getattr(server, ending)()
        time.sleep(1.5)
        server.start()
    eventually(lambda: not rows_left(query), "nothing is left", within=400.0, every=1.0)
    assert driver.alive
    finish(driver)
    run.check()


def test_an_expired_consumer(database: TestDatabase, crew: Crew, tmp_path: Path) -> None:
    """What a query held that did not come back goes to others; when it comes, it is refused."""
    run = Run(crew, tmp_path)
    query = run.add("reports", database.url, "batches", messages=900, **SMALL)
    brief = {**query.options, "consumerTimeout": "1s"}
    run.queries = [Query(**{**vars(query), "options": brief})]
    run.flags.arm("reports", "before_write", passes=1)
    assert -9 == run.start().join(within=300.0)
    time.sleep(2.0)
    service = QueueService(database.url)
    with service:
        service.reap()
        queue = service.queue("jobs")
        eventually(lambda: queue.stats().claimed == 0, "the claims are given back")
    driver = run.start()
    driver.expect("started")
    assert "RoundsGone" in driver.expect("failed")["error"]


def finish(driver: Process) -> None:
    """End a driver that goes on until it is told."""
    if driver.alive:
        driver.tell("stop")
        driver.join(within=120.0)


def end_group(driver: Process) -> None:
    """`kill -9` of a driver with its JVM."""
    os.killpg(driver.pid, signal.SIGKILL)
    driver.join(within=60.0)


def workers_below(pid: int) -> list[int]:
    """The Python workers of a driver: children of its daemons, which are children of its JVM."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        parents[int(entry.parent.name)] = int(fields[1])
    below = {pid}
    for _ in range(5):
        below |= {child for child, parent in parents.items() if parent in below}
    return [one for one in below if is_worker(one) and is_worker(parents.get(one, 0))]


def is_worker(pid: int) -> bool:
    """Whether this is a Python worker or the daemon that forks them."""
    try:
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
