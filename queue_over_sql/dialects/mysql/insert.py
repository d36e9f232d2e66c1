"""How MySQL and MariaDB insert many messages: within the size of a packet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

from sqlalchemy import (
    CheckConstraint,
    Connection,
    Table,
    text,
)
from sqlalchemy.exc import SQLAlchemyError

from queue_over_sql.errors import PayloadTooLarge
from queue_over_sql.publishing.strategy import Inserts

# The bytes that get a backslash, and a size that all of a statement but its texts is below.
_ESCAPED: Final = (b"\\", b"'", b'"', b"\0", b"\n", b"\r", b"\x1a")
_REST_OF_STATEMENT: Final = 2048
_CHECKS: Final = text(
    "SELECT constraint_name FROM information_schema.check_constraints"
    " WHERE constraint_schema = coalesce(:schema, database()) AND table_name = :name"
)


class MySQLInserts(Inserts):
    """Inserts as everywhere, but checks the size of a statement before it is sent."""

    def check_sent(self, values: Iterable[Any]) -> None:
        """As drivers send them: as literals, with a backslash before some characters.

        The server would close the connection without an answer.
        """
        size, limit = _REST_OF_STATEMENT, self._features.statement_bytes
        for value in values:
            if isinstance(value, str | bytes):
                sent = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
                size += len(sent) + sum(map(sent.count, _ESCAPED))
        if limit is not None and size > limit:
            what, raises = "statement with this message", "raise the server's max_allowed_packet"
            raise PayloadTooLarge(what, size, limit, raises)


class MariaDBInserts(MySQLInserts):
    """As MySQL; staged rows are not checked again."""

    @contextlib.contextmanager
    def trusting_rows(self, connection: Connection, table: Table) -> Iterator[None]:
        """``check_constraint_checks``: checking long JSON takes as long as storing it."""
        ours = {str(c.name) for c in table.constraints if isinstance(c, CheckConstraint)}
        named = {"schema": table.schema, "name": table.name}
        found = set(connection.scalars(_CHECKS, named)) if ours else set()
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
