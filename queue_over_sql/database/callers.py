"""The caller's own connection or session, for acts in its transaction."""

from __future__ import annotations

import contextlib
import inspect
import sys
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection
from sqlalchemy.exc import (
    InvalidRequestError,
    NoSuchTableError,
    PendingRollbackError,
    UnboundExecutionError,
)

from queue_over_sql.database.raw_connections import CallersPool, drivers, raw_connection
from queue_over_sql.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Table

    from queue_over_sql.database.connections import Connections


@contextlib.contextmanager
def callers(
    connection: Any, connections: Connections, table: Table, *, atomic: bool
) -> Iterator[Connection]:
    """The caller's ``connection=`` as a ``Connection``, for acts on a table in its transaction.

    Raises:
        TypeError: it is not a connection or session.
        ValueError: it is closed, its transaction has ended, or it is in AUTOCOMMIT mode though the
            acts need a transaction.
        WrongDatabase: it belongs to another database.
        DatabaseUnavailable: its transaction has already failed.
    """
    # A worker passes its own connection; then the engine is ours, and the caller repeats nothing.
    own = getattr(connection, "engine", None) is connections.engine
    try:
        with (
            connections.translated(callers=not own),
            _as_connection(connection, connections) as target,
        ):
            if atomic:
                _check_transactional(target)
            with connections.visiting(target, table):
                connections.hasten(target)
                yield target
    except NoSuchTableError:
        raise
    except PendingRollbackError as error:
        msg = "The transaction of connection= has already failed. Roll it back and repeat it."
        raise DatabaseUnavailable(msg) from error
    except InvalidRequestError as error:
        reason = str(error).partition("\n")[0].partition(" (Background on")[0].rstrip(".")
        msg = f"connection= can no longer be used: {reason}. Pass an open one"
        raise ValueError(msg) from error


def _as_connection(
    given: Any, connections: Connections
) -> contextlib.AbstractContextManager[Connection]:
    if isinstance(given, Connection):
        return contextlib.nullcontext(given)
    # A Session can exist only if the ORM is loaded. Importing it here would double our import time.
    orm = sys.modules.get("sqlalchemy.orm")
    if orm is not None and isinstance(given, orm.Session | orm.scoped_session):
        try:
            return contextlib.nullcontext(given.connection())
        except UnboundExecutionError as error:
            msg = (
                "connection= is a Session that has a database for each class (binds=), or none, so "
                "it does not say in whose transaction to work. Pass an open one: "
                "session.connection(bind_arguments={'mapper': YourClass})"
            )
            raise ValueError(msg) from error
    raw = raw_connection(given)
    on_loop = connections.engine.dialect.is_async
    if raw is not None and raw.driver.is_async == on_loop:
        return connections.callers_connection(raw)
    fit = (
        "an AsyncConnection or AsyncSession of SQLAlchemy"
        if on_loop
        else "a Connection or Session of SQLAlchemy, Django's connection"
    )
    msg = (
        f"connection must have your transaction: {fit}, or one of "
        f"{', '.join(drivers(on_loop=on_loop))}; it is "
        f"{type(given).__module__}.{type(given).__qualname__}"
    )
    if raw is not None and on_loop:
        msg += ", which would hold up the event loop: use QueueService with it"
    elif not on_loop and (
        raw is not None or type(given).__module__.startswith("sqlalchemy.ext.asyncio")
    ):
        msg += ": use AsyncQueueService of queue_over_sql.aio with it"
    elif inspect.isawaitable(given):
        msg += ": await it first"
    elif hasattr(given, "begin"):
        # An engine or a maker of sessions.
        msg += f": pass what `{'async with' if on_loop else 'with'} ….begin() as …:` gives"
    raise TypeError(msg)


def _check_transactional(connection: Connection) -> None:
    pool = connection.engine.pool
    if isinstance(pool, CallersPool):
        commits = pool.commits
    else:
        options, dialect = connection.get_execution_options(), connection.engine.dialect
        by_default = getattr(dialect, "_on_connect_isolation_level", None)
        commits = options.get("isolation_level", by_default) == "AUTOCOMMIT"
    if commits:
        msg = (
            "connection= is in AUTOCOMMIT mode, so this operation could be done in part: pass one "
            "with a transaction, or leave out connection="
        )
        raise ValueError(msg)
