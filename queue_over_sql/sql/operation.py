"""Operations: what to do on a connection, and what that needs of who runs it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar

from sqlalchemy import Connection

P = ParamSpec("P")
T = TypeVar("T")


class Operation(NamedTuple, Generic[T]):
    """Something to do on a connection.

    Attributes:
        do: the function that does it. It may run again after a deadlock, so it must have no other
            effects.
        atomic: it is several statements that need a transaction around them; otherwise each
            statement commits by itself.
        durable: the commit must survive a power failure, if the engine has a choice.
        repeatable: it may be done again if the connection broke, so that it is unknown whether it
            was committed.
        counts: its result says whether, or how often, it found something to change. If a
            repetition finds nothing, the first run may have changed it; then its error is raised.
        creates: it creates tables, outside of any transaction of the caller.
        wakes: it brings messages. Unless its result is empty or 0, consumers of the queue that
            wait look again.
        prompt: a working database answers it at once, if it gives way to those who hold locks.
    """

    do: Callable[[Connection], T]
    atomic: bool = False
    durable: bool = False
    repeatable: bool = True
    counts: bool = False
    creates: bool = False
    wakes: bool = False
    prompt: bool = False


Runnable: TypeAlias = Operation[T] | Callable[[Connection], T]
"""An operation, or a function that needs nothing: it reads, or is one repeatable statement."""


def as_operation(given: Runnable[T]) -> Operation[T]:
    """An operation as it is, or one that does what a function does and needs nothing."""
    return given if isinstance(given, Operation) else Operation(given)


class Declared(Generic[P, T]):
    """A function on a connection that says what it needs; see ``operation``.

    A call of it is a part of another operation.
    """

    def __init__(
        self,
        do: Callable[Concatenate[Connection, P], T],
        needs: tuple[bool, bool, bool, bool, bool, bool],
    ) -> None:
        self._do = do
        self._needs = needs
        functools.update_wrapper(self, do)

    def __call__(self, connection: Connection, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._do(connection, *args, **kwargs)

    def of(self, *args: P.args, **kwargs: P.kwargs) -> Operation[T]:
        """The operation with these arguments, to be run by itself."""
        do = self._do
        return Operation(lambda connection: do(connection, *args, **kwargs), *self._needs)


def operation(
    *,
    atomic: bool = False,
    durable: bool = False,
    repeatable: bool = True,
    counts: bool = False,
    creates: bool = False,
    wakes: bool = False,
) -> Callable[[Callable[Concatenate[Connection, P], T]], Declared[P, T]]:
    """Declare what a function needs when it is run by itself, in the words of `Operation`."""
    needs = (atomic, durable, repeatable, counts, creates, wakes)
    return lambda do: Declared(do, needs)
