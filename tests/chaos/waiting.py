"""Waiting for a state of the database that other processes bring about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], what: str, *, within: float = 30.0, every: float = 0.02) -> T:
    """Look until there is something true to see, and return it.

    Raises:
        AssertionError: nothing within so many seconds.
    """
    deadline = time.monotonic() + within
    while True:
        if seen := look():
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what}; last seen: {seen!r}")
        time.sleep(every)
