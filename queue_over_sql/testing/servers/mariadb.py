"""A private MariaDB server."""

from __future__ import annotations

from pathlib import Path

from queue_over_sql.testing.servers.base import ServerMissing
from queue_over_sql.testing.servers.mysql import SERVER_FOLDERS, MysqlFamilyServer
from queue_over_sql.testing.servers.process import find_binary, run


class MariadbServer(MysqlFamilyServer):
    """MariaDB from a local ``mariadbd``."""

    engine = "mariadb"
    driver = "mariadb+pymysql"

    _install: Path

    def locate(self) -> None:
        """Find ``mariadbd`` and ``mariadb-install-db``."""
        server = find_binary(self.engine, "mariadbd", *SERVER_FOLDERS)
        install = find_binary(
            self.engine, "mariadb-install-db", "/usr/local/mysql*/scripts", *SERVER_FOLDERS
        )
        if server is None or install is None:
            raise ServerMissing(
                "no MariaDB server binaries (mariadbd, mariadb-install-db) on the PATH or in "
                "/usr/sbin: install the package mariadb-server"
            )
        self._server, self._install, self.origin = server, install, str(server)

    def initialise(self) -> None:
        """Make a data folder whose root has no password, reachable on the loopback only."""
        run(
            [
                self._install,
                "--no-defaults",
                f"--datadir={self._data}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                *self._account_option(),
            ],
            account=self.account,
            cwd=self.folder,
        )

    def options(self) -> list[str]:
        """Return the options that only MariaDB knows: none."""
        return []
