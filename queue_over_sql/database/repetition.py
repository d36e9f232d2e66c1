"""For how long, and how many times, an operation is repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from queue_over_sql.sql.errors import ErrorKind

if TYPE_CHECKING:
    from collections.abc import Callable

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
