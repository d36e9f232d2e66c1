"""A user's own retry policies and their names."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class TwiceThenNever:
    """Retry twice after ``seconds``, then give the message up."""

    seconds: float

    def next_delay(self, attempt: int, error: str | None) -> timedelta | None:
        """Give up from the third attempt on, whatever the error was."""
        del error
        return timedelta(seconds=self.seconds) if attempt <= 2 else None


@dataclass(frozen=True)
class OddPolicy:
    """Answers with what is no answer."""

    how: str

    def next_delay(self, attempt: int, error: str | None) -> timedelta | None:
        """Raise SystemExit, or give a text."""
        del attempt, error
        if self.how == "exit":
            raise SystemExit
        return "soon"  # type: ignore[return-value]


POLICIES: dict[str, type] = {"twice": TwiceThenNever, "odd": OddPolicy}
