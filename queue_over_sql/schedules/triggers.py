"""Triggers: the instants of a schedule, in microseconds since the Unix epoch.

The calendar's arithmetic is that of APScheduler's triggers. They are run on plain wall-clock time,
and what daylight saving makes of that is decided here, because their own answer runs a job of
02:30 twice on the day on which 02:30 comes twice.
"""

from __future__ import annotations

import dataclasses
import functools
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Final, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

from queue_over_sql.durations import MICROSECOND, instant, instant_to_microseconds
from queue_over_sql.errors import shown
from queue_over_sql.schedules.crontab import parse_crontab

if TYPE_CHECKING:
    from queue_over_sql.schedules.crontab import Crontab

_DAY: Final = timedelta(days=1)
# How far around an instant clocks are looked at for a change, which moves them a day at most.
_AROUND: Final = _DAY + timedelta(hours=1)


class Trigger(Protocol):
    """The instants of one schedule."""

    def after(self, moment: int) -> int | None:
        """The first instant after a moment; None where none will ever come."""
        ...


@dataclasses.dataclass(frozen=True)
class EveryTrigger:
    """Again and again after the same time.

    In whole numbers, not by APScheduler's interval: that adds floating seconds to the last instant,
    so that two servers would come to instants a microsecond apart.

    Attributes:
        start: what the times are counted from; itself no instant.
        every: how long from one to the next.
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

    Attributes:
        line: what was read from the crontab line.
        zone: the time zone.
    """

    line: Crontab
    zone: tzinfo

    def after(self, moment: int) -> int | None:
        """The first instant after a moment; None where none will ever come."""
        following = self._real_time if self.line.every_hour else self._named_time
        found = following(instant(moment))
        return None if found is None else instant_to_microseconds(found, "instant")

    def _real_time(self, since: datetime) -> datetime | None:
        """By the clock as it goes, from one move of its hands to the next."""
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
        """By the times of each day, each of which stands for one instant."""
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
        """How far the clocks of the zone are ahead of UTC at an instant."""
        return at.astimezone(self.zone).utcoffset() or timedelta(0)

    def _offsets(self, around: datetime) -> list[timedelta]:
        """Likewise at an instant, before and after it."""
        return [self._offset(around + way * _AROUND) for way in (-1, 0, 1)]

    def _moved(self, low: datetime, high: datetime) -> datetime:
        """The first instant after the clocks were moved, between two that differ."""
        before = self._offset(low)
        while high - low > MICROSECOND:
            middle = low + (high - low) // 2
            if self._offset(middle) == before:
                low = middle
            else:
                high = middle
        return high

    def _fitting(self, start: datetime) -> datetime | None:
        """The first wall-clock time that fits, from one on."""
        # As if it were UTC: a clock on which nothing is skipped and nothing comes twice.
        found = self._calendar.get_next_fire_time(None, _as_utc(start))
        return None if found is None else found.replace(tzinfo=None)

    @functools.cached_property
    def _calendar(self) -> Any:
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
    """The trigger of a crontab line in a time zone.

    Raises:
        TypeError, ValueError: it is none.
    """
    return WallTrigger(parse_crontab(cron), zone_named(zone))


def zone_name(zone: Any) -> str:
    """Read ``timezone=``: the name of a time zone.

    Raises:
        TypeError: it is neither a name nor a ``ZoneInfo``.
        ValueError: there is no such time zone here.
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
    """The time zone of a name.

    Raises:
        ValueError: there is none here.
    """
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
