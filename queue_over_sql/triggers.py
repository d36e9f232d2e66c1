"""Triggers: the instants of a schedule, in microseconds since the Unix epoch.

The calendar's arithmetic is that of APScheduler's triggers. They are run on plain wall-clock time,
and what daylight saving makes of that is decided here, because their own answer runs a job of
02:30 twice on the day on which 02:30 comes twice.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Final, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

from queue_over_sql.crontab import parse_crontab
from queue_over_sql.durations import MICROSECOND, instant, instant_to_microseconds

if TYPE_CHECKING:
    from queue_over_sql.crontab import Crontab

_DAY: Final = timedelta(days=1)
# How far around an instant clocks are looked at for a change, which moves them a day at most.
_AROUND: Final = 2 * _DAY


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
        since = instant(moment)
        offsets = self._offsets(since)
        best: datetime | None = None
        # No instant after `since` has an earlier wall-clock time than this.
        for time in self._times(_wall(since, min(offsets))):
            found = _wall_as_utc(time)
            if found - since > _DAY:
                offsets = self._offsets(found)
            later = [at for at in self._instants(time) if at > since]
            best = min([*later, *([best] if best else [])], default=None)
            # All further times come later than this.
            if best is not None and best <= found - max(offsets):
                break
        return None if best is None else instant_to_microseconds(best, "instant")

    def _offsets(self, around: datetime) -> list[timedelta]:
        """How far the clocks of the zone are ahead of UTC at, before and after an instant."""
        places = (around - _AROUND, around, around + _AROUND)
        return [place.astimezone(self.zone).utcoffset() or timedelta(0) for place in places]

    def _instants(self, time: datetime) -> list[datetime]:
        """The instants that a wall-clock time stands for."""
        folds = [time.replace(tzinfo=self.zone, fold=fold).astimezone(UTC) for fold in (0, 1)]
        if not self.line.every_hour:
            return folds[:1]
        # Of a time that is skipped, neither reading leads back to it.
        return [found for found in folds if self._shown(found) == time]

    def _shown(self, at: datetime) -> datetime:
        return at.astimezone(self.zone).replace(tzinfo=None, fold=0)

    def _times(self, after: datetime) -> Iterator[datetime]:
        """The wall-clock times that fit, from the first after another one on."""
        last = after
        while True:
            # As if it were UTC: a clock on which nothing is skipped and nothing comes twice.
            beyond = _wall_as_utc(last + MICROSECOND)
            found = self._calendar.get_next_fire_time(None, beyond)
            if found is None:
                return
            last = found.replace(tzinfo=None)
            yield last

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
            f"timezone {name!r} is unknown here: give a name such as 'Europe/Zagreb'; a system "
            "without time zones gets them by installing the package tzdata"
        )
        raise ValueError(msg) from error


def _wall(at: datetime, offset: timedelta) -> datetime:
    return (at + offset).replace(tzinfo=None)


def _wall_as_utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC)


def _listed(numbers: frozenset[int] | set[int], all_of_them: int) -> str:
    # A star is looked at once, a list number by number.
    if len(numbers) == all_of_them:
        return "*"
    return ",".join(str(number) for number in sorted(numbers))
