"""What the errors of PostgreSQL mean, and of a pooler before it."""

from __future__ import annotations

from typing import Final

from queue_over_sql.dialects.postgresql.pooler import Pooler
from queue_over_sql.sql.errors import ErrorKind, Errors, sqlstate_of
from queue_over_sql.sql.features import Features

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
