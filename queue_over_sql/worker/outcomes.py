"""Outcomes: what becomes of messages after the call of their handler."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from queue_over_sql.errors import (
    ClaimLost,
    DatabaseUnavailable,
    QueueError,
    QueueNotFound,
    QueueSchemaMismatch,
    SchemaTooNew,
    ServiceClosed,
)
from queue_over_sql.message import is_committed
from queue_over_sql.observer import log_fields, log_lost
from queue_over_sql.queue import core_of
from queue_over_sql.settling.failures import users_frames
from queue_over_sql.worker.handler import ResultNotKept
from queue_over_sql.worker.time_limits import TimedOut

if TYPE_CHECKING:
    from queue_over_sql.message import Message
    from queue_over_sql.queue import Queue

_log = logging.getLogger(__name__)


class Outcomes:
    """Nacks or releases the messages of one handler, and logs failures and lost claims.

    Args:
        queue: the queue of the messages.
        insist: repeats what the unavailable database prevents.
        on_failure: is also called with each failure of the handler.
    """

    def __init__(
        self,
        queue: Queue,
        insist: Callable[[Callable[[], None]], None],
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._queue = queue
        self._insist = insist
        self._on_failure = on_failure
        self.abandoned = False
        """Whether the last call was abandoned, so that another thread settles its messages."""

    def failed(self, messages: Sequence[Message], error: BaseException) -> None:
        """Nack the messages of a failed call, but not those that it has settled for good.

        A lost claim only ends its own messages.
        """
        if self._on_failure is not None:
            self._on_failure(error)
        if isinstance(error, ClaimLost):
            log_lost(self._queue.name, error)
            messages = [message for message in messages if message not in error.messages]
        else:
            log_failure(self._queue.name, messages, error)
        messages = [message for message in messages if not is_committed(message)]
        if messages:
            timed_out = isinstance(error, TimedOut)
            self.nack(messages, str(error) if timed_out else error, exception=type(error))

    def nack(
        self,
        messages: Sequence[Message],
        error: str | BaseException,
        traceback: str | None = None,
        exception: type[BaseException] | None = None,
    ) -> None:
        """Nack them, also those that the handler settled: that may have been rolled back.

        If it was not, the fence refuses. ``traceback`` and ``exception`` belong to an error that is
        a text. After ``ResultNotKept`` there is no further attempt: it would run the handler again
        for nothing.
        """
        final = exception is not None and issubclass(exception, ResultNotKept)

        def nack() -> None:
            try:
                core_of(self._queue).settlements.nack(
                    list(messages),
                    error=error,
                    traceback=traceback,
                    exception=exception,
                    final=final,
                )
            except ClaimLost as lost:
                log_lost(self._queue.name, lost)

        self._settle_at_last(nack)

    def ack(self, messages: Sequence[Message]) -> None:
        """Ack them now, unless the call was abandoned."""
        if messages and not self.abandoned:
            self._settle_at_last(lambda: self._queue.ack(list(messages)))

    def give_back(self, messages: Sequence[Message]) -> None:
        """Release them, unless the call was abandoned."""
        if messages and not self.abandoned:
            self.release(messages)

    def release(self, messages: Sequence[Message]) -> None:
        """Release them."""
        self._settle_at_last(lambda: self._queue.release(list(messages)))

    def give_back_behind(self, messages: Sequence[Message]) -> None:
        """Release what is behind others that came back, and that may have taken it along."""
        if messages and not self.abandoned:
            self.release_behind(messages)

    def release_behind(self, messages: Sequence[Message]) -> None:
        """Release what may have been given back already."""
        self._settle_at_last(lambda: release_quietly(self._queue, messages))

    def _settle_at_last(self, settle: Callable[[], None]) -> None:
        """Settle, even after an outage; one failing message must not prevent the others."""
        try:
            self._insist(settle)
        except ClaimLost as lost:
            log_lost(self._queue.name, lost)
        except QueueError as error:
            _log.warning(
                "Queue %s: messages could not be settled; they are redelivered when "
                "their leases expire: %s",
                self._queue.name,
                error,
            )


def log_failure(queue: str, messages: Sequence[Message], error: BaseException) -> None:
    """Log the exception of a handler, with the traceback of the user's code."""
    names = ", ".join(map(repr, messages))
    _log.warning(
        "The handler of queue %s raised an exception for message %s.",
        queue,
        names,
        exc_info=(type(error), error, users_frames(error)),
        extra=log_fields(queue, messages),
    )


def release_each(queue: Queue, messages: Sequence[Message]) -> None:
    """Release; one failing message must not prevent the others."""
    settle_each(queue, queue.release, messages)


def release_quietly(queue: Queue, messages: Sequence[Message]) -> None:
    """As ``release_each``, where the database may have given them back already."""

    def release(held: Sequence[Message]) -> None:
        with contextlib.suppress(ClaimLost):
            queue.release(held)

    settle_each(queue, release, messages)


def settle_each(
    queue: Queue,
    do: Callable[[Sequence[Message]], object],
    messages: Sequence[Message],
    refused: list[Message] | None = None,
) -> None:
    """Ack or release; one failing message must not prevent the others.

    Those that the database refused are added to ``refused``.

    Raises:
        DatabaseUnavailable, QueueSchemaMismatch, SchemaTooNew, ServiceClosed: as the verbs.
    """
    unsettled = [message for message in messages if not message.settled]
    held = [message for message in unsettled if queue.holds(message)]
    if len(held) < len(unsettled):
        lost = len(unsettled) - len(held)
        _log.warning("Queue %s: this consumer expired while it held %d messages.", queue.name, lost)
    try:
        if held:
            do(held)
    except ClaimLost as error:
        log_lost(queue.name, error)
    except (DatabaseUnavailable, QueueSchemaMismatch, SchemaTooNew, ServiceClosed):
        raise
    except QueueError as error:
        if len(held) > 1 and not isinstance(error, QueueNotFound):
            for message in held:
                settle_each(queue, do, [message], refused)
            return
        if refused is not None and not isinstance(error, QueueNotFound):
            refused += held
            _log.warning(
                "Queue %s: message %r is handled, but the database refuses its ack. The worker "
                "keeps it and tries again: %s",
                queue.name,
                held[0],
                error,
            )
            return
        _log.warning(
            "Queue %s: messages could not be settled; they are redelivered when "
            "their leases expire: %s",
            queue.name,
            error,
        )
