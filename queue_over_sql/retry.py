"""Retry policies: when a failed message is retried, and when it becomes a dead letter.

A queue stores the name and the arguments of its policy, so that every server uses the same one. An
application registers its own classes by name with ``QueueService(retry_policies={...})``. A stored
name is only looked up there. It is never imported.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import random
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol, runtime_checkable

from queue_over_sql.errors import shown
from queue_over_sql.values.durations import Duration, to_timedelta


@runtime_checkable
class RetryPolicy(Protocol):
    """Decides when a failed message is retried."""

    def next_delay(self, attempt: int, error: str | None) -> timedelta | None:
        """Return how long the message waits after a failed attempt.

        Args:
            attempt: number of the attempt that failed, from 1.
            error: the reason given to ``nack``, or None.

        A policy whose method has a further parameter ``exception`` also gets the class of the
        exception, or None if the reason was given as text.

        Returns:
            The delay; None makes the message a dead letter.
        """


def delay_of(
    policy: RetryPolicy, attempt: int, error: str | None, exception: type[BaseException] | None
) -> Duration | None:
    """What a policy says; it gets the class of the exception if it asks for that."""
    if _wants_exception(type(policy)):
        see: Any = policy.next_delay
        delay: Duration | None = see(attempt, error, exception=exception)
        return delay
    return policy.next_delay(attempt, error)


@functools.lru_cache(maxsize=100)
def _wants_exception(kind: type[RetryPolicy]) -> bool:
    try:
        return "exception" in inspect.signature(kind.next_delay).parameters
    except (TypeError, ValueError):
        # Some functions written in C do not tell theirs.
        return False


@dataclasses.dataclass(frozen=True)
class ExponentialBackoff:
    """Waits ``base``, ``base * factor``, ``base * factor**2`` … up to ``maximum``.

    Args:
        base: the first delay.
        factor: the growth of each further delay, 1 or more.
        maximum: the longest delay.
        jitter: the fraction, 0 to 1, by which a delay may be shortened at random, so that messages
            that failed together are not retried together.
    """

    base: Duration = 1.0
    factor: float = 2.0
    maximum: Duration = 3600.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", _checked(self.base, "base"))
        object.__setattr__(self, "maximum", _checked(self.maximum, "maximum"))
        _check_number("factor", self.factor)
        _check_number("jitter", self.jitter)
        if not self.factor >= 1:
            msg = f"factor must be 1 or more, not {self.factor}"
            raise ValueError(msg)
        if not 0 <= self.jitter <= 1:
            msg = f"jitter must be between 0 and 1, not {self.jitter}"
            raise ValueError(msg)

    def next_delay(self, attempt: int, error: str | None) -> timedelta:
        """Return a delay that grows with each attempt; see ``RetryPolicy.next_delay``."""
        del error
        base = to_timedelta(self.base, "base", zero=True).total_seconds()
        longest = to_timedelta(self.maximum, "maximum", zero=True).total_seconds()
        try:
            delay = min(longest, base * float(self.factor) ** max(0, attempt - 1))
        except OverflowError:
            delay = longest if base else 0.0
        # Jitter only spreads load, so it needs no cryptographic random number.
        return timedelta(seconds=delay * (1 - self.jitter * random.random()))  # noqa: S311


@dataclasses.dataclass(frozen=True)
class FixedDelay:
    """Waits for the same time after each failure.

    Args:
        delay: a duration; zero retries immediately.
    """

    delay: Duration

    def __post_init__(self) -> None:
        object.__setattr__(self, "delay", _checked(self.delay, "delay"))

    def next_delay(self, attempt: int, error: str | None) -> timedelta:
        """Return the delay; see ``RetryPolicy.next_delay``."""
        del attempt, error
        return to_timedelta(self.delay, "delay", zero=True)


@dataclasses.dataclass(frozen=True)
class Delays:
    """Waits for the listed delays, one per attempt; the last one repeats.

    Args:
        delays: durations, at least one.
    """

    delays: Sequence[Duration]

    def __post_init__(self) -> None:
        if isinstance(self.delays, str) or not isinstance(self.delays, Sequence) or not self.delays:
            msg = "Delays needs a list of at least one delay"
            raise ValueError(msg)
        delays = tuple(_checked(delay, "delays") for delay in self.delays)
        object.__setattr__(self, "delays", delays)

    def next_delay(self, attempt: int, error: str | None) -> timedelta:
        """Return the delay of this attempt; see ``RetryPolicy.next_delay``."""
        del error
        delay = self.delays[min(max(attempt, 1), len(self.delays)) - 1]
        return to_timedelta(delay, "delays", zero=True)


@dataclasses.dataclass(frozen=True)
class NoRetry:
    """Never retries: the first failure makes a message a dead letter."""

    def next_delay(self, attempt: int, error: str | None) -> None:
        """Return None; see ``RetryPolicy.next_delay``."""
        del attempt, error


_BUILT_IN: Final[Mapping[str, type[Any]]] = {
    policy.__name__: policy for policy in (ExponentialBackoff, FixedDelay, Delays, NoRetry)
}
_NAME_LENGTH: Final = 100
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, repr=False)
class _Unregistered(ExponentialBackoff):
    """Stands for a stored policy that this service cannot build, and is stored back unchanged."""

    description: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.description.get('policy')} (unknown here; uses {ExponentialBackoff()!r})"


class RetryPolicies:
    """The policies that a service knows by name: built-in and registered ones.

    Raises:
        TypeError: a class has no ``next_delay(attempt, error)``, or a name is not a str.
        ValueError: a name is empty, longer than 100 characters, or that of a built-in policy.
    """

    def __init__(self, registered: Mapping[str, type[Any]] | None = None) -> None:
        if not isinstance(registered, Mapping | None):
            msg = (
                "retry_policies must be a mapping of names to classes, such as {'fibonacci': "
                f"Fibonacci}}, not {type(registered).__name__}"
            )
            raise TypeError(msg)
        for name, kind in (registered or {}).items():
            _check_registered(name, kind)
        self._kinds: dict[str, type[Any]] = {**_BUILT_IN, **(registered or {})}
        # Log each policy once, although the settings are read again and again.
        self._reported: set[str] = set()
        # Earlier versions stored import paths.
        self._paths = {_import_path(kind): kind for kind in (registered or {}).values()}

    def describe(self, policy: RetryPolicy) -> dict[str, Any]:
        """Describe a policy as JSON data: its name and its arguments.

        Raises:
            TypeError: it is not a policy, its class is not registered, or it cannot be rebuilt from
                its arguments.
        """
        check_policy(policy)
        if isinstance(policy, _Unregistered):
            return dict(policy.description)
        kind = type(policy)
        name = next((name for name, known in self._kinds.items() if known is kind), None)
        if name is None:
            msg = (
                f"the retry policy {kind.__qualname__} is not registered: register its class with "
                f"QueueService(retry_policies={{'name': {kind.__name__}}}) in every process"
            )
            raise TypeError(msg)
        description = {"policy": name, "arguments": _arguments(policy)}
        try:
            self.build(description)
        except Exception as error:
            msg = f"the retry policy {name} cannot be rebuilt from its stored arguments: {error}"
            raise TypeError(msg) from error
        return description

    def build(self, description: Mapping[str, Any]) -> RetryPolicy:
        """Build the policy that ``describe`` wrote. The policy's class may raise any exception."""
        name, arguments = description["policy"], description["arguments"]
        kind = self._kinds.get(name) or self._paths.get(name)
        if kind is None:
            msg = "no class is registered under this name with QueueService(retry_policies={...})"
            raise LookupError(msg)
        policy: RetryPolicy = kind(**arguments)
        check_policy(policy)
        return policy

    def restore(self, stored: Mapping[str, Any]) -> RetryPolicy:
        """Build a stored policy, or ``ExponentialBackoff()`` if that fails.

        The stored policy is kept, even if other settings of the queue change.
        """
        try:
            return self.build(stored)
        except Exception as error:  # noqa: BLE001 - no row may stop this service
            description = dict(stored) if isinstance(stored, Mapping) else {"policy": stored}
            if repr(description) not in self._reported:
                self._reported.add(repr(description))
                _log.warning(
                    "This process cannot build the retry policy %s (%s). It uses "
                    "ExponentialBackoff() instead.",
                    description.get("policy"),
                    error,
                )
            return _Unregistered(description=description)


