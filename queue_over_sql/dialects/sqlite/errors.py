"""What the errors of SQLite mean."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from queue_over_sql.sql.errors import ErrorKind, Errors

# https://www.sqlite.org/rescode.html: the low byte is the primary code.
_BUSY, _LOCKED, _INTERRUPT, _CONSTRAINT_CHECK, _TOO_BIG = 5, 6, 9, 275, 18
_CONSTRAINT, _CONSTRAINT_UNIQUE, _CONSTRAINT_PRIMARYKEY = 19, 2067, 1555
# A connection that has not read since another one made the table anew says so of a constraint that
# is there: SQLite reads the schema again after most errors, but not after this one.
_STALE_SCHEMA = "ON CONFLICT clause does not match"
_CONSTRAINTS = {"UNIQUE": ErrorKind.DUPLICATE, "CHECK": ErrorKind.INVALID_VALUE}


class SQLiteErrors(Errors):
    """By SQLite's result codes."""

    def classify_driver_error(self, error: BaseException | None) -> ErrorKind:
        code = getattr(error, "sqlite_errorcode", None) or 0
        if code & 0xFF in {_BUSY, _LOCKED}:
            return ErrorKind.TRANSIENT
        if code == _INTERRUPT:
            return ErrorKind.CANCELLED
        if code in {_CONSTRAINT_UNIQUE, _CONSTRAINT_PRIMARYKEY}:
            return ErrorKind.DUPLICATE
        if code in {_CONSTRAINT_CHECK, _TOO_BIG}:
            return ErrorKind.INVALID_VALUE
        if code == _CONSTRAINT:
            # Drivers such as pysqlite3 only give primary codes.
            return _CONSTRAINTS.get(str(error).partition(" ")[0], ErrorKind.OTHER)
        stale = str(error).startswith(_STALE_SCHEMA)
        return ErrorKind.STALE_PLAN if stale else ErrorKind.OTHER

    def undoes_transaction(self, connection: Connection, error: BaseException) -> bool:
        """After RAISE(ROLLBACK), OR ROLLBACK, a full disk and the like."""
        raw: Any = connection.connection.driver_connection
        return raw is not None and not raw.in_transaction

    def refuses_row_by(self, error: BaseException | None) -> bool:
        return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF == _CONSTRAINT
