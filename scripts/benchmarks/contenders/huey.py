"""huey on SQLite: its consumer with threads, which polls at growing intervals.

Results are not stored. Tasks are taken one by one, whatever the batch size.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

from huey import SqliteHuey

from scripts.benchmarks.contenders.peer import Handled, path_of
from scripts.benchmarks.contenders.serving import Contender, serve


class Huey(Contender):
    """A task is deleted when it is claimed, so a killed consumer loses its tasks."""

    name = "huey"
    durability = "each commit reaches the disk (fsync=True, synchronous=FULL; not set by default)"
    delivery = "at most once"
    batches = False

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._handled = Handled()

    @property
    def version(self) -> str:
        """Of the installed package."""
        return metadata.version("huey")

    def content(self, payload: str) -> Any:
        """A task's argument."""
        return json.loads(payload)

    def open(self) -> None:
        """Open the file."""
        self._huey = SqliteHuey(filename=path_of(self.url), fsync=True, results=False)
        self._task = self._huey.task(name="note")(self._note)
        self._huey.pending_count()

    def prepare(self) -> None:
        """Create the file."""
        self.open()
        self.close()

    def _note(self, content: Any) -> None:
        self._handled.note(content)

    def publish(self, payloads: list[Any], batch: int) -> None:
        """By calling the task."""
        del batch
        for payload in payloads:
            self._task(payload)

    def consume(self, batch: int, count: int) -> list[int]:
        """By ``dequeue`` and ``execute``."""
        del batch
        self._handled = Handled()
        while len(self._handled.numbers) < count and (task := self._huey.dequeue()):
            self._huey.execute(task)
        return self._handled.numbers

    def work(self, threads: int, count: int, transactional: bool) -> tuple[float, list[int]]:
        """By its consumer with threads."""
        del transactional
        self._work(threads, count, self._huey.pending_count)
        return self._handled.seconds, self._handled.numbers

    def latency(self, count: int, ready: Callable[[], None]) -> dict[int, float]:
        """By its consumer, which polls every 0.1 s to 10 s."""
        self._work(1, count, None, ready)
        return self._handled.moments

    def idle(self, seconds: float) -> int:
        """By its consumer and its scheduler."""
        statements: list[str] = []
        self._huey.storage.conn.set_trace_callback(statements.append)
        consumer = self._huey.create_consumer(workers=1, periodic=False)
        consumer.start()
        time.sleep(seconds)
        consumer.stop(graceful=True)
        return len(statements)

    def _work(
        self,
        threads: int,
        count: int,
        left: Callable[[], int] | None,
        ready: Callable[[], None] | None = None,
    ) -> None:
        consumer = self._huey.create_consumer(workers=threads, periodic=False)
        self._handled = Handled()
        consumer.start()
        if ready:
            ready()
        self._handled.until(count, left)
        consumer.stop(graceful=True)

    def remaining(self) -> int:
        """The pending ones; there are no others."""
        return int(self._huey.pending_count())

    def close(self) -> None:
        """Close the file."""
        self._huey.storage.close()


if __name__ == "__main__":
    serve(Huey)
