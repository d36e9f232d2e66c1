"""Turns: the order in which the threads of one process ask SQLite for its write lock."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection


# Who waited for longer asks SQLite without a turn.
_PATIENCE = 0.01


class Turns:
    """Lets threads write one after another.

    SQLite does not wake a thread that waits for its lock: the thread must sleep and ask again, and
    meanwhile the lock may be free. A turn guards nothing, because the lock is still SQLite's. So a
    thread that keeps its turn for long delays the others, but does not stop them.
    """

    def __init__(self) -> None:
        self._free = threading.Lock()
        # Connections whose transactions take turns, and the one whose turn it is.
        self._taking: set[Connection] = set()
        self._having: set[Connection] = set()

    def lend(self, connection: Connection) -> None:
        """Let the transactions of a connection take turns, until ``end``."""
        self._taking.add(connection)

    def begin(self, connection: Connection) -> None:
        """Wait for the turn of a transaction that begins."""
        waits = connection in self._taking and connection not in self._having
        if waits and self._free.acquire(timeout=_PATIENCE):
            self._having.add(connection)

    def end(self, connection: Connection) -> None:
        """End its turn; another thread may do that, too."""
        self._taking.discard(connection)
        try:
            # Only one of two threads can remove it.
            self._having.remove(connection)
        except KeyError:
            return
        self._free.release()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Wait for the turn of one act."""
        free = self._free
        taken = free.acquire(timeout=_PATIENCE)
        try:
            yield
        finally:
            if taken:
                free.release()

    def forked(self) -> None:
        """Forget the threads of the parent process, which do not exist here."""
        self._free = threading.Lock()
        self._taking.clear()
        self._having.clear()
