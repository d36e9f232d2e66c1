"""A private H2 server."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import URL

from queue_over_sql.testing.servers.base import PrivateServer, ServerMissing
from queue_over_sql.testing.servers.databases import H2Databases


class H2Server(PrivateServer):
    """H2's TCP server in its own JVM; clients may create databases in its folder.

    It uses the jar and the Java that this process's driver would use.
    """

    engine = "h2"
    databases = H2Databases()
    login = URL.create("h2+jaydebeapi", "sa", "")
    ready = r"TCP server running at tcp://"

    _java: Path
    _jar: str

    def locate(self) -> None:
        try:
            from sqlalchemy_h2.dbapi import InterfaceError
            from sqlalchemy_h2.jvm import find_jar, find_runtime
        except ImportError as error:
            raise ServerMissing(f"{error}: install queue-over-sql[h2]") from error
        try:
            jar = find_jar()
            runtime = find_runtime(jar)
        except InterfaceError as error:
            raise ServerMissing(str(error)) from error
        # <home>/lib/server/libjvm.so
        self._java = Path(runtime.library).resolve().parents[2] / "bin" / "java"
        self._jar = jar.path
        self.origin = f"{self._java} with {self._jar}"

    def initialise(self) -> None:
        self.data.mkdir()

    def command(self) -> list[str]:
        machine = ["-Xmx512m", "-XX:+UseSerialGC", "-Dh2.bindAddress=127.0.0.1"]
        service = ["-tcp", "-tcpPort", str(self.port), "-ifNotExists", "-baseDir", str(self.data)]
        return [str(self._java), *machine, "-cp", self._jar, "org.h2.tools.Server", *service]

    def drop_database(self, name: str) -> None:
        """Close the database and remove its files.

        One that stayed open would take memory as long as the server runs, which slows it down.
        """
        self.databases.shut(self.address, name)
        for file in self.data.glob(f"{name}.*.db"):
            file.unlink(missing_ok=True)
