"""Our own conversion between rows and Arrow columns, compared with ADBC's drivers.

For PostgreSQL and SQLite, which have ADBC drivers. Messages with payloads are read from a queue's
table and written to an empty one, as in the pipeline: with the same schema, and each write is one
transaction. Both ways run in turns. Reading through ADBC includes its connection, which is kept as
in the pipeline, and the conversion of its batches to the schema.

It prints a table and writes no result file::

    python -m scripts.benchmarks.columns_adbc --messages 1000,100000 --rounds 7
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Connection, Engine, Select, Table, delete, select

from queue_over_sql import QueueService
from queue_over_sql.arrow.rows import conformed_batches
from queue_over_sql.dialects.postgresql import columns as postgresql
from queue_over_sql.queue import core_of
from queue_over_sql.service import parts_of
from scripts.benchmarks.harness import Machine, databases_of

ENGINES: Final = ("postgresql", "sqlite")
BATCH_BYTES: Final = 8 * 2**20
NAMES: Final = ("payload", "priority", "published_at", "scheduled_at", "available_at")
TYPES: Final = {
    "id": pa.int64(),
    "payload": pa.string(),
    "priority": pa.int16(),
    "attempt_count": pa.int32(),
    "published_at": pa.int64(),
    "scheduled_at": pa.int64(),
    "available_at": pa.int64(),
}
Act = Callable[[], int]


def batch_of(count: int) -> pa.RecordBatch:
    """Messages of 200 bytes, as they are written."""
    payload = [json.dumps({"number": number, "text": "x" * 170}) for number in range(count)]
    values = {"payload": payload, "priority": [4] * count}
    values |= {name: list(range(count)) for name in NAMES[2:]}
    fields = [pa.field(name, TYPES[name]) for name in NAMES]
    return pa.record_batch([values[name] for name in NAMES], schema=pa.schema(fields))


class Side:
    """A queue's table, and both ways to access it."""

    def __init__(self, service: QueueService, link: Any) -> None:
        queue = service.create_queue("jobs")
        tables = core_of(queue).context.tables
        self.table: Table = tables.live
        self.columns = tables.dialect.columns
        self.engine: Engine = parts_of(service).connections.engine
        self.link = link
        self.schema = pa.schema([pa.field(name, kind) for name, kind in TYPES.items()])

    def statement(self) -> Select[Any]:
        """The SELECT to run."""
        content = self.columns.read_content
        table = self.table.c
        return select(*[content(table[n]) if n == "payload" else table[n] for n in TYPES])

    def empty(self) -> None:
        """Empty the table."""
        with self.engine.begin() as connection:
            connection.execute(delete(self.table))

    def read_ours(self) -> int:
        """By the driver's rows; on PostgreSQL those of a binary cursor."""
        reading = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        if self.engine.dialect.name == "sqlite":
            reading = self.engine.connect()
        with reading as connection:
            return sum(batch.num_rows for batch in self._ours(connection))

    def _ours(self, connection: Connection) -> Iterator[pa.RecordBatch]:
        read = self.columns.read
        if self.engine.dialect.name == "postgresql":
            read = postgresql._by_cursor  # type: ignore[assignment]  # noqa: SLF001 - else ADBC reads
        return read(connection, self.statement(), self.schema, BATCH_BYTES)

    def read_adbc(self) -> int:
        """By whole columns."""
        text = str(self.statement().compile(dialect=self.engine.dialect))
        with self.link.cursor() as cursor:
            cursor.execute(text)
            batches = cursor.fetch_record_batch()
            found = conformed_batches(batches, self.schema, BATCH_BYTES)
            count: int = sum(batch.num_rows for batch in found)
        self.link.rollback()
        return count

    def write_ours(self, batch: pa.RecordBatch) -> int:
        """By COPY with our own encoding of rows, or by INSERT."""
        with self.engine.begin() as connection:
            count: int = self.columns.write(connection, self.table, list(NAMES), [batch])
        return count

    def write_adbc(self, batch: pa.RecordBatch) -> int:
        """By the driver's own bulk path, in its own transaction."""
        with self.link.cursor() as cursor:
            count: int = cursor.adbc_ingest(self.table.name, batch, mode="append")
        self.link.commit()
        return count


@contextlib.contextmanager
def side_of(engine: str, url: str) -> Iterator[Side]:
    """A new queue, and an ADBC connection to its database."""
    driver = importlib.import_module(f"adbc_driver_{engine}.dbapi")
    service = QueueService(url)
    try:
        plain = parts_of(service).connections.engine.url
        where = plain.database or ""
        if engine == "postgresql":
            plain = plain.set(drivername="postgresql")
            where = plain.render_as_string(hide_password=False)
        with driver.connect(where) as link:
            yield Side(service, link)
    finally:
        service.stop()


def seconds_of(act: Act, count: int) -> float:
    """The duration of an act, which must have handled ``count`` messages."""
    began = time.perf_counter()
    met = act()
    took = time.perf_counter() - began
    if met not in {count, -1}:
        raise RuntimeError(f"{met} messages instead of {count}")
    return took


def measured(side: Side, count: int, rounds: int) -> Iterator[tuple[str, list[float], list[float]]]:
    """Seconds of each round: our and ADBC's write, then the reads."""
    batch = batch_of(count)
    found: dict[str, tuple[list[float], list[float]]] = {"write": ([], []), "read": ([], [])}
    for number in range(rounds + 1):
        writers: list[Act] = [lambda: side.write_ours(batch), lambda: side.write_adbc(batch)]
        readers: list[Act] = [side.read_ours, side.read_adbc]
        for name, acts in (("write", writers), ("read", readers)):
            order = (0, 1) if number % 2 else (1, 0)
            for which in order:
                if name == "write":
                    side.empty()
                took = seconds_of(acts[which], count)
                if number:  # the first warms up
                    found[name][which].append(took)
    for name, (ours, theirs) in found.items():
        yield name, ours, theirs


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", default="1000,100000", help="by commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--engines", default=",".join(ENGINES))
    options = parser.parse_args()
    print(f"{Machine.here()}, {options.rounds} rounds")
    print("engine      messages  way    ours ms  ADBC ms  ADBC / ours (lowest to highest)")
    for engine in options.engines.split(","):
        for count in map(int, options.messages.split(",")):
            with databases_of(engine) as make, side_of(engine, make("measured")) as side:
                for name, ours, theirs in measured(side, count, options.rounds):
                    ratios = sorted(b / a for a, b in zip(ours, theirs, strict=True))
                    print(
                        f"{engine:<12}{count:>8}  {name:<6}{1000 * median(ours):>8.1f}"
                        f"{1000 * median(theirs):>9.1f}  {median(ratios):.2f}"
                        f" ({ratios[0]:.2f} to {ratios[-1]:.2f})"
                    )


if __name__ == "__main__":
    main()
