"""The product's source and sink with crash points."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

from pyspark.sql.types import StructType

from queue_over_sql.durable import round_store as rounds
from queue_over_sql.durable import staged_write_store as stages
from queue_over_sql.spark import sink as writer
from queue_over_sql.spark.sink import QueueStreamWriter
from queue_over_sql.spark.source import QueueDataSource
from queue_over_sql.spark.stream.reader import QueueStreamReader
from tests.chaos.spark.crashes import crash, crashing

INSIDE: Final[dict[ModuleType, dict[str, str]]] = {
    rounds: {"open_rounds": "in_open", "claim_round": "in_claim", "finish_rounds": "in_ack"},
    stages: {"complete_staged": "in_stage", "complete_commit": "in_publish"},
}
"""Crash points inside transactions: after an operation, before the commit."""

_running: list[str] = []


def runs(query: str) -> None:
    """This process, which does one thing at a time, works for a query from now on."""
    if not _running:
        for store, points in INSIDE.items():
            for name, point in points.items():
                setattr(store, name, crashing(getattr(store, name), lambda: _running[-1], point))
        # Stages even of small parts, so that there is something to crash in.
        writer._INLINE_BYTES = 0  # type: ignore[misc]
    _running[:] = [query]


class CrashingReader(QueueStreamReader):
    """Dies around each callback of Spark, and inside the transactions, where a flag says so."""

    @property
    def query(self) -> str:
        """The name of the query in its flags: its consumer id."""
        return self.options.consumer_id

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """`start` is finished in Spark's checkpoint: the poll acks it, then claims."""
        runs(self.query)
        crash(self.query, "before_ack")
        end = super().latestOffset(start, limit)
        crash(self.query, "after_claim" if end != start else "after_ack")
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        """The offsets are in Spark's log, nothing is read yet."""
        runs(self.query)
        crash(self.query, "before_partitions")
        parts = super().partitions(start, end)
        crash(self.query, "after_partitions")
        return parts

    def commit(self, end: dict[str, Any]) -> None:
        """The next batch is planned."""
        crash(self.query, "before_commit")
        super().commit(end)
        crash(self.query, "after_commit")

    def read(self, partition: Any) -> Iterator[Any]:
        """On an executor: around the claim, and after the first rows are handed over."""
        runs(self.query)
        for batch in super().read(partition):
            crash(self.query, "after_executor_claim")
            yield batch
            crash(self.query, "in_read")
        crash(self.query, "after_read")


class CrashingWriter(QueueStreamWriter):
    """Dies around the stage of a task, and around the publish of the driver."""

    query: str

    def write(self, iterator: Iterator[Any]) -> Any:
        """On an executor."""
        runs(self.query)
        crash(self.query, "before_stage")
        written = super().write(iterator)
        crash(self.query, "after_stage")
        return written

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """On the driver."""
        runs(self.query)
        crash(self.query, "before_publish")
        super().commit(messages, batchId)
        crash(self.query, "after_publish")


class CrashingSource(QueueDataSource):
    """The format `crashing_queue`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "crashing_queue"

    def streamReader(self, schema: StructType) -> QueueStreamReader:  # noqa: N802
        """The product's reader with crash points."""
        made = super().streamReader(schema)
        made.__class__ = CrashingReader
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:  # noqa: N802
        """The product's writer with crash points; the query is named by its writer id."""
        made = super().streamWriter(schema, overwrite)
        made.__class__ = CrashingWriter
        made.query = self.options["writerId"]  # type: ignore[attr-defined]
        return made
