"""The Java ancestor of queue_over_sql on H2 as it was written: it connects for each statement.

It makes the same calls of Java as the ancestor: ``connect``, ``prepareStatement``, ``setObject``,
``execute`` and ``close``. One more connection stays open, because otherwise H2 would open its file
again for each statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jpype

from scripts.benchmarks.contenders.ancestor_h2 import Ancestor
from scripts.benchmarks.contenders.serving import serve


class AncestorAsWritten(Ancestor):
    """A connection for each statement."""

    name = "ancestor_as_written"

    @property
    def version(self) -> str:
        """It was never released."""
        return "a connection for each statement"

    def open(self) -> None:
        """Open a connection that stays open, and store how to make others."""
        super().open()
        java = self.raw.jconn
        self._driver = jpype.JClass("org.h2.Driver")()
        self._properties = jpype.JClass("java.util.Properties")()
        self._properties.setProperty("user", str(java.getMetaData().getUserName()))
        self._properties.setProperty("password", "")
        self._url = str(java.getMetaData().getURL())

    def run(self, statement: str, values: Sequence[Any] = ()) -> Sequence[Sequence[Any]]:
        """Connect, execute, and close the connection."""
        connection = self._driver.connect(self._url, self._properties)
        try:
            prepared = connection.prepareStatement(statement)
            for index, value in enumerate(values, 1):
                boxed = jpype.java.lang.Long(value) if isinstance(value, int) else value
                prepared.setObject(index, boxed)
            return _rows(prepared.getResultSet()) if prepared.execute() else ()
        finally:
            connection.close()


def _rows(found: Any) -> Sequence[Sequence[Any]]:
    columns = range(1, found.getMetaData().getColumnCount() + 1)
    rows = []
    while found.next():
        rows.append([_plain(found.getObject(column)) for column in columns])
    return rows


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, jpype.java.lang.Number) else str(value)


if __name__ == "__main__":
    serve(AncestorAsWritten)
