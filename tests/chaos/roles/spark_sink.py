"""A driver of Spark that streams a folder of JSON lines into a queue, and dies where it is told.

Run as ``python -m tests.chaos.roles.spark_sink JSON``. All processes of the driver are killed by
SIGKILL at the point ``crash``, once: whoever gets there first removes the file ``once``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queue_over_sql.durable import staged_write_store as store
from queue_over_sql.durable.staged_writes import StagedPublisher
from queue_over_sql.spark.sink import QueueStreamWriter
from queue_over_sql.spark.source import QueueDataSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

WORKER = "worker_after"
"""Only a worker dies, right after it filled a stage; Spark repeats its task."""

POINTS = ("stage_before", "stage_after", "publish_before", "publish_inside", "publish_after")
"""Around the filling of a stage, and around the transaction that publishes all of a batch."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What one run does.

    Attributes:
        url: of the database.
        source: the folder that is read.
        checkpoint: of the query.
        crash: where to die, one of ``POINTS``, or ``WORKER``.
        once: a file that is there as long as nobody died.
        split: how large a part of a file one task reads.
        driver: the process to kill, with its group; set by the run itself.
    """

    url: str
    source: str
    checkpoint: str
    crash: str
    once: str
    split: str
    driver: int = 0


def die(arguments: Arguments) -> None:
    """Kill the driver, its JVM and all workers, or this worker alone, unless that was done."""
    try:
        Path(arguments.once).unlink()
    except FileNotFoundError:
        return
    if arguments.crash == WORKER:
        os.kill(os.getpid(), signal.SIGKILL)
    os.kill(arguments.driver, signal.SIGKILL)
    os.killpg(arguments.driver, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def arm(arguments: Arguments) -> None:
    """Let this process die at the point."""
    moment, _, when = arguments.crash.partition("_")
    if moment in {"stage", "worker"}:
        StagedPublisher.stage = around(StagedPublisher.stage, when, arguments)  # type: ignore[method-assign]
    elif when == "inside":
        store.complete_commit = around(store.complete_commit, "after", arguments)
    elif moment == "publish":
        StagedPublisher._publish = around(StagedPublisher._publish, when, arguments)  # type: ignore[method-assign]


def around(act: Callable[..., Any], when: str, arguments: Arguments) -> Callable[..., Any]:
    """An act that dies before or after it is done."""

    def mortal(*given: Any, **named: Any) -> Any:
        if when == "before":
            die(arguments)
        result = act(*given, **named)
        if when == "after":
            die(arguments)
        return result

    return mortal


class MortalWriter(QueueStreamWriter):
    """A writer whose processes die where they are told."""

    def __init__(self, options: dict[str, str], schema: StructType, arguments: Arguments) -> None:
        self._arguments = arguments
        super().__init__(options, schema)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """As its base, in a worker."""
        arm(self._arguments)
        return super().write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """As its base, in a process of the driver."""
        arm(self._arguments)
        super().commit(messages, batchId)


class MortalSource(QueueDataSource):
    """The format with mortal writers."""

    @classmethod
    def name(cls) -> str:
        """Another name than the format's."""
        return "mortal"

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:  # noqa: ARG002, N802
        """What writes a stream."""
        options = dict(self.options)
        arguments = Arguments(**json.loads(options.pop("mortal")))
        return MortalWriter(options, schema, arguments)


def session() -> SparkSession:
    """A small session of this driver alone."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[3])
    # A task is tried again, as on a cluster.
    builder = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.driver.host", "127.0.0.1")
    # It lives for seconds, of which its start takes most.
    builder = builder.config(
        "spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    )
    return builder.config("spark.driver.memory", "512m").getOrCreate()


def main() -> None:
    """Run the query over what there is, one file a batch, and end."""
    given = Arguments(**json.loads(sys.argv[1]))
    arguments = dataclasses.replace(given, driver=os.getpid())
    spark = session()
    spark.sparkContext.setLogLevel("ERROR")
    spark.conf.set("spark.sql.files.maxPartitionBytes", arguments.split)
    spark.dataSource.register(MortalSource)
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1")
    writer = lines.load(arguments.source).writeStream.format("mortal")
    writer = writer.options(url=arguments.url, queue="jobs", mortal=json.dumps(vars(arguments)))
    writer = writer.option("checkpointLocation", arguments.checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
