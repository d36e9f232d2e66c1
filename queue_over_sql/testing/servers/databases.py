"""How databases are named, created and dropped on each kind of server, given or private."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Protocol

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, text
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

    def clear(self, server: URL, name: str, keep: Callable[[str], bool]) -> None:
        """Empty the database `name`, whoever is still connected to it.

        Tables whose names `keep` accepts lose their rows; all else is dropped.
        """
        ...


@cache
def _engine(url: URL) -> Engine:
    return create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")


def _execute(url: URL, *statements: str) -> None:
    with _engine(url).connect() as connection:
        _run(connection, statements)


def _run(connection: Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        connection.exec_driver_sql(statement)


def _literal(statement: str) -> str:
    """Keep drivers that look for parameters from finding one."""
    return statement.replace("%", "%%")


def _divided(names: Sequence[str], keep: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    return [name for name in names if not keep(name)], [name for name in names if keep(name)]


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

    def clear(self, server: URL, name: str, keep: Callable[[str], bool]) -> None:
        """Empty the database `name`, whoever is still connected to it."""
        with _engine(self.url(server, name)).connect() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            found = connection.exec_driver_sql(self._OBJECTS).all()
            tables = [quoted for kind, quoted in found if kind == "TABLE"]
            dropped, emptied = _divided(tables, lambda quoted: keep(quoted.strip('"')))
            # In one round trip.
            drops = [
                f"DROP {kind} IF EXISTS {quoted} CASCADE"
                for kind, quoted in found
                if kind != "TABLE"
            ]
            if dropped:
                drops.insert(0, f"DROP TABLE {', '.join(dropped)} CASCADE")
            drops += [f"DELETE FROM {table}" for table in emptied]
            drops.append(f'ALTER DATABASE "{name}" RESET ALL')
            connection.exec_driver_sql(_literal("; ".join(drops)))

    _OBJECTS = """
        SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW'
                              WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, quote_ident(c.relname)
        FROM pg_class c
        WHERE c.relnamespace = 'public'::regnamespace
          AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
        UNION ALL
        SELECT 'ROUTINE', p.oid::regprocedure::text
        FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
        UNION ALL
        SELECT 'TYPE', quote_ident(t.typname)
        FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid
        WHERE t.typnamespace = 'public'::regnamespace
          AND (t.typtype IN ('e', 'd', 'r') OR c.relkind = 'c')
        UNION ALL
        SELECT 'SCHEMA', quote_ident(n.nspname)
        FROM pg_namespace n
        WHERE n.nspname NOT IN ('public', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%%'
    """

    def _maintenance(self, server: URL) -> URL:
        return server.set(database=self._MAINTENANCE)


def _backquoted(name: str) -> str:
    return _literal(f"`{name.replace('`', '``')}`")


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
        with _engine(server._replace(database=None)).connect() as connection:
            self._disconnect_all(connection, name)
            connection.exec_driver_sql(f"DROP DATABASE IF EXISTS `{name}`")

    def clear(self, server: URL, name: str, keep: Callable[[str], bool]) -> None:
        """Empty the database `name`, whoever is still connected to it."""
        with _engine(server._replace(database=None)).connect() as connection:
            self._disconnect_all(connection, name)
            found = connection.execute(text(self._OBJECTS), {"name": name}).all()
            tables = [each for kind, each in found if kind == "BASE TABLE"]
            dropped, emptied = _divided(tables, keep)
            _run(connection, [f"USE `{name}`", "SET foreign_key_checks = 0"])
            if dropped:
                _run(connection, [f"DROP TABLE {', '.join(map(_backquoted, dropped))}"])
            _run(
                connection,
                [
                    f"DROP {kind} {_backquoted(each)}"
                    for kind, each in found
                    if kind not in {"BASE TABLE", "SYSTEM VIEW"}
                ],
            )
            # MySQL has no TRUNCATE of several tables, and one of each costs more than a DELETE.
            _run(connection, [f"DELETE FROM {_backquoted(table)}" for table in emptied])

    _OBJECTS = """
        SELECT table_type, table_name FROM information_schema.tables WHERE table_schema = :name
        UNION ALL
        SELECT routine_type, routine_name FROM information_schema.routines
        WHERE routine_schema = :name
        UNION ALL
        SELECT 'EVENT', event_name FROM information_schema.events WHERE event_schema = :name
    """

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
        """Create it by a first connection; it stays open, since opening costs more than a test."""
        _execute(self.url(server, name), "SET DB_CLOSE_DELAY -1")

    def drop(self, server: URL, name: str) -> None:
        """Remove the database's objects and files."""
        _execute(self.url(server, name), "DROP ALL OBJECTS DELETE FILES")

    def clear(self, server: URL, name: str, keep: Callable[[str], bool]) -> None:
        """Empty the database `name`, whoever is still connected to it."""
        with _engine(self.url(server, name)).connect() as connection:
            connection.exec_driver_sql(
                "SELECT ABORT_SESSION(SESSION_ID) FROM INFORMATION_SCHEMA.SESSIONS"
                " WHERE SESSION_ID <> SESSION_ID()"
            ).all()
            found = connection.exec_driver_sql(self._OBJECTS).all()
            tables = [each for kind, each in found if kind == "BASE TABLE"]
            dropped, emptied = _divided(tables, keep)
            quoted = [f'"{each}"' for each in dropped]
            if quoted:
                _run(connection, [f"DROP TABLE {', '.join(quoted)} CASCADE"])
            _run(
                connection,
                [f'DROP {kind} IF EXISTS "{each}"' for kind, each in found if kind != "BASE TABLE"],
            )
            _run(connection, [f'DELETE FROM "{table}"' for table in emptied])

    _OBJECTS = """
        SELECT table_type, table_name FROM information_schema.tables WHERE table_schema = 'PUBLIC'
        UNION ALL
        SELECT 'SEQUENCE', sequence_name FROM information_schema.sequences
        WHERE sequence_schema = 'PUBLIC'
        UNION ALL
        SELECT 'ALIAS', routine_name FROM information_schema.routines
        WHERE routine_schema = 'PUBLIC'
    """


def rendered(url: URL) -> str:
    """Return `url` as text with its password, as a process started by a test needs it."""
    return url.render_as_string(hide_password=False)
