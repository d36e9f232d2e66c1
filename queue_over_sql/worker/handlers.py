"""Handlers: how a worker handles messages, and how each message is settled."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import functools
import inspect
import itertools
import logging
import os
import sys
import time
import traceback
import types
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypedDict, TypeVar

from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from queue_over_sql.consumer import elapsed_clock
from queue_over_sql.dialects.base import ErrorKind
from queue_over_sql.errors import ClaimLost, DatabaseUnavailable, QueueError, visible
from queue_over_sql.message import lease_ends_at, may_come_in_time
from queue_over_sql.observer import facts_of, log_fields, log_lost
from queue_over_sql.queue import core_of
from queue_over_sql.queues.settle import reason_of, traceback_of, users_frames
from queue_over_sql.values.backoff import Backoff

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.database.connections import Connections
    from queue_over_sql.message import Message
    from queue_over_sql.observer import Observers
    from queue_over_sql.queue import Queue
    from queue_over_sql.values.durations import Duration


_log = logging.getLogger(__name__)

M = TypeVar("M")
P = ParamSpec("P")
R = TypeVar("R")
HandlerFunction = Callable[..., Any]
Middleware = Callable[[Any, Callable[[], Any]], Any]
SHARED_SECONDS = 0.05
"""After this time, a shared transaction begins no further message."""


@dataclasses.dataclass(frozen=True)
class Handler:
    """One function for the messages of one queue; see ``Worker.handle``."""

    queue: str
    function: HandlerFunction
    transactional: bool
    lease_keepalive: bool
    batch: int | None
    where: ColumnElement[bool] | None = None
    commit_every: int = 1
    timeout: float | None = None
    slow_after: float | None = None
    on_slow: Callable[[Any, float], object] | None = None


class HandlerOptions(TypedDict, Generic[M], total=False):
    """The arguments of ``Worker.handle`` that leave the signature of the handler as it is."""

    lease_keepalive: bool
    where: ColumnElement[bool] | None
    commit_every: int
    timeout: Duration | None
    slow_after: Duration | None
    on_slow: Callable[[M, float], object] | None


class HandlerDecorator(Protocol[P]):
    """What ``Worker.handle`` returns: it takes functions with these parameters."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...  # noqa: D102


class HandlerStopped(asyncio.CancelledError):
    """The handler was cancelled because its worker was told to stop; it did not fail."""


class CallAbandoned(HandlerStopped):
    """The call took too long and was abandoned; its messages are already settled."""


class TimedOut(Exception):
    """The call was interrupted at its time limit; the text is the reason."""


class Watch(Protocol):
    """Interrupts calls; see ``worker/calls.py``."""

    def calling(
        self, handler: Handler, messages: Sequence[Message], abandon: Callable[[str], None]
    ) -> contextlib.AbstractContextManager[None]:
        """Supervise one call, which the block makes."""


class _NotCalled(Exception):
    """The database could not be reached before the call, so the handler did not fail."""


class _Conflict(Exception):
    """The database rolled the transaction back for a reason that is not the handler's."""


# How often, and for how many seconds, a transaction is repeated that the database rolled back.
_REPEATS = 10
_REPEAT_SECONDS = 30.0


