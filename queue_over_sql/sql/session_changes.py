"""Listeners to a handler's statements: whether they change its session, or come from a child."""

from __future__ import annotations

import os
import re
from typing import Any, Final

from sqlalchemy import Connection

from queue_over_sql.errors import QueueError

UNTIL: Final = "queue_over_sql_changed_until"
"""Where a connection's ``info`` says how long its session stays changed; see ``changed_until``."""
TRANSACTION_ENDS: Final = "transaction"
CLOSED: Final = "closed"
_FORKED: Final = (
    "This connection belongs to the process that forked this one. Open a connection of your own in "
    "the child."
)

# What comes before a statement: space, brackets and comments, but not MySQL's executable comments.
_BEFORE: Final = r"(?:\s|\(|--[^\n]*(?:\n|$)|/\*(?![!M])(?:[^*]|\*(?!/))*\*/)*"
_WORDS: Final = (
    "SELECT|INSERT|UPDATE|DELETE|MERGE|REPLACE|UPSERT|WITH|VALUES|TABLE|CALL|EXPLAIN|SHOW|COPY"
    "|BEGIN|START|SAVEPOINT|RELEASE|ROLLBACK|COMMIT"
)
_CHANGES_NOTHING: Final = re.compile(rf"{_BEFORE}(?:{_WORDS})\b", re.IGNORECASE)
# What changes the session although the statement begins harmlessly: functions, variables, a second
# statement.
_HIDDEN: Final = re.compile(
    r"\b(?:set_config|get_lock|pg_(?:try_)?advisory_lock(?:_shared)?)\s*\("
    r"|@\w+\s*:=|\bINTO\s+@|;\s*[^\s;]",
    re.IGNORECASE,
)
_OF_TRANSACTION: Final = re.compile(
    rf"{_BEFORE}(?:SET\s+(?:LOCAL|TRANSACTION|CONSTRAINTS)\b|LOCK\b"
    r"|SELECT\s+(?:pg_catalog\.)?set_config\s*\([^;]*,\s*true\s*\)\s*$)",
    re.IGNORECASE,
)


class SessionChanges:
    """Listens to the statements of one connection, and notes that they change its session.

    Args:
        scoped: whether the engine has settings that end with the transaction.
    """

    def __init__(self, *, scoped: bool) -> None:
        self._scoped = scoped

    def __call__(  # noqa: PLR0917 - SQLAlchemy's
        self,
        connection: Connection,
        cursor: object,
        statement: str,
        parameters: Any,
        context: object,
        executemany: object,
    ) -> tuple[str, Any]:
        del cursor, context, executemany
        if not _CHANGES_NOTHING.match(statement) or _HIDDEN.search(statement):
            info = connection.info
            if self._scoped and _OF_TRANSACTION.match(statement):
                info.setdefault(UNTIL, TRANSACTION_ENDS)
            else:
                info[UNTIL] = CLOSED
        return statement, parameters


class ParentAlone:
    """Listens to the statements of one connection, and refuses those of a forked child."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is the process that opened the connection."""
        return os.getpid() == self._process

    def __call__(  # noqa: PLR0917 - SQLAlchemy's
        self,
        connection: Connection,
        cursor: object,
        statement: str,
        parameters: Any,
        context: object,
        executemany: object,
    ) -> tuple[str, Any]:
        del connection, cursor, context, executemany
        if not self.is_here:
            raise QueueError(_FORKED)
        return statement, parameters


def may_skip(listener: Any) -> bool:
    """Whether our own statements need not be shown to a listener."""
    kind = type(listener)
    return kind is SessionChanges or (kind is ParentAlone and listener.is_here)


def changed_until(connection: Connection) -> str | None:
    """How long a connection's session stays changed; None if nothing changed it."""
    until: str | None = connection.info.get(UNTIL)
    return until


def release_changed(connection: Connection) -> None:
    """After the transaction: close a connection whose session is not as it was."""
    if connection.closed or connection.invalidated:
        return
    if connection.info.pop(UNTIL, None) == CLOSED:
        connection.invalidate()
