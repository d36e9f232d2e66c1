"""A server in its own container, by testcontainers."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import URL, NullPool, create_engine, exc

from queue_over_sql.testing.servers.base import PrivateServer, Server
from queue_over_sql.testing.servers.mysql import MariadbServer, MysqlServer
from queue_over_sql.testing.servers.postgresql import PostgresqlServer
from queue_over_sql.testing.servers.process import free_port

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer


@dataclass(frozen=True)
class Recipe:
    """How an engine runs in a container."""

    kind: type[PrivateServer]
    """The class with the engine's name, login and databases."""
    image: str
    port: int
    environment: Mapping[str, str]
    arguments: Sequence[str]


_MYSQL_ARGUMENTS = (
    "--max-connections=300",
    "--skip-name-resolve",
    "--innodb-flush-log-at-trx-commit=2",
    "--sync-binlog=0",
)

RECIPES = {
    recipe.kind.engine: recipe
    for recipe in (
        Recipe(
            PostgresqlServer,
            "postgres:17",
            5432,
            {"POSTGRES_USER": "queue_over_sql", "POSTGRES_HOST_AUTH_METHOD": "trust"},
            ("postgres", "-c", "max_connections=300", "-c", "fsync=off"),
        ),
        Recipe(
            MariadbServer,
            "mariadb:11.4",
            3306,
            {"MARIADB_ALLOW_EMPTY_ROOT_PASSWORD": "1", "MARIADB_ROOT_HOST": "%"},
            _MYSQL_ARGUMENTS,
        ),
        Recipe(
            MysqlServer,
            "mysql:8.4",
            3306,
            {"MYSQL_ALLOW_EMPTY_PASSWORD": "1", "MYSQL_ROOT_HOST": "%"},
            (*_MYSQL_ARGUMENTS, "--mysqlx=OFF"),
        ),
    )
}
"""The engines with a public image. H2 has none, and its driver needs Java here anyway."""


@cache
def docker_answers() -> bool:
    """Return whether testcontainers is installed and a Docker engine answers within seconds."""
    if importlib.util.find_spec("testcontainers") is None:
        return False
    import docker

    try:
        return bool(docker.from_env(timeout=3).ping())
    except (docker.errors.DockerException, OSError):
        return False


class ContainerServer(Server):
    """A container with the interface of a private server; it ends with this process."""

    _START_TIMEOUT = 120.0

    def __init__(self, recipe: Recipe) -> None:
        self.engine = recipe.kind.engine
        self.databases = recipe.kind.databases
        self.origin = f"a container of {recipe.image}"
        self._recipe = recipe
        # A fixed port, because a restarted container would get another one.
        self._port = free_port()
        self._container: DockerContainer | None = None

    @property
    def address(self) -> URL:
        host = "127.0.0.1" if self._container is None else self._container.get_container_host_ip()
        return self._recipe.kind.login.set(host=host, port=self._port)

    def start(self) -> None:
        """Create the container, or start it again, and return once the server answers."""
        if self._container is None:
            self._container = self._create()
            self._container.start()
        else:
            self._container.get_wrapped_container().start()
        self._wait()

    def stop(self) -> None:
        if self._container is not None:
            self._container.get_wrapped_container().stop(timeout=30)

    def kill(self) -> None:
        if self._container is not None:
            container = self._container.get_wrapped_container()
            container.kill()
            container.wait()

    def close(self) -> None:
        if self._container is not None:
            self._container.stop()
            self._container = None

    def _create(self) -> DockerContainer:
        from testcontainers.core.container import DockerContainer

        container = DockerContainer(self._recipe.image)
        container = container.with_command(list(self._recipe.arguments))
        for name, value in self._recipe.environment.items():
            container = container.with_env(name, value)
        ports = cast("dict[str, Any]", container.ports)
        ports[f"{self._recipe.port}/tcp"] = ("127.0.0.1", self._port)
        return container

    def _wait(self) -> None:
        engine = create_engine(self.address, poolclass=NullPool)
        deadline = time.monotonic() + self._START_TIMEOUT
        while True:
            try:
                engine.connect().close()
            except exc.DBAPIError as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.origin} does not answer") from error
                time.sleep(0.1)
            else:
                return
