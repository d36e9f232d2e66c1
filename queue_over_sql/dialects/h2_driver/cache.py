"""What a connection remembers of the SQL texts that it has run."""

from __future__ import annotations

import re
from typing import Any

from .conversion import Layout

# A bare star stands for columns that may change without the text changing.
_FIXED_COLUMNS = re.compile(r"\s*SELECT\b(?:[^*]|\(\s*\*\s*\))*", re.IGNORECASE)


class Statements:
    """Prepared Java statements by SQL text: on a server each preparation is a round trip.

    A statement is out of the cache while a cursor uses it, because running it again would
    close the first cursor's result.
    """

    def __init__(self, jconn: Any, limit: int = 64) -> None:
        """Keep up to ``limit`` statements of ``jconn``, dropping the longest unused."""
        self._prepare = jconn.prepareStatement
        self._limit = limit
        self._kept: dict[str, Any] = {}

    def take(self, sql: str) -> Any:
        """Return a statement for ``sql`` that nobody else holds."""
        kept = self._kept.pop(sql, None)
        return self._prepare(sql) if kept is None else kept

    def give_back(self, sql: str, statement: Any) -> None:
        """Keep ``statement`` for the next :meth:`take` of the same text."""
        kept = self._kept
        if sql in kept:
            statement.close()
            return
        statement.clearParameters()  # a missing one must be an error, a large one be freed
        if len(kept) >= self._limit:
            kept.pop(next(iter(kept))).close()
        kept[sql] = statement

    def clear(self) -> None:
        """Forget all, without closing: for a connection that closes."""
        self._kept.clear()


class Layouts:
    """Result columns by SQL text, so that not every execution asks for names and types."""

    def __init__(self, limit: int = 256) -> None:
        """Keep up to ``limit`` layouts."""
        self._limit = limit
        self._kept: dict[str, Layout] = {}

    def find(self, sql: str) -> Layout | None:
        """Return the remembered layout: its labels hold, its types may have been altered."""
        return self._kept.get(sql)

    def learn(self, sql: str, result: Any) -> Layout:
        """Read the layout of ``result``, and remember it where the text fixes the columns."""
        layout = Layout.of(result.getMetaData())
        if _FIXED_COLUMNS.fullmatch(sql):
            if len(self._kept) >= self._limit:
                self._kept.clear()
            self._kept[sql] = layout
        return layout
