"""How to name, create and drop databases on each kind of server."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError


class Databases(ABC):
    """The operations of one kind of server; `server` is its URL, whose database does not matter."""

    objects: ClassVar[str]
    """The statement that lists the objects of a database: the kind and quoted name of each."""
    cascade: ClassVar[str] = ""
    """Added to the DROP of objects other than tables, in case others depend on them."""

    @abstractmethod
    def url(self, server: URL, name: str) -> URL:
        """Return the URL of the database `name`."""

    @abstractmethod
    def create(self, server: URL, name: str) -> None:
        """Create the empty database `name`."""

    @abstractmethod
    def drop(self, server: URL, name: str) -> None:
        """Drop the database `name` if it exists, even if others are connected to it."""

    def clear(self, server: URL, name: str, keep: Callable[[str], bool]) -> None:
        """Empty the database `name`, even if others are connected to it.

        Tables whose names `keep` accepts lose their rows; everything else is dropped.
        """
        with _engine(self.url(server, name)).connect() as connection:
            self.end_others(connection, name)
            found = connection.exec_driver_sql(self.objects).all()
            tables = [quoted for kind, quoted in found if kind == "TABLE"]
            dropped = [table for table in tables if not keep(table.strip('`"'))]
            statements = [f"DROP TABLE {', '.join(dropped)} CASCADE"] if dropped else []
            statements += [
                f"DROP {kind} IF EXISTS {quoted}{self.cascade}"
                for kind, quoted in found
                if kind != "TABLE"
            ]
            statements += [f"DELETE FROM {table}" for table in tables if table not in dropped]
            self.run(connection, name, statements)

    @abstractmethod
    def end_others(self, connection: Connection, name: str) -> None:
        """End the other connections to the database `name`, whose locks would block it."""

    def run(self, connection: Connection, name: str, statements: list[str]) -> None:
        """Run the statements that clear the database `name`."""
        for statement in statements:
            connection.exec_driver_sql(statement)


@cache
def _engine(url: URL) -> Engine:
    # A name may contain a character that a driver would take for a parameter.
    options = {"no_parameters": True}
    return create_engine(
        url, poolclass=NullPool, isolation_level="AUTOCOMMIT", execution_options=options
    )


def _execute(url: URL, statement: str) -> None:
    with _engine(url).connect() as connection:
        connection.exec_driver_sql(statement)


class PostgresqlDatabases(Databases):
    """Databases of a PostgreSQL server."""

    cascade = " CASCADE"
    objects = """
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
        WHERE n.nspname NOT IN ('public', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%'
    """

    def url(self, server: URL, name: str) -> URL:
        return server.set(database=name)

    def create(self, server: URL, name: str) -> None:
        # template0 never has connections, which would block the copy.
        maintenance = server.set(database="postgres")
        _execute(maintenance, f'CREATE DATABASE "{name}" TEMPLATE template0')

    def drop(self, server: URL, name: str) -> None:
        maintenance = server.set(database="postgres")
        _execute(maintenance, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def end_others(self, connection: Connection, name: str) -> None:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    def run(self, connection: Connection, name: str, statements: list[str]) -> None:
        """Run them in one round trip."""
        reset = f'ALTER DATABASE "{name}" RESET ALL'
        connection.exec_driver_sql("; ".join([*statements, reset]))


class MysqlDatabases(Databases):
    """Databases of a MySQL or MariaDB server."""

    _QUOTED = "CONCAT('`', REPLACE({0}, '`', '``'), '`')"
    objects = f"""
        SELECT IF(table_type = 'BASE TABLE', 'TABLE', table_type), {_QUOTED.format("table_name")}
        FROM information_schema.tables
        WHERE table_schema = DATABASE() AND table_type <> 'SYSTEM VIEW'
        UNION ALL
        SELECT routine_type, {_QUOTED.format("routine_name")}
        FROM information_schema.routines WHERE routine_schema = DATABASE()
        UNION ALL
        SELECT 'EVENT', {_QUOTED.format("event_name")}
        FROM information_schema.events WHERE event_schema = DATABASE()
    """
    _NO_SUCH_CONNECTION = 1094

    def url(self, server: URL, name: str) -> URL:
        """Return the URL of the database `name`, with full Unicode."""
        return server.set(database=name).update_query_dict({"charset": "utf8mb4"})

    def create(self, server: URL, name: str) -> None:
        _execute(server._replace(database=None), f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")

    def drop(self, server: URL, name: str) -> None:
        with _engine(server._replace(database=None)).connect() as connection:
            self.end_others(connection, name)
            connection.exec_driver_sql(f"DROP DATABASE IF EXISTS `{name}`")

    def end_others(self, connection: Connection, name: str) -> None:
        listed = text(
            "SELECT id FROM information_schema.processlist"
            " WHERE db = :name AND id <> CONNECTION_ID()"
        ).bindparams(name=name)
        for number in connection.scalars(listed.execution_options(no_parameters=False)).all():
            self._kill(connection, number)

    def _kill(self, connection: Connection, number: Any) -> None:
        try:
            connection.exec_driver_sql(f"KILL {int(number)}")
        except DBAPIError as error:
            # It may have ended by itself meanwhile.
            if error.orig is None or error.orig.args[0] != self._NO_SUCH_CONNECTION:
                raise

    def run(self, connection: Connection, name: str, statements: list[str]) -> None:
        # MySQL cannot TRUNCATE several tables at once, and one TRUNCATE is slower than a DELETE.
        super().run(connection, name, ["SET foreign_key_checks = 0", *statements])


class H2Databases(Databases):
    """Databases of an H2 TCP server that lets clients create them (``-ifNotExists``)."""

    objects = """
        SELECT CASE table_type WHEN 'BASE TABLE' THEN 'TABLE' ELSE table_type END,
               '"' || table_name || '"'
        FROM information_schema.tables WHERE table_schema = 'PUBLIC'
        UNION ALL
        SELECT 'SEQUENCE', '"' || sequence_name || '"'
        FROM information_schema.sequences WHERE sequence_schema = 'PUBLIC'
        UNION ALL
        SELECT 'ALIAS', '"' || routine_name || '"'
        FROM information_schema.routines WHERE routine_schema = 'PUBLIC'
    """

    def url(self, server: URL, name: str) -> URL:
        """Return the URL of the database `name`, in the server's base folder."""
        return server.set(database=f"./{name}")

    def create(self, server: URL, name: str) -> None:
        """Create it by a first connection, which stays open because opening is slow."""
        _execute(self.url(server, name), "SET DB_CLOSE_DELAY -1")

    def drop(self, server: URL, name: str) -> None:
        _execute(self.url(server, name), "DROP ALL OBJECTS DELETE FILES")

    def shut(self, server: URL, name: str) -> None:
        """Close the database `name` without writing what is left, whoever is connected to it."""
        # Its answer is the end of the connection.
        with contextlib.suppress(DBAPIError):
            _execute(self.url(server, name), "SHUTDOWN IMMEDIATELY")

    def end_others(self, connection: Connection, name: str) -> None:
        connection.exec_driver_sql(
            "SELECT ABORT_SESSION(SESSION_ID) FROM INFORMATION_SCHEMA.SESSIONS"
            " WHERE SESSION_ID <> SESSION_ID()"
        ).all()


def rendered(url: URL) -> str:
    """Return `url` as text with its password, for a process that a test starts."""
    return url.render_as_string(hide_password=False)
