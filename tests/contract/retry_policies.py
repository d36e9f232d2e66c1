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


@dataclass(frozen=True)
class NeverForBadValues:
    """Retry at once, but never after a ValueError or one of its subclasses."""

    def next_delay(
        self, attempt: int, error: str | None, exception: type[BaseException] | None = None
    ) -> timedelta | None:
        """Decide by the class of the exception."""
        del attempt, error
        bad = exception is not None and issubclass(exception, ValueError)
        return None if bad else timedelta(0)


POLICIES: dict[str, type] = {
    "bad_values": NeverForBadValues,
    "twice": TwiceThenNever,
    "odd": OddPolicy,
}