class HandlerRun:
    """Runs one handler on claimed messages, and settles each of them or logs its lost claim.

    One thread runs it, and closes it while it has no messages.
    """

    def __init__(
        self,
        handler: Handler,
        queue: Queue,
        connections: Connections,
        insist: Callable[[Callable[[], None]], None],
        draining: Callable[[], bool],
        *,
        watch: Watch | None = None,
        stuck: Callable[[Sequence[Message], Callable[[], None]], None] | None = None,
    ) -> None:
        self._handler = handler
        self._watch = watch
        self._stuck = stuck
        self._taken: Sequence[Message] = ()
        self.abandoned = False
        """Whether its last call was abandoned; its thread may still be running it."""
        self.queue = queue
        self._connections = connections
        self._insist = insist
        self._draining = draining
        self._connection = connections.keeping() if handler.transactional else None
        self.used_at = time.monotonic()
        """When its last call ended."""
        self.unbegun: list[Message] = []
        """Messages of the last call that need their own transactions."""

    def close(self) -> None:
        """Give back the connection of a transactional handler."""
        if self._connection is not None:
            self._connection.close()

    def handle(self, messages: Sequence[Message]) -> list[Message]:
        """Call the handler; returns the messages that must still be acked."""
        self.unbegun = []
        self._taken = messages
        held = [m for m in messages if self.queue.holds(m) and not m.cancelled]
        if len(held) < len(messages):
            _log.warning(
                "Queue %s: the worker skips messages whose claims are lost.", self.queue.name
            )
        held = self._in_time(held)
        if not held:
            return []
        if len(held) > 1 and not self._handler.batch:
            self._call_together(held)
            finished = []
        else:
            finished = self._call(held)
        self.used_at = time.monotonic()
        return finished

    def _in_time(self, messages: list[Message]) -> list[Message]:
        """Those whose lease runs; gives back the others, uncounted, unless it is very short."""
        now = elapsed_clock()
        late = [message for message in messages if now >= lease_ends_at(message)]
        if not late:
            return messages
        _log.warning(
            "Queue %s: the worker skips messages whose lease ended before their handler began. "
            "Set a longer lease, or a smaller prefetch: %s",
            self.queue.name,
            ", ".join(map(repr, late)),
        )
        self._give_back([message for message in late if may_come_in_time(message)])
        return [message for message in messages if message not in late]

    def _call_together(self, messages: list[Message]) -> None:
        shared = _SharedTransaction(self._handler, self._draining, self._invoke)
        committed = False
        try:
            self._in_transaction(messages, lambda connection: shared.handle(messages, connection))
            committed = True
        except _NotCalled as error:
            _log.info("Queue %s: %s", self.queue.name, error.__cause__)
            self._give_back(messages)
            return
        except CallAbandoned:
            raise
        except asyncio.CancelledError:
            self._give_back(messages)
            raise
        except Exception as error:  # noqa: BLE001 - what it is shows when they are handled alone
            _log.info(
                "Queue %s: a shared transaction failed, so its messages are handled one by one: %s",
                self.queue.name,
                visible(str(error), keep=""),
            )
        self.unbegun = messages[len(shared.begun) :]
        if not committed:
            self._call_one_by_one(shared.begun, shared.failures)
            return
        for message, (reason, text) in shared.failures.items():
            core_of(self.queue).settlements.keep_traceback([message], text)
            self._nack([message], reason)

    def _call_one_by_one(
        self, messages: list[Message], failures: Mapping[Message, tuple[str, str | None]]
    ) -> None:
        for index, message in enumerate(messages):
            if self._draining() or not self.queue.holds(message):
                self._give_back(messages[index:])
                return
            if message.cancelled:
                # It timed out, or its claim is lost.
                if message in failures:
                    self._nack([message], failures[message][0])
                continue
            try:
                self._call([message])
            except CallAbandoned:
                raise
            except HandlerStopped:
                self._give_back(messages[index + 1 :])
                raise

    def _call(self, messages: list[Message]) -> list[Message]:
        argument: Any = messages if self._handler.batch else messages[0]

        def act(connection: Connection) -> list[Message]:
            self._invoke(messages, argument, connection)
            return messages

        try:
            if self._handler.transactional:
                self._in_transaction_at_last(messages, act)
                return []
            self._invoke(messages, argument)
        except _NotCalled as error:
            _log.info("Queue %s: %s", self.queue.name, error.__cause__)
            self._give_back(messages)
            return []
        except CallAbandoned:
            # The abandoning thread settles its messages.
            raise
        except HandlerStopped:
            self._give_back(messages)
            raise
        except _Conflict as error:
            _log.info("Queue %s: %s", self.queue.name, error.__cause__)
            self._give_back(messages)
            return []
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
            self._failed(messages, error)
            return []
        return [message for message in messages if not message.settled]

    def _invoke(self, messages: list[Message], argument: Any, *lent: Connection) -> None:
        observer = core_of(self.queue).context.observer
        if observer is None and not _log.isEnabledFor(logging.DEBUG):
            self._invoke_watched(messages, argument, *lent)
            return
        with _telling(self.queue.name, messages, observer):
            self._invoke_watched(messages, argument, *lent)

    def _invoke_watched(self, messages: list[Message], argument: Any, *lent: Connection) -> None:
        if self._watch is None:
            self._invoke_lending(argument, *lent)
            return
        with self._watch.calling(
            self._handler, messages, lambda reason: self._abandon(messages, reason, *lent)
        ):
            self._invoke_lending(argument, *lent)

    def _invoke_lending(self, argument: Any, *lent: Connection) -> None:
        with self._connections.lending(lent[0]) if lent else contextlib.nullcontext():
            # What a message leaves in context variables must not be seen by the next one.
            context, process = contextvars.copy_context(), os.getpid()
            try:
                result = context.run(self._handler.function, argument, *lent)
            except BaseException as error:
                if os.getpid() != process:
                    _end_child(error)
                raise
            if os.getpid() != process:
                _end_child()
            refuse_unfinished(result)

    def _abandon(self, messages: list[Message], reason: str, *lent: Connection) -> None:
        """Settle the messages of a call that does not end; called from another thread or task."""
        self.abandoned = True
        others = [m for m in self._taken if m not in messages and not m.settled]
        observer = core_of(self.queue).context.observer
        if observer is not None:
            seconds = self._handler.timeout or 0.0
            observer.handled(self.queue.name, facts_of(messages), seconds, TimedOut(reason))

        def settle() -> None:
            # Abort its transaction first, because it may have locked the rows of its messages.
            for connection in lent:
                self._connections.break_off(connection)
            self._nack(messages, reason)
            if others:
                self._settle_at_last(lambda: self.queue.release(others))

        _log.warning(
            "Queue %s: the handler of message %s %s. It cannot be stopped, so the worker abandons "
            "the call and continues. The call can no longer settle the message.",
            self.queue.name,
            ", ".join(map(repr, messages)),
            reason,
        )
        if self._stuck is not None:
            self._stuck(self._taken, settle)

    def _in_transaction_at_last(
        self, messages: list[Message], act: Callable[[Connection], list[Message]]
    ) -> None:
        """Repeat a transaction that conflicted with others, or met a server that only reads.

        Neither is a failure of the handler, so these tries do not count as attempts.

        Raises:
            _Conflict: the messages must be given back, because the server still only reads or the
                worker stops.
        """
        pauses, ends_at = Backoff(0.01, 1.0), time.monotonic() + _REPEAT_SECONDS
        for tries in itertools.count(1):
            try:
                self._in_transaction(messages, act)
            except (_NotCalled, CallAbandoned, HandlerStopped):
                raise
            except Exception as error:
                late = tries > _REPEATS or time.monotonic() > ends_at
                if late or not self._may_repeat(error, tries):
                    raise
                if self._draining() or not all(map(self.queue.holds, messages)):
                    raise _Conflict from error
                _log.info(
                    "Queue %s: the database rolled back the transaction of a handler, which is "
                    "not to blame, so it runs again: %s",
                    self.queue.name,
                    visible(str(error).partition("\n")[0], keep=""),
                )
            else:
                return
            self._connections.runtime.sleep(pauses.pause())

    def _may_repeat(self, error: Exception, tries: int) -> bool:
        kind = self._connections.kind_behind(error)
        if kind is not ErrorKind.READ_ONLY:
            return kind is ErrorKind.TRANSIENT
        # The first time it was the kept connection's server. The second time that may have begun
        # to write just now. Then it is the handler's doing.
        if tries > 1 and self._connections.server_reads_only():
            raise _Conflict from error
        return tries == 1 or (tries == 2 and self._connections.writes_again())  # noqa: PLR2004

    def _in_transaction(
        self, messages: list[Message], act: Callable[[Connection], list[Message]]
    ) -> None:
        called = returned = False
        try:
            with self._connections.transaction(self._connection) as connection:
                self._connections.reach(connection)
                called = True
                try:
                    finished = act(connection)
                except CallAbandoned:
                    # It was broken off, so nobody may use it again.
                    connection.invalidate()
                    raise
                returned = True
                unsettled = [message for message in finished if not message.settled]
                if unsettled:
                    self.queue.ack(unsettled, connection=connection)
        except CallAbandoned:
            raise
        except BaseException as error:
            # A rollback also undid all settling inside.
            for message in messages:
                message.settled = False
            if not called and isinstance(error, DatabaseUnavailable):
                raise _NotCalled from error
            if called == returned and isinstance(error, asyncio.CancelledError):
                raise HandlerStopped from error
            raise

    def _failed(self, messages: Sequence[Message], error: BaseException) -> None:
        if isinstance(error, ClaimLost):
            log_lost(self.queue.name, error)
            messages = [message for message in messages if message not in error.messages]
        else:
            _log_failure(self.queue.name, messages, error)
        if messages:
            self._nack(messages, str(error) if isinstance(error, TimedOut) else error)

    def _nack(self, messages: Sequence[Message], error: str | BaseException) -> None:
        def nack() -> None:
            # Include messages that the handler settled, since that may have been rolled back. If it
            # was not, the fence refuses.
            try:
                self.queue.nack(list(messages), error=error)
            except ClaimLost as lost:
                log_lost(self.queue.name, lost)

        self._settle_at_last(nack)

    def _give_back(self, messages: Sequence[Message]) -> None:
        if messages and not self.abandoned:
            self._settle_at_last(lambda: self.queue.release(list(messages)))

    def _settle_at_last(self, settle: Callable[[], None]) -> None:
        """Settle, even after an outage; one failing message must not prevent the others."""
        try:
            self._insist(settle)
        except ClaimLost as lost:
            log_lost(self.queue.name, lost)
        except QueueError as error:
            _log.warning(
                "Queue %s: messages could not be settled; they are redelivered when "
                "their leases expire: %s",
                self.queue.name,
                error,
            )


