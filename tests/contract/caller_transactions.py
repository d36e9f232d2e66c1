"""The two kinds of a caller's own transaction: a connection, and a session of the ORM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

Caller = Connection | Session
Opener = Callable[[Engine], Caller]

OPENERS: dict[str, Opener] = {"connection": Engine.connect, "session": Session}


@contextmanager
def opened(opener: Opener, engine: Engine) -> Iterator[Caller]:
    """A caller's connection or session, closed at the end."""
    caller = opener(engine)
    try:
        yield caller
    finally:
        caller.close()
