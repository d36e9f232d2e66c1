"""Proxies: asynchronous objects in front of synchronous ones, whose methods run in greenlets.

A proxy holds the synchronous object and has methods of the same names, whose parameters and effects
are defined only on the synchronous side. ``awaited``, ``awaited_as`` and ``returned_as`` take over
a method with its whole signature. ``proxied`` declares one whose types differ, because it takes
proxies or the caller's ``AsyncConnection``. Results are returned as proxies if they have one.
Proxies in arguments are replaced by their synchronous objects.

To give a synchronous class a proxy: write a subclass of ``Proxy``, decorate it with
``@proxy_of(TheClass)``, and list its methods.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from types import GeneratorType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.util import greenlet_spawn

from queue_over_sql.errors import ClaimLost, NotFinished

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])
C = TypeVar("C", bound="type[Proxy[Any]]")

_CONNECTIONS = (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    Connection,
    Session,
    scoped_session,
)
_proxies: dict[type, Callable[[Any], Proxy[Any]]] = {}


class Proxy(Generic[S]):
    """An asynchronous object in front of a synchronous one; equal to others in front of it."""

    __slots__ = ("__weakref__", "_sync")

    def __init__(self, sync: S) -> None:
        self._sync = sync

    def __eq__(self, other: object) -> bool:
        return self._sync is (other._sync if isinstance(other, Proxy) else other)

    def __hash__(self) -> int:
        return hash(self._sync)

    def __repr__(self) -> str:
        return f"<Async{repr(self._sync).removeprefix('<')}"


def proxy_of(sync: type) -> Callable[[C], C]:
    """Make a class the proxy class of a synchronous class."""

    def register(proxy: C) -> C:
        _proxies[sync] = proxy
        return proxy

    return register


class Fact(Generic[T]):
    """An attribute that needs no query."""

    # pyright sees a property without a type here, so each fact is declared with one.
    def __init__(self, getter: Callable[[Any], T] | property) -> None:
        known: Any = getter
        self._get: Callable[[Any], T] = getattr(known, "fget", known)
        self.__doc__ = getter.__doc__

    @overload
    def __get__(self, proxy: None, owner: type[Any]) -> Fact[T]: ...
    @overload
    def __get__(self, proxy: Proxy[Any], owner: type[Any]) -> T: ...
    def __get__(self, proxy: Proxy[Any] | None, owner: type[Any]) -> Fact[T] | T:
        return self if proxy is None else self._get(proxy._sync)  # noqa: SLF001 - it is our own


def awaited(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Make an awaitable method with the signature of the synchronous one."""
    return _proxied(method)


def awaited_as(
    proxy: type[T], method: Callable[Concatenate[Any, P], Any]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """As ``awaited``, for a method whose result has a proxy."""
    del proxy
    return _proxied(method)


def awaited_list(
    proxy: type[T], method: Callable[Concatenate[Any, P], Any]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, list[T]]]:
    """As ``awaited``, for a method that returns a list of objects with proxies."""
    del proxy
    return _proxied(method)


def returned_as(
    proxy: type[T], method: Callable[Concatenate[Any, P], Any]
) -> Callable[Concatenate[Any, P], T]:
    """Take over a method that needs no query, so is not awaited; its result has a proxy."""
    del proxy
    name = method.__name__

    @functools.wraps(method)
    def call(proxy: Proxy[Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            return outward(getattr(proxy._sync, name)(*args, **kwargs))  # noqa: SLF001
        except TypeError as error:
            _name_as_called(error, proxy, name)
            raise

    return call


def proxied(method: Callable[..., Any]) -> Callable[[F], F]:
    """Declare an awaitable method whose types differ; its body never runs.

    Its parameters must have the names and defaults of the synchronous method. ``**options`` stands
    for those that it does not name.
    """

    def decorate(declared: F) -> F:
        made: Any = _proxied(method)
        made.__annotations__ = declared.__annotations__
        made.__wrapped__ = declared
        made.__signature__ = _with_types(inspect.signature(method), inspect.signature(declared))
        done: F = made
        return done

    return decorate


def _with_types(whole: inspect.Signature, typed: inspect.Signature) -> inspect.Signature:
    *_, last = typed.parameters.values()
    if last.kind is not inspect.Parameter.VAR_KEYWORD:
        return typed
    known = {name: each.annotation for name, each in typed.parameters.items()}
    parameters = [
        each.replace(annotation=known.get(each.name, each.annotation))
        for each in whole.parameters.values()
    ]
    return typed.replace(parameters=parameters)


async def run(do: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Any:
    """Call a function of the synchronous core in a greenlet, and proxy its result.

    Raises:
        ClaimLost, NotFinished: with proxies as their ``messages``.
    """
    given = [inward(value) for value in args]
    named = {name: inward(value) for name, value in kwargs.items()}
    spawned: Any = greenlet_spawn
    try:
        return outward(await spawned(do, *given, **named))
    except (ClaimLost, NotFinished) as error:
        error.messages = outward(list(error.messages))
        raise


def outward(value: Any) -> Any:
    """Replace objects by their proxies, also in a list or as values of a dictionary."""
    make = _proxies.get(type(value))
    if make is not None:
        return make(value)
    if type(value) is list:
        return [outward(each) for each in value] if value and type(value[0]) in _proxies else value
    if type(value) is dict:
        return {name: outward(each) for name, each in value.items()}
    return value


_SEVERAL = (Sequence, AbstractSet, ValuesView)
# Payloads, which are sequences as well.
_WHOLE = (str, bytes, bytearray, memoryview)


def inward(value: Any) -> Any:
    """Replace a proxy by its object, and the caller's connection or session by its sync side."""
    if isinstance(value, Proxy):
        return value._sync  # noqa: SLF001 - it is our own
    if isinstance(value, GeneratorType):
        return (inward(each) for each in value)
    if isinstance(value, _SEVERAL) and not isinstance(value, _WHOLE):
        if any(isinstance(each, Proxy) for each in value):
            return [inward(each) for each in value]
        return value
    if isinstance(value, _CONNECTIONS):
        return _sync_side(value)
    return value


def _sync_side(connection: Any) -> Any:
    """The synchronous side of the caller's connection or session.

    Raises:
        TypeError: it is synchronous.
        ValueError: it is not open.
    """
    if isinstance(connection, async_scoped_session):
        connection = connection()
    if isinstance(connection, AsyncSession):
        return connection.sync_session
    if not isinstance(connection, AsyncConnection):
        msg = (
            "connection must be an AsyncConnection or AsyncSession, not "
            f"{type(connection).__name__}: a synchronous one would block the event loop. Create "
            "it with create_async_engine(), or use it with QueueService"
        )
        raise TypeError(msg)
    if connection.sync_connection is None:
        msg = "connection is not open: use it inside 'async with engine.begin() as connection'"
        raise ValueError(msg)
    return connection.sync_connection


def _proxied(method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    name = method.__name__

    @functools.wraps(method)
    async def call(proxy: Proxy[Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            # Look it up on the object, which may be of a subclass.
            return await run(getattr(proxy._sync, name), *args, **kwargs)  # noqa: SLF001
        except TypeError as error:
            _name_as_called(error, proxy, name)
            raise

    return call


def _name_as_called(error: TypeError, proxy: Proxy[Any], name: str) -> None:
    # For wrong arguments, Python names the synchronous method.
    text = str(error)
    called, bracket, rest = text.partition("() ")
    if bracket and called.rpartition(".")[2] == name:
        error.args = (f"{type(proxy).__name__}.{name}() {rest}",)
