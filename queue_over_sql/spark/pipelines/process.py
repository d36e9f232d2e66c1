"""`process`: transform the messages of a queue and write them to Parquet, a queue, or both."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from queue_over_sql.spark.databases import location_of, options_of, queue_at
from queue_over_sql.spark.options import StreamOptions
from queue_over_sql.spark.pipelines.files import files_at
from queue_over_sql.spark.pipelines.staged import Commit, StagedFolder, commit_name
from queue_over_sql.values.durations import MICROSECOND, Duration, to_timedelta
from queue_over_sql.values.limits import CONSUMER_LENGTH

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from queue_over_sql.spark.options import Location

    Transform = Callable[[DataFrame], DataFrame]

_FORMAT: Final = "queue_over_sql"
# Spark can repeat only its last batch; the others are kept for people.
_REMEMBERED: Final = 100


def process(
    spark: SparkSession,
    queue: str,
    transform: Transform,
    *,
    checkpoint: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    to: str | None = None,
    message: Transform | None = None,
    url: str | None = None,
    url_env: str | None = None,
    url_file: str | None = None,
    schema: str | None = None,
    table_prefix: str = "queue_",
    consumer_id: str | None = None,
    every: Duration | None = None,
    max_messages: int | None = None,
    partition_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start a streaming query that transforms messages and writes them to Parquet or a queue.

    Processing is exactly once: after a crash, start it again with the same arguments. Each batch is
        committed to ``output`` as a whole, so no reader sees a row twice. The messages for ``to``
        are made from the written rows, so both agree even if the transformation is not
        deterministic.

    Args:
        spark: the session.
        queue: the queue to consume.
        transform: a function from a streaming DataFrame of messages to the result.
        checkpoint: Spark's checkpoint folder, for this query only.
        output: the folder of Parquet files to append to, for this query only.
        to: the queue to publish to, in the same database.
        message: a function from the result to messages for ``to``, with the columns of the format's
            sink. Without it the result must have exactly such columns.
        url: the database, as in the format's options.
        url_env: instead of ``url``, the environment variable that holds it.
        url_file: instead of ``url``, the file that holds it.
        schema: database schema of the tables.
        table_prefix: prefix of the names of the queues' tables.
        consumer_id: name of the durable consumer; ``process-<queue>`` by default.
        every: start a batch at this interval, until the query is stopped. None: process the
            messages that are there now, and end.
        max_messages: the maximum number of messages per batch.
        partition_by: columns of the result by which to partition ``output``.
        options: further options of the stream reader.

    Returns:
        The running query; ``awaitTermination()`` waits for its end and raises what ended it.

    Raises:
        ValueError: neither ``output`` nor ``to`` is given, an argument or an option has an invalid
            value, or a function does not return a DataFrame.
        QueueNotFound, DatabaseUnavailable: ``queue`` or ``to`` does not exist, or the database
            cannot be reached; Spark was not started.
    """
    if output is None and to is None:
        raise ValueError("give output= (a folder), to= (a queue), or both")
    location = location_of(url, url_env, url_file, schema, table_prefix)
    stream = {**options_of(location), "queue": queue, **(options or {})}
    stream["consumerId"] = consumer_id or usual_consumer(queue)
    if max_messages is not None:
        stream["maxMessagesPerTrigger"] = str(max_messages)
    _check(location, stream, to)
    messages = spark.readStream.format(_FORMAT).options(**stream).load()
    result = _frame(transform(messages), "the transformation")
    sink = None if to is None else {**options_of(location), "queue": to}
    if output is None:
        rows = _messages(result, message)
        writer = rows.writeStream.format(_FORMAT).options(**(sink or {}))
    else:
        batches = _Batches(
            StagedFolder(files_at(spark, output)),
            os.fspath(checkpoint),
            tuple(partition_by),
            sink,
            message,
        )
        writer = result.writeStream.foreachBatch(batches.write)
    writer = writer.option("checkpointLocation", os.fspath(checkpoint))
    writer = writer.queryName(stream["consumerId"])
    if every is None:
        return writer.trigger(availableNow=True).start()
    milliseconds = to_timedelta(every, "every", zero=True) // (1000 * MICROSECOND)
    return writer.trigger(processingTime=f"{milliseconds} milliseconds").start()


def usual_consumer(queue: str) -> str:
    """The consumer name of ``process`` if none is given."""
    return f"process-{queue}"[:CONSUMER_LENGTH]


def _check(location: Location, stream: Mapping[str, str], to: str | None) -> None:
    options = StreamOptions.parse(stream)
    for place in options.locations.values():
        queue_at(place, options.queue)
    if to is not None:
        queue_at(location, to)


def _messages(result: DataFrame, message: Transform | None) -> DataFrame:
    return result if message is None else _frame(message(result), "message")


def _frame(made: object, maker: str) -> DataFrame:
    from pyspark.sql import DataFrame

    if isinstance(made, DataFrame):
        return made
    raise ValueError(f"{maker} must return a DataFrame, not {type(made).__name__}")


@dataclasses.dataclass
class _Batches:
    """Writes each batch once: its files by a commit, its messages by the sink's own record."""

    folder: StagedFolder
    checkpoint: str
    partition_by: tuple[str, ...]
    sink: Mapping[str, str] | None
    message: Transform | None
    query_id: str | None = None

    def write(self, batch: DataFrame, number: int) -> None:
        """Write a batch, or the rest of it after a crash."""
        if self.query_id is None:
            self.query_id = _query_id(batch.sparkSession, self.checkpoint)
            self.folder.recover()
        name = commit_name(self.query_id, number)
        commit = self.folder.find(name) or self._commit(batch, name)
        if self.sink is not None and commit.files:
            self._publish(batch, commit, self.sink)

    def _commit(self, batch: DataFrame, name: str) -> Commit:
        staged = self.folder.begin(name)
        writer = batch.write
        if self.partition_by:
            # Otherwise each task writes a file of its own for each value.
            from pyspark.sql import functions

            together = batch.hint("rebalance", *map(functions.col, self.partition_by))
            writer = together.write.partitionBy(*self.partition_by)
        writer.parquet(self.folder.place_of(staged))
        facts = {"query": self.query_id}
        return self.folder.commit(name, staged, facts, remembered=_REMEMBERED)

    def _publish(self, batch: DataFrame, commit: Commit, sink: Mapping[str, str]) -> None:
        root = self.folder.files.root
        reader = batch.sparkSession.read.schema(batch.schema).option("basePath", root)
        rows = reader.parquet(*[f"{root}/{file}" for file in commit.files])
        messages = _messages(rows, self.message)
        account = {"writerId": commit.series, "batchId": str(commit.number)}
        messages.write.format(_FORMAT).options(**sink, **account).mode("append").save()


def _query_id(spark: SparkSession, checkpoint: str) -> str:
    found = json.loads(files_at(spark, checkpoint).read("metadata"))
    return str(found["id"])
