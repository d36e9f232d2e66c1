"""Draw how rates grow with the number of messages, from the result files, as SVG.

``python -m scripts.benchmarks.plots`` writes ``docs/plots/<benchmark>-<engine>.svg`` for each
benchmark of Spark that was run. Both axes are logarithmic: sizes go from ten thousand to millions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median
from typing import Any, Final

from scripts.benchmarks.harness import RESULTS, read_result

FOLDER: Final = RESULTS.parents[2] / "docs" / "plots"
WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 220, 40, 50
# Readable on white for people who tell colours apart in other ways, too: Okabe and Ito, 2008.
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")

FONT: Final = 'font-family="sans-serif" font-size="12"'

Rates = Mapping[int, float]


@dataclass(frozen=True)
class Plot:
    """Rates of several ways to do one thing, by the number of messages.

    Attributes:
        name: of the file, without its ending.
        title: what is compared.
        series: rates in messages per second by number of messages, by way.
    """

    name: str
    title: str
    series: Mapping[str, Rates]


def plots() -> Iterator[Plot]:
    """All plots for which there is a result."""
    drawn_of = {
        "spark_read": reads,
        "spark_write": writes,
        "spark_stream": streams,
        "spark_fleet": fleets,
    }
    for name, of in drawn_of.items():
        if (RESULTS / f"{name}.json").exists():
            yield from of(read_result(name))


def reads(result: Mapping[str, Any]) -> Iterator[Plot]:
    """Readers, by engine."""
    for engine, found in result["engines"].items():
        series: dict[str, dict[int, float]] = {}
        for rows, choices in found["sizes"].items():
            for choice, measured in choices.items():
                for reader, rate in measured["rows_per_second"].items():
                    series.setdefault(f"{reader}, {choice}", {})[int(rows)] = rate
        yield Plot(f"spark_read-{engine}", f"Reading into Spark: {engine}", series)


def writes(result: Mapping[str, Any]) -> Iterator[Plot]:
    """Writers, by engine."""
    for engine, found in result["engines"].items():
        series: dict[str, dict[int, float]] = {}
        for rows, writers in found["sizes"].items():
            for writer, measured in writers.items():
                series.setdefault(writer, {})[int(rows)] = measured["rows_per_second"]
        yield Plot(f"spark_write-{engine}", f"Publishing from Spark: {engine}", series)


def streams(result: Mapping[str, Any]) -> Iterator[Plot]:
    """All cases of the streaming source."""
    series = {
        case: {int(size): int(size) / median(seconds) for size, seconds in measured.items()}
        for case, measured in result["cases"].items()
    }
    yield Plot("spark_stream", "Consuming as a stream, end to end", series)


def fleets(result: Mapping[str, Any]) -> Iterator[Plot]:
    """The forms of a fleet's workers, by engine."""
    by_engine: dict[str, dict[str, dict[int, float]]] = {}
    for each in result["measured"]:
        rates = by_engine.setdefault(each["engine"], {}).setdefault(each["form"], {})
        rates[each["count"]] = median(each["rates"])
    for engine, series in by_engine.items():
        yield Plot(f"spark_fleet-{engine}", f"Workers on Spark: {engine}", series)


# ---------------------------------------------------------------- drawing


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis between two powers of ten, on so many pixels from one to the other."""

    low: int
    high: int
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> Axis:
        """The axis that has room for all values."""
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return cls(low, max(high, low + 1), start, end)

    def place(self, value: float) -> float:
        """Where a value lies."""
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    @property
    def ticks(self) -> list[int]:
        """The powers of ten."""
        return [10**power for power in range(self.low, self.high + 1)]


def drawn(plot: Plot) -> str:
    """The plot as an SVG picture on white."""
    sizes = [size for rates in plot.series.values() for size in rates]
    speeds = [rate for rates in plot.series.values() for rate in rates.values()]
    x = Axis.over(sizes, LEFT, WIDTH - RIGHT)
    y = Axis.over(speeds, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="15">{escape(plot.title)}</text>',
        *_frame(x, y),
        *_lines(plot.series, x, y),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _frame(x: Axis, y: Axis) -> Iterator[str]:
    for tick in y.ticks:
        at = y.place(tick)
        yield f'<path d="M{x.start} {at}H{x.end}" stroke="#ddd"/>'
        yield f'<text x="{x.start - 8}" y="{at + 4}" text-anchor="end">{_short(tick)}</text>'
    for tick in x.ticks:
        at = x.place(tick)
        yield f'<path d="M{at} {y.start}V{y.end}" stroke="#eee"/>'
        yield f'<text x="{at}" y="{y.start + 18}" text-anchor="middle">{_short(tick)}</text>'
    middle = (x.start + x.end) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">messages</text>'
    yield f'<text x="8" y="{y.end - 16}" fill="#555">messages/s</text>'


def _lines(series: Mapping[str, Rates], x: Axis, y: Axis) -> Iterator[str]:
    for number, (name, rates) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = [(x.place(size), y.place(rate)) for size, rate in sorted(rates.items())]
        path = " ".join(f"{left},{top}" for left, top in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (
            f'<circle cx="{left}" cy="{top}" r="3" fill="{colour}"/>' for left, top in points
        )
        height = TOP + 10 + 20 * number
        key = WIDTH - RIGHT + 16
        yield f'<path d="M{key} {height}h18" stroke="{colour}" stroke-width="3"/>'
        yield f'<text x="{key + 24}" y="{height + 4}">{escape(name)}</text>'


def _short(number: int) -> str:
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= unit:
            return f"{number // unit}{letter}"
    return str(number)


def written(folder: Path = FOLDER) -> list[Path]:
    """Write all plots; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for plot in plots():
        path = folder / f"{plot.name}.svg"
        path.write_text(drawn(plot), encoding="utf-8")
        paths.append(path)
    return paths


def images(name: str) -> str:
    """The plots of one benchmark as the page shows them."""
    made = [plot for plot in plots() if plot.name.split("-", 1)[0] == name]
    return "\n".join(f"![{plot.title}](plots/{plot.name}.svg)\n" for plot in made)


if __name__ == "__main__":
    for each in written():
        print(each.name)
