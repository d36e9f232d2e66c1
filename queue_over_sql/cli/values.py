"""Parse the values of options: durations, times, headers, columns and retry policies."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from queue_over_sql import Delays, ExponentialBackoff, FixedDelay, NoRetry, RetryPolicy
from queue_over_sql.values.checks import check_id
from queue_over_sql.values.durations import parse_seconds
from queue_over_sql.values.humanize import format_duration
from queue_over_sql.values.json_text import InexactJson, json_or_text

if TYPE_CHECKING:
    from sqlalchemy import Column
    from sqlalchemy.types import TypeEngine

DURATION_HELP = "Write it in seconds, or with units: 250ms, 90s, 1h30m, 7d."


def parse_duration(text: object) -> float:
    """Parse ``"1.5"``, ``"250ms"`` or ``"1h30m"`` as seconds, or raise `typer.BadParameter`.

    It accepts any value, because the text may be from a line of a file.
    """
    try:
        if isinstance(text, int | float) and not isinstance(text, bool):
            return float(text)
        if isinstance(text, str):
            return parse_seconds(text)
    except (ValueError, OverflowError):
        pass
    raise typer.BadParameter(f"{text!r} is not a duration. {DURATION_HELP}")


def parse_instant(text: str | datetime) -> datetime:
    """Parse an ISO 8601 time; one without an offset is an error."""
    try:
        instant = text if isinstance(text, datetime) else datetime.fromisoformat(text)
    except (ValueError, TypeError):
        raise typer.BadParameter(
            f"{text!r} is not an ISO 8601 time, such as 2030-01-31T09:00:00+01:00"
        ) from None
    if instant.tzinfo is None:
        example = instant.replace(tzinfo=UTC).isoformat()
        raise typer.BadParameter(
            f"{text!r} has no time zone: write {example} for UTC, or add your own offset"
        )
    return instant


def parse_id(text: str) -> int:
    """Parse the id of a message, which may be negative in an adopted table."""
    try:
        return check_id("an id", int(text))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not the id of a message: that is a whole number of at most 64 bits"
        ) from None


def parse_pairs(pairs: Sequence[str], option: str) -> dict[str, Any]:
    """``["a=1", "b=x"]`` as ``{"a": 1, "b": "x"}``: JSON values if valid, else text."""
    return dict(_parse_pair(pair, option) for pair in pairs)


def parse_paths(pairs: Sequence[str], option: str) -> dict[str, Any]:
    """As `parse_pairs`; reject a path that was given twice."""
    values: dict[str, Any] = {}
    for pair in pairs:
        path, value = _parse_pair(pair, option)
        if path in values:
            raise typer.BadParameter(
                f"{path!r} is given more than once: give each path once", param_hint=option
            )
        values[path] = value
    return values


def parse_texts(pairs: Sequence[str], option: str) -> dict[str, str]:
    """As `parse_pairs`, with each value as text."""
    return dict(_split_pair(pair, option) for pair in pairs)


def _split_pair(pair: str, option: str) -> tuple[str, str]:
    name, separator, value = pair.partition("=")
    if not separator or not name:
        raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
    return name, value


def _parse_pair(pair: str, option: str) -> tuple[str, Any]:
    name, value = _split_pair(pair, option)
    try:
        return name, json_or_text(value)
    except InexactJson as error:
        raise typer.BadParameter(f"{name}: {error}", param_hint=option) from error


def format_instant(at: datetime | None) -> str:
    """A time for people, in UTC, to the second; None: an empty string."""
    return "" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def format_age(since: datetime) -> str:
    """How long ago a time was by this machine's clock, as a duration for people."""
    return format_duration(max(0.0, (datetime.now(UTC) - since).total_seconds()))


def format_bytes(size: int | None) -> str:
    """A size for people, in MiB; None: an empty string."""
    return "" if size is None else f"{size / 2**20:,.1f} MiB"


def import_object(path: str, default: str) -> object:
    """The object at ``module:name``; the current folder is importable.

    Args:
        path: the import path; the name may have dots.
        default: the name if the path has none.

    Raises:
        ValueError: the module or the name does not exist. An error inside the module itself is
            raised unchanged.
    """
    module_name, _, name = path.partition(":")
    folder = os.getcwd()  # noqa: PTH109 - an import path is a string
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        text = f"there is no module {module_name!r} in the current folder or in this Python"
        raise ValueError(text) from error
    for part in (name or default).split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise ValueError(f"{path}: {error}") from error
    return found


