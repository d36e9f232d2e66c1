"""For how long, and how many times, an operation is repeated."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Final

from queue_over_sql.errors import DatabaseUnavailable, Locked
from queue_over_sql.sql.errors import ErrorKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from queue_over_sql.database.runtime import Lock

CONFLICT_SECONDS: Final = 30.0
"""How long conflicts between transactions are repeated before they become an error."""
_RECONNECTS: Final = 2


class Reconnects:
    """How many times one operation may still run again on a new connection.

    Args:
        writes_again: asks whether the database can be written to again, after it only read.
        repeatable: whether the operation may be done again if its answer was lost.
        may_write: whether it may write; what only reads is not tried again because of that.
    """

    def __init__(
        self, writes_again: Callable[[], bool], *, repeatable: bool, may_write: bool
    ) -> None:
        self._writes_again = writes_again
        self._left = {
            ErrorKind.DISCONNECT: _RECONNECTS if repeatable else 0,
            # A database that refused to write has changed nothing.
            ErrorKind.READ_ONLY: _RECONNECTS if may_write else 0,
            ErrorKind.STALE_PLAN: _RECONNECTS,
        }
        self._may_ask = may_write

    def allow(self, kind: ErrorKind) -> bool:
        """Whether it may run again after an error of this kind, which counts."""
        if self._left.get(kind, 0) <= 0 and not self._writes_now(kind):
            return False
        self._left[kind] -= 1
        return True

    def _writes_now(self, kind: ErrorKind) -> bool:
        asks = self._may_ask and kind is ErrorKind.READ_ONLY
        self._may_ask = self._may_ask and not asks
        return asks and self._writes_again()


class SharedTry:
    """A lock for what many callers wait for and one does, such as a registration.

    Who waited while another one found the database unreachable gets the same error. If each tried
    again in turn, the last of twenty queues would wait twenty times as long, and so would ``stop``.
    """

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._failures = 0
        self._failure: DatabaseUnavailable | None = None

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        """Hold the lock for a try, unless one failed meanwhile.

        Raises:
            DatabaseUnavailable: of the try that failed.
        """
        before = self._failures
        with self._lock:
            if self._failure is not None and self._failures != before:
                raise copy.copy(self._failure)
            try:
                yield
            except DatabaseUnavailable as error:
                # A background job gives up earlier than others.
                if not isinstance(error, Locked):
                    self._failure = copy.copy(error)
                    self._failures += 1
                raise
            self._failure = None
