"""Handlers: what a worker calls, and what it refuses to call or to take for a result."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypedDict, TypeVar

from queue_over_sql.errors import PayloadInvalid, PayloadTooLarge, shown
from queue_over_sql.message import note_result
from queue_over_sql.payloads.codec import encode_result

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from queue_over_sql.message import Message
    from queue_over_sql.values.durations import Duration

M = TypeVar("M")
P = ParamSpec("P")
R = TypeVar("R")
HandlerFunction = Callable[..., Any]


class ResultNotKept(Exception):
    """A handler returned what cannot be stored as a result, and would do so again."""


def keeping_result(function: HandlerFunction) -> HandlerFunction:
    """A handler whose messages are acked with what it returns.

    A result that is no JSON value, or too large, is a failure that no further attempt mends.
    """

    def call(message: Message, *rest: Any) -> Any:
        result = function(message, *rest)
        refuse_unfinished(result)
        keep_as_result(message, result)
        return result

    return call


def keep_as_result(message: Message, result: object) -> None:
    """Note what a handler returned, unless it has settled the message itself.

    Raises:
        ResultNotKept: it cannot be stored.
    """
    if message.settled:
        return
    try:
        encoded = None if result is None else encode_result(result)
    except (PayloadInvalid, PayloadTooLarge) as error:
        msg = f"what the handler returned cannot be kept as its result: {error}"
        raise ResultNotKept(msg) from error
    note_result(message, encoded)


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
    keep_result: bool
    where: ColumnElement[bool] | None
    commit_every: int
    timeout: Duration | None
    slow_after: Duration | None
    on_slow: Callable[[M, float], object] | None


class HandlerDecorator(Protocol[P]):
    """What ``Worker.handle`` returns: it takes functions with these parameters."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...  # noqa: D102


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
    if not callable(function):
        msg = f"{what} must be a function, not {shown(function)}"
        raise TypeError(msg)
    kind, wanted = kind_of(function), wanted_kind(asynchronous=asynchronous)
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


def wanted_kind(*, asynchronous: bool) -> FunctionKind:
    """The kind of function that a worker takes."""
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
