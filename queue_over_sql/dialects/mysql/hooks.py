"""Hooks of our engines on MySQL and MariaDB: their connections can send every character."""

from __future__ import annotations

import inspect
from typing import Any, Final

from sqlalchemy import Engine, event
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.util import await_only

SETTINGS: Final = (
    "CONCAT_WS(' ', COALESCE(@@character_set_client, ''), COALESCE(@@character_set_connection, ''),"
    " COALESCE(@@character_set_results, '')), @@SESSION.sql_mode, @@SESSION.sql_safe_updates,"
    " @@SESSION.sql_select_limit, @@SESSION.sql_big_selects"
)
"""SQL for the settings of a session that change what is stored or found, or refuse statements."""
OPENED_WITH: Final = "queue_over_sql_settings"
"""Where a connection's ``info`` has the values of ``SETTINGS`` from when it was opened."""
EVERY_CHARACTER: Final = "utf8mb4 utf8mb4 utf8mb4"
"""The first of ``SETTINGS`` in a session that can send and receive every character."""


def listen(engine: Engine) -> None:
    """Set up each connection of one of our engines."""

    def configure(connection: Any, entry: ConnectionPoolEntry) -> None:
        try:
            charsets, *others = _settings(connection)
            if charsets != EVERY_CHARACTER:
                _speak_utf8mb4(engine.dialect.get_driver_connection(connection))
            entry.info[OPENED_WITH] = (EVERY_CHARACTER, *others)
        except BaseException:
            connection.close()
            raise

    event.listen(engine, "connect", configure)


def _settings(connection: Any) -> Any:
    cursor = connection.cursor()
    try:
        cursor.execute(f"SELECT {SETTINGS}")
        return cursor.fetchone()
    finally:
        cursor.close()


def _speak_utf8mb4(driver: Any) -> None:
    # The driver must know, too, because it encodes the texts.
    change = getattr(driver, "set_character_set", None) or driver.set_charset
    done = change("utf8mb4")
    if inspect.isawaitable(done):
        await_only(done)
