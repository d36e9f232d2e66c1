"""An engine in parts: features, expressions, sessions, DDL, files, errors, and its strategies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import select

from queue_over_sql.sql.ddl import Ddl
from queue_over_sql.sql.errors import Errors
from queue_over_sql.sql.expressions import Expressions
from queue_over_sql.sql.files import DatabaseFiles
from queue_over_sql.sql.notifications import Notifications
from queue_over_sql.sql.sessions import CallersSessions, EngineSessions
from queue_over_sql.values.cached import cached_property

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.sql.checkup import Checkup
    from queue_over_sql.sql.columns import Columns
    from queue_over_sql.sql.features import Features

P = TypeVar("P")

Strategies = Mapping[type, Callable[["QueueDialect"], Any]]
"""What an engine does in a way of its own: its class, by the portable class."""


class QueueDialect:
    """One engine, as one server has it. It is put together in the engine's folder of ``dialects``.

    What a folder does not give is portable.

    Args:
        features: of the server.
        checkup: see the attribute.
        columns: makes the attribute, which needs PyArrow.
        strategies: the engine's ways for ``strategy``.

    Attributes:
        features: the facts in which engines differ.
        expressions: types, expressions and hints, for code that only builds SQL.
        sessions: our own sessions and their transactions.
        callers: the sessions of callers' connections.
        ddl: how tables are created, changed and described.
        files: the files of the database.
        errors: what the errors of the engine's drivers mean.
        notifications: tell consumers of messages that other processes publish.
        checkup: the check-up of this engine for operators.
    """

    def __init__(
        self,
        features: Features,
        *,
        checkup: Checkup,
        columns: Callable[[Expressions], Columns],
        expressions: Expressions | None = None,
        sessions: EngineSessions | None = None,
        callers: CallersSessions | None = None,
        ddl: Ddl | None = None,
        files: DatabaseFiles | None = None,
        errors: Errors | None = None,
        notifications: Notifications | None = None,
        strategies: Strategies = MappingProxyType({}),
    ) -> None:
        self.features = features
        self.expressions = expressions or Expressions(features)
        self.sessions = sessions or EngineSessions(features)
        self.callers = callers or CallersSessions()
        self.errors = errors or Errors(features)
        self.ddl = ddl or Ddl(features, self.sessions, self.errors)
        self.files = files or DatabaseFiles()
        self.notifications = notifications or Notifications()
        self.checkup = checkup
        self._make_columns = columns
        self._strategies = strategies
        self._made: dict[type, Any] = {}

    @cached_property
    def columns(self) -> Columns:
        """Reads, writes and takes Arrow columns; needs PyArrow."""
        return self._make_columns(self.expressions)

    def strategy(self, portable: type[P]) -> P:
        """The engine's own way to do something; the portable one where it has none.

        Args:
            portable: the class of the portable way, which the engine's class extends.
        """
        found: P | None = self._made.get(portable)
        if found is None:
            make: Callable[[QueueDialect], Any] = self._strategies.get(portable, portable)
            found = self._made[portable] = make(self)
        return found

    def is_engine_of(self, other: QueueDialect) -> bool:
        """Whether another dialect is of the same engine."""
        return self.features.name == other.features.name

    def read_clock(self, connection: Connection) -> int:
        """The database's clock, in microseconds since the epoch."""
        return int(connection.execute(select(self.expressions.now())).scalar_one())
