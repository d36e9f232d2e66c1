"""Crontab lines mean what crontab(5) says."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from queue_over_sql.schedules.calendar import (
    NICKNAMES,
    parse_crontab,
    refuse_long_steps,
    wall_trigger,
)
from queue_over_sql.values.durations import instant, instant_to_microseconds
from tests.refusals import refused

START = datetime(2026, 1, 1, tzinfo=UTC)


def first(cron: str, count: int, start: datetime = START) -> list[str]:
    """The first instants of a line in UTC, from a moment on."""
    trigger, moment = wall_trigger(cron, "UTC"), instant_to_microseconds(start, "start") - 1
    found = []
    for _ in range(count):
        following = trigger.after(moment)
        assert following is not None
        moment = following
        found.append(f"{instant(moment):%a %Y-%m-%d %H:%M}")
    return found


MEANINGS = {
    "*/20 * * * *": ["Thu 2026-01-01 00:00", "Thu 2026-01-01 00:20", "Thu 2026-01-01 00:40"],
    "5 4 * * *": ["Thu 2026-01-01 04:05", "Fri 2026-01-02 04:05", "Sat 2026-01-03 04:05"],
    "0 0 * * 0": ["Sun 2026-01-04 00:00", "Sun 2026-01-11 00:00", "Sun 2026-01-18 00:00"],
    "0 0 * * 7": ["Sun 2026-01-04 00:00", "Sun 2026-01-11 00:00", "Sun 2026-01-18 00:00"],
    "0 0 * * 1": ["Mon 2026-01-05 00:00", "Mon 2026-01-12 00:00", "Mon 2026-01-19 00:00"],
    "0 0 * * sun": ["Sun 2026-01-04 00:00", "Sun 2026-01-11 00:00", "Sun 2026-01-18 00:00"],
    "0 0 * * 5-7": ["Fri 2026-01-02 00:00", "Sat 2026-01-03 00:00", "Sun 2026-01-04 00:00"],
    "0 0 * * Fri-Sun": ["Fri 2026-01-02 00:00", "Sat 2026-01-03 00:00", "Sun 2026-01-04 00:00"],
    "0 22 * * 1-5": ["Thu 2026-01-01 22:00", "Fri 2026-01-02 22:00", "Mon 2026-01-05 22:00"],
    "0 0 * JAN-mar,12 *": ["Thu 2026-01-01 00:00", "Fri 2026-01-02 00:00", "Sat 2026-01-03 00:00"],
    "0 0 31 * *": ["Sat 2026-01-31 00:00", "Tue 2026-03-31 00:00", "Sun 2026-05-31 00:00"],
    "0 0 29 2 *": ["Tue 2028-02-29 00:00", "Sun 2032-02-29 00:00", "Fri 2036-02-29 00:00"],
    "0 9-17/4 1 * *": ["Thu 2026-01-01 09:00", "Thu 2026-01-01 13:00", "Thu 2026-01-01 17:00"],
    # Both days are restricted: either fits.
    "30 4 1,15 * 5": ["Thu 2026-01-01 04:30", "Fri 2026-01-02 04:30", "Fri 2026-01-09 04:30"],
    "0 0 13 * 5": ["Fri 2026-01-02 00:00", "Fri 2026-01-09 00:00", "Tue 2026-01-13 00:00"],
    # A field that begins with a star restricts nothing by that rule: both must fit.
    "0 0 */2 * 1": ["Mon 2026-01-05 00:00", "Mon 2026-01-19 00:00", "Mon 2026-02-09 00:00"],
    "@hourly": ["Thu 2026-01-01 00:00", "Thu 2026-01-01 01:00", "Thu 2026-01-01 02:00"],
    "@daily": ["Thu 2026-01-01 00:00", "Fri 2026-01-02 00:00", "Sat 2026-01-03 00:00"],
    "@weekly": ["Sun 2026-01-04 00:00", "Sun 2026-01-11 00:00", "Sun 2026-01-18 00:00"],
    "@monthly": ["Thu 2026-01-01 00:00", "Sun 2026-02-01 00:00", "Sun 2026-03-01 00:00"],
    "@Yearly": ["Thu 2026-01-01 00:00", "Fri 2027-01-01 00:00", "Sat 2028-01-01 00:00"],
    "  0   12 * * *  ": ["Thu 2026-01-01 12:00", "Fri 2026-01-02 12:00", "Sat 2026-01-03 12:00"],
}


def test_lines_mean_what_crontab_says() -> None:
    """The first three instants of each."""
    assert MEANINGS == {cron: first(cron, 3) for cron in MEANINGS}


WRONG = {
    "": "five fields",
    "* * * *": "five fields",
    "* * * * * *": "five fields",
    "@reboot": "five fields",
    "60 * * * *": "0 to 59",
    f"{'9' * 5_000} * * * *": "not valid for the minute: write numbers",
    f"*/{'9' * 4_000} * * * *": "not valid for the minute: write numbers",
    "* 24 * * *": "0 to 23",
    "* * 0 * *": "1 to 31",
    "* * 32 * *": "1 to 31",
    "* * * 13 *": "1 to 12",
    "* * * * 8": "0 to 7",
    "* * * * mo": "sun, mon",
    "* * * foo *": "jan, feb",
    "jan * * * *": "minute",
    "-1 * * * *": "minute",
    "5-1 * * * *": "from the lower to the higher",
    "* * * * fri-mon": "from the lower to the higher",
    "*/0 * * * *": "step",
    "5/15 * * * *": "step",
    "1,,2 * * * *": "minute",
    "1, * * * *": "minute",
    "* * last * *": "day of month",
    "* * * * 1st": "day of week",
    "* * L * *": "day of month",
    "* * ? * *": "day of month",
    "* * * * 1#2": "day of week",
    "٣ * * * *": "minute",
    "0 0 30 2 *": "never matches",
    "0 0 31 4,6,9,11 *": "never matches",
}


def test_what_is_no_crontab_line_is_refused() -> None:
    """The error names the field, and what may stand there."""
    for line, said in WRONG.items():
        with refused(line, ValueError, match=said):
            parse_crontab(line)


def test_a_new_line_has_no_step_longer_than_its_range() -> None:
    """It would silently mean something else: each hour instead of every 90 minutes."""
    for field, line in {
        "minute": "*/60 * * * *",
        "minute: a step of 90 does not fit into 0 to 59.*every=": "1,*/90 * * * *",
        "hour": "0 */24 * * *",
        "day of month": "0 0 */31 * *",
        "month": "0 0 1 */12 *",
        "day of week": "0 0 * * */7",
        "minute: a step of 11": "0-10/11 * * * *",
    }.items():
        parse_crontab(line)
        with refused(line, ValueError, match=field):
            refuse_long_steps(line)
    for line in ("*/59 */23 */30 */11 */6", "5-5/1 0-10/10 1-31/1 * *", "@hourly"):
        refuse_long_steps(line)


def test_a_day_that_never_comes_may_be_a_weekday() -> None:
    """Where either day fits, the other one does."""
    assert ["Mon 2026-02-02 00:00"] == first("0 0 30 2 1", 1)


# ---------------------------------------------------------------- against a plain reading


def fields(
    least: int, most: int, last: int | None = None
) -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    """The text of a field, and the numbers that it means; a star goes on to ``last``."""
    star = range(least, (last or most) + 1)
    numbers = st.integers(least, most)
    stars = st.just(("*", frozenset(star)))
    steps = st.integers(1, most).map(lambda step: (f"*/{step}", frozenset(star[::step])))
    ranges = st.tuples(numbers, numbers, st.integers(1, 9)).map(_range_text)
    lists = st.lists(numbers, min_size=1, max_size=4).map(
        lambda found: (",".join(map(str, found)), frozenset(found))
    )
    return st.one_of(stars, steps, ranges, lists)


def _range_text(given: tuple[int, int, int]) -> tuple[str, frozenset[int]]:
    low, high = sorted(given[:2])
    return f"{low}-{high}/{given[2]}", frozenset(range(low, high + 1, given[2]))


Fields = tuple[tuple[str, frozenset[int]], ...]
LINES = st.tuples(fields(0, 59), fields(0, 23), fields(1, 28, 31), fields(1, 12), fields(0, 6))
MOMENTS = st.datetimes(
    datetime(2020, 1, 1),  # noqa: DTZ001 - a zone is given by the strategy
    datetime(2040, 1, 1),  # noqa: DTZ001
    timezones=st.just(UTC),
)


@settings(deadline=None)
@given(LINES, MOMENTS)
def test_the_next_instant_is_the_first_that_fits(line: Fields, begin: datetime) -> None:
    """Day by day and time by time: no earlier one fits, and the one that is found does."""
    minute, hour, day, month, weekday = line

    def fits(on: date) -> bool:
        by_month, by_week = on.day in day[1], on.isoweekday() % 7 in weekday[1]
        either = not day[0].startswith("*") and not weekday[0].startswith("*")
        return on.month in month[1] and (by_month or by_week if either else by_month and by_week)

    found = wall_trigger(" ".join(text for text, _ in line), "UTC").after(
        instant_to_microseconds(begin, "begin")
    )
    assert found is not None
    at = instant(found)
    assert 0 == at.second
    assert 0 == at.microsecond
    assert at.minute in minute[1]
    assert at.hour in hour[1]
    assert fits(at.date())
    earliest = min(
        candidate
        for candidate in (
            datetime(day_.year, day_.month, day_.day, h, m, tzinfo=UTC)
            for day_ in (begin.date(), at.date())
            if fits(day_)
            for h in hour[1]
            for m in minute[1]
        )
        if candidate > begin
    )
    assert earliest == at
    between = (begin.date() + timedelta(n) for n in range(1, (at.date() - begin.date()).days))
    assert not any(fits(on) for on in between)


def test_nicknames_are_lines() -> None:
    """Each stands for five fields."""
    assert {5} == {len(line.split()) for line in NICKNAMES.values()}
