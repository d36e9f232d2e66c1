"""A real Spark driver with streaming queries, which can be killed at any point with its JVM."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from queue_over_sql.spark import session
from tests.chaos.roles.protocol import Reins, emit, play
from tests.chaos.spark.crashes import FOLDER, Flags, crash
from tests.chaos.spark.source import CrashingSource


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What runs in this life of the driver; queries as they are taken by `Query`."""

    queries: Sequence[dict[str, Any]]
    flags: str
    until_empty: bool = True
    """End by itself when there is nothing left (availableNow), or go on until told to stop."""
    master: str = "local[2,4]"


@dataclasses.dataclass(frozen=True)
class Query:
    """One streaming query."""

    name: str
    """Also its consumer id."""
    url: str
    folder: str
    """Its checkpoint and its output."""
    sink: str = "parquet"
    """`parquet`, `queue` or `batches`."""
    queue: str = "jobs"
    options: dict[str, str] = dataclasses.field(default_factory=dict)
    """Of the source."""

    @property
    def target(self) -> str:
        """The queue that the sink `queue` publishes to."""
        return f"{self.queue}_done"

    def start(self, spark: SparkSession, *, until_empty: bool) -> StreamingQuery:
        """Start the query, or go on where a killed driver left it."""
        given = {"url": self.url, "queue": self.queue, "consumerId": self.name, **self.options}
        frame = spark.readStream.format("crashing_queue").options(**given).load()
        worked = frame.select("id", "payload", "attempt").mapInArrow(
            worker_of(self.name), "id bigint, payload string, attempt int"
        )
        writer = worked.writeStream.queryName(self.name).option(
            "checkpointLocation", f"{self.folder}/checkpoint"
        )
        trigger: Any = (
            {"availableNow": True} if until_empty else {"processingTime": "100 milliseconds"}
        )
        writer = writer.trigger(**trigger)
        if self.sink == "parquet":
            return writer.format("parquet").start(f"{self.folder}/output")
        if self.sink == "queue":
            published = worked.select("payload").writeStream.queryName(self.name)
            return (
                published.option("checkpointLocation", f"{self.folder}/checkpoint")
                .trigger(**trigger)
                .format("crashing_queue")
                .options(url=self.url, queue=self.target, writerId=self.name)
                .start()
            )
        return writer.foreachBatch(Batches(self.name, Path(self.folder))).start()


def worker_of(name: str) -> Any:
    """The user's function on the executors."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            crash(name, "in_work")
            yield batch

    return work


class Batches:
    """A sink that keeps each batch under its number, and notices when a replay has other rows."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._path = folder / "batches.db"

    def __call__(self, frame: DataFrame, number: int) -> None:
        """Two actions, so that the second must see what the first one saw."""
        crash(self._name, "before_write")
        count = frame.count()
        rows = sorted((row.id, row.payload) for row in frame.collect())
        if count != len(rows):
            raise AssertionError(f"batch {number}: {count} rows, then {len(rows)}")
        with closing(sqlite3.connect(self._path)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS batches (number, id, payload)")
            look = "SELECT id, payload FROM batches WHERE number = ? ORDER BY id, payload"
            stored = database.execute(look, (number,)).fetchall()
            if stored and stored != rows:
                raise AssertionError(f"batch {number}: other rows than before")
            if not stored:
                insert = "INSERT INTO batches VALUES (?, ?, ?)"
                database.executemany(insert, [(number, *row) for row in rows])
        crash(self._name, "after_write")


def started(master: str) -> SparkSession:
    """A session that costs little and knows the format with crash points."""
    settings = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        # Or Spark refuses a checkpoint whose very first offset a kill left half-written.
        "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    }
    spark = session(master=master, settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(CrashingSource)
    return spark


def main(arguments: Arguments) -> None:
    """Say `started`, then `drained` when all queries have ended by themselves."""
    flags = Flags(Path(arguments.flags))
    flags.driver_is(os.getpid())
    os.environ[FOLDER] = arguments.flags
    reins = Reins()
    spark = started(arguments.master)
    running = [
        Query(**query).start(spark, until_empty=arguments.until_empty)
        for query in arguments.queries
    ]
    emit("started")
    if not arguments.until_empty:
        while not reins.stop.wait(0.2) and all(query.isActive for query in running):
            pass
        for query in running:
            query.stop()
    failure = await_end(running)
    if failure is None:
        emit("drained")
    else:
        emit("failed", error=failure)


def await_end(running: Sequence[StreamingQuery]) -> str | None:
    """Wait for all; what one of them has died of."""
    failure = None
    for query in running:
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - it goes to the test
            failure = f"{query.name}: {error}"
    return failure


if __name__ == "__main__":
    play(main, Arguments)
