"""The context of one queue in one service, which its parts share."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import logging
import time
from collections.abc import Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from queue_over_sql.database.callers import callers
from queue_over_sql.database.notify import noting_ready
from queue_over_sql.errors import (
    DatabaseRefused,
    PayloadInvalid,
    QueueError,
    QueueNotFound,
    QueueSchemaMismatch,
    SchemaTooNew,
)
from queue_over_sql.queues import registry
from queue_over_sql.queues.kinds import declare_kinds
from queue_over_sql.schema.queue_tables import queue_tables
from queue_over_sql.settings import StoredSettings
from queue_over_sql.sql.compiled import StatementCache
from queue_over_sql.sql.operation import Operation
from queue_over_sql.statements.operations import carefully, is_careful

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from queue_over_sql.consumers.consumer import Consumer
    from queue_over_sql.database.connections import Connections
    from queue_over_sql.database.notify import Arrivals, WakeUps
    from queue_over_sql.message import CallersConnection
    from queue_over_sql.observer import Observers
    from queue_over_sql.payloads.types import Kinds
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.settings import EffectiveSettings, ServiceSettings
    from queue_over_sql.sql.dialect import QueueDialect
    from queue_over_sql.sql.operation import Runnable
    from queue_over_sql.statements.requests import Feed


_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

# How long a change of settings by others may go unnoticed, even if the reaper's interval is longer.
_LONGEST_REFRESH = 5.0
_NOTHING: Final = contextlib.nullcontext[Sequence[StatementCache]](())
# How to notify observers of what an operation of this context has copied to other queues; None:
# nobody waits for its end.
_copied: ContextVar[list[Callable[[], None]] | None] = ContextVar("copied", default=None)


class TablesChanged(DatabaseRefused):
    """An operation met the tables of a queue that came again, and stored nothing.

    The context knows the present tables now.
    """


def once_more(do: Callable[P, T]) -> Callable[P, T]:
    """Do it again if the queue was dropped, and created again with other groups or limits.

    It makes its statements when it is called, so the second time they are those of the new tables.
    """

    @functools.wraps(do)
    def do_so(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return do(*args, **kwargs)
        except TablesChanged:
            return do(*args, **kwargs)

    return do_so


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
        feed: Callable[[QueueContext, str, Connection, Iterable[int]], None],
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
        self.was_refused = False
        """Whether the database has refused to finish a message of this queue."""
        self.expiring = False
        """Whether a message of this queue may expire, as far as its record was read."""
        self.arrivals = arrivals
        self.wakeups = wakeups
        self._feed = feed
        self._declared_by: str | None = None
        self._settings = settings
        self._read_at = time.monotonic()
        self._refresh_after = min(_LONGEST_REFRESH, service.reaper_seconds)

    @property
    def dialect(self) -> QueueDialect:
        """The differences of this database server."""
        return self.connections.dialect

    def without_kinds(self) -> QueueContext:
        """The same queue, whose payloads stay as plain as they are stored."""
        plain = copy.copy(self)
        plain.kinds = None
        return plain

    @property
    def expiry_level(self) -> int:
        """The level at which an expiry is logged.

        It is usual in a queue that ends by itself: Celery's workers go on publishing events to the
        queue of a monitor that was killed.
        """
        ends = self.tables.temporary or self._settings.unused_for is not None
        return logging.DEBUG if ends else logging.ERROR

    @property
    def feed(self) -> Feed | None:
        """Publishes archived dead letters to the queue's ``dead_letter_queue``, if it has one."""
        name = self._settings.dead_letter_queue
        return None if name is None else partial(self._feed, self, name)

    def asked(self) -> None:
        """Note that this consumer asks for messages: so it handles the queue."""
        self.consumer.handling.asked(self.name, self.tables.known_kinds)

    def declare_kinds(self) -> None:
        """Store once per registration which kinds this consumer knows.

        The reaper ends no message whose kind a living consumer knows.
        """
        consumer_id = self.consumer.consumer_id
        if consumer_id is None or consumer_id == self._declared_by:
            return
        names = self.tables.known_kinds
        with self.consumer.declaring.begun():
            self.run(declare_kinds.of(self.sql, consumer_id, names))
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
            SchemaTooNew: a newer release has made or upgraded its tables meanwhile.
        """
        record = self.connections.run(self._record)
        if record is None:
            raise QueueNotFound(self.name)
        registry.version_of(record)
        stored, present = StoredSettings.read(self.name, record.settings), self._settings
        fresh = stored.effective(self.service.retry_policies, present.columns)
        same = tuple(stored.columns) == tuple(column.name for column in present.columns)
        if not same or (fresh.payload, fresh.adoption) != (present.payload, present.adoption):
            msg = (
                f"Queue {self.name!r} was dropped and created again with another payload type, "
                "other columns or another table; create a new service to use it."
            )
            raise QueueSchemaMismatch(msg)
        if _shape(fresh) != _shape(present):
            self._redefine(fresh)
        self._settings, self.expiring = fresh, record.expiring
        self._read_at = time.monotonic()

    def look_again(self) -> None:
        """Read the settings from the registry, unless that would end a transaction of the user."""
        if self.connections.background:
            self.refresh()

    def _redefine(self, settings: EffectiveSettings) -> None:
        """Define the tables anew, since somebody turned groups or limits on or off.

        Or the queue was made anew with another ``unique``, which cannot be changed otherwise.
        """
        present = tables = self.tables
        frees_keys = settings.unique == "waiting"
        if (settings.grouped, frees_keys) != (present.grouped, present.frees_claimed_keys):
            tables = queue_tables(
                present.queue,
                present.prefix,
                settings.payload,
                settings.columns,
                system=present.system,
                dialect=present.dialect,
                grouped=settings.grouped,
                unique=settings.unique,
            )
            kept = ("known_kinds", "temporary", "title")
            tables = dataclasses.replace(tables, **{name: getattr(present, name) for name in kept})
        tables = tables.bounded_by(limited=settings.limited, rated=settings.rated)
        # Other threads work here: who reads one of them before it changes must not find the other.
        self.sql = StatementCache(tables, self.connections.engine.dialect)
        self.tables = tables

    def run(self, given: Runnable[T], connection: CallersConnection | None = None) -> T:
        """Run an operation, inside the caller's own transaction if there is one.

        If it ``wakes``, consumers in other processes hear of it when that transaction commits. An
        operation inside another one of ``run`` leaves the waking and the errors to the outer one.

        Raises:
            QueueNotFound: the queue was dropped.
            QueueSchemaMismatch: it was created again with another schema.
            TablesChanged: it was created again with other groups or limits.
            QueueError: otherwise as ``Connections.run`` and ``callers``.
        """
        # As ``as_operation``, without a call of Python for each message.
        operation: Operation[T] = given if isinstance(given, Operation) else Operation(given)
        copies = self.observer is not None and self._settings.dead_letter_queue is not None
        if copies and _copied.get() is None:
            return self._run_copying(operation, connection)
        if connection is not None:
            return self._run_inside(connection, operation)
        ready: Sequence[StatementCache] = ()
        tables = self.tables
        try:
            if not tables.exits_make_ready:
                result = self.connections.run(operation, self._check_there)
            else:
                with noting_ready() as ready:
                    result = self.connections.run(operation, self._check_there)
        except (DatabaseRefused, PayloadInvalid) as error:
            if isinstance(error, DatabaseRefused) and self.tables is not tables:
                raise TablesChanged(*error.args) from error.__cause__
            if not (tables.grouped and self.refuses_row(error)) or is_careful():
                raise
            # It may be the row of a message that waits behind those of the operation.
            with carefully():
                return self.run(operation)
        if ready or (operation.wakes and result):
            self.wake_consumers()
        return result

    def refuses_row(self, error: BaseException) -> bool:
        """Whether the database refused one row, so that it may accept others."""
        cause = error.__cause__
        return isinstance(cause, DBAPIError) and self.dialect.errors.refuses_row(cause)

    def note_copied(self, ids: Sequence[int], seconds: float) -> None:
        """Notify observers of copies of dead letters in this queue, once they are committed.

        In a transaction of a caller they are notified at the end of its verb.
        """
        if self.observer is None:
            return
        notify = partial(self.observer.published, self.name, len(ids), seconds, ids)
        noted = _copied.get()
        if noted is None:
            notify()
        else:
            noted.append(notify)

    def _run_copying(self, operation: Operation[T], connection: CallersConnection | None) -> T:
        noted: list[Callable[[], None]] = []

        def do(target: Connection) -> T:
            # It may run again.
            noted.clear()
            return operation.do(target)

        before = _copied.set(noted)
        try:
            result = self.run(operation._replace(do=do), connection)
        finally:
            _copied.reset(before)
        for notify in noted:
            notify()
        return result

    def _run_inside(self, connection: CallersConnection, operation: Operation[T]) -> T:
        if isinstance(connection, Connection) and self.connections.is_begun(connection):
            return operation.do(connection)
        try:
            with callers(
                connection, self.connections.callers, self.tables.live, atomic=operation.atomic
            ) as target:
                with self._noting_ready() as ready:
                    result = operation.do(target)
                if ready or (operation.wakes and result):
                    self.wakeups.notify_on(target, self.sql)
                return result
        except DatabaseRefused as error:
            if self.connections.background:
                self._check_there(error)
            raise

    def _noting_ready(self) -> contextlib.AbstractContextManager[Sequence[StatementCache]]:
        # Only in a queue with groups or limits the end of one message makes another one ready.
        return noting_ready() if self.tables.exits_make_ready else _NOTHING

    def _check_there(self, error: DatabaseRefused) -> None:
        try:
            self.refresh()
        except (QueueNotFound, QueueSchemaMismatch, SchemaTooNew) as gone:
            raise gone from error
        except QueueError:
            # The caller gets the refusal.
            return

    def wake_consumers(self) -> None:
        """Wake waiting consumers, here and in other processes."""
        self.arrivals.notify()
        self.wakeups.notify(self.sql)

    def _record(self, connection: Connection) -> registry.QueueRecord | None:
        tables = self.tables
        return registry.queue_record(connection, tables.system, tables.prefix, tables.queue)


def _shape(settings: EffectiveSettings) -> tuple[object, ...]:
    """What decides which tables and columns a queue has, beside its payload and own columns."""
    return (settings.grouped, settings.bounds, settings.unique)
