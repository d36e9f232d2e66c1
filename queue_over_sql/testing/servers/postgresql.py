"""A private PostgreSQL server."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import ClassVar

from sqlalchemy import URL

from queue_over_sql.testing.servers.base import PrivateServer, ServerMissing
from queue_over_sql.testing.servers.databases import PostgresqlDatabases
from queue_over_sql.testing.servers.process import copied_programs, find_binary, open_to_all

_FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql/bin",
    "/usr/local/opt/postgresql*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
)


class PostgresqlServer(PrivateServer):
    """PostgreSQL from local programs; as root it runs as the package's account."""

    engine = "postgresql"
    databases = PostgresqlDatabases()
    login = URL.create("postgresql+psycopg", "queue_over_sql", database="postgres")
    accounts: ClassVar = ("postgres", "nobody")
    # The "fast" shutdown: end the sessions, write everything, and stop.
    stop_signal = signal.SIGINT
    ready = "database system is ready to accept connections"

    _initdb: Path
    _postgres: Path

    def locate(self) -> None:
        initdb = find_binary(self.engine, "initdb", *_FOLDERS)
        postgres = None if initdb is None else initdb.resolve().parent / "postgres"
        if initdb is None or postgres is None or not postgres.exists():
            raise ServerMissing(
                "no PostgreSQL server binaries (initdb, postgres) on the PATH or in "
                "/usr/lib/postgresql/*/bin: install the package postgresql"
            )
        self._initdb, self._postgres, self.origin = initdb, postgres, str(postgres)

    def initialise(self) -> None:
        """Create a cluster with one superuser, which only local connections can use."""
        programs = self._initdb.resolve().parent
        # PostgreSQL refuses to run as root.
        if self.account.uid is not None and not open_to_all(programs):
            programs = copied_programs(programs, self.folder / "programs")
            self._initdb, self._postgres = programs / "initdb", programs / "postgres"
        options = ["--no-sync", "--no-instructions", "--encoding=UTF8", "--locale=C"]
        identity = ["--auth=trust", f"--username={self.login.username}"]
        self.make_data(self._initdb, *options, *identity, "-D", self.data)

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "600",
            "logging_collector": "off",
            # Shared memory in the data folder is removed with it, also after a kill.
            "dynamic_shared_memory_type": "mmap",
        }
        if not self.durable:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        pairs = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self._postgres), "-D", str(self.data), *pairs]
