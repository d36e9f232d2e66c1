"""The speed of consuming a queue as a stream on Spark, from the start to the last ack.

Each case drains its own queue with ``availableNow`` through ``mapInArrow`` into a sink that keeps
nothing, in one Spark session with two cores. In each round every case runs once.

postgresql, executor claim
    the tasks claim in parallel.
postgresql, driver claim
    the driver claims each part in turn.
mariadb, sqlite
    with default claims: MariaDB on the executors, SQLite in the driver.

At the end of each run the queue must be empty, and the received rows must be the published ones.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from rich.progress import Progress
from sqlalchemy import Connection, create_engine

from queue_over_sql import Queue, QueueService
from scripts.benchmarks.harness import (
    LARGE,
    databases_of,
    origin_of,
    progress_bar,
    read_result,
    rounds_at,
    write_result,
)
from scripts.benchmarks.spark_sessions import spark_of

NAME = "spark_stream"
BYTES = 200
PER_BATCH = 250_000
CASES = {
    "postgresql, executor claim": ("postgresql", {"claimMode": "executor"}),
    "postgresql, driver claim": ("postgresql", {"claimMode": "driver"}),
    "mariadb, executor claim": ("mariadb", {"claimMode": "executor"}),
    "sqlite, driver claim": ("sqlite", {"claimMode": "driver"}),
}
# Only these run with more than a million messages; the others would show nothing new.
LARGE_CASES = ("postgresql, executor claim",)


@dataclass
class Case:
    """One way to drain a queue.

    Attributes:
        name: of the case.
        url: of its database.
        options: of the source.
        queue: the queue to fill and drain.
        seconds: the duration of each run, by number of messages.
    """

    name: str
    url: str
    options: Mapping[str, str]
    queue: Queue
    runs: int = 0
    seconds: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    batches: list[Mapping[str, Any]] = field(default_factory=list)

    def fill(self, messages: int) -> None:
        """Publish a number of messages of ``BYTES`` bytes each."""
        self.queue.load("x" * BYTES for _ in range(messages))
        settle(self.url, self.queue.table.name)

    def drain(self, spark: SparkSession, folder: Path) -> float:
        """Consume the queue until it is empty; returns the seconds.

        Raises:
            SystemExit: messages are left, or the received rows are not the published ones.
        """
        self.runs += 1
        expected = self.queue.stats().ready
        source = spark.readStream.format("queue_over_sql").options(
            url=self.url,
            queue=self.queue.name,
            consumerId=f"benchmark-{self.runs}",
            maxMessagesPerTrigger=str(PER_BATCH),
            **self.options,
        )
        worked = source.load().mapInArrow(passed_on, "id bigint, payload string")
        writer = worked.writeStream.format("noop").trigger(availableNow=True)
        checkpoint = folder / f"{self.name}-{self.runs}"
        began = time.perf_counter()
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        query.awaitTermination()
        seconds = time.perf_counter() - began
        self.batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        came = sum(progress["numInputRows"] for progress in self.batches)
        left = self.queue.stats().live
        if left or came != expected:
            raise SystemExit(f"{self.name}: {came} of {expected} came, {left} are left")
        return seconds


def passed_on(batches: Iterator[Any]) -> Iterator[Any]:
    """The transformation: none."""
    for batch in batches:
        yield batch.select(["id", "payload"])


def settle(url: str, table: str) -> None:
    """Let the server do now the maintenance that new rows would cause during the run."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    statements = {
        "postgresql": [f"VACUUM ANALYZE {table}", "CHECKPOINT"],
        "mariadb": [f"ANALYZE TABLE {table}"],
        "sqlite": ["PRAGMA wal_checkpoint(TRUNCATE)"],
    }
    with engine.connect() as connection:
        run_all(connection, statements.get(engine.dialect.name, []))
    engine.dispose()


def run_all(connection: Connection, statements: Sequence[str]) -> None:
    """Run statements and discard their results."""
    for statement in statements:
        connection.exec_driver_sql(statement).close()


