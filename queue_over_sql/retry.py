"""Retry policies: how long a failed message waits, and when it is given up.

A policy is stored with its queue by name and arguments, so that every server uses the same one.
Own policies are classes that can be imported: give them as a dataclass, or with a constructor
whose arguments are attributes of the same names.
"""

from __future__ import annotations

import dataclasses
import importlib
import random
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

from queue_over_sql.durations import Duration, to_timedelta


@runtime_checkable
class RetryPolicy(Protocol):
    """Decides when a failed message is tried again."""

    def next_delay(self, attempt: int, error: str | None) -> timedelta | None:
        """Tell how long the message waits after a failed attempt.

        Args:
            attempt: number of the attempt that failed, from 1.
            error: its reason as given to ``nack``, or None.

        Returns:
            The delay; None ends the message as a dead letter.
        """
        ...


@dataclasses.dataclass(frozen=True)
class ExponentialBackoff:
    """Waits ``base``, ``base * factor``, ``base * factor**2`` … up to ``maximum``.

    Args:
        base: the first delay.
        factor: by what each further delay grows, 1 or more.
        maximum: the longest delay.
        jitter: share of the delay, 0 to 1, by which it is shortened at random, so that messages
            which failed together do not come back together.
    """

    base: Duration = 1.0
    factor: float = 2.0
    maximum: Duration = 3600.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        to_timedelta(self.base, "base", zero=True)
        to_timedelta(self.maximum, "maximum", zero=True)
        if not self.factor >= 1:
            msg = f"factor must be 1 or more, not {self.factor}"
            raise ValueError(msg)
        if not 0 <= self.jitter <= 1:
            msg = f"jitter must be between 0 and 1, not {self.jitter}"
            raise ValueError(msg)

    def next_delay(self, attempt: int, error: str | None) -> timedelta:
        """Grow with the number of attempts; see ``RetryPolicy.next_delay``."""
        del error
        base = to_timedelta(self.base, "base", zero=True).total_seconds()
        longest = to_timedelta(self.maximum, "maximum", zero=True).total_seconds()
        try:
            delay = min(longest, base * self.factor ** max(0, attempt - 1))
        except OverflowError:
            delay = longest
        # Jitter spreads load; it guards nothing, so a plain random number serves.
        return timedelta(seconds=delay * (1 - self.jitter * random.random()))  # noqa: S311


@dataclasses.dataclass(frozen=True)
class FixedDelay:
    """Waits the same time after each failure.

    Args:
        delay: seconds or ``timedelta``; zero puts the message back at once.
    """

    delay: Duration

    def __post_init__(self) -> None:
        to_timedelta(self.delay, "delay", zero=True)

    def next_delay(self, attempt: int, error: str | None) -> timedelta:
        """Give the same delay always; see ``RetryPolicy.next_delay``."""
        del attempt, error
        return to_timedelta(self.delay, "delay", zero=True)


@dataclasses.dataclass(frozen=True)
class Delays:
    """Waits as listed, one delay per attempt; the last one repeats.

    Args:
        delays: seconds or ``timedelta`` each, at least one.
    """

    delays: Sequence[Duration]

    def __post_init__(self) -> None:
        if isinstance(self.delays, str) or not self.delays:
            msg = "Delays needs a list of at least one delay"
            raise ValueError(msg)
        for delay in self.delays:
            to_timedelta(delay, "delays", zero=True)
        object.__setattr__(self, "delays", tuple(self.delays))

    def next_delay(self, attempt: int, error: str | None) -> timedelta:
        """Take the delay listed for this attempt; see ``RetryPolicy.next_delay``."""
        del error
        delay = self.delays[min(max(attempt, 1), len(self.delays)) - 1]
        return to_timedelta(delay, "delays", zero=True)


@dataclasses.dataclass(frozen=True)
class NoRetry:
    """Gives a message up at its first failure."""

    def next_delay(self, attempt: int, error: str | None) -> None:
        """Never try again; see ``RetryPolicy.next_delay``."""
        del attempt, error


_OWN: dict[str, type[Any]] = {
    policy.__name__: policy for policy in (ExponentialBackoff, FixedDelay, Delays, NoRetry)
}


def describe_policy(policy: RetryPolicy) -> dict[str, Any]:
    """Write a policy as JSON data: its name or import path, and its arguments.

    Raises:
        TypeError: it is no policy, or other servers could not build it from its import path.
    """
    if isinstance(policy, type) or not isinstance(policy, RetryPolicy):
        msg = "retry must be an object with next_delay(attempt, error), such as FixedDelay(10)"
        raise TypeError(msg)
    kind = type(policy)
    path = kind.__name__ if _OWN.get(kind.__name__) is kind else _import_path(kind)
    description = {"policy": path, "arguments": _arguments(policy)}
    try:
        build_policy(description)
    except Exception as error:
        msg = f"the retry policy {path} cannot be rebuilt from its stored arguments: {error}"
        raise TypeError(msg) from error
    return description


def build_policy(description: Mapping[str, Any]) -> RetryPolicy:
    """Build the policy that ``describe_policy`` wrote.

    Raises:
        ImportError, AttributeError, TypeError: this server does not have the class.
    """
    path, arguments = description["policy"], description["arguments"]
    kind = _OWN.get(path)
    if kind is None:
        module, _, name = path.partition(":")
        kind = getattr(importlib.import_module(module), name)
    policy: RetryPolicy = kind(**arguments)
    return policy


def _import_path(kind: type[Any]) -> str:
    if kind.__module__ == "__main__" or "." in kind.__qualname__:
        msg = (
            f"the retry policy {kind.__qualname__} must be defined at the top of a module that "
            "every server can import"
        )
        raise TypeError(msg)
    return f"{kind.__module__}:{kind.__qualname__}"


def _arguments(policy: object) -> dict[str, Any]:
    if dataclasses.is_dataclass(policy):
        names = [field.name for field in dataclasses.fields(policy) if field.init]
    else:
        names = list(getattr(policy, "__dict__", {}))
    return {name: _plain(getattr(policy, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
