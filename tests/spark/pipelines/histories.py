"""Histories for tests, written as an export writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from queue_over_sql.spark.pipelines.files import files_at
from queue_over_sql.spark.pipelines.frames import HISTORY, HISTORY_SCHEMA, PARTITIONS, utc_date
from queue_over_sql.spark.pipelines.history import SERIES
from queue_over_sql.spark.pipelines.staged import StagedFolder, commit_name

NOON = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)


def finished(id_: int, **fields: Any) -> dict[str, Any]:
    """A message that waited one second, ran two and was done, at noon unless said otherwise."""
    end: datetime = fields.pop("finished_at", NOON)
    due = end - timedelta(seconds=3)
    return {
        "id": id_,
        "payload": "{}",
        "priority": 0,
        "attempt": 1,
        "published_at": due,
        "scheduled_at": due,
        "available_at": due,
        "claimed_at": end - timedelta(seconds=2),
        "finished_at": end,
        "outcome": "done",
        "consumer_id": "worker-1",
        "consumer_round": 1,
        "queue": "orders",
        **fields,
    }


def write_history(spark: SparkSession, folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write one commit."""
    staged = StagedFolder(files_at(spark, folder))
    name = commit_name(SERIES, 1)
    place = staged.begin(name)
    values = [tuple(row.get(column) for column in HISTORY) for row in rows]
    frame = spark.createDataFrame(values, HISTORY_SCHEMA)
    frame = frame.withColumn("date", utc_date("finished_at"))
    frame.write.partitionBy(*PARTITIONS).parquet(staged.place_of(place))
    staged.commit(name, place, {"source": "tests", "marks": {}})
