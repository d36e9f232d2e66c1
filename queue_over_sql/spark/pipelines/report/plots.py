"""The plots of one queue: outcomes of its messages, and their wait and run times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from queue_over_sql.plots.drawing import Series, Times, figure, lines, stacked_bars
from queue_over_sql.spark.pipelines.report.columns import OUTCOMES, QUANTILES, Row
from queue_over_sql.values.humanize import duration_words, short_count

_BIN_NAMES: Final = (
    (86_400, "day", "days"),
    (3_600, "hour", "hours"),
    (60, "minute", "minutes"),
    (1, "second", "seconds"),
)


def charts_of(rows: Sequence[Row], seconds: int) -> Iterator[str]:
    """The plots of one queue as HTML, from rows per bin of ``seconds``, in order."""
    times = Times([int(row["bin"].timestamp()) for row in rows], seconds)
    series = [Series(name, name, [row[name] for row in rows]) for name in OUTCOMES]
    series = [one for one in series if any(one.values)]
    published = Series("published", "born", [row["published"] for row in rows])
    keys = [(one.look, one.name) for one in series] + [("born", "published")]
    yield '<div class="plots">'
    drawn = stacked_bars(times, series, published, short_count)
    yield figure(f"Messages per {bin_words(seconds)}", keys, drawn)
    yield _durations("Wait until claimed", "wait", times, rows)
    yield _durations("Run time", "run", times, rows)
    yield "</div>"


def bin_words(seconds: int) -> str:
    """The length of a bin: ``hour``, ``6 hours``."""
    length, one, many = next(entry for entry in _BIN_NAMES if seconds % entry[0] == 0)
    count = seconds // length
    return one if count == 1 else f"{count} {many}"


def _durations(title: str, kind: str, times: Times, rows: Sequence[Row]) -> str:
    series = [Series(name, name, [row[f"{kind}_{name}"] for row in rows]) for name in QUANTILES]
    drawn = lines(times, series, duration_words)
    return figure(title, [(name, name) for name in QUANTILES], drawn)
