"""Long-held connections whose compiled statements go straight to the driver.

SQLAlchemy does much for each statement that ours, compiled before and of plain values, do not
need: a context, a result with named rows, and hooks. It costs as much time as the statement.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy.exc import DBAPIError, MultipleResultsFound, NoResultFound

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult

    from queue_over_sql.dialects.compiled import CompiledStatement

Row = Sequence[Any]
DIRECT: Final = "queue_over_sql_direct"
"""The execution option that has the ``DriverCalls`` of a connection."""
_KEEPING: Final = frozenset({"psycopg", "pysqlite", "pymysql"})


class DriverResult:
    """What a statement answered: the part of SQLAlchemy's ``CursorResult`` that acts use.

    Rows are the driver's own, without names, and all of them are here.

    Attributes:
        rowcount: how many rows were changed.
        lastrowid: the id of the first row that was inserted, where the driver tells.
    """

    __slots__ = ("_rows", "lastrowid", "rowcount")

    def __init__(self, cursor: Any, *, rows: bool) -> None:
        self._rows: Sequence[Row] = cursor.fetchall() if rows else ()
        self.rowcount: int = cursor.rowcount
        self.lastrowid: Any = getattr(cursor, "lastrowid", None)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def all(self) -> Sequence[Row]:
        """All rows."""
        return self._rows

    def first(self) -> Row | None:
        """The first row, or None where there is none."""
        return self._rows[0] if self._rows else None

    def one(self) -> Row:
        """The only row.

        Raises:
            NoResultFound, MultipleResultsFound: there is not just one.
        """
        if not self._rows:
            raise NoResultFound("No row was found when one was required")
        if len(self._rows) > 1:
            raise MultipleResultsFound("Multiple rows were found when exactly one was required")
        return self._rows[0]

    def scalar(self) -> Any:
        """The first value of the first row, or None where there is none."""
        return self._rows[0][0] if self._rows else None

    def scalar_one(self) -> Any:
        """The first value of the only row.

        Raises:
            NoResultFound, MultipleResultsFound: there is not just one.
        """
        return self.one()[0]

    def close(self) -> None:
        """Nothing is open."""


class DriverCalls:
    """Runs texts on cursors of one driver connection; errors are SQLAlchemy's, as always."""

    def __init__(self, connection: Connection) -> None:
        self._raw: Any = connection.connection.dbapi_connection
        self._dialect = connection.dialect
        self._dispatch: Any = connection.engine.dispatch
        self._driver_error = connection.dialect.loaded_dbapi.Error
        # A new one for each statement costs psycopg as much as the statement's own dispatch.
        self._keeps_cursors = connection.dialect.driver in _KEEPING
        self._spare: Any = None

    @property
    def followed(self) -> bool:
        """Whether somebody listens to the statements of this engine, or of all engines."""
        dispatch = self._dispatch
        return bool(dispatch.before_cursor_execute or dispatch.after_cursor_execute)

    def run(self, statement: CompiledStatement, values: Mapping[str, Any] | None) -> DriverResult:
        """Execute a compiled statement with these values of its parameters."""
        return self.execute(*statement.bound(values))

    def execute(self, statement: str, parameters: Any) -> DriverResult:
        """Execute a text as the driver takes it."""
        # Taken away meanwhile: what runs in between, in a handler of a signal, has one of its own.
        cursor, self._spare = self._spare, None
        try:
            if cursor is None:
                cursor = self._cursor()
            cursor.execute(statement, parameters)
            result = DriverResult(cursor, rows=self._has_rows(cursor))
            if not self._keeps_cursors:
                cursor.close()
        except self._driver_error as error:
            self._give_up(cursor)
            raise self._translated(error, statement) from error
        except BaseException:
            # Else a statement whose caller was told to stop would keep its lock for as long as
            # the exception is known to anybody.
            self._give_up(cursor)
            raise
        if self._keeps_cursors:
            self._spare = cursor
        return result

    def _cursor(self) -> Any:
        return self._raw.cursor()

    def _has_rows(self, cursor: Any) -> bool:
        return cursor.description is not None

    def _give_up(self, cursor: Any) -> None:
        # One whose connection is gone refuses even that.
        with contextlib.suppress(self._driver_error):
            if cursor is not None:
                cursor.close()

    def _translated(self, error: Exception, statement: str) -> BaseException:
        return DBAPIError.instance(
            statement,
            None,
            error,
            self._driver_error,
            connection_invalidated=self._dialect.is_disconnect(cast("Any", error), self._raw, None),
            dialect=self._dialect,
        )


class PsycopgCalls(DriverCalls):
    """The same through psycopg's raw cursors, which take the parameters as the server names them.

    The others take a text with many parameters apart anew for each call: for the ack of 100
    messages that took 0.2 ms.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        from psycopg import RawCursor  # noqa: PLC0415 - an extra

        self._raw_cursor = RawCursor

    def run(self, statement: CompiledStatement, values: Mapping[str, Any] | None) -> DriverResult:
        """Execute a compiled statement with these values of its parameters."""
        return self.execute(*statement.numbered(values))

    def _cursor(self) -> Any:
        return self._raw_cursor(self._raw)

    def _has_rows(self, cursor: Any) -> bool:
        # The description makes an object for each column, which takes as long as the statement's
        # own dispatch.
        return cursor.rownumber is not None


def direct_calls(connection: Connection) -> DriverCalls | None:
    """The calls of a connection that goes direct; None of any other."""
    calls: DriverCalls | None = connection.get_execution_options().get(DIRECT)
    return None if calls is None or calls.followed else calls


def run_text(
    connection: Connection, statement: str, parameters: Any = ()
) -> DriverResult | CursorResult[Any]:
    """Execute a text as the driver takes it, by the shortest way that this connection has."""
    calls = direct_calls(connection)
    if calls is None:
        return connection.exec_driver_sql(statement, parameters)
    return calls.execute(statement, parameters)


def go_direct(connection: Connection) -> None:
    """Let the texts of a connection that commits by itself go straight to its driver.

    Whoever follows the statements of all engines, as tracers do, or has had them logged when the
    connection was opened, sees ours, too: then they go SQLAlchemy's way.
    """
    if logging.getLogger("sqlalchemy.engine").isEnabledFor(logging.INFO):
        return
    dialect = connection.dialect
    raw = dialect.driver == "psycopg" and not dialect.is_async
    calls = PsycopgCalls(connection) if raw else DriverCalls(connection)
    connection.execution_options(**{DIRECT: calls})
