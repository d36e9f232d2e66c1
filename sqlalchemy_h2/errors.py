"""DB-API exceptions for H2, and their translation from Java's exceptions.

The classes are jaydebeapi's. Each error that comes from H2 carries ``.code`` (H2's error code,
https://h2database.com/javadoc/org/h2/api/ErrorCode.html) and ``.sqlstate``.
"""

from __future__ import annotations

import re
from typing import Any

from jaydebeapi import (
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)
from jpype import JVMNotRunning

ADMIN_RIGHTS_REQUIRED = 90040
EXCLUSIVE_MODE = 90135

_OBJECT_CLOSED = 90007
DISCONNECT_CODES = frozenset(
    {
        _OBJECT_CLOSED,
        90067,  # connection broken
        90098,  # database closed
        90121,  # database called at shutdown
    }
)
"""H2 codes after which the connection is of no more use."""

FILE_CHANGES_HANDS = frozenset(
    {
        8000,  # error opening database: its lock file has just been written
        90020,  # database file in use by another process
        90067,  # connection broken: the process that had the file has just ended
    }
)
"""H2 codes of an attempt to open a file that another process is about to take or to leave."""

_OPERATIONAL_CODES = DISCONNECT_CODES | {
    40001,  # deadlock: H2 has rolled the whole transaction back
    50200,  # lock timeout
    57014,  # statement cancelled
    90020,  # database file in use by another process
    90024,  # file rename failed
    90025,  # file delete failed
    90028,  # input or output failed
    90030,  # file corrupted
    90031,  # input or output failed, with the file's name
    90039,  # large object expired
    90062,  # file creation failed
    90097,  # database is read only
    90108,  # out of memory
    90117,  # remote connections not allowed
    90124,  # file not found
    90131,  # row changed by a concurrent transaction
    EXCLUSIVE_MODE,
    90146,  # database not found (IFEXISTS)
    90149,  # database not found on the server
}
_INPUT_OUTPUT = frozenset({90028, 90031})
_NETWORK = frozenset({"java.io.EOFException", "java.net.SocketException"})
_BROKEN, _CLOSED = 90067, 90098
# Of the store below: it is closed, or has ended the transaction, because the database closes.
_CLOSES = re.compile(r"\[\d+\.\d+\.\d+/(?:4|103)\]")
_DATA_CODES = frozenset({90003, 90004, 90008, 90095, 90150, 90151})
_INTERNAL_ERROR = 50000
_NOT_SUPPORTED = 50100


def error_class(code: int, sqlstate: str) -> Any:
    """Return the DB-API class for H2's error ``code`` and ``sqlstate``."""
    if sqlstate.startswith("23"):
        return IntegrityError
    if sqlstate.startswith("22") or code in _DATA_CODES:
        return DataError
    if code in _OPERATIONAL_CODES or sqlstate[:2] in {"08", "28", "40"}:
        return OperationalError
    if code == _INTERNAL_ERROR:
        return InternalError
    if code == _NOT_SUPPORTED or sqlstate.startswith("0A"):
        return NotSupportedError
    return ProgrammingError


def translate(thrown: Any) -> Any:
    """Return the DB-API error for an exception of a Java call.

    An SQL exception is translated by its code. Any other one becomes an OperationalError; a missing
    JVM (at the end of the process) becomes an InterfaceError.
    """
    code, sqlstate = 0, ""
    error: Any
    if isinstance(thrown, JVMNotRunning):
        error = InterfaceError(
            "this Python process is ending and its JVM has stopped, so it cannot use H2 any more"
        )
    elif hasattr(thrown, "getSQLState"):
        code, sqlstate = int(thrown.getErrorCode()), str(thrown.getSQLState() or "")
        if code in _INPUT_OUTPUT:
            # A large text is read later than its row, and the server may be gone by then.
            code = _disconnect_behind(thrown.getCause()) or code
        elif code == _INTERNAL_ERROR and _CLOSES.search(str(thrown.getMessage())):
            code = _CLOSED
        error = error_class(code, sqlstate)(_without_statement(str(thrown.getMessage())))
    else:
        error = OperationalError(f"Java failed: {thrown.toString()}")
    error.code, error.sqlstate = code, sqlstate
    return error


def closed_connection() -> Any:
    """Return the error of a connection that this side closed, perhaps another thread."""
    error: Any = InterfaceError("the connection is closed")
    error.code, error.sqlstate = _OBJECT_CLOSED, str(_OBJECT_CLOSED)
    return error


def _disconnect_behind(cause: Any) -> int:
    while cause is not None:
        code = int(cause.getErrorCode()) if hasattr(cause, "getErrorCode") else 0
        if code in DISCONNECT_CODES:
            return code
        if str(cause.getClass().getName()) in _NETWORK:
            return _BROKEN
        cause = cause.getCause()
    return 0


def _without_statement(text: str) -> str:
    before, found, after = text.partition("; SQL statement:")
    return f"{before} {after[after.rfind('[') :]}" if found else text
