"""Moves and stops the clock of this process, as an administrator or a library for tests does."""

from __future__ import annotations

import datetime as dt
import sys
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import pytest

_Datetime = dt.datetime


class HostClock:
    """The wall clock of this process, as its Python code sees it; the database's stays.

    It replaces the functions wherever they were imported before, as freezegun does.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._ahead = 0.0
        self._stands_at: float | None = None
        self._real = time.time
        shown = self.time

        class Kind(type):
            def __instancecheck__(cls, instance: object) -> bool:
                return isinstance(instance, _Datetime)

        class Datetime(_Datetime, metaclass=Kind):
            @classmethod
            def now(cls, tz: dt.tzinfo | None = None) -> Self:
                return cls.fromtimestamp(shown(), tz)

        patch.setattr(time, "time", shown)
        patch.setattr(time, "time_ns", lambda: int(shown() * 1e9))
        patch.setattr(dt, "datetime", Datetime)
        for name, module in list(sys.modules.items()):
            if name.startswith(("queue_over_sql.", "apscheduler.")):
                for attribute, value in list(vars(module).items()):
                    if value is _Datetime:
                        patch.setattr(module, attribute, Datetime)

    def move(self, seconds: float) -> None:
        """Set it ahead, or back."""
        self._ahead += seconds

    def stop(self) -> None:
        """Let it stand still, and with it the monotonic clock, as libraries for tests do."""
        self._stands_at = self.time()
        monotonic = time.monotonic()
        self._patch.setattr(time, "monotonic", lambda: monotonic)

    def time(self, *_: Any) -> float:
        """What it shows, in seconds."""
        return self._real() + self._ahead if self._stands_at is None else self._stands_at
