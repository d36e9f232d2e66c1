"""Shared by the Python libraries: record what handlers get, and query the database.

Each library is used as its documentation recommends for speed, with every commit on the disk if
there is a choice. `Handled` stops its worker when all messages are handled, because the worker does
not know that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import psycopg

from scripts.benchmarks.contenders.serving import PATIENCE, Contender, number_of

QUEUE = "bench"
TICK = 0.02
"""How often, in seconds, it is looked whether a worker is through."""
SETTLING = 1.0
"""How long, in seconds, a worker gets to listen, where the library does not say when it does."""


class Handled:
    """The messages that a worker's handler got."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.moments: dict[int, float] = {}
        self._begun = self._last = self._looked = time.monotonic()

    def note(self, payload: str | bytes | Mapping[str, Any]) -> None:
        """Record a message; the handler calls this."""
        self._last = time.monotonic()
        number = number_of(payload)
        self.numbers.append(number)
        self.moments.setdefault(number, self._last)

    @property
    def seconds(self) -> float:
        """Seconds from the start to the last message."""
        return self._last - self._begun

    def until(self, count: int, ready: Callable[[], int] | None = None) -> None:
        """Wait until `count` messages came, or no more come.

        Args:
            count: how many messages there are.
            ready: counts the messages that a worker could get; called if none came for `PATIENCE`.
                Without it, the end is noticed late.
        """
        while not self._ended(count, ready):
            time.sleep(TICK)

    async def until_async(self, count: int, ready: Callable[[], int] | None = None) -> None:
        """As `until`, beside a worker in the same event loop."""
        while not self._ended(count, ready):  # noqa: ASYNC110 - the database gives no event
            await asyncio.sleep(TICK)

    def _ended(self, count: int, ready: Callable[[], int] | None) -> bool:
        if len(self.numbers) >= count:
            return True
        now = time.monotonic()
        if ready is None or now - max(self._last, self._looked) < PATIENCE:
            return False
        self._looked = now
        return ready() == 0


class PostgresqlPeer(Contender):
    """A library on PostgreSQL; SQL on its tables counts the remaining messages."""

    durability = "each commit reaches the disk"
    left: ClassVar[str]
    """Counts the messages in the queue, claimed ones too."""
    ready: ClassVar[str]
    """Counts those that could be claimed now."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._asking: psycopg.Connection[tuple[int]] | None = None

    def remaining(self) -> int:
        """By `left`."""
        return self._count(self.left)

    def _ready(self) -> int:
        return self._count(self.ready)

    def _count(self, statement: str) -> int:
        if self._asking is None:
            self._asking = psycopg.connect(self.url, autocommit=True)
        row = self._asking.execute(statement.encode()).fetchone()
        return row[0] if row else 0

    def close(self) -> None:
        """Disconnect from the tables."""
        if self._asking is not None:
            self._asking.close()


def path_of(url: str) -> str:
    """The file of a SQLite URL."""
    return "/" + url.removeprefix("sqlite:").lstrip("/")
