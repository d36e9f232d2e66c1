"""Rates as text, and their buckets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_over_sql.values.rates import Rate, own_rate, rate_text, stored_rate

MINUTE = 60_000_000


def test_a_rate_is_read_and_written() -> None:
    """Each unit in each spelling; a burst that is not the number of the time is named."""
    texts = {
        "100/min": ("100/min", MINUTE // 100, 100),
        " 100 / Minute ": ("100/min", MINUTE // 100, 100),
        "5/second burst 1": ("5/s", 200_000, 1),
        "7/s": ("7/s", 142_858, 7),
        "3/hour burst 3": ("3/h", 20 * MINUTE, 3),
        "1/d burst 10": ("1/day", 24 * 60 * MINUTE, 10),
    }
    for text, (plain, interval, burst) in texts.items():
        shown = plain if burst == int(plain.split("/")[0]) else f"{plain} burst {burst}"
        assert shown == rate_text(text, "rate")
        assert Rate(interval, burst) == Rate.of(text)
        assert shown == str(Rate.of(text)) == rate_text(shown, "rate")
    assert Rate.of("60/min burst 5") == Rate.of(str(Rate(1_000_000, 5)))
    assert (None, None) == own_rate(None)
    assert (0, None) == own_rate("unlimited")
    written = [stored_rate(*own_rate(text)) for text in (None, "unlimited", "2/h")]
    assert [None, "unlimited", "2/h"] == written


@pytest.mark.parametrize(
    "text",
    [
        *("", "100", "100/", "/min", "0/min", "-1/min", "1.5/s", "5/week", "2000000/s"),
        *("1/s burst", "1/s burst 0", "1/day burst 2000000000", "٣/min", "1/s\nburst 2 x"),
    ],
)
def test_what_is_no_rate_is_refused(text: str) -> None:
    """The error names the setting, and says how a rate is written."""
    with pytest.raises(ValueError, match="group_rate: "):
        rate_text(text, "group_rate")


def test_only_text_is_a_rate() -> None:
    """A number alone does not say in which time."""
    with pytest.raises(TypeError, match="group_rate must be text such as '100/min', not int"):
        rate_text(100, "group_rate")


@given(
    rate=st.builds(Rate, st.integers(1, 50), st.integers(1, 5)),
    steps=st.lists(st.tuples(st.integers(-400, 60), st.integers(1, 4)), max_size=60),
)
def test_no_time_sees_more_than_burst_and_rate(rate: Rate, steps: list[tuple[int, int]]) -> None:
    """However the clock moves, ahead and back: in any time between two of its readings.

    Where the clock goes back for more than a burst, a new account begins.
    """
    now, tat, taken = 10_000, None, list[int]()
    for move, wanted in steps:
        now += move
        if tat is not None and tat > now + rate.interval * rate.burst:
            taken.clear()
            # As whoever may write it does.
            tat = rate.spent(now, tat, 0)
        tokens = rate.tokens(now, tat)
        assert 0 <= tokens <= rate.burst
        assert (tokens > 0) == (rate.next_at(now, tat) <= now)
        assert rate.tokens(max(now, rate.next_at(now, tat)), tat) > 0
        count = min(tokens, wanted)
        if count:
            tat = rate.spent(now, tat, count)
            taken += [now] * count
        for first in set(taken):
            for last in set(taken):
                among = sum(first <= each <= last for each in taken)
                assert among * rate.interval <= last - first + rate.burst * rate.interval or (
                    not among
                )


def test_who_read_the_clock_earlier_gives_no_token_back() -> None:
    """Of two claims the later one may have the earlier time; a clock that was set back is cut."""
    rate = Rate(25_000, 5)
    spent = rate.spent(1_004_000, None, 5)
    assert spent == rate.spent(1_000_000, spent, 0)
    assert (0, 1_029_000) == (rate.tokens(1_000_000, spent), rate.next_at(1_000_000, spent))
    hour = 3_600_000_000
    assert 125_000 == rate.spent(0, spent + hour, 0)
