"""The plots of a report: round ticks, and labels that fit."""

from __future__ import annotations

import re
from typing import Final

from queue_over_sql.plots.drawing import LEFT, Series, Times, lines, stacked_bars
from queue_over_sql.values.humanize import duration_words, short_count

_ROUND: Final = re.compile(r"0|(\d{1,3}|\d,000)(\.5)? ?\D*")
_WIDEST_LETTER: Final = 7.2
"""Of a label, on average: its letters are 11 units high, and system fonts 0.65 of that wide."""
_BINS: Final = Times([0, 3600], 3600)


def _labels(drawn: str) -> list[str]:
    found = re.findall(rf'<text class="tick end" x="{LEFT - 5}"[^>]*>([^<]*)<', drawn)
    assert 2 <= len(found) <= 7, drawn
    return found


def test_ticks_of_durations_are_round_and_are_not_clipped() -> None:
    """Whatever the durations are, near each other or far: 8.33 min stood there as 3.33 min."""
    for highest in [n * 10.0**power for power in range(-3, 8) for n in (1, 1.3, 2.1, 3, 4.7, 7.2)]:
        for lowest in (highest / 3, highest / 1e4):
            series = [Series("p50", "p50", [lowest, highest])]
            labels = _labels(lines(_BINS, series, duration_words))
            wrong = [
                label
                for label in labels
                if not _ROUND.fullmatch(label) or len(label) * _WIDEST_LETTER > LEFT - 5
            ]
            assert [] == wrong, (lowest, highest, labels)
            assert len(labels) == len(set(labels)), labels


def test_ticks_of_numbers_are_whole() -> None:
    """Nobody publishes half a message."""
    for highest in (1, 2, 3, 7, 12, 99, 1234, 56_789, 4_000_000):
        series = [Series("done", "done", [0, highest])]
        labels = _labels(stacked_bars(_BINS, series, None, short_count))
        assert len(labels) == len(set(labels)), labels
        assert all(len(label) * _WIDEST_LETTER <= LEFT - 5 for label in labels), labels
        if highest < 1000:
            assert all(label.isdigit() for label in labels), labels
