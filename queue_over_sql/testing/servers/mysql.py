"""Private servers of MySQL and MariaDB."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import ClassVar

from sqlalchemy import URL

from queue_over_sql.testing.servers.base import PrivateServer, ServerMissing
from queue_over_sql.testing.servers.databases import MysqlDatabases
from queue_over_sql.testing.servers.process import Account, find_binary, open_to_all

_FOLDERS = (
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

    _server: Path

    def __init__(self, *, durable: bool = False) -> None:
        super().__init__(durable=durable)
        if not open_to_all(self._server.parent):
            # The other account could not reach the program.
            self.account = Account()

    def command(self) -> list[str]:
        # Each commit still reaches the operating system, so a killed server loses nothing.
        quick = [
            "--innodb-flush-log-at-trx-commit=2",
            "--sync-binlog=0",
            "--innodb-doublewrite=OFF",
        ]
        return [
            str(self._server),
            # It must come first. No configuration file of the machine may be read.
            "--no-defaults",
            f"--datadir={self.data}",
            # Relative to the data folder, because the path of a socket has a short limit.
            "--socket=socket",
            f"--pid-file={self.folder / 'pid'}",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            "--max-connections=300",
            "--skip-name-resolve",
            *self._account_option(),
            *([] if self.durable else quick),
        ]

    def _account_option(self) -> list[str]:
        # The server runs as root only if it is told so explicitly.
        is_root = os.geteuid() == 0 and self.account.uid is None
        return ["--user=root"] if is_root else []


class MysqlServer(MysqlFamilyServer):
    """MySQL from a local ``mysqld``."""

    engine = "mysql"
    login = URL.create("mysql+pymysql", "root")

    def locate(self) -> None:
        """Find MySQL's own ``mysqld``, because MariaDB installs a program of this name, too."""
        server = find_binary(self.engine, "mysqld", *_FOLDERS)
        if server is None or _is_mariadb(server):
            raise ServerMissing(
                "no mysqld of MySQL on the PATH. Do one of these: run ./scripts/test (it fetches "
                "MySQL on systems with apt); install MySQL 8 or newer; start a Docker engine; or "
                "set QUEUE_OVER_SQL_TEST_MYSQL_URL"
            )
        self._server, self.origin = server, str(server)

    def initialise(self) -> None:
        """Create a data folder whose root user has no password and can only connect locally."""
        where = ["--no-defaults", "--initialize-insecure", f"--datadir={self.data}"]
        self.make_data(self._server, *where, *self._account_option())
        # Without name lookups, root@localhost would not match a TCP connection.
        self._grants.write_text(
            "CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';\n"
            "GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        self._grants.chmod(0o644)

    def command(self) -> list[str]:
        return [*super().command(), "--mysqlx=OFF", f"--init-file={self._grants}"]

    @property
    def _grants(self) -> Path:
        return self.folder / "grants.sql"


def _is_mariadb(server: Path) -> bool:
    answer = subprocess.run([server, "--version"], capture_output=True, text=True, check=False)
    return "mariadb" in answer.stdout.lower()


class MariadbServer(MysqlFamilyServer):
    """MariaDB from a local ``mariadbd``."""

    engine = "mariadb"
    login = URL.create("mariadb+pymysql", "root")

    _install: Path

    def locate(self) -> None:
        server = find_binary(self.engine, "mariadbd", *_FOLDERS)
        install = find_binary(
            self.engine, "mariadb-install-db", "/usr/local/mysql*/scripts", *_FOLDERS
        )
        if server is None or install is None:
            raise ServerMissing(
                "no MariaDB server binaries (mariadbd, mariadb-install-db) on the PATH or in "
                "/usr/sbin: install the package mariadb-server"
            )
        self._server, self._install, self.origin = server, install, str(server)

    def initialise(self) -> None:
        """Create a data folder whose root user has no password and can only connect locally."""
        where = ["--no-defaults", f"--datadir={self.data}", "--skip-test-db"]
        login = "--auth-root-authentication-method=normal"
        self.make_data(self._install, *where, login, *self._account_option())
