"""The streaming source: a durable consumer that claims in rounds; the last round is the offset.

Spark calls ``commit`` only when it plans the next batch with data, and never for the last one. So
``latestOffset`` acknowledges rounds: its argument ``start`` is in Spark's log of finished batches.
``docs/spark-stream.md`` explains the consequences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from queue_over_sql.spark.stream.offsets import Offset, read_offset
from queue_over_sql.spark.stream.parts import RoundPart, read_part
from queue_over_sql.spark.stream.rounds import RoundsOfDatabase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from queue_over_sql.spark.options import StreamOptions


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Consumes a queue, or queues of one name in several databases, as a stream.

    One object lives as long as the query, in a process of the driver. Copies of it read on the
    executors, and have no state. Wrong options raise at the first call, because PySpark loses
    exceptions of the constructor in an UnboundLocalError.
    """

    def __init__(self, options: StreamOptions | ValueError) -> None:
        self._options = options
        self._databases: dict[str, RoundsOfDatabase] = {}

    @property
    def options(self) -> StreamOptions:
        """The options of the stream."""
        if isinstance(self._options, ValueError):
            raise self._options
        return self._options

    def __getstate__(self) -> dict[str, Any]:
        """The state for the executors, without connections."""
        return {**self.__dict__, "_databases": {}}

    # -- on the driver

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option ``maxMessagesPerTrigger``."""
        return ReadMaxRows(self.options.max_messages_per_trigger)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The last acknowledged round; Spark asks again until its first batch is finished."""
        each = self._each().items()
        rounds = {label: one.initial() for label, one in each}
        return Offset(rounds, registered={label: one.registered() for label, one in each}).written()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember which messages exist now."""
        for one in self._each().values():
            one.aim()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Acknowledge ``start``, and open the rounds of the next batch.

        Raises:
            ConsumerFenced: another query took over the consumer.
            CheckpointBehind, RoundsGone: the checkpoint does not match the queue.
            DatabaseUnavailable: a database is unavailable for longer than ``reconnectTimeout``.
        """
        finished, each = self._offset(start), self._each()
        shares = _shares(getattr(limit, "max_rows", None), len(each))
        starts = {label: one.start_of(finished) for label, one in each.items()}
        ends = {
            label: one.advance(starts[label], share)
            for (label, one), share in zip(each.items(), shares, strict=True)
        }
        found = Offset(ends, starts, {label: one.registered() for label, one in each.items()})
        return start if found.stands_at(finished) else found.written()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """The backlog of the queue, for the query's progress."""
        return {"backlog": sum(one.backlog() for one in self._each().values())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RoundPart]:
        """One partition per round, as it was when the batch was first planned.

        After a restart a query calls this first, so it also takes over the consumer.
        """
        if start == end:
            return []
        last, each = self._offset(end), self._each()
        return [part for label in last.after for part in each[label].parts(last)]

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge; usually ``latestOffset`` has already done it."""
        last = self._offset(end)
        for label in last.rounds:
            self._each()[label].acknowledge(last)

    # -- on the executors

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The messages of one round; the first caller claims them."""
        return read_part(self.options, partition)

    # -- inner

    def _each(self) -> Mapping[str, RoundsOfDatabase]:
        if not self._databases:
            self._databases = {
                label: RoundsOfDatabase(label, location, self.options)
                for label, location in self.options.locations.items()
            }
        return self._databases

    def _offset(self, written: dict[str, Any]) -> Offset:
        options = self.options
        return read_offset(written, options.locations, strict=options.fail_on_data_loss)


def _shares(most: int | None, databases: int) -> list[int | None]:
    if most is None:
        return [None] * databases
    return [max(1, (most + number) // databases) for number in range(databases)]