FunctionKind = Literal[
    "plain function",
    "coroutine function",
    "generator function",
    "asynchronous generator function",
]


def kind_of(function: Callable[..., Any]) -> FunctionKind:
    """What a call of the function does: run it, or only return something that can run it."""
    called: Any = function
    while isinstance(called, functools.partial):
        called = called.func
    if not inspect.isroutine(called):
        called = type(called).__call__
    if inspect.iscoroutinefunction(called):
        return "coroutine function"
    if inspect.isasyncgenfunction(called):
        return "asynchronous generator function"
    return "generator function" if inspect.isgeneratorfunction(called) else "plain function"


def check_kind(function: Callable[..., Any], what: str, *, asynchronous: bool = False) -> None:
    """Raise TypeError if a worker would call the function, but its code would never run.

    Args:
        function: the function.
        what: what it is, for the error.
        asynchronous: whether the worker awaits what it returns.
    """
    kind, wanted = kind_of(function), _wanted(asynchronous=asynchronous)
    if kind == wanted:
        return
    if "generator" in kind:
        advice = "a call of it does not run its code. Remove the yield, or loop over it yourself"
    elif asynchronous:
        advice = "a plain function would block the event loop. Wrap it with asyncio.to_thread"
    else:
        advice = (
            "nothing awaits it here. AsyncQueueService of queue_over_sql.aio takes asynchronous "
            "handlers"
        )
    form = " (async def)" if asynchronous else ""
    article = "an" if kind.startswith("a") else "a"
    msg = f"{what} must be a {wanted}{form}, not {article} {kind}: {advice}"
    raise TypeError(msg)


