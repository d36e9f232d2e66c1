"""Reading a queue into Spark: this package's format compared with Spark's JDBC reader.

Both read the same messages of ``--bytes`` bytes, in two partitions, to nowhere, and both as the
same columns: JDBC finds times as numbers and headers as text, which Spark then converts. JDBC gets
the bounds of the ids and fetches 10,000 rows at once, as one would tune it. This package finds its
partitions itself, and its ``batchBytes`` is 16 MB. ``message`` are the columns that most jobs need,
``all`` are all columns of a message. All readers run in turns, round after round.

JDBC needs the drivers' jars: ``--jars FILE,FILE``, or the variable ``QUEUE_OVER_SQL_JDBC_JARS``.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

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

NAME: Final = "spark_read"
FETCH: Final = 10_000
BATCH: Final = "16MB"
# For each choice: the names in Spark, and the names in the table, which JDBC selects.
CHOICES: Final[Mapping[str, Mapping[str, str]]] = {
    "message": {
        "id": "id",
        "key": "message_key",
        "payload": "payload",
        "priority": "priority",
        "attempt": "attempt_count",
        "published_at": "published_at",
    },
    "all": {
        "id": "id",
        "key": "message_key",
        "kind": "kind",
        "payload": "payload",
        "headers": "headers",
        "priority": "priority",
        "attempt": "attempt_count",
        "published_at": "published_at",
        "scheduled_at": "scheduled_at",
        "available_at": "available_at",
        "consumer_id": "consumer_id",
        "consumer_round": "consumer_round",
    },
}
# What makes JDBC's columns those of this package.
CONVERTED: Final[Mapping[str, str]] = {
    "headers": "from_json({}, 'map<string,string>')",
    "priority": "int({})",
    "published_at": "timestamp_micros({})",
    "scheduled_at": "timestamp_micros({})",
    "available_at": "timestamp_micros({})",
}
READERS: Final = ("queue_over_sql", "JDBC")
TIDY: Final[Mapping[str, Sequence[str]]] = {
    "postgresql": ["VACUUM ANALYZE queue_jobs", "CHECKPOINT"],
    "mariadb": ["ANALYZE TABLE queue_jobs"],
}
# The faster package beside the driver of the URL, if it is installed.
FASTER: Final = {"postgresql": "adbc_driver_postgresql", "mariadb": "MySQLdb"}


@dataclass(frozen=True)
class Source:
    """A full queue, and how each variant finds it."""

    engine: str
    url: str
    rows: int

    def tidy(self, service: QueueService) -> None:
        """Let the server do the maintenance that new rows would cause later."""
        run_alone(service, TIDY[self.engine])

    def frame(self, spark: SparkSession, reader: str, choice: str) -> DataFrame:
        """The DataFrame of a reader."""
        columns = CHOICES[choice]
        return self._ours(spark, columns) if reader == READERS[0] else self._theirs(spark, columns)

    def _ours(self, spark: SparkSession, columns: Mapping[str, str]) -> DataFrame:
        options = {"url": self.url, "queue": "jobs", "columns": ",".join(columns)}
        options["batchBytes"] = BATCH
        ours = spark.read.format("queue_over_sql").options(**options)
        return ours.option("numPartitions", PARTITIONS).load()

    def _theirs(self, spark: SparkSession, columns: Mapping[str, str]) -> DataFrame:
        given = {
            **jdbc_options(self.engine, self.url),
            "dbtable": f"(SELECT {', '.join(columns.values())} FROM queue_jobs) AS messages",
            "partitionColumn": "id",
            "lowerBound": "1",
            "upperBound": str(self.rows),
            "numPartitions": str(PARTITIONS),
            "fetchsize": str(FETCH),
        }
        wanted = [
            f"{CONVERTED.get(name, '{}').format(column)} AS {name}"
            for name, column in columns.items()
        ]
        return spark.read.format("jdbc").options(**given).load().selectExpr(*wanted)


def timed(spark: SparkSession, source: Source, reader: str, choice: str) -> float:
    """The duration of one read in seconds, from the definition of the source to its last row."""
    began = time.perf_counter()
    source.frame(spark, reader, choice).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def payloads(first: int, count: int, size: int) -> Iterator[Any]:
    """Payloads of about ``size`` bytes."""
    for number in range(first, first + count):
        head = len(json.dumps({"number": number, "text": ""}, separators=(",", ":")))
        yield {"number": number, "text": "x" * max(0, size - head)}


def measure(
    spark: SparkSession, engine: str, bar: Progress, *, sizes: Sequence[int], rounds: int, size: int
) -> dict[str, Any]:
    """Run both readers in turns on one engine.

    Raises:
        ServerMissing: the engine has no server here.
        SystemExit: a reader found a wrong number of messages, or other columns.
    """
    with databases_of(engine) as new_database:
        url = new_database("spark_read")
        with QueueService(url) as service:
            queue = service.create_queue("jobs", max_payload_bytes=max(size * 2, 1 << 20))
            found: dict[str, Any] = {}
            filled = 0
            for rows in sorted(sizes):
                queue.load(payloads(filled, rows - filled, size))
                filled = rows
                source = Source(engine, url, rows)
                source.tidy(service)
                check(spark, source, service)
                found[str(rows)] = rounds_of(spark, source, bar, rounds_at(rows, rounds))
            version = version_of(service)
    faster = FASTER[engine] if importlib.util.find_spec(FASTER[engine]) else None
    return {"version": version, "through": faster, "sizes": found, "same_columns": True}


def check(spark: SparkSession, source: Source, service: QueueService) -> None:
    """Warm up, and check that every reader reads everything, as the same columns.

    Raises:
        SystemExit: one does not.
    """
    there = count_jobs(service)
    for reader in READERS:
        found = source.frame(spark, reader, "message").select("payload").count()
        if not found == there == source.rows:
            raise SystemExit(f"{source.engine}, {reader}: {found} of {source.rows} messages")
    for choice in CHOICES:
        frames = [source.frame(spark, reader, choice) for reader in READERS]
        ours, theirs = (frame.schema.simpleString() for frame in frames)
        if ours != theirs:
            raise SystemExit(f"{source.engine}, {choice}: {ours} is not {theirs}")
        for reader in READERS:
            timed(spark, source, reader, choice)


def rounds_of(
    spark: SparkSession, source: Source, bar: Progress, rounds: int
) -> dict[str, dict[str, Any]]:
    """All readers and choices in turns; each round reverses the order."""
    ways = [(reader, choice) for choice in CHOICES for reader in READERS]
    doing = bar.add_task(f"{source.engine}: {source.rows:,}", total=rounds * len(ways))
    seconds: defaultdict[str, dict[str, list[float]]] = defaultdict(
        lambda: {reader: [] for reader in READERS}
    )
    for number in range(rounds):
        for reader, choice in ways[:: 1 if number % 2 else -1]:
            seconds[choice][reader].append(timed(spark, source, reader, choice))
            bar.advance(doing)
    return {choice: compared(taken, source.rows) for choice, taken in seconds.items()}


def compared(taken: Mapping[str, Sequence[float]], rows: int) -> dict[str, Any]:
    """Seconds round by round, the median rates, and ours by theirs, round by round."""
    ours, theirs = (taken[reader] for reader in READERS)
    return {
        "seconds": {reader: [round(one, 4) for one in each] for reader, each in taken.items()},
        "rows_per_second": {reader: round(rows / median(each)) for reader, each in taken.items()},
        "times": round(median(t / o for o, t in zip(ours, theirs, strict=True)), 3),
    }


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    lines = [
        "## A queue into Spark, against Spark's JDBC reader",
        "",
        f"""\
