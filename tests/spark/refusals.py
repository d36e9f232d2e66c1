"""What wrong arguments are answered with, for tests that go through a table of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def refusal(act: Callable[..., object], *given: Any, **options: Any) -> str:
    """The name and the text of the error, or that there was none."""
    try:
        act(*given, **options)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return f"{type(error).__name__}: {error}"
    return "accepted"
