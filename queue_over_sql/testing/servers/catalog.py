"""Which server an engine gets: a given one, a container, or a private process, in this order."""

from __future__ import annotations

import os

from sqlalchemy import make_url

from queue_over_sql.dialects.engines import with_driver
from queue_over_sql.testing.servers.base import PrivateServer, Server
from queue_over_sql.testing.servers.container import RECIPES, ContainerServer, docker_answers
from queue_over_sql.testing.servers.external import ExternalServer
from queue_over_sql.testing.servers.h2 import H2Server
from queue_over_sql.testing.servers.mariadb import MariadbServer
from queue_over_sql.testing.servers.mysql import MysqlServer
from queue_over_sql.testing.servers.postgresql import PostgresqlServer

_PRIVATE: dict[str, type[PrivateServer]] = {
    private.engine: private for private in (PostgresqlServer, MariadbServer, MysqlServer, H2Server)
}

SERVER_ENGINES = tuple(_PRIVATE)
"""Every engine that has a server."""

DEFAULT_ENGINES = ("sqlite", "postgresql", "mysql", "mariadb", "h2")
"""The engines that tests require unless told otherwise."""


def url_variable(engine: str) -> str:
    """Return the name of the environment variable that gives a server of `engine`."""
    return f"QUEUE_OVER_SQL_TEST_{engine.upper()}_URL"


def obtain(engine: str) -> Server:
    """Return a server of `engine`, not yet started.

    Raises:
        ServerMissing: there is none to be had; the message says what to install.
    """
    given = os.environ.get(url_variable(engine))
    if given:
        origin = f"given by {url_variable(engine)}"
        url = with_driver(make_url(given))
        return ExternalServer(engine, url, _PRIVATE[engine].databases, origin)
    return obtain_private(engine)


def obtain_private(engine: str) -> Server:
    """Return a server of `engine` that may be stopped and killed, not yet started.

    Raises:
        ServerMissing: there is none to be had; the message says what to install.
    """
    if engine in RECIPES and docker_answers():
        return ContainerServer(RECIPES[engine])
    return _PRIVATE[engine]()
