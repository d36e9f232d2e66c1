"""Notifications between processes: how an engine tells waiting consumers of new messages."""

from __future__ import annotations

import abc
from collections.abc import Callable

from sqlalchemy import Connection

from queue_over_sql.sql.compiled import StatementCache

Pause = Callable[[float], None]


class Watch(abc.ABC):
    """Watches for messages of other processes on one connection."""

    bursts = True
    """Whether more may have come than was notified."""

    @abc.abstractmethod
    def wait(self, seconds: float, wanted: Callable[[str], bool]) -> bool:
        """Wait for messages, at most ``seconds``.

        Args:
            seconds: the limit; it returns earlier if messages come, or after ``interrupt``.
            wanted: whether this process uses a queue, by the full name of its table.

        Returns:
            Whether there may be messages.
        """

    def interrupt(self) -> None:
        """Interrupt the wait of another thread; a task is cancelled instead."""
        return

    def close(self) -> None:
        """Release what it needed besides its connection."""
        return


class Notifications:
    """Notifications between processes. Here there are none, so consumers poll."""

    notified_by_others = False
    """Whether ``watch`` may succeed."""
    notifies_others = False
    """Whether ``notify`` does anything."""

    def watch(self, connection: Connection, pause: Pause) -> Watch | None:
        """Start a watch on a connection of its own; None if that is not possible.

        Args:
            connection: in autocommit mode.
            pause: sleeps without blocking others.
        """
        return None

    def notify(self, connection: Connection, sql: StatementCache) -> None:
        """Notify watches, when it commits, that a queue may have got messages."""
