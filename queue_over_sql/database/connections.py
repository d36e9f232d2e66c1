"""Connections of a service: sessions, retries, and the translation of drivers' errors.

A checkout from a pool for each operation would cost more than a claim does. So acts run on
autocommit connections that stay open (*sessions*, one per thread). A session is checked after it
was idle, and dropped if it broke.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import math
import os
import random
import time
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from queue_over_sql.database.forks import note_connection
from queue_over_sql.database.opened_engine import OpenedEngine
from queue_over_sql.database.raw_connections import (
    CallersPool,
    dialect_for,
    dialect_of_driver,
    in_sqlalchemy,
)
from queue_over_sql.database.runtime import THREADS, Runtime
from queue_over_sql.database.sessions import (
    GIVES_WAY,
    KeptConnection,
    Session,
    Sessions,
    SharedSession,
    committing,
    give_back,
)
from queue_over_sql.database.urls import shown_reason, shown_url
from queue_over_sql.database.watchdog import Watchdog
from queue_over_sql.errors import (
    DatabaseRefused,
    DatabaseUnavailable,
    Locked,
    PayloadInvalid,
    QueueError,
    ServiceClosed,
    UnsupportedByEngine,
    WrongDatabase,
)
from queue_over_sql.sql.compiled import DIRECT, go_direct
from queue_over_sql.sql.dialect import BRIEF_SECONDS, QueueDialect
from queue_over_sql.sql.driver_calls import driver_errors, interruption_behind
from queue_over_sql.sql.error_kinds import ErrorKind
from queue_over_sql.sql.session_changes import ParentAlone, SessionChanges, changed_until
from queue_over_sql.values.cached import cached_property

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from sqlalchemy import Connection, Dialect, Engine, Table
    from sqlalchemy.engine.interfaces import ExceptionContext

    from queue_over_sql.database.raw_connections import RawConnection, RawDriver
    from queue_over_sql.errors import NotPermitted


_log = logging.getLogger(__name__)
T = TypeVar("T")

# How long a stop waits for acts of other threads, so that it can release what they claimed.
_DRAIN_SECONDS = 5.0
_MOVED = (
    "connection= is not in the queue's database or schema any more: a statement such as USE, SET "
    "SCHEMA or SET search_path moved its session, or the queue's table was dropped. Move it back "
    "before you use the queue, or name the other tables in full instead."
)
# How long conflicts between transactions are retried before they become an error.
_RETRY_SECONDS = 30.0
# A deadlock has ended the caller's transaction, and only the caller can repeat all of it.
_REPEAT = " Roll your transaction back and repeat it."
_BROKE = "It is unknown whether the last change was committed."
_CALLERS_BROKE = (
    "Your transaction is lost: repeat it. If the server closes connections that wait in your pool, "
    "as at its restart, create your engine with pool_pre_ping=True."
)
# Of how many queues it is remembered which table of which database they are.
_MOST_ANSWERED = 1000
# How often an act that is safe to repeat is retried on a new connection.
_RECONNECTS = 2
# Where the pool keeps when a connection was made, on the monotonic clock.
_MADE_AT = "queue_over_sql_made_at"
# How long new connections count as new after a server was found to only read.
_SWITCH_SECONDS = 1.0


_CALLERS_READS = (
    "Nothing was changed. If your transaction is READ ONLY, begin one that may write. If its "
    "server became a standby, open a new connection"
)
_STANDBY = (
    "It is a standby, or an administrator made it read-only. Nothing was changed. The next call "
    "opens a new connection; check which server the address leads to."
)
_ENDED = (
    "The handler ended its transaction. Leave commit and rollback to the worker; undo a part with "
    "connection.begin_nested()."
)


_UNDONE = (
    "The database undid the handler's whole transaction: {reason}. The handler caught this error "
    "and went on, so it must run again. Let such an error end the handler."
)


# The time limit in seconds for statements that only read, in this context.
_limit: contextvars.ContextVar[float | None] = contextvars.ContextVar("limit", default=None)

# The errors of drivers for numbers and texts that they cannot send.
_UNSENDABLE = (OverflowError, UnicodeEncodeError)


def _weakly(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """Call a method as long as its object is there; an engine keeps its listeners."""
    known = weakref.WeakMethod(method)

    def listener(context: Any) -> None:
        found = known()
        if found is not None:
            found(context)

    return listener


def _not_sent(error: Exception) -> PayloadInvalid:
    return PayloadInvalid(f"The database driver cannot send a value: {error}.")


def _is_in(known: Any, remembered: weakref.WeakSet[Any]) -> bool:
    # An object that cannot have weak references is not in the set; ``in`` raises TypeError.
    try:
        return known in remembered
    except TypeError:
        return False


def _answers(connection: Connection, question: str) -> Sequence[Any]:
    return connection.exec_driver_sql(question).one()


class Connections:
    """All connections of a service to its database.

    Args:
        opened: the engine of the service.
        runtime: how the service waits.
        silence: seconds without any answer after which nobody waits any longer.
        forbidden: makes the error for a missing right, from the server's message and the refused
            statement.
    """

    def __init__(
        self,
        opened: OpenedEngine,
        runtime: Runtime = THREADS,
        *,
        silence: float = 30.0,
        forbidden: Callable[[str, str], NotPermitted] | None = None,
    ) -> None:
        self.runtime = runtime
        self._forbidden = forbidden
        self._opened = opened
        self._write_lock = self._opened.write_lock
        self.forks = self._opened.forks
        self.forks.follow(weakref.WeakMethod(self._close_for_fork))
        self._keepers: weakref.WeakSet[KeptConnection] = weakref.WeakSet()
        self._dialect: QueueDialect | None = None
        self._lock = runtime.lock()
        self.watchdog = Watchdog(runtime, silence, weakref.WeakMethod(self._ask))
        if not self._opened.borrowed:
            self.watchdog.follow(self._opened.engine)
        # Guards the connections that are not sessions.
        self._guard: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        self._once = self._run_once
        if self._opened.shared:
            shared = SharedSession(self._new_session, runtime.lock)
            self._sessions: Sessions = shared
            self._guard = shared.using
            # The only connection of a database must not be broken off, or the database would be
            # lost.
            self._once = self._run_undisturbed
        else:
            self._sessions = runtime.sessions(self._new_session, self._forked)
        if self._opened.borrowed:
            self._guard = self._lock
        # In case the service is forgotten without stop().
        weakref.finalize(self, self.watchdog.abandon).atexit = False
        self._closed = False
        self._left_to: Hashable | None = None
        # Known pools, and callers' connections that have no pool.
        self._same_database: weakref.WeakSet[Any] = weakref.WeakSet()
        # Which database this service is in, by the question.
        self._answered: dict[str, Any] = {}
        self._dialects: dict[RawDriver, Dialect] = {}
        self._pid = os.getpid()
        self._breaks = 0
        # Why nothing works any more, once a file was removed or replaced.
        self._misplaced: str | None = None
        self.switched_at = float("-inf")
        """When all connections were last renewed because a server only reads; monotonic."""
        # Connections that are in a transaction of ``run`` now.
        self._begun: set[Connection] = set()
        # Connections that a handler has now, and how it tried to end their transactions.
        self._with_handlers: dict[Connection, str] = {}
        # Those whose transaction the database undid meanwhile, and why.
        self._undone: dict[Connection, DBAPIError] = {}
        listener = _weakly(self._note_failure)
        event.listen(self.engine, "handle_error", listener)
        self._forget_failures = functools.partial(
            event.remove, self.engine, "handle_error", listener
        )

    @property
    def engine(self) -> Engine:
        """The engine that opens the connections."""
        return self._opened.engine

    @property
    def background(self) -> bool:
        """Whether other threads may use this database while the caller does."""
        return not self._opened.borrowed

    @property
    def has_others(self) -> bool:
        """Whether other connections, and so other processes, can reach this database."""
        return not self._opened.shared

    @property
    def where(self) -> str:
        """The database, for messages to people, without its password."""
        return shown_url(self.engine.url)

    @property
    def dialect(self) -> QueueDialect:
        """The differences of this server. The first use connects, and may refuse the server."""
        if self._dialect is None:
            # In this order: what waits for the end of a fork must not hold a lock, which the child
            # would inherit.
            with self.forks.using(), self._lock:
                if self._dialect is None:
                    self._dialect = self._choose()
        return self._dialect

    @cached_property
    def maintenance(self) -> Sequence[Callable[[], None]]:
        """The background jobs of this engine, one run per interval of the reaper."""
        jobs = list(self.dialect.maintenance(self.run, self.where))
        if self.dialect.has_files and not self._opened.shared:
            # An act that must be durable also finds out whether its files are in place.
            jobs.insert(0, lambda: self.run(lambda _: None, durable=True))
        return jobs

    def _choose(self) -> QueueDialect:
        try:
            with self._connect() as connection:
                dialect = self._opened.dialect_of(connection)
                dialect.notice_pooler(connection)
        except DBAPIError as error:
            raise self._unavailable(error) from error
        return dialect

    def run(
        self,
        act: Callable[[Connection], T],
        *,
        atomic: bool = False,
        durable: bool = False,
        repeat: bool = True,
        counts: bool = False,
        creates: bool = False,
        refused: Callable[[DatabaseRefused], None] | None = None,
    ) -> T:
        """Run an act on a connection that only this caller uses.

        Args:
            act: gets the connection; it runs again after a deadlock, so it must have no other
                effects.
            atomic: run it inside one transaction; otherwise each statement commits by itself.
            durable: whether the commit must survive a power failure (if the engine has a choice).
            repeat: whether it is safe to run again if the connection broke and it is unknown
                whether the transaction was committed.
            counts: its result says whether, or how often, it found something to change. If a
                repetition finds nothing, the first run may have changed it; then its error is
                raised.
            creates: it creates tables, outside of any transaction of the caller.
            refused: called if the database refuses a statement; it may raise a better error.

        Raises:
            DatabaseUnavailable: the database cannot be reached, stayed locked, or cancelled it.
            Locked: it stayed locked, and the context gives way.
            DatabaseRefused: it answered with another error.
            ServiceClosed: the service was stopped.
        """
        patience = self.dialect.creation_seconds if creates else _RETRY_SECONDS
        deadline = time.monotonic() + (BRIEF_SECONDS if GIVES_WAY.get() else patience)
        reconnects = {
            ErrorKind.DISCONNECT: _RECONNECTS if repeat else 0,
            # What may only read has changed nothing.
            ErrorKind.READ_ONLY: _RECONNECTS if _limit.get() is None else 0,
        }
        switched = {kind for kind in (ErrorKind.READ_ONLY,) if reconnects[kind]}
        tries = 0
        unknown: DBAPIError | None = None
        while True:
            try:
                run = self._alone if tries else self._once
                result = run(act, atomic=atomic, durable=durable)
                if unknown is None or result:
                    return result
                kind = ErrorKind.DISCONNECT
                raise self._told(unknown, kind, refused, creates=creates) from unknown
            except DBAPIError as error:
                kind = self.dialect.classify(error)
                hopeless = self.watchdog.gave_up
                if kind is ErrorKind.TRANSIENT and time.monotonic() < deadline and not hopeless:
                    tries += 1
                elif not hopeless and (
                    reconnects.get(kind, 0) > 0 or self._writes_now(kind, switched)
                ):
                    reconnects[kind] -= 1
                    is_unknown = counts and kind is ErrorKind.DISCONNECT
                    unknown = error if is_unknown else unknown
                    self.runtime.sleep(0.05)
                else:
                    raise self._told(error, kind, refused, creates=creates) from error
            except PoolTimeout as error:
                raise self._unavailable(error) from error
            except StatementError as error:
                # An exception of the caller's own, such as a timeout that a signal raised.
                raise error if error.orig is None else error.orig from error
            except _UNSENDABLE as error:
                raise _not_sent(error) from error
            if tries == 1 and self._write_lock.wakes:
                continue
            # Jitter keeps writers that collided from colliding again.
            self.runtime.sleep(random.uniform(0.0001, 0.001 * min(tries + 1, 10)))  # noqa: S311

    def _writes_now(self, kind: ErrorKind, switched: set[ErrorKind]) -> bool:
        # Asked once an act.
        if kind not in switched:
            return False
        switched.clear()
        return self.writes_again()

    def _alone(self, act: Callable[[Connection], T], *, atomic: bool, durable: bool) -> T:
        with self._write_lock.one_act():
            return self._once(act, atomic=atomic, durable=durable)

    @staticmethod
    @contextlib.contextmanager
    def giving_way() -> Iterator[None]:
        """Let no act of this context wait for the locks of others for longer than a second.

        Then ``run`` raises ``Locked``.
        """
        before = GIVES_WAY.set(True)
        try:
            yield
        finally:
            GIVES_WAY.reset(before)

    @staticmethod
    @contextlib.contextmanager
    def limited(seconds: float) -> Iterator[None]:
        """Limit each non-atomic act of this context to so many seconds and to reading.

        After that ``run`` raises ``DatabaseUnavailable``, caused by a ``CANCELLED`` error.
        """
        before = _limit.set(seconds)
        try:
            yield
        finally:
            _limit.reset(before)

    def is_begun(self, connection: object) -> bool:
        """Whether this is the connection of an atomic act of ``run`` that has not ended."""
        return connection in self._begun

    @contextlib.contextmanager
    def transaction(self, kept: KeptConnection | None = None) -> Iterator[Connection]:
        """A connection with a transaction for a handler: commits at the end, or rolls back.

        The first statement begins the transaction, so a handler that works before it writes holds
        no lock meanwhile. ``kept`` keeps the connection for the caller's next transaction.
        """
        self._check_open()
        with self.forks.using(), self._guard, self.watchdog.waiting():
            connection = self._connect_for_handler() if kept is None else kept.take()
            self._write_lock.register(connection)
            try:
                with committing(connection):
                    yield connection
            except BaseException as error:
                if self.kind_behind(error) is ErrorKind.READ_ONLY:
                    self._leave_server()
                raise
            finally:
                self._write_lock.release(connection)
            try:
                self._check_files(connection)
            finally:
                if kept is None:
                    give_back(connection)
                else:
                    kept.leave(connection)

    def keeping(self) -> KeptConnection | None:
        """A keeper of one caller's connection between transactions; the caller must close it.

        None if several callers share the only connection.
        """
        if self._opened.shared or self._opened.borrowed:
            return None
        keeper = KeptConnection(self._connect_for_handler, lambda: self._breaks)
        self._keepers.add(keeper)
        return keeper

    @contextlib.contextmanager
    def handlers_connection(self, connection: Connection) -> Iterator[None]:
        """Let a handler use a connection of ``transaction()``, but not end the transaction.

        Raises:
            QueueError: it tried to commit, or it rolled back or closed the connection and went on.
            DatabaseUnavailable: the database undid the transaction, and it went on.
        """
        self._with_handlers[connection] = ""
        try:
            yield
        except Exception as error:
            # After a refused commit only the end of the connection rolls back.
            if self._with_handlers[connection] == "commit" and str(error) != _ENDED:
                raise QueueError(_ENDED) from error
            raise
        else:
            undone = self._undone.get(connection)
            if undone is not None:
                reason = str(undone.orig).strip()
                raise DatabaseUnavailable(_UNDONE.format(reason=reason)) from undone
            if self._with_handlers[connection] or connection.closed:
                raise QueueError(_ENDED)
        finally:
            self._undone.pop(connection, None)
            del self._with_handlers[connection]

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for a long read; it begins no transaction by itself and locks nothing."""
        self._check_open()
        with (
            self.forks.using(),
            self._guard,
            self.watchdog.waiting(),
            # Around the connection, whose return to the pool may fail, too.
            self.translated(),
            self._connect() as connection,
        ):
            self._set_options(connection)
            yield connection

    def apart(self) -> Session:
        """An autocommit session for this caller alone, for a long wait.

        The caller calls its ``drop()``, because its settings must not return to the pool. It notes
        its use in ``forks``, and ends it as soon as ``forks.forking``.
        """
        self._check_open()
        return self._new_session(False)  # noqa: FBT003 - what waits does not write

    def reach(self, connection: Connection) -> None:
        """Make sure that a connection of ``transaction()`` is open, without beginning one."""
        with self.translated():
            _ = connection.connection.dbapi_connection

    def break_off(self, connection: Connection) -> None:
        """End a transaction of ``transaction()`` from another thread, if the engine can.

        Its user then gets errors, and must invalidate the connection. A database's only connection
        is left alone, because the others need it.
        """
        if self._opened.shared or self._opened.borrowed:
            return
        # Its user may have left it in any state.
        with contextlib.suppress(Exception):
            self.dialect.break_off(connection)
        self._write_lock.release(connection)

    def callers_connection(
        self, raw: RawConnection
    ) -> contextlib.AbstractContextManager[Connection]:
        """A caller's driver connection as an SQLAlchemy ``Connection`` in the caller's transaction.

        Raises:
            WrongDatabase: it belongs to another kind of database.
            ResourceClosedError: it is closed.
        """
        driver = raw.driver
        dialect = self._dialects.get(driver)
        if dialect is None:
            # Our dialect has its settings only after it has connected.
            _ = self.dialect
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
            if self.dialect.moves(table) or not _is_in(known, self._same_database):
                with self.translated(callers=True):
                    settings = self._settings_in_same_database(caller, table, known)
        try:
            with self.dialect.respecting(caller, settings):
                yield
        except DBAPIError as error:
            # What is sent directly to the driver tells no listener.
            self._note_undoing(caller, error)
            raise

    def _settings_in_same_database(
        self, caller: Connection, table: Table, known: Any
    ) -> Sequence[Any]:
        is_known = caller.engine.pool is self.engine.pool or _is_in(known, self._same_database)
        if not is_known:
            if type(self._opened.dialect_of(caller)) is not type(self.dialect):
                raise self._wrong(self._named(caller))
            self.dialect.check_caller(caller)
        question = self.dialect.database_identity(table)
        settings: Sequence[Any] = ()
        if question is not None:
            theirs, *settings = _answers(caller, question)
            if not self._is_here(theirs, question):
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
                query = self._opened.dialect_of(caller).name_query
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
            f"connection= belongs to {theirs}, but the queue is in {self.where}: one transaction "
            "cannot cover both. Pass a connection to the queue's database, or leave out "
            "connection=."
        )

    def _is_here(self, theirs: Any, question: str) -> bool:
        # An in-memory database has no name, and belongs to one connection.
        if not theirs:
            return False
        if theirs != self._answered.get(question):
            if len(self._answered) >= _MOST_ANSWERED:
                self._answered.clear()
            # Ours may have changed: the server was started again, or the table created again.
            self._answered[question] = self.run(lambda ours: _answers(ours, question)[0])
        return bool(theirs == self._answered[question])

    @contextlib.contextmanager
    def translated(self, *, callers: bool = False) -> Iterator[None]:
        """Turn errors of statements into our errors.

        ``callers`` says that the transaction is the caller's, who has to repeat it.
        """
        try:
            yield
        except DBAPIError as error:
            kind = self.dialect.classify(error)
            raise self._in_our_words(error, kind, callers=callers) from error
        except _UNSENDABLE as error:
            raise _not_sent(error) from error

    def kind_behind(self, error: BaseException) -> ErrorKind | None:
        """The kind of the driver's error that an exception is or was raised from, if any."""
        while not isinstance(error, DBAPIError):
            if error.__cause__ is None:
                return None
            error = error.__cause__
        return self.dialect.classify(error)

    def server_reads_only(self) -> bool:
        """Whether a new connection leads to a server that only reads, as far as it answers."""
        with contextlib.suppress(QueueError, SQLAlchemyError), self._connect() as connection:
            return self.dialect.server_reads_only(connection)
        return False

    def writes_again(self) -> bool:
        """Whether a server that only read a moment ago can write now.

        If so, everybody gets a new connection. Where it only reads for this login, that is its
        setting and does not end by itself.
        """
        with contextlib.suppress(QueueError, SQLAlchemyError), self._connect() as connection:
            dialect = self.dialect
            if not (dialect.server_reads_only(connection) or dialect.reading_setting(connection)):
                self._renew_all()
                return True
        return False

    def close_to_others(self, seconds: float) -> None:
        """Let only this caller work from now on, and wait up to ``seconds`` for acts of others."""
        self._left_to = self.runtime.me()
        self._sessions.drain(min(_DRAIN_SECONDS, seconds))

    def leave(self) -> None:
        """Close all connections that nobody uses now; who needs one next gets a new one."""
        if not self._opened.shared:
            self._close_sessions()
            self.engine.dispose()

    def within(self, seconds: float, act: Callable[[], object]) -> bool:
        """Do something that the database must finish in this time; returns whether it did.

        After the time limit all connections are broken, and no new ones are opened.
        """
        if self.background:
            return self.watchdog.within(seconds, act)
        # The user's own connection may be bound to this thread; it has no network.
        act()
        return True

    def refuse(self) -> None:
        """Refuse all further work; callers that wait for the database get an error."""
        self._closed = True
        self.watchdog.stop()

    def close(self) -> None:
        """Give all connections back, and dispose of the engine if it is ours."""
        self.refuse()
        self._close_sessions()
        self._forget_failures()
        if self._opened.owned:
            self.engine.dispose(close=self._pid == os.getpid())

    def _close_sessions(self) -> None:
        # The pool is not to lend them again, and to prepare them for that could wait for ever for a
        # server that does not answer.
        self._sessions.renew()
        self._sessions.close()

    def _run_once(self, act: Callable[[Connection], T], *, atomic: bool, durable: bool) -> T:
        self._check_open()
        if self._opened.borrowed:
            with self._lock, self.engine.begin() as connection:
                return act(connection)
        watchdog, wait = self.watchdog, object()
        self.forks.enter(wait)
        watchdog.waits.add(wait)
        try:
            session = self._sessions.borrow(
                durable=durable and self.dialect.separate_durable_sessions
            )
            try:
                if self._closed:
                    # It was opened while the others were closed, so it must be closed here.
                    self._drop(session)
                self._check_open()
                if GIVES_WAY.get():
                    act, atomic = self._briefly(session, act, atomic=atomic)
                if atomic:
                    result = self._in_transaction(session, act)
                elif (limit := _limit.get()) is None:
                    result = act(session.connection)
                else:
                    result = self._in_time(session.connection, limit, act)
                session.used_at = time.monotonic()
                if durable:
                    self._check_files(session.connection)
            except QueueError:
                raise
            except DBAPIError as error:
                self._give_up(session, self.dialect.classify(error))
                raise
            except BaseException:
                # A signal during the driver's work leaves a connection that nobody may use again:
                # half a command was sent, or a transaction holds a lock.
                self._drop(session)
                raise
            finally:
                self._sessions.give_back(session)
        finally:
            watchdog.waits.discard(wait)
            self.forks.leave(wait)
        watchdog.answered()
        return result

    def _briefly(
        self, session: Session, act: Callable[[Connection], T], *, atomic: bool
    ) -> tuple[Callable[[Connection], T], bool]:
        if self.is_begun(session.connection):
            return act, atomic
        if not self.dialect.keeps_settings:
            return self._limited_locally(act), True
        session.limit_lock_waits(self._limit_lock_waits)
        return act, atomic

    def _limit_lock_waits(self, connection: Connection) -> str:
        return self.dialect.limit_lock_waits(connection, BRIEF_SECONDS)

    def _limited_locally(self, act: Callable[[Connection], T]) -> Callable[[Connection], T]:
        def limited(connection: Connection) -> T:
            self._limit_lock_waits(connection)
            return act(connection)

        return limited

    def _run_undisturbed(self, act: Callable[[Connection], T], *, atomic: bool, durable: bool) -> T:
        return self.runtime.undisturbed(lambda: self._run_once(act, atomic=atomic, durable=durable))

    def _in_transaction(self, session: Session, act: Callable[[Connection], T]) -> T:
        dialect, connection = self.dialect, session.connection
        # What has not begun is not rolled back: SQLite would refuse that, and a refused rollback
        # costs the connection.
        dialect.begin(connection)
        try:
            self._begun.add(connection)
            result = act(connection)
            dialect.commit(connection)
        except BaseException:
            try:
                dialect.rollback(connection)
            except SQLAlchemyError:
                self._drop(session)
            raise
        finally:
            self._begun.discard(connection)
        return result

    def _in_time(self, connection: Connection, seconds: float, act: Callable[[Connection], T]) -> T:
        if self.is_begun(connection):
            return act(connection)
        with self.dialect.checkup.bounded(connection, seconds):
            return act(connection)

    def _close_for_fork(self) -> None:
        for keeper in list(self._keepers):
            keeper.close()
        self.leave()

    def _forked(self) -> None:
        """After a fork, the parent's connections must neither be used nor closed here."""
        self.engine.dispose(close=False)
        self._write_lock.forked()
        self._pid = os.getpid()

    def _check_open(self) -> None:
        if self._misplaced is not None:
            raise DatabaseUnavailable(self._misplaced)
        left_to = self._left_to
        if self._closed or (left_to is not None and left_to != self.runtime.me()):
            raise ServiceClosed

    def _check_files(self, connection: Connection) -> None:
        reason = self.dialect.misplaced_file(connection)
        if reason is not None:
            self._misplaced = reason
            raise DatabaseUnavailable(reason)

    def _new_session(self, durable: bool) -> Session:
        dialect, connection = self.dialect, self._connect()
        try:
            with self.translated():
                self._set_options(connection)
                dialect.prepare_session(connection, durable=durable)
            go_direct(connection)
        except BaseException:
            with contextlib.suppress(SQLAlchemyError):
                connection.invalidate()
            connection.close()
            raise
        return Session(connection, dialect.restore_session, dialect.session_seconds)

    def _set_options(self, connection: Connection) -> None:
        # SQLAlchemy does not wrap the driver's error here.
        with driver_errors(connection, "AUTOCOMMIT"):
            connection.execution_options(**self._opened.session_options)

    def _give_up(self, session: Session, kind: ErrorKind) -> None:
        if kind is ErrorKind.READ_ONLY:
            self._leave_server(session)
        elif kind is ErrorKind.DISCONNECT:
            self._drop(session)

    def _leave_server(self, session: Session | None = None) -> None:
        """Open new connections from now on, because the server of a session only reads.

        After a switchover the address leads to another server, but open connections do not.
        """
        now = time.monotonic()
        if session is not None:
            session.unwanted = True
        if _limit.get() is not None or now - self.switched_at < _SWITCH_SECONDS:
            return
        self._renew_all()

    def _renew_all(self) -> None:
        self.switched_at = time.monotonic()
        self._breaks += 1
        self._sessions.renew()

    def _drop(self, session: Session) -> None:
        self._breaks += 1
        session.drop()

    def _ask(self) -> None:
        with self.translated(), self._connect() as connection:
            connection.exec_driver_sql("SELECT 1").close()

    def _connect(self) -> Connection:
        if self.watchdog.gave_up:
            msg = f"The database {self.where} did not answer within the time limit."
            raise DatabaseUnavailable(msg)
        try:
            with self.watchdog.waiting():
                return self.runtime.obtained(self._check_out, lambda unused: unused.close())
        except (OSError, PoolTimeout) as error:
            # SQLAlchemy does not wrap what asyncpg raises for a closed port or an unknown host.
            raise self._unavailable(error) from error
        except DBAPIError as error:
            interruption = interruption_behind(error)
            if interruption is not None:
                raise interruption from error
            raise self._unavailable(error) from error

    def _check_out(self) -> Connection:
        while True:
            connection = self.engine.connect()
            note_connection(connection)
            if self._opened.shared or self._opened.borrowed:
                return connection
            now = time.monotonic()
            made_at = connection.info.setdefault(_MADE_AT, now)
            longest = math.inf if self._dialect is None else self._dialect.session_seconds
            if made_at == now or (made_at > self.switched_at and now - made_at < longest):
                return connection
            # It leads to a server that was left, or is too old.
            connection.invalidate()
            connection.close()

    def _connect_for_handler(self) -> Connection:
        connection = self._connect()
        event.listen(connection, "commit", self._refuse_commit)
        event.listen(connection, "rollback", self._note_rollback)
        event.listen(connection, "before_cursor_execute", ParentAlone(), retval=True)
        # The only connection of a database cannot be closed.
        if not (self._opened.shared or self._opened.borrowed):
            changes = SessionChanges(scoped=self.dialect.scopes_settings)
            event.listen(connection, "before_cursor_execute", changes, retval=True)
        return connection

    def _refuse_commit(self, connection: Connection) -> None:
        if connection in self._with_handlers:
            self._with_handlers[connection] = "commit"
            raise QueueError(_ENDED)

    def _note_rollback(self, connection: Connection) -> None:
        # SQLAlchemy also rolls back what failed before the transaction began.
        if connection in self._with_handlers and connection.in_transaction():
            self._with_handlers[connection] = self._with_handlers[connection] or "rollback"

    def _note_failure(self, context: ExceptionContext) -> None:
        connection, error = context.connection, context.sqlalchemy_exception
        if connection is not None and isinstance(error, DBAPIError):
            self._note_undoing(connection, error)

    def _note_undoing(self, connection: Connection, error: DBAPIError) -> None:
        # What follows is in another transaction: an ack there would commit without the effects.
        if (
            connection in self._with_handlers
            and connection not in self._undone
            and not error.connection_invalidated
            and error.orig is not None
            and self.dialect.undoes_transaction(connection, error.orig)
        ):
            self._undone[connection] = error

    def _unavailable(self, error: DBAPIError | PoolTimeout | OSError) -> QueueError:
        cause = error.orig if isinstance(error, DBAPIError) else error
        unfit = self._opened.unfit_way(cause)
        if unfit is not None:
            return self._unsupported(unfit)
        hint = self._opened.hint_for(cause)
        reason = shown_reason(self.engine.url, str(cause).strip())
        return DatabaseUnavailable(
            f"The database {self.where} cannot be reached: {reason} ({hint})"
        )

    def _unsupported(self, unfit: str) -> UnsupportedByEngine:
        return UnsupportedByEngine(
            f"The database {self.where} cannot be used with this configuration: {unfit}."
        )

    def _told(
        self,
        error: DBAPIError,
        kind: ErrorKind,
        refused: Callable[[DatabaseRefused], None] | None,
        *,
        creates: bool,
    ) -> QueueError:
        problem = self._in_our_words(error, kind, creates=creates)
        if refused is not None and isinstance(problem, DatabaseRefused):
            problem.__cause__ = error
            refused(problem)
        return problem

    def _in_our_words(
        self, error: DBAPIError, kind: ErrorKind, *, creates: bool = False, callers: bool = False
    ) -> QueueError:
        unfit = self._opened.unfit_way(error.orig)
        if unfit is not None:
            return self._unsupported(unfit)
        reason = str(error.orig).strip()
        if kind is ErrorKind.DISCONNECT:
            what = _CALLERS_BROKE if callers else _BROKE
            return DatabaseUnavailable(f"The connection to {self.where} broke: {reason}. {what}")
        if kind is ErrorKind.TRANSIENT:
            hint = self.dialect.creation_hint if creates else self.dialect.locked_hint
            return (Locked if GIVES_WAY.get() else DatabaseUnavailable)(
                f"The database {self.where} stayed locked by other transactions"
                f"{f' ({hint})' if hint else ''}: {reason}.{_REPEAT if callers else ''}"
            )
        if kind is ErrorKind.CANCELLED:
            return DatabaseUnavailable(
                f"An administrator or a time limit cancelled a statement in {self.where}: "
                f"{reason}. It changed nothing. You can run it again."
            )
        if kind is ErrorKind.INVALID_VALUE:
            return PayloadInvalid(
                f"The database refused a value{self.dialect.value_hint(error.orig)}: {reason}."
            )
        return self._refusal(error, kind, reason, callers=callers)

    def _only_reads(self, reason: str) -> QueueError:
        refused = f"The database {self.where} refused a statement: {reason}."
        setting: str | None = None
        with contextlib.suppress(QueueError, SQLAlchemyError), self._connect() as connection:
            if self.dialect.server_reads_only(connection):
                return DatabaseUnavailable(
                    f"The server of {self.where} only reads: {reason}. {_STANDBY}"
                )
            setting = self.dialect.reading_setting(connection)
        return DatabaseRefused(f"{refused} {setting}" if setting else refused)

    def _refusal(
        self, error: DBAPIError, kind: ErrorKind, reason: str, *, callers: bool
    ) -> QueueError:
        if kind is ErrorKind.FORBIDDEN and self._forbidden is not None:
            refusal = f"The login of {self.where} lacks a right: {reason}."
            return self._forbidden(refusal, error.statement or "")
        if kind is ErrorKind.READ_ONLY:
            if not callers:
                return self._only_reads(reason)
            reason += f". {_CALLERS_READS}"
        hint = self.dialect.refusal_hint(error.orig)
        if not hint and self.dialect.refuses_row(error):
            hint = (
                ". A constraint or a trigger refused a row. Run `queue-over-sql doctor`: it shows "
                "whether the ids of a queue are behind those of its archive"
            )
        return DatabaseRefused(f"The database {self.where} refused a statement: {reason}{hint}.")
