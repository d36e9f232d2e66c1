"""Tell a user without admin rights when the database delays commits."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .dbapi import Connection

_WRITE_DELAY = (
    "SELECT SETTING_VALUE FROM INFORMATION_SCHEMA.SETTINGS WHERE SETTING_NAME = 'WRITE_DELAY'"
)

_DEFAULT = 500  # milliseconds


class DurabilityWarning(UserWarning):
    """Commits may be lost when the process that runs H2 is killed."""


def check(connection: Connection, user: str) -> None:
    """Warn unless the database writes each commit at once (``WRITE_DELAY`` is 0)."""
    cursor = connection.cursor()
    try:
        delays = [int(row[0]) for row in cursor.execute(_WRITE_DELAY)]
    finally:
        cursor.close()
        connection.rollback()
    delay = max(delays, default=_DEFAULT)  # as set, and as the file has it
    if delay:
        warnings.warn(
            f"H2 writes commits up to {delay} ms late, so a killed server loses them; user "
            f"{user!r} may not change that: let an administrator run SET WRITE_DELAY 0 once "
            "(the database remembers it)",
            DurabilityWarning,
            stacklevel=2,
        )
