"""`spark process`, `export-history` and `report` from the command line."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from queue_over_sql import QueueService
from queue_over_sql.testing.plugin import TestDatabase
from tests.cli.command_line import SPARK_SECONDS, Ended, run, run_spark, started
from tests.waiting import eventually

FAILING = """
from pyspark.sql import functions

@functions.udf("string")
def up(text):
    raise ValueError("boom on " + text)

def transform(messages):
    return messages.select(up("payload"))
"""


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.engines("sqlite")
def test_from_a_queue_to_a_report(
    database: TestDatabase, service: QueueService, tmp_path: Path
) -> None:
    """The three commands one after another say as JSON what they did, and do it."""
    queue = service.create_queue("jobs", archive="all")
    queue.publish_many([{"n": number} for number in range(30)])
    (tmp_path / "work.py").write_text("def transform(messages): return messages.select('id')\n")
    written, state = str(tmp_path / "written"), str(tmp_path / "state")
    ended = _spark(
        *("process", "jobs", "work", "--output", written, "--checkpoint", state),
        *("--max-messages", "20"),
        url=database.url,
        cwd=tmp_path,
    )
    told = {"queue": "jobs", "messages": 30, "batches": 2, "stopped": False, "left": None}
    assert told == ended.record, ended.err
    history, made = str(tmp_path / "history"), tmp_path / "report"
    ended = _spark("export-history", history, "--prune", url=database.url)
    exported = {name: ended.record[name] for name in ("number", "exported", "pruned", "messages")}
    assert {
        "number": 1,
        "exported": {"jobs": 30},
        "pruned": {"jobs": 30},
        "messages": 30,
    } == exported
    ended = _spark("report", str(made), "--history", history, url=database.url)
    assert (1, 30, 0) == tuple(ended.record[name] for name in ("queues", "finished", "live"))
    assert (made / "report.html").exists()
    # What Spark itself has to say is not the command's output.
    assert 1 == len(ended.out.splitlines())


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.engines("sqlite")
@pytest.mark.full
@pytest.mark.parametrize(
    ("whom", "sink"),
    [("the command", ("--output", "written")), ("all its processes", ("--to", "done"))],
)
def test_a_query_ends_by_a_signal(
    whom: str, sink: tuple[str, str], database: TestDatabase, service: QueueService, tmp_path: Path
) -> None:
    """With code 0 and no complaint of a JVM that has gone; started again, it goes on."""
    queue = service.create_queue("jobs", archive="all")
    service.create_queue("done")
    queue.publish_many([{"n": number} for number in range(30)])
    (tmp_path / "work.py").write_text(
        "def transform(messages): return messages.select('payload')\n"
    )
    arguments = ("spark", "process", "jobs", "work", *sink, "--checkpoint", "state")
    settings = ("--master", "local[2]", "--conf", "spark.driver.memory=1g", "--json")
    log = tmp_path / "process.log"
    command = (*arguments, "--every", "200ms", *settings)
    with started(*command, url=database.url, log=log, cwd=tmp_path, group=True) as process:
        eventually(lambda: queue.stats().done == 30, "all is done", within=SPARK_SECONDS)
        kill = os.kill if whom == "the command" else os.killpg
        kill(process.pid, signal.SIGTERM)
        assert 0 == process.wait(60), log.read_text()
    record = json.loads(Path(f"{log}.out").read_text())
    assert "jobs" == record["queue"]
    assert record["stopped"] is True
    # Where the JVM went first, it told no more what its last batches had.
    assert record["messages"] in ((30,) if whom == "the command" else range(31))
    told = log.read_text()
    assert "Traceback" not in told, told
    assert "refused" not in told, told
    assert "Error" not in told, told


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.engines("sqlite")
def test_a_transformation_that_fails_is_told_in_short(
    database: TestDatabase, service: QueueService, tmp_path: Path
) -> None:
    """What an executor raised, in one line, and how the messages become free that it was given."""
    service.create_queue("jobs").publish_many([{"n": number} for number in range(3)])
    (tmp_path / "work.py").write_text(FAILING)
    ended = run(
        *("spark", "process", "jobs", "work", "--output", "written", "--checkpoint", "state"),
        *("--master", "local[2]", "--conf", "spark.driver.memory=1g"),
        url=database.url,
        cwd=tmp_path,
        seconds=SPARK_SECONDS,
    )
    assert 1 == ended.exit_code, ended.err
    [told] = [line for line in ended.err.splitlines() if line.startswith("Error: ")]
    assert 'Error: ValueError: boom on {"n":0}' == told
    assert "process-jobs holds 3 messages" in ended.err
    assert ended.err.endswith("queue-over-sql consumer release process-jobs\n")


def test_wrong_usage_is_said_before_spark_starts(sqlite_url: str) -> None:
    """A pipeline that cannot work ends with code 2 at once."""
    process = ("process", "jobs", "json:dumps", "--checkpoint", "x")
    wrong = {
        ("process", "jobs", "nosuchmodule", "--checkpoint", "x", "--output", "y"): "nosuchmodule",
        process: "--output",
        ("process", "jobs", "json:__name__", "--checkpoint", "x", "--to", "y"): "not a function",
        (*process, "--to", "y", "--option", "z"): "NAME=VALUE",
        ("report", "folder", "--no-live"): "--history",
    }
    for arguments, words in wrong.items():
        ended = run("spark", *arguments, url=sqlite_url)
        assert 2 == ended.exit_code, ended.err
        assert words in ended.err, ended.err


def _spark(*arguments: str, url: str, cwd: Path | None = None) -> Ended:
    ended = run_spark(*arguments, url=url, cwd=cwd)
    assert 0 == ended.exit_code, ended.err
    return ended
