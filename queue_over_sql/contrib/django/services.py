"""One service for each of Django's databases."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from sqlalchemy import URL

from queue_over_sql import QueueService

# Django keeps these for itself. The driver gets the other options, such as sslmode.
_OF_DJANGO: Final = {
    "assume_role",
    "init_command",
    "isolation_level",
    "pool",
    "server_side_binding",
    "transaction_mode",
}
# What a driver calls the path of a socket.
_SOCKETS: Final = {"mysql": "unix_socket"}
_services: dict[tuple[str, URL], QueueService] = {}
_lock = threading.Lock()


def url(using: str = DEFAULT_DB_ALIAS) -> URL:
    """The SQLAlchemy URL of one of Django's databases, with its password.

    Args:
        using: its alias in ``DATABASES``.
    """
    connection = connections[using]
    place = connection.settings_dict
    options = {name: each for name, each in place["OPTIONS"].items() if name not in _OF_DJANGO}
    for name, each in options.pop("ssl", {}).items():  # on MySQL and MariaDB
        options[f"ssl_{name}"] = each
    options |= _tls_of_mysqlclient(options)
    if role := place["OPTIONS"].get("assume_role"):
        # Who owns what the site makes, and has the rights.
        options["options"] = f"{options.get('options', '')} -c role={role}".lstrip()
    host = place["HOST"] or None
    if host is not None and host.startswith("/"):
        # The socket itself, or on PostgreSQL the folder that it is in.
        options[_SOCKETS.get(connection.vendor, "host")] = host
        host = None
    return URL.create(
        connection.vendor,
        username=place["USER"] or None,
        password=place["PASSWORD"] or None,
        host=host,
        port=int(place["PORT"]) if place["PORT"] else None,
        database=str(place["NAME"]),
        query={name: str(each) for name, each in options.items()},
    )


def _tls_of_mysqlclient(options: dict[str, Any]) -> dict[str, str]:
    """Take mysqlclient's ``ssl_mode`` out of the options, and return the same for PyMySQL.

    PyMySQL asks for TLS if it has any option of it, and checks the certificate if it has a CA.
    A mode that it would not keep stays, and the driver refuses it.
    """
    mode = str(options.get("ssl_mode", "")).upper()
    checked = mode in {"VERIFY_CA", "VERIFY_IDENTITY"}
    if mode not in {"PREFERRED", "REQUIRED"} and not (checked and "ssl_ca" in options):
        return {}
    del options["ssl_mode"]
    if mode == "PREFERRED":
        return {}
    return {"ssl_check_hostname": "true" if mode == "VERIFY_IDENTITY" else "false"}


def service(using: str = DEFAULT_DB_ALIAS) -> QueueService:
    """The service of one of Django's databases, the same one in the whole process.

    Its arguments beside the URL are those of ``settings.QUEUE_OVER_SQL[using]``. While tests run,
    it is a service of the test database.

    Args:
        using: its alias in ``DATABASES``.
    """
    place = using, url(using)
    with _lock:
        found = _services.get(place)
        if found is None:
            found = _services[place] = _made(using)
        return found


@contextlib.contextmanager
def temporary_service(using: str) -> Iterator[QueueService]:
    """A service of one of Django's databases that leaves no connection open."""
    made = _made(using)
    try:
        yield made
    finally:
        made.stop()


def _made(using: str) -> QueueService:
    return QueueService(url(using), **options_of(using))


def options_of(using: str) -> dict[str, Any]:
    """The arguments of a database's service in the settings, without its URL."""
    given: dict[str, Any] = getattr(settings, "QUEUE_OVER_SQL", {}).get(using, {})
    return given


def opened_databases() -> list[URL]:
    """The databases that this process has services of."""
    with _lock:
        return [place for _, place in _services]


def stop_services() -> None:
    """Stop the services of this process; a test runner calls it before it drops the databases."""
    with _lock:
        stopping = list(_services.values())
        _services.clear()
    for each in stopping:
        each.stop()