Messages of {result["bytes"]} bytes are read in {PARTITIONS} partitions to nowhere, by this
package's format and by Spark's own JDBC reader, which is told the bounds of the ids and fetches
{FETCH:,} rows at once, while ours makes batches of {BATCH}; in turns, {result["rounds"]} rounds.
`message` are six columns that most jobs need, `all` is whatever a message has,
{len(CHOICES["all"])} columns. Rates are medians in rows per second; the ratio is ours by theirs,
the median over the rounds, and more is better. Both give the same columns: Spark converts JDBC's
numbers to times and its text to headers, except where the engine has a †.""",
        "",
        "| engine | rows | columns | queue_over_sql | JDBC | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for engine, found in result["engines"].items():
        through = f" through `{found['through']}`" if found["through"] else ""
        label = f"{TITLES[engine]} {found['version']}{through}"
        label += "" if found.get("same_columns") else " †"
        for rows, choices in found["sizes"].items():
            for choice, measured in choices.items():
                lines.append(row(label, rows, choice, measured))
                label = ""
    return "\n".join([*lines, "", origin_of(result)]) + "\n"


def row(label: str, rows: str, choice: str, measured: Mapping[str, Any]) -> str:
    """One row of the table."""
    rates = " | ".join(f"{measured['rows_per_second'][reader]:,}" for reader in READERS)
    return f"| {label} | {int(rows):,} | {choice} | {rates} | {measured['times']:.2f} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and write its result."""
    run(NAME, str(__doc__).split("\n", 1)[0], measure, row, arguments)


if __name__ == "__main__":
    main()
