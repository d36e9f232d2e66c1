"""Connections of a service: operations run on sessions that stay open, and are repeated.

A checkout from a pool each time would cost more than a claim does. So operations run on
autocommit connections that stay open (*sessions*, one per thread). A session is checked after it
was idle, and dropped if it broke.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import math
import os
import random
import sys
import time
import weakref
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from queue_over_sql.database import repetition
from queue_over_sql.database.callers import CallersConnections
from queue_over_sql.database.driver_errors import UNSENDABLE, DriverErrors, not_sent
from queue_over_sql.database.forks import note_connection
from queue_over_sql.database.handlers_connections import HandlersConnections
from queue_over_sql.database.opened_engine import OpenedEngine
from queue_over_sql.database.repetition import Reconnects, SharedTry
from queue_over_sql.database.runtime import THREADS, Runtime
from queue_over_sql.database.sessions import (
    GIVES_WAY,
    KeptConnection,
    Session,
    Sessions,
    SharedSession,
    committing,
    give_back,
    returning,
)
from queue_over_sql.database.urls import shown_url
from queue_over_sql.database.watchdog import Watchdog
from queue_over_sql.errors import (
    DatabaseRefused,
    DatabaseUnavailable,
    QueueError,
    ServiceClosed,
)
from queue_over_sql.sql.compiled import go_direct
from queue_over_sql.sql.dialect import QueueDialect
from queue_over_sql.sql.driver_calls import (
    driver_connection_of_other,
    driver_errors,
    interruption_behind,
    quiet_seconds,
)
from queue_over_sql.sql.errors import ErrorKind
from queue_over_sql.sql.operation import Operation, Runnable, as_operation
from queue_over_sql.sql.sessions import BRIEF_SECONDS, CREATION_ENDS
from queue_over_sql.values.cached import cached_property

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from sqlalchemy import Connection, Engine

    from queue_over_sql.errors import NotPermitted


_log = logging.getLogger(__name__)
T = TypeVar("T")

# How long a stop waits for operations of other threads, so that it can release what they claimed.
_DRAIN_SECONDS = 5.0
# Where the pool keeps when a connection was made, on the monotonic clock.
_MADE_AT = "queue_over_sql_made_at"
# How long new connections count as new after a server was found to only read.
_SWITCH_SECONDS = 1.0


# The time limit in seconds for statements that only read, in this context.
_limit: contextvars.ContextVar[float | None] = contextvars.ContextVar("limit", default=None)


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
        self._opened = opened
        # What follows only uses these when it is called.
        self.errors = DriverErrors(opened, lambda: self.dialect, self._asking, forbidden)
        self.handlers = HandlersConnections(opened.engine, lambda: self.dialect)
        self.callers = CallersConnections(
            opened,
            lambda: self.dialect,
            self.run,
            self.errors,
            self.handlers,
            breaks=lambda: self._breaks,
            renew=self._leave_server,
        )
        self._write_lock = self._opened.write_lock
        self.forks = self._opened.forks
        self.forks.follow(weakref.WeakMethod(self._close_for_fork))
        self._keepers: weakref.WeakSet[KeptConnection] = weakref.WeakSet()
        self._dialect: QueueDialect | None = None
        self._lock = runtime.lock()
        self._connecting = SharedTry(self._lock)
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
        self._pid = os.getpid()
        self._breaks = 0
        # Why nothing works any more, once a file was removed or replaced.
        self._misplaced: str | None = None
        self.switched_at = self.lost_at = float("-inf")
        """When all connections were last renewed because a server only reads; monotonic."""
        # Connections that are in a transaction of ``run`` now.
        self._begun: set[Connection] = set()

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
    def is_only(self) -> bool:
        """Whether the database has only one connection, which nobody may break off."""
        return self._opened.shared or self._opened.borrowed

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
            with self.forks.using(), self._connecting.begun():
                if self._dialect is None:
                    self._dialect = self._choose()
        return self._dialect

    @cached_property
    def maintenance(self) -> Sequence[Callable[[], None]]:
        """The background jobs of this engine, one run per interval of the reaper."""
        jobs = list(self.dialect.files.maintenance(self.run, self.where))
        if self.dialect.features.has_files and not self._opened.shared:
            # An operation that must be durable also finds out whether its files are in place.
            jobs.insert(0, lambda: self.run(Operation(lambda _: None, durable=True)))
        return jobs

    def _choose(self) -> QueueDialect:
        try:
            with self._asking() as connection:
                dialect = self._opened.dialect_of(connection)
                dialect.sessions.notice_pooler(connection)
        except DBAPIError as error:
            raise self.errors.unavailable(error) from error
        return dialect

    def run(
        self,
        given: Runnable[T],
        refused: Callable[[DatabaseRefused], None] | None = None,
    ) -> T:
        """Run an operation on a connection that only this caller uses.

        Args:
            given: what to do, and what it needs. Who waits is woken by the queue's context.
            refused: called if the database refuses a statement; it may raise a better error.

        Raises:
            DatabaseUnavailable: the database cannot be reached, stayed locked, or cancelled it.
            Locked: it stayed locked, and the context gives way.
            DatabaseRefused: it answered with another error.
            ServiceClosed: the service was stopped.
        """
        operation = as_operation(given)
        timeout = repetition.CONFLICT_SECONDS
        if operation.creates:
            timeout = self.dialect.features.creation_seconds
        deadline = time.monotonic() + (BRIEF_SECONDS if GIVES_WAY.get() else timeout)
        if not operation.creates:
            return self._repeated(operation, refused, deadline)
        # All its waits and repetitions share that time.
        before = CREATION_ENDS.set(deadline)
        try:
            return self._repeated(operation, refused, deadline)
        finally:
            CREATION_ENDS.reset(before)

    def _repeated(
        self,
        operation: Operation[T],
        refused: Callable[[DatabaseRefused], None] | None,
        deadline: float,
    ) -> T:
        creates = operation.creates
        reconnects: Reconnects | None = None
        tries = 0
        unknown: DBAPIError | None = None
        while True:
            try:
                run = self._alone if tries else self._once
                result = run(operation)
                if unknown is None or result:
                    return result
                kind = ErrorKind.DISCONNECT
                raise self.errors.explained(unknown, kind, refused, creates=creates) from unknown
            except DBAPIError as error:
                kind = self.dialect.errors.classify(error)
                hopeless = self.watchdog.gave_up
                reconnects = reconnects or Reconnects(
                    self.writes_again,
                    repeatable=operation.repeatable,
                    may_write=_limit.get() is None,
                )
                if kind is ErrorKind.TRANSIENT and time.monotonic() < deadline and not hopeless:
                    tries += 1
                elif not hopeless and reconnects.allow(kind):
                    is_unknown = operation.counts and kind is ErrorKind.DISCONNECT
                    unknown = error if is_unknown else unknown
                    self.runtime.sleep(0.05)
                else:
                    raise self.errors.explained(error, kind, refused, creates=creates) from error
            except PoolTimeout as error:
                raise self.errors.unavailable(error) from error
            except StatementError as error:
                # An exception of the caller's own, such as a timeout that a signal raised.
                raise error if error.orig is None else error.orig from error
            except UNSENDABLE as error:
                raise not_sent(error) from error
            if tries == 1 and self._write_lock.wakes:
                continue
            # Jitter keeps writers that collided from colliding again.
            self.runtime.sleep(random.uniform(0.0001, 0.001 * min(tries + 1, 10)))  # noqa: S311

    def _alone(self, operation: Operation[T]) -> T:
        with self._write_lock.one_act():
            return self._once(operation)

    @staticmethod
    @contextlib.contextmanager
    def giving_way() -> Iterator[None]:
        """Let no operation of this context wait for the locks of others for longer than a second.

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
        """Limit each non-atomic operation of this context to so many seconds and to reading.

        After that ``run`` raises ``DatabaseUnavailable``, caused by a ``CANCELLED`` error.
        """
        before = _limit.set(seconds)
        try:
            yield
        finally:
            _limit.reset(before)

    def is_begun(self, connection: object) -> bool:
        """Whether this is the connection of an atomic operation of ``run`` that has not ended."""
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
                with committing(connection, self.watchdog.waiting):
                    yield connection
            except BaseException as error:
                if self.errors.kind_behind(error) is ErrorKind.READ_ONLY:
                    self._leave_server()
                raise
            finally:
                self._write_lock.release(connection)
            try:
                self._check_files(connection)
            finally:
                with self.watchdog.waiting_briefly():
                    if kept is None:
                        give_back(connection)
                    else:
                        kept.leave(connection)

    def keeping(self) -> KeptConnection | None:
        """A keeper of one caller's connection between transactions; the caller must close it.

        None if several callers share the only connection.
        """
        if self.is_only:
            return None
        keeper = KeptConnection(
            self._connect_for_handler, lambda: self._breaks, self.watchdog.waiting_briefly
        )
        self._keepers.add(keeper)
        return keeper

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for a long read; it begins no transaction by itself and locks nothing."""
        self._check_open()
        with (
            self.forks.using(),
            self._guard,
            self.watchdog.waiting(),
            self.errors.translated(),
            returning(self._connect(), self.watchdog.waiting_briefly) as connection,
        ):
            with self.watchdog.waiting_briefly():
                self._set_options(connection)
            try:
                yield connection
            except DBAPIError as error:
                if self.dialect.errors.classify(error) is ErrorKind.STALE_PLAN:
                    connection.invalidate()
                raise

    def apart(self) -> Session:
        """An autocommit session for this caller alone, for a long wait.

        The caller calls its ``drop()``, because its settings must not return to the pool. It notes
        its use in ``forks``, and ends it as soon as ``forks.forking``.
        """
        self._check_open()
        return self._new_session(False)  # noqa: FBT003 - what waits does not write

    def reach(self, connection: Connection) -> None:
        """Make sure that a connection of ``transaction()`` is open, without beginning one."""
        with self.errors.translated():
            _ = connection.connection.dbapi_connection

    def break_off(self, connection: Connection) -> None:
        """End a transaction of ``transaction()`` from another thread, if the engine can.

        Its user then gets errors, and must invalidate the connection. A database's only connection
        is left alone, because the others need it.
        """
        if self.is_only:
            return
        # Its user may have left it in any state.
        with contextlib.suppress(Exception):
            self.dialect.sessions.break_off(connection)
        self._write_lock.release(connection)

    def server_reads_only(self) -> bool:
        """Whether a new connection leads to a server that only reads, as far as it answers."""
        with contextlib.suppress(QueueError, SQLAlchemyError), self._asking() as connection:
            return self.dialect.sessions.server_reads_only(connection)
        return False

    def writes_again(self) -> bool:
        """Whether a server that only read a moment ago can write now.

        If so, everybody gets a new connection. Where it only reads for this login, that is its
        setting and does not end by itself.
        """
        with contextlib.suppress(QueueError, SQLAlchemyError), self._asking() as connection:
            ours = self.dialect.sessions
            if not (ours.server_reads_only(connection) or ours.reading_setting(connection)):
                self._renew_all()
                return True
        return False

    def close_to_others(self, seconds: float) -> None:
        """Let only this caller work from now on, and wait up to ``seconds`` for the others."""
        self._left_to = self.runtime.me()
        self._sessions.drain(min(_DRAIN_SECONDS, seconds))

    def leave(self) -> None:
        """Close all connections that nobody uses now; who needs one next gets a new one."""
        if not self._opened.shared:
            self._close_sessions()
            self.engine.dispose()

    def within(self, seconds: float, do: Callable[[], object]) -> bool:
        """Do something that the database must finish in this time; returns whether it did.

        After the time limit all connections are broken, and no new ones are opened.
        """
        if self.background:
            return self.watchdog.within(seconds, do)
        # The user's own connection may be bound to this thread; it has no network.
        do()
        return True

    def refuse(self) -> None:
        """Refuse all further work; callers that wait for the database get an error."""
        self._closed = True
        self.watchdog.stop()

    def close(self) -> None:
        """Give all connections back, and dispose of the engine if it is ours."""
        self.refuse()
        self._close_sessions()
        self.handlers.forget()
        if self._opened.owned:
            self.engine.dispose(close=self._pid == os.getpid())

    def _close_sessions(self) -> None:
        # The pool is not to lend them again, and to prepare them for that could wait for ever for a
        # server that does not answer.
        self._sessions.renew()
        self._sessions.close()

    def _run_once(self, operation: Operation[T]) -> T:
        self._check_open()
        if self._opened.borrowed:
            with self._lock, self.engine.begin() as connection:
                return operation.do(connection)
        watchdog, wait = self.watchdog, object()
        self.forks.enter(wait)
        watchdog.waits[wait] = None
        try:
            session = self._sessions.borrow(
                durable=operation.durable and self.dialect.features.separate_durable_sessions
            )
            watchdog.waits[wait] = session.connection
            try:
                if self._closed:
                    # It was opened while the others were closed, so it must be closed here.
                    self._drop(session)
                self._check_open()
                if GIVES_WAY.get():
                    operation = self._briefly(session, operation)
                if operation.atomic:
                    result = self._in_transaction(session, operation.do)
                elif (limit := _limit.get()) is None:
                    result = operation.do(session.connection)
                else:
                    result = self._in_time(session.connection, limit, operation.do)
                session.used_at = time.monotonic()
                if operation.durable:
                    self._check_files(session.connection)
            except QueueError:
                raise
            except DBAPIError as error:
                self._give_up(session, self.dialect.errors.classify(error))
                raise
            except BaseException:
                # A signal during the driver's work leaves a connection that nobody may use again:
                # half a command was sent, or a transaction holds a lock.
                self._drop(session)
                raise
            finally:
                self._sessions.give_back(session)
        finally:
            del watchdog.waits[wait]
            self.forks.leave(wait)
        watchdog.answered()
        return result

    def _briefly(self, session: Session, operation: Operation[T]) -> Operation[T]:
        if operation.prompt:
            operation = operation._replace(do=self._promptly(operation.do))
        if self.is_begun(session.connection):
            return operation
        if not self.dialect.sessions.keeps_settings:
            return operation._replace(do=self._limited_locally(operation.do), atomic=True)
        session.limit_lock_waits(self._limit_lock_waits)
        return operation

    def _limit_lock_waits(self, connection: Connection) -> str:
        with self.watchdog.waiting_briefly(connection):
            return self.dialect.sessions.limit_lock_waits(connection, BRIEF_SECONDS)

    def _limited_locally(self, do: Callable[[Connection], T]) -> Callable[[Connection], T]:
        def limited(connection: Connection) -> T:
            self._limit_lock_waits(connection)
            return do(connection)

        return limited

    def _promptly(self, do: Callable[[Connection], T]) -> Callable[[Connection], T]:
        def prompt(connection: Connection) -> T:
            with self.watchdog.waiting_briefly():
                return do(connection)

        return prompt

    def _run_undisturbed(self, operation: Operation[T]) -> T:
        return self.runtime.undisturbed(lambda: self._run_once(operation))

    def _in_transaction(self, session: Session, do: Callable[[Connection], T]) -> T:
        engine, connection = self.dialect.sessions, session.connection
        # What has not begun is not rolled back: SQLite would refuse that, and a refused rollback
        # costs the connection.
        engine.begin(connection)
        try:
            self._begun.add(connection)
            result = do(connection)
            engine.commit(connection)
        except BaseException:
            try:
                engine.rollback(connection)
            except SQLAlchemyError:
                self._drop(session)
            raise
        finally:
            self._begun.discard(connection)
        return result

    def _in_time(self, connection: Connection, seconds: float, do: Callable[[Connection], T]) -> T:
        if self.is_begun(connection):
            return do(connection)
        with self.dialect.checkup.bounded(connection, seconds):
            return do(connection)

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
        reason = self.dialect.files.misplaced(connection)
        if reason is not None:
            self._misplaced = reason
            raise DatabaseUnavailable(reason)

    def _new_session(self, durable: bool) -> Session:
        dialect, connection = self.dialect, self._connect()
        try:
            with self.errors.translated(), self.watchdog.waiting_briefly(connection):
                self._set_options(connection)
                dialect.sessions.prepare(connection, durable=durable)
            go_direct(connection)
        except BaseException:
            with contextlib.suppress(SQLAlchemyError):
                connection.invalidate()
            connection.close()
            raise
        seconds = dialect.features.session_seconds
        return Session(connection, self._checking, dialect.sessions.restore, seconds)

    @contextlib.contextmanager
    def _checking(self, connection: Connection) -> Iterator[None]:
        try:
            with self.watchdog.waiting_briefly(connection):
                yield
        except SQLAlchemyError:
            self.lost_at = time.monotonic()
            raise

    def _set_options(self, connection: Connection) -> None:
        # SQLAlchemy does not wrap the driver's error here.
        with driver_errors(connection, "AUTOCOMMIT"):
            connection.execution_options(**self._opened.session_options)

    def _give_up(self, session: Session, kind: ErrorKind) -> None:
        if kind is ErrorKind.READ_ONLY:
            self._leave_server(session)
        elif kind in {ErrorKind.DISCONNECT, ErrorKind.STALE_PLAN}:
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
        self.lost_at = time.monotonic()
        session.drop()

    def _ask(self, waiting: Sequence[Connection] = (), quiet: float = 0.0) -> list[Connection]:
        with self.errors.translated(), self._asking() as connection:
            connection.exec_driver_sql("SELECT 1").close()
            lost = [other for other in waiting if self._is_lost(connection, other, quiet)]
            # The service may be stopped by now, and its pool would keep it open.
            connection.invalidate()
        return lost

    def _is_lost(self, asking: Connection, other: Connection, quiet: float) -> bool:
        driver = driver_connection_of_other(other)
        if driver is None or quiet_seconds(other.dialect, driver) < quiet:
            return False
        age = time.monotonic() - other.info[_MADE_AT]
        if not self.dialect.sessions.awaits_command(asking, driver, other.info, age):
            return False
        # It may have heard its answer while the server was asked.
        return quiet_seconds(other.dialect, driver) >= quiet

    @contextlib.contextmanager
    def _asking(self) -> Iterator[Connection]:
        """A connection for questions that a working server answers at once."""
        # Around the connection, because a driver may ask the server when it is given back.
        with self.watchdog.connecting(), self._connect() as connection:
            yield connection

    def _connect(self) -> Connection:
        if self.watchdog.gave_up:
            msg = f"The database {self.where} did not answer within the time limit."
            raise DatabaseUnavailable(msg)
        handled = sys.exception()
        try:
            with self.watchdog.connecting():
                return self.runtime.obtained(self._check_out, self._close_unused)
        except (OSError, PoolTimeout) as error:
            # SQLAlchemy does not wrap what asyncpg raises for a closed port or an unknown host.
            raise self.errors.unavailable(error) from error
        except DBAPIError as error:
            interruption = interruption_behind(error, handled)
            if interruption is not None:
                raise interruption from error
            raise self.errors.unavailable(error) from error
        finally:
            # An error's frames must not keep another one.
            del handled

    def _check_out(self) -> Connection:
        while True:
            connection = self.engine.connect()
            note_connection(connection)
            if self.is_only:
                return connection
            now = time.monotonic()
            made_at = connection.info.setdefault(_MADE_AT, now)
            longest = math.inf if self._dialect is None else self._dialect.features.session_seconds
            if made_at == now or (made_at > self.switched_at and now - made_at < longest):
                return connection
            # It leads to a server that was left, or is too old.
            connection.invalidate()
            connection.close()

    def _close_unused(self, connection: Connection) -> None:
        """Close a connection that came after its caller was cancelled."""
        if self._opened.owned and not self.is_only:
            # The pool may be disposed of by now, and would keep it open.
            connection.invalidate()
        connection.close()

    def _connect_for_handler(self) -> Connection:
        connection = self.handlers.prepared(self._connect(), own=not self.is_only)
        self.watchdog.note_statements(connection)
        return connection
