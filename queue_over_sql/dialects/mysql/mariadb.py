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
            UnsupportedByEngine: a key begins with ``-``: MariaDB finds nothing under such a key,
                however it is quoted.
        """
        for step in path:
            if isinstance(step, str) and step.startswith("-"):
                msg = f"MariaDB cannot search the key {step!r}, because it begins with '-'."
                raise UnsupportedByEngine(msg)
        return super().payload_equals(column, path, value)

    def unclaimed_range(self, consumer_id: ColumnElement[Any]) -> ColumnElement[bool]:
        """No consumer, or one whose name is less than nothing, which is none.

        The index may be forced, but not the range: where all that waits lies above the mark,
        a ``ref`` of the level seems as good, and wins. It needs an equality, and this is none.
        MySQL takes the longer range by itself, and would make this one from the mark to the end
        of all that nobody holds: with other levels, and with what is due later.
        """
        return or_(consumer_id.is_(None), consumer_id < "")

    @contextlib.contextmanager
    def trusting_rows(self, connection: Connection, table: Table) -> Iterator[None]:
        """``check_constraint_checks``: JSON that is long takes as long to check as to store."""
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
            # A connection that is lost takes its settings along.
            with contextlib.suppress(SQLAlchemyError):
                again = f"SET SESSION check_constraint_checks = {int(before)}"
                connection.exec_driver_sql(again).close()
