"""Shared by the two benchmarks against Spark's own JDBC: connections and the command."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from rich.progress import Progress
from sqlalchemy import func, make_url, select

from queue_over_sql.service import parts_of
from scripts.benchmarks.harness import progress_bar, read_result, was_run, write_result
from scripts.benchmarks.spark_sessions import CORES, JARS, spark_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from queue_over_sql import QueueService

SIZES: Final = (10_000, 100_000, 1_000_000, 5_000_000)
ROUNDS: Final = 5
PARTITIONS: Final = CORES
DRIVERS: Final[Mapping[str, str]] = {
    "postgresql": "org.postgresql.Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
}
# Spark quotes names as MySQL does only if the URL names MySQL.
_SCHEMES: Final = {"postgresql": "postgresql", "mariadb": "mysql"}


class Measure(Protocol):
    """Runs all variants in turns on one engine."""

    def __call__(
        self,
        spark: SparkSession,
        engine: str,
        bar: Progress,
        *,
        sizes: Sequence[int],
        rounds: int,
        size: int,
    ) -> dict[str, Any]:
        """Measure with these numbers of messages, each of ``size`` bytes."""
        ...


def jdbc_options(engine: str, url: str, settings: str = "") -> dict[str, str]:
    """The options of Spark's JDBC for a database.

    Args:
        engine: its name here.
        url: its SQLAlchemy URL.
        settings: of the driver, as in its URL.
    """
    parts = make_url(url)
    target = f"jdbc:{_SCHEMES[engine]}://{parts.host}:{parts.port}/{parts.database}"
    options = {
        "url": f"{target}?{settings}" if settings else target,
        "driver": DRIVERS[engine],
        "user": str(parts.username),
    }
    return {**options, "password": str(parts.password)} if parts.password else options


def count_jobs(service: QueueService) -> int:
    """Count the messages of the queue ``jobs``."""
    table = service.queue("jobs").table
    with parts_of(service).connections.engine.connect() as connection:
        return int(connection.scalar(select(func.count()).select_from(table)) or 0)


def version_of(service: QueueService) -> str:
    """The server's version, as in a result."""
    info = parts_of(service).connections.engine.dialect.server_version_info or ()
    return ".".join(str(part) for part in info)


def run(
    name: str,
    summary: str,
    measure: Measure,
    row: Callable[[str, str, str, Mapping[str, Any]], str],
    arguments: Sequence[str] | None,
) -> None:
    """Run a benchmark from the command line, print its rows and write its result.

    The result keeps what was measured before of engines that are not named.

    Args:
        name: of its module.
        summary: the description for ``--help``.
        measure: runs all variants in turns on one engine; its result has ``sizes``.
        row: a row of the table for an engine, a size and a variant.
        arguments: of the command; None for those of the process.
    """
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--engines", default=",".join(DRIVERS), help="separated by commas")
    parser.add_argument("--rows", default=",".join(map(str, SIZES)), help="separated by commas")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--bytes", type=int, default=200, help="of one message")
    parser.add_argument("--jars", default=os.environ.get(JARS, ""), help="of JDBC drivers")
    parser.add_argument("--dry", action="store_true", help="print, and write no result")
    given = parser.parse_args(arguments)
    engines, sizes = given.engines.split(","), [int(rows) for rows in given.rows.split(",")]
    with spark_of(name, jars=given.jars) as spark, progress_bar() as bar:
        found = {
            engine: measure(spark, engine, bar, sizes=sizes, rounds=given.rounds, size=given.bytes)
            for engine in engines
        }
    for engine, result in found.items():
        for rows, ways in result["sizes"].items():
            for way, measured in ways.items():
                print(row(engine, rows, way, measured))
    if not given.dry:
        command = f"python -m scripts.benchmarks.{name} " + " ".join(
            f"--{option} {getattr(given, option)}"
            for option in ("engines", "rows", "rounds", "bytes")
        )
        content: dict[str, Any] = {"rounds": given.rounds, "bytes": given.bytes, "engines": found}
        before = read_result(name) if was_run(name) else {"engines": {}}
        kept = {each: old for each, old in before["engines"].items() if each not in found}
        if kept:
            content["engines"] = found | kept
            content["earlier"] = [*before.get("earlier", ()), before["command"]]
        write_result(name, command, content)
