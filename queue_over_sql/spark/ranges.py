"""Ranges of ids with about as many messages in each, found by a few probes of the index.

Ids of live messages are sparse where old messages wait for a retry, and dense where new ones
arrive, so equal ranges of ids would leave most partitions empty. A probe finds the next message and
the distance of ids to the thousandth one after it. The range with the most messages by estimate is
split until no probe is left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

PROBE_ROWS: Final = 1_000
"""The distance of a probe in messages."""

_MOST_PROBES: Final = 24

Probe = Callable[[int], tuple[int | None, int | None]]
"""Returns the id of the first message from an id on, and of the one ``PROBE_ROWS`` after it."""


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Messages from ``first``, which exists, up to at most ``last``.

    ``spread`` is how many ids ``PROBE_ROWS`` messages span at its beginning; None if there are
    fewer messages.
    """

    first: int
    last: int
    spread: int | None

    @property
    def rows(self) -> float:
        """The estimated number of messages."""
        ids = self.last - self.first + 1
        if self.spread is None or self.spread > ids:
            return min(PROBE_ROWS / 2, ids)
        return ids * PROBE_ROWS / self.spread

    @property
    def divisible(self) -> bool:
        """Whether another probe may tell more."""
        return self.spread is not None and self.last - self.first > PROBE_ROWS


def survey(probe: Probe, last: int) -> list[Stretch]:
    """Estimate where the messages up to an id are; empty if there are none."""
    found = _look(probe, 0, last)
    stretches = [] if found is None else [found]
    for _ in range(_MOST_PROBES if stretches else 0):
        largest = max(stretches, key=lambda stretch: stretch.rows)
        if not largest.divisible:
            break
        stretches.remove(largest)
        stretches += _halves(probe, largest)
    return sorted(stretches, key=lambda stretch: stretch.first)


def bounds(stretches: Sequence[Stretch], parts: int) -> list[tuple[int, int]]:
    """Split the messages into at most so many ranges of ids, both ends included, of equal size."""
    share = sum(stretch.rows for stretch in stretches) / parts
    starts, passed = [stretches[0].first], 0.0
    for stretch in stretches:
        while len(starts) < parts and passed + stretch.rows > share * len(starts):
            within = (share * len(starts) - passed) / stretch.rows
            start = stretch.first + int((stretch.last - stretch.first + 1) * within)
            starts.append(max(start, starts[-1] + 1))
        passed += stretch.rows
    last = stretches[-1].last
    starts = [start for start in starts if start <= last]
    ends = [start - 1 for start in starts[1:]]
    return list(zip(starts, [*ends, last], strict=True))


def _look(probe: Probe, start: int, last: int) -> Stretch | None:
    first, later = probe(start)
    if first is None or first > last:
        return None
    return Stretch(first, last, None if later is None else later - first)


def _halves(probe: Probe, stretch: Stretch) -> list[Stretch]:
    middle = (stretch.first + stretch.last) // 2
    left = dataclasses.replace(stretch, last=middle)
    right = _look(probe, middle + 1, stretch.last)
    return [left] if right is None else [left, right]
