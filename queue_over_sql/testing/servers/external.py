"""A server that somebody else runs, given by its URL."""

from __future__ import annotations

from sqlalchemy import URL

from queue_over_sql.testing.servers.base import Server
from queue_over_sql.testing.servers.databases import Databases


class ExternalServer(Server):
    """A given server; tests make and drop databases of their own in it, and leave it running.

    Args:
        engine: the engine's name.
        url: its URL, with an account that may create databases.
        databases: how databases are made there.
        origin: where the URL comes from.
    """

    def __init__(self, engine: str, url: URL, databases: Databases, origin: str) -> None:
        self.engine = engine
        self.databases = databases
        self.origin = origin
        self._address = url

    @property
    def address(self) -> URL:
        """The URL of the server."""
        return self._address

    def start(self) -> None:
        """Do nothing: it runs already."""

    def stop(self) -> None:
        """Refuse.

        Raises:
            RuntimeError: always; a given server is not for this process to stop.
        """
        raise RuntimeError(f"the {self.engine} server is {self.origin}: it is not ours to stop")

    def kill(self) -> None:
        """Refuse.

        Raises:
            RuntimeError: always; a given server is not for this process to stop.
        """
        self.stop()

    def close(self) -> None:
        """Do nothing: it goes on running."""
