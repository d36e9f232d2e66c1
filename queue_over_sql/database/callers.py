"""The caller's own connection or session, for operations in its transaction."""

from __future__ import annotations

import contextlib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Dialect, Table
from sqlalchemy.exc import (
    DBAPIError,
    InvalidRequestError,
    NoSuchModuleError,
    NoSuchTableError,
    PendingRollbackError,
    SQLAlchemyError,
    UnboundExecutionError,
)

from queue_over_sql.database.driver_errors import DriverErrors
from queue_over_sql.database.handlers_connections import HandlersConnections
from queue_over_sql.database.opened_engine import OpenedEngine
from queue_over_sql.database.raw_connections import (
    CallersPool,
    RawConnection,
    RawDriver,
    dialect_for,
    dialect_of_driver,
    drivers,
    in_sqlalchemy,
    raw_connection,
)
from queue_over_sql.database.urls import shown_url
from queue_over_sql.errors import DatabaseUnavailable, QueueError, WrongDatabase
from queue_over_sql.sql.compiled import DIRECT, go_direct
from queue_over_sql.sql.dialect import QueueDialect
from queue_over_sql.sql.session_changes import changed_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Table


_MOVED = (
    "connection= is not in the queue's database or schema any more: a statement such as USE, SET "
    "SCHEMA or SET search_path moved its session, or the queue's table was dropped. Move it back "
    "before you use the queue, or name the other tables in full instead."
)
_LEFT = (
    "The server of connection= is no longer the queue's: {where} leads to another one by now, as "
    "after a switchover. Nothing was done. Open a new connection; engine.dispose() replaces those "
    "of a pool."
)
# Of how many queues it is remembered which table of which database they are.
_MOST_ANSWERED = 1000


def _is_in(known: Any, remembered: weakref.WeakSet[Any]) -> bool:
    # An object that cannot have weak references is not in the set; ``in`` raises TypeError.
    try:
        return known in remembered
    except TypeError:
        return False


def _answers(connection: Connection, question: str) -> Sequence[Any]:
    return connection.exec_driver_sql(question).one()


