"""The calendar of schedules: crontab fields, intervals, time zones, and which instants are due."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from queue_over_sql.durations import MICROSECOND, instant, instant_to_microseconds
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

NICKNAMES: Final[Mapping[str, str]] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
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
        TypeError, ValueError: it is no crontab line, or a day that never comes.
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


_DAY: Final = timedelta(days=1)
# How far around an instant clocks are looked at for a change, which moves them a day at most.
_AROUND: Final = _DAY + timedelta(hours=1)


class Trigger(Protocol):
    """The instants of one schedule."""

    def after(self, moment: int) -> int | None:
        """The first instant after a moment; None where none will ever come."""


@dataclasses.dataclass(frozen=True)
class EveryTrigger:
    """Again and again after the same time, counted from ``start``, which is no instant itself.

    In whole numbers, not by APScheduler's interval: that adds floating seconds to the last instant,
    so that two servers would come to instants a microsecond apart.
    """

    start: int
    every: int

    def after(self, moment: int) -> int:
        """The first instant after a moment."""
        passed = max(0, (moment - self.start) // self.every)
        return self.start + (passed + 1) * self.every


@dataclasses.dataclass(frozen=True)
class WallTrigger:
    """By the clock on the wall of one time zone.

    A line that names hours is about wall-clock times, each of which comes once on its day: one that
    daylight saving skips comes as much later as the clocks were moved, one that comes twice counts
    the first time. A line for every hour is about the hours that really pass.
    """

    line: Crontab
    zone: tzinfo

    def after(self, moment: int) -> int | None:
        """The first instant after a moment; None where none will ever come."""
        following = self._real_time if self.line.every_hour else self._named_time
        found = following(instant(moment))
        return None if found is None else instant_to_microseconds(found, "instant")

    def _real_time(self, since: datetime) -> datetime | None:
        start = since + MICROSECOND
        while True:
            offset = self._offset(start)
            time = self._fitting(_wall(start, offset))
            if time is None:
                return None
            found = _as_utc(time) - offset
            if self._offset(found) == offset:
                return found
            start = self._moved(start, found)

    def _named_time(self, since: datetime) -> datetime | None:
        offsets = self._offsets(since)
        best: datetime | None = None
        # No instant after `since` has an earlier wall-clock time than this.
        time = self._fitting(_wall(since, min(offsets)))
        while time is not None:
            if _as_utc(time) - since > _DAY:
                offsets = self._offsets(_as_utc(time))
            # What is skipped is read by the clock before it was moved, what is twice as the first.
            found = time.replace(tzinfo=self.zone, fold=0).astimezone(UTC)
            if found > since:
                best = found if best is None else min(best, found)
            # All further times come later than this.
            if best is not None and best <= _as_utc(time) - max(offsets):
                break
            time = self._fitting(time + MICROSECOND)
        return best

    def _offset(self, at: datetime) -> timedelta:
        return at.astimezone(self.zone).utcoffset() or timedelta(0)

    def _offsets(self, around: datetime) -> list[timedelta]:
        return [self._offset(around + way * _AROUND) for way in (-1, 0, 1)]

    def _moved(self, low: datetime, high: datetime) -> datetime:
        before = self._offset(low)
        while high - low > MICROSECOND:
            middle = low + (high - low) // 2
            if self._offset(middle) == before:
                low = middle
            else:
                high = middle
        return high

    def _fitting(self, start: datetime) -> datetime | None:
        # As if it were UTC: a clock on which nothing is skipped and nothing comes twice.
        found = self._calendar.get_next_fire_time(None, _as_utc(start))
        return None if found is None else found.replace(tzinfo=None)

    @functools.cached_property
    def _calendar(self) -> Any:
        # Loaded here: only who has schedules pays for it.
        from apscheduler.triggers.combining import OrTrigger  # noqa: PLC0415
        from apscheduler.triggers.cron import CronTrigger  # noqa: PLC0415

        line = self.line
        common = {
            "minute": _listed(line.minutes, 60),
            "hour": _listed(line.hours, 24),
            "month": _listed(line.months, 12),
            "second": "0",
            "timezone": UTC,
        }
        # APScheduler counts the days of the week from Monday, crontab from Sunday.
        by_week = {"day_of_week": _listed({(day - 1) % 7 for day in line.weekdays}, 7)}
        by_month = {"day": _listed(line.days, 31)}
        if line.either_day:
            return OrTrigger([CronTrigger(**common, **by_month), CronTrigger(**common, **by_week)])
        return CronTrigger(**common, **by_month, **by_week)


def latest(trigger: Trigger, since: int, until: int) -> int:
    """The last instant of a trigger up to a moment, where ``since`` is one.

    By halving: after a year of silence there may be millions between.
    """
    low, high = since - 1, until
    while high - low > 1:
        middle = (low + high) // 2
        following = trigger.after(middle)
        if following is not None and following <= until:
            low = middle
        else:
            high = middle
    return max(since, low + 1)


@functools.lru_cache(maxsize=256)
def wall_trigger(cron: str, zone: str) -> WallTrigger:
    """The trigger of a crontab line in the time zone of a name; raises what reading them does."""
    return WallTrigger(parse_crontab(cron), zone_named(zone))


def zone_name(zone: Any) -> str:
    """Read ``timezone=``: the name of a time zone.

    Raises:
        TypeError, ValueError: it is neither a name nor a ``ZoneInfo``, or unknown here.
    """
    if zone is UTC:
        return "UTC"
    name = zone.key if isinstance(zone, ZoneInfo) else zone
    if name is None or not isinstance(name, str):
        msg = (
            "timezone must be the name of a time zone such as 'Europe/Zagreb', or a ZoneInfo with "
            f"one, not {type(zone).__name__}"
        )
        raise TypeError(msg)
    zone_named(name)
    return name


def zone_named(name: str) -> tzinfo:
    """The time zone of a name; ValueError where there is none here."""
    if name == "UTC":
        # Even where the system knows no time zones at all.
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        msg = (
            f"timezone {shown(name)} is unknown here: give a name such as 'Europe/Zagreb'; a "
            "system without time zones gets them by installing the package tzdata"
        )
        raise ValueError(msg) from error


def _wall(at: datetime, offset: timedelta) -> datetime:
    return (at + offset).replace(tzinfo=None)


def _as_utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC)


def _listed(numbers: frozenset[int] | set[int], all_of_them: int) -> str:
    # A star is looked at once, a list number by number.
    if len(numbers) == all_of_them:
        return "*"
    return ",".join(str(number) for number in sorted(numbers))


MISSED: Final = ("one", "all", "skip")
"""What may be done about instants at which nobody fired."""

AHEAD: Final = 5_000_000
"""How far ahead messages are published, in microseconds; the next one always is."""

MOST: Final = 100
"""How many messages one transaction publishes."""

# A pass that is only a little late has missed nothing.
_LATE: Final = 5_000_000
_NEVER: Final = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Firing:
    """What to do about one schedule.

    Attributes:
        instants: those to publish a message for, in order.
        next_at: the first instant after them; None where none will ever come.
        wake_at: from when on there is something to do again, in microseconds.
    """

    instants: tuple[int, ...]
    next_at: int | None
    wake_at: int


def plan(trigger: Trigger, next_at: int | None, now: int, missed: str) -> Firing:
    """What to publish at a moment; ``next_at`` is the first instant that has no message yet."""
    late, next_at = _late(trigger, next_at, now, missed)
    # There may be more of them than one transaction takes.
    if next_at is not None and next_at <= now:
        return Firing(tuple(late), next_at, now)
    following = trigger.after(now) or _NEVER
    instants = list(late)
    while next_at is not None and next_at <= max(following, now + AHEAD) and len(instants) < MOST:
        instants.append(next_at)
        next_at = trigger.after(next_at)
    # Until the last one that was published is over, or the next one comes near.
    near = _NEVER if next_at is None else min(following, next_at - AHEAD)
    return Firing(tuple(instants), next_at, near)


def _late(
    trigger: Trigger, next_at: int | None, now: int, missed: str
) -> tuple[list[int], int | None]:
    late: list[int] = []
    if next_at is None or next_at > now:
        return late, next_at
    if missed == "one":
        return [latest(trigger, next_at, now)], trigger.after(now)
    following: int | None = next_at
    if missed == "skip" and next_at <= now - _LATE:
        following = trigger.after(now - _LATE)
    while following is not None and following <= now and len(late) < MOST:
        late.append(following)
        following = trigger.after(following)
    return late, following
