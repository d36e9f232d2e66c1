"""The calendar of schedules: cron expressions, intervals, time zones, and due times."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final, Literal, Protocol, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from queue_over_sql.errors import shown
from queue_over_sql.values.cached import cached_property
from queue_over_sql.values.durations import MICROSECOND, instant, instant_to_microseconds

_MONTHS: Final = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LENGTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_SUNDAY: Final = 7
_ALL_HOURS: Final = frozenset(range(24))
_PART: Final = re.compile(r"(?:(\*)|(\w{1,9})(?:-(\w{1,9}))?)(?:/(\d{1,9}))?", re.ASCII)

NICKNAMES: Final[Mapping[str, str]] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""Nicknames of cron expressions."""


@dataclasses.dataclass(frozen=True)
class _Field:
    """The range and the names of one of the five fields."""

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
    """The numbers that match each field of a cron expression.

    Attributes:
        minutes, hours, days, months: the numbers that match.
        weekdays: the days that match, from 0 for Sunday to 6 for Saturday.
        either_day: whether day of month and day of week are both restricted, so that one of them
            must match.
        every_hour: whether it matches every hour, so that it counts elapsed hours, not hours of the
            clock.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    every_hour: bool


def parse_crontab(text: str) -> Crontab:
    """Parse five fields, or one of ``@hourly @daily @weekly @monthly @yearly``.

    Raises:
        TypeError, ValueError: it is not a cron expression, or it never matches a day.
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
        msg = f"cron {shown(text)} never matches: none of its months has this day"
        raise ValueError(msg)
    return line


def refuse_long_steps(text: str) -> None:
    """Refuse a step that is longer than its range, such as ``*/90`` in the minutes.

    ``parse_crontab`` accepts it, because a stored schedule may have it.

    Raises:
        ValueError: the expression has such a step.
    """
    fields = NICKNAMES.get(text.strip().lower(), text).split()
    for field, parts in zip(_FIELDS, fields, strict=True):
        for part in parts.split(","):
            found = _part(field, part)
            low, high = found.start, found.stop - 1
            if found.step > max(1, high - low):
                advice = (
                    f"a step of {found.step} does not fit into {low} to {high}, so only {low} "
                    f"would match. Write {low} or a shorter step, or use every= for an interval"
                )
                raise _unreadable(field, part, advice)


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
        # Sunday has two numbers; a star uses one of them.
        low, high = field.least, 6 if field.most == _SUNDAY else field.most
    else:
        low = _number(field, text, first)
        high = low if last is None else _end(field, text, last)
    if high < low:
        raise _unreadable(field, text, "write a range from the lower to the higher value")
    if step is not None and (int(step) == 0 or not (star or last)):
        raise _unreadable(field, text, "write a step of 1 or more after * or a range")
    return range(low, high + 1, int(step or 1))


def _end(field: _Field, text: str, last: str) -> int:
    end = _number(field, text, last)
    # A range may end with Sunday as day 7, also by its name.
    return _SUNDAY if end == 0 and field.most == _SUNDAY and not last.isdigit() else end


def _number(field: _Field, text: str, word: str) -> int:
    number = int(word) if word.isdigit() else field.names.get(word.lower(), -1)
    if not field.least <= number <= field.most:
        names = f" or {', '.join(field.names)}" if field.names else ""
        if word.isdigit():
            msg = f"cron: {shown(text)} is out of range for the {field.name}"
            raise ValueError(f"{msg} ({field.least} to {field.most}{names})")
        raise _unreadable(field, text, f"write {field.least} to {field.most}{names}")
    return number


def _unreadable(field: _Field, text: str, advice: str) -> ValueError:
    return ValueError(f"cron: {shown(text)} is not valid for the {field.name}: {advice}")


_DAY: Final = timedelta(days=1)
# How far around a time to look for a clock change; clocks move by at most a day.
_AROUND: Final = _DAY + timedelta(hours=1)


class Trigger(Protocol):
    """The times of a schedule."""

    def after(self, moment: int) -> int | None:
        """The first time after a moment; None if there is none."""


