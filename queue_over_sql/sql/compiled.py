"""Statements that are compiled once per engine and run as plain text on the driver."""

from __future__ import annotations

import contextlib
import logging
import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from sqlalchemy import Connection, CursorResult, Dialect
from sqlalchemy.exc import DBAPIError, MultipleResultsFound, NoResultFound
from sqlalchemy.sql import ClauseElement
from sqlalchemy.types import TypeEngine

from queue_over_sql.sql.driver_calls import translated
from queue_over_sql.sql.session_changes import may_skip
from queue_over_sql.values.cached import cached_property

Row = Sequence[Any]
DIRECT: Final = "queue_over_sql_direct"
"""The execution option with the ``DriverCalls`` of a connection."""
_KEEPING: Final = frozenset({"psycopg", "pysqlite", "pymysql"})


class DriverResult:
    """The result of a statement: the part of SQLAlchemy's ``CursorResult`` that operations use.

    It holds all rows, as the driver returned them, without names.
    """

    __slots__ = ("lastrowid", "rowcount", "rows")

    rows: Sequence[Row]
    rowcount: int
    lastrowid: Any
    """The id of the first inserted row, if the driver returns it."""

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def all(self) -> Sequence[Row]:
        return self.rows

    def first(self) -> Row | None:
        return self.rows[0] if self.rows else None

    def one(self) -> Row:
        if not self.rows:
            raise NoResultFound("No row was found when one was required")
        if len(self.rows) > 1:
            raise MultipleResultsFound("Multiple rows were found when exactly one was required")
        return self.rows[0]

    def scalar(self) -> Any:
        return self.rows[0][0] if self.rows else None

    def scalar_one(self) -> Any:
        return self.one()[0]

    def close(self) -> None:
        """Do nothing, because nothing is open."""


class DriverCalls:
    """Runs SQL texts on cursors of one driver connection; errors are SQLAlchemy's, as always."""

    numbered = False
    """Whether it accepts the parameters of ``CompiledStatement.numbered``."""
    within_transactions = False
    """Whether SQLAlchemy must know the transactions in which they run."""
    # The attribute of a cursor that shows whether there are rows.
    _tells_rows = "description"

    def __init__(self, connection: Connection) -> None:
        self.raw: Any = connection.connection.dbapi_connection
        self._dialect = connection.dialect
        self._engine = connection.engine
        self._driver_error = connection.dialect.loaded_dbapi.Error
        # Reused, because a new cursor costs psycopg as much as sending the statement.
        self._keeps_cursors = connection.dialect.driver in _KEEPING
        self._spare: Any = None

    @property
    def followed(self) -> bool:
        """Whether somebody listens to the statements of this engine, or of all engines."""
        # SQLAlchemy notes there whether anybody ever listened, which costs a tenth of the question.
        if not getattr(self._engine, "_has_events", True):
            return False
        dispatch: Any = self._engine.dispatch
        return bool(dispatch.before_cursor_execute or dispatch.after_cursor_execute)

    def execute(self, statement: str, parameters: Any) -> DriverResult:
        """Execute a text with the driver's parameters."""
        # Remove the cursor meanwhile, so that a signal handler uses one of its own.
        cursor, self._spare = self._spare, None
        try:
            if cursor is None:
                cursor = self._cursor()
            cursor.execute(statement, parameters)
            # Inlined, because a call would add a tenth to a small statement's time.
            result = DriverResult()
            result.rows = () if getattr(cursor, self._tells_rows) is None else cursor.fetchall()
            result.rowcount = cursor.rowcount
            result.lastrowid = getattr(cursor, "lastrowid", None)
            if not self._keeps_cursors:
                cursor.close()
        except self._driver_error as error:
            self._give_up(cursor)
            lost = self._dialect.is_disconnect(cast("Any", error), self.raw, None)
            raise translated(
                statement, error, self._driver_error, self._dialect, lost=lost
            ) from error
        except BaseException:
            # Otherwise an interrupted statement would keep its lock for as long as anybody holds
            # the exception.
            self._give_up(cursor)
            raise
        if self._keeps_cursors:
            self._spare = cursor
        return result

    def _cursor(self) -> Any:
        return self.raw.cursor()

    def _give_up(self, cursor: Any) -> None:
        # A cursor without a connection refuses even that.
        with contextlib.suppress(self._driver_error):
            if cursor is not None:
                cursor.close()


class PsycopgCalls(DriverCalls):
    """Uses psycopg's raw cursors, with parameters as the server names them.

    Other cursors parse a text with many parameters again in each call. That took 0.2 ms for the ack
    of 100 messages.
    """

    numbered = True
    # The description makes an object for each column, which takes as long as sending the statement.
    _tells_rows = "rownumber"

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        from psycopg import RawCursor  # noqa: PLC0415 - an extra

        self._raw_cursor = RawCursor

    def _cursor(self) -> Any:
        return self._raw_cursor(self.raw)


