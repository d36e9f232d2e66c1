"""How to ask the engines for a plan, and for the numbers that make plans on large tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

EXPLAIN: Final[Mapping[str, str]] = {
    "sqlite": "EXPLAIN QUERY PLAN ",
    "postgresql": "EXPLAIN ",
    "mariadb": "EXPLAIN FORMAT=JSON ",
    "mysql": "EXPLAIN FORMAT=JSON ",
    "h2": "EXPLAIN ",
}
"""What stands before a statement whose plan is asked for, by engine."""

_ANALYZE: Final[Mapping[str, str]] = {
    "postgresql": "ANALYZE {}",
    "mariadb": "ANALYZE TABLE {}",
    "mysql": "ANALYZE TABLE {}",
}


def analyze(connection: Connection, engine: str, *tables: str) -> None:
    """Let an engine count what is in some tables, and commit."""
    statement = _ANALYZE.get(engine, "ANALYZE").format(", ".join(tables))
    connection.exec_driver_sql(statement).close()
    connection.commit()
