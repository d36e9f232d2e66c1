"""How databases are named, created and dropped on each kind of server, given or private."""

from __future__ import annotations

from typing import Any, Protocol

from sqlalchemy import URL, Connection, NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError


class Databases(Protocol):
    """The acts of one kind of server; `server` is its URL, whatever database that names."""

    def url(self, server: URL, name: str) -> URL:
        """Return the URL of the database `name`."""
        ...

    def create(self, server: URL, name: str) -> None:
        """Create the empty database `name`."""
        ...

    def drop(self, server: URL, name: str) -> None:
        """Drop the database `name` if there is one, whoever is still connected to it."""
        ...


def _execute(url: URL, *statements: str) -> None:
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))


class PostgresqlDatabases:
    """Databases of a PostgreSQL server."""

    _MAINTENANCE = "postgres"

    def url(self, server: URL, name: str) -> URL:
        """Return the URL of the database `name`."""
        return server.set(database=name)

    def create(self, server: URL, name: str) -> None:
        """Create the empty database `name`."""
        # template0 has no connections that would stand in the way.
        _execute(self._maintenance(server), f'CREATE DATABASE "{name}" TEMPLATE template0')

    def drop(self, server: URL, name: str) -> None:
        """Drop the database `name` if there is one, whoever is still connected to it."""
        _execute(self._maintenance(server), f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _maintenance(self, server: URL) -> URL:
        return server.set(database=self._MAINTENANCE)


class MysqlDatabases:
    """Databases of a MySQL or MariaDB server."""

    _NO_SUCH_CONNECTION = 1094

    def url(self, server: URL, name: str) -> URL:
        """Return the URL of the database `name`, with full Unicode."""
        return server.set(database=name).update_query_dict({"charset": "utf8mb4"})

    def create(self, server: URL, name: str) -> None:
        """Create the empty database `name`."""
        _execute(server._replace(database=None), f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")

    def drop(self, server: URL, name: str) -> None:
        """Drop the database `name` if there is one, whoever is still connected to it."""
        engine = create_engine(
            server._replace(database=None), poolclass=NullPool, isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as connection:
            self._disconnect_all(connection, name)
            connection.execute(text(f"DROP DATABASE IF EXISTS `{name}`"))

    def _disconnect_all(self, connection: Connection, name: str) -> None:
        """End other connections: an open transaction's metadata lock would block the drop."""
        listed = text("SELECT id FROM information_schema.processlist WHERE db = :name")
        for number in connection.scalars(listed, {"name": name}).all():
            self._kill(connection, number)

    def _kill(self, connection: Connection, number: Any) -> None:
        try:
            connection.exec_driver_sql(f"KILL {int(number)}")
        except DBAPIError as error:
            # It may have ended by itself in between.
            if error.orig is None or error.orig.args[0] != self._NO_SUCH_CONNECTION:
                raise


class H2Databases:
    """Databases of an H2 TCP server that lets clients create them (``-ifNotExists``)."""

    def url(self, server: URL, name: str) -> URL:
        """Return the URL of the database `name`, in the server's base folder."""
        return server.set(database=f"./{name}")

    def create(self, server: URL, name: str) -> None:
        """Do nothing: the first connection creates the database."""

    def drop(self, server: URL, name: str) -> None:
        """Remove the database's objects and files."""
        _execute(self.url(server, name), "DROP ALL OBJECTS DELETE FILES")


def rendered(url: URL) -> str:
    """Return `url` as text with its password, as a process started by a test needs it."""
    return url.render_as_string(hide_password=False)
