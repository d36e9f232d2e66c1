"""Charts of the history: sparklines for the overview, plots for one queue."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from markupsafe import Markup

from queue_over_sql.observability import AtLeast
from queue_over_sql.observability.history import Minute, quantile
from queue_over_sql.plots.drawing import Series, Times, figure, lines, stacked_bars
from queue_over_sql.values.humanize import clean, count_words, duration_words, short_count

_WIDTH: Final = 120
_HEIGHT: Final = 24
_HOUR: Final = 60
_LATELY: Final = timedelta(minutes=10)

SPANS: Final[Mapping[str, tuple[int, int]]] = {
    "hour": (3_600, 60),
    "day": (86_400, 900),
    "week": (604_800, 10_800),
}
"""The time that a chart covers and the length of its bins, both in seconds."""

_SETTLED: Final = ("done", "retried", "failed", "rejected", "expired", "released")
_SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def sparkline(
    minutes: Sequence[Minute], value: Callable[[Minute], int], name: str, at: datetime
) -> Markup:
    """A line with one value per minute of the last hour, small enough for a table row.

    Args:
        minutes: the active minutes of one queue.
        value: the value of a minute.
        name: the value's name, for screen readers.
        at: the present time.
    """
    first = at.replace(second=0, microsecond=0) - timedelta(minutes=_HOUR - 1)
    values = [0] * _HOUR
    for minute in minutes:
        place = int((minute.begins_at - first).total_seconds() // 60)
        if 0 <= place < _HOUR:
            values[place] += value(minute)
    said = clean(f"{count_words(sum(values))} {name} in the last hour")
    return _bars(values, said)


def spark_of_day(hours: Sequence[int]) -> Markup:
    """Dead letters in each of the last 24 hours, small enough for a table row."""
    return _bars(hours, f"{count_words(sum(hours))} in the last 24 hours")


def _bars(values: Sequence[int], said: str) -> Markup:
    total, most = sum(values), max(values)
    if not total:
        return Markup('<span class="soft">&ndash;</span>')
    step = _WIDTH / len(values)
    bars = "".join(
        f'<rect x="{place * step:.1f}" y="{_HEIGHT - height:.1f}" width="{step - 0.4:.1f}" '
        f'height="{height:.1f}"/>'
        for place, count in enumerate(values)
        if (height := max(1.5, _HEIGHT * count / most) if count else 0)
    )
    drawn = (
        f'<svg class="spark" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{said}">'
        f"<title>{said}</title>{bars}</svg>"
    )
    drawn = f'<span class="sum" aria-hidden="true">{short_count(total)}</span>{drawn}'
    return Markup(drawn)  # noqa: S704 - numbers, and a text that is clean


@dataclasses.dataclass(frozen=True)
class Pace:
    """How fast messages came into a queue and left it, in the last minutes.

    Attributes:
        published, finished: messages a minute.
        empty_in: in how many seconds the queue is empty if that goes on; None: never.
    """

    published: float
    finished: float
    empty_in: float | None


def pace(minutes: Sequence[Minute], unfinished: int, at: datetime) -> Pace | None:
    """The pace of a queue; None if the history says nothing of the last ten minutes.

    Args:
        minutes: the active minutes of this queue; see ``read_history``.
        unfinished: how many messages it has now.
        at: the present time.
    """
    end = at.replace(second=0, microsecond=0)
    some = [each for each in minutes if end - _LATELY <= each.begins_at < end]
    if not some:
        return None
    count = (end - min(each.begins_at for each in some)).total_seconds() / 60
    published = sum(each.published for each in some) / count
    finished = sum(_finished(each) for each in some) / count
    gain = finished - published
    return Pace(published, finished, unfinished / gain * 60 if gain > 0 else None)


def _finished(minute: Minute) -> int:
    return minute.done + minute.failed + minute.rejected + minute.expired


def charts(
    minutes: Sequence[Minute], span: str, at: datetime, unfinished: int | None = None
) -> Markup:
    """The plots of one queue: published and settled messages, backlog, wait and handling time.

    Args:
        minutes: the active minutes of this queue; see ``read_history``.
        span: a name of ``SPANS``.
        at: the present time.
        unfinished: how many messages the queue has now. None: not known, so no backlog is drawn.
    """
    seconds, width = SPANS[span]
    now = int(at.timestamp())
    starts = list(range((now - seconds) // width * width + width, now + 1, width))
    bins: list[Minute | None] = [None] * len(starts)
    for minute in minutes:
        place = (int(minute.begins_at.timestamp()) - starts[0]) // width
        if 0 <= place < len(bins):
            found = bins[place] = bins[place] or Minute(minute.queue, minute.begins_at)
            found.add(minute)
    times = Times(starts, width)
    settled = [_counts(bins, name) for name in _SETTLED]
    settled = [one for one in settled if any(one.values)]
    published = Series("published", "born", [each.published if each else 0 for each in bins])
    keys = [(one.look, one.name) for one in settled] + [("born", "published")]
    waited = [each.waited if each else None for each in bins]
    handled = [each.handled if each else None for each in bins]
    drawn = [
        figure("Published and settled", keys, stacked_bars(times, settled, published, short_count)),
        # By the upper bounds of a histogram.
        _durations("Wait until claimed, at most", times, waited),
        _durations("Handling time, at most", times, handled),
    ]
    if unfinished is not None:
        drawn.insert(1, _backlog(times, bins, unfinished))
    return Markup("".join(drawn))  # noqa: S704 - the drawing escapes its texts


def _counts(bins: Sequence[Minute | None], name: str) -> Series:
    return Series(name, name, [getattr(each, name) if each else 0 for each in bins])


def _backlog(times: Times, bins: Sequence[Minute | None], unfinished: int) -> str:
    """Reckoned back from what there is now by what was published and finished since."""
    left, values = int(unfinished), list[float]()
    for each in reversed(bins):
        values.append(max(0, left))
        if each is not None:
            left += _finished(each) - each.published
    title = "Backlog, at least" if isinstance(unfinished, AtLeast) else "Backlog"
    drawn = stacked_bars(times, [], Series("unfinished", "born", values[::-1]), short_count)
    return figure(title, [("born", "unfinished messages")], drawn)


def _durations(title: str, times: Times, bins: Sequence[Sequence[int] | None]) -> str:
    series = [
        Series(name, name, [_finite(quantile(each, share)) if each else None for each in bins])
        for name, share in _SHARES.items()
    ]
    keys = [(name, name) for name in _SHARES]
    return figure(title, keys, lines(times, series, duration_words))


def _finite(value: float | None) -> float | None:
    # The last bin of the histogram has no upper limit.
    return None if value is None or math.isinf(value) else value
