"""How many messages MariaDB itself can take into a queue's table, and what of the table costs it.

Two processes with a connection each send INSERTs of many rows, as fast as the server takes them,
without Spark on the way: what fills this table by INSERT cannot be much faster. In turns the table
is as a queue has it, without its CHECK that payloads are JSON, without the index of claims, without
that of keys, and without any of them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from sqlalchemy import func, select

from queue_over_sql import QueueService
from scripts.benchmarks.harness import (
    databases_of,
    origin_of,
    progress_bar,
    read_result,
    write_result,
)

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

    from sqlalchemy import Connection

NAME: Final = "filling_mariadb"
MESSAGES: Final = 1_000_000
BYTES: Final = 200
ROUNDS: Final = 5
PROCESSES: Final = 2
# Messages of one transaction.
CHUNK: Final = 62_500
TIMES: Final = ("published_at", "scheduled_at", "available_at")
DROPS: Final = {
    "whole": (),
    "without the CHECK": ("DROP CONSTRAINT {table}_json_ck",),
    "without the index of claims": ("DROP INDEX {table}_claim_ix",),
    "without the index of keys": ("DROP INDEX {table}_key_uq",),
    "without any of them": (
        "DROP CONSTRAINT {table}_json_ck",
        "DROP INDEX {table}_claim_ix",
        "DROP INDEX {table}_key_uq",
    ),
}


def messages(count: int) -> Iterator[pa.RecordBatch]:
    """Messages in columns, a transaction at a time."""
    now = time.time_ns() // 1000
    for start in range(0, count, CHUNK):
        numbers = range(start, min(start + CHUNK, count))
        heads = (f'{{"number":{number},"text":"' for number in numbers)
        payloads = [f'{head.ljust(BYTES - 2, "x")}"}}' for head in heads]
        times = pa.array(np.full(len(numbers), now))
        yield pa.RecordBatch.from_arrays([pa.array(payloads), *[times] * 3], ["payload", *TIMES])


def fill(url: str, name: str, count: int, together: Barrier) -> None:
    """Insert so many messages, in a process of its own."""
    prepared = list(messages(count))
    with QueueService(url) as service:
        tables = service.queue(name).context.tables
        together.wait()
        for batch in prepared:
            with service.connections.transaction() as connection:
                names = ("payload", *TIMES)
                tables.dialect.write_arrow(connection, tables.live, names, [batch])
        together.wait()


def rate(service: QueueService, url: str, name: str, count: int) -> float:
    """Messages a second into an empty table.

    Raises:
        SystemExit: there are others than were sent.
    """
    table = service.queue(name).table
    with service.connections.transaction() as connection:
        connection.exec_driver_sql(f"TRUNCATE {table.name}").close()
    spawn = multiprocessing.get_context("spawn")
    together = spawn.Barrier(PROCESSES + 1)
    arguments = (url, name, count // PROCESSES, together)
    processes = [spawn.Process(target=fill, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    together.wait()
    began = time.perf_counter()
    together.wait()
    seconds = time.perf_counter() - began
    for process in processes:
        process.join()
    with service.connections.engine.connect() as connection:
        found = connection.scalar(select(func.count()).select_from(table))
    if found != count // PROCESSES * PROCESSES:
        raise SystemExit(f"{name}: {found} messages instead of {count}")
    return count / seconds


def measure(count: int, rounds: int) -> dict[str, list[float]]:
    """The rates of all cases, in turns."""
    rates: defaultdict[str, list[float]] = defaultdict(list)
    with databases_of("mariadb") as new_database, progress_bar() as bar:
        url = new_database("filling")
        doing = bar.add_task("MariaDB", total=rounds * len(DROPS))
        with QueueService(url) as service:
            names = {case: f"jobs_{number}" for number, case in enumerate(DROPS)}
            for case, name in names.items():
                service.create_queue(name)
                with service.connections.transaction() as connection:
                    strip(connection, service.queue(name).table.name, DROPS[case])
            for number in range(rounds):
                for case in list(names)[:: 1 if number % 2 else -1]:
                    rates[case].append(round(rate(service, url, names[case], count)))
                    bar.advance(doing)
    return {case: rates[case] for case in DROPS}


def strip(connection: Connection, table: str, drops: Sequence[str]) -> None:
    """Take parts of a table away."""
    for drop in drops:
        change = drop.format(table=table)
        connection.exec_driver_sql(f"ALTER TABLE {table} {change}").close()


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    whole = result["rates"]["whole"]
    lines = [
        "## What MariaDB takes into a queue's table",
        "",
        f"""\
{PROCESSES} connections send INSERTs of many rows, {result["messages"]:,} messages of {BYTES} bytes,
without Spark on the way: the limit of what fills this table by INSERT on such a machine. Rates are
medians of {result["rounds"]} rounds; the ratio is to the whole table, the median over the
rounds.""",
        "",
        "| table | messages/s | ratio |",
        "|---|---|---|",
        *(row(case, rates, whole) for case, rates in result["rates"].items()),
    ]
    return "\n".join([*lines, "", origin_of(result)]) + "\n"


def row(case: str, rates: Sequence[float], whole: Sequence[float]) -> str:
    """One row of the table."""
    times = median(a / b for a, b in zip(rates, whole, strict=True))
    return f"| {case} | {median(rates):,.0f} | {times:.2f} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and write its result."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args(arguments)
    rates: Mapping[str, Any] = measure(given.messages, given.rounds)
    for case, found in rates.items():
        print(row(case, found, rates["whole"]))
    command = f"python -m scripts.benchmarks.{NAME} --messages {given.messages}"
    content = {"messages": given.messages, "rounds": given.rounds, "rates": rates}
    write_result(NAME, f"{command} --rounds {given.rounds}", content)


if __name__ == "__main__":
    main()
