"""Workers on Spark and their drivers are killed: no message is lost."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from sqlalchemy import text

from tests.chaos.processes import REPOSITORY
from tests.chaos.roles import spark_workers
from tests.spark.workers.handlers import work
from tests.waiting import eventually

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import QueueService
    from queue_over_sql.testing.plugin import MakeService, TestDatabase

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.timeout(400)]

LONG = "QUEUE_OVER_SQL_TEST_SPARK_LONG"
"""Set to run on all engines: each start of a driver takes ten seconds and more."""
ENGINES = ("sqlite", "postgresql", "mariadb") if os.environ.get(LONG) else ("postgresql",)
COUNT = 300
LONGEST_WAIT = 180.0


class Start(Protocol):
    """Starts a driver."""

    def __call__(self, form: str, *, deadly: bool, pause: float) -> Driver:
        """Return it; the arguments are those of ``spark_workers.Arguments``."""
        ...


class Driver:
    """A driver in a process group of its own."""

    def __init__(self, arguments: spark_workers.Arguments, log: Path) -> None:
        self._out = log.with_suffix(".out")
        with log.open("ab") as errors, self._out.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    spark_workers.__name__,
                    json.dumps(dataclasses.asdict(arguments)),
                ],
                cwd=REPOSITORY,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    def report(self) -> dict[str, int]:
        """Wait for its end, and return what it told."""
        try:
            assert 0 == self._process.wait(LONGEST_WAIT)
        finally:
            self.kill()
        found: dict[str, int] = json.loads(self._out.read_text().splitlines()[-1])
        return found

    def kill(self) -> None:
        """Kill it with its JVM and its workers."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.fixture
def ids(service: QueueService, sql: Engine) -> list[int]:
    """Messages in the queue ``jobs``, and a table for results."""
    queue = service.create_queue("jobs", archive="all", max_attempts=3)
    with sql.begin() as connection:
        connection.execute(text("CREATE TABLE results (message_id BIGINT NOT NULL)"))
    return [p.id for p in queue.publish_many([{"n": number} for number in range(COUNT)])]


@pytest.fixture
def start(database: TestDatabase, tmp_path: Path) -> Start:
    """Starts drivers on the test's database."""

    def start(form: str, *, deadly: bool, pause: float) -> Driver:
        arguments = spark_workers.Arguments(database.url, form, deadly=deadly, pause=pause)
        return Driver(arguments, tmp_path / "log")

    return start


def results(sql: Engine) -> list[int]:
    """The ids in the table, sorted."""
    with sql.connect() as connection:
        return sorted(row[0] for row in connection.execute(text("SELECT message_id FROM results")))


@pytest.mark.full
@pytest.mark.engines(*ENGINES)
@pytest.mark.parametrize("form", ["arrow"] if len(ENGINES) == 1 else ["arrow", "message"])
def test_a_message_that_kills_its_workers_ends_and_all_others_are_done_once(
    start: Start, service: QueueService, sql: Engine, ids: list[int], form: str
) -> None:
    """Each death is counted on few messages, so only the deadly one runs out of attempts."""
    report = start(form, deadly=True, pause=0.0).report()

    queue = service.queue("jobs")
    dead = [m.id for m in queue.archive.messages(status="failed").list()]
    poison = ids[spark_workers.POISON]
    assert [poison] == dead
    assert [number for number in ids if number != poison] == results(sql)
    assert 0 == queue.stats().live
    assert COUNT - 1 == queue.stats().done
    assert report["restarts"] >= 3


@pytest.mark.engines(*ENGINES)
def test_a_killed_driver_loses_nothing_and_does_nothing_twice(
    start: Start, service: QueueService, make_service: MakeService, sql: Engine, ids: list[int]
) -> None:
    """Killed in the middle with all its workers; the next one does the rest, each result once."""
    driver = start("arrow", deadly=False, pause=0.4)
    try:
        eventually(lambda: 40 <= len(results(sql)), "some results", within=120)
    finally:
        driver.kill()
    time.sleep(0.5)
    before = results(sql)
    assert len(before) < COUNT

    # A worker of the next run, which needs no Spark around it for this.
    quick = spark_workers.handler_of(spark_workers.Arguments("", "arrow", deadly=False, pause=0.0))
    work(service, make_service, quick, form="arrow", transactional=True)
    queue = service.queue("jobs")
    assert ids == results(sql)
    assert 0 == queue.stats().live
    assert COUNT == queue.stats().done
