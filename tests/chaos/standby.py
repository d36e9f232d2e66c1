"""Second servers that replicate the first, and are promoted."""

from __future__ import annotations

from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from queue_over_sql.testing.servers import PostgresqlServer


def execute(url: str, *statements: str) -> None:
    """Run statements on a connection of their own."""
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


class Standby(PostgresqlServer):
    """A streaming standby of a stopped primary."""

    ready = "database system is ready to accept read-only connections"

    def __init__(self, primary: PostgresqlServer) -> None:
        """Copy the data of the primary at the first start."""
        super().__init__()
        self._primary = primary

    def initialise(self) -> None:
        """Copy the data; the primary must stand still."""
        self._postgres = self._primary._postgres
        self.prepare("cp", "-a", self._primary.data, self.data)
        self.prepare("touch", self.data / "standby.signal")

    def command(self) -> list[str]:
        """Return the command that follows the primary."""
        primary = f"host=127.0.0.1 port={self._primary.port} user={self.login.username}"
        return [*super().command(), "-c", f"primary_conninfo={primary}"]

    def follow(self) -> None:
        """Stop the primary, copy it, and start both."""
        self._primary.stop()
        self.initialise()
        self._initialised = True
        self._primary.start()
        self.start()
