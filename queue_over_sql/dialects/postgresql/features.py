"""What all PostgreSQL servers can do, and what each is checked for."""

from __future__ import annotations

import dataclasses
from typing import Final

from sqlalchemy import Connection

from queue_over_sql.sql.features import OLDEST_SESSION, Features

# SQL_ASCII keeps the bytes that it gets.
_UNICODE: Final = ("UTF8", "SQL_ASCII")

FEATURES: Final = Features(
    name="postgresql",
    # The first version with MATERIALIZED.
    oldest_version=(12,),
    too_old="PostgreSQL {needed} or newer is required; this server is {found}.",
    skip_locked=True,
    locks_inside=True,
    update_returning=True,
    delete_returning=True,
    insert_returning=True,
    conflict_clause=True,
    sorts_locks=True,
    updates_from=True,
    checks_json=True,
    nul_in_text=False,
    ddl_commits=False,
    scopes_settings=True,
    session_seconds=OLDEST_SESSION,
    routines="plpgsql",
    replaces_routines=True,
)


def of_server(connection: Connection) -> Features:
    """The features of a connected server.

    Raises:
        UnsupportedByEngine: it is too old.
    """
    FEATURES.refuse_older(connection)
    encoding = str(connection.exec_driver_sql("SHOW server_encoding").scalar_one())
    return dataclasses.replace(FEATURES, encoding=None if encoding in _UNICODE else encoding)
