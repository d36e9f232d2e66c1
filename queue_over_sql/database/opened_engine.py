"""An engine of our own, and how to use it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from sqlalchemy import Connection, Engine

from queue_over_sql.database.forks import ForkGuard, NoForkGuard
from queue_over_sql.database.write_lock import NoWriteLock, WriteLock
from queue_over_sql.sql.dialect import QueueDialect
from queue_over_sql.sql.errors import ErrorKind

AUTOCOMMIT: Mapping[str, Any] = {"isolation_level": "AUTOCOMMIT"}


class DialectNamed(Protocol):
    """Makes the dialect of an engine."""

    def __call__(self, name: str, connection: Connection | None = None) -> QueueDialect:
        """By the engine's name; of the server to which a connection is, if there is one."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class OpenedEngine:
    """An engine to work with, and how to use it.

    Attributes:
        engine: opens the connections.
        dialect_named: the dialect of an engine, by the engine's name, and of the server to which
            a connection is.
        session_options: execution options that turn on autocommit.
        owned: whether we must dispose of it.
        shared: whether all threads share one connection.
        borrowed: whether that connection is the user's, so that nothing may run in the background.
        write_lock: the lock that writers take before the database's own.
        forks: closes the connections before a fork that they do not survive.
    """

    engine: Engine
    dialect_named: DialectNamed
    session_options: Mapping[str, Any] = dataclasses.field(default_factory=lambda: AUTOCOMMIT)
    owned: bool = True
    shared: bool = False
    borrowed: bool = False
    write_lock: WriteLock = dataclasses.field(default_factory=NoWriteLock)
    forks: ForkGuard = dataclasses.field(default_factory=NoForkGuard)

    def dialect_of(self, connection: Connection) -> QueueDialect:
        """The dialect for a connected server.

        Raises:
            UnsupportedByEngine: the server is too old, or cannot run queues.
        """
        found = connection.dialect
        name = "mariadb" if getattr(found, "is_mariadb", False) else found.name
        return self.dialect_named(name, connection)

    def hint_for(self, error: BaseException | None) -> str:
        """Advice for when the database cannot be reached."""
        dialect = self.dialect_named(self.engine.dialect.name)
        is_locked = dialect.errors.classify_driver_error(error) is ErrorKind.TRANSIENT
        return (is_locked and dialect.features.creation_hint) or dialect.features.unreachable_hint

    def unfit_way(self, error: BaseException | None) -> str | None:
        """Why the database can never be used over this connection."""
        return self.dialect_named(self.engine.dialect.name).errors.unfit_way(error)
