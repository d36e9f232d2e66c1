"""Texts for people on a page: counts, times and settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from markupsafe import Markup, escape

from queue_over_sql import Delays, ExponentialBackoff, FixedDelay, NoRetry
from queue_over_sql.errors import visible
from queue_over_sql.observability import AtLeast
from queue_over_sql.values.durations import MICROSECOND, Duration, duration_text, to_timedelta
from queue_over_sql.values.humanize import UNKNOWN, duration_words
from queue_over_sql.values.states import Outcome
from queue_over_sql.web.cron_words import cron_words

_SHOWN_DELAYS: Final = 4
_LENGTHS: Final = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}


def shown(value: Any) -> Any:
    """Any text of a template: a name, an error, a key. Invisible characters are escaped."""
    if value is None:
        return ""
    return visible(value) if type(value) is str else value


def raw(text: object) -> Markup:
    """A text unchanged, for a form field, which is sent back as it is."""
    return escape(str(text))


def count(number: int) -> str:
    """A count with a limit: ``1,234``, ``10,000+``."""
    return f"{number:,}+" if isinstance(number, AtLeast) else f"{number:,}"


def about(seconds: float) -> str:
    """A duration rounded to its unit: ``5 s``, ``12 min``, ``3 h``, ``40 d``."""
    unit = next((each for each, length in _LENGTHS.items() if seconds >= 2 * length), "s")
    return f"{seconds / _LENGTHS[unit]:.0f} {unit}"


def rate(number: float) -> str:
    """A number a minute: ``1,234``, ``2.5``, ``0``."""
    return f"{number:.1f}" if 0 < number < 10 and number % 1 else f"{number:,.0f}"  # noqa: PLR2004


def age(seconds: float | None) -> str:
    """How long something has waited: ``28 min 32 s``, ``3 d 4 h``; a dash if nothing waits."""
    if seconds is None:
        return UNKNOWN
    return " ".join(duration_text(round(seconds)).split()[:4])


def when(at: datetime | None, now: datetime) -> Markup:
    """A time, as its distance from now."""
    if at is None:
        return Markup("&ndash;")
    seconds = (now - at).total_seconds()
    text = "now"
    if abs(seconds) >= 1:
        length = about(abs(seconds))
        text = f"{length} ago" if seconds > 0 else f"in {length}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(at.isoformat(), _utc(at), text)


def moment(at: datetime | None, now: datetime) -> Markup:
    """As ``when``, with the time itself."""
    if at is None:
        return when(at, now)
    return when(at, now) + Markup(' <span class="soft small">{}</span>').format(_utc(at))


def stamp(at: datetime, now: datetime) -> Markup:
    """The time itself, with its distance from now where the pointer rests."""
    text, distance = _utc(at), when(at, now).striptags()
    return Markup('<time datetime="{}" title="{}">{}</time>').format(at.isoformat(), distance, text)


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def setting(value: Any) -> str:
    """The value of a setting: ``30 d``, ``done 7 d, others for ever``, ``after 90 s``."""
    if value is None:
        return "for ever"
    if isinstance(value, timedelta):
        return duration_text(value.total_seconds())
    if isinstance(value, Mapping):
        parts = [f"{name} {setting(each)}" for name, each in value.items()]
        return ", ".join([*parts, "others for ever"] if len(parts) < len(Outcome) else parts)
    return _RETRIES.get(type(value), str)(value)


def exact_seconds(value: timedelta) -> str:
    """A duration as a form takes it, exactly: ``2592000``, ``90.5``."""
    whole, rest = divmod(value // MICROSECOND, 1_000_000)
    return f"{whole}.{rest:06}".rstrip("0").rstrip(".")


def fields(wanted: Mapping[str, Any]) -> str:
    """Payload fields and their required values: ``paid = true``."""
    parts = (f"{path} = {json.dumps(value, ensure_ascii=False)}" for path, value in wanted.items())
    return ", ".join(parts)


def _length(delay: Duration) -> str:
    return duration_text(to_timedelta(delay, "delay", zero=True).total_seconds())


def _exponential(policy: ExponentialBackoff) -> str:
    longest = to_timedelta(policy.maximum, "maximum", zero=True).total_seconds()
    delay = to_timedelta(policy.base, "base", zero=True).total_seconds()
    delays = [min(longest, delay * policy.factor**power) for power in range(_SHOWN_DELAYS)]
    pauses = [duration_text(each) for each in delays]
    if any(one == other for one, other in pairwise(pauses)):
        return f"after {pauses[0]}, then up to {duration_text(longest)}"
    return f"after {', '.join(pauses)} and so on, up to {duration_text(longest)}"


def _delays(policy: Delays) -> str:
    *first, last = [_length(each) for each in policy.delays]
    return f"after {', '.join(first)}, then {last}" if first else f"after {last}"


_RETRIES: Final[Mapping[type, Callable[[Any], str]]] = {
    ExponentialBackoff: _exponential,
    FixedDelay: lambda policy: f"after {_length(policy.delay)}",
    Delays: _delays,
    NoRetry: lambda _: "never: the first failure makes a dead letter",
}

FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "about": about,
    "age": age,
    "count": count,
    "cron": cron_words,
    "duration": duration_words,
    "fields": fields,
    "rate": rate,
    "raw": raw,
    "seconds": exact_seconds,
    "setting": setting,
}
"""Their names in templates."""

TIME_FILTERS: Final[Mapping[str, Callable[[Any, datetime], Markup]]] = {
    "moment": moment,
    "stamp": stamp,
    "when": when,
}
"""The same, of filters that need the present time."""