class CallersConnections:
    """Connections of callers, in whose transactions this service works.

    Args:
        opened: the engine of the service.
        dialect: gives the dialect of its server.
        run: runs an operation on a connection of the service.
        errors: says drivers' errors in our words.
        handlers: the connections that handlers have, which they may pass as their own.
        breaks: counts how often connections of the service broke or were left.
        renew: lets the service open new connections, because its address may lead elsewhere by now.
    """

    def __init__(
        self,
        opened: OpenedEngine,
        dialect: Callable[[], QueueDialect],
        run: Callable[[Callable[[Connection], Any]], Any],
        errors: DriverErrors,
        handlers: HandlersConnections,
        *,
        breaks: Callable[[], int],
        renew: Callable[[], None],
    ) -> None:
        self.engine = opened.engine
        self.errors = errors
        self._dialect_of = opened.dialect_of
        self._dialect = dialect
        self._run = run
        self._breaks = breaks
        self._renew = renew
        self._handlers = handlers
        self._where = shown_url(opened.engine.url)
        # Known pools, and callers' connections that have no pool.
        self._same_database: weakref.WeakSet[Any] = weakref.WeakSet()
        # Which database this service is in, by the question, as of how many breaks; and where it
        # was before.
        self._answered: dict[str, tuple[int, Any]] = {}
        self._before: dict[str, Any] = {}
        self._dialects: dict[RawDriver, Dialect] = {}

    def connection(self, raw: RawConnection) -> contextlib.AbstractContextManager[Connection]:
        """A caller's driver connection as an SQLAlchemy ``Connection`` in the caller's transaction.

        Raises:
            WrongDatabase: it belongs to another kind of database.
            ResourceClosedError: it is closed.
        """
        driver = raw.driver
        dialect = self._dialects.get(driver)
        if dialect is None:
            # Our dialect has its settings only after it has connected.
            _ = self._dialect()
            try:
                dialect = self._dialects[driver] = dialect_for(raw, self.engine.dialect)
            except NoSuchModuleError as error:
                raise self._wrong(self._foreign(raw)) from error
        return in_sqlalchemy(raw, dialect)

    @contextlib.contextmanager
    def visiting(self, caller: Connection, table: Table) -> Iterator[None]:
        """Use a caller's connection, or refuse it before anything is done on it.

        Each pool is checked once: both sides are asked which database they are in. Where a session
        can move to another database or schema, each use is checked.

        Raises:
            WrongDatabase: it is connected to another database.
            UnsupportedByEngine: it prepares statements, and its pooler cannot keep any.
            ValueError: its session would store values changed.
        """
        # Engines with other options share the pool.
        pool = caller.engine.pool
        settings: Sequence[Any] | None = None
        if pool is not self.engine.pool or changed_until(caller) is not None:
            known = pool.given if isinstance(pool, CallersPool) else pool
            if self._dialect().callers.moves(table) or not _is_in(known, self._same_database):
                with self.errors.translated(callers=True):
                    settings = self._settings_in_same_database(caller, table, known)
        try:
            with self._dialect().callers.respecting(caller, settings):
                yield
        except DBAPIError as error:
            # What is sent directly to the driver tells no listener.
            self._handlers.note_undoing(caller, error)
            raise

    def _settings_in_same_database(
        self, caller: Connection, table: Table, known: Any
    ) -> Sequence[Any]:
        is_known = caller.engine.pool is self.engine.pool or _is_in(known, self._same_database)
        if not is_known:
            if not self._dialect_of(caller).is_engine_of(self._dialect()):
                raise self._wrong(self._named(caller))
            self._dialect().callers.check(caller)
        question = self._dialect().callers.database_identity(table)
        settings: Sequence[Any] = ()
        if question is not None:
            theirs, *settings = _answers(caller, question)
            if not self._is_here(theirs, question):
                if theirs and theirs == self._before.get(question):
                    raise DatabaseUnavailable(_LEFT.format(where=self._where))
                raise WrongDatabase(_MOVED) if is_known else self._wrong(self._named(caller))
        # Connections of sqlite3 cannot be remembered, but asking them needs no network.
        with contextlib.suppress(TypeError):
            self._same_database.add(known)
        return settings

    def hasten(self, caller: Connection) -> None:
        """Send our statements on a caller's connection of this engine directly to the driver."""
        ours = caller.engine.pool is self.engine.pool
        if ours and DIRECT not in caller.get_execution_options():
            go_direct(caller, within_transactions=True)

    def _named(self, caller: Connection) -> str:
        """A caller's database, for messages to people; a connection of a driver is asked."""
        url = caller.engine.url
        if not url.database:
            # Only a help: whatever stands in its way is not what went wrong.
            with contextlib.suppress(QueueError, SQLAlchemyError):
                query = self._dialect_of(caller).callers.name_query
                url = url if query is None else url.set(database=_answers(caller, query)[0])
        return shown_url(url)

    def _foreign(self, raw: RawConnection) -> str:
        with (
            contextlib.suppress(SQLAlchemyError),
            in_sqlalchemy(raw, dialect_of_driver(raw)) as caller,
        ):
            return self._named(caller)
        return f"a database of {raw.driver.name}"

    def _wrong(self, theirs: str) -> WrongDatabase:
        return WrongDatabase(
            f"connection= belongs to {theirs}, but the queue is in {self._where}: one transaction "
            "cannot cover both. Pass a connection to the queue's database, or leave out "
            "connection=."
        )

    def _is_here(self, theirs: Any, question: str) -> bool:
        # An in-memory database has no name, and belongs to one connection.
        if not theirs:
            return False
        if (self._breaks(), theirs) == self._answered.get(question):
            return True
        if theirs != self._ask(question):
            # Our sessions stay open, and the address may lead to another server by now.
            self._renew()
            return bool(theirs == self._ask(question))
        return True

    def _ask(self, question: str) -> Any:
        if len(self._answered) >= _MOST_ANSWERED:
            self._answered.clear()
            self._before.clear()
        breaks = self._breaks()
        answer = self._run(lambda ours: _answers(ours, question)[0])
        _, known = self._answered.get(question, (breaks, answer))
        if known != answer:
            self._before[question] = known
        self._answered[question] = breaks, answer
        return answer