def measure(
    names: Sequence[str], sizes: Sequence[int], rounds: int, progress: Progress
) -> dict[str, Any]:
    """Run the cases in turns.

    Raises:
        ServerMissing: an engine has no server here.
        SystemExit: messages were lost, or came twice.
    """
    running = progress.add_task(
        "runs", total=len(names) * sum(rounds_at(size, rounds) for size in sizes)
    )
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="queue-over-sql-spark-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        cases = open_cases(stack, names)
        spark = stack.enter_context(spark_of(NAME))
        for case in cases:
            case.fill(10_000)
            case.drain(spark, folder)
        for size in sizes:
            for number in range(rounds_at(size, rounds)):
                for case in cases[:: 1 if number % 2 else -1]:
                    if size > LARGE and case.name not in LARGE_CASES:
                        continue
                    case.fill(size)
                    case.seconds[size].append(case.drain(spark, folder))
                    progress.print(summary(case, size))
                    progress.advance(running)
    return {
        case.name: {str(n): [round(s, 3) for s in t] for n, t in case.seconds.items()}
        for case in cases
    }


def summary(case: Case, size: int) -> str:
    """A summary of the last run of a case, for the console."""
    steps: defaultdict[str, list[int]] = defaultdict(list)
    for batch in case.batches:
        for step, milliseconds in batch["durationMs"].items():
            steps[step].append(milliseconds)
    medians = ", ".join(f"{step} {median(times):.0f}" for step, times in sorted(steps.items()))
    rate = size / case.seconds[size][-1]
    return f"{case.name}: {size:,} messages, {rate:,.0f}/s; ms per batch: {medians}"


def open_cases(stack: ExitStack, names: Sequence[str]) -> list[Case]:
    """The cases, each with a database of its own."""
    servers: dict[str, Any] = {}
    cases = []
    for number, name in enumerate(names):
        engine, options = CASES[name]
        if engine not in servers:
            servers[engine] = stack.enter_context(databases_of(engine))
        url = servers[engine](f"stream_{number}")
        service = QueueService(url)
        stack.callback(service.stop)
        queue = service.create_queue("jobs", payload="text", archive="none")
        cases.append(Case(name, url, options, queue))
    return cases


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    sizes = result["sizes"]
    lines = [
        "## A queue consumed as a stream on Spark",
        "",
        f"""\
Each case drains its queue with `availableNow` in micro-batches of {PER_BATCH:,}, through
`mapInArrow` into Spark's sink that keeps nothing: from the start of the query until the last
message is acknowledged, a new query's start included. Messages of {BYTES} bytes, `local[2]`, the
database on the same cores, commits reach the disk; {result["rounds"]} rounds in turns, medians.""",
        "",
        "| | " + " | ".join(f"{size:,} messages" for size in sizes) + " |",
        "|---|" + "---|" * len(sizes),
    ]
    for name, measured in result["cases"].items():
        rates = [
            f"{size / median(measured[str(size)]):,.0f}/s" if str(size) in measured else ""
            for size in sizes
        ]
        lines.append(f"| {name} | " + " | ".join(rates) + " |")
    lines += ["", origin_of(result)]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- the command


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=";".join(CASES), help="separated by semicolons")
    parser.add_argument(
        "--sizes", default="10000,100000,1000000,5000000", help="numbers of messages"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each case runs")
    parser.add_argument("--markdown", action="store_true", help="print the last result instead")
    options = parser.parse_args()
    if options.markdown:
        print(section(), end="")
        return
    names = [name.strip() for name in options.cases.split(";")]
    if unknown := set(names) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    sizes = [int(size) for size in options.sizes.split(",")]
    command = f"python -m scripts.benchmarks.{NAME} --sizes {options.sizes}"
    with progress_bar() as progress:
        cases = measure(names, sizes, options.rounds, progress)
    result = {"sizes": sizes, "rounds": options.rounds, "cases": cases}
    print(write_result(NAME, f"{command} --rounds {options.rounds}", result))


if __name__ == "__main__":
    main()
