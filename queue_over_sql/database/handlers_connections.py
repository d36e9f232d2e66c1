"""Handlers' connections: a handler works on one in a transaction that only the worker ends."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from queue_over_sql.errors import DatabaseUnavailable, QueueError
from queue_over_sql.sql.session_changes import ParentAlone, SessionChanges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection, Engine
    from sqlalchemy.engine.interfaces import ExceptionContext

    from queue_over_sql.sql.dialect import QueueDialect


_ENDED = (
    "The handler ended its transaction. Leave commit and rollback to the worker; undo a part with "
    "connection.begin_nested()."
)
_UNDONE = (
    "The database undid the handler's whole transaction: {reason}. The handler caught this error "
    "and went on, so it must run again. Let such an error end the handler."
)


def _weakly(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """Call a method as long as its object is there; an engine keeps its listeners."""
    known = weakref.WeakMethod(method)

    def listener(context: Any) -> None:
        found = known()
        if found is not None:
            found(context)

    return listener


class HandlersConnections:
    """Connections that handlers have now; the worker ends the transactions on them."""

    def __init__(self, engine: Engine, dialect: Callable[[], QueueDialect]) -> None:
        self._engine = engine
        self._dialect = dialect
        # Connections that a handler has now, and how it tried to end their transactions.
        self._with_handlers: dict[Connection, str] = {}
        # Those whose transaction the database undid meanwhile, and why.
        self._undone: dict[Connection, DBAPIError] = {}
        self._listener = _weakly(self._note_failure)
        event.listen(engine, "handle_error", self._listener)

    def forget(self) -> None:
        """Listen to no more errors of the engine."""
        event.remove(self._engine, "handle_error", self._listener)

    def prepared(self, connection: Connection, *, own: bool) -> Connection:
        """A connection on which a handler cannot end the transaction.

        With ``own`` it can be closed, so changes of its session are noted, too.
        """
        event.listen(connection, "commit", self._refuse_commit)
        event.listen(connection, "rollback", self._note_rollback)
        event.listen(connection, "before_cursor_execute", ParentAlone(), retval=True)
        if own:
            changes = SessionChanges(scoped=self._dialect().features.scopes_settings)
            event.listen(connection, "before_cursor_execute", changes, retval=True)
        return connection

    @contextlib.contextmanager
    def using(self, connection: Connection) -> Iterator[None]:
        """Let a handler use a connection of ``transaction()``, but not end the transaction.

        Raises:
            QueueError: it tried to commit, or it rolled back or closed the connection and went on.
            DatabaseUnavailable: the database undid the transaction, and it went on.
        """
        self._with_handlers[connection] = ""
        try:
            yield
        except Exception as error:
            # After a refused commit only the end of the connection rolls back.
            if self._with_handlers[connection] == "commit" and str(error) != _ENDED:
                raise QueueError(_ENDED) from error
            raise
        else:
            undone = self._undone.get(connection)
            if undone is not None:
                reason = str(undone.orig).strip()
                raise DatabaseUnavailable(_UNDONE.format(reason=reason)) from undone
            if self._with_handlers[connection] or connection.closed:
                raise QueueError(_ENDED)
        finally:
            self._undone.pop(connection, None)
            del self._with_handlers[connection]

    def _refuse_commit(self, connection: Connection) -> None:
        if connection in self._with_handlers:
            self._with_handlers[connection] = "commit"
            raise QueueError(_ENDED)

    def _note_rollback(self, connection: Connection) -> None:
        # SQLAlchemy also rolls back what failed before the transaction began.
        if connection in self._with_handlers and connection.in_transaction():
            self._with_handlers[connection] = self._with_handlers[connection] or "rollback"

    def _note_failure(self, context: ExceptionContext) -> None:
        connection, error = context.connection, context.sqlalchemy_exception
        if connection is not None and isinstance(error, DBAPIError):
            self.note_undoing(connection, error)

    def note_undoing(self, connection: Connection, error: DBAPIError) -> None:
        """Note that the database undid the transaction that a handler has."""
        # What follows is in another transaction: an ack there would commit without the effects.
        if (
            connection in self._with_handlers
            and connection not in self._undone
            and not error.connection_invalidated
            and error.orig is not None
            and self._dialect().errors.undoes_transaction(connection, error.orig)
        ):
            self._undone[connection] = error
