"""A transaction that several messages share: each in a savepoint, for ``commit_every``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from queue_over_sql.errors import QueueError
from queue_over_sql.message import is_given_back, note_unsettled
from queue_over_sql.settling.failures import reason_of, traceback_of
from queue_over_sql.worker.outcomes import log_failure
from queue_over_sql.worker.time_limits import HandlerStopped, TimedOut

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.message import Message
    from queue_over_sql.worker.handler import Handler

SHARED_SECONDS = 0.05
"""After this time, a shared transaction begins no further message."""


class NotShared(Exception):
    """These messages need transactions of their own."""


class SharedTransaction:
    """Handles several messages in one transaction, with a savepoint for each."""

    def __init__(
        self,
        handler: Handler,
        draining: Callable[[], bool],
        invoke: Callable[..., None],
        series: Callable[[Message], str | None],
    ) -> None:
        self.begun: list[Message] = []
        self.behind: list[Message] = []
        """Those that must not begin, because one before them in their group failed."""
        # Pass only the text, because an exception would keep cursors of the connection open.
        self.failures: dict[Message, tuple[str, str | None, type[BaseException]]] = {}
        self._handler = handler
        self._draining = draining
        self._invoke = invoke
        self._series = series

    def handle(self, messages: Sequence[Message], connection: Connection) -> list[Message]:
        """Handle messages until the time is over; returns those that did not fail.

        Raises:
            NotShared: something failed that cannot be blamed on one message unless it is handled
                alone.
        """
        options = connection.get_execution_options()
        ends_at = time.monotonic() + SHARED_SECONDS
        broken = set[str | None]()
        for message in messages:
            series = self._series(message)
            if series in broken:
                self.behind.append(message)
                continue
            self.begun.append(message)
            self._call(message, connection)
            if series is not None and (message in self.failures or is_given_back(message)):
                broken.add(series)
            # Its settings of the connection must not affect the others.
            changed = connection.get_execution_options() is not options
            if changed or time.monotonic() >= ends_at or self._draining():
                break
        return [message for message in self.begun if message not in self.failures]

    def _call(self, message: Message, connection: Connection) -> None:
        transaction = connection.get_transaction()
        # A savepoint begins a transaction, and on SQLite that takes the only write lock.
        undo = connection if transaction is None else connection.begin_nested()
        try:
            self._invoke([message], message, connection)
        except HandlerStopped:
            raise
        except BaseException as error:
            if not _is_its_own(error):
                raise NotShared(reason_of(error)) from error
            log_failure(self._handler.queue, [message], error)
            timed_out = isinstance(error, TimedOut)
            reason = reason_of(str(error) if timed_out else error) or ""
            trace = None if timed_out else traceback_of(error)
            self.failures[message] = reason, trace, type(error)
            note_unsettled(message)
            undo.rollback()
        else:
            if undo is not connection:
                undo.commit()
        if transaction is not None and connection.get_transaction() is not transaction:
            msg = "the handler ended the transaction"
            raise NotShared(msg)


def _is_its_own(error: BaseException) -> bool:
    # Other messages may have caused a deadlock or a lost claim.
    if isinstance(error, SQLAlchemyError):
        return isinstance(error, IntegrityError | DataError)
    return not isinstance(error, QueueError | NotShared)
