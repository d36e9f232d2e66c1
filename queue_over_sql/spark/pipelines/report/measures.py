"""The measures of a report, which Spark computes from finished and live messages.

``finished`` has the columns of a history; ``live`` has ``queue``, ``status`` and the columns that a
live message has. All times are in UTC, all durations in seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sql

from queue_over_sql.spark.pipelines.frames import HOUR, bin_start, seconds_between
from queue_over_sql.spark.pipelines.report.columns import DURATIONS, OUTCOMES, QUANTILES, STATUSES
from queue_over_sql.values.reasons import CONSUMER_DIED, LEASE_EXPIRED, OUT_OF_ATTEMPTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_DISPOSITIONS: Final = ("dead", "done_later", "live")
_ACCURACY: Final = 2_000
_ERROR_LENGTH: Final = 500
_REASON_LENGTH: Final = 200

# Parts in which failures with the same reason differ, and their replacements.
_PARTICULARS: Final = (
    (rf"(?s)^{OUT_OF_ATTEMPTS}", ""),
    (r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", "<uuid>"),
    (r"(?i)\b(?:0x)?(?=[0-9a-f]*[0-9])[0-9a-f]{8,}\b", "<hex>"),
    (r"'[^'\n]{1,200}'|\"[^\"\n]{1,200}\"", "<text>"),
    (r"\d+(?:[.,:]\d+)*", "<n>"),
    (r"\s+", " "),
)


ORDERS: Final = {
    # Per queue and hour of UTC: published, finished by outcome, retries, durations.
    "hourly": ("queue", "hour"),
    # Per queue, the same in total, and the live messages.
    "queues": ("queue",),
    # Per queue, the most frequent reasons, with the oldest and the newest example.
    "failures": ("queue", "rank"),
    # The newest dead letters of each queue.
    "dead_letters": ("queue", "rank"),
    # Per queue and hour, messages that a dead consumer or an expired lease returned, if this was
    # their last failure.
    "lost_claims": ("queue", "hour", "cause"),
    # Per queue, how many messages each consumer finished, and its share.
    "consumers": ("queue", "-finished", "consumer_id"),
}
"""The tables of a report, and the order of their rows; ``-`` means descending."""


def measure(finished: DataFrame, live: DataFrame, *, top: int) -> dict[str, DataFrame]:
    """Compute all tables by name; Spark reads nothing before one of them is used.

    ``top`` is how many reasons and dead letters to list per queue.
    """
    timed = with_durations(finished)
    return {
        "hourly": binned(timed, live, HOUR, "hour"),
        "queues": _queues(timed, live),
        "failures": _failures(finished, live, top),
        "dead_letters": _dead_letters(finished, top),
        "lost_claims": _lost_claims(finished, live),
        "consumers": _consumers(timed),
    }


def with_durations(finished: DataFrame) -> DataFrame:
    """Finished messages with the wait and run time of the last attempt, and the total time.

    ``wait``: from due to claimed. ``run``: from claimed to finished. ``total``: from first due to
    finished, all attempts included.
    """
    return finished.withColumns(
        {
            "wait": seconds_between("available_at", "claimed_at"),
            "run": seconds_between("claimed_at", "finished_at"),
            "total": seconds_between("scheduled_at", "finished_at"),
        }
    )


def binned(timed: DataFrame, live: DataFrame, seconds: int, name: str) -> DataFrame:
    """The activity per queue and bin of ``seconds``; the column ``name`` is the start of the bin.

    ``finished`` comes from ``with_durations``.
    """
    ended = timed.groupBy("queue", bin_start("finished_at", seconds).alias(name)).agg(*_ended())
    born = timed.select("queue", "published_at").unionByName(live.select("queue", "published_at"))
    published = born.groupBy("queue", bin_start("published_at", seconds).alias(name)).agg(
        sql.count("*").alias("published")
    )
    joined = published.join(ended, ["queue", name], "full")
    return _without_nulls(joined)


def _ended() -> list[Column]:
    attempts_before = sql.greatest(sql.col("attempt") - 1, sql.lit(0))
    return [
        sql.count("*").alias("finished"),
        *[sql.count_if(sql.col("outcome") == outcome).alias(outcome) for outcome in OUTCOMES],
        sql.count_if(attempts_before > 0).alias("retried"),
        sql.coalesce(sql.sum(attempts_before), sql.lit(0)).alias("retries"),
        *[column for name in DURATIONS for column in _quantiles(name)],
    ]


def _quantiles(name: str) -> list[Column]:
    found = sql.percentile_approx(name, list(QUANTILES.values()), _ACCURACY)
    columns = [found[place].alias(f"{name}_{label}") for place, label in enumerate(QUANTILES)]
    return [*columns, sql.max(name).alias(f"{name}_max")]


def _without_nulls(frame: DataFrame) -> DataFrame:
    counts = ["published", "finished", *OUTCOMES, "retried", "retries", *STATUSES]
    return frame.fillna(0, [name for name in counts if name in frame.columns])


def _queues(timed: DataFrame, live: DataFrame) -> DataFrame:
    ended = timed.groupBy("queue").agg(
        *_ended(),
        sql.min("finished_at").alias("first_finished_at"),
        sql.max("finished_at").alias("last_finished_at"),
    )
    status, due = sql.col("status"), sql.col("available_at")
    waiting = live.groupBy("queue").agg(
        sql.count("*").alias("live"),
        *[sql.count_if(status == name).alias(name) for name in STATUSES],
        sql.min(sql.when(status == "ready", due)).alias("oldest_ready_at"),
    )
    joined = ended.join(waiting, "queue", "full").fillna(0, ["live"])
    published = sql.col("finished") + sql.col("live")
    return _without_nulls(joined).withColumn("published", published)


def _failures(finished: DataFrame, live: DataFrame, top: int) -> DataFrame:
    dead = finished.where(_is_dead()).withColumn("disposition", sql.lit("dead"))
    retried = finished.where(sql.col("outcome") == "done").withColumn(
        "disposition", sql.lit("done_later")
    )
    open_ones = live.withColumns(
        {"disposition": sql.lit("live"), "finished_at": sql.col("published_at")}
    )
    columns = ["queue", "id", "disposition", "finished_at", "last_attempt_at", "last_error"]
    failed = dead.select(columns).unionByName(retried.select(columns))
    failed = failed.unionByName(open_ones.select(columns)).where("last_error is not null")
    at = sql.coalesce("last_attempt_at", "finished_at")
    example = sql.struct("id", sql.substring("last_error", 1, _ERROR_LENGTH).alias("error"))
    grouped = failed.groupBy("queue", reason_of(sql.col("last_error")).alias("reason")).agg(
        sql.count("*").alias("messages"),
        *[sql.count_if(sql.col("disposition") == name).alias(name) for name in _DISPOSITIONS],
        sql.min(at).alias("first_at"),
        sql.max(at).alias("last_at"),
        sql.min_by(example, at).alias("oldest"),
        sql.max_by(example, at).alias("newest"),
    )
    order = Window.partitionBy("queue").orderBy(sql.desc("messages"), "reason")
    ranked = grouped.withColumn("rank", sql.row_number().over(order)).where(sql.col("rank") <= top)
    return ranked.select(
        *["queue", "rank", "reason", "messages", "dead", "done_later", "live"],
        *["first_at", "last_at"],
        *[
            sql.col(f"{which}.{field}").alias(f"{which}_{field}")
            for which in ("oldest", "newest")
            for field in ("id", "error")
        ],
    )


def reason_of(error: Column) -> Column:
    """The reason of a failure without the parts that are specific to one message."""
    reason = sql.substring(error, 1, _ERROR_LENGTH)
    for pattern, instead in _PARTICULARS:
        reason = sql.regexp_replace(reason, pattern, instead)
    return sql.substring(sql.trim(reason), 1, _REASON_LENGTH)


def _is_dead() -> Column:
    return sql.col("outcome") != "done"


def _dead_letters(finished: DataFrame, top: int) -> DataFrame:
    order = Window.partitionBy("queue").orderBy(sql.desc("finished_at"), sql.desc("id"))
    dead = finished.where(_is_dead()).withColumn("rank", sql.row_number().over(order))
    error = sql.substring("last_error", 1, _ERROR_LENGTH).alias("last_error")
    columns = ["queue", "rank", "id", "key", "kind", "outcome", "attempt", "finished_at"]
    return dead.where(sql.col("rank") <= top).select(*columns, error)


def _lost_claims(finished: DataFrame, live: DataFrame) -> DataFrame:
    columns = ["queue", "last_attempt_at", "last_error", "finished_at"]
    open_ones = live.withColumn("finished_at", sql.lit(None).cast("timestamp"))
    both = finished.select(columns).unionByName(open_ones.select(columns))
    error = sql.col("last_error")
    cause = sql.when(error.contains(LEASE_EXPIRED), "lease expired").when(
        error.contains(CONSUMER_DIED), "consumer died"
    )
    hour = bin_start(sql.coalesce("last_attempt_at", "finished_at"))
    lost = both.select("queue", hour.alias("hour"), cause.alias("cause"))
    counted = lost.where("cause is not null").groupBy("queue", "hour", "cause")
    return counted.agg(sql.count("*").alias("messages"))


def _consumers(timed: DataFrame) -> DataFrame:
    named = timed.where("consumer_id is not null")
    each = named.groupBy("queue", "consumer_id").agg(
        sql.count("*").alias("finished"),
        sql.count_if(_is_dead()).alias("dead"),
        *_quantiles("run"),
        sql.min("finished_at").alias("first_finished_at"),
        sql.max("finished_at").alias("last_finished_at"),
    )
    of_queue = sql.sum("finished").over(Window.partitionBy("queue"))
    return each.withColumn("share", sql.col("finished") / of_queue)
