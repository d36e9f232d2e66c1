"""Crontab: reads five fields as crontab(5) means them, into the numbers that fit each."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from queue_over_sql.errors import shown

_MONTHS: Final = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LENGTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_SUNDAY: Final = 7
_ALL_HOURS: Final = frozenset(range(24))
_PART: Final = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d+))?", re.ASCII)

NICKNAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "@hourly": "0 * * * *",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@weekly": "0 0 * * 0",
        "@monthly": "0 0 1 * *",
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
    }
)
"""Words that stand for five fields."""


@dataclasses.dataclass(frozen=True)
class _Field:
    """What one of the five fields may hold."""

    name: str
    least: int
    most: int
    names: Mapping[str, int] = dataclasses.field(default_factory=dict)


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    _Field("day of week", 0, _SUNDAY, {name: number for number, name in enumerate(_DAYS)}),
)


@dataclasses.dataclass(frozen=True)
class Crontab:
    """The numbers that fit each field of a crontab line.

    Attributes:
        minutes, hours, days, months: which ones fit.
        weekdays: likewise, from 0 for Sunday to 6 for Saturday.
        either_day: day of month and day of week are both restricted, so that either may fit.
        every_hour: it names no hours of the day, so it is about each hour that really passes.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    every_hour: bool


def parse_crontab(text: str) -> Crontab:
    """Read five fields, or one of the words ``@hourly @daily @weekly @monthly @yearly``.

    Raises:
        TypeError: it is no text.
        ValueError: it is no crontab line, or a day that never comes.
    """
    if not isinstance(text, str):
        msg = f"cron must be a str such as '30 6 * * 1-5', not {type(text).__name__}"
        raise TypeError(msg)
    fields = NICKNAMES.get(text.strip().lower(), text).split()
    if len(fields) != len(_FIELDS):
        msg = (
            f"cron must have five fields (minute, hour, day of month, month, day of week) or be "
            f"one of {', '.join(NICKNAMES)}, not {shown(text)}"
        )
        raise ValueError(msg)
    minutes, hours, days, months, weekdays = map(_numbers, _FIELDS, fields)
    free = [field.startswith("*") for field in fields]
    line = Crontab(
        minutes,
        hours,
        days,
        months,
        frozenset(day % _SUNDAY for day in weekdays),
        either_day=not free[2] and not free[4],
        every_hour=free[1] or hours == _ALL_HOURS,
    )
    if not line.either_day and all(_LENGTHS[m - 1] < min(days) for m in months):
        msg = f"cron {shown(text)} names a day of the month that never comes"
        raise ValueError(msg)
    return line


def _numbers(field: _Field, text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        found.update(_part(field, part))
    return frozenset(found)


def _part(field: _Field, text: str) -> range:
    match = _PART.fullmatch(text)
    if match is None:
        raise _unreadable(field, text, "write numbers, ranges such as 1-5, *, or steps such as */5")
    star, first, last, step = match.groups()
    if star:
        # Sunday has two numbers, of which a star means one.
        low, high = field.least, 6 if field.most == _SUNDAY else field.most
    else:
        low = _number(field, text, first)
        high = low if last is None else _end(field, text, last)
    if high < low:
        raise _unreadable(field, text, "a range goes from the lesser to the greater")
    if step is not None and (int(step) == 0 or not (star or last)):
        raise _unreadable(field, text, "a step of 1 or more follows * or a range")
    return range(low, high + 1, int(step or 1))


def _end(field: _Field, text: str, last: str) -> int:
    end = _number(field, text, last)
    # A range may end with the Sunday after its days, by its name too.
    return _SUNDAY if end == 0 and field.most == _SUNDAY and not last.isdigit() else end


def _number(field: _Field, text: str, word: str) -> int:
    number = int(word) if word.isdigit() else field.names.get(word.lower(), -1)
    if not field.least <= number <= field.most:
        names = f" or {', '.join(field.names)}" if field.names else ""
        raise _unreadable(field, text, f"it takes {field.least} to {field.most}{names}")
    return number


def _unreadable(field: _Field, text: str, advice: str) -> ValueError:
    return ValueError(f"cron: {shown(text)} is nothing for the {field.name}: {advice}")
