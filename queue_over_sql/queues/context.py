"""The context of one queue in one service, which its parts share."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
import sys
import time
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import (
    InvalidRequestError,
    NoSuchTableError,
    PendingRollbackError,
    UnboundExecutionError,
)

from queue_over_sql import store
from queue_over_sql.dialects.compiled import StatementCache
from queue_over_sql.dialects.raw_connections import LentPool, drivers, raw_connection
from queue_over_sql.errors import (
    DatabaseRefused,
    DatabaseUnavailable,
    QueueError,
    QueueNotFound,
    QueueSchemaMismatch,
)
from queue_over_sql.settings import StoredSettings
from queue_over_sql.store import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Table

    from queue_over_sql.consumer import Consumer
    from queue_over_sql.database.connections import Connections
    from queue_over_sql.database.notify import Arrivals, WakeUps
    from queue_over_sql.dialects.base import QueueDialect
    from queue_over_sql.message import CallersConnection
    from queue_over_sql.observer import Observers
    from queue_over_sql.payloads.types import Kinds
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.settings import EffectiveSettings, ServiceSettings


_log = logging.getLogger(__name__)
T = TypeVar("T")

# How long a change of settings by others may go unnoticed, even if the reaper's interval is longer.
_LONGEST_REFRESH = 5.0


class QueueContext:
    """One queue as one service sees it: tables, statements, settings, connections."""

    def __init__(
        self,
        tables: QueueTables,
        settings: EffectiveSettings,
        *,
        connections: Connections,
        consumer: Consumer,
        service: ServiceSettings,
        arrivals: Arrivals,
        wakeups: WakeUps,
        kinds: Kinds | None = None,
        observer: Observers | None = None,
    ) -> None:
        self.name = tables.queue
        self.kinds = kinds
        self.observer = observer
        if kinds is not None:
            tables = dataclasses.replace(tables, known_kinds=kinds.names)
        self.tables = tables
        self.connections = connections
        self.consumer = consumer
        self.service = service
        self.sql = StatementCache(tables, connections.engine.dialect)
        self.arrivals = arrivals
        self.wakeups = wakeups
        # ``Connections.run``, which also raises QueueNotFound if the queue was dropped, or
        # QueueSchemaMismatch if it was created again with another schema.
        self.run = functools.partial(connections.run, refused=self._check_there)
        self._declared_by: str | None = None
        self._settings = settings
        self._read_at = time.monotonic()
        self._refresh_after = min(_LONGEST_REFRESH, service.reaper_seconds)

    @property
    def dialect(self) -> QueueDialect:
        """The differences of this database server."""
        return self.connections.dialect

    def declare_kinds(self) -> None:
        """Store once per registration which kinds this consumer knows.

        The reaper ends no message whose kind a living consumer knows.
        """
        consumer_id = self.consumer.consumer_id
        if consumer_id is None or consumer_id == self._declared_by:
            return
        names = self.tables.known_kinds
        with self.consumer.declaring:
            self.run(lambda c: store.declare_kinds(c, self.sql, consumer_id, names), atomic=True)
            self._declared_by = consumer_id

    @property
    def settings(self) -> EffectiveSettings:
        """The queue's settings, read again from the registry from time to time.

        Raises:
            QueueNotFound: the queue was dropped.
        """
        # A query on the user's own connection would end the user's transaction.
        shared = not self.connections.background
        if not shared and time.monotonic() - self._read_at > self._refresh_after:
            self.refresh()
        return self._settings

    @property
    def known_settings(self) -> EffectiveSettings:
        """The settings as they were last read, without a query."""
        return self._settings

    def refresh(self) -> None:
        """Read the settings from the registry.

        Raises:
            QueueNotFound: the queue was dropped.
            QueueSchemaMismatch: it was dropped, and created again with another schema.
        """
        record = self.connections.run(self._record)
        if record is None:
            raise QueueNotFound(self.name)
        stored, present = StoredSettings.read(self.name, record.settings), self._settings
        fresh = stored.effective(self.service.retry_policies, present.columns)
        same = tuple(stored.columns) == tuple(column.name for column in present.columns)
        if not same or (fresh.payload, fresh.adoption) != (present.payload, present.adoption):
            msg = (
                f"Queue {self.name!r} was dropped and created again with another payload type, "
                "other columns or another table; create a new service to use it."
            )
            raise QueueSchemaMismatch(msg)
        self._settings = fresh
        self._read_at = time.monotonic()

    def run_on(
        self,
        connection: CallersConnection | None,
        act: Callable[[Connection], T],
        *,
        atomic: bool = False,
        news: bool = False,
    ) -> T:
        """Run an act inside the caller's own transaction; raises as ``callers`` does.

        With ``news`` other processes are notified of new messages when that transaction commits. An
        act on a transaction of ``run`` leaves the notification and the errors to ``run``.

        Raises:
            QueueNotFound, QueueSchemaMismatch: as ``run``.
        """
        if isinstance(connection, Connection) and self.connections.is_begun(connection):
            return act(connection)
        try:
            with callers(connection, self.connections, self.tables.live, atomic=atomic) as target:
                result = act(target)
                if news:
                    self.wakeups.tell_on(target, self.sql)
                return result
        except DatabaseRefused as error:
            if self.connections.background:
                self._check_there(error)
            raise

    def _check_there(self, error: DatabaseRefused) -> None:
        try:
            self.refresh()
        except (QueueNotFound, QueueSchemaMismatch) as gone:
            raise gone from error
        except QueueError:
            # The caller gets the refusal.
            return

    def look(self, act: Callable[[Connection], T], connection: CallersConnection | None) -> T:
        """Run an act that changes nothing, in the caller's own transaction if there is one."""
        return self.run(act) if connection is None else self.run_on(connection, act)

    def put(self, act: Callable[[Connection], T], connection: CallersConnection | None) -> T:
        """Run an act that inserts many messages, and wake waiting consumers."""
        if connection is not None:
            return self.run_on(connection, act, atomic=True, news=True)
        done = self.run(act, atomic=True, durable=True, repeat=False)
        self.announce()
        return done

    def announce(self) -> None:
        """Wake waiting consumers, here and in other processes."""
        self.arrivals.announce()
        self.wakeups.tell(self.sql)

    def _record(self, connection: Connection) -> registry.QueueRecord | None:
        tables = self.tables
        return registry.queue_record(connection, tables.system, tables.prefix, tables.queue)


