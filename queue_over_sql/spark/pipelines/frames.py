"""DataFrames of messages: the columns of a history, and times in UTC.

Spark computes days and hours in the session's time zone, which must not affect a history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HISTORY: Final = {
    "id": "bigint",
    "key": "string",
    "kind": "string",
    "payload": "string",
    "payload_bytes": "binary",
    "headers": "map<string,string>",
    "priority": "int",
    "attempt": "int",
    "published_at": "timestamp",
    "scheduled_at": "timestamp",
    "available_at": "timestamp",
    "claimed_at": "timestamp",
    "last_attempt_at": "timestamp",
    "finished_at": "timestamp",
    "outcome": "string",
    "last_error": "string",
    "consumer_id": "string",
    "consumer_round": "bigint",
    "columns": "string",
    "queue": "string",
    "date": "date",
}
"""The columns of a history and their types; ``queue`` and ``date`` are its partitions.

A text payload is in ``payload``, and a bytes payload in ``payload_bytes``. The queue's
own columns are one JSON text, ``columns``, because they differ between queues.
"""

HISTORY_SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in HISTORY.items())
"""The same in Spark's syntax."""
PARTITIONS: Final = ("queue", "date")
DAY: Final = 86_400
HOUR: Final = 3_600


def microseconds(instant: Column | str) -> Column:
    """A time as microseconds since the epoch."""
    return sql.unix_micros(_column(instant))


def utc_date(instant: Column | str) -> Column:
    """The day of a time in UTC."""
    days = sql.floor(sql.unix_seconds(_column(instant)) / sql.lit(DAY)).cast("int")
    return sql.date_from_unix_date(days)


def bin_start(instant: Column | str, seconds: int = HOUR) -> Column:
    """The start of the bin of a time; bins are counted from the epoch in UTC."""
    number = sql.floor(sql.unix_seconds(_column(instant)) / sql.lit(seconds))
    return sql.timestamp_seconds(number * sql.lit(seconds))


def seconds_between(start: Column | str, end: Column | str) -> Column:
    """A duration in seconds; never negative, null if an end is unknown."""
    taken = (microseconds(end) - microseconds(start)) / sql.lit(1_000_000.0)
    return sql.when(taken >= 0, taken).when(taken < 0, sql.lit(0.0))


def _column(instant: Column | str) -> Column:
    return sql.col(instant) if isinstance(instant, str) else instant


def empty_history(spark: SparkSession) -> DataFrame:
    """No rows, with the columns of a history."""
    return spark.createDataFrame([], HISTORY_SCHEMA)
