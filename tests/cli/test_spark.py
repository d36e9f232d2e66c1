"""`spark load` and `spark workers` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queue_over_sql import QueueService
from queue_over_sql.testing.plugin import TestDatabase
from tests.cli.command_line import run, run_spark

HANDLER = """
from pyspark.sql import SparkSession, functions

BATCHES = SparkSession.active().conf.get("spark.sql.shuffle.partitions")

@functions.udf("string")
def upper(text):
    return text.upper()

def handle(batch):
    assert BATCHES == "2"
    payloads = batch.column("payload").to_pylist()
    return ["too large" if '"n":7' in text else None for text in payloads]
"""


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.engines("sqlite")
def test_from_a_file_to_the_end_of_its_messages(
    database: TestDatabase, service: QueueService, tmp_path: Path
) -> None:
    """Rows become messages, a bad one is kept apart, and workers finish all others as JSON says.

    Their function is of a module that only a session can import, which executors have not.
    """
    queue = service.create_queue("jobs", archive="all", max_attempts=1)
    rows = [json.dumps({"n": number}) for number in range(30)]
    (tmp_path / "in.json").write_text("\n".join([*rows, '{"n": ']))
    (tmp_path / "handlers.py").write_text(HANDLER)
    ended = run_spark(
        *("load", "in.json", "jobs", "--from", "key=cast(n AS string)", "--rejected", "bad"),
        url=database.url,
        cwd=tmp_path,
    )
    assert 5 == ended.exit_code, ended.err
    assert 31 == ended.record["read"]
    assert 30 == ended.record["published"]
    assert 0 == ended.record["skipped"]
    assert 1 == ended.record["rejected"]
    assert 30 == queue.stats().ready

    ended = run_spark(
        *("workers", "jobs", "handlers", "--form", "arrow", "--batch", "10"),
        url=database.url,
        cwd=tmp_path,
    )
    assert 5 == ended.exit_code, ended.err
    assert 29 == ended.record["handled"]
    assert 1 == ended.record["failed"]
    assert 1 == ended.record["dead"]
    assert {"empty"} == {worker["ended"] for worker in ended.record["workers"]}
    [dead] = queue.archive.messages(status="failed").list()
    assert {"n": 7} == dead.payload
    assert "too large" == dead.last_error
    assert 29 == queue.stats().done
    # What Spark itself has to say is not the command's output.
    assert 1 == len(ended.out.splitlines())


def test_wrong_usage_is_said_before_spark_starts(sqlite_url: str) -> None:
    """What cannot work ends with code 2 at once."""
    wrong = {
        ("workers", "jobs", "nosuchmodule"): "nosuchmodule",
        ("workers", "jobs", "json:__name__"): "not a function",
        ("workers", "jobs", "json:dumps", "--until", "later"): "not a duration",
        ("workers", "jobs", "json:dumps", "--workers", "0"): "--workers",
        ("workers", "jobs", "json:dumps", "--conf", "memory=1"): "--conf",
        ("load", "in.csv", "jobs", "--from", "key"): "NAME=VALUE",
        ("load", "in.csv", "jobs", "--on-conflict", "ignore"): "--on-conflict",
    }
    for arguments, words in wrong.items():
        ended = run("spark", *arguments, url=sqlite_url)
        assert 2 == ended.exit_code, ended.err
        assert words in ended.err, ended.err


def test_without_a_database() -> None:
    """Commands that need a database say how to name one."""
    for arguments in (
        ("load", "in.csv", "jobs"),
        ("workers", "jobs", "json:dumps"),
        ("export-history", "folder"),
        ("report", "folder"),
    ):
        ended = run("spark", *arguments)
        assert 2 == ended.exit_code, arguments
        assert "--url" in ended.err, arguments
