"""Ask whether a call is refused, for tests that go through many values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Errors = type[Exception] | tuple[type[Exception], ...]


def refused(errors: Errors, act: Callable[..., object], *args: Any, **options: Any) -> bool:
    """Whether the call raises one of these errors; any other error fails the test."""
    try:
        act(*args, **options)
    except errors:
        return True
    return False
