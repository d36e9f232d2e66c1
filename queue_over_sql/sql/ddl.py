"""How an engine creates and changes tables, and what it says of those that exist."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import bindparam, inspect, text
from sqlalchemy.exc import SAWarning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection, Table

    from queue_over_sql.sql.errors import Errors
    from queue_over_sql.sql.features import Features
    from queue_over_sql.sql.sessions import EngineSessions


@contextlib.contextmanager
def accepting_any_type() -> Iterator[None]:
    """Reflect tables of users without a warning; values of an unknown type come from the driver."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Did not recognize type", SAWarning)
        yield


class Ddl:
    """Creates, changes and describes tables in portable SQL.

    Args:
        features: of the server.
        sessions: where it runs; DDL commits on some engines.
        errors: what the errors of its statements mean.
    """

    columns_query: ClassVar[str | None] = None
    """A query for tables ``:names`` in ``:schema`` and their columns; None: use the inspector."""

    def __init__(self, features: Features, sessions: EngineSessions, errors: Errors) -> None:
        self.features = features
        self.sessions = sessions
        self.errors = errors

    # -- what there is

    def present_columns(
        self, connection: Connection, tables: Sequence[Table]
    ) -> dict[str, set[str]]:
        """The columns of the existing tables among these, which are of one schema, by table."""
        names, schema = [table.name for table in tables], tables[0].schema
        if self.columns_query is None:
            inspector = inspect(connection)
            return {
                name: {column["name"] for column in inspector.get_columns(name, schema)}
                for name in names
                if inspector.has_table(name, schema)
            }
        found: dict[str, set[str]] = {}
        sa_dialect = connection.dialect
        if sa_dialect.requires_name_normalize:
            names = [sa_dialect.denormalize_name(name) for name in names]
            schema = None if schema is None else sa_dialect.denormalize_name(schema)
        query = text(self.columns_query).bindparams(bindparam("names", expanding=True))
        for row in connection.execute(query, {"names": names, "schema": schema}):
            table, column = row
            if sa_dialect.requires_name_normalize:
                table, column = map(sa_dialect.normalize_name, row)
            found.setdefault(table, set()).add(column)
        return found

    def index_names(self, connection: Connection, table: Table) -> set[str | None]:
        """The names of a table's indexes in the database."""
        with accepting_any_type():
            found = inspect(connection).get_indexes(table.name, schema=table.schema)
        return {index["name"] for index in found}

    def table_flaw(self, connection: Connection, table: Table) -> str | None:
        """Why a user's table cannot hold messages safely, and what to do; None if it can."""
        return None

    def is_emptied_by_crash(self, connection: Connection, table: Table) -> bool:
        """Whether a user's table is empty after a crash of the server."""
        return False

    # -- the statements

    def add_columns(self, table: str, specifications: Sequence[str]) -> list[str]:
        """The statements that add columns to a table that may be large."""
        return [f"ALTER TABLE {table} ADD COLUMN {column}" for column in specifications]

    def add_column_in_use(self, table: str, specification: str) -> list[str]:
        """Alternative statements that add a column while others use the table, the best first."""
        return [f"ALTER TABLE {table} ADD COLUMN {specification}"]

    def drop_columns(self, table: str, names: Sequence[str]) -> list[str]:
        """The statements that drop columns of a table that may be large."""
        return [f"ALTER TABLE {table} DROP COLUMN {name}" for name in names]

    # -- beside others

    @contextlib.contextmanager
    def creating(
        self, connection: Connection, schema: str | None, *, brief: bool = False
    ) -> Iterator[None]:
        """Let one creator of tables run at a time, in a transaction.

        This may commit what the transaction did before.

        Args:
            connection: in a transaction.
            schema: the schema of the tables; None for the connection's.
            brief: give up after ``BRIEF_SECONDS`` on another creator, or on a table in use.

        Raises:
            Locked: another creator held the lock for longer than ``brief`` allows.
        """
        yield

    @contextlib.contextmanager
    def waiting_briefly(self, connection: Connection) -> Iterator[None]:
        """Inside ``creating``: give up soon on a table in use, because others wait behind."""
        yield

    def count_others(self, connection: Connection) -> int | None:
        """How many other sessions are open, where ``alters_alone``; None: this login cannot see."""
        return 0

    def wait_until_unused(self, connection: Connection, table: Table) -> None:
        """Wait for transactions that use a table, if DDL cannot be rolled back.

        A table that the same transaction drops needs no such wait.
        """
