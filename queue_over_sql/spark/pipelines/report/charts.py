"""The plots of one queue: what became of its messages, how long they waited and ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from queue_over_sql.spark.pipelines.report.plots import Series, Times, lines, stacked_bars
from queue_over_sql.spark.pipelines.report.words import (
    OUTCOMES,
    QUANTILES,
    Row,
    clean,
    duration_words,
    short_count,
)

_BIN_NAMES: Final = (
    (86_400, "day", "days"),
    (3_600, "hour", "hours"),
    (60, "minute", "minutes"),
    (1, "second", "seconds"),
)


def charts_of(rows: Sequence[Row], seconds: int) -> Iterator[str]:
    """The plots of one queue as HTML.

    Args:
        rows: what happened per bin, in their order.
        seconds: the length of a bin.
    """
    times = Times([int(row["bin"].timestamp()) for row in rows], seconds)
    series = [Series(name, name, [row[name] for row in rows]) for name in OUTCOMES]
    series = [one for one in series if any(one.values)]
    published = Series("published", "born", [row["published"] for row in rows])
    keys = [(one.look, one.name) for one in series] + [("born", "published")]
    yield '<div class="plots">'
    drawn = stacked_bars(times, series, published, short_count)
    yield _figure(f"Messages per {bin_words(seconds)}", keys, drawn)
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
    return _figure(title, [(name, name) for name in QUANTILES], drawn)


def _figure(title: str, keys: Sequence[tuple[str, str]], drawn: str) -> str:
    legend = "".join(f'<span class="key {look}"><i>{clean(name)}</i></span>' for look, name in keys)
    shown = drawn or '<p class="empty">nothing to show</p>'
    caption = f"<b>{clean(title)}</b>{legend if drawn else ''}"
    return f"<figure><figcaption>{caption}</figcaption>{shown}</figure>"
