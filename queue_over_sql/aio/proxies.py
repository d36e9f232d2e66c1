"""Faces: asynchronous objects in front of synchronous ones, whose methods run in greenlets.

A face holds the synchronous object and has methods of the same names. What they take and do is
written once, on the synchronous side: ``awaited`` and ``awaited_as`` take over a method with its
whole signature, and ``twin`` declares one whose types differ, because it takes or gives faces or
the caller's ``AsyncConnection``. Results that have a face are given as faces, and faces that are
passed in stand for what they hold.

To give a synchronous class an asynchronous face: write a subclass of ``Face``, decorate it with
``@face_of(TheClass)``, and list its methods.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.util import greenlet_spawn

from queue_over_sql.errors import ClaimLost

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])
C = TypeVar("C", bound="type[Face[Any]]")

_CONNECTIONS = (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    Connection,
    Session,
    scoped_session,
)
_faces: dict[type, Callable[[Any], Face[Any]]] = {}


class Face(Generic[S]):
    """An asynchronous object in front of a synchronous one; equal to others in front of it."""

    __slots__ = ("__weakref__", "_sync")

    def __init__(self, sync: S) -> None:
        self._sync = sync

    def __eq__(self, other: object) -> bool:
        return self._sync is (other._sync if isinstance(other, Face) else other)

    def __hash__(self) -> int:
        return hash(self._sync)

    def __repr__(self) -> str:
        return f"<Async{repr(self._sync).removeprefix('<')}"


def face_of(sync: type) -> Callable[[C], C]:
    """Make a class the face of a synchronous one: its instances are given as such faces."""

    def register(face: C) -> C:
        _faces[sync] = face
        return face

    return register


class Fact(Generic[T]):
    """An attribute that the synchronous object knows without asking the database."""

    def __init__(self, getter: Callable[[Any], T]) -> None:
        self._get: Callable[[Any], T] = getattr(getter, "fget", getter)
        self.__doc__ = getter.__doc__

    @overload
    def __get__(self, face: None, owner: type[Any]) -> Fact[T]: ...
    @overload
    def __get__(self, face: Face[Any], owner: type[Any]) -> T: ...
    def __get__(self, face: Face[Any] | None, owner: type[Any]) -> Fact[T] | T:
        return self if face is None else self._get(face._sync)  # noqa: SLF001 - it is our own


def awaited(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The asynchronous twin of a method, with its parameters and its result."""
    return _twin_of(method)


def awaited_as(
    face: type[T], method: Callable[Concatenate[Any, P], Any]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The asynchronous twin of a method whose result has a face."""
    del face
    return _twin_of(method)


def awaited_list(
    face: type[T], method: Callable[Concatenate[Any, P], Any]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, list[T]]]:
    """The asynchronous twin of a method that returns a list of what has a face."""
    del face
    return _twin_of(method)


def twin(method: Callable[..., Any]) -> Callable[[F], F]:
    """Declare the asynchronous twin of a method whose types differ; its body is never run.

    Its parameters must have the names and defaults of those of the method.
    """

    def decorate(declared: F) -> F:
        twin_of: Any = _twin_of(method)
        twin_of.__annotations__ = declared.__annotations__
        twin_of.__wrapped__ = declared
        done: F = twin_of
        return done

    return decorate


async def run(act: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Any:
    """Call a function of the synchronous core in a greenlet, with faces outside of it.

    Raises:
        ClaimLost: with faces as its ``messages``.
    """
    given = [inward(value) for value in args]
    named = {name: inward(value) for name, value in kwargs.items()}
    spawned: Any = greenlet_spawn
    try:
        return outward(await spawned(act, *given, **named))
    except ClaimLost as error:
        error.messages = outward(list(error.messages))
        raise


def outward(value: Any) -> Any:
    """The face of what has one, also inside a list or as the values of a dictionary."""
    make = _faces.get(type(value))
    if make is not None:
        return make(value)
    if type(value) is list:
        return [outward(each) for each in value] if value and type(value[0]) in _faces else value
    if type(value) is dict:
        return {name: outward(each) for name, each in value.items()}
    return value


def inward(value: Any) -> Any:
    """What a face holds, and the synchronous side of the caller's connection or session."""
    if isinstance(value, Face):
        return value._sync  # noqa: SLF001 - it is our own
    if isinstance(value, list | tuple | set | frozenset):
        if any(isinstance(each, Face) for each in value):
            return [inward(each) for each in value]
        return value
    if isinstance(value, _CONNECTIONS):
        return _sync_side(value)
    return value


def _sync_side(connection: Any) -> Any:
    """What the core works with of a caller's connection or session.

    Raises:
        TypeError: it is a synchronous one.
        ValueError: it was not begun.
    """
    if isinstance(connection, async_scoped_session):
        connection = connection()
    if isinstance(connection, AsyncSession):
        return connection.sync_session
    if not isinstance(connection, AsyncConnection):
        msg = (
            "connection must be an AsyncConnection or AsyncSession, not "
            f"{type(connection).__name__}: a synchronous one would hold up the event loop. Make it "
            "with create_async_engine(), or use QueueService with it"
        )
        raise TypeError(msg)
    if connection.sync_connection is None:
        msg = "connection was not begun: use it inside 'async with engine.begin() as connection'"
        raise ValueError(msg)
    return connection.sync_connection


def _twin_of(method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    name = method.__name__

    @functools.wraps(method)
    async def call(face: Face[Any], /, *args: Any, **kwargs: Any) -> Any:
        # Looked up on the object: it may be of a subclass.
        return await run(getattr(face._sync, name), *args, **kwargs)  # noqa: SLF001

    return call