def check_policy(policy: object) -> None:
    """Raise TypeError unless the value is a policy."""
    if isinstance(policy, type) or not isinstance(policy, RetryPolicy):
        msg = "retry must be an object with next_delay(attempt, error), such as FixedDelay(10)"
        raise TypeError(msg)


def _checked(delay: Duration, name: str) -> Duration:
    checked = to_timedelta(delay, name, zero=True)
    # Services of releases that know no text read the stored arguments, too.
    return checked.total_seconds() if isinstance(delay, str) else delay


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{name} must be a number, not {type(value).__name__}"
        raise TypeError(msg)


def _check_registered(name: object, kind: object) -> None:
    if not isinstance(name, str):
        msg = f"retry_policies must map names to classes; {shown(name)} is not a str"
        raise TypeError(msg)
    if not name or len(name) > _NAME_LENGTH or name in _BUILT_IN:
        msg = (
            f"{shown(name)} cannot be the name of a retry policy: it must have 1 to {_NAME_LENGTH} "
            f"characters and differ from {', '.join(_BUILT_IN)}"
        )
        raise ValueError(msg)
    if not isinstance(kind, type) or not callable(getattr(kind, "next_delay", None)):
        msg = f"retry_policies[{name!r}] must be a class with next_delay(attempt, error)"
        raise TypeError(msg)


def _import_path(kind: type[Any]) -> str:
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
