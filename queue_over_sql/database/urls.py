"""The URL of a database: read, checked, and shown without its password."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.util import asbool

from queue_over_sql.errors import DatabaseUnavailable

# Drivers also accept a password as a parameter of the URL: password, passwd, sslpassword.
_SECRET: Final = re.compile(r"passw|pwd", re.IGNORECASE)


def read_url(database: str | URL) -> URL:
    """Parse the URL of a database.

    Raises:
        ValueError: it is not a URL, its password has an @ that is not escaped, or it is a URI of
            SQLite without ``uri=true``.
    """
    try:
        url = make_url(database)
    except ArgumentError as error:
        msg = "database is not an SQLAlchemy URL; write for example 'sqlite:///queue.db'"
        if str(database).startswith("jdbc:"):
            msg = (
                "database is a JDBC URL, not an SQLAlchemy URL: write "
                "'postgresql://user:password@host/database', without jdbc:"
            )
        raise ValueError(msg) from error
    except ValueError:
        # The reason may contain part of the password, so it is left out.
        msg = "database is an SQLAlchemy URL whose port is not a number"
        raise ValueError(msg) from None
    if "@" in (url.host or "") or _loses_an_at_sign(database):
        # The rest of the password was read as the host, and drivers print the host in their errors.
        msg = "database is an SQLAlchemy URL with more than one @: write %40 for an @ in a password"
        raise ValueError(msg)
    _refuse_uri_as_name(url)
    return url


def _refuse_uri_as_name(url: URL) -> None:
    # SQLite would take the URI for the name of a file. That looks like the database that was meant,
    # but it is another one, and it stays.
    name = url.database or ""
    if url.get_backend_name() != "sqlite" or not name.startswith("file:"):
        return
    # As SQLAlchemy reads this parameter, which would also warn about the others.
    if not asbool(url.query.get("uri", False)):
        msg = (
            f"database is {name!r} without uri=true, so SQLite would create a file of that name: "
            "add uri=true to the parameters of the URL. If this is Django's test database in "
            "memory, use a file for it: 'TEST': {'NAME': 'test.db'} in DATABASES"
        )
        raise ValueError(msg)


def _loses_an_at_sign(database: str | URL) -> bool:
    """Whether parameters without a value, which SQLAlchemy drops, may be part of a password."""
    credentials, _, behind = str(database).partition("@")
    parameters = behind.partition("?")[2].split("&")
    named = isinstance(database, str) and ":" in credentials.partition("://")[2]
    return named and any("@" in each and "=" not in each for each in parameters)


def insist_on_file(url: URL) -> None:
    """Refuse a database whose file does not exist, before it is created empty.

    Raises:
        DatabaseUnavailable: there is no such file.
    """
    if (file := _missing_file(url)) is not None:
        msg = (
            f"The database {shown_url(url)} cannot be reached: there is no file {file} on this "
            "host. Check the path and the working directory. To create the file, run: "
            "queue-over-sql create NAME --create"
        )
        raise DatabaseUnavailable(msg)


def _missing_file(url: URL) -> Path | None:
    if url.get_backend_name() == "h2":
        from sqlalchemy_h2.dialect import database_file  # noqa: PLC0415 - only for H2

        file = database_file(url)
        return None if file is None or file.exists() else file
    if url.get_backend_name() != "sqlite" or is_in_memory(url):
        return None
    from sqlalchemy.dialects.sqlite.pysqlite import (  # noqa: PLC0415 - only for SQLite
        SQLiteDialect_pysqlite,
    )

    # SQLite's own parameters, the same for each driver.
    (name,), options = SQLiteDialect_pysqlite().create_connect_args(url)
    if options.get("uri") and name.startswith("file:"):
        name = unquote(urlsplit(name).path)
    file = Path(name)
    return None if name in {"", ":memory:"} or file.exists() else file.absolute()


def shown_url(url: URL) -> str:
    """A URL for messages, without its password, wherever it is.

    If an @ follows the password, an earlier @ may have been part of it.
    """
    hidden = {name: "***" for name in url.query if _SECRET.search(name)}
    shown = url.update_query_dict(hidden) if hidden else url
    text = shown.render_as_string(hide_password=True).replace("%2A%2A%2A", "***")
    if not _is_doubtful(url):
        return text
    before, password, behind = text.partition(":***@")
    return before + password + behind.replace("%40", "@").rpartition("@")[2]


def shown_place(url: URL) -> str:
    """Host, port and database of a URL, for messages; without user and password."""
    host = f"{url.host}:{url.port}" if url.port else url.host or ""
    place = f"{host}/{url.database or ''}"
    return place.rpartition("@")[2] if _is_doubtful(url) else place


def shown_reason(url: URL, reason: str) -> str:
    """A driver's reason for a failed connect, for messages, without parts of the password."""
    if not url.host or not _is_doubtful(url):
        return reason
    return re.sub(rf"(?<!\w){re.escape(url.host)}(?!\w)", "***", reason)


def _is_doubtful(url: URL) -> bool:
    """Whether part of the password may have been read as host, database or parameters."""
    behind = (url.host, url.database, *url.query.items())
    return url.password is not None and any("@" in str(part) for part in behind)


def is_in_memory(url: URL) -> bool:
    """Whether the URL names an SQLite database in memory."""
    database = url.database or ""
    return (
        database in {"", ":memory:"}
        or "mode=memory" in database
        or url.query.get("mode") == ("memory")
    )