def direct_calls(connection: Connection) -> DriverCalls | None:
    """The calls of an autocommit connection that goes direct; None for any other."""
    calls: DriverCalls | None = connection.get_execution_options().get(DIRECT)
    return None if calls is None or calls.within_transactions or calls.followed else calls


def run_text(
    connection: Connection, statement: str, parameters: Any = ()
) -> DriverResult | CursorResult[Any]:
    """Execute a text with the driver's parameters, in this connection's fastest way."""
    calls = direct_calls(connection)
    if calls is None:
        return connection.exec_driver_sql(statement, parameters)
    return calls.execute(statement, parameters)


def go_direct(connection: Connection, *, within_transactions: bool = False) -> None:
    """Send the texts of one of our connections directly to its driver.

    It is in autocommit mode, or SQLAlchemy knows its transactions.

    Listeners to the statements of all engines, such as tracers and echo logs that were active when
    the connection was opened, must see ours, too. Then they go through SQLAlchemy.
    """
    if logging.getLogger("sqlalchemy.engine").isEnabledFor(logging.INFO):
        return
    dialect = connection.dialect
    raw = dialect.driver == "psycopg" and not dialect.is_async
    calls = PsycopgCalls(connection) if raw else DriverCalls(connection)
    calls.within_transactions = within_transactions
    connection.execution_options(**{DIRECT: calls})


_MOST_KEPT = 512
_PYFORMAT = re.compile(r"%%|%\(([^)]+)\)s")


def same_driver(one: Dialect, other: Dialect) -> bool:
    """Whether a statement compiled for one of them also works for the other's driver."""
    return one is other or (type(one) is type(other) and one.paramstyle == other.paramstyle)


class CompiledStatement:
    """The text of a statement for one driver, and how to bind its parameters.

    On a caller's connection with another driver, it is compiled for that one.
    """

    def __init__(self, clause: ClauseElement, dialect: Dialect) -> None:
        self._clause, self._dialect = clause, dialect
        # For the drivers of callers' connections; the last one is probably the next one.
        self._elsewhere: tuple[Dialect, CompiledStatement] | None = None
        compiled: Any = clause.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        self.text: str = compiled.string
        self._defaults: dict[str, Any] = dict(compiled.params)
        self._order: list[str] | None = compiled.positiontup if compiled.positional else None
        self._pick = None if self._order is None else _picker(self._order)
        self._converters = _converters(compiled, dialect)

    def run(
        self, connection: Connection, values: Mapping[str, Any] | None = None
    ) -> DriverResult | CursorResult[Any]:
        """Execute on a connection; ``values`` are the bind parameters by name."""
        calls = connection.get_execution_options().get(DIRECT)
        if calls is None or calls.followed:
            return connection.exec_driver_sql(*self.on(connection.dialect).bound(values))
        if calls.within_transactions and not _has_begun(connection, calls.raw):
            return connection.exec_driver_sql(*self.bound(values))
        try:
            found: DriverResult = calls.execute(
                *(self.numbered(values) if calls.numbered else self.bound(values))
            )
        except DBAPIError as error:
            if error.connection_invalidated and calls.within_transactions:
                connection.invalidate(error)
            raise
        return found

    def on(self, dialect: Dialect) -> CompiledStatement:
        """The same statement for the driver of this dialect."""
        if same_driver(dialect, self._dialect):
            return self
        elsewhere = self._elsewhere
        if elsewhere is None or not same_driver(dialect, elsewhere[0]):
            elsewhere = self._elsewhere = dialect, CompiledStatement(self._clause, dialect)
        return elsewhere[1]

    @property
    def order(self) -> Sequence[str]:
        """The names of the parameters in the order of the text, if they are positional."""
        return self._order or ()

    def run_ordered(self, connection: Connection, values: Sequence[Any]) -> None:
        """Execute with values in the order of the text's parameters.

        Only for drivers with positional parameters.
        """
        if self._converters:
            found = dict(self._converters)
            values = [
                found[name](value) if name in found else value
                for name, value in zip(self.order, values, strict=True)
            ]
        run_text(connection, self.text, tuple(values)).close()

    def bound(self, values: Mapping[str, Any] | None = None) -> tuple[str, Any]:
        """The text and its parameters for a cursor of the driver."""
        merged = {**self._defaults, **values} if values else self._defaults.copy()
        for name, convert in self._converters:
            merged[name] = convert(merged[name])
        return self.text, merged if self._pick is None else self._pick(merged)

    def numbered(self, values: Mapping[str, Any] | None = None) -> tuple[str, Sequence[Any]]:
        """The same with parameters ``$1``, ``$2`` …, for cursors that use the server's own form.

        Only for drivers with parameters such as ``%(name)s``.
        """
        text, pick = self._numbers
        merged = {**self._defaults, **values} if values else self._defaults.copy()
        for name, convert in self._converters:
            merged[name] = convert(merged[name])
        return text, pick(merged)

    @cached_property
    def _numbers(self) -> tuple[str, Callable[[Mapping[str, Any]], Sequence[Any]]]:
        order: dict[str, int] = {}

        def number(found: re.Match[str]) -> str:
            if found[0] == "%%":
                return "%"
            return f"${order.setdefault(found[1], len(order) + 1)}"

        return _PYFORMAT.sub(number, self.text), _picker(tuple(order))


