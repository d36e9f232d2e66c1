"""Durations may be written as text wherever the API takes one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from queue_over_sql import Delays, ExponentialBackoff, FixedDelay
from queue_over_sql.errors import RequestTimeout
from queue_over_sql.retry import RetryPolicies
from queue_over_sql.values.durations import duration_text, exact_duration, to_timedelta
from queue_over_sql.values.rates import Rate


def test_text_is_read_as_on_the_command_line() -> None:
    """Numbers with units, several in a row; without a unit they are seconds."""
    texts = {"30s": 30, "250ms": 0.25, "1h30m": 5400, " 7 d": 604_800, "1.5": 1.5}
    assert texts == {text: to_timedelta(text, "lease").total_seconds() for text in texts}


def test_no_text_has_an_exponent() -> None:
    """However long or short a duration is."""
    assert ["11 d 13 h 46 min 40 s", "30 µs"] == [duration_text(each) for each in (1e6, 3e-5)]
    assert "one in 11 d 13 h 46 min 40 s burst 1" == str(Rate(10**12, 1))
    with pytest.raises(ValueError, match="not -11 d 13 h 46 min 40 s"):
        to_timedelta(-1e6, "lease")
    error = RequestTimeout("jobs", "c", 7, duration_text(1e6), withdrawn=True)
    assert "arrived within 11 d 13 h 46 min 40 s." in str(error)


def test_durations_are_written_in_units() -> None:
    """For people with spaces, and as they are read."""
    written = {0: "0 s", 1712: "28 min 32 s", 90.25: "1 min 30 s 250 ms", 93_600: "1 d 2 h"}
    assert written == {seconds: duration_text(seconds) for seconds in written}
    for seconds in written:
        text = exact_duration(seconds)
        assert not text.count(" ")
        assert seconds == to_timedelta(text, "lease", zero=True).total_seconds()


def test_what_is_no_duration_is_refused_by_its_name() -> None:
    """Whatever its type."""
    wrong: list[tuple[Any, type[Exception], str]] = [
        ("soon", ValueError, "lease: 'soon' is not a duration; write it as 30s"),
        # Said at once: a search for a unit in so many digits took hours.
        ("1" * 50_000 + "x", ValueError, "is not a duration; write it as 30s"),
        ("-1s", ValueError, "lease"),
        ("0s", ValueError, "lease must be more than zero, not 0 s$"),
        (-90, ValueError, "lease must be more than zero, not -1 min 30 s$"),
        ("1000000d", ValueError, "lease must be"),
        (None, TypeError, "lease must be seconds, a timedelta or text"),
        (True, TypeError, "lease must be seconds, a timedelta or text"),
    ]
    for value, kind, said in wrong:
        with pytest.raises(kind, match=said):
            to_timedelta(value, "lease")


def test_a_policy_without_a_list_of_delays_is_refused() -> None:
    """Whatever it got for the list."""
    wrong: list[Any] = [[], 3, "1s", None]
    for delays in wrong:
        with pytest.raises(ValueError, match=r"^Delays needs a list of at least one delay$"):
            Delays(delays)


def test_a_policy_is_stored_in_seconds() -> None:
    """So that services of earlier releases, which know no text, read it too."""
    known = RetryPolicies()
    assert FixedDelay(30) == FixedDelay("30s")
    assert known.describe(FixedDelay(90)) == known.describe(FixedDelay("1m30s"))
    assert known.describe(Delays([1, 60])) == known.describe(Delays(["1s", timedelta(minutes=1)]))
    assert ExponentialBackoff(base=2, maximum=60) == ExponentialBackoff(base="2s", maximum="1m")
