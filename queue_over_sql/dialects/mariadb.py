"""MariaDB 10.6 or newer: MySQL with RETURNING on INSERT and DELETE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from queue_over_sql.dialects.mysql import MySQLDialect
from queue_over_sql.errors import UnsupportedByEngine

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from queue_over_sql.dialects.json_paths import JsonPath, JsonScalar


class MariaDBDialect(MySQLDialect):
    """MariaDB through PyMySQL."""

    name = "mariadb"
    insert_returning = True
    delete_returning = True
    replaces_routines = True
    oldest_version: ClassVar[tuple[int, ...]] = (10, 6)
    collation: ClassVar[str] = "utf8mb4_nopad_bin"

    def payload_equals(
        self, column: ColumnElement[Any], path: JsonPath, value: JsonScalar
    ) -> ColumnElement[bool]:
        """As MySQL.

        Raises:
            UnsupportedByEngine: a key begins with ``-``: MariaDB finds nothing under such a key,
                however it is quoted.
        """
        for step in path:
            if isinstance(step, str) and step.startswith("-"):
                msg = f"MariaDB cannot search under the key {step!r}: it begins with '-'."
                raise UnsupportedByEngine(msg)
        return super().payload_equals(column, path, value)
