"""Failures of single messages in a stream: they are retried or ended, and the others continue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from queue_over_sql import ConsumerFenced, FixedDelay, Queue, QueueService
from queue_over_sql.spark import failures, settle
from queue_over_sql.spark.options import Location
from queue_over_sql.testing.plugin import TestDatabase
from tests.spark.stream.micro_batches import Action, Checkpoint, Stop, Stream

CONSUMER = "settling"
COUNT = 60
SCHEMA = "id long, consumer_round long, consumer_epoch long, ok boolean, error string"


def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fails for every tenth message at first, and for the fifth always."""
    for batch in batches:
        rows = batch.to_pylist()
        failed = [
            row["payload"] == "5" or (int(row["payload"]) % 10 == 0 and row["attempt"] == 1)
            for row in rows
        ]
        yield pa.RecordBatch.from_pydict(
            {
                "id": [row["id"] for row in rows],
                "consumer_round": [row["consumer_round"] for row in rows],
                "consumer_epoch": [row["consumer_epoch"] for row in rows],
                "ok": [not each for each in failed],
                "error": ["no luck" if each else None for each in failed],
            }
        )


class Query:
    """A query that notes what went well and settles the rest, run until the queue is drained."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self._spark = spark
        self._url = url
        self._folder = folder
        self.written: list[int] = []
        self.failed = 0
        self.settled = 0

    def run(self) -> None:
        """Take all that is due."""
        query = (
            self._spark.readStream.format("queue_over_sql")
            .options(url=self._url, queue="jobs", consumerId=CONSUMER, maxMessagesPerTrigger="30")
            .option("includeEpoch", "true")
            .load()
            .writeStream.foreachBatch(self._handle)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _handle(self, messages: DataFrame, batch_id: int) -> None:
        del batch_id
        results = messages.mapInArrow(work, SCHEMA).persist()
        report = settle(results, "jobs", CONSUMER, url=self._url)
        self.written += [row["id"] for row in results.where("ok").collect()]
        results.unpersist()
        self.failed += report.failed
        self.settled += report.settled


@pytest.mark.engines("postgresql")
def test_failed_messages_are_retried_or_end_and_the_others_are_done_once(
    spark: SparkSession, database: TestDatabase, service: QueueService, tmp_path: Path
) -> None:
    """Each message is written once; the one that fails always is a dead letter with its reason."""
    queue = service.create_queue(
        "jobs", payload="text", max_attempts=2, retry=FixedDelay(0.01), archive="all"
    )
    ids = [p.id for p in queue.publish_many([str(number) for number in range(COUNT)])]
    query = Query(spark, database.url, tmp_path)
    query.run()
    assert 7 == query.failed
    assert 7 == query.settled
    query.run()

    [dead] = queue.archive.messages(status="failed").list()
    assert ids[5] == dead.id
    assert 2 == dead.attempt
    assert "no luck" == dead.last_error
    assert [number for number in ids if number != ids[5]] == sorted(query.written)
    assert 0 == queue.stats().live
    assert COUNT - 1 == queue.stats().done
    assert 8 == query.failed
    assert 8 == query.settled


@pytest.mark.engines("sqlite")
def test_results_must_be_complete_and_persisted(
    spark: SparkSession, database: TestDatabase, queue: Queue
) -> None:
    """What would be computed twice, or names no round, is refused with the reason."""
    assert "jobs" == queue.name
    rows: Any = [(1, 1, 1, False)]
    names = "id long, consumer_round long, consumer_epoch long, ok boolean"
    complete = spark.createDataFrame(rows, names)
    with pytest.raises(ValueError, match="must be persisted"):
        settle(complete, "jobs", CONSUMER, url=database.url)
    for name in ("consumer_round", "consumer_epoch"):
        with pytest.raises(ValueError, match=f"no column {name}"):
            settle(complete.drop(name), "jobs", CONSUMER, url=database.url)


@pytest.mark.engines("sqlite", "postgresql", "mariadb")
def test_a_query_that_was_replaced_settles_nothing(
    database: TestDatabase, service: QueueService
) -> None:
    """What it has read is the other query's now, which may be writing it just then."""
    queue = service.create_queue("jobs", payload="text", retry=FixedDelay(60))
    queue.publish_many([str(number) for number in range(3)])
    given = {"url": database.url, "queue": "jobs", "consumerId": CONSUMER, "includeEpoch": "true"}
    stream = Stream(given)
    checkpoint = Checkpoint()
    with pytest.raises(Stop):
        stream.run(checkpoint, fail_in=[0])
    stream.run(checkpoint, during=lambda read, _: settle_first(database.url, stream, read))

    assert 1 == queue.stats().delayed
    assert 0 == queue.stats().claimed


def settle_first(url: str, stream: Stream, read: Action) -> None:
    """Settle the first message as the query that failed would, then as the one that goes on."""
    [former, *_], [present, *_] = stream.batches[0][1], read()
    assert former["id"] == present["id"]
    nack = failures.nacking(Location(url=url), "jobs", CONSUMER, None)

    def settled(row: dict[str, Any]) -> list[int]:
        names = ("consumer_epoch", "id", "consumer_round")
        failed = {name: [row[name]] for name in names} | {"error": ["no luck"]}
        [counts] = nack(iter([pa.RecordBatch.from_pydict(failed)]))
        found: list[int] = counts["settled"].to_pylist()
        return found

    with pytest.raises(ConsumerFenced):
        settled(former)
    assert [1] == settled(present)
