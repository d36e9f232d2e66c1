"""From a SQLAlchemy URL to a JDBC URL and the driver's arguments."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final

from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

DEFAULT_SETTINGS: Final = {"LOCK_TIMEOUT": "10000"}
"""Settings of every connection that the URL does not set itself."""

ADMIN_SETTINGS: Final = {"WRITE_DELAY": "0", "OPTIMIZE_REUSE_RESULTS": "0"}
"""The same, where H2 asks for admin rights: left out for other users."""

MEMORY_SETTINGS: Final = {"DB_CLOSE_DELAY": "-1"}
"""An in-memory database would end with its last connection. (Asks for admin rights.)"""

_OWN_KEYS: Final = frozenset({"jar", "jvm", "jvm_args", "transport"})
_TRANSPORTS: Final = ("tcp", "ssl")


def connect_arguments(url: URL) -> dict[str, Any]:
    """Return the keyword arguments of :func:`.dbapi.connect` for ``url``.

    Raises ArgumentError for a ``;`` in any part, and for a URL that names no database.
    """
    query = {key: _last(value) for key, value in url.query.items()}
    own = {key: query.pop(key) for key in _OWN_KEYS & query.keys()}
    settings = {key.upper(): value for key, value in query.items()}
    target = _target(url, own.get("transport", "tcp"))
    _refuse_semicolons(url, target, settings)
    admin = {**ADMIN_SETTINGS, **(MEMORY_SETTINGS if "mem:" in target else {})}
    return {
        "url": f"jdbc:h2:{target}" + _joined({**_missing(DEFAULT_SETTINGS, settings), **settings}),
        "admin_settings": _joined(_missing(admin, settings)),
        "user": url.username or "sa",
        "password": url.password or "",
        "jar": own.get("jar"),
        "jvm_path": own.get("jvm"),
        "jvm_args": tuple(shlex.split(own.get("jvm_args", ""))),
    }


def database_file(url: URL) -> Path | None:
    """The file of an embedded database; None where it is in memory or on a server.

    Nor is there one of the other kinds of files that H2 knows, such as ``zip:``.
    """
    path = (url.database or "").removeprefix("file:")
    if url.host or not path or ":" in path:
        return None
    return Path(f"{path}.mv.db").expanduser().absolute()


def _last(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else value[-1]


def _missing(defaults: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in defaults.items() if key not in given}


def _joined(settings: dict[str, str]) -> str:
    return "".join(f";{key}={value}" for key, value in settings.items())


def _target(url: URL, transport: str) -> str:
    database = url.database or ""
    if database in {"", "mem:"}:
        raise ArgumentError("an H2 URL names its database, as ///./folder/name or ///mem:name")
    if url.host:
        if transport not in _TRANSPORTS:
            raise ArgumentError(f"transport={transport}: H2 knows {' and '.join(_TRANSPORTS)}")
        port = f":{url.port}" if url.port else ""
        return f"{transport}://{url.host}{port}/{database}"
    if database.startswith("mem:"):
        return database
    path = database.removeprefix("file:")
    # Java would resolve against the folder in which the JVM was started.
    return "file:" + (str(Path.cwd() / path) if path.startswith(("./", "../")) else path)


def _refuse_semicolons(url: URL, target: str, settings: dict[str, str]) -> None:
    parts = [target, url.username or "", str(url.password or ""), *settings, *settings.values()]
    if any(";" in part for part in parts):
        raise ArgumentError("an H2 URL may not contain ';': settings are given as ?KEY=VALUE")
