"""Batches whose partitions are written again, with the writer alone and without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from queue_over_sql.durable.staged_write_store import BatchName
from queue_over_sql.errors import DuplicateKey, PayloadInvalid
from queue_over_sql.spark.options import WriteOptions
from queue_over_sql.spark.sink import QueueSink

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
    return QueueSink(WriteOptions.parse(options), SCHEMA)


def write(sink: QueueSink, numbers: Sequence[int]) -> None:
    """Write a partition, always under the same number, because no task of Spark is around."""
    batch = pa.RecordBatch.from_pydict({"payload": [str(number) for number in numbers]})
    sink.write_part(iter([batch]), BATCH, None)


def payloads(queue: Queue) -> list[int]:
    """What was published."""
    return sorted(message.payload for message in queue.messages().list())


def test_a_partition_is_known_again_by_its_rows(sink: QueueSink, queue: Queue) -> None:
    """In any order, as a shuffle gives them; one that is cut otherwise is written: none is lost."""
    write(sink, [1, 2])
    write(sink, [2, 1])
    assert [1, 2] == payloads(queue)
    write(sink, [1, 2, 3, 4])
    assert [1, 1, 2, 2, 3, 4] == payloads(queue)


@pytest.mark.engines("sqlite")
def test_a_key_that_is_taken_names_the_option(queue: Queue, database: TestDatabase) -> None:
    """As users of the sink write it, not as `publish` has it."""
    queue.publish(1, key="a")
    schema = StructType([StructField(name, StringType()) for name in ("payload", "key")])
    options = {"url": database.url, "queue": queue.name, "commitMode": "task"}
    batch = pa.RecordBatch.from_pydict({"payload": ["2"], "key": ["a"]})
    with pytest.raises(DuplicateKey, match="Use the option onConflict='skip'"):
        QueueSink(WriteOptions.parse(options), schema).write_part(iter([batch]), BATCH, None)


@pytest.mark.engines("sqlite")
def test_a_row_without_a_payload_says_what_helps(queue: Queue, database: TestDatabase) -> None:
    """The column as the user has it, and what keeps such rows apart."""
    schema = StructType([StructField("value", StringType())])
    options = {"url": database.url, "queue": queue.name}
    sink = QueueSink(WriteOptions.parse(options), schema)
    batch = pa.RecordBatch.from_pydict({"value": pa.array(["1", None])})
    told = r"Row 1 of its partition has no payload: column value is NULL\. .*rejected="
    with pytest.raises(PayloadInvalid, match=told):
        sink.write_part(iter([batch]), BATCH, None)
