"""The streaming source: a durable consumer that claims in rounds, whose last one is the offset.

Spark's own ``commit`` comes only when the next batch with data is planned, and never for the last
one. So rounds are acknowledged by ``latestOffset``: what it gets as ``start`` is in Spark's log of
finished batches. See ``docs/spark-stream.md`` for what follows from that.
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
    """Consumes a queue, or the queues of one name in several databases, as a stream.

    One object lives as long as the query, in a process of the driver; copies of it read on the
    executors and hold no state. One whose options are wrong says so when it is asked anything: what
    is raised while Spark makes it is lost, since PySpark fails over it with an UnboundLocalError.
    """

    def __init__(self, options: StreamOptions | ValueError) -> None:
        self._options = options
        self._databases: dict[str, RoundsOfDatabase] = {}

    @property
    def options(self) -> StreamOptions:
        """How it claims."""
        if isinstance(self._options, ValueError):
            raise self._options
        return self._options

    def __getstate__(self) -> dict[str, Any]:
        """What travels to the executors: no connection."""
        return {**self.__dict__, "_databases": {}}

    # -- in the driver's process

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What ``maxMessagesPerTrigger`` says."""
        return ReadMaxRows(self.options.max_messages_per_trigger)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Behind what was acknowledged: Spark asks again until its first batch is done."""
        each = self._each().items()
        rounds = {label: one.initial() for label, one in each}
        return Offset(rounds, registered={label: one.registered() for label, one in each}).written()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember what is there now."""
        for one in self._each().values():
            one.aim()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Acknowledge ``start``, and open the rounds of the next batch.

        Raises:
            ConsumerFenced: another query has taken the consumer over.
            CheckpointBehind, RoundsGone: the queue has moved on without this checkpoint.
            DatabaseUnavailable: a database is away for longer than ``reconnectTimeout``.
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
        """What waits in the queue, for the query's progress."""
        return {"backlog": sum(one.backlog() for one in self._each().values())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RoundPart]:
        """One partition for each round, as it was when the batch was planned first.

        After a restart this is the first that a query asks, so it takes the consumer over, too.
        """
        if start == end:
            return []
        last, each = self._offset(end), self._each()
        return [part for label in last.after for part in each[label].parts(last)]

    def commit(self, end: dict[str, Any]) -> None:
        """Mostly done already by ``latestOffset``."""
        last = self._offset(end)
        for label in last.rounds:
            self._each()[label].acknowledge(last)

    # -- on the executors

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The messages of one round, claimed by the first who asks for them."""
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
