"""persist-queue on SQLite: SQLiteAckQueue, which has no worker.

Its consumer waits for an event of its own process and also polls the file every 10 s. Items are
fetched one by one, whatever the batch size.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import persistqueue

from scripts.benchmarks.contenders.peer import path_of
from scripts.benchmarks.contenders.serving import Contender, number_of, serve


class PersistQueue(Contender):
    """A process that opens the file delivers others' unfinished messages again."""

    name = "persist-queue"
    durability = "each commit reaches the disk (synchronous=FULL, SQLite's own default)"
    batches = False

    @property
    def version(self) -> str:
        """Of the installed package."""
        return metadata.version("persist-queue")

    def open(self) -> None:
        """Open the file."""
        file = Path(path_of(self.url))
        self._queue = persistqueue.SQLiteAckQueue(str(file.parent), db_file_name=file.name)

    def prepare(self) -> None:
        """Create the file."""
        self.open()
        self.close()

    def publish(self, payloads: list[Any], batch: int) -> None:
        """By ``put``."""
        del batch
        for payload in payloads:
            self._queue.put(payload)

    def consume(self, batch: int, count: int) -> list[int]:
        """By ``get`` and ``ack``."""
        del batch
        numbers: list[int] = []
        while len(numbers) < count:
            try:
                message = self._queue.get(block=False, raw=True)
            except persistqueue.Empty:
                break
            self._queue.ack(id=message["pqid"])
            numbers.append(number_of(message["data"]))
        return numbers

    def latency(self, count: int, ready: Callable[[], None]) -> dict[int, float]:
        """By ``get``, which blocks."""
        received: dict[int, float] = {}
        ready()
        while len(received) < count:
            message = self._queue.get(raw=True)
            received[number_of(message["data"])] = time.monotonic()
            self._queue.ack(id=message["pqid"])
        return received

    def remaining(self) -> int:
        """The unacknowledged ones, by SQL."""
        # Its own size only counts the puts and gets of this process.
        with sqlite3.connect(path_of(self.url)) as connection:
            statement = "SELECT count(*) FROM ack_queue_default WHERE status < 5"  # 5: acknowledged
            return int(connection.execute(statement).fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        self._queue.close()


if __name__ == "__main__":
    serve(PersistQueue)
