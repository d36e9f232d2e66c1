"""The sink of a stream is killed at each point of a batch, and restarts with other partitions."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import inspect, update

from queue_over_sql.queue import core_of
from queue_over_sql.reaper import StagedWriteCleanup
from tests.chaos.processes import REPOSITORY
from tests.chaos.roles import spark_sink

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.full, pytest.mark.timeout(1200)]

LONG = "QUEUE_OVER_SQL_TEST_SPARK_LONG"
"""Set to die at all points and on all engines: each start of a driver takes ten seconds."""
WHOLE = bool(os.environ.get(LONG))
ENGINES = ("sqlite", "postgresql", "mariadb") if WHOLE else ("postgresql",)
POINTS = spark_sink.POINTS if WHOLE else ("stage_after", "publish_after")
# Two parts of a file of this many lines are too large to travel to the driver unstaged.
LINES = 6_000
LONGEST_WAIT = 240.0


def add_file(folder: Path, number: int) -> None:
    """One file is one batch."""
    folder.mkdir(exist_ok=True)
    first = number * LINES
    lines = [json.dumps({"n": n, "filler": "x" * 150}) for n in range(first, first + LINES)]
    (folder / f"{number}.json").write_text("\n".join(lines), encoding="utf-8")


def run(arguments: spark_sink.Arguments, log: Path) -> int:
    """Run a driver to its end, or to its death; returns its exit code."""
    given = json.dumps(dataclasses.asdict(arguments))
    with log.open("ab") as output:
        driver = subprocess.Popen(
            [sys.executable, "-m", spark_sink.__name__, given],
            cwd=REPOSITORY,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            return driver.wait(LONGEST_WAIT)
        finally:
            driver.kill()


@pytest.mark.engines(*ENGINES)
def test_a_killed_sink_loses_nothing_and_writes_nothing_twice(
    queue: Queue, service: QueueService, database: TestDatabase, sql: Engine, tmp_path: Path
) -> None:
    """Each batch dies once, at another point, and comes again in other parts."""
    source, log = tmp_path / "in", tmp_path / "log"
    for number, point in enumerate((*POINTS, spark_sink.WORKER)):
        add_file(source, number)
        # Each run has its own: a worker that outlives its driver a little must not use it up.
        once = tmp_path / f"once-{number}"
        once.touch()
        arguments = spark_sink.Arguments(
            url=database.url,
            source=str(source),
            checkpoint=str(tmp_path / "checkpoint"),
            crash=point,
            once=str(once),
            split="600k" if number % 2 else "500k",
        )
        code = run(arguments, log)
        expected = 0 if point == spark_sink.WORKER else -signal.SIGKILL
        assert expected == code, log.read_text(errors="replace")[-3000:]
        assert not once.exists(), f"nobody died at {point}"
    found: Counter[int] = Counter()
    after = 0
    while page := queue.messages().list(limit=5_000, after=after):
        found.update(message.payload["n"] for message in page)
        after = page[-1].id
    files = len(POINTS) + 1
    assert set(range(files * LINES)) == set(found)
    assert {1} == set(found.values())
    stages = core_of(queue).context.tables.system.stages
    with sql.begin() as connection:
        connection.execute(update(stages).values(expires_at=1))
    assert 0 < StagedWriteCleanup(service._parts).clean_up()
    left = [n for n in inspect(sql).get_table_names() if n.startswith("queue_over_sql_stage_")]
    assert [] == left
