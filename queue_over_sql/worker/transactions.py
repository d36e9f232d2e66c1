"""Transactions of handlers: the writes of a handler and the acks, committed together."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from queue_over_sql.errors import DatabaseUnavailable, visible
from queue_over_sql.message import note_unsettled
from queue_over_sql.queue import core_of
from queue_over_sql.sql.errors import ErrorKind
from queue_over_sql.values.backoff import Backoff
from queue_over_sql.worker.time_limits import CallAbandoned, HandlerStopped

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.database.connections import Connections
    from queue_over_sql.message import Message
    from queue_over_sql.queue import Queue

_log = logging.getLogger(__name__)

# How often, and for how many seconds, a transaction is repeated that the database rolled back.
_REPEATS = 10
_REPEAT_SECONDS = 30.0


class NotCalled(Exception):
    """The database could not be reached before the call, so the handler did not fail.

    Its messages are given back, and this delivery does not count. What raises it in place of a
    handler raises it from the error.
    """


class TransactionConflict(Exception):
    """The database rolled the transaction back for a reason that is not the handler's."""


class HandlerTransactions:
    """Runs calls of one transactional handler, each in a transaction that also acks.

    It keeps one connection for them.
    """

    def __init__(
        self, queue: Queue, connections: Connections, draining: Callable[[], bool]
    ) -> None:
        self._queue = queue
        self._connections = connections
        self._draining = draining
        self._connection = connections.keeping()

    def close(self) -> None:
        """Give back the connection."""
        if self._connection is not None:
            self._connection.close()

    def run_until_committed(
        self, messages: list[Message], do: Callable[[Connection], list[Message]]
    ) -> None:
        """Repeat a transaction that conflicted with others, or met a server that only reads.

        Neither is a failure of the handler, so these tries do not count as attempts.

        Raises:
            TransactionConflict: the messages must be given back, because the server still only
                reads or the worker stops.
        """
        pauses, ends_at = Backoff(0.01, 1.0), time.monotonic() + _REPEAT_SECONDS
        for tries in itertools.count(1):
            try:
                self.run(messages, do)
            except (NotCalled, CallAbandoned, HandlerStopped):
                raise
            except Exception as error:
                late = tries > _REPEATS or time.monotonic() > ends_at
                if late or not self._may_repeat(error, tries):
                    raise
                if self._draining() or not all(map(self._queue.holds, messages)):
                    raise TransactionConflict from error
                _log.info(
                    "Queue %s: the database rolled back the transaction of a handler, which is "
                    "not to blame, so it runs again: %s",
                    self._queue.name,
                    visible(str(error).partition("\n")[0], keep=""),
                )
            else:
                return
            self._connections.runtime.sleep(pauses.pause())

    def _may_repeat(self, error: Exception, tries: int) -> bool:
        kind = self._connections.errors.kind_behind(error)
        if kind is not ErrorKind.READ_ONLY:
            return kind in {ErrorKind.TRANSIENT, ErrorKind.STALE_PLAN}
        # The first time it was the kept connection's server. The second time that may have begun
        # to write just now. Then it is the handler's doing.
        if tries > 1 and self._connections.server_reads_only():
            raise TransactionConflict from error
        return tries == 1 or (tries == 2 and self._connections.writes_again())  # noqa: PLR2004

    def run(self, messages: list[Message], do: Callable[[Connection], list[Message]]) -> None:
        """Run the call once, then ack the messages that it returns, and commit.

        Raises:
            NotCalled: the database could not be reached.
            HandlerStopped: the worker was stopped outside of the call.
        """
        called = returned = False
        after_commit: list[Callable[[], None]] = []
        try:
            with self._connections.transaction(self._connection) as connection:
                self._connections.reach(connection)
                called = True
                try:
                    finished = do(connection)
                except CallAbandoned:
                    # It was broken off, so nobody may use it again.
                    connection.invalidate()
                    raise
                returned = True
                unsettled = [message for message in finished if not message.settled]
                if unsettled:
                    # What the database refuses to finish was handled, so what the handler wrote is
                    # kept, with the hold.
                    with self._connections.watchdog.waiting(connection):
                        core_of(self._queue).settlements.ack(unsettled, connection, after_commit)
                elif finished and connection.in_transaction():
                    # The handler settled all itself. If it then caught the error of a statement,
                    # its transaction may have failed. Not every server says so at the COMMIT, which
                    # rolls back, but each refuses this.
                    connection.exec_driver_sql("SELECT 1").close()
        except CallAbandoned:
            raise
        except BaseException as error:
            # A rollback also undid all settling inside.
            for message in messages:
                note_unsettled(message)
            if not called and isinstance(error, DatabaseUnavailable):
                raise NotCalled from error
            if called == returned and isinstance(error, asyncio.CancelledError):
                raise HandlerStopped from error
            raise
        for notify in after_commit:
            notify()