COLUMN_HELP = (
    "Add a column of your own: NAME:TYPE or NAME:TYPE:index. TYPE is string(N), text, integer, "
    "bigint, float or boolean, e.g. tenant:string(40):index. Repeatable."
)
SPEC = re.compile(
    r"(?P<name>[a-z]\w*):(?P<type>[a-z]+)(?:\((?P<length>\d{1,9})\))?(?P<index>:index)?"
)
# By their names in SQLAlchemy.
TYPES = {
    "text": "Text",
    "integer": "Integer",
    "bigint": "BigInteger",
    "float": "Float",
    "boolean": "Boolean",
}


def parse_column(text: str) -> Column[Any]:
    """The nullable column that `text` describes; `typer.BadParameter` for anything else."""
    from sqlalchemy import Column

    match = SPEC.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not NAME:TYPE. {COLUMN_HELP}")
    return Column(
        match["name"],
        _column_type(text, match["type"], match["length"]),
        nullable=True,
        index=match["index"] is not None,
    )


def _column_type(text: str, name: str, length: str | None) -> TypeEngine[Any]:
    import sqlalchemy

    if name == "string" and length is not None:
        return sqlalchemy.String(int(length))
    if name not in TYPES or length is not None:
        raise typer.BadParameter(f"{text!r}: no such type. {COLUMN_HELP}")
    found: TypeEngine[Any] = getattr(sqlalchemy, TYPES[name])()
    return found


RETRY_HELP = (
    "When a failed message is retried: none; fixed:30s; delays:1s,10s,1m; exponential; "
    "exponential:base=1s,factor=2,maximum=1h,jitter=0.1; or module:Class for your own policy. "
    "Register your own policies in each of your programs, with "
    "QueueService(retry_policies=...)."
)
PLAIN_NUMBERS = frozenset({"factor", "jitter"})


def parse_retry(text: str) -> RetryPolicy:
    """Parse a retry policy, or raise `typer.BadParameter`, which lists the forms."""
    name, _, arguments = text.partition(":")
    maker = MAKERS.get(name)
    try:
        return maker(arguments) if maker is not None else _own_policy(text)
    except (ValueError, TypeError, typer.BadParameter) as error:
        reason = _nearly(name) if maker is None else None
        reason = reason or str(error).rstrip(".")
        raise typer.BadParameter(f"{text!r}: {reason}. {RETRY_HELP}") from error


def named_by_path(policy: object) -> dict[str, type]:
    """The argument `retry_policies` for `QueueService` that stores `policy` by its import path."""
    kind = type(policy)
    if policy is None or kind.__module__ == RetryPolicy.__module__:
        return {}
    return {f"{kind.__module__}:{kind.__qualname__}": kind}


def _nearly(name: str) -> str | None:
    import difflib  # only after a mistake

    close = difflib.get_close_matches(name.lower(), MAKERS, n=1)
    return f"did you mean {close[0]}" if close else None


def _exponential(arguments: str) -> RetryPolicy:
    values: dict[str, float] = {}
    for pair in filter(None, arguments.split(",")):
        name, _, value = pair.partition("=")
        if name not in inspect.signature(ExponentialBackoff).parameters:
            raise ValueError(f"exponential has no setting {name!r}")
        values[name] = float(value) if name in PLAIN_NUMBERS else parse_duration(value)
    return ExponentialBackoff(**values)


def _own_policy(path: str) -> RetryPolicy:
    made = import_object(path, "")
    policy = made() if callable(made) else made
    if not isinstance(policy, RetryPolicy):
        raise TypeError("the policy has no method next_delay(attempt, error)")
    return policy


MAKERS: dict[str, Callable[[str], RetryPolicy]] = {
    "none": lambda _: NoRetry(),
    "fixed": lambda arguments: FixedDelay(parse_duration(arguments)),
    "delays": lambda arguments: Delays([parse_duration(one) for one in arguments.split(",")]),
    "exponential": _exponential,
}
