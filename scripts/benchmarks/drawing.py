"""Draw curves as SVG with linear or logarithmic axes, a legend and titles; without dependencies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 220, 44, 50
# Distinguishable for people with colour blindness, too: Okabe and Ito, 2008.
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
FONT: Final = 'font-family="sans-serif" font-size="12"'
_TICKS = 6

Curve = Mapping[float, float]


@dataclass(frozen=True)
class Plot:
    """Several curves on the same axes.

    Attributes:
        name: of the file, without its extension.
        title: the comparison.
        series: the points of each curve, by its name in the legend.
        across: the label of the horizontal axis.
        up: the label of the vertical axis.
        linear_across: whether the horizontal axis is linear; else it is logarithmic.
        linear_up: whether the vertical axis is linear, from 0; else it is logarithmic.
    """

    name: str
    title: str
    series: Mapping[str, Curve]
    across: str = "messages"
    up: str = "messages/s"
    linear_across: bool = False
    linear_up: bool = False


@dataclass(frozen=True)
class Axis:
    """An axis between two values, on a range of pixels.

    Attributes:
        ticks: the labelled values; the first and last are the ends.
        start: the position of the first.
        end: the position of the last.
        linear: whether equal differences are equally long; otherwise equal ratios are.
    """

    ticks: Sequence[float]
    start: float
    end: float
    linear: bool = False

    @classmethod
    def logarithmic(cls, values: Sequence[float], start: float, end: float) -> Axis:
        """The axis of powers of ten that covers all values, which are above 0."""
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        powers = range(low, max(high, low + 1) + 1)
        return cls([float(f"1e{power}") for power in powers], start, end)

    @classmethod
    def from_zero(cls, values: Sequence[float], start: float, end: float) -> Axis:
        """The linear axis from 0 that covers all values, with ticks at round numbers."""
        highest = max(values) or 1.0
        rough = highest / (_TICKS - 1)
        unit = 10 ** math.floor(math.log10(rough))
        step = next(unit * by for by in (1, 2, 5, 10) if unit * by >= rough)
        count = math.ceil(highest / step)
        return cls([step * number for number in range(count + 1)], start, end, linear=True)

    def place(self, value: float) -> float:
        """The position of a value."""
        low, high, value = (self._scaled(each) for each in (self.ticks[0], self.ticks[-1], value))
        share = (value - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 1)

    def _scaled(self, value: float) -> float:
        return value if self.linear else math.log10(value)


def drawn(plot: Plot) -> str:
    """The plot as an SVG picture on white."""
    places = [place for curve in plot.series.values() for place in curve]
    values = [value for curve in plot.series.values() for value in curve.values()]
    across = Axis.from_zero if plot.linear_across else Axis.logarithmic
    up = Axis.from_zero if plot.linear_up else Axis.logarithmic
    x, y = across(places, LEFT, WIDTH - RIGHT), up(values, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="8" y="17" font-size="15">{escape(plot.title)}</text>',
        *_frame(plot, x, y),
        *_lines(plot.series, x, y),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _frame(plot: Plot, x: Axis, y: Axis) -> Iterator[str]:
    for tick in y.ticks:
        at = y.place(tick)
        yield f'<path d="M{x.start} {at}H{x.end}" stroke="#ddd"/>'
        yield f'<text x="{x.start - 8}" y="{at + 4}" text-anchor="end">{short(tick)}</text>'
    for tick in x.ticks:
        at = x.place(tick)
        yield f'<path d="M{at} {y.start}V{y.end}" stroke="#eee"/>'
        yield f'<text x="{at}" y="{y.start + 18}" text-anchor="middle">{short(tick)}</text>'
    middle = (x.start + x.end) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{escape(plot.across)}</text>'
    yield f'<text x="8" y="{y.end - 7}" fill="#555">{escape(plot.up)}</text>'


def _lines(series: Mapping[str, Curve], x: Axis, y: Axis) -> Iterator[str]:
    for number, (name, curve) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = [(x.place(place), y.place(value)) for place, value in sorted(curve.items())]
        path = " ".join(f"{left},{top}" for left, top in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (
            f'<circle cx="{left}" cy="{top}" r="3" fill="{colour}"/>' for left, top in points
        )
        height = TOP + 10 + 20 * number
        key = WIDTH - RIGHT + 16
        yield f'<path d="M{key} {height}h18" stroke="{colour}" stroke-width="3"/>'
        yield f'<text x="{key + 24}" y="{height + 4}">{escape(name)}</text>'


def short(number: float) -> str:
    """A number as a label: ``1M``, ``200k``, ``0.5``."""
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= unit:
            return f"{number / unit:g}{letter}"
    return f"{number:g}"
