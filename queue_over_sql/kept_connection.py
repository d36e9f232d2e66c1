"""A connection that stays with its user from one transaction to the next.

To check one out of the pool for each message took a worker as long as the message's own
statements: a ping, and a rollback when it goes back.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sqlalchemy import Connection, Engine


# Seconds between two transactions after which the pool has to ask whether it still lives, and for
# which one is kept at all: the pool may have an age limit of its own.
_LONGEST_PAUSE, _OLDEST = 0.1, 30.0


class KeptConnection:
    """Keeps a connection for the next transaction of the same user, where nothing speaks against.

    Against it speak: a transaction that failed, options that the user set on the connection, the
    service's other connections having broken meanwhile, a pause in which it may have broken itself,
    its age, and listeners of the user's own to each new use of a connection.

    Args:
        connect: opens one, and makes sure that it lives.
        breaks: how many connections of the service have broken so far.
    """

    def __init__(self, connect: Callable[[], Connection], breaks: Callable[[], int]) -> None:
        self._connect = connect
        self._breaks = breaks
        self._kept: Connection | None = None
        self._seen = 0
        self._opened_at = self._left_at = 0.0
        self._options: Mapping[str, Any] = {}

    def take(self) -> Connection:
        """The connection that was kept, or a new one; ``leave`` or its ``close()`` ends its use."""
        kept, self._kept = self._kept, None
        if kept is not None:
            if self._is_good(kept):
                return kept
            _close(kept)
        self._seen = self._breaks()
        self._opened_at = time.monotonic()
        connection = self._connect()
        self._options = connection.get_execution_options()
        return connection

    def leave(self, connection: Connection) -> None:
        """Keep it for the next transaction, or give it back to the pool."""
        as_it_was = not connection.closed and connection.get_execution_options() == self._options
        if as_it_was and not _is_followed(connection.engine):
            self._kept, self._left_at = connection, time.monotonic()
        else:
            connection.close()

    def _is_good(self, kept: Connection) -> bool:
        now = time.monotonic()
        rested = now - self._left_at > _LONGEST_PAUSE or now - self._opened_at > _OLDEST
        broken = kept.closed or kept.invalidated or self._breaks() != self._seen
        return not (rested or broken)

    def close(self) -> None:
        """Give back what is kept."""
        kept, self._kept = self._kept, None
        if kept is not None:
            _close(kept)


@contextlib.contextmanager
def committing(connection: Connection) -> Iterator[Connection]:
    """Commit at the end of the block; after an exception roll back and close the connection."""
    try:
        yield connection
        connection.commit()
    except BaseException:
        try:
            with contextlib.suppress(SQLAlchemyError):
                connection.rollback()
        finally:
            _close(connection)
        raise


def _is_followed(engine: Engine) -> bool:
    """Whether others than we want to know of each new use of a connection, or of its end."""
    pool: Any = engine.pool.dispatch
    listeners = (*pool.checkout, *pool.checkin, *pool.reset, *engine.dispatch.engine_connect)
    package = __name__.partition(".")[0]
    return any(not str(each.__module__).startswith(f"{package}.") for each in listeners)


def _close(connection: Connection) -> None:
    # A connection whose server is gone may refuse even that.
    with contextlib.suppress(SQLAlchemyError):
        connection.close()
