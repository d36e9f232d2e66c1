"""litequeue on SQLite. It has neither a worker nor a way to wait.

Several messages are published in one transaction; they are popped one by one, whatever the batch
size.
"""

from __future__ import annotations

from typing import Any

import litequeue

from scripts.benchmarks.contenders.peer import path_of
from scripts.benchmarks.contenders.serving import Contender, number_of, serve

_READY, _LOCKED = litequeue.MessageStatus.READY.value, litequeue.MessageStatus.LOCKED.value


class Litequeue(Contender):
    """A claim never ends: a popped message that is not done must be retried by hand."""

    name = "litequeue"
    durability = "a commit survives the process, not a power cut (it sets synchronous=NORMAL)"

    @property
    def version(self) -> str:
        """Of the installed package."""
        return str(litequeue.__version__)

    def open(self) -> None:
        """Open the file."""
        self._queue = litequeue.LiteQueue(path_of(self.url))

    def prepare(self) -> None:
        """Create the file."""
        self.open()
        self.close()

    def publish(self, payloads: list[Any], batch: int) -> None:
        """By ``put``."""
        if batch == 1:
            for payload in payloads:
                self._queue.put(payload)
            return
        for start in range(0, len(payloads), batch):
            with self._queue.transaction():
                for payload in payloads[start : start + batch]:
                    self._queue.put(payload)

    def consume(self, batch: int, count: int) -> list[int]:
        """By ``pop`` and ``done``."""
        del batch
        numbers: list[int] = []
        while len(numbers) < count and (message := self._queue.pop()):
            self._queue.done(message.message_id)
            numbers.append(number_of(message.data))
        return numbers

    def remaining(self) -> int:
        """Those that are ready or locked."""
        statement = f"SELECT count(*) FROM {self._queue.table} WHERE status IN (?, ?)"
        return int(self._queue.conn.execute(statement, (_READY, _LOCKED)).fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        self._queue.close()


if __name__ == "__main__":
    serve(Litequeue)
