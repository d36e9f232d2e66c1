"""SQLite's files: whether they are in their place, and the log beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from sqlalchemy import Connection

from queue_over_sql.dialects.sqlite.hooks import FILES, FileId, file_id
from queue_over_sql.dialects.sqlite.write_ahead_log import Run, WriteAheadLog
from queue_over_sql.sql.files import DatabaseFiles

MAIN_FILE: Final = "SELECT file FROM pragma_database_list WHERE name = 'main'"


class SQLiteFiles(DatabaseFiles):
    """The file of the database and its write-ahead log."""

    def misplaced(self, connection: Connection) -> str | None:
        """The database or its log, by their inodes; it takes a few microseconds."""
        known: Mapping[str, FileId | None] = connection.info.get(FILES, {})
        for file, found in known.items():
            if file_id(file) != found:
                return (
                    f"The file {file} was removed or replaced while this process had it open, so "
                    "what this process published last may be lost. Stop all programs that use the "
                    "database, check the file, and start them again. While they run, nothing else "
                    "may move, delete or replace the file, or open it with another SQLite library."
                )
        return None

    def maintenance(self, run: Run, where: str) -> Sequence[Callable[[], None]]:
        return [WriteAheadLog(self.wal_bytes, run, where).bound]

    def wal_bytes(self, connection: Connection) -> int | None:
        """The size of the log file; None for an in-memory database."""
        file = connection.exec_driver_sql(MAIN_FILE).scalar_one()
        if not file:
            return None
        try:
            return Path(f"{file}-wal").stat().st_size
        except OSError:
            # The file exists from the first write to the last close.
            return 0
