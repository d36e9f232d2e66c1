"""The check-up of H2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from sqlalchemy import Connection

from queue_over_sql.sql.checkup import (
    KEEPS_ROWS,
    LONG_SECONDS,
    MOST_SHOWN,
    Asking,
    Checkup,
    Section,
    open_for_long,
    settings_during,
)
from queue_over_sql.values.findings import Finding, Level

LARGE_FILE: Final = 256 * 2**20
FILL_PERCENT: Final = 30


class H2Checkup(Checkup):
    """Delayed commits, a mostly empty file, old transactions."""

    ids_query = """
        SELECT TABLE_NAME, IDENTITY_BASE - 1 FROM INFORMATION_SCHEMA.COLUMNS
        WHERE TABLE_SCHEMA = COALESCE(:schema, CURRENT_SCHEMA) AND TABLE_NAME IN :names
          AND IDENTITY_BASE IS NOT NULL"""

    @property
    def sections(self) -> dict[str, Section]:
        return {"settings": self._settings, "transactions": self._transactions}

    @contextlib.contextmanager
    def bounded(self, connection: Connection, seconds: float) -> Iterator[None]:
        limit = f"SET QUERY_TIMEOUT {max(1, int(seconds * 1000))}"
        with settings_during(connection, [limit], ["SET QUERY_TIMEOUT 0"]):
            yield

    def _settings(self, ask: Asking) -> Iterator[Finding]:
        rows = ask.rows(
            "SELECT SETTING_NAME, SETTING_VALUE FROM INFORMATION_SCHEMA.SETTINGS WHERE SETTING_NAME"
            " IN ('WRITE_DELAY', 'info.FILE_SIZE', 'info.CHUNKS_FILL_RATE')"
        )
        found = {name: str(value) for name, value in rows}
        # It exists several times: as it was set, and as it is.
        delay = max((int(value) for name, value in rows if name == "WRITE_DELAY"), default=0)
        if delay:
            said = f"WRITE_DELAY is {delay}: commits reach the disk up to {delay} ms late"
            advice = "Set it to 0 if a power failure must not lose the last messages."
            yield Finding(Level.NOTE, "settings", said, advice)
        else:
            yield Finding(Level.OK, "settings", "a commit waits for the disk")
        size = int(found.get("info.FILE_SIZE", 0))
        fill = int(found.get("info.CHUNKS_FILL_RATE", 100))
        said = f"the file has {size / 2**20:,.0f} MiB, {fill} % of which are in use"
        if size > LARGE_FILE and fill < FILL_PERCENT:
            advice = (
                "Run SHUTDOWN COMPACT while nothing uses the database, if you need the disk space."
            )
            yield Finding(Level.NOTE, "bloat", said, advice)
        else:
            yield Finding(Level.OK, "bloat", said)

    def _transactions(self, ask: Asking) -> Iterator[Finding]:
        found = ask.rows(
            "SELECT SESSION_ID, DATEDIFF(SECOND, SLEEP_SINCE, CURRENT_TIMESTAMP)"
            " FROM INFORMATION_SCHEMA.SESSIONS WHERE CONTAINS_UNCOMMITTED"
            " AND SESSION_ID <> SESSION_ID() AND SLEEP_SINCE IS NOT NULL"
            " AND DATEDIFF(SECOND, SLEEP_SINCE, CURRENT_TIMESTAMP) >= :least"
            f" ORDER BY SLEEP_SINCE LIMIT {MOST_SHOWN}",
            least=LONG_SECONDS,
        )
        for session, seconds in found:
            advice = f"{KEEPS_ROWS} CALL ABORT_SESSION({session}) ends it."
            yield open_for_long(f"session {session}", float(seconds), advice)
