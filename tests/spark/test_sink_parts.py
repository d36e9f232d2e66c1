"""Batches that are written again partition by partition, without Spark around the writer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from queue_over_sql.spark.writer import QueueSink
from queue_over_sql.store.stages import BatchName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queue_over_sql import Queue
    from queue_over_sql.testing.plugin import TestDatabase

SCHEMA = StructType([StructField("payload", StringType())])
BATCH = BatchName("etl", 7)


@pytest.fixture
def sink(queue: Queue, database: TestDatabase) -> QueueSink:
    """Writes partitions by themselves."""
    options = {"url": database.url, "queue": queue.name, "commitMode": "task"}
    return QueueSink(options, SCHEMA)


def write(sink: QueueSink, numbers: Sequence[int]) -> None:
    """Write a partition, always under the same number, because no task of Spark is around."""
    batch = pa.RecordBatch.from_pydict({"payload": [str(number) for number in numbers]})
    sink.write_part(iter([batch]), BATCH, None)


def payloads(queue: Queue) -> list[int]:
    """What was published."""
    return sorted(message.payload for message in queue.messages().list())


def test_a_batch_that_is_cut_otherwise_loses_nothing(sink: QueueSink, queue: Queue) -> None:
    """A partition with other rows than before is written: some come twice, none is left out."""
    write(sink, [1, 2])
    write(sink, [1, 2, 3, 4])
    assert [1, 1, 2, 2, 3, 4] == payloads(queue)


def test_a_partition_is_known_again_in_any_order(sink: QueueSink, queue: Queue) -> None:
    """The rows of a repeated task come from a shuffle as they please."""
    write(sink, [1, 2, 3])
    write(sink, [3, 1, 2])
    assert [1, 2, 3] == payloads(queue)