def _wanted(*, asynchronous: bool) -> FunctionKind:
    return "coroutine function" if asynchronous else "plain function"


def check_parameters(
    function: Callable[..., object], queue: str, *, transactional: bool, batch: bool
) -> None:
    """Raise TypeError if a worker cannot call the function with what it hands over."""
    given = ("a list of messages" if batch else "a message", "a connection")[: 1 + transactional]
    try:
        signature = inspect.signature(function)
    except ValueError:
        # Some functions written in C do not tell theirs.
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        msg = (
            f"the handler of queue {queue!r} takes {signature}, but "
            f"{'with' if transactional else 'without'} transactional=True the worker calls it with "
            f"{' and '.join(given)}"
        )
        raise TypeError(msg) from error


def check_middleware(given: Sequence[Middleware], *, asynchronous: bool) -> tuple[Middleware, ...]:
    """Check the middleware functions.

    Raises:
        TypeError: one is not a function, or not of the same kind as the handlers.
    """
    several = (given,) if callable(given) else tuple(given)
    for each in several:
        if not callable(each) or kind_of(each) != _wanted(asynchronous=asynchronous):
            kind = "coroutine functions (async def)" if asynchronous else "plain functions"
            msg = f"middleware of this worker must be {kind}, not {each!r}"
            raise TypeError(msg)
    return several


def within_middleware(
    middleware: Sequence[Middleware], function: HandlerFunction
) -> HandlerFunction:
    """A handler with middleware around it, the first one outermost."""
    if middleware:
        # A middleware need not return the result of the handler.
        function = functools.partial(_call_checked, function)
    for around in reversed(middleware):
        function = functools.partial(_call_within, around, function)
    return function


def _call_checked(function: HandlerFunction, *arguments: Any) -> None:
    refuse_unfinished(function(*arguments))


def _call_within(around: Middleware, function: HandlerFunction, message: Any, *rest: Any) -> Any:
    return around(message, functools.partial(function, message, *rest))


