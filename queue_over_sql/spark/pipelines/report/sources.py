"""The data of a report: finished messages from a history or the archives, and live ones."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sql

from queue_over_sql import inside
from queue_over_sql.spark.databases import label_of, queues_of, service_at
from queue_over_sql.spark.pipelines.archives import Part, archive_parts, live_parts, read_parts
from queue_over_sql.spark.pipelines.frames import (
    empty_history,
    microseconds,
    utc_date,
)
from queue_over_sql.spark.pipelines.history import history_of
from queue_over_sql.values.durations import Duration, instant, to_timedelta

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from queue_over_sql import ConsumerInfo, Queue
    from queue_over_sql.spark.options import Location

_NEEDED: Final = (
    *("id", "key", "kind", "attempt", "published_at", "scheduled_at", "available_at"),
    *("claimed_at", "last_attempt_at", "finished_at", "outcome", "last_error", "consumer_id"),
)


@dataclasses.dataclass(frozen=True)
class Source:
    """The data of a report.

    ``finished`` and ``live`` have the columns of a history that a report needs; ``live`` also has a
    ``status``. Live messages were read at ``now``. ``words`` describe the origin of all data.
    ``consumers`` are the registered consumers by id.
    """

    finished: DataFrame
    live: DataFrame
    now: datetime
    words: str
    consumers: Mapping[str, str]


def gathered(
    spark: SparkSession,
    location: Location | None,
    history: str | os.PathLike[str] | None,
    work: str,
    *,
    queues: Sequence[str] | None,
    since: datetime | Duration | None,
) -> Source:
    """Read the database once, into files, so that all tables are about the same messages.

    Without a database the report is about a history alone; without a history, about the archives.
    The folder ``work`` keeps files until the report is made.
    """
    # Check first whether it exists, before the database is read.
    known = None if history is None else history_of(spark, history)
    now, live, words = datetime.now(UTC), _slim(empty_history(spark)), []
    found: list[Queue] = []
    consumers: dict[str, str] = {}
    if location is not None:
        found = queues_of(service_at(location), queues)
        if found:
            consumers = {c.consumer_id: _who(c) for c in service_at(location).consumers()}
            now = instant(inside.read_clock(found[0]))
        parts = [part for queue in found for part in live_parts(queue)]
        live = _copied(spark, location, parts, f"{work}/live")
        words.append(f"the database {label_of(location)}")
    if known is None or history is None:
        assert location is not None  # noqa: S101 - report() has checked it
        parts = [part for queue in found for part in archive_parts(queue)]
        finished = _copied(spark, location, parts, f"{work}/archive")
    else:
        finished = _slim(known)
        words.insert(0, f"the history in the folder {os.fspath(history)}")
    finished = _chosen(finished, queues, since, now)
    status = _status(now).alias("status")
    return Source(finished, live.select("*", status), now, " and ".join(words), consumers)


def _who(consumer: ConsumerInfo) -> str:
    if consumer.permanent:
        return consumer.name
    place = f"{consumer.host}, process {consumer.pid}"
    return place if consumer.name == consumer.host else f"{consumer.name} on {place}"


def _slim(frame: DataFrame) -> DataFrame:
    return frame.select("queue", "date", *_NEEDED)


def _copied(
    spark: SparkSession, location: Location, parts: Sequence[Part], place: str
) -> DataFrame:
    rows = read_parts(spark, location, parts, ["queue", *_NEEDED])
    rows = _slim(rows.withColumn("date", utc_date("finished_at")))
    rows.write.parquet(place)
    return spark.read.schema(rows.schema).parquet(place)


def _chosen(
    finished: DataFrame,
    queues: Sequence[str] | None,
    since: datetime | Duration | None,
    now: datetime,
) -> DataFrame:
    if queues is not None:
        finished = finished.where(sql.col("queue").isin(list(queues)))
    if since is None:
        return finished
    start = _instant(since, now)
    at = sql.timestamp_micros(sql.lit(int(start.timestamp() * 1_000_000)))
    # The day prunes partitions, the time filters.
    return finished.where((sql.col("date") >= utc_date(at)) & (sql.col("finished_at") >= at))


def _instant(since: datetime | Duration, now: datetime) -> datetime:
    if not isinstance(since, datetime):
        return now - to_timedelta(since, "since")
    if since.tzinfo is None:
        raise ValueError("since= must have a time zone: use datetime(…, tzinfo=…)")
    return since


def _status(now: datetime) -> Column:
    due, at = microseconds("available_at"), sql.lit(int(now.timestamp() * 1_000_000))
    return (
        sql.when(sql.col("consumer_id").isNotNull(), "claimed")
        .when(due.isNull(), "held")
        .when(due > at, "delayed")
        .otherwise("ready")
    )
