"""Bars and lines over time as inline SVG.

No library draws them. So colours come from the page's style, one drawing serves the light and the
dark theme, each part has a tooltip, and a page of a hundred plots stays small.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from queue_over_sql.values.humanize import clean

WIDTH: Final = 400
HEIGHT: Final = 190
LEFT: Final = 58
RIGHT: Final = 8
TOP: Final = 10
BOTTOM: Final = 24
_PLOT_WIDTH: Final = WIDTH - LEFT - RIGHT
_PLOT_HEIGHT: Final = HEIGHT - TOP - BOTTOM
_MOST_TICKS: Final = 4
_DAY: Final = 86_400
# From this ratio on, the smallest values would lie on the axis.
_LOGARITHMIC_FROM: Final = 50.0
# Possible steps between ticks of a linear scale of durations of a second or more.
_MINUTE: Final = 60.0
_HOUR: Final = 3_600.0
_DURATION_STEPS: Final = (
    *(1.0, 2.0, 5.0, 10.0, 30.0),
    *(_MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR),
)
# The ticks of a logarithmic scale of durations, in seconds.
_DURATIONS: Final = (
    *(0.001, 0.01, 0.1, 1.0, 10.0, _MINUTE, 10 * _MINUTE, _HOUR, 10 * _HOUR),
    *(86_400.0, 864_000.0),
)

Words = Callable[[float], str]


def figure(title: str, keys: Sequence[tuple[str, str]], drawn: str) -> str:
    """A drawing with its title and a legend: CSS classes and the names beside them."""
    legend = "".join(f'<span class="key {look}"><i>{clean(name)}</i></span>' for look, name in keys)
    named = drawn.replace("<svg ", f'<svg aria-label="{clean(title)}" ', 1)
    shown = named or '<p class="empty">nothing to show</p>'
    caption = f"<b>{clean(title)}</b>{legend if drawn else ''}"
    return f"<figure><figcaption>{caption}</figcaption>{shown}</figure>"


@dataclasses.dataclass(frozen=True)
class Series:
    """Values over time, one per bin; ``look`` is the CSS class of the colour."""

    name: str
    look: str
    values: Sequence[float | None]


@dataclasses.dataclass(frozen=True)
class Times:
    """The bins of a plot: their starts, in seconds since the epoch, and their length."""

    starts: Sequence[int]
    seconds: int

    def _place(self, seconds: float) -> float:
        span = self.starts[-1] + self.seconds - self.starts[0]
        return LEFT + seconds / span * _PLOT_WIDTH

    def left(self, index: int) -> float:
        """The left edge of a bin."""
        return self._place(self.starts[index] - self.starts[0])

    def middle(self, index: int) -> float:
        """The middle of a bin."""
        return self._place(self.starts[index] - self.starts[0] + self.seconds / 2)

    @property
    def width(self) -> float:
        """The width of a bin."""
        return self._place(self.seconds) - LEFT

    def label(self, index: int) -> str:
        """The start of a bin as text."""
        form = "%Y-%m-%d" if self.seconds >= _DAY else "%Y-%m-%d %H:%M"
        return datetime.fromtimestamp(self.starts[index], UTC).strftime(form)


def stacked_bars(times: Times, series: Sequence[Series], line: Series | None, words: Words) -> str:
    """Bars of several series, stacked from the bottom, and a line over them.

    It is empty without bins. ``words`` formats a value.
    """
    if not times.starts:
        return ""
    tops = [sum(s.values[i] or 0 for s in series) for i in range(len(times.starts))]
    highest = max([*tops, *(value or 0 for value in (line.values if line else ())), 1])
    axis = Axis.linear(highest, max(1.0, _round_step(highest / _MOST_TICKS)))
    parts = [*_frame(times, axis, words), *_stack(times, series, axis, words)]
    if line is not None:
        parts += _line(times, line, axis, words)
    return _svg(parts)


def lines(times: Times, series: Sequence[Series], words: Words) -> str:
    """Lines over time, on a logarithmic scale if the values are far apart."""
    values = [value for s in series for value in s.values if value is not None]
    if not times.starts or not values:
        return ""
    axis = Axis.fitting(min(values), max(values))
    parts = [*_frame(times, axis, words)]
    for one in series:
        parts += _line(times, one, axis, words)
    return _svg(parts)


@dataclasses.dataclass(frozen=True)
class Axis:
    """The vertical axis, and the values at its ends.

    ``step`` is the distance of two ticks; None on a logarithmic scale.
    """

    low: float
    high: float
    step: float | None = None

    @classmethod
    def linear(cls, highest: float, step: float) -> Axis:
        """From zero to the first step at or above the highest value."""
        return cls(0.0, step * max(1, math.ceil(highest / step)), step)

    @classmethod
    def fitting(cls, lowest: float, highest: float) -> Axis:
        """A scale of durations on which both the smallest and the largest value are visible."""
        low, high = max(lowest, _DURATIONS[0]), max(highest, _DURATIONS[0])
        if high / low < _LOGARITHMIC_FROM:
            return cls.linear(high, _duration_step(high / _MOST_TICKS))
        begin = max(step for step in _DURATIONS if step <= low)
        end = min((step for step in _DURATIONS if step >= high), default=high)
        return cls(begin, end)

    def place(self, value: float) -> float:
        """The vertical place of a value, in the drawing's units from the top."""
        if self.step is None:
            above = math.log10(max(value, self.low) / self.low)
            share = above / math.log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return TOP + (1 - min(1.0, max(0.0, share))) * _PLOT_HEIGHT

    def ticks(self) -> list[float]:
        """The values of the ticks."""
        if self.step is not None:
            return [self.step * number for number in range(round(self.high / self.step) + 1)]
        steps = [step for step in _DURATIONS if self.low <= step <= self.high]
        return steps[:: math.ceil(len(steps) / (_MOST_TICKS + 2))]


