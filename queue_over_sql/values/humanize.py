"""Numbers, durations and untrusted texts, formatted for a page."""

from __future__ import annotations

import html
from datetime import UTC, datetime
from typing import Final

from queue_over_sql.errors import is_unseen

UNKNOWN: Final = "\N{EN DASH}"
_SMALL: Final = 10
_MINUTE: Final = 60.0
_HOUR: Final = 3_600.0
_DAY: Final = 86_400.0
_THOUSAND: Final = 1_000.0


def clean(text: object) -> str:
    """Escape an untrusted text for HTML and SVG, inside elements and attributes.

    Control characters, and those that change the writing direction, are shown as a sign.
    """
    shown = "".join(_on_one_line(character) for character in str(text))
    return html.escape(shown, quote=True)


def _on_one_line(character: str) -> str:
    if character in "\n\t":
        return " "
    return "\N{REPLACEMENT CHARACTER}" if is_unseen(character) else character


def count_words(count: float) -> str:
    """A number: ``1,234``; a fraction as it is."""
    return f"{count:,.0f}" if count >= _SMALL or count == int(count) else f"{count:.1f}"


def counted(count: int, noun: str, nouns: str | None = None) -> str:
    """A number and its noun: ``1 line``, ``1,200 lines``; ``nouns`` is an irregular plural."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {nouns or f'{noun}s'}"


def short_count(count: float) -> str:
    """A short number for an axis: ``12k``, ``3.4M``."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{_short(count / unit)}{name}"
    return _short(count)


def duration_words(seconds: float | None) -> str:
    """A duration: ``340 µs``, ``12 ms``, ``3.4 s``, ``5.2 min``, ``7.1 h``, ``3.0 d``."""
    if seconds is None:
        return UNKNOWN
    if seconds == 0:
        return "0"
    for unit, length in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE), ("s", 1.0)):
        if seconds >= length:
            return f"{_short(seconds / length)} {unit}"
    milliseconds = seconds * _THOUSAND
    if milliseconds >= 1:
        return f"{_short(milliseconds)} ms"
    return f"{_short(milliseconds * _THOUSAND)} µs"


def format_duration(seconds: float | None) -> str:
    """A duration for people: ``0.2s``, ``42s``, ``3m 20s``, ``2h 05m``, ``4d 1h``; none: ``-``."""
    if seconds is None:
        return "-"
    if seconds < _SMALL:
        return f"{seconds:.1f}s"
    minutes, whole_seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {whole_seconds:02d}s" if minutes else f"{whole_seconds}s"


def _short(value: float) -> str:
    return f"{value:.3g}" if value < _THOUSAND - 0.5 else f"{value:,.0f}"


def share_words(share: float) -> str:
    """A share of a whole: ``12.5 %``; it is never rounded up to 100 %."""
    percent = share * 100
    if 0 < percent < 0.05:  # noqa: PLR2004 - what would be rounded to nothing
        return "< 0.1 %"
    if 99.95 <= percent < 100:  # noqa: PLR2004 - what would be rounded to all
        return "> 99.9 %"
    return f"{percent:.1f} %".replace(".0 %", " %")


def instant_words(at: datetime | None) -> str:
    """A time in UTC, to the second."""
    return UNKNOWN if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
