"""MariaDB 10.6 or newer: MySQL with RETURNING on INSERT and DELETE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, or_

from queue_over_sql.dialects.mysql.checkup import MariaDBCheckup
from queue_over_sql.dialects.mysql.dialect import MySQLDialect
from queue_over_sql.dialects.mysql.insert import MariaDBInserts
from queue_over_sql.errors import UnsupportedByEngine
from queue_over_sql.publishing.strategy import Inserts
from queue_over_sql.sql.checkup import Checkup
from queue_over_sql.sql.conditions import JsonPath, JsonScalar


class MariaDBDialect(MySQLDialect):
    """MariaDB through PyMySQL."""

    name = "mariadb"
    strategies: ClassVar[Mapping[type, Callable[[Any], Any]]] = {
        **MySQLDialect.strategies,
        Checkup: MariaDBCheckup,
        Inserts: MariaDBInserts,
    }
    insert_returning = True
    id_step = None
    delete_returning = True
    replaces_routines = True
    oldest_version: ClassVar = (10, 6)
    too_old = "mariadb {needed} or newer is required; this server is {found}."
    collation: ClassVar[str] = "utf8mb4_nopad_bin"

    def payload_equals(
        self, column: ColumnElement[Any], path: JsonPath, value: JsonScalar
    ) -> ColumnElement[bool]:
        """As MySQL.

        Raises:
            UnsupportedByEngine: a key begins with ``-``, which MariaDB cannot find even if it is
                quoted.
        """
        for step in path:
            if isinstance(step, str) and step.startswith("-"):
                msg = f"MariaDB cannot search the key {step!r}, because it begins with '-'."
                raise UnsupportedByEngine(msg)
        return super().payload_equals(column, path, value)

    def unclaimed_range(self, consumer_id: ColumnElement[Any]) -> ColumnElement[bool]:
        """No consumer, or one with a name below the empty one, which does not exist.

        An index can be forced, but not a range. If all waiting messages lie above the watermark,
        the optimizer prefers a ``ref`` of the level. That needs an equality, which this condition
        avoids. MySQL uses the range anyway, and this condition would make its range longer: all
        unclaimed messages of other levels, and those due later.
        """
        return or_(consumer_id.is_(None), consumer_id < "")
