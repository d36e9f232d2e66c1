"""What the errors of PostgreSQL mean, and of a pooler before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.dialects.postgresql.pooler import Pooler
from queue_over_sql.sql.errors import ErrorKind, Errors, sqlstate_of
from queue_over_sql.sql.features import Features

if TYPE_CHECKING:
    from sqlalchemy import Dialect

# SQLSTATE and function of the server with which it refuses a prepared statement, because the type
# of a result's column has changed. The driver prepares it anew after a rollback only.
_STALE_PLAN: Final = ("0A000", "RevalidateCachedQuery")


class PostgreSQLErrors(Errors):
    """By SQLSTATE."""

    def __init__(self, features: Features, pooler: Pooler) -> None:
        super().__init__(features)
        self._pooler = pooler

    def classify_driver_error(self, error: BaseException | None) -> ErrorKind:
        """By SQLSTATE; a server that is shutting down counts as a lost connection."""
        state = sqlstate_of(error)
        if state.startswith("08") or state in {"57P01", "57P02", "57P03", "53300"}:
            return ErrorKind.DISCONNECT
        if (state, _function_of(error)) == _STALE_PLAN:
            return ErrorKind.STALE_PLAN
        return super().classify_driver_error(error)

    def refusal_hint(self, error: BaseException | None) -> str:
        return self._pooler.refusal_hint(error)

    def unfit_way(self, error: BaseException | None) -> str | None:
        return Pooler.unfit_way(error)


def _function_of(error: BaseException | None) -> str | None:
    """The function of the server that raised the error, which is in no language."""
    return getattr(getattr(error, "diag", None), "source_function", None)


def notice_lost_sockets(dialect: Dialect) -> None:
    """Take an error of psycopg's own for a lost connection.

    It cannot use the socket then, and need not call the connection closed. Errors of the server
    have a SQLSTATE.
    """
    is_disconnect, lost = dialect.is_disconnect, dialect.loaded_dbapi.OperationalError

    def notices(error: Any, connection: Any, cursor: Any) -> bool:
        own = type(error) is lost and error.sqlstate is None
        return (own and connection is not None) or is_disconnect(error, connection, cursor)

    dialect.is_disconnect = notices  # type: ignore[assignment, method-assign]
