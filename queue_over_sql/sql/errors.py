"""What an error of the database means, and so what the caller can do."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.exc import DBAPIError

    from queue_over_sql.sql.features import Features


class ErrorKind(enum.Enum):
    """The meaning of a database error: what the caller can do."""

    TRANSIENT = "deadlock, serialization failure or lock timeout: the transaction may be repeated"
    CANCELLED = "an administrator or a time limit ended the statement, which changed nothing"
    READ_ONLY = "the server, the session or the transaction may only read; nothing was changed"
    STALE_PLAN = "a table was changed since this session prepared the statement: another can run it"
    DISCONNECT = "the connection is gone; it is unknown whether the last commit succeeded"
    DUPLICATE = "a unique constraint was violated; which one is not known from the error"
    INVALID_VALUE = "a value does not fit its column or a check constraint"
    MISSING_TABLE = "the table is not there"
    TABLE_EXISTS = "two creators met"
    FORBIDDEN = "the login lacks a right"
    OTHER = "anything else"


def sqlstate_of(error: BaseException | None) -> str:
    """The SQLSTATE of a driver's error; empty if it has none."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None and error is not None and error.args and isinstance(error.args[0], dict):
        # pg8000 has the fields of the server's message as a dictionary.
        state = error.args[0].get("C")
    return str(state or "")


KINDS_OF_STATES = {
    "40001": ErrorKind.TRANSIENT,
    "40P01": ErrorKind.TRANSIENT,
    "55P03": ErrorKind.TRANSIENT,
    "57014": ErrorKind.CANCELLED,
    "25006": ErrorKind.READ_ONLY,
    "23505": ErrorKind.DUPLICATE,
    "23514": ErrorKind.INVALID_VALUE,
    "22001": ErrorKind.INVALID_VALUE,
    # Characters that the database's encoding lacks, and bytes that are none.
    "22P05": ErrorKind.INVALID_VALUE,
    "22021": ErrorKind.INVALID_VALUE,
    "42P01": ErrorKind.MISSING_TABLE,
    "42P07": ErrorKind.TABLE_EXISTS,
    "42501": ErrorKind.FORBIDDEN,
}


class Errors:
    """The errors of an engine's drivers: what they mean, and what helps; here by SQLSTATE."""

    def __init__(self, features: Features) -> None:
        self._features = features

    def classify(self, error: DBAPIError) -> ErrorKind:
        """Classify an error, never by its text."""
        if error.connection_invalidated:
            return ErrorKind.DISCONNECT
        return self.classify_driver_error(error.orig)

    def classify_driver_error(self, error: BaseException | None) -> ErrorKind:
        """Classify a driver's error by its code."""
        return KINDS_OF_STATES.get(sqlstate_of(error)[:5], ErrorKind.OTHER)

    def undoes_transaction(self, connection: Connection, error: BaseException) -> bool:
        """Whether the database undid the whole transaction with this error of a statement.

        False where it refuses all further statements until the caller rolls back.
        """
        return False

    def refuses_row(self, error: DBAPIError) -> bool:
        """Whether a row was refused, or cannot be read, so that other rows may be accepted."""
        if self.classify(error) in {ErrorKind.DUPLICATE, ErrorKind.INVALID_VALUE}:
            return True
        if self.cannot_read(error.orig):
            return True
        return self.refuses_row_by(error.orig)

    def refuses_row_by(self, error: BaseException | None) -> bool:
        """As ``refuses_row``, by the code of a driver's error."""
        # Data, integrity, a view's check option, and what SQL of the user's own raises.
        return sqlstate_of(error)[:2] in {"22", "23", "44", "45", "P0"}

    def cannot_read(self, error: BaseException | None) -> bool:
        """Whether the database cannot read a row, so that other rows may be readable."""
        # Damaged data, or a damaged index.
        return sqlstate_of(error) in {"XX001", "XX002"}

    def value_hint(self, error: BaseException | None) -> str:
        """Further advice for when the server refused a value."""
        return ""

    def refusal_hint(self, error: BaseException | None) -> str:
        """Further advice for when the server refused a statement."""
        return ""

    def unfit_way(self, error: BaseException | None) -> str | None:
        """Why this connection to the server can never serve queues; None for other errors."""
        return None
