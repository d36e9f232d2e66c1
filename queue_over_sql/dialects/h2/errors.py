"""What the errors of H2 mean."""

from __future__ import annotations

from sqlalchemy import Connection

from queue_over_sql.sql.errors import ErrorKind, Errors

# https://h2database.com/javadoc/org/h2/api/ErrorCode.html
_KINDS = {
    40001: ErrorKind.TRANSIENT,
    50200: ErrorKind.TRANSIENT,
    90131: ErrorKind.TRANSIENT,
    # Another session alters a table, or the server closes the database.
    90135: ErrorKind.TRANSIENT,
    57014: ErrorKind.CANCELLED,
    23505: ErrorKind.DUPLICATE,
    23513: ErrorKind.INVALID_VALUE,
    22001: ErrorKind.INVALID_VALUE,
    42102: ErrorKind.MISSING_TABLE,
    42103: ErrorKind.MISSING_TABLE,
    42104: ErrorKind.MISSING_TABLE,
    42101: ErrorKind.TABLE_EXISTS,
    42111: ErrorKind.TABLE_EXISTS,
    90007: ErrorKind.DISCONNECT,
    90067: ErrorKind.DISCONNECT,
    90098: ErrorKind.DISCONNECT,
    90096: ErrorKind.FORBIDDEN,
    90121: ErrorKind.DISCONNECT,
}
_TOO_LONG = 22001
# What H2 does not expect, such as a text of which a part is gone; files that it cannot read.
_UNREADABLE = frozenset((50000, 90028, 90030, 90031))
_DEADLOCK = 40001


class H2Errors(Errors):
    """By H2's error codes."""

    def classify_driver_error(self, error: BaseException | None) -> ErrorKind:
        return _KINDS.get(getattr(error, "code", 0), ErrorKind.OTHER)

    def undoes_transaction(self, connection: Connection, error: BaseException) -> bool:
        return getattr(error, "code", 0) == _DEADLOCK

    def cannot_read(self, error: BaseException | None) -> bool:
        return getattr(error, "code", 0) in _UNREADABLE

    def value_hint(self, error: BaseException | None) -> str:
        if getattr(error, "code", 0) != _TOO_LONG:
            return ""
        return " (H2 counts UTF-16 code units: characters beyond U+FFFF, such as emoji, have two)"
