"""Workers on Spark: shared work, progress, a graceful end, and lost workers."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import Connection

from queue_over_sql import Message, Queue, QueueService
from queue_over_sql.spark import FleetFailed, FleetProgress, run_workers
from queue_over_sql.testing.plugin import TestDatabase
from tests.refusals import refused
from tests.spark.workers.handlers import create_results, nothing, result_ids, write_batch

COUNT = 400


def fill(queue: Queue) -> list[int]:
    """Publish, and return the ids."""
    return [p.id for p in queue.publish_many([{"n": number} for number in range(COUNT)])]


@pytest.mark.engines("sqlite", "postgresql", "mariadb")
@pytest.mark.default_on("sqlite", "postgresql")
def test_workers_share_a_queue_and_write_each_result_once(
    spark: SparkSession, database: TestDatabase, service: QueueService
) -> None:
    """More workers than cores, results in the same transaction, and an account that balances."""
    queue = service.create_queue("jobs", archive="all")
    create_results(service)
    ids = fill(queue)
    report = run_workers(
        spark,
        "jobs",
        write_batch,
        url=database.url,
        workers=3,
        form="arrow",
        transactional=True,
        batch=50,
    )
    assert ids == result_ids(service)
    assert COUNT == report.handled
    assert 0 == report.failed
    assert 0 == report.restarts
    assert [0, 1, 2] == sorted(worker.worker for worker in report.workers)
    assert {"empty"} == {worker.ended for worker in report.workers}
    assert 0 == queue.stats().live
    assert COUNT == queue.stats().done
    assert [] == [found for found in service.consumers() if found.name.startswith("workers")]


@pytest.mark.engines("postgresql")
def test_told_to_stop_it_ends_in_order_and_tells_how_far_it_is(
    spark: SparkSession, database: TestDatabase, queue: Queue
) -> None:
    """What is at hand is finished, the rest is ready at once; nothing is lost or held."""
    fill(queue)
    stop, told = threading.Event(), list[FleetProgress]()

    def slow(message: Message) -> None:
        del message
        time.sleep(0.05)

    def progress(state: FleetProgress) -> None:
        told.append(state)
        if 0 < state.left < COUNT:
            stop.set()

    report = run_workers(
        spark, "jobs", slow, url=database.url, until=None, batch=10, progress=progress, stop=stop
    )
    stats = queue.stats()
    assert {"told"} == {worker.ended for worker in report.workers}
    assert 0 == stats.claimed
    assert COUNT - report.handled == stats.ready
    assert 0 < report.handled < COUNT


def die_once(path: str) -> Any:
    """A handler that kills its process, like the kernel short of memory, the first time."""

    def handle(batch: Any, connection: Connection) -> None:
        write_batch(batch, connection)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    return handle


@pytest.mark.engines("postgresql")
def test_a_lost_worker_is_replaced_and_its_messages_come_back_at_once(
    spark: SparkSession, database: TestDatabase, service: QueueService, tmp_path: Any
) -> None:
    """``kill -9`` in the middle of a transaction: the job begins again, each result is there once.

    Not one message waits for the consumer's timeout, which is longer than the test.
    """
    queue = service.create_queue("jobs", archive="all")
    create_results(service)
    ids = fill(queue)
    report = run_workers(
        spark,
        "jobs",
        die_once(str(tmp_path / "died")),
        url=database.url,
        form="arrow",
        transactional=True,
        batch=50,
        consumer_timeout=600.0,
    )
    assert 1 == report.restarts
    assert ids == result_ids(service)
    assert 0 == queue.stats().live
    assert COUNT == queue.stats().done


@pytest.mark.full
@pytest.mark.engines("postgresql")
def test_a_cancelled_job_gives_back_what_its_workers_held(
    spark: SparkSession, database: TestDatabase, queue: Queue
) -> None:
    """Cancelled from outside, it says so, and every message is ready again."""
    fill(queue)

    def endless(message: Message) -> None:
        del message
        time.sleep(600)

    def cancel(state: FleetProgress) -> None:
        if state.claimed:
            spark.sparkContext.cancelAllJobs()

    with pytest.raises(FleetFailed, match="cancelled"):
        run_workers(
            spark,
            "jobs",
            endless,
            url=database.url,
            batch=10,
            consumer_timeout=600.0,
            progress=cancel,
        )
    assert COUNT == queue.stats().ready
    assert 0 == queue.stats().claimed


@pytest.mark.engines("sqlite")
def test_wrong_arguments_are_named_before_spark_begins(
    spark: SparkSession, database: TestDatabase, queue: Queue
) -> None:
    """Each is said by its name, on the driver."""
    right: dict[str, Any] = {"queue": queue.name, "handler": nothing, "url": database.url}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"handler": 5}, "handler must be a function"),
        ({"form": "rows"}, "form must be one of"),
        ({"workers": 0}, "workers must be 1 or more"),
        ({"until": -1}, "until"),
        ({"url_env": "NOWHERE"}, "exactly one of url"),
        ({"form": "arrow", "concurrency": 2}, "concurrency"),
        ({"queue": "missing"}, "missing"),
    ]
    for arguments, said in wrong:
        with refused(arguments, Exception, match=said):
            run_workers(spark, **{**right, **arguments})
