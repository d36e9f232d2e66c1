"""Data frames of messages: what the history's columns are, and times in UTC.

Spark computes with days and hours of the session's time zone; a history must not depend on it.
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

A payload is in ``payload`` where it is text, in ``payload_bytes`` where it is bytes. The queue's
own columns are one JSON text, ``columns``, since each queue has others.
"""

HISTORY_SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in HISTORY.items())
"""The same as Spark reads it."""
PARTITIONS: Final = ("queue", "date")
DAY: Final = 86_400
HOUR: Final = 3_600


def microseconds(instant: Column | str) -> Column:
    """An instant as microseconds since the epoch."""
    return sql.unix_micros(_column(instant))


def utc_date(instant: Column | str) -> Column:
    """The day of an instant in UTC."""
    days = sql.floor(sql.unix_seconds(_column(instant)) / sql.lit(DAY)).cast("int")
    return sql.date_from_unix_date(days)


def bin_start(instant: Column | str, seconds: int = HOUR) -> Column:
    """The beginning of the bin of an instant, bins being counted from the epoch in UTC."""
    number = sql.floor(sql.unix_seconds(_column(instant)) / sql.lit(seconds))
    return sql.timestamp_seconds(number * sql.lit(seconds))


def seconds_between(start: Column | str, end: Column | str) -> Column:
    """How long it took, in seconds; never negative, null where an end is not known."""
    taken = (microseconds(end) - microseconds(start)) / sql.lit(1_000_000.0)
    return sql.when(taken >= 0, taken).when(taken < 0, sql.lit(0.0))


def _column(instant: Column | str) -> Column:
    return sql.col(instant) if isinstance(instant, str) else instant


def empty_history(spark: SparkSession) -> DataFrame:
    """No rows, with the columns of a history."""
    return spark.createDataFrame([], HISTORY_SCHEMA)
