"""Database servers for tests and benchmarks.

Every server has the same interface, `Server`: start, stop, kill, create and drop databases. It is
an existing server from a URL (`ExternalServer`), a container (`ContainerServer`), or a private
process started from local programs (`PrivateServer`: `PostgresqlServer`, `MariadbServer`,
`MysqlServer`, `H2Server`). `obtain` takes the first of these that is available, in this order.
`obtain_private` takes no existing servers; it is for tests that stop and kill their server.

``python -m queue_over_sql.testing.servers`` shows for each engine where its server would come from,
or what to install.
"""

from __future__ import annotations

import os

from sqlalchemy import URL, make_url

from queue_over_sql.testing.servers.base import PrivateServer, Server, ServerMissing
from queue_over_sql.testing.servers.container import RECIPES, ContainerServer, docker_answers
from queue_over_sql.testing.servers.databases import Databases
from queue_over_sql.testing.servers.h2 import H2Server
from queue_over_sql.testing.servers.mysql import MariadbServer, MysqlServer
from queue_over_sql.testing.servers.postgresql import PostgresqlServer

__all__ = [
    "DEFAULT_ENGINES",
    "SERVER_ENGINES",
    "ContainerServer",
    "ExternalServer",
    "H2Server",
    "MariadbServer",
    "MysqlServer",
    "PostgresqlServer",
    "PrivateServer",
    "Server",
    "ServerMissing",
    "obtain",
    "obtain_private",
    "url_variable",
]

_PRIVATE: dict[str, type[PrivateServer]] = {
    private.engine: private for private in (PostgresqlServer, MariadbServer, MysqlServer, H2Server)
}

SERVER_ENGINES = tuple(_PRIVATE)
"""Every engine that has a server."""

DEFAULT_ENGINES = ("sqlite", "postgresql", "mysql", "mariadb", "h2")
"""The engines that tests require unless told otherwise."""


class ExternalServer(Server):
    """An existing server: tests create and drop their own databases in it, and never stop it.

    The login of its URL must be allowed to create databases.
    """

    def __init__(self, engine: str, url: URL, databases: Databases, origin: str) -> None:
        self.engine = engine
        self.databases = databases
        self.origin = origin
        self._address = url

    @property
    def address(self) -> URL:
        return self._address

    def start(self) -> None:
        """Do nothing, because it is already running."""

    def stop(self) -> None:
        """Always refuse, because tests may not stop an existing server."""
        raise RuntimeError(
            f"the tests did not start this {self.engine} server ({self.origin}), so they "
            "cannot stop it"
        )

    kill = stop

    def close(self) -> None:
        """Do nothing; the server keeps running."""


def url_variable(engine: str) -> str:
    """Return the name of the environment variable for the URL of an `engine` server."""
    return f"QUEUE_OVER_SQL_TEST_{engine.upper()}_URL"


def obtain(engine: str) -> Server:
    """Return a server of `engine`, not yet started.

    Raises:
        ServerMissing: none is available; the message says what to install.
    """
    given = os.environ.get(url_variable(engine))
    if given:
        from queue_over_sql.inside.databases import with_driver

        origin = f"given by {url_variable(engine)}"
        url = with_driver(make_url(given))
        return ExternalServer(engine, url, _PRIVATE[engine].databases, origin)
    return obtain_private(engine)


def obtain_private(engine: str) -> Server:
    """Return a server of `engine` that a test may stop and kill, not yet started.

    Raises:
        ServerMissing: none is available; the message says what to install.
    """
    if engine in RECIPES and docker_answers():
        return ContainerServer(RECIPES[engine])
    return _PRIVATE[engine]()
