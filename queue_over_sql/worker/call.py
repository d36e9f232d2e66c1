"""The call of a handler: within its time limit, in a context of its own, and observed."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from queue_over_sql.observer import facts_of, log_fields
from queue_over_sql.queue import core_of
from queue_over_sql.settling.failures import instead_of
from queue_over_sql.worker.handler import refuse_unfinished
from queue_over_sql.worker.time_limits import HandlerStopped
from queue_over_sql.worker.transactions import NotCalled

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.database.connections import Connections
    from queue_over_sql.message import Message
    from queue_over_sql.observer import Observers
    from queue_over_sql.queue import Queue
    from queue_over_sql.worker.handler import Handler
    from queue_over_sql.worker.time_limits import TimeLimits

R = TypeVar("R")
_log = logging.getLogger(__name__)


class HandlerCalls:
    """Calls the function of one handler.

    Args:
        handler: the handler.
        queue: the queue of its messages.
        connections: of the service.
        limits: interrupts calls that take too long; None if nothing interrupts them.
        abandon: settles the messages of a call that cannot be interrupted; called from another
            thread with them, the reason, and the connection of a transactional handler.
    """

    def __init__(
        self,
        handler: Handler,
        queue: Queue,
        connections: Connections,
        limits: TimeLimits | None,
        abandon: Callable[..., None],
    ) -> None:
        self._handler = handler
        self._queue = queue
        self._connections = connections
        self._limits = limits
        self._abandon = abandon

    def call(self, messages: list[Message], argument: Any, *connection: Connection) -> None:
        """Call it with its argument, and the connection of a transactional handler.

        Raises:
            TimedOut, ClaimLost, HandlerStopped, CallAbandoned: as ``TimeLimits.calling``.
            BaseException: what the handler raises.
        """
        observer = core_of(self._queue).context.observer
        if observer is None and not _log.isEnabledFor(logging.DEBUG):
            self._call_in_time(messages, argument, *connection)
            return
        with _reporting(self._queue.name, messages, observer):
            self._call_in_time(messages, argument, *connection)

    def _call_in_time(
        self, messages: list[Message], argument: Any, *connection: Connection
    ) -> None:
        if self._limits is None:
            self._call_function(argument, *connection)
            return
        with self._limits.calling(
            self._handler, messages, lambda reason: self._abandon(messages, reason, *connection)
        ):
            self._call_function(argument, *connection)

    def _call_function(self, argument: Any, *connection: Connection) -> None:
        with (
            self._connections.handlers.using(connection[0])
            if connection
            else contextlib.nullcontext()
        ):
            # What a message leaves in context variables must not be seen by the next one.
            context, process = contextvars.copy_context(), os.getpid()
            instead: BaseException | None = None
            result: object = None
            try:
                result = context.run(self._handler.function, argument, *connection)
            except BaseException as error:
                instead = instead_of(error)
                if os.getpid() != process:
                    _end_child(instead or error)
                if instead is None:
                    raise
            if instead is not None:
                # Here, because it must not lead to the other one.
                try:
                    raise instead
                finally:
                    del instead
            if os.getpid() != process:
                _end_child()
            refuse_unfinished(result)


@contextlib.contextmanager
def _reporting(
    queue: str, messages: Sequence[Message], observer: Observers | None
) -> Iterator[None]:
    facts = [] if observer is None else facts_of(messages)
    error: BaseException | None = None
    began = time.monotonic()
    try:
        with contextlib.nullcontext() if observer is None else observer.handling(queue, facts):
            yield
    except BaseException as failure:
        error = failure
        raise
    finally:
        seconds = time.monotonic() - began
        # An abandoned call was already reported, and a stopped one did not fail.
        if observer is not None and not isinstance(error, HandlerStopped | NotCalled):
            observer.handled(queue, facts, seconds, error)
        if error is None:
            names = ", ".join(map(repr, messages))
            fields = log_fields(queue, messages)
            _log.debug("Handled %s in %.3f s.", names, seconds, extra=fields)
        # Without its frames, which would keep cursors of the connection open.
        error = None


def _end_child(error: BaseException | None = None) -> None:
    """End a process that the handler forked, and that comes out of its call.

    It is a copy of the worker's thread: it would settle the message and end the transaction over
    the connection of its parent.
    """
    status: object = 1
    if error is None or isinstance(error, SystemExit):
        status = None if error is None else error.code
    else:
        traceback.print_exception(error)
    if not (status is None or isinstance(status, int)):
        with contextlib.suppress(Exception):
            sys.stderr.write(f"{status}\n")
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit((status or 0) & 0xFF)


class InContext(Awaitable[R]):
    """Awaits a coroutine so that the context variables that it sets are not set for the caller.

    It remains in the caller's task, which others may cancel.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, R]) -> None:
        self._coroutine = coroutine
        self._context = contextvars.copy_context()

    def __await__(self) -> Generator[Any, Any, R]:
        step: Callable[..., Any] = self._coroutine.send
        given: Any = None
        while True:
            try:
                awaited = self._context.run(step, given)
            except StopIteration as ended:
                result: R = ended.value
                return result
            try:
                given, step = (yield awaited), self._coroutine.send
            except BaseException as error:  # noqa: BLE001 - whatever it is, the coroutine gets it
                given, step = error, self._coroutine.throw
