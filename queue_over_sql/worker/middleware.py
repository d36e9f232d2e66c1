"""Middleware: functions of the user's around each call of a handler."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from queue_over_sql.worker.handler import (
    HandlerFunction,
    kind_of,
    refuse_unfinished,
    wanted_kind,
)

Middleware = Callable[[Any, Callable[[], Any]], Any]


def check_middleware(given: Sequence[Middleware], *, asynchronous: bool) -> tuple[Middleware, ...]:
    """Check the middleware functions.

    Raises:
        TypeError: one is not a function, or not of the same kind as the handlers.
    """
    several = (given,) if callable(given) or not isinstance(given, Iterable) else tuple(given)
    for each in several:
        if not callable(each) or kind_of(each) != wanted_kind(asynchronous=asynchronous):
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
