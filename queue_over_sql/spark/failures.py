"""Failures of single messages in a stream: they are retried while the others are finished.

``foreachBatch`` writes the successful rows and gives the failed ones to ``settle``. They leave
their round like nacked messages, so that the ack of the round does not finish them. A replay of the
batch does not read them again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.inside.streams import DurableConsumer
from queue_over_sql.spark.databases import location_of, queue_at, service_at
from queue_over_sql.spark.options import Location
from queue_over_sql.values.durations import Duration, to_microseconds

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_OWNER: Final = "settle"
# Each list is one transaction, which locks the consumer's row.
_AT_ONCE: Final = 1000
_SCHEMA: Final = "failed long, settled long"
# The epoch of the query that read the row, so that a replaced query settles nothing.
_STAMP: Final = ("consumer_epoch", "id", "consumer_round")


@dataclasses.dataclass(frozen=True)
class SettleReport:
    """The result of ``settle``.

    Attributes:
        failed: number of failed rows.
        settled: messages that were now retried or dead-lettered. The others had already been
            settled, by an operator or by an earlier run of this batch.
    """

    failed: int
    settled: int


def settle(
    results: DataFrame,
    queue: str,
    consumer_id: str,
    *,
    url: str | None = None,
    url_env: str | None = None,
    url_file: str | None = None,
    schema: str | None = None,
    table_prefix: str = "queue_",
    delay: Duration | None = None,
    retry_policies: Mapping[str, type[Any]] | None = None,
) -> SettleReport:
    """Report the failed messages of a streaming batch, to retry or dead-letter them.

    Call it in ``foreachBatch`` before the batch ends. Rows whose ``ok`` is not true have failed.
    The queue's retry policy and ``max_attempts`` decide about each of them. This runs on the
    executors, fenced by the query's epoch.

    Args:
        results: has the columns ``id``, ``consumer_round`` and ``consumer_epoch`` of a stream with
            the option ``includeEpoch``, ``ok`` (boolean) and perhaps ``error``, the reason. It must
            be persisted. Otherwise Spark may compute it twice with different results, and a message
            could be lost.
        queue: the queue that the stream reads.
        consumer_id: the option ``consumerId`` of the stream.
        url: an SQLAlchemy URL.
        url_env: instead of ``url``, the environment variable that holds it, here and on the
            executors.
        url_file: instead of ``url``, the file that holds it.
        schema: database schema of the tables.
        table_prefix: prefix of the names of the queues' tables.
        delay: when to retry, instead of the retry policy.
        retry_policies: names and classes of your own retry policies, as for ``QueueService``;
            pickled to the executors.

    Raises:
        ValueError: a column is missing, or ``results`` is not persisted.
        ConsumerFenced: another query has taken over; raised as a failure of Spark's job, because
            the executors detect it.
        QueueNotFound, DatabaseUnavailable: the queue does not exist, or the database cannot be
            reached.
    """
    _check(results)
    if delay is not None:
        to_microseconds(delay, "delay", zero=True)
    place = location_of(url, url_env, url_file, schema, table_prefix)
    # Check it here, so that a wrong name raises before Spark does any work.
    DurableConsumer(queue_at(place, queue), consumer_id, owner=_OWNER)
    reason = "error" if "error" in results.columns else "CAST(NULL AS STRING) AS error"
    failures = results.where("ok IS NOT TRUE").selectExpr(
        *(f"CAST({name} AS LONG) AS {name}" for name in _STAMP), reason
    )
    nack = nacking(place, queue, consumer_id, delay, retry_policies)
    counts = failures.mapInArrow(nack, _SCHEMA).collect()
    return SettleReport(
        failed=sum(row["failed"] for row in counts), settled=sum(row["settled"] for row in counts)
    )


def nacking(
    place: Location,
    queue: str,
    consumer_id: str,
    delay: Duration | None,
    retry_policies: Mapping[str, type[Any]] | None = None,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The task of Spark: stamps and reasons in, ``failed, settled`` out."""

    def nack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        found = service_at(place, retry_policies).queue(queue)
        consumer = DurableConsumer(found, consumer_id, owner=_OWNER)
        for batch in batches:
            epochs, *failures = (column.to_pylist() for column in batch.columns)
            by_epoch: dict[int, list[Any]] = {}
            for epoch, failure in zip(epochs, zip(*failures, strict=True), strict=True):
                by_epoch.setdefault(epoch, []).append(failure)
            settled = 0
            for epoch, failed in by_epoch.items():
                for start in range(0, len(failed), _AT_ONCE):
                    part = failed[start : start + _AT_ONCE]
                    settled += len(consumer.nack(part, delay=delay, epoch=epoch))
            yield pa.RecordBatch.from_pydict({"failed": [batch.num_rows], "settled": [settled]})

    return nack


def _check(results: DataFrame) -> None:
    missing = [name for name in (*_STAMP, "ok") if name not in results.columns]
    if missing:
        msg = (
            f"results has no column {', '.join(missing)}: settle() needs {', '.join(_STAMP)} of a "
            "stream with the option includeEpoch=true, and ok"
        )
        raise ValueError(msg)
    level = results.storageLevel
    if not (level.useMemory or level.useDisk):
        msg = (
            "results must be persisted before they are written and before settle(). Otherwise "
            "Spark computes them twice with possibly different results, and messages that fail "
            "only the second time would be lost"
        )
        raise ValueError(msg)
