"""Cron expressions in words, where words are shorter to read: ``every day at 03:00``."""

from __future__ import annotations

import re
from typing import Final

from queue_over_sql.inside import NICKNAMES

_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_STEP: Final = re.compile(r"\*/(\d{1,2})")
_RANGE: Final = re.compile(r"([^-,/]+)-([^-,/]+)")
_MOST_TIMES: Final = 4


def cron_words(cron: str) -> str:
    """A cron expression in words; empty if it has no common form."""
    fields = NICKNAMES.get(cron.strip().lower(), cron).split()
    try:
        minute, hour, day, month, weekday = fields
        days = _days(day, month, weekday)
        times = _times(minute, hour)
    except (ValueError, IndexError):
        return ""
    if times.startswith("every"):
        return times if days == "every day" else f"{times}, {days}"
    return f"{days} {times}" if days == "every day" else f"{times} {days}"


def _times(minute: str, hour: str) -> str:
    if hour == "*":
        if minute == "*":
            return "every minute"
        if (step := _step(minute, 60)) is not None:
            return f"every {step} minutes"
        return "every hour" if int(minute) == 0 else f"every hour at minute {int(minute)}"
    at = int(minute)
    if (step := _step(hour, 24)) is not None:
        return f"every {step} hours" + (f" at minute {at}" if at else "")
    hours = [int(each) for each in hour.split(",")]
    if len(hours) > _MOST_TIMES:
        raise ValueError
    return "at " + _listed([f"{each:02}:{at:02}" for each in hours])


def _step(field: str, length: int) -> int | None:
    # Only where the steps have one length, also over the end of the hour or day.
    match = _STEP.fullmatch(field)
    if match is None:
        return None
    step = int(match[1])
    if step < 2 or length % step:  # noqa: PLR2004 - in words it is more than one
        raise ValueError
    return step


def _days(day: str, month: str, weekday: str) -> str:
    if day == month == weekday == "*":
        return "every day"
    if day == month == "*":
        if (between := _RANGE.fullmatch(weekday)) is not None:
            return f"from {_weekday(between[1])} to {_weekday(between[2])}"
        return "on " + _listed([_weekday(each) for each in weekday.split(",")])
    if weekday != "*":
        # Cron takes a day that is one of both.
        raise ValueError
    numbers = _listed([str(int(each)) for each in day.split(",")])
    if month == "*":
        return f"on day {numbers} of each month"
    return f"on {numbers} {_listed([_month(each) for each in month.split(',')])}"


def _weekday(text: str) -> str:
    names = [each[:3].lower() for each in _DAYS]
    return _DAYS[int(text) % 7 if text.isdecimal() else names.index(text.lower())]


def _month(text: str) -> str:
    names = [each[:3].lower() for each in _MONTHS]
    return _MONTHS[int(text) - 1 if text.isdecimal() else names.index(text.lower())]


def _listed(parts: list[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
