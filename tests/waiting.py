"""Wait for a condition with a time limit, instead of sleeping."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from queue_over_sql.testing.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["consume_exactly", "eventually", "wait_until"]

T = TypeVar("T")


def eventually(
    look: Callable[[], T],
    what: str,
    *,
    within: float = 30.0,
    every: float = 0.02,
    progress: Callable[[], object] | None = None,
) -> T:
    """Look until there is something true to see, and return it.

    ``progress`` gives another value while work goes on. Then the time counts from its last change.

    Raises:
        AssertionError: nothing within so many seconds.
    """
    deadline, before = time.monotonic() + within, None
    while True:
        if seen := look():
            return seen
        if progress is not None and (now := progress()) != before:
            deadline, before = time.monotonic() + within, now
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what}; last seen: {seen!r}")
        time.sleep(every)
