"""One connection of a bare driver for the prototypes of groups, alike on all engines."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Generator, Iterable, Sequence
from typing import Any

from sqlalchemy import create_engine, make_url

_RETRIED = ("23505", "deadlock", "1213", "1205", "locked", "90131", "concurrent update")


def now_us() -> int:
    """The time, as the columns have it; one machine has one clock."""
    return time.time_ns() // 1000


class Session:
    """Runs statements whose parameters are question marks."""

    def __init__(self, url: str) -> None:
        self.engine = make_url(url).get_backend_name()
        if self.engine == "mysql" and "mariadb" in url:
            self.engine = "mariadb"
        self._pool = create_engine(url)
        self._held = self._pool.raw_connection()
        raw: Any = self._held.driver_connection
        self._raw = raw
        self.retries = 0
        if self.engine == "postgresql":
            raw.autocommit = True
        elif self.engine == "sqlite":
            raw.isolation_level = None
        elif self.engine != "h2":
            raw.autocommit(True)  # noqa: FBT003 - PyMySQL's own
        self._cursor = raw.cursor()
        if self.engine == "postgresql":
            self.run("SET enable_seqscan = off")
        elif self.engine == "sqlite":
            for pragma in ("journal_mode = wal", "synchronous = normal", "busy_timeout = 30000"):
                self.run(f"PRAGMA {pragma}")
        elif self.engine == "h2":
            raw.jconn.setAutoCommit(True)
        else:
            self.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    @property
    def skips(self) -> str:
        """The clause that locks rows and skips locked ones."""
        return "" if self.engine == "sqlite" else " FOR UPDATE SKIP LOCKED"

    @property
    def returns(self) -> bool:
        """Whether a DELETE returns rows."""
        return self.engine in {"postgresql", "sqlite", "mariadb"}

    def run(self, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement; returns its rows, or none."""
        if self.engine not in {"sqlite", "h2"}:
            text = text.replace("?", "%s")
        if values or self.engine in {"sqlite", "h2"}:
            self._cursor.execute(text, tuple(values))
        else:
            self._cursor.execute(text)
        return list(self._cursor.fetchall()) if self._cursor.description else []

    def many(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement for many rows in one transaction."""
        if self.engine not in {"sqlite", "h2"}:
            text = text.replace("?", "%s")
        with self.transaction():
            for first in range(0, len(rows), 10_000):
                self._cursor.executemany(text, [tuple(row) for row in rows[first : first + 10_000]])

    @contextlib.contextmanager
    def transaction(self) -> Generator[None]:
        """Begin, and commit or roll back."""
        if self.engine == "h2":
            self._raw.jconn.setAutoCommit(False)
        else:
            self._cursor.execute("BEGIN IMMEDIATE" if self.engine == "sqlite" else "BEGIN")
        try:
            yield
        except BaseException:
            self._end("ROLLBACK")
            raise
        self._end("COMMIT")

    def _end(self, how: str) -> None:
        if self.engine == "h2":
            (self._raw.jconn.commit if how == "COMMIT" else self._raw.jconn.rollback)()
            self._raw.jconn.setAutoCommit(True)
        else:
            self._cursor.execute(how)

    def again(self, error: Exception) -> bool:
        """Whether to repeat what failed so, after a short pause."""
        if not any(word in str(error).lower() for word in _RETRIED):
            return False
        self.retries += 1
        time.sleep(random.uniform(0.0005, 0.005))  # noqa: S311 - spreads, guards nothing
        return True

    def close(self) -> None:
        """Close the connection."""
        self._held.close()
        self._pool.dispose()


def marks(values: Iterable[Any]) -> str:
    """As many question marks as values."""
    return ", ".join("?" for _ in values)
