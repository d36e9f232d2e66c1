"""Writing from Spark to a queue: this package's format compared with Spark's JDBC writer.

Each writer puts the same DataFrame, two partitions of messages of ``--bytes`` bytes, into the same
queue's emptied table. JDBC fills the columns that a message needs, in the ways that its drivers
offer. It cannot handle batches that are repeated or incomplete. All writers run in turns, round
after round, and each time the rows are counted.

``atomic`` and ``task`` are the two values of ``commitMode``.

JDBC needs the drivers' jars: ``--jars FILE,FILE``, or the variable ``QUEUE_OVER_SQL_JDBC_JARS``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f
from rich.progress import Progress

from queue_over_sql import QueueService
from scripts.benchmarks.harness import (
    TITLES,
    databases_of,
    origin_of,
    read_result,
    rounds_at,
    run_alone,
)
from scripts.benchmarks.spark_jdbc import PARTITIONS, count_jobs, jdbc_options, run, version_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "spark_write"
OURS: Final = ("atomic", "task")
# The settings in each driver's URL. PostgreSQL's must allow text for JSON columns.
JDBC: Final[Mapping[str, Mapping[str, str]]] = {
    "postgresql": {
        "default": "stringtype=unspecified",
        "reWriteBatchedInserts": "stringtype=unspecified&reWriteBatchedInserts=true",
    },
    "mariadb": {
        "default": "",
        "rewriteBatchedStatements": "rewriteBatchedStatements=true",
        "useBulkStmts": "useBulkStmts=true",
    },
    "sqlite": {},
    "h2": {},
}
TIDY: Final[Mapping[str, Sequence[str]]] = {
    "postgresql": ["TRUNCATE queue_jobs", "CHECKPOINT"],
    "mariadb": ["TRUNCATE queue_jobs"],
    "sqlite": ["DELETE FROM queue_jobs", "PRAGMA wal_checkpoint(TRUNCATE)"],
    "h2": ["TRUNCATE TABLE queue_jobs"],
}


@dataclass(frozen=True)
class Target:
    """A queue to write to, and how each variant finds it."""

    engine: str
    service: QueueService
    url: str

    def tidy(self) -> None:
        """Empty the table, and let the server do the maintenance that this causes."""
        run_alone(self.service, TIDY[self.engine])

    def write(self, frame: DataFrame, writer: str) -> None:
        """Write a DataFrame in one of the variants."""
        if writer in OURS:
            ours = frame.select("payload").write.format("queue_over_sql")
            ours.options(url=self.url, queue="jobs", commitMode=writer).mode("append").save()
            return
        options = jdbc_options(self.engine, self.url, JDBC[self.engine][writer])
        theirs = frame.write.format("jdbc").options(**options).option("dbtable", "queue_jobs")
        theirs.mode("append").save()


def messages(spark: SparkSession, rows: int, size: int) -> DataFrame:
    """Messages of about ``size`` bytes, with the times that JDBC must provide."""
    now = f.lit(time.time_ns() // 1000)
    head, number = '{"number":', f.col("id").cast("string")
    fill = f.lpad(number, size - len(head) - len(',"text":""}'), "x")
    payload = f.concat(f.lit(head), number, f.lit(',"text":"'), fill, f.lit('"}'))
    times = [now.alias(name) for name in ("published_at", "scheduled_at", "available_at")]
    return spark.range(0, rows, 1, PARTITIONS).select(payload.alias("payload"), *times)


def measure(
    spark: SparkSession, engine: str, bar: Progress, *, sizes: Sequence[int], rounds: int, size: int
) -> dict[str, Any]:
    """Run all writers in turns on one engine.

    Raises:
        ServerMissing: the engine has no server here.
        SystemExit: messages are missing after a write, or there are too many.
    """
    writers = (*OURS, *JDBC[engine])
    with databases_of(engine) as new_database:
        url = new_database("spark_write")
        with QueueService(url) as service:
            service.create_queue("jobs")
            target = Target(engine, service, url)
            for writer in writers:
                # A warm-up, because the first write would pay for all.
                timed(target, messages(spark, 2_000, size), writer, 2_000)
            found: dict[str, Any] = {}
            for rows in sizes:
                doing = bar.add_task(
                    f"{engine}: {rows:,}", total=rounds_at(rows, rounds) * len(writers)
                )
                seconds: defaultdict[str, list[float]] = defaultdict(list)
                for number in range(rounds_at(rows, rounds)):
                    for writer in writers[:: 1 if number % 2 else -1]:
                        frame = messages(spark, rows, size)
                        seconds[writer].append(timed(target, frame, writer, rows))
                        bar.advance(doing)
                found[str(rows)] = compared(seconds, rows)
            return {"version": version_of(service), "sizes": found}


def timed(target: Target, frame: DataFrame, writer: str, rows: int) -> float:
    """The duration of one write in seconds; the table is emptied before."""
    target.tidy()
    began = time.perf_counter()
    target.write(frame, writer)
    seconds = time.perf_counter() - began
    found = count_jobs(target.service)
    if found != rows:
        raise SystemExit(f"{target.engine}, {writer}: {found} messages instead of {rows}")
    return seconds


def compared(seconds: Mapping[str, Sequence[float]], rows: int) -> dict[str, Any]:
    """Seconds of each round, the median rate, and the ratios of ours to the others."""
    theirs = [writer for writer in seconds if writer not in OURS]
    return {
        writer: {
            "seconds": [round(one, 4) for one in taken],
            "rows_per_second": round(rows / median(taken)),
            "times": {
                other: round(median(o / s for o, s in zip(seconds[other], taken, strict=True)), 3)
                for other in theirs
                if writer in OURS
            },
        }
        for writer, taken in seconds.items()
    }


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    lines = [
        "## Spark into a queue, against Spark's JDBC writer",
        "",
        f"""\
A DataFrame of messages of {result["bytes"]} bytes in {PARTITIONS} partitions goes into one queue's
table, which is empty at first, by this package's format in both commit modes and by Spark's own
JDBC writer with the settings of its drivers, in turns, {result["rounds"]} rounds. Rates are medians
in rows per second; the ratio is ours by theirs, the median over the rounds, and more is better.
JDBC inserts rows: what a failed task leaves half done, and what a repeated batch writes twice, is
up to its user.""",
        "",
        "| engine | rows | writer | rows/s | ratio to JDBC |",
        "|---|---|---|---|---|",
    ]
    for engine, found in result["engines"].items():
        label = f"{TITLES[engine]} {found['version']}"
        for rows, writers in found["sizes"].items():
            count = f"{int(rows):,}"
            for writer, measured in writers.items():
                lines.append(row(label, count, writer, measured))
                label = count = ""
    return "\n".join([*lines, "", origin_of(result)]) + "\n"


def row(label: str, count: str, writer: str, measured: Mapping[str, Any]) -> str:
    """One row of the table."""
    shown = f"`commitMode={writer}`" if writer in OURS else f"JDBC, {writer}"
    times = ", ".join(f"{ratio:.2f} to {other}" for other, ratio in measured["times"].items())
    return f"| {label} | {count} | {shown} | {measured['rows_per_second']:,} | {times} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and write its result."""
    run(NAME, str(__doc__).split("\n", 1)[0], measure, row, arguments)


if __name__ == "__main__":
    main()
