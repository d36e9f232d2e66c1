"""What all H2 databases can do, and what each is checked for."""

from __future__ import annotations

import dataclasses
from typing import Final

from sqlalchemy import Connection

from queue_over_sql.errors import UnsupportedByEngine
from queue_over_sql.sql.features import Features

_SKIP_LOCKED_SINCE = (2, 2, 220)
_NO_GROUPS: Final = (
    "Queues with groups or limits require H2 2.2.220 or newer, because earlier versions cannot "
    "skip locked rows; this database is {found}. Use a newer H2, or leave out group_limit, "
    "queue_limit and queue_rate. Nothing was changed."
)
_SETTINGS = """
    SELECT SETTING_NAME, SETTING_VALUE FROM INFORMATION_SCHEMA.SETTINGS
    WHERE SETTING_NAME IN ('MODE', 'DATABASE_TO_UPPER', 'DATABASE_TO_LOWER', 'IGNORECASE')"""
# Settings with the values under which the tests run, in upper case.
_NEEDED: Final = (
    (
        "MODE",
        ("REGULAR", "LEGACY", "POSTGRESQL", "MYSQL", "MARIADB", "DB2", "HSQLDB"),
        "its compatibility mode changes the meaning of statements and of empty texts",
    ),
    ("DATABASE_TO_LOWER", ("FALSE",), "it stores the names of tables in another case"),
    ("DATABASE_TO_UPPER", ("TRUE",), "it stores the names of tables in another case"),
    (
        "IGNORECASE",
        ("FALSE", "0"),
        "the keys a and A would be one key, and a message would be lost",
    ),
)

FEATURES: Final = Features(
    name="h2",
    oldest_version=(2, 1, 214),
    too_old="H2 {needed} or newer is required; this database is {found}.",
    identifier_limit=256,
    insert_returning=True,
    aborts_on_error=False,
    undoes_failed_insert=False,
    look_first=True,
    alters_in_view=True,
    # 2.2.224 cannot open its file again after a commit that looked for a table just altered.
    alters_alone=True,
    counts_utf16=True,
)


def of_database(connection: Connection) -> Features:
    """The features of a connected database.

    Raises:
        UnsupportedByEngine: it is too old, or has a setting under which it cannot hold queues.
    """
    FEATURES.refuse_older(connection)
    found = {name: str(value) for name, value in connection.exec_driver_sql(_SETTINGS)}
    for name, fits, why in _NEEDED:
        if name in found and found[name].upper() not in fits:
            msg = (
                f"This H2 database has the setting {name}={found[name]}, and so it cannot hold "
                f"queues: {why}. Use a database of its own for the queues, or one with "
                f"{name}={fits[0]}. Nothing was changed."
            )
            raise UnsupportedByEngine(msg)
    version = connection.dialect.server_version_info or FEATURES.oldest_version
    skips = version >= _SKIP_LOCKED_SINCE
    found_version = ".".join(map(str, version))
    no_groups = None if skips else _NO_GROUPS.format(found=found_version)
    return dataclasses.replace(FEATURES, skip_locked=skips, no_groups=no_groups)
