"""Retry policies as one option's value, e.g. ``exponential:base=1s,maximum=1h``."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable

import typer

from queue_over_sql import Delays, ExponentialBackoff, FixedDelay, NoRetry, RetryPolicy
from queue_over_sql.cli.imports import import_object
from queue_over_sql.cli.values import parse_duration

RETRY_HELP = (
    "When a failed message comes back: none, fixed:30s, delays:1s,10s,1m, exponential, "
    "exponential:base=1s,factor=2,maximum=1h,jitter=0.1, or module:Class of your own, which each "
    "server registers by QueueService(retry_policies=...)."
)
PLAIN_NUMBERS = frozenset({"factor", "jitter"})


def parse_retry(text: str) -> RetryPolicy:
    """The policy that `text` names; `typer.BadParameter` says which forms there are."""
    name, _, arguments = text.partition(":")
    maker = MAKERS.get(name)
    try:
        return maker(arguments) if maker is not None else _own_policy(text)
    except (ValueError, TypeError, typer.BadParameter) as error:
        reason = _nearly(name) if maker is None else None
        reason = reason or str(error).rstrip(".")
        raise typer.BadParameter(
            f"{text!r}: {reason}. {RETRY_HELP}", param_hint="--retry"
        ) from error


def named_by_path(policy: object) -> dict[str, type]:
    """What `QueueService(retry_policies=...)` needs to store `policy`: its class by its path."""
    kind = type(policy)
    if policy is None or kind.__module__ == RetryPolicy.__module__:
        return {}
    return {f"{kind.__module__}:{kind.__qualname__}": kind}


def _nearly(name: str) -> str | None:
    close = difflib.get_close_matches(name.lower(), MAKERS, n=1)
    return f"did you mean {close[0]}" if close else None


def _exponential(arguments: str) -> RetryPolicy:
    values: dict[str, float] = {}
    for pair in filter(None, arguments.split(",")):
        name, _, value = pair.partition("=")
        if name not in inspect.signature(ExponentialBackoff).parameters:
            raise ValueError(f"exponential has no {name!r}")
        values[name] = float(value) if name in PLAIN_NUMBERS else parse_duration(value)
    return ExponentialBackoff(**values)


def _own_policy(path: str) -> RetryPolicy:
    made = import_object(path, "")
    policy = made() if callable(made) else made
    if not isinstance(policy, RetryPolicy):
        raise TypeError("it has no next_delay(attempt, error)")
    return policy


MAKERS: dict[str, Callable[[str], RetryPolicy]] = {
    "none": lambda _: NoRetry(),
    "fixed": lambda arguments: FixedDelay(parse_duration(arguments)),
    "delays": lambda arguments: Delays([parse_duration(one) for one in arguments.split(",")]),
    "exponential": _exponential,
}
