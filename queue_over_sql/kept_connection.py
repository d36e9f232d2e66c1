"""A connection that stays with its user from one transaction to the next.

To check one out of the pool for each message took a worker as long as the message's own
statements: a ping, and a rollback when it goes back.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sqlalchemy import Connection, Pool


class KeptConnection:
    """Keeps a connection for the next transaction of the same user, where nothing speaks against.

    Against it speak: a transaction that failed, options that the user set on the connection, the
    service's other connections having broken meanwhile, and listeners of the user's own to what
    the pool does for each new user of a connection.

    Args:
        connect: opens one, and makes sure that it lives.
        breaks: how many connections of the service have broken so far.
    """

    def __init__(self, connect: Callable[[], Connection], breaks: Callable[[], int]) -> None:
        self._connect = connect
        self._breaks = breaks
        self._kept: Connection | None = None
        self._seen = 0
        self._options: Mapping[str, Any] = {}

    def take(self) -> Connection:
        """The connection that was kept, or a new one; ``leave`` or its ``close()`` ends its use."""
        kept, self._kept = self._kept, None
        if kept is not None:
            if not (kept.closed or kept.invalidated) and self._breaks() == self._seen:
                return kept
            _close(kept)
        self._seen = self._breaks()
        connection = self._connect()
        self._options = connection.get_execution_options()
        return connection

    def leave(self, connection: Connection) -> None:
        """Keep it for the next transaction, or give it back to the pool."""
        as_it_was = not connection.closed and connection.get_execution_options() == self._options
        if as_it_was and not _is_followed(connection.engine.pool):
            self._kept = connection
        else:
            connection.close()

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
        with contextlib.suppress(SQLAlchemyError):
            connection.rollback()
        _close(connection)
        raise


def _is_followed(pool: Pool) -> bool:
    """Whether others than we want to know of each new user of a connection, or of its end."""
    dispatch: Any = pool.dispatch
    listeners = (*dispatch.checkout, *dispatch.checkin, *dispatch.reset)
    package = __name__.partition(".")[0]
    return any(not str(each.__module__).startswith(f"{package}.") for each in listeners)


def _close(connection: Connection) -> None:
    # A connection whose server is gone may refuse even that.
    with contextlib.suppress(SQLAlchemyError):
        connection.close()
