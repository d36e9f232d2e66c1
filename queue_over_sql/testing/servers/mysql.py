"""A private MySQL server, and what it shares with MariaDB."""

from __future__ import annotations

import os
import subprocess
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from sqlalchemy import URL

from queue_over_sql.testing.servers.base import PrivateServer, ServerMissing
from queue_over_sql.testing.servers.databases import MysqlDatabases
from queue_over_sql.testing.servers.process import Account, find_binary, open_to_all, run

SERVER_FOLDERS = (
    "/usr/sbin",
    "/usr/libexec",
    "/usr/local/mysql*/bin",
    "/opt/homebrew/opt/*/bin",
)


class MysqlFamilyServer(PrivateServer):
    """What private MySQL and MariaDB servers have in common."""

    databases = MysqlDatabases()
    accounts: ClassVar = ("mysql", "nobody")
    ready = r"(?<!X Plugin )ready for connections"
    driver: ClassVar[str]

    _server: Path

    def choose_account(self) -> Account:
        """Return an account that may reach the server's program: this process's own in doubt."""
        return super().choose_account() if open_to_all(self._server.parent) else Account()

    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""
        return [
            str(self._server),
            # First, or it is not known: no configuration file of the machine may take part.
            "--no-defaults",
            f"--datadir={self._data}",
            # Relative to the data: a whole path may be longer than a socket's may be.
            "--socket=socket",
            f"--pid-file={self.folder / 'pid'}",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            "--max-connections=300",
            "--skip-name-resolve",
            *self._account_option(),
            *self.options(),
            *([] if self.durable else self._quick_options()),
        ]

    @abstractmethod
    def options(self) -> list[str]:
        """Return the options of this very server."""

    @property
    def address(self) -> URL:
        """The URL of the server."""
        return URL.create(self.driver, "root", host="127.0.0.1", port=self.port)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _account_option(self) -> list[str]:
        # The server refuses to run as root unless told so by name.
        is_root = os.geteuid() == 0 and self.account.uid is None
        return ["--user=root"] if is_root else []

    def _quick_options(self) -> list[str]:
        # Each commit still reaches the operating system, so that a killed server loses nothing.
        return ["--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0", "--innodb-doublewrite=OFF"]


class MysqlServer(MysqlFamilyServer):
    """MySQL from a local ``mysqld``."""

    engine = "mysql"
    driver = "mysql+pymysql"

    def locate(self) -> None:
        """Find a ``mysqld`` that is MySQL's: MariaDB installs one of this name too."""
        server = find_binary(self.engine, "mysqld", *SERVER_FOLDERS)
        if server is None or _is_mariadb(server):
            raise ServerMissing(
                "no mysqld of MySQL on the PATH: run ./scripts/test, which fetches one where apt "
                "is, install MySQL 8 or newer, start a Docker engine, or set "
                "QUEUE_OVER_SQL_TEST_MYSQL_URL"
            )
        self._server, self.origin = server, str(server)

    def initialise(self) -> None:
        """Make a data folder whose root has no password, reachable on the loopback only."""
        run(
            [
                self._server,
                "--no-defaults",
                "--initialize-insecure",
                f"--datadir={self._data}",
                *self._account_option(),
            ],
            account=self.account,
            cwd=self.folder,
        )
        # Without name lookups root@localhost would not match a connection by TCP.
        grants = self.folder / "grants.sql"
        grants.write_text(
            "CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';\n"
            "GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        grants.chmod(0o644)

    def options(self) -> list[str]:
        """Return the options that only MySQL knows."""
        return ["--mysqlx=OFF", f"--init-file={self.folder / 'grants.sql'}"]


def _is_mariadb(server: Path) -> bool:
    asked = subprocess.run([server, "--version"], capture_output=True, text=True, check=False)
    return "mariadb" in asked.stdout.lower()
