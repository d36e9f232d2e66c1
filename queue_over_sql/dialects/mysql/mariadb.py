"""MariaDB 10.6 or newer: MySQL with RETURNING on INSERT and DELETE."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from sqlalchemy import CheckConstraint, ColumnElement, Connection, Table, or_, text
from sqlalchemy.exc import SQLAlchemyError

from queue_over_sql.dialects.mysql.dialect import MySQLDialect
from queue_over_sql.errors import UnsupportedByEngine
from queue_over_sql.schema.conditions import JsonPath, JsonScalar

_CHECKS: Final = text(
    "SELECT constraint_name FROM information_schema.check_constraints"
    " WHERE constraint_schema = coalesce(:schema, database()) AND table_name = :name"
)


class MariaDBDialect(MySQLDialect):
    """MariaDB through PyMySQL."""

    name = "mariadb"
    checkup_class = "MariaDBCheckup"
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

    @contextlib.contextmanager
    def trusting_rows(self, connection: Connection, table: Table) -> Iterator[None]:
        """``check_constraint_checks``: checking long JSON takes as long as storing it."""
        ours = {str(c.name) for c in table.constraints if isinstance(c, CheckConstraint)}
        asked = {"schema": table.schema, "name": table.name}
        found = set(connection.scalars(_CHECKS, asked)) if ours else set()
        if not ours or found != ours:
            yield
            return
        before = connection.exec_driver_sql("SELECT @@check_constraint_checks").scalar_one()
        connection.exec_driver_sql("SET SESSION check_constraint_checks = 0").close()
        try:
            yield
        finally:
            # A lost connection has no settings to restore.
            with contextlib.suppress(SQLAlchemyError):
                again = f"SET SESSION check_constraint_checks = {int(before)}"
                connection.exec_driver_sql(again).close()
