"""What an error of the database means, and so what the caller can do."""

from __future__ import annotations

import enum


class ErrorKind(enum.Enum):
    """The meaning of a database error: what the caller can do."""

    TRANSIENT = "deadlock, serialization failure or lock timeout: the transaction may be repeated"
    CANCELLED = "an administrator or a time limit ended the statement, which changed nothing"
    READ_ONLY = "the server, the session or the transaction may only read; nothing was changed"
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
