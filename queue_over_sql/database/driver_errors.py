"""Drivers' errors in our words, with what the caller can do."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from queue_over_sql.database.sessions import GIVES_WAY
from queue_over_sql.database.urls import shown_reason, shown_url
from queue_over_sql.errors import (
    DatabaseRefused,
    DatabaseUnavailable,
    Locked,
    PayloadInvalid,
    QueueError,
    UnsupportedByEngine,
)
from queue_over_sql.sql.errors import ErrorKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection

    from queue_over_sql.database.opened_engine import OpenedEngine
    from queue_over_sql.errors import NotPermitted
    from queue_over_sql.sql.dialect import QueueDialect


# A deadlock has ended the caller's transaction, and only the caller can repeat all of it.
_REPEAT = " Roll your transaction back and repeat it."
_UNDONE = {
    ErrorKind.CANCELLED: (
        "An administrator or a time limit cancelled a statement in {where}: {reason}. "
        "It changed nothing. You can run it again."
    ),
    ErrorKind.STALE_PLAN: (
        "A table in {where} was changed after the connection had prepared a statement on it: "
        "{reason}. Roll your transaction back, if you have one, and run it again."
    ),
}
_BROKE = "It is unknown whether the last change was committed."
_CALLERS_BROKE = (
    "Your transaction is lost: repeat it. If the server closes connections that wait in your pool, "
    "as at its restart, create your engine with pool_pre_ping=True."
)
_CALLERS_READS = (
    "Nothing was changed. If your transaction is READ ONLY, begin one that may write. If its "
    "server became a standby, open a new connection"
)
_STANDBY = (
    "It is a standby, or an administrator made it read-only. Nothing was changed. The next call "
    "opens a new connection; check which server the address leads to."
)
# The errors of drivers for numbers and texts that they cannot send.
UNSENDABLE = (OverflowError, UnicodeEncodeError)


def not_sent(error: Exception) -> PayloadInvalid:
    """The error for a value that a driver cannot send."""
    return PayloadInvalid(f"The database driver cannot send a value: {error}.")


class DriverErrors:
    """Says a driver's error in our words.

    Args:
        opened: the engine of the service.
        dialect: gives the dialect of the server.
        connect: opens another connection, to ask whether the server only reads.
        forbidden: makes the error for a missing right, from the server's message and the refused
            statement.
    """

    def __init__(
        self,
        opened: OpenedEngine,
        dialect: Callable[[], QueueDialect],
        connect: Callable[[], contextlib.AbstractContextManager[Connection]],
        forbidden: Callable[[str, str], NotPermitted] | None,
    ) -> None:
        self._opened = opened
        self._dialect = dialect
        self._connect = connect
        self._forbidden = forbidden
        self._where = shown_url(opened.engine.url)

    @contextlib.contextmanager
    def translated(self, *, callers: bool = False) -> Iterator[None]:
        """Turn errors of statements into our errors.

        ``callers`` says that the transaction is the caller's, who has to repeat it.
        """
        try:
            yield
        except DBAPIError as error:
            kind = self._dialect().errors.classify(error)
            raise self._in_our_words(error, kind, callers=callers) from error
        except UNSENDABLE as error:
            raise not_sent(error) from error

    def kind_behind(self, error: BaseException) -> ErrorKind | None:
        """The kind of the driver's error that an exception is or was raised from, if any."""
        while not isinstance(error, DBAPIError):
            if error.__cause__ is None:
                return None
            error = error.__cause__
        return self._dialect().errors.classify(error)

    def unavailable(self, error: DBAPIError | PoolTimeout | OSError) -> QueueError:
        """The error for a database that cannot be reached."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        unfit = self._opened.unfit_way(cause)
        if unfit is not None:
            return self._unsupported(unfit)
        hint = self._opened.hint_for(cause)
        reason = shown_reason(self._opened.engine.url, str(cause).strip())
        return DatabaseUnavailable(
            f"The database {self._where} cannot be reached: {reason} ({hint})"
        )

    def _unsupported(self, unfit: str) -> UnsupportedByEngine:
        return UnsupportedByEngine(
            f"The database {self._where} cannot be used with this configuration: {unfit}."
        )

    def explained(
        self,
        error: DBAPIError,
        kind: ErrorKind,
        refused: Callable[[DatabaseRefused], None] | None,
        *,
        creates: bool,
    ) -> QueueError:
        """The error of an operation, or the better one that ``refused`` raises."""
        problem = self._in_our_words(error, kind, creates=creates)
        if refused is not None and isinstance(problem, DatabaseRefused):
            problem.__cause__ = error
            refused(problem)
        return problem

    def _in_our_words(
        self, error: DBAPIError, kind: ErrorKind, *, creates: bool = False, callers: bool = False
    ) -> QueueError:
        unfit = self._opened.unfit_way(error.orig)
        if unfit is not None:
            return self._unsupported(unfit)
        reason = str(error.orig).strip()
        if kind is ErrorKind.DISCONNECT:
            what = _CALLERS_BROKE if callers else _BROKE
            return DatabaseUnavailable(f"The connection to {self._where} broke: {reason}. {what}")
        if kind is ErrorKind.TRANSIENT:
            hint = (
                self._dialect().features.creation_hint
                if creates
                else self._dialect().features.locked_hint
            )
            return (Locked if GIVES_WAY.get() else DatabaseUnavailable)(
                f"The database {self._where} stayed locked by other transactions"
                f"{f' ({hint})' if hint else ''}: {reason}.{_REPEAT if callers else ''}"
            )
        if kind in _UNDONE:
            return DatabaseUnavailable(_UNDONE[kind].format(where=self._where, reason=reason))
        if kind is ErrorKind.INVALID_VALUE:
            hint = self._dialect().errors.value_hint(error.orig)
            return PayloadInvalid(f"The database refused a value{hint}: {reason}.")
        return self._refusal(error, kind, reason, callers=callers)

    def _only_reads(self, reason: str) -> QueueError:
        refused = f"The database {self._where} refused a statement: {reason}."
        with contextlib.suppress(QueueError, SQLAlchemyError), self._connect() as connection:
            if self._dialect().sessions.server_reads_only(connection):
                return DatabaseUnavailable(
                    f"The server of {self._where} only reads: {reason}. {_STANDBY}"
                )
            setting = self._dialect().sessions.reading_setting(connection)
            return DatabaseRefused(f"{refused} {setting}" if setting else refused)
        # Nobody answered why. In a switchover that is so until the other server serves.
        return DatabaseUnavailable(f"{refused} {_STANDBY}")

    def _refusal(
        self, error: DBAPIError, kind: ErrorKind, reason: str, *, callers: bool
    ) -> QueueError:
        if kind is ErrorKind.FORBIDDEN and self._forbidden is not None:
            refusal = f"The login of {self._where} lacks a right: {reason}."
            return self._forbidden(refusal, error.statement or "")
        if kind is ErrorKind.READ_ONLY:
            if not callers:
                return self._only_reads(reason)
            reason += f". {_CALLERS_READS}"
        hint = self._dialect().errors.refusal_hint(error.orig)
        if not hint and self._dialect().errors.cannot_read(error.orig):
            hint = (
                ". It may be unable to read a row. Such a message is held as soon as a claim or "
                "the reaper finds it: run `queue-over-sql doctor`"
            )
        elif not hint and self._dialect().errors.refuses_row(error):
            hint = (
                ". A constraint or a trigger refused a row. Run `queue-over-sql doctor`: it shows "
                "whether the ids of a queue are behind those of its archive"
            )
        return DatabaseRefused(f"The database {self._where} refused a statement: {reason}{hint}.")