@contextlib.contextmanager
def callers(
    connection: Any, connections: Connections, table: Table, *, atomic: bool
) -> Iterator[Connection]:
    """The caller's ``connection=`` as a ``Connection``, for acts on a table in its transaction.

    Raises:
        TypeError: it is not a connection or session.
        ValueError: it is closed, its transaction has ended, or it is in AUTOCOMMIT mode though the
            acts need a transaction.
        WrongDatabase: it belongs to another database.
        DatabaseUnavailable: its transaction has already failed.
    """
    # A worker passes its own connection; then the engine is ours, and the caller repeats nothing.
    own = getattr(connection, "engine", None) is connections.engine
    try:
        with (
            connections.translated(callers=not own),
            _as_connection(connection, connections) as target,
        ):
            if atomic:
                _check_transactional(target)
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
    given: Any, connections: Connections
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
        return connections.lend(raw)
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


def _check_transactional(connection: Connection) -> None:
    pool = connection.engine.pool
    if isinstance(pool, LentPool):
        commits = pool.commits
    else:
        options, dialect = connection.get_execution_options(), connection.engine.dialect
        by_default = getattr(dialect, "_on_connect_isolation_level", None)
        commits = options.get("isolation_level", by_default) == "AUTOCOMMIT"
    if commits:
        msg = (
            "connection= is in AUTOCOMMIT mode, so this operation could be done in part: pass one "
            "with a transaction, or leave out connection="
        )
        raise ValueError(msg)
