"""Durations and times: seconds, ``timedelta`` and ``datetime`` in the API, microseconds inside.

Values from the database are checked when they are read.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from queue_over_sql.errors import UNREADABLE, QueueError, shown

Duration: TypeAlias = float | timedelta | str
"""Seconds as a number, a ``timedelta``, or text such as ``"30s"``, ``"250ms"`` or ``"1h30m"``."""

NEVER: Final = 253_402_300_799_999_999
"""Stands for "never", in microseconds: the end of the year 9999."""

ALWAYS: Final = -(2**63)
"""The least time that a database holds, in microseconds: no message is due before it."""

UNITS: Final = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
}
"""The seconds of each unit of durations."""
_NUMBER: Final = re.compile(r"\d+(\.\d+)?", re.ASCII)
_WITH_UNIT: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(us|ms|s|m|h|d|w)", re.ASCII)
# One look from the beginning: a search for parts takes hours in thousands of digits.
_ALL_WITH_UNITS: Final = re.compile(f"(?:{_WITH_UNIT.pattern})+", re.ASCII)

# CLOCK_BOOTTIME goes on during suspend, CLOCK_MONOTONIC on Linux does not.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))

MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The limit of 1,000 years is far from the overflow of BIGINT microseconds.
_LONGEST = timedelta(days=365_250)
LONGEST_US: Final = _LONGEST // MICROSECOND
"""The longest duration in microseconds: 1,000 years."""
# The largest BIGINT; adding to it would overflow.
_BOUND = 2**63 - 1
_FIRST_INSTANT = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // MICROSECOND


def to_timedelta(value: Duration, argument: str, *, zero: bool = False) -> timedelta:
    """Read a duration.

    Raises:
        TypeError: it is neither a number, nor a ``timedelta``, nor text.
        ValueError: it is negative, zero without ``zero``, not finite or over 1,000 years, or text
            that is not a duration.
    """
    if isinstance(value, str):
        try:
            value = parse_seconds(value)
        except ValueError as error:
            msg = f"{argument}: {error}; write it as 30s, 1h30m or 7d"
            raise ValueError(msg) from error
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        kind = type(value).__name__
        msg = f"{argument} must be seconds, a timedelta or text such as '30s', not {kind}"
        raise TypeError(msg)
    if not isinstance(value, timedelta):
        # Compare first: ``math.isfinite`` fails for very large integers.
        within = -_LONGEST.total_seconds() <= value <= _LONGEST.total_seconds()
        if not within or not math.isfinite(value):
            msg = f"{argument} must be a finite number of seconds of at most 1,000 years"
            raise ValueError(msg)
        value = timedelta(seconds=value)
    if value > _LONGEST:
        msg = f"{argument} must be at most 1,000 years"
        raise ValueError(msg)
    if value < timedelta(0) or (value == timedelta(0) and not zero):
        least = "zero or more" if zero else "more than zero"
        msg = f"{argument} must be {least}, not {duration_text(value.total_seconds())}"
        raise ValueError(msg)
    return value


def parse_seconds(text: str) -> float:
    """Parse a duration such as ``1.5``, ``250ms``, ``30 s``, ``1h30m`` or ``7d``, in seconds.

    Other text raises ValueError.
    """
    if _NUMBER.fullmatch(text.strip()):
        return float(text)
    compact = text.replace(" ", "")
    if not _ALL_WITH_UNITS.fullmatch(compact):
        msg = f"{shown(text)} is not a duration"
        raise ValueError(msg)
    parts = _WITH_UNIT.findall(compact)
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def exact_duration(seconds: float) -> str:
    """Write a duration as ``parse_seconds`` reads it, to the millisecond: ``30d``, ``1h30m``."""
    parts = (f"{count}{unit}" for count, unit in _parts(seconds, "m"))
    return "".join(parts) or "0s"


def duration_text(seconds: float) -> str:
    """Write a duration for people: ``30 d``, ``28 min 32 s``, ``250 ms``.

    It is to the millisecond, or a shorter one to the microsecond.
    """
    if seconds < 0:
        return f"-{duration_text(-seconds)}"
    parts = [f"{count} {unit}" for count, unit in _parts(seconds, "min")]
    return " ".join(parts) or (f"{round(seconds * 1_000_000)} µs" if seconds else "0 s")


def _parts(seconds: float, minute: str) -> Iterator[tuple[int, str]]:
    left = round(seconds * 1000)
    lengths = {"d": 86_400_000, "h": 3_600_000, minute: 60_000, "s": 1000, "ms": 1}
    for unit, length in lengths.items():
        count, left = divmod(left, length)
        if count:
            yield count, unit


def to_microseconds(value: Duration, argument: str, *, zero: bool = False) -> int:
    """Read a duration as whole microseconds; errors as in ``to_timedelta``."""
    return to_timedelta(value, argument, zero=zero) // MICROSECOND


def instant_to_microseconds(value: datetime, argument: str) -> int:
    """Convert an aware datetime to microseconds since the Unix epoch.

    Raises:
        TypeError: it is not a ``datetime``.
        ValueError: it has no time zone, or is not within the years 1 to 9999 in UTC.
    """
    if not isinstance(value, datetime):
        msg = f"{argument} must be a datetime, not {type(value).__name__}"
        raise TypeError(msg)
    if value.utcoffset() is None:
        msg = (
            f"{argument} is a datetime without a time zone: add one, for example "
            "datetime.now(timezone.utc)"
        )
        raise ValueError(msg)
    found = (value - _EPOCH) // MICROSECOND
    if not _FIRST_INSTANT <= found <= NEVER:
        msg = f"{argument} must be within the years 1 to 9999 in UTC, not {value}"
        raise ValueError(msg)
    return found


def instant(microseconds: int) -> datetime:
    """Convert microseconds since the Unix epoch to a datetime in UTC, or raise QueueError."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except UNREADABLE as error:
        msg = f"The database holds {shown(microseconds, 50)} as a time, which is not valid."
        raise QueueError(msg) from error


def optional_instant(microseconds: int | None) -> datetime | None:
    """As ``instant``, for a value that may be None."""
    return None if microseconds is None else instant(microseconds)


def stored_number(name: str, value: Any) -> int:
    """Check an integer from the database, whose column may hold anything.

    Raises:
        QueueError: it is not an integer in the valid range.
    """
    try:
        number = int(value)
    except UNREADABLE as error:
        raise _impossible(name, value) from error
    if not -_BOUND < number < _BOUND:
        raise _impossible(name, value)
    return number


def optional_number(name: str, value: Any) -> int | None:
    """As ``stored_number``, for a value that may be None."""
    return None if value is None else stored_number(name, value)


def _impossible(name: str, value: Any) -> QueueError:
    return QueueError(
        f"{name} in the database has the invalid value {shown(value, 50)}. Restore the row from a "
        "backup, or correct the value."
    )


def elapsed_clock() -> float:
    """Seconds on a monotonic clock that includes suspended time, if the system has one.

    It goes on when a test stops Python's clocks.
    """
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