@contextlib.contextmanager
def callers(
    connection: Any, connections: CallersConnections, table: Table, *, atomic: bool
) -> Iterator[Connection]:
    """The caller's ``connection=`` as a ``Connection``, to work on a table in its transaction.

    Raises:
        TypeError: it is not a connection or session.
        ValueError: it is closed, its transaction has ended, or it is in AUTOCOMMIT mode though the
            operations need a transaction.
        WrongDatabase: it belongs to another database.
        DatabaseUnavailable: its transaction has already failed.
    """
    # A worker passes its own connection; then the engine is ours, and the caller repeats nothing.
    own = getattr(connection, "engine", None) is connections.engine
    try:
        with (
            connections.errors.translated(callers=not own),
            _as_connection(connection, connections) as target,
        ):
            if atomic and commits_itself(target):
                msg = (
                    "connection= is in AUTOCOMMIT mode, so this operation could be done in part: "
                    "pass one with a transaction, or leave out connection="
                )
                raise ValueError(msg)
            with connections.visiting(target, table):
                connections.hasten(target)
                yield target
    except NoSuchTableError:
        raise
    except PendingRollbackError as error:
        msg = "The transaction of connection= has already failed. Roll it back and repeat it."
        raise DatabaseUnavailable(msg) from error
    except InvalidRequestError as error:
        reason = str(error).partition("\n")[0].partition(" (Background on")[0].rstrip(".")
        msg = f"connection= can no longer be used: {reason}. Pass an open one"
        raise ValueError(msg) from error


def _as_connection(
    given: Any, connections: CallersConnections
) -> contextlib.AbstractContextManager[Connection]:
    if isinstance(given, Connection):
        return contextlib.nullcontext(given)
    # A Session can exist only if the ORM is loaded. Importing it here would double our import time.
    orm = sys.modules.get("sqlalchemy.orm")
    if orm is not None and isinstance(given, orm.Session | orm.scoped_session):
        try:
            return contextlib.nullcontext(given.connection())
        except UnboundExecutionError as error:
            msg = (
                "connection= is a Session that has a database for each class (binds=), or none, so "
                "it does not say in whose transaction to work. Pass an open one: "
                "session.connection(bind_arguments={'mapper': YourClass})"
            )
            raise ValueError(msg) from error
    raw = raw_connection(given)
    on_loop = connections.engine.dialect.is_async
    if raw is not None and raw.driver.is_async == on_loop:
        return connections.connection(raw)
    fit = (
        "an AsyncConnection or AsyncSession of SQLAlchemy"
        if on_loop
        else "a Connection or Session of SQLAlchemy, Django's connection"
    )
    msg = (
        f"connection must have your transaction: {fit}, or one of "
        f"{', '.join(drivers(on_loop=on_loop))}; it is "
        f"{type(given).__module__}.{type(given).__qualname__}"
    )
    if raw is not None and on_loop:
        msg += ", which would hold up the event loop: use QueueService with it"
    elif not on_loop and (
        raw is not None or type(given).__module__.startswith("sqlalchemy.ext.asyncio")
    ):
        msg += ": use AsyncQueueService of queue_over_sql.aio with it"
    elif inspect.isawaitable(given):
        msg += ": await it first"
    elif hasattr(given, "begin"):
        # An engine or a maker of sessions.
        msg += f": pass what `{'async with' if on_loop else 'with'} ….begin() as …:` gives"
    raise TypeError(msg)


def commits_itself(connection: Connection) -> bool:
    """Whether each statement of a caller's connection is a transaction of its own."""
    pool = connection.engine.pool
    if isinstance(pool, CallersPool):
        return pool.commits
    options, dialect = connection.get_execution_options(), connection.engine.dialect
    by_default = getattr(dialect, "_on_connect_isolation_level", None)
    return bool(options.get("isolation_level", by_default) == "AUTOCOMMIT")
