"""The files of a database, where this process reads and writes them itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection


class DatabaseFiles:
    """The files of a server's database: the server looks after them."""

    def misplaced(self, connection: Connection) -> str | None:
        """Why a file of this connection is not in its place, and what to do; None if it is."""
        return None

    def maintenance(
        self, run: Callable[[Callable[[Connection], Any]], Any], where: str
    ) -> Sequence[Callable[[], None]]:
        """The background jobs for the files, one run per interval of the reaper.

        Args:
            run: runs an operation on a connection of the service.
            where: the database, for the log.
        """
        return ()

    def wal_bytes(self, connection: Connection) -> int | None:
        """The size of the write-ahead log; None if the server looks after it."""
        return None
