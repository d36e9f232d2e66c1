"""Rates: how many messages may be taken in a time, as text and as a token bucket.

A bucket holds up to ``burst`` tokens, and gets one more at each interval. One number is all that is
kept of it: the instant at which it will be full again (GCRA, the generic cell rate algorithm). In
no time T are more than ``burst + T / interval`` tokens spent, whichever way the clock moves.
"""

from __future__ import annotations

import functools
import re
from typing import Final, NamedTuple

from queue_over_sql.errors import shown
from queue_over_sql.values.durations import LONGEST_US, duration_text

_SECOND: Final = 1_000_000
_UNITS: Final = {
    "s": _SECOND,
    "min": 60 * _SECOND,
    "h": 3600 * _SECOND,
    "day": 86_400 * _SECOND,
}
_NAMES: Final = {
    **{name: name for name in _UNITS},
    "second": "s",
    "m": "min",
    "minute": "min",
    "hour": "h",
    "d": "day",
}
_FORM: Final = re.compile(r"([0-9]{1,12})\s*/\s*([a-z]+)(?:\s+burst\s+([0-9]{1,12}))?")
_MOST_BURST: Final = 2**31 - 1
# How far apart those who take at the same time may have read the clock.
_AT_ONCE_US: Final = _SECOND


class Rate(NamedTuple):
    """How fast messages may be taken.

    Attributes:
        interval: microseconds until one more may be taken; rounded up.
        burst: how many may be taken at once after a rest.
    """

    interval: int
    burst: int

    @staticmethod
    def of(text: str) -> Rate:
        """The rate that ``rate_text`` has read."""
        return _parsed(text)[0]

    def tokens(self, now: int, tat: int | None) -> int:
        """How many may be taken now; ``tat`` is what the last one left, None at first."""
        return max(0, (now + self.interval * self.burst - self._base(now, tat)) // self.interval)

    def spent(self, now: int, tat: int | None, count: int) -> int:
        """What to keep after so many were taken."""
        return self._base(now, tat) + count * self.interval

    def next_at(self, now: int, tat: int | None) -> int:
        """When the next one may be taken; now or earlier if one may."""
        return self._base(now, tat) + self.interval - self.interval * self.burst

    def _base(self, now: int, tat: int | None) -> int:
        if tat is None:
            return now
        most = now + self.interval * self.burst
        # If it is far ahead of a full burst, the clock was set back, or the rate was changed. If it
        # is a bit ahead, only whoever took the last one read the clock later.
        return most if tat > most + _AT_ONCE_US else max(tat, now)

    @property
    def per_second(self) -> float:
        """How many may be taken in a second, in the long run."""
        return _SECOND / self.interval

    def __str__(self) -> str:
        return _text(self.interval, self.burst)


class Bucket(NamedTuple):
    """The tokens of a rate at one moment; see ``Rate``."""

    rate: Rate
    now: int
    tat: int | None

    @property
    def tokens(self) -> int:
        """How many messages may be taken now."""
        return self.rate.tokens(self.now, self.tat)

    @property
    def next_at(self) -> int:
        """When the next message may be taken."""
        return self.rate.next_at(self.now, self.tat)

    @property
    def is_stale(self) -> bool:
        """Whether it was cut, because the clock was set back or the rate was changed.

        That must be written, or it would be cut again at each look and never have a token.
        """
        return self.tat is not None and self.spent(0).tat != max(self.tat, self.now)

    def spent(self, count: int) -> Bucket:
        """After so many were taken."""
        return self._replace(tat=self.rate.spent(self.now, self.tat, count))


UNLIMITED: Final = "unlimited"
"""Stands for no rate, where another one would hold without it."""


def own_rate(value: str | None) -> tuple[int | None, int | None]:
    """The interval and the burst of one group's rate, as they are stored.

    Args:
        value: a rate; ``"unlimited"``: none, whatever that of the queue is; None: the queue's.

    Raises:
        TypeError, ValueError: it is none of these.
    """
    if value is None:
        return None, None
    if value == UNLIMITED:
        return 0, None
    return Rate.of(rate_text(value, "rate"))


def stored_rate(interval: int | None, burst: int | None) -> str | None:
    """As ``own_rate`` reads it."""
    if interval is None:
        return None
    return str(Rate(interval, burst or 1)) if interval > 0 else UNLIMITED


def rate_text(value: object, name: str) -> str:
    """Read a rate such as ``100/min`` or ``100/min burst 10``, and write it in one way.

    Raises:
        TypeError: it is no text.
        ValueError: it is no rate, or it cannot be kept to.
    """
    if not isinstance(value, str):
        msg = f"{name} must be text such as '100/min', not {type(value).__name__}"
        raise TypeError(msg)
    try:
        return _parsed(value)[1]
    except ValueError as error:
        msg = f"{name}: {error}"
        raise ValueError(msg) from error


@functools.lru_cache(256)
def _parsed(text: str) -> tuple[Rate, str]:
    found = _FORM.fullmatch(text.strip().lower())
    unit = _NAMES.get(found[2]) if found else None
    if found is None or unit is None:
        msg = (
            f"{shown(text)} is not a rate; write how many in which time, as 10/s, 100/min, 1000/h "
            "or 5000/day, and if another number may start at once, as 100/min burst 10"
        )
        raise ValueError(msg)
    count = int(found[1])
    burst = count if found[3] is None else int(found[3])
    if not 0 < count <= _UNITS[unit] or not 0 < burst <= _MOST_BURST:
        msg = f"{shown(text)} must have numbers above zero, and at most 1000000/s"
        raise ValueError(msg)
    rate = Rate(-(-_UNITS[unit] // count), burst)
    if rate.interval * rate.burst > LONGEST_US:
        msg = f"{shown(text)} has a burst that takes more than 1,000 years to come back"
        raise ValueError(msg)
    plain = f"{count}/{unit}"
    return rate, plain if burst == count else f"{plain} burst {burst}"


def _text(interval: int, burst: int) -> str:
    """As somebody may have written it: the same in a larger unit is the same rate."""
    counts = {unit: round(length / interval) for unit, length in _UNITS.items()}
    exact = [
        (count, unit)
        for unit, count in counts.items()
        if count and -(-_UNITS[unit] // count) == interval
    ]
    for count, unit in exact:
        if count == burst:
            return f"{count}/{unit}"
    for count, unit in exact:
        return f"{count}/{unit} burst {burst}"
    return f"one in {duration_text(interval / _SECOND)} burst {burst}"
