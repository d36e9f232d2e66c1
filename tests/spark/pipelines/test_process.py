"""`process`: transform a queue's messages into Parquet and a queue, exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from queue_over_sql import QueueService
from queue_over_sql.queue import Queue
from queue_over_sql.spark.pipelines.process import _Batches, process
from queue_over_sql.testing.plugin import TestDatabase

# One of each in the default tier, the others in the full one.
pytestmark = pytest.mark.default_on()


def doubled(messages: DataFrame) -> DataFrame:
    """A number of each message, twice as large, and one that is never the same again."""
    number = sql.get_json_object("payload", "$.n").cast("int")
    return messages.select("id", (number * 2).alias("twice"), sql.rand().alias("chance"))


def told(results: DataFrame) -> DataFrame:
    """Results as messages."""
    payload = sql.to_json(sql.struct("twice", "chance"))
    return results.select(payload.alias("payload"), sql.concat(sql.lit("k"), "id").alias("key"))


class Pipeline:
    """A queue, where its results go, and the query between them, started anew each time."""

    def __init__(self, spark: SparkSession, url: str, folder: Path, service: QueueService) -> None:
        self.spark = spark
        self.url = url
        self.folder = folder
        self.queue = service.create_queue("jobs")
        self.results = service.create_queue("results")

    def run(self, **options: Any) -> None:
        """Process what is there now."""
        given = {"output": self.folder / "output", "to": "results", "message": told, **options}
        query = process(
            self.spark,
            "jobs",
            doubled,
            checkpoint=self.folder / "checkpoint",
            url=self.url,
            max_messages=20,
            **given,
        )
        query.awaitTermination()

    def written(self) -> list[tuple[int, float]]:
        """What is in the files."""
        rows = self.spark.read.parquet(str(self.folder / "output")).collect()
        return sorted((row["twice"], row["chance"]) for row in rows)

    def published(self) -> list[tuple[int, float]]:
        """What is in the queue of results."""
        messages = self.results.messages().list(limit=1_000)
        return sorted((m.payload["twice"], m.payload["chance"]) for m in messages)


@pytest.fixture
def pipeline(
    spark: SparkSession, database: TestDatabase, service: QueueService, tmp_path: Path
) -> Pipeline:
    """From the queue ``jobs`` to Parquet and to the queue ``results``."""
    return Pipeline(spark, database.url, tmp_path, service)


def _publish(queue: Queue, *numbers: int) -> list[int]:
    queue.publish_many([{"n": number} for number in numbers])
    return [2 * number for number in numbers]


@pytest.mark.default_on("sqlite")
@pytest.mark.engines("sqlite", "postgresql")
def test_into_files_and_a_queue(pipeline: Pipeline) -> None:
    """Several batches, and a second start: each message once in the files and in the queue."""
    expected = _publish(pipeline.queue, *range(50))
    pipeline.run()
    assert expected == [twice for twice, _ in pipeline.written()]
    expected += _publish(pipeline.queue, *range(50, 60))
    pipeline.run()
    assert expected == [twice for twice, _ in pipeline.written()]
    assert pipeline.written() == pipeline.published()
    assert 0 == pipeline.queue.stats().live


@pytest.mark.engines("sqlite")
def test_a_crash_between_files_and_queue(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is repeated with a transformation that gives other values: both still agree."""
    expected = _publish(pipeline.queue, *range(50))
    whole, calls = _Batches._publish, list[int]()

    def crashes(self: _Batches, *arguments: Any) -> None:
        calls.append(0)
        if len(calls) == 2:
            raise RuntimeError("the driver is gone")
        whole(self, *arguments)

    monkeypatch.setattr(_Batches, "_publish", crashes)
    with pytest.raises(StreamingQueryException, match="the driver is gone"):
        pipeline.run()
    before = pipeline.written()
    assert 40 == len(before)
    assert 20 == len(pipeline.published())
    pipeline.run()
    assert expected == [twice for twice, _ in pipeline.written()]
    assert pipeline.written() == pipeline.published()
    assert set(before) < set(pipeline.written())


@pytest.mark.engines("sqlite")
def test_into_a_queue_alone(pipeline: Pipeline) -> None:
    """Without a folder the sink's own account keeps each message to one."""
    expected = _publish(pipeline.queue, *range(30))
    pipeline.run(output=None)
    pipeline.run(output=None)
    assert expected == [twice for twice, _ in pipeline.published()]


@pytest.mark.engines("sqlite")
def test_folders_by_a_column(pipeline: Pipeline) -> None:
    """``partition_by`` makes folders, the results are the same, and each batch adds a file."""
    expected = _publish(pipeline.queue, *[1, 2] * 20)
    pipeline.run(to=None, partition_by=["twice"], options={"messagesPerPartition": "5"})
    assert sorted(expected) == [twice for twice, _ in pipeline.written()]
    # Two batches of 20.
    for folder in ("twice=2", "twice=4"):
        assert 2 == len(list((pipeline.folder / "output" / folder).glob("*.parquet")))


@pytest.mark.engines("sqlite")
def test_nowhere_to_write_to(pipeline: Pipeline) -> None:
    """A pipeline without an end is refused before anything starts."""
    with pytest.raises(ValueError, match="output"):
        pipeline.run(output=None, to=None)
