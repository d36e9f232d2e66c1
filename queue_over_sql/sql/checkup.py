"""Check-ups: what ``doctor`` asks each engine to find problems of a database.

They only read, in statements with a time limit. If the account may not read something, the finding
says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

from sqlalchemy import Connection, Table, bindparam, text
from sqlalchemy.exc import SQLAlchemyError

from queue_over_sql.sql.features import Features
from queue_over_sql.values.durations import duration_text
from queue_over_sql.values.findings import Finding, Level

LONG_SECONDS: Final = 60
"""A transaction that is open for this long delays the cleanup of tables."""
DEAD_ROWS: Final = 10_000
"""Fewer dead rows than this do not matter, even if there are few live ones."""
MOST_SHOWN: Final = 10
# The share of the server's connections that may be in use.
CROWDED: Final = 0.8


class Asking:
    """Queries a database, in a session with a time limit for statements.

    Args:
        connection: in autocommit mode.
        tables: the existing tables of the library.
        schema: their schema; None for the connection's.
    """

    def __init__(self, connection: Connection, tables: Sequence[Table], schema: str | None) -> None:
        self.connection = connection
        self.tables = tables
        self.schema = schema

    def rows(self, statement: str, **values: Any) -> Sequence[Any]:
        """All rows of a statement."""
        return self.connection.execute(text(statement), values).all()

    def value(self, statement: str, **values: Any) -> Any:
        """The first value of its first row; None if there is no row."""
        return self.connection.execute(text(statement), values).scalar()

    def written(self, table: Table) -> str:
        """The name of a table as in SQL."""
        return self.connection.dialect.identifier_preparer.format_table(table)


Section = Callable[[Asking], Iterator[Finding]]


class Checkup:
    """The check-up of an unknown engine."""

    ids_query: ClassVar[str | None] = None
    """Reads the tables ``:names`` in ``:schema``, and the last id that each of them gave out."""

    next_id_statement: ClassVar[str] = "ALTER TABLE {table} ALTER COLUMN id RESTART WITH {number}"
    """Lets a table give out ids from a number on."""

    def __init__(self, features: Features) -> None:
        self._engine = features.name

    def last_ids(self, connection: Connection, tables: Sequence[Table]) -> dict[str, int]:
        """The last id that each table of one schema gave out, by table, where it can be read."""
        if self.ids_query is None or not tables:
            return {}
        names, schema, dialect = [t.name for t in tables], tables[0].schema, connection.dialect
        if dialect.requires_name_normalize:
            names = [dialect.denormalize_name(name) for name in names]
            schema = None if schema is None else dialect.denormalize_name(schema)
        query = text(self.ids_query).bindparams(bindparam("names", expanding=True))
        rows = connection.execute(query, {"names": names, "schema": schema}).all()
        written = dict(zip(names, (table.name for table in tables), strict=True))
        return {written[name]: int(last) for name, last in rows if last is not None}

    def next_id(self, connection: Connection, table: Table, number: int) -> str:
        """The statement that lets a table give out ids from this one on."""
        written = connection.dialect.identifier_preparer.format_table(table)
        return self.next_id_statement.format(
            table=written, quoted=written.replace("'", "''"), name=table.name, number=number
        )

    def described(self, connection: Connection) -> str:
        """Engine, version and driver."""
        version = ".".join(map(str, connection.dialect.server_version_info or ()))
        return f"{self._engine} {version} by {connection.dialect.driver}"

    @property
    def sections(self) -> dict[str, Section]:
        """The checks by name; each may fail separately."""
        return {}

    @contextlib.contextmanager
    def bounded(self, connection: Connection, seconds: float) -> Iterator[None]:
        """Limit the time of statements on a connection during the block."""
        del connection, seconds
        yield


@contextlib.contextmanager
def settings_during(
    connection: Connection, do: Sequence[str], undo: Sequence[str]
) -> Iterator[None]:
    """Run statements before the block and after it, whatever happens in it."""
    try:
        for statement in do:
            connection.exec_driver_sql(statement).close()
        yield
    finally:
        # A broken connection has no settings to undo.
        with contextlib.suppress(SQLAlchemyError):
            for statement in undo:
                connection.exec_driver_sql(statement).close()


def crowded(used: int, most: int) -> Finding:
    """How many connections of the server are in use."""
    said = f"{used} of {most} connections of the server are in use"
    if used < CROWDED * most:
        return Finding(Level.OK, "connections", said)
    advice = (
        "Raise max_connections or use a pooler: each worker thread needs a connection, and raises "
        "DatabaseUnavailable if it gets none."
    )
    return Finding(Level.WARNING, "connections", said, advice)


def open_for_long(who: str, seconds: float, advice: str) -> Finding:
    """A transaction has been open for long."""
    said = f"{who} has a transaction that has been open for {duration_text(round(seconds))}"
    return Finding(Level.WARNING, "transactions", said, advice)


KEEPS_ROWS: Final = (
    "Commit or end it, and set a time limit in its program. Until then dead rows cannot be "
    "removed, and claims become slower."
)


# https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html
DENIED: Final = (1142, 1143)
