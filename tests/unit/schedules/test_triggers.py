"""The times of schedules: daylight saving, intervals, and what is published when."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queue_over_sql.schedules.calendar import (
    AHEAD,
    MOST,
    EveryTrigger,
    Trigger,
    alone_ahead,
    latest,
    plan,
    wall_trigger,
    zone_name,
)
from queue_over_sql.values.durations import instant, instant_to_microseconds

YEAR = 2026
ZAGREB, NEW_YORK, LORD_HOWE = "Europe/Zagreb", "America/New_York", "Australia/Lord_Howe"
ZONES = [ZAGREB, NEW_YORK, LORD_HOWE]
MINUTE = 60_000_000
HOUR = 60 * MINUTE


def micro(text: str) -> int:
    """Microseconds of an ISO instant."""
    return instant_to_microseconds(datetime.fromisoformat(text), "text")


def between(trigger: Trigger, start: int, end: int) -> list[int]:
    """All instants after a moment, up to another one."""
    found: list[int] = []
    moment = start
    while (following := trigger.after(moment)) is not None and following <= end:
        moment = following
        found.append(moment)
    return found


def local_day(cron: str, zone: str, day: str) -> list[str]:
    """The instants of one local day as its clocks show them, with their distance from UTC."""
    start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    end = (start + timedelta(days=1)).replace(tzinfo=ZoneInfo(zone))
    found = between(
        wall_trigger(cron, zone),
        instant_to_microseconds(start.astimezone(UTC), "start") - 1,
        instant_to_microseconds(end.astimezone(UTC), "end") - 1,
    )
    return [f"{instant(at).astimezone(ZoneInfo(zone)):%H:%M%z}" for at in found]


# ---------------------------------------------------------------- daylight saving


FIXED_TIMES: list[tuple[str, str, str, list[str]]] = [
    # 02:00 to 03:00 does not exist: as much later as the clocks were moved.
    (ZAGREB, "2026-03-29", "30 2 * * *", ["03:30+0200"]),
    (ZAGREB, "2026-03-29", "0 2 * * *", ["03:00+0200"]),
    (NEW_YORK, "2026-03-08", "30 2 * * *", ["03:30-0400"]),
    (LORD_HOWE, "2026-10-04", "15 2 * * *", ["02:45+1100"]),
    (ZAGREB, "2026-03-29", "30 1,3 * * *", ["01:30+0100", "03:30+0200"]),
    # Two times that become one are one.
    (ZAGREB, "2026-03-29", "30 2,3 * * *", ["03:30+0200"]),
    (ZAGREB, "2026-03-29", "*/30 2-3 * * *", ["03:00+0200", "03:30+0200"]),
    # 02:00 to 03:00 comes twice: the first time counts.
    (ZAGREB, "2026-10-25", "30 2 * * *", ["02:30+0200"]),
    (NEW_YORK, "2026-11-01", "30 1 * * *", ["01:30-0400"]),
    (LORD_HOWE, "2026-04-05", "45 1 * * *", ["01:45+1100"]),
    (ZAGREB, "2026-10-25", "0 1-3 * * *", ["01:00+0200", "02:00+0200", "03:00+0100"]),
    # Midnight itself may be skipped.
    ("America/Havana", "2026-03-08", "@daily", ["01:00-0400"]),
]


def test_a_fixed_time_comes_once_a_day() -> None:
    """On days with a gap and on days with an overlap, too."""
    found = [(zone, day, cron, local_day(cron, zone, day)) for zone, day, cron, _ in FIXED_TIMES]
    assert FIXED_TIMES == found
    # Every hour is about the hours that pass.
    assert 23 == len(local_day("0 0-23 * * *", ZAGREB, "2026-03-29"))


HOURS = {
    (ZAGREB, "2026-03-29"): 23,
    (ZAGREB, "2026-10-25"): 25,
    (ZAGREB, "2026-06-01"): 24,
    (NEW_YORK, "2026-03-08"): 23,
    (NEW_YORK, "2026-11-01"): 25,
    (LORD_HOWE, "2026-10-04"): 23.5,
    (LORD_HOWE, "2026-04-05"): 24.5,
}


def test_each_real_minute_and_hour_comes() -> None:
    """Every minute runs through both, and every half hour does."""
    assert HOURS == {at: len(local_day("* * * * *", *at)) / 60 for at in HOURS}
    assert HOURS == {at: len(local_day("*/30 * * * *", *at)) / 2 for at in HOURS}
    whole = {at: hours for at, hours in HOURS.items() if hours == int(hours)}
    for cron in ("0 * * * *", "@hourly"):
        assert whole == {at: len(local_day(cron, *at)) for at in whole}


def test_the_hour_of_a_shift_by_half_an_hour() -> None:
    """The clocks of Lord Howe show 02:00 on neither day at the shift, and 01:30 twice."""
    spring = local_day("0 1-3 * * *", LORD_HOWE, "2026-10-04")
    assert ["01:00+1030", "02:30+1100", "03:00+1100"] == spring
    assert ["01:00+1030", "03:00+1100"] == local_day("0 * * * *", LORD_HOWE, "2026-10-04")[1:3]
    autumn = local_day("30 * * * *", LORD_HOWE, "2026-04-05")
    assert ["01:30+1100", "01:30+1030", "02:30+1030"] == autumn[1:4]


@pytest.mark.parametrize(
    ("zone", "cron"),
    [
        (ZAGREB, "30 2 * * *"),
        (NEW_YORK, "45 1 * * *"),
        (LORD_HOWE, "15 2 * * *"),
        (ZAGREB, "@daily"),
    ],
)
def test_a_daily_job_runs_on_each_day_of_a_year_once(zone: str, cron: str) -> None:
    """365 local days, one instant on each, strictly after the one before."""
    here = ZoneInfo(zone)
    start = datetime(YEAR, 1, 1, tzinfo=here).astimezone(UTC)
    end = datetime(YEAR + 1, 1, 1, tzinfo=here).astimezone(UTC)
    found = between(
        wall_trigger(cron, zone),
        instant_to_microseconds(start, "start") - 1,
        instant_to_microseconds(end, "end") - 1,
    )
    days = [instant(at).astimezone(here).date() for at in found]
    expected = [datetime(YEAR, 1, 1, tzinfo=here).date() + timedelta(n) for n in range(365)]
    assert expected == days
    assert all(one < other for one, other in pairwise(found))


@pytest.mark.parametrize("zone", [*ZONES, "UTC"])
def test_a_job_of_every_half_hour_never_waits_longer(zone: str) -> None:
    """Through a whole year: 30 minutes between any two of them."""
    start, end = micro("2026-01-01T00:00:00+00:00"), micro("2027-01-01T00:00:00+00:00")
    found = between(wall_trigger("*/30 * * * *", zone), start, end)
    assert {30 * MINUTE} == {other - one for one, other in pairwise(found)}
    assert 365 * 48 == len(found)


@pytest.mark.parametrize("zone", ZONES)
def test_any_moment_leads_to_the_same_instants(zone: str) -> None:
    """Whoever asks, and whenever: the answer is the first of the instants after that moment."""
    trigger = wall_trigger("*/20 1-3 * * *", zone)
    for day in ("2026-03-08", "2026-03-29", "2026-04-05", "2026-10-04", "2026-10-25", "2026-11-01"):
        noon = micro(f"{day}T12:00:00+00:00")
        found = between(trigger, noon - 48 * HOUR, noon + 48 * HOUR)
        assert all(one < other for one, other in pairwise(found))
        for moment in range(noon - 36 * HOUR, noon + 12 * HOUR, 20 * MINUTE + 1):
            assert min(at for at in found if at > moment) == trigger.after(moment)


@pytest.mark.parametrize("zone", ZONES)
def test_a_line_for_every_hour_is_what_the_clocks_show(zone: str) -> None:
    """Minute by minute through each move of the clocks: whenever they show 00 or 40."""
    trigger, here = wall_trigger("*/40 * * * *", zone), ZoneInfo(zone)
    for day in ("2026-03-08", "2026-03-29", "2026-04-05", "2026-10-04", "2026-10-25", "2026-11-01"):
        noon = micro(f"{day}T12:00:00+00:00")
        minutes = range(noon - 36 * HOUR, noon + 36 * HOUR, MINUTE)
        shown = [at for at in minutes if instant(at).astimezone(here).minute in {0, 40}]
        assert shown == between(trigger, minutes[0] - 1, minutes[-1])


# ---------------------------------------------------------------- intervals and zones


@settings(deadline=None)
@given(st.integers(0, 2**52), st.integers(100_000, 10**13), st.integers(-(10**14), 2**53))
def test_intervals_are_counted_from_their_start(start: int, every: int, moment: int) -> None:
    """At start + k·every from k = 1 on, exact to the microsecond however far away."""
    found = EveryTrigger(start, every).after(moment)
    assert 0 == (found - start) % every
    assert found >= start + every
    assert found > moment
    assert found - every <= max(moment, start)


def test_time_zones_by_name_and_object() -> None:
    """A zone is known by its name; what has none cannot be told to other servers."""
    assert ["Europe/Zagreb", "UTC"] == [zone_name(ZoneInfo("Europe/Zagreb")), zone_name(UTC)]
    with pytest.raises(TypeError, match="timezone"):
        zone_name(datetime.now().astimezone().tzinfo)
    with pytest.raises(ValueError, match="tzdata"):
        zone_name("Mars/Olympus")


# ---------------------------------------------------------------- what to publish

START = micro("2026-05-01T00:00:00+00:00")
SECOND = 1_000_000


@settings(deadline=None)
@given(st.integers(1, 10**12), st.integers(0, 10**12))
def test_the_latest_instant_is_found(every: int, silence: int) -> None:
    """Up to a moment, however many lie between."""
    trigger = EveryTrigger(START, every)
    first = START + every
    last = latest(trigger, first, first + silence)
    assert first <= last <= first + silence < last + every


def test_what_is_ahead_is_published_once() -> None:
    """The next one always, and all of the next seconds; then nothing until the time goes on."""
    trigger = EveryTrigger(START, 2 * SECOND)
    firing = plan(trigger, trigger.after(START), START, "all")
    assert (START + 2 * SECOND, START + 4 * SECOND) == firing.instants
    assert START + 6 * SECOND == firing.next_at
    assert START + SECOND == firing.wake_at
    assert () == plan(trigger, firing.next_at, START + SECOND - 1, "all").instants
    again = plan(trigger, firing.next_at, START + SECOND, "all")
    assert (START + 6 * SECOND,) == again.instants


def test_a_rare_one_is_published_when_the_last_is_over() -> None:
    """One message lies ahead; the next comes as soon as that one is due."""
    trigger = EveryTrigger(START, HOUR)
    firing = plan(trigger, START + HOUR, START, "one")
    assert (START + HOUR,) == firing.instants
    assert START + 2 * HOUR == firing.next_at
    assert () == plan(trigger, firing.next_at, START + HOUR - 1, "one").instants
    due = plan(trigger, firing.next_at, START + HOUR, "one")
    assert (START + 2 * HOUR,) == due.instants


def test_what_is_ahead_is_looked_at_each_minute() -> None:
    """And shortly before its time, since somebody may have removed it; then at its time."""
    trigger = EveryTrigger(START, 2 * MINUTE + 15 * SECOND)
    due, now, looks = START + 2 * MINUTE + 15 * SECOND, START, list[int]()
    next_at = trigger.after(due)
    while now < due:
        now = plan(trigger, next_at, now, "one").wake_at
        looks.append((now - START) // SECOND)
    assert [60, 120, 125, 135] == looks
    found = [alone_ahead(trigger, next_at, START + at * SECOND) for at in (60, 125, 130, 135)]
    assert [due, due, None, None] == found
    # A clock that was set back: nobody knows whether it has been handled.
    assert alone_ahead(trigger, trigger.after(next_at or 0), START) is None


def test_what_must_not_be_ahead_waits_for_its_time() -> None:
    """It is published when it is due, not before, and the next look is at the next time."""
    trigger = EveryTrigger(START, HOUR)
    early = plan(trigger, START + HOUR, START + HOUR - 1, "one", ahead=False)
    assert ((), START + HOUR, START + HOUR) == dataclasses.astuple(early)
    due = plan(trigger, START + HOUR, START + HOUR, "one", ahead=False)
    assert ((START + HOUR,), START + 2 * HOUR, START + 2 * HOUR) == dataclasses.astuple(due)


@pytest.mark.parametrize("missed", ["one", "all", "skip"])
def test_a_pass_that_is_a_little_late_has_missed_nothing(missed: str) -> None:
    """Times of the last seconds are all published, whatever should be done about missed ones."""
    firing = plan(EveryTrigger(START, SECOND), START + SECOND, START + 4 * SECOND, missed)
    assert [1, 2, 3, 4] == [(at - START) // SECOND for at in firing.instants[:4]]


@settings(deadline=None)
@given(
    st.integers(100_000, 10**9),
    st.lists(st.integers(0, 3 * AHEAD), min_size=1, max_size=30),
)
def test_passes_at_any_time_publish_each_instant_once(every: int, waits: list[int]) -> None:
    """With all missed ones wanted none is left out, none comes twice, all are ahead in the end."""
    trigger, now = EveryTrigger(START, every), START
    next_at: int | None = trigger.after(now)
    published: list[int] = []
    for wait in waits:
        now += wait
        while (firing := plan(trigger, next_at, now, "all")).wake_at <= now:
            published += firing.instants
            next_at = firing.next_at
            assert len(firing.instants) <= MOST
        published += firing.instants
        next_at = firing.next_at
    expected = [START + every * number for number in range(1, len(published) + 1)]
    assert expected == published
    assert published[-1] > now
    assert published[-1] + every == next_at
    assert next_at > now + AHEAD


# -- which messages of a schedule are published at a moment


@pytest.mark.parametrize("first", [50, 91, 96])
def test_none_of_the_last_seconds_is_skipped(first: int) -> None:
    """What is less than 5 s over has not been missed, however often it comes."""
    firing = plan(EveryTrigger(0, SECOND), first * SECOND, 100 * SECOND, "skip")
    late = [at // SECOND for at in firing.instants if at <= 100 * SECOND]
    assert [96, 97, 98, 99, 100] == late


def test_nothing_older_is_made_up_for() -> None:
    """Where all of it is longer over the next one follows, and nothing else."""
    firing = plan(EveryTrigger(0, 60 * SECOND), 60 * SECOND, 130 * SECOND, "skip")
    assert (180 * SECOND,) == firing.instants
