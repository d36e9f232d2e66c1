"""Spark's executors as workers: messages per second with a handler that does nothing.

Each round fills the same queue with messages of ``--bytes`` bytes, and two workers drain it in each
of the forms of ``run_workers``. The measured time is that of the workers, from the first connect to
the last end. The start of Spark and its Python does not count.

``taken`` is ``form="arrow", transactional=True``: a batch is removed in the handler's transaction.
The others claim and ack.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from pyspark.sql import SparkSession
from rich.progress import Progress

from queue_over_sql import QueueService
from queue_over_sql.spark import run_workers
from scripts.benchmarks.harness import (
    LARGE,
    TITLES,
    databases_of,
    origin_of,
    progress_bar,
    read_result,
    rounds_at,
    run_alone,
    write_result,
)
from scripts.benchmarks.spark_sessions import CORES, spark_of

NAME: Final = "spark_fleet"
SIZES: Final = (10_000, 100_000, 1_000_000, 5_000_000)
ROUNDS: Final = 5
WORKERS: Final = CORES
# Slow forms show nothing new with very many messages.
MOST_OF_ENGINE: Final = {"postgresql": 5_000_000}
MOST: Final = {"taken": 5_000_000, "arrow": 1_000_000, "batch": 100_000, "message": 100_000}
AFTER_FILLING: Final[Mapping[str, Sequence[str]]] = {
    "postgresql": ["VACUUM ANALYZE queue_jobs", "CHECKPOINT"],
    "mariadb": ["ANALYZE TABLE queue_jobs"],
}


def of_one(given: object) -> None:
    """Does nothing with a message, or with several."""
    del given


def of_taken(batch: object, connection: object) -> None:
    """Does nothing with a batch in a transaction."""
    del batch, connection


FORMS: Final[Mapping[str, tuple[Callable[..., None], Mapping[str, Any]]]] = {
    "taken": (of_taken, {"form": "arrow", "transactional": True}),
    "arrow": (of_one, {"form": "arrow"}),
    "batch": (of_one, {"form": "batch"}),
    "message": (of_one, {"form": "message"}),
}


def warm(spark: SparkSession) -> None:
    """Start Python on the executors, because the first use takes seconds."""
    spark.range(0, WORKERS, 1, WORKERS).mapInArrow(lambda batches: batches, "id long").count()


def fill(service: QueueService, engine: str, count: int, size: int) -> None:
    """Fill the emptied queue, and let the server do its maintenance."""
    queue = service.queue("jobs")
    queue.purge(claimed=True)
    queue.load(f"{number:012}".ljust(size, "x") for number in range(count))
    run_alone(service, AFTER_FILLING.get(engine, ()))


def rate(spark: SparkSession, service: QueueService, url: str, form: str, count: int) -> float:
    """Messages per second of all workers.

    Raises:
        RuntimeError: they did not finish each message exactly once.
    """
    handler, arguments = FORMS[form]
    report = run_workers(spark, "jobs", handler, url=url, workers=WORKERS, **arguments)
    left = service.queue("jobs").stats().live
    if report.handled != count or report.failed or left:
        raise RuntimeError(f"{form}: {report}, {left} messages are left")
    return count / max(worker.seconds for worker in report.workers)


def measure(
    spark: SparkSession, engine: str, options: argparse.Namespace, bar: Progress
) -> list[dict[str, Any]]:
    """The rates of one engine, form by form in turns."""
    measured: list[dict[str, Any]] = []
    task = bar.add_task(
        TITLES[engine], total=sum(rounds_at(s, options.rounds) for s in options.sizes)
    )
    with databases_of(engine) as new_database:
        url = new_database("fleet")
        service = QueueService(url)
        service.create_queue("jobs", payload="text")
        for count in options.sizes:
            rates: dict[str, list[float]] = defaultdict(list)
            for _ in range(rounds_at(count, options.rounds)):
                for form in options.forms:
                    if count <= min(MOST[form], MOST_OF_ENGINE.get(engine, LARGE)):
                        fill(service, engine, count, options.bytes)
                        rates[form].append(rate(spark, service, url, form, count))
                bar.advance(task)
            measured += [
                {"engine": engine, "count": count, "form": form, "rates": found}
                for form, found in rates.items()
            ]
        service.stop()
    return measured


def section() -> str:
    """What the page says of it."""
    result = read_result(NAME)
    sizes = sorted({each["count"] for each in result["measured"]})
    lines = [
        "## Workers on Spark",
        "",
        f"""\
Two workers on two cores, a handler that does nothing, messages of {result["bytes"]} bytes: messages
a second, median of {result["rounds"]} rounds. `taken` removes a batch in the handler's transaction,
the others claim and ack; see [workers on Spark](spark-workers.md).""",
        "",
        "| engine | form | " + " | ".join(f"{size:,}" for size in sizes) + " |",
        "|---|---|" + "--:|" * len(sizes),
    ]
    rows = {(each["engine"], each["form"]) for each in result["measured"]}
    order = list(TITLES), list(FORMS)
    for engine, form in sorted(rows, key=lambda r: (order[0].index(r[0]), order[1].index(r[1]))):
        found = {
            each["count"]: f"{median(each['rates']):,.0f}"
            for each in result["measured"]
            if (each["engine"], each["form"]) == (engine, form)
        }
        cells = " | ".join(found.get(size, "") for size in sizes)
        lines.append(f"| {TITLES[engine]} | {form} | {cells} |")
    return "\n".join([*lines, "", origin_of(result), ""])


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__)
    parser.add_argument("--engines", default="postgresql,mariadb,sqlite")
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--bytes", type=int, default=200)
    found = parser.parse_args()
    found.engines, found.forms = found.engines.split(","), found.forms.split(",")
    found.sizes = [int(size) for size in found.sizes.split(",")]
    return found


def main() -> None:
    """Measure, and write the result file."""
    options = arguments()
    measured: list[dict[str, Any]] = []
    with progress_bar() as bar, spark_of(NAME) as spark:
        warm(spark)
        for engine in options.engines:
            measured += measure(spark, engine, options, bar)
    command = " ".join(["python -m scripts.benchmarks.spark_fleet", *sys.argv[1:]])
    content = {"bytes": options.bytes, "rounds": options.rounds, "measured": measured}
    write_result(NAME, command, content)
    for each in measured:
        found = f"{each['count']:9,} {median(each['rates']):12,.0f}/s"
        print(f"{each['engine']:11} {each['form']:8} {found}")


if __name__ == "__main__":
    main()
