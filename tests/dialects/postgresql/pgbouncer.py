"""A private PgBouncer in front of a test's PostgreSQL server."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from typing import ClassVar

from sqlalchemy import URL, make_url

from queue_over_sql.testing.servers import PrivateServer, ServerMissing
from queue_over_sql.testing.servers.databases import PostgresqlDatabases, rendered
from queue_over_sql.testing.servers.process import (
    copied_programs,
    find_binary,
    folder_variable,
    open_to_all,
)

_OLDER = "pgbouncer_older"
# The first version that follows the prepared statements of its clients, also their DEALLOCATE ALL.
_FOLLOWS = (1, 22)
_WAITS_AFTER_SIGTERM = (1, 23)


class PgBouncer(PrivateServer):
    """PgBouncer on a free port of 127.0.0.1; it ends with this process.

    Args:
        behind: URL of a database of the server that it pools connections to.
        mode: its ``pool_mode``.
        size: how many connections to the server it shares among its clients.
        follows: how many prepared statements it follows. With 0 it is an older version, which
            follows none, where the environment names one.

    Raises:
        ServerMissing: there is no PgBouncer, or none that follows prepared statements.
    """

    engine = "pgbouncer"
    databases = PostgresqlDatabases()
    accounts: ClassVar = ("postgres", "nobody")
    ready = "process up"

    _program: Path

    def __init__(self, behind: str, mode: str, *, size: int = 2, follows: int = 0) -> None:
        self._behind = make_url(behind)
        self._mode = mode
        self._size = size
        self.follows = follows
        super().__init__()

    @property
    def url(self) -> str:  # type: ignore[override]
        """The URL of the database through PgBouncer."""
        return rendered(self.address)

    @property
    def address(self) -> URL:
        """The URL of the database through PgBouncer."""
        return self._behind.set(host="127.0.0.1", port=self.port)

    def locate(self) -> None:
        """Find a version that does what is asked for."""
        for version in (self.engine,) if self.follows else (_OLDER, self.engine):
            program = find_binary(version, self.engine, "/usr/sbin")
            if program is not None:
                self.version = _version(program)
                if not self.follows or self.version >= _FOLLOWS:
                    self._program, self.origin = program, str(program)
                    # At once: newer versions wait for their clients after a SIGTERM, and older
                    # ones do not know SIGQUIT.
                    newer = self.version >= _WAITS_AFTER_SIGTERM
                    self.stop_signal = signal.SIGQUIT if newer else signal.SIGTERM
                    return
        raise ServerMissing(
            f"no PgBouncer: name the folder of one in {folder_variable(self.engine)}, or install "
            "the package pgbouncer (1.22 or newer); ./scripts/test --full fetches it"
        )

    def initialise(self) -> None:
        """Write the file of settings when it is started: it has the port."""
        programs = self._program.resolve().parent
        # PgBouncer refuses to run as root.
        if self.account.uid is not None and not open_to_all(programs):
            self._program = copied_programs(programs, self.folder / "programs") / self.engine

    def command(self) -> list[str]:
        """Return the command that runs it in the foreground."""
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            # Whoever comes is the user of the line of the database.
            "auth_type": "any",
            "pool_mode": self._mode,
            "default_pool_size": self._size,
            "max_client_conn": 200,
            # A claim that waits for itself shows within the test's patience.
            "query_wait_timeout": 20,
            "server_reset_query": "DISCARD ALL",
            # What JDBC and libpq send at the start, and PgBouncer does not know.
            "ignore_startup_parameters": "extra_float_digits",
        }
        if self.version >= _FOLLOWS:
            settings["max_prepared_statements"] = self.follows
        server = f"host={self._behind.host} port={self._behind.port} user={self._behind.username}"
        lines = ["[databases]", f"* = {server}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        file = self.folder / "pgbouncer.ini"
        file.write_text("\n".join(lines) + "\n")
        file.chmod(0o644)
        return [str(self._program), str(file)]


def _version(program: Path) -> tuple[int, int]:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"PgBouncer (\d+)\.(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])