# Begins a transaction if there is none. False if SQLAlchemy must raise an error, or must notify
# listeners to this one connection.
def _has_begun(connection: Connection, raw: Any) -> bool:
    listeners: Any = connection.dispatch
    if listeners.after_cursor_execute or not all(map(may_skip, listeners.before_cursor_execute)):
        return False
    if connection.closed or connection.invalidated:
        return False
    if connection.connection.dbapi_connection is not raw:
        return False
    transaction, nested = connection.get_transaction(), connection.get_nested_transaction()
    if transaction is None:
        transaction = connection.begin()
    return transaction.is_active and (nested is None or nested.is_active)


Builder = Callable[..., "ClauseElement"]


class StatementCache:
    """The compiled statements of one set of tables, by builder and variant.

    Attributes:
        subject: the tables that builders get.
    """

    def __init__(self, subject: Any, dialect: Dialect) -> None:
        self.subject = subject
        self._dialect = dialect
        self._compiled: OrderedDict[Hashable, CompiledStatement] = OrderedDict()

    def get(self, builder: Builder, *variant: Hashable) -> CompiledStatement:
        """The statement of ``builder(subject, *variant)``, compiled at its first use."""
        key = (builder, variant)
        statement = self._compiled.get(key)
        if statement is None:
            # Two threads may both compile it; the results are equal.
            statement = CompiledStatement(builder(self.subject, *variant), self._dialect)
            self._compiled[key] = statement
            if len(self._compiled) > _MOST_KEPT:
                # Only users' conditions can be numerous; those used longest ago are removed.
                with contextlib.suppress(KeyError):
                    self._compiled.popitem(last=False)
        elif len(self._compiled) > _MOST_KEPT // 2:
            with contextlib.suppress(KeyError):
                self._compiled.move_to_end(key)
        return statement

    def forget(self) -> None:
        """Compile each statement anew at its next use."""
        self._compiled.clear()

    def bind_converter(self, kind: TypeEngine[Any]) -> Callable[[Any], Any] | None:
        """The converter from Python values of this type to the driver's; None if none is needed."""
        return kind.dialect_impl(self._dialect).bind_processor(self._dialect)

    def own_converters(self, dialect: Dialect) -> Sequence[Callable[[Any], Any] | None]:
        """Converters from the driver's values of the queue's own columns to Python's, by column."""
        if same_driver(dialect, self._dialect):
            return self._own_converters
        return self._converters_of(dialect)

    @cached_property
    def _own_converters(self) -> Sequence[Callable[[Any], Any] | None]:
        return self._converters_of(self._dialect)

    def _converters_of(self, dialect: Dialect) -> Sequence[Callable[[Any], Any] | None]:
        kinds = [self.subject.live.c[name].type for name in self.subject.own_columns]
        code, exact = self.subject.expressions.result_code, self.subject.expressions.exact_converter
        return [
            exact(kind, kind.dialect_impl(dialect).result_processor(dialect, code(kind)))
            for kind in kinds
        ]


def _picker(order: Sequence[str]) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    """A function that picks the values of these names, in order; written in C if possible."""
    if len(order) > 1:
        return operator.itemgetter(*order)
    return lambda values: tuple([values[name] for name in order])


def _converters(compiled: Any, dialect: Dialect) -> list[tuple[str, Callable[[Any], Any]]]:
    found: list[tuple[str, Callable[[Any], Any]]] = []
    # A property that makes a new dictionary at each access.
    names = list(compiled.params)
    known = set(names)
    for bind, name in compiled.bind_names.items():
        convert = bind.type.dialect_impl(dialect).bind_processor(dialect)
        if convert is None:
            continue
        if name in known:
            found.append((name, convert))
        else:
            # The parameter of an IN was expanded to one for each value.
            expanded = re.compile(rf"{re.escape(name)}_\d+")
            found += [(each, convert) for each in names if expanded.fullmatch(each)]
    return found
