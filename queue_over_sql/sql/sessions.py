"""Sessions of an engine: how our own are set up, used and ended, and how callers' are used."""

from __future__ import annotations

import contextlib
import math
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Final

from queue_over_sql.sql.compiled import run_text
from queue_over_sql.sql.driver_calls import sever

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqlalchemy import Connection, Table

    from queue_over_sql.sql.compiled import StatementCache
    from queue_over_sql.sql.features import Features

BRIEF_SECONDS: Final = 1
"""How long background work waits for the locks of others."""

CREATION_ENDS: Final[ContextVar[float]] = ContextVar("creation_ends", default=math.inf)
"""When the present creation of tables gives up, on the monotonic clock."""


def creation_seconds_left(features: Features) -> int:
    """How long the present creation of tables may still wait for others, at least one second."""
    left = min(features.creation_seconds, CREATION_ENDS.get() - time.monotonic())
    return max(BRIEF_SECONDS, math.ceil(left))


class EngineSessions:
    """The sessions that we open; the portable ones need no preparation.

    Args:
        features: of the server.
    """

    def __init__(self, features: Features) -> None:
        self.features = features

    @property
    def keeps_settings(self) -> bool:
        """Whether a session keeps its settings between transactions."""
        return True

    def notice_pooler(self, connection: Connection) -> None:
        """Find out whether sessions are shared with others; called once, on the service's engine.

        Raises:
            UnsupportedByEngine: the driver's options do not work with this pooler.
        """

    def prepare(self, connection: Connection, *, durable: bool) -> None:
        """Set up the session of a long-held connection."""

    def restore(self, connection: Connection) -> None:
        """Undo what ``prepare`` set and others must not find."""

    @contextlib.contextmanager
    def scanning(self, connection: Connection) -> Iterator[None]:
        """Let the engine read whole tables during the block."""
        yield

    def begin(self, connection: Connection) -> None:
        """Begin a transaction on an autocommit connection."""
        run_text(connection, "BEGIN")

    def commit(self, connection: Connection) -> None:
        """Commit what ``begin`` began."""
        run_text(connection, "COMMIT")

    def rollback(self, connection: Connection) -> None:
        """Roll back what ``begin`` began."""
        run_text(connection, "ROLLBACK")

    def limit_lock_waits(self, connection: Connection, seconds: int) -> str:
        """Limit how long this session waits for locks; returns the statement that undoes this.

        Where the session does not keep its settings, this transaction. Empty if there is nothing to
        set: then the engine does not wait by itself.
        """
        return ""

    def lock_for_writing(self, connection: Connection, sql: StatementCache) -> None:
        """Take the lock that a transaction needs before it reads rows to change."""

    def lock_database(self, connection: Connection, table: Table) -> None:
        """Take the lock of ``lock_for_writing`` through a shared table, without a queue."""

    def break_off(self, connection: Connection) -> None:
        """Interrupt a connection from another thread; the server rolls its transaction back."""
        raw: Any = connection.connection.dbapi_connection
        sever(connection.dialect, raw)

    def awaits_command(
        self, asking: Connection, driver: Any, info: Mapping[str, Any], age: float
    ) -> bool:
        """Whether the server says that a session waits for its next command, or has ended.

        Args:
            asking: another connection of the same engine.
            driver: the driver's connection of that session.
            info: what is noted of it.
            age: seconds since it was opened.
        """
        return False

    def server_reads_only(self, connection: Connection) -> bool:
        """Whether the server itself only reads, such as a standby, so that waiting can help."""
        return False

    def reading_setting(self, connection: Connection) -> str | None:
        """The setting by which this login's sessions only read, and how to undo it."""
        return None


class CallersSessions:
    """The sessions of connections that callers opened, in whose transactions we work."""

    name_query: ClassVar[str | None] = None
    """A query for the name of the connected database, for messages; None if it has none."""

    def check(self, connection: Connection) -> None:
        """Refuse a connection whose driver options do not work with us or its pooler.

        Raises:
            UnsupportedByEngine: they do not work with its pooler.
            ValueError: it reads whole numbers or texts as other types.
        """

    def database_identity(self, table: Table) -> str | None:
        """SQL that identifies a database in its first column; None if nothing does.

        If a session can choose its schema, it includes the identity of ``table``. Further columns
        are the settings of the session for ``respecting``.
        """
        return None

    def moves(self, table: Table) -> bool:
        """Whether a session can come to take another table for this one, as by ``USE``."""
        return False

    @contextlib.contextmanager
    def respecting(
        self, connection: Connection, settings: Sequence[Any] | None = None
    ) -> Iterator[None]:
        """Run our statements in a session whose settings are not ours.

        Args:
            connection: a caller's, or a handler's.
            settings: what ``database_identity`` read; None: those with which we opened it.

        Raises:
            ValueError: values would be stored changed.
        """
        yield

    @contextlib.contextmanager
    def reading_all(self, connection: Connection) -> Iterator[None]:
        """Read rows even if Python cannot hold one of their values.

        Our own sessions read so from ``EngineSessions.prepare`` on.
        """
        yield
