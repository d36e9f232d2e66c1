"""The order in which the threads of one process ask SQLite for its write lock."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection


# A writer that has waited this long asks SQLite without the lock.
_TIMEOUT = 0.01


class WriteLock:
    """Lets threads write one after another.

    SQLite does not wake a thread that waits for its lock: the thread must sleep and ask again, and
    meanwhile the lock may be free. This lock only advises, because SQLite's own lock guards. So a
    thread that keeps it for long delays the others, but does not stop them.
    """

    wakes: ClassVar[bool] = True
    """Whether the next writer is woken, so that it need not sleep before it asks again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Connections whose transactions ask for the lock, and the one whose transaction has it.
        self._asking: set[Connection] = set()
        self._having: set[Connection] = set()

    def register(self, connection: Connection) -> None:
        """Let the transactions of a connection ask for the lock, until ``release``."""
        self._asking.add(connection)

    def acquire(self, connection: Connection) -> None:
        """Wait for the lock, for a transaction that begins."""
        waits = connection in self._asking and connection not in self._having
        if waits and self._lock.acquire(timeout=_TIMEOUT):
            self._having.add(connection)

    def release(self, connection: Connection) -> None:
        """Release what a connection has; another thread may do that, too."""
        self._asking.discard(connection)
        try:
            # Only one of two threads can remove it.
            self._having.remove(connection)
        except KeyError:
            return
        self._lock.release()

    @contextlib.contextmanager
    def one_act(self) -> Iterator[None]:
        """Wait for the lock, for one operation."""
        lock = self._lock
        acquired = lock.acquire(timeout=_TIMEOUT)
        try:
            yield
        finally:
            if acquired:
                lock.release()

    def forked(self) -> None:
        """Forget the threads of the parent process, which do not exist here."""
        self._lock = threading.Lock()
        self._asking.clear()
        self._having.clear()


class NoWriteLock(WriteLock):
    """For a database whose writers need not wait for each other here: it does nothing."""

    wakes = False

    def register(self, connection: Connection) -> None:
        """Nobody waits."""

    def acquire(self, connection: Connection) -> None:
        """It is free."""

    def release(self, connection: Connection) -> None:
        """Nobody has it."""

    @contextlib.contextmanager
    def one_act(self) -> Iterator[None]:
        """It is free."""
        yield