def awaited_within(
    middleware: Sequence[Middleware], function: Callable[..., Awaitable[Any]]
) -> Callable[..., Awaitable[Any]]:
    """As ``within_middleware``, for coroutine functions."""
    function = functools.partial(_await_checked, function)
    for around in reversed(middleware):
        function = functools.partial(_await_within, around, function)
    return function


async def _await_checked(function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
    refuse_unfinished(await function(*arguments))


async def _await_within(
    around: Middleware, function: Callable[..., Awaitable[Any]], message: Any, *rest: Any
) -> None:
    refuse_unfinished(await around(message, functools.partial(function, message, *rest)))


@contextlib.contextmanager
def _telling(queue: str, messages: Sequence[Message], observer: Observers | None) -> Iterator[None]:
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
        if observer is not None and not isinstance(error, HandlerStopped):
            observer.handled(queue, facts, seconds, error)
        if error is None:
            names = ", ".join(map(repr, messages))
            fields = log_fields(queue, messages)
            _log.debug("Handled %s in %.3f s.", names, seconds, extra=fields)
        # Without its frames, which would keep cursors of the connection open.
        error = None


class _NotShared(Exception):
    """These messages need transactions of their own."""


class _SharedTransaction:
    """Handles several messages in one transaction, with a savepoint for each."""

    def __init__(
        self, handler: Handler, draining: Callable[[], bool], invoke: Callable[..., None]
    ) -> None:
        self.begun: list[Message] = []
        # Pass only the text, because an exception would keep cursors of the connection open.
        self.failures: dict[Message, tuple[str, str | None]] = {}
        self._handler = handler
        self._draining = draining
        self._invoke = invoke

    def handle(self, messages: Sequence[Message], connection: Connection) -> list[Message]:
        """Handle messages until the time is over; returns those that did not fail.

        Raises:
            _NotShared: something failed that cannot be blamed on one message unless it is handled
                alone.
        """
        options = connection.get_execution_options()
        ends_at = time.monotonic() + SHARED_SECONDS
        for message in messages:
            self.begun.append(message)
            self._call(message, connection)
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
                raise _NotShared(str(error)) from error
            _log_failure(self._handler.queue, [message], error)
            timed_out = isinstance(error, TimedOut)
            reason = reason_of(str(error) if timed_out else error) or ""
            self.failures[message] = reason, None if timed_out else traceback_of(error)
            message.settled = False
            undo.rollback()
        else:
            if undo is not connection:
                undo.commit()
        if transaction is not None and connection.get_transaction() is not transaction:
            msg = "the handler ended the transaction"
            raise _NotShared(msg)


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


def _is_its_own(error: BaseException) -> bool:
    # Other messages may have caused a deadlock or a lost claim.
    if isinstance(error, SQLAlchemyError):
        return isinstance(error, IntegrityError | DataError)
    return not isinstance(error, QueueError | _NotShared)


def _log_failure(queue: str, messages: Sequence[Message], error: BaseException) -> None:
    names = ", ".join(map(repr, messages))
    _log.warning(
        "The handler of queue %s raised an exception for message %s.",
        queue,
        names,
        exc_info=(type(error), error, users_frames(error)),
        extra=log_fields(queue, messages),
    )


# Their code runs when somebody loops over them.
_LAZY = (types.GeneratorType, types.AsyncGeneratorType, filter, map, itertools.starmap)


def refuse_unfinished(result: object) -> None:
    """Refuse the result of a handler that did not run, or that left work unfinished.

    Raises:
        TypeError: the result is a generator, a coroutine, a future, or the like.
    """
    if result is None or (advice := _advice_on(result)) is None:
        return
    if inspect.iscoroutine(result):
        # Else Python warns about it, too.
        result.close()
    msg = f"the handler returned an object of type {type(result).__name__}, {advice}"
    raise TypeError(msg)


def _advice_on(result: object) -> str | None:
    if isinstance(result, _LAZY):
        return "whose code has not run: loop over it in the handler"
    if inspect.iscoroutine(result):
        return (
            "whose code has not run: await it in a coroutine function (async def), which "
            "AsyncQueueService of queue_over_sql.aio takes as a handler"
        )
    # Look at the class, because objects of unittest.mock have every attribute.
    if inspect.isawaitable(result) or hasattr(type(result), "add_done_callback"):
        return "whose work may not be finished: wait for its result in the handler"
    pool = sys.modules.get("multiprocessing.pool")
    if pool is not None and isinstance(result, pool.AsyncResult):
        return "whose work may not be finished: call its get() in the handler"
    return None


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
