"""Hooks of our engines on MySQL and MariaDB: characters, and what a COMMIT does to a session."""

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
SESSION: Final = "queue_over_sql_session"
"""Where a connection's ``info`` has the server's name, and the number of its session there."""
EVERY_CHARACTER: Final = "utf8mb4 utf8mb4 utf8mb4"
"""The first of ``SETTINGS`` in a session that can send and receive every character."""
# A COMMIT neither ends the session nor begins another transaction, which a statement with
# autocommit would belong to; and SQLAlchemy reads SHOW CREATE TABLE only with quoted names.
_NEEDED: Final = {"completion_type": "NO_CHAIN", "sql_quote_show_create": 1}
_NAMES: Final = "CONCAT_WS(' ', @@hostname, @@port, @@datadir), CONNECTION_ID()"
_SELECT: Final = (
    f"SELECT {_NAMES}, {SETTINGS}, {', '.join(f'@@SESSION.{name}' for name in _NEEDED)}"
)
_SET: Final = "SET " + ", ".join(f"SESSION {name} = {value!r}" for name, value in _NEEDED.items())


def listen(engine: Engine) -> None:
    """Set up each connection of one of our engines."""

    def configure(connection: Any, entry: ConnectionPoolEntry) -> None:
        try:
            server, number, charsets, *others = _run(connection, _SELECT)
            others, ends = others[: -len(_NEEDED)], others[-len(_NEEDED) :]
            if ends != [*_NEEDED.values()]:
                _run(connection, _SET)
            if charsets != EVERY_CHARACTER:
                _speak_utf8mb4(engine.dialect.get_driver_connection(connection))
            entry.info[SESSION] = server, number
            entry.info[OPENED_WITH] = (EVERY_CHARACTER, *others)
        except BaseException:
            connection.close()
            raise

    # First, because SQLAlchemy sends a COMMIT when it sets the isolation level.
    event.listen(engine, "connect", configure, insert=True)


def _run(connection: Any, statement: str) -> Any:
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
        return cursor.fetchone()
    finally:
        cursor.close()


def _speak_utf8mb4(driver: Any) -> None:
    # The driver must know, too, because it encodes the texts.
    change = getattr(driver, "set_character_set", None) or driver.set_charset
    done = change("utf8mb4")
    if inspect.isawaitable(done):
        await_only(done)