def _round_step(wanted: float) -> float:
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= wanted * 0.999)


def _duration_step(wanted: float) -> float:
    if wanted < 1:
        return _round_step(wanted)
    steps = (step for step in _DURATION_STEPS if step >= wanted * 0.999)
    return next(steps, None) or _DAY * _round_step(max(1.0, wanted / _DAY))


def _frame(times: Times, axis: Axis, words: Words) -> Iterator[str]:
    for tick in axis.ticks():
        y = axis.place(tick)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text class="tick end" x="{LEFT - 5}" y="{y + 3.5:.1f}">{clean(words(tick))}</text>'
    count = len(times.starts)
    chosen = [0] if count == 1 else [0, count - 1]
    for index in chosen:
        look = "tick" if index == 0 else "tick end"
        x = LEFT if index == 0 else WIDTH - RIGHT
        yield f'<text class="{look}" x="{x}" y="{HEIGHT - 8}">{times.label(index)}</text>'


def _stack(times: Times, series: Sequence[Series], axis: Axis, words: Words) -> Iterator[str]:
    width = max(times.width - 1, 0.7)
    below = [0.0] * len(times.starts)
    for one in series:
        for index, value in enumerate(one.values):
            if not value:
                continue
            top, bottom = axis.place(below[index] + value), axis.place(below[index])
            below[index] += value
            title = f"{times.label(index)}: {words(value)} {one.name}"
            yield (
                f'<rect class="{one.look}" x="{times.left(index):.1f}" y="{top:.1f}" '
                f'width="{width:.1f}" height="{max(bottom - top, 0.5):.1f}">'
                f"<title>{clean(title)}</title></rect>"
            )


def _line(times: Times, series: Series, axis: Axis, words: Words) -> Iterator[str]:
    for stretch in _stretches(times, series):
        places = [(times.middle(i), axis.place(value)) for i, value in stretch]
        if len(places) > 1:
            drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            yield f'<polyline class="line {series.look}" points="{drawn}"/>'
    for index, value in enumerate(series.values):
        if value is None:
            continue
        title = f"{times.label(index)}: {series.name} {words(value)}"
        yield (
            f'<circle class="dot {series.look}" cx="{times.middle(index):.1f}" '
            f'cy="{axis.place(value):.1f}" r="2"><title>{clean(title)}</title></circle>'
        )


def _stretches(times: Times, series: Series) -> Iterator[list[tuple[int, float]]]:
    stretch: list[tuple[int, float]] = []
    for index, value in enumerate(series.values):
        if value is None:
            continue
        if stretch and times.starts[index] - times.starts[stretch[-1][0]] > times.seconds:
            yield stretch
            stretch = []
        stretch.append((index, value))
    if stretch:
        yield stretch


def _svg(parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'
