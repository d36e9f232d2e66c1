"""The check-up of SQLite."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sqlalchemy import Connection

from queue_over_sql.sql.checkup import (
    Asking,
    Checkup,
    Section,
)
from queue_over_sql.sql.driver_calls import driver_connection
from queue_over_sql.values.findings import Finding, Level

LARGE_PAGES, LARGE_LOG = 25_000, 16 * 2**20
# SQLite checks the time limit after this many of its instructions.
STEPS: Final = 10_000


class SQLiteCheckup(Checkup):
    """The journal, free pages, a log that a reader keeps from shrinking, the file's rights."""

    next_id_statement = "UPDATE sqlite_sequence SET seq = {number} - 1 WHERE name = '{name}'"
    ids_query = "SELECT name, seq FROM sqlite_sequence WHERE name IN :names"

    @property
    def sections(self) -> dict[str, Section]:
        return {"settings": self._settings, "bloat": self._bloat, "rights": self._rights}

    @contextlib.contextmanager
    def bounded(self, connection: Connection, seconds: float) -> Iterator[None]:
        raw = driver_connection(connection)
        ends_at = time.monotonic() + seconds
        raw.set_progress_handler(lambda: int(time.monotonic() > ends_at), STEPS)
        try:
            yield
        finally:
            raw.set_progress_handler(None, 0)

    @staticmethod
    def _file(ask: Asking) -> str:
        return ask.value("SELECT file FROM pragma_database_list WHERE name = 'main'") or ""

    def _settings(self, ask: Asking) -> Iterator[Finding]:
        mode = ask.value("PRAGMA journal_mode")
        if mode != "wal" and self._file(ask):
            advice = (
                "Put the file on a local disk, so that WAL works. Without it readers and the "
                "writer wait for each other."
            )
            yield Finding(Level.WARNING, "settings", f"journal_mode is {mode}", advice)
            return
        said = f"journal_mode is {mode}; a publish is synced to the disk, a claim is not"
        yield Finding(Level.OK, "settings", said)

    def _bloat(self, ask: Asking) -> Iterator[Finding]:
        pages, free = (ask.value(f"PRAGMA {name}") for name in ("page_count", "freelist_count"))
        said = f"{free:,} of {pages:,} pages of the file are free"
        if free >= LARGE_PAGES and free * 2 > pages:
            advice = "Run VACUUM if you need the disk space. New messages reuse these pages."
            yield Finding(Level.NOTE, "bloat", said, advice)
        else:
            yield Finding(Level.OK, "bloat", said)
        log = Path(f"{self._file(ask)}-wal")
        size = log.stat().st_size if log.exists() else 0
        if size > LARGE_LOG:
            said = f"the write-ahead log has {size / 2**20:,.0f} MiB"
            advice = (
                "Find the program that reads for a long time (fuser -v on the file that ends in "
                "'-shm') and end its transaction. Until then the log cannot shrink."
            )
            yield Finding(Level.WARNING, "bloat", said, advice)

    def _rights(self, ask: Asking) -> Iterator[Finding]:
        file = self._file(ask)
        if file and not (os.access(file, os.W_OK) and os.access(Path(file).parent, os.W_OK)):
            advice = (
                "Give this account write permission for the file and its folder, which also "
                "holds the log."
            )
            said = "this account may not write the database's file or its folder"
            yield Finding(Level.ERROR, "rights", said, advice)
        else:
            yield Finding(Level.OK, "rights", "this account may write the file and its folder")
