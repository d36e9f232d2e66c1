"""MariaDB 10.6 or newer: MySQL with RETURNING on INSERT and DELETE."""

from __future__ import annotations

from typing import ClassVar

from queue_over_sql.dialects.mysql import MySQLDialect


class MariaDBDialect(MySQLDialect):
    """MariaDB through PyMySQL."""

    name = "mariadb"
    insert_returning = True
    delete_returning = True
    oldest_version: ClassVar[tuple[int, ...]] = (10, 6)
    collation: ClassVar[str] = "utf8mb4_nopad_bin"
