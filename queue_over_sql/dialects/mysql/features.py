"""What all servers of MySQL and of MariaDB can do, and what each is checked for."""

from __future__ import annotations

import dataclasses
from typing import Final

from sqlalchemy import Connection

from queue_over_sql.sql.features import OLDEST_SESSION, Features

MYSQL: Final = Features(
    name="mysql",
    # The first version with SKIP LOCKED.
    oldest_version=(8, 0, 17),
    too_old="mysql {needed} or newer is required; this server is {found}.",
    identifier_limit=64,
    skip_locked=True,
    reads_the_past=True,
    updates_from=True,
    # Another session may have another one: after SET GLOBAL, or while group replication runs.
    id_step="@@SESSION.auto_increment_increment",
    # MariaDB numbers the rows of such an INSERT under a lock of the whole table.
    stage_piece=20_000,
    aborts_on_error=False,
    index_if_not_exists=False,
    checks_json=True,
    # MariaDB accepts unknown escapes, and numbers that end with a point, as JSON.
    doubtful_json=r"\\[^\x22\\/bfnrtu]|[0-9]\.([^0-9]|$)",
    rounds_json=True,
    session_seconds=OLDEST_SESSION,
    routines="psm",
)

MARIADB: Final = dataclasses.replace(
    MYSQL,
    name="mariadb",
    oldest_version=(10, 6),
    too_old="mariadb {needed} or newer is required; this server is {found}.",
    locks_what_it_rejects=True,
    insert_returning=True,
    delete_returning=True,
    id_step=None,
    rounds_json=False,
    replaces_routines=True,
)


def of_server(known: Features, connection: Connection) -> Features:
    """The features of a connected server, from those that all servers of its kind have.

    Raises:
        UnsupportedByEngine: it is too old.
    """
    known.refuse_older(connection)
    query = "SELECT @@max_allowed_packet, @@innodb_rollback_on_timeout"
    most, on_timeout = connection.exec_driver_sql(query).one()
    return dataclasses.replace(
        known, statement_bytes=int(most), undoes_on_timeout=bool(int(on_timeout))
    )