@dataclasses.dataclass(frozen=True)
class EveryTrigger:
    """Times at a fixed interval after ``start``, without ``start`` itself.

    It computes with integers. APScheduler's interval adds floating-point seconds, so two servers
    would get times that differ by a microsecond.
    """

    start: int
    every: int

    def after(self, moment: int) -> int:
        """The first time after a moment."""
        passed = max(0, (moment - self.start) // self.every)
        return self.start + (passed + 1) * self.every


@dataclasses.dataclass(frozen=True)
class WallTrigger:
    """Times of a cron expression in one time zone.

    An expression that names hours uses wall-clock times, once per day each. If daylight saving
    skips a time, it comes later by the length of the change. If a time occurs twice, the first one
    counts. An expression for every hour counts elapsed hours.
    """

    line: Crontab
    zone: tzinfo

    def after(self, moment: int) -> int | None:
        """The first time after a moment; None if there is none."""
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
        # No later time than ``since`` has an earlier wall-clock time than this.
        time = self._fitting(_wall(since, min(offsets)))
        while time is not None:
            if _as_utc(time) - since > _DAY:
                offsets = self._offsets(_as_utc(time))
            # A skipped time uses the clock before the change, a repeated time the first occurrence.
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
        # As UTC: a clock without skipped and repeated times.
        found = self._calendar.get_next_fire_time(None, _as_utc(start))
        return None if found is None else found.replace(tzinfo=None)

    @cached_property
    def _calendar(self) -> Any:
        # Loaded here, because only schedules need it.
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
        # APScheduler counts weekdays from Monday, crontab from Sunday.
        by_week = {"day_of_week": _listed({(day - 1) % 7 for day in line.weekdays}, 7)}
        by_month = {"day": _listed(line.days, 31)}
        if line.either_day:
            return OrTrigger([CronTrigger(**common, **by_month), CronTrigger(**common, **by_week)])
        return CronTrigger(**common, **by_month, **by_week)


def latest(trigger: Trigger, since: int, until: int) -> int:
    """The last time of a trigger up to a moment, if ``since`` is one of its times.

    It searches by bisection: after a year without a server there may be millions of times.
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
    """The trigger of a cron expression in a time zone; raises as parsing them does."""
    return WallTrigger(parse_crontab(cron), zone_named(zone))


def zone_name(zone: Any) -> str:
    """Check ``timezone=``, and return the name of the time zone.

    Raises:
        TypeError, ValueError: it is neither a name nor a ``ZoneInfo``, or is unknown on this
            system.
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
    """The time zone with this name; ValueError if this system does not have it."""
    if name == "UTC":
        # It works even if the system has no time zone data.
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        msg = (
            f"timezone {shown(name)} is unknown on this system: use a name such as "
            "'Europe/Zagreb'. If the system has no time zones, install the Python package tzdata"
        )
        raise ValueError(msg) from error


def _wall(at: datetime, offset: timedelta) -> datetime:
    return (at + offset).replace(tzinfo=None)


def _as_utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC)


def _listed(numbers: frozenset[int] | set[int], all_of_them: int) -> str:
    # A star is one check; a list is checked number by number.
    if len(numbers) == all_of_them:
        return "*"
    return ",".join(str(number) for number in sorted(numbers))


MISSED: Final = ("one", "all", "skip")
"""What to do about missed times."""
Missed: TypeAlias = Literal["one", "all", "skip"]

AHEAD: Final = 5_000_000
"""How far ahead messages are published, in microseconds. The next one always is."""

MOST: Final = 100
"""The maximum number of messages per transaction."""

# How often to look whether the messages that were published ahead are still there.
_CHECK: Final = 60_000_000

# A pass that is only this late has missed nothing.
_LATE: Final = 5_000_000
_NEVER: Final = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Firing:
    """What to publish for a schedule.

    Attributes:
        instants: the times to publish a message for, in order.
        next_at: the first time after them; None if there is none.
        wake_at: when to look at the schedule again, in microseconds.
    """

    instants: tuple[int, ...]
    next_at: int | None
    wake_at: int


def plan(
    trigger: Trigger, next_at: int | None, now: int, missed: str, *, ahead: bool = True
) -> Firing:
    """Plan what to publish at a moment; ``next_at`` is the first time without a message.

    Without ``ahead`` nothing is published before its time.
    """
    late, next_at = _late(trigger, next_at, now, missed)
    # There may be more than one transaction can publish.
    if next_at is not None and next_at <= now:
        return Firing(tuple(late), next_at, now)
    if not ahead:
        return Firing(tuple(late), next_at, _NEVER if next_at is None else next_at)
    following = trigger.after(now) or _NEVER
    instants = list(late)
    while next_at is not None and next_at <= max(following, now + AHEAD) and len(instants) < MOST:
        instants.append(next_at)
        next_at = trigger.after(next_at)
    # Wait until the last published time is over, or the next one comes near.
    near = _NEVER if next_at is None else min(following, next_at - AHEAD)
    checks = [at for at in (following - 2 * AHEAD, now + _CHECK) if at > now]
    return Firing(tuple(instants), next_at, min(near, *checks))


def alone_ahead(trigger: Trigger, next_at: int | None, now: int) -> int | None:
    """The next time, if it alone has a message ahead and is none of the next seconds; or None.

    After the clock was set back, later times have messages, too. Then it may have been handled.
    """
    following = trigger.after(now)
    if following is None or next_at is None or not now + AHEAD < following < next_at:
        return None
    return following if (trigger.after(following) or _NEVER) >= next_at else None


def _late(
    trigger: Trigger, next_at: int | None, now: int, missed: str
) -> tuple[list[int], int | None]:
    late: list[int] = []
    if next_at is None or next_at > now:
        return late, next_at
    following: int | None = next_at
    if next_at <= now - _LATE:
        if missed == "one":
            return [latest(trigger, next_at, now)], trigger.after(now)
        if missed == "skip":
            following = trigger.after(now - _LATE)
    while following is not None and following <= now and len(late) < MOST:
        late.append(following)
        following = trigger.after(following)
    return late, following
