"""TLS: a service that verifies its server refuses one with another name or another authority."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from sqlalchemy import URL, create_engine, make_url, text

from queue_over_sql import AsyncQueueService, DatabaseUnavailable, QueueService
from queue_over_sql.testing.servers.mysql import MariadbServer, MysqlServer
from queue_over_sql.testing.servers.postgresql import PostgresqlServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from queue_over_sql.testing.plugin import TestDatabase
    from queue_over_sql.testing.servers.base import PrivateServer

pytestmark = [pytest.mark.engines("postgresql", "mysql", "mariadb"), pytest.mark.fetched]

HELD, OTHER = "127.0.0.1", "localhost"
"""The server's name in its certificate, and another name of this machine that is not in it."""
MYSQL: dict[str, str] = {"ssl_ca": "{ca}", "ssl_check_hostname": "true"}
VERIFIED = {
    "postgresql": {"sslmode": "verify-full", "sslrootcert": "{ca}"},
    "mysql": MYSQL,
    "mariadb": MYSQL,
}
"""What docs/engines.md says to write into the URL."""
ENCRYPTED = {
    "postgresql": "SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
    "mysql": "SHOW SESSION STATUS LIKE 'Ssl_version'",
    "mariadb": "SHOW SESSION STATUS LIKE 'Ssl_version'",
}


def certify(folder: Path) -> None:
    """Write ``certificate.pem``, which is its own authority, and ``key.pem``."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "A server of a test")])
    now, day = dt.datetime.now(dt.UTC), dt.timedelta(days=1)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HELD))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key.pem").write_bytes(secret)
    (folder / "key.pem").chmod(0o600)


class Certified:
    """A server with a certificate, made before its first start."""

    def files(self: Any) -> tuple[Path, Path]:
        made = self.folder / "certificate.pem", self.folder / "key.pem"
        if not made[0].exists():
            certify(self.folder)
            if self.account.uid is not None:
                for each in made:
                    os.chown(each, self.account.uid, self.account.gid)
        return made


class CertifiedPostgresql(Certified, PostgresqlServer):
    def command(self) -> list[str]:
        certificate, key = self.files()
        pairs = ("ssl=on", f"ssl_cert_file={certificate}", f"ssl_key_file={key}")
        return [*super().command(), *(part for each in pairs for part in ("-c", each))]


class CertifiedMysql(Certified, MysqlServer):
    def command(self) -> list[str]:
        certificate, key = self.files()
        return [*super().command(), f"--ssl-cert={certificate}", f"--ssl-key={key}"]


class CertifiedMariadb(Certified, MariadbServer):
    def command(self) -> list[str]:
        certificate, key = self.files()
        return [*super().command(), f"--ssl-cert={certificate}", f"--ssl-key={key}"]


SERVERS: dict[str, Callable[[], PrivateServer]] = {
    "postgresql": CertifiedPostgresql,
    "mysql": CertifiedMysql,
    "mariadb": CertifiedMariadb,
}


@pytest.fixture
def server(engine_name: str) -> Iterator[PrivateServer]:
    with SERVERS[engine_name]() as started:
        yield started


def test_the_name_and_the_authority_of_a_server_are_verified(
    engine_name: str, server: Any, tmp_path: Path
) -> None:
    """Threads and an event loop work encrypted, and publish nothing to a server of another name."""
    url = make_url(server.create_database("jobs"))
    certify(tmp_path)
    ours, others = server.folder / "certificate.pem", tmp_path / "certificate.pem"

    def verified(host: str, authority: Path) -> URL:
        query = {k: v.format(ca=authority) for k, v in VERIFIED[engine_name].items()}
        return url.set(host=host, query={**url.query, **query})

    engine = create_engine(verified(HELD, ours))
    with QueueService(engine) as service, engine.connect() as connection:
        service.create_queue("jobs").publish({"n": 1})
        assert "TLS" in str(connection.execute(text(ENCRYPTED[engine_name])).all())
    engine.dispose()
    asyncio.run(_publish(verified(HELD, ours)))
    for host, authority in ((OTHER, ours), (HELD, others)):
        with (
            pytest.raises(DatabaseUnavailable, match="certificate") as refused,
            QueueService(verified(host, authority)) as service,
        ):
            service.create_queue("jobs").publish({"n": 3})
        assert refused.value.__cause__ is not None
        with pytest.raises(DatabaseUnavailable, match="certificate"):
            asyncio.run(_publish(verified(host, authority)))

    with QueueService(url) as service:
        messages = service.queue("jobs").messages().list()
        assert [1, 2] == [each.payload["n"] for each in messages]


@pytest.mark.engines("mariadb")
def test_a_server_without_tls_is_refused(database: TestDatabase, tmp_path: Path) -> None:
    """Who asks for TLS does not log in to a server that says it has none."""
    certify(tmp_path)
    url = make_url(database.url).update_query_dict({"ssl_ca": str(tmp_path / "certificate.pem")})
    with pytest.raises(DatabaseUnavailable, match="SSL"), QueueService(url) as service:
        service.create_queue("jobs")
    with pytest.raises(DatabaseUnavailable, match="TLS"):
        asyncio.run(_publish(url))


async def _publish(url: URL) -> None:
    own_driver = url.set(drivername=url.get_backend_name())
    async with AsyncQueueService(own_driver) as service:
        queue = await service.create_queue("jobs")
        await queue.publish({"n": 2})
