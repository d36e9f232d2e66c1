"""How consumers hear of messages that other processes publish, where the engine has a way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.dialects.compiled import StatementCache

Pause = Callable[[float], None]


class Watch(Protocol):
    """What one connection hears of."""

    bursts: bool
    """Whether more may have come than was told of."""

    def wait(self, seconds: float, wanted: Callable[[str], bool]) -> bool:
        """Wait for messages, at most so long.

        Args:
            seconds: at most; returns earlier when there are some, or after ``interrupt``.
            wanted: whether somebody here has to do with a queue, by the full name of its table.

        Returns:
            Whether there may be some.
        """
        ...

    def interrupt(self) -> None:
        """End a wait of another thread."""
        ...

    def close(self) -> None:
        """Give back what it needed besides its connection."""
        ...


class Watches:
    """An engine whose consumers hear nothing of other processes, and look again and again."""

    hears_others = False
    """Whether there may be a ``watch``."""
    tells_others = False
    """Whether ``tell`` does anything."""

    def watch(self, connection: Connection, pause: Pause) -> Watch | None:
        """Begin to watch on a connection that does nothing else; None where there is no way.

        Args:
            connection: which commits by itself.
            pause: sleeps without holding up others.
        """
        del connection, pause
        return None

    def tell(self, connection: Connection, sql: StatementCache) -> None:
        """Tell those who watch that a queue may have got messages; seen when it commits."""
        del connection, sql
