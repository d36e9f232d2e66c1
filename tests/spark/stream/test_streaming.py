"""Streams through Spark itself; test_rounds.py tests its calls of the reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from queue_over_sql import QueueService
from queue_over_sql.testing.plugin import TestDatabase
from tests.refusals import refused


def source_of(spark: SparkSession, database: TestDatabase, **options: str) -> DataFrame:
    """The queue `jobs` as a stream."""
    given = {"url": database.url, "queue": "jobs", "consumerId": "files", **options}
    return spark.readStream.format("queue_over_sql").options(**given).load()


@pytest.mark.engines("sqlite", "postgresql")
def test_a_stream_into_files(
    spark: SparkSession, database: TestDatabase, service: QueueService, tmp_path: Path
) -> None:
    """Each message is in the files once, over two runs of one query; the queue is empty then."""
    queue = service.create_queue("jobs", archive="all")
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    progress: Any = None
    for first in (0, 500):
        queue.load({"n": first + n, "text": "ñ\t'\\"} for n in range(500))
        frame = source_of(
            spark, database, maxMessagesPerTrigger="300", messagesPerPartition="100"
        ).select("id", "payload", "published_at", "headers")
        writer = frame.writeStream.option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start(out, format="parquet")
        query.awaitTermination()
        [progress] = query.recentProgress[-1]["sources"]
    rows = spark.read.parquet(out).collect()
    assert list(range(1000)) == sorted(json.loads(row.payload)["n"] for row in rows)
    assert 0 == queue.stats().live
    assert 1000 == queue.stats().done
    assert ["backlog"] == list(as_json(progress["latestOffset"]))


@pytest.mark.engines("postgresql")
def test_a_batch_that_fails_is_replayed(
    spark: SparkSession, database: TestDatabase, service: QueueService, tmp_path: Path
) -> None:
    """The same rows under the same number, also for a second action, in partitions as they were."""
    queue = service.create_queue("jobs")
    queue.publish_many([{"n": n} for n in range(90)])
    seen: list[tuple[int, int, list[Any]]] = []

    def keep(frame: DataFrame, number: int) -> None:
        count = frame.count()
        rows = sorted((row.id, row.consumer_round) for row in frame.collect())
        seen.append((number, count, rows))
        if len(seen) == 1:
            raise ValueError("the sink is away")

    for size in ("20", "33"):
        frame = source_of(spark, database, maxMessagesPerTrigger="60", messagesPerPartition=size)
        writer = frame.writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        if size == "20":
            with pytest.raises(StreamingQueryException, match="the sink is away"):
                query.awaitTermination()
        else:
            query.awaitTermination()
    assert [(0, 60), (0, 60), (1, 30)] == [(number, count) for number, count, _ in seen]
    assert seen[0][2] == seen[1][2]
    assert {1, 2, 3} == {consumer_round for _, consumer_round in seen[0][2]}
    assert 0 == queue.stats().live


@pytest.mark.engines("sqlite")
def test_wrong_options_are_refused_by_load(
    spark: SparkSession, database: TestDatabase, service: QueueService
) -> None:
    """Where the user stands, not when the query runs already; it says what was meant."""
    service.create_queue("jobs")
    wrong = [
        ("maxMessagePerTrigger", "60", "did you mean maxMessagesPerTrigger"),
        ("consumerId", "my consumer", "option consumerId"),
        ("maxMessagesPerTrigger", "0", "option maxMessagesPerTrigger"),
        ("claimMode", "foo", "option claimMode"),
        ("claimMode", "executor", "option claimMode"),
        ("pollInterval", "soon", "option pollInterval"),
    ]
    for option, value, text in wrong:
        with refused((option, value), AnalysisException, match=text):
            source_of(spark, database, **{option: value})


@pytest.mark.full
@pytest.mark.engines("sqlite")
def test_a_stream_without_a_consumer_says_so(
    spark: SparkSession, database: TestDatabase, service: QueueService, tmp_path: Path
) -> None:
    """By `load()` where another option tells that it is a stream, else as the query's failure."""
    service.create_queue("jobs")
    reader = spark.readStream.format("queue_over_sql").options(url=database.url, queue="jobs")
    writer = reader.load().writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "out"), format="parquet")
    with pytest.raises(StreamingQueryException, match="option consumerId is missing") as failed:
        query.awaitTermination()
    assert "UnboundLocalError" not in str(failed.value)
    with pytest.raises(AnalysisException, match="option consumerId is missing"):
        reader.option("maxMessagesPerTrigger", "10").load()


@pytest.mark.full
@pytest.mark.engines("sqlite")
def test_an_option_of_streams_in_a_batch_read(
    spark: SparkSession, database: TestDatabase, service: QueueService
) -> None:
    """Is refused by its name as it is written."""
    service.create_queue("jobs")
    reader = spark.read.format("queue_over_sql").options(url=database.url, consumerId="files")
    with pytest.raises(AnalysisException, match="option consumerId is for streams"):
        reader.load("jobs").count()


def as_json(value: Any) -> Any:
    """Spark gives what a source reports as JSON, or as the text of it."""
    return json.loads(value) if isinstance(value, str) else value
