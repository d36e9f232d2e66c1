"""Database servers for tests and benchmarks.

Every server has the same face, `Server`: start, stop, kill, databases that come and go, URLs.
It is a given one (`ExternalServer`), a container (`ContainerServer`), or a private process started
from local binaries (`PrivateServer`: `PostgresqlServer`, `MariadbServer`, `MysqlServer`,
`H2Server`). `obtain` picks the first of these that there is, in this order; `obtain_private` leaves
out given servers, for tests that stop and kill what they get.

``python -m queue_over_sql.testing.servers`` says for each engine where its server would come from,
or what to install.
"""

from __future__ import annotations

from queue_over_sql.testing.servers.base import PrivateServer, Server, ServerMissing
from queue_over_sql.testing.servers.catalog import (
    DEFAULT_ENGINES,
    SERVER_ENGINES,
    ExternalServer,
    obtain,
    obtain_private,
)
from queue_over_sql.testing.servers.container import ContainerServer
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
]
