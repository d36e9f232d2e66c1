"""Ranges of ids: each id in exactly one, with about as many messages in each."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_over_sql.spark.ranges import PROBE_ROWS, bounds, survey


def counts(ids: Iterable[int], parts: int) -> tuple[list[int], int]:
    """How many ids are in each range, and how many probes that took."""
    ordered, probes = sorted(set(ids)), 0

    def probe(start: int) -> tuple[int | None, int | None]:
        nonlocal probes
        probes += 1
        place = bisect.bisect_left(ordered, start)
        found = ordered[place : place + PROBE_ROWS + 1]
        return (
            found[0] if found else None,
            found[PROBE_ROWS] if len(found) > PROBE_ROWS else None,
        )

    ranges = bounds(survey(probe, ordered[-1]), parts)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(ranges))
    found = [
        bisect.bisect(ordered, end) - bisect.bisect_left(ordered, first) for first, end in ranges
    ]
    assert len(ordered) == sum(found)
    return found, probes


@given(
    ids=st.sets(st.integers(1, 10**6), min_size=1, max_size=50),
    runs=st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 3_000)), max_size=4),
    parts=st.integers(1, 20),
)
def test_each_id_is_in_one_range(ids: set[int], runs: list[tuple[int, int]], parts: int) -> None:
    """Wherever the ids are; and there are no more ranges than were asked for."""
    for start, length in runs:
        ids |= set(range(start, start + length))
    found, probes = counts(ids, parts)
    assert len(found) <= parts
    assert probes <= 25


@pytest.mark.parametrize(
    "ids",
    [
        [*range(1, 100_000)],
        [5, 17, *range(10_000_000, 10_100_000)],
        [*range(50_000), *range(10**9, 10**9 + 50_000)],
        [*range(0, 1_000_000, 50), *range(1_000_000, 1_080_000)],
    ],
    ids=["dense", "old ones wait", "two ends", "thin, then dense"],
)
def test_ranges_are_balanced(ids: list[int]) -> None:
    """Equal ranges of ids would leave all messages to one or two partitions."""
    found, _ = counts(ids, 4)
    assert max(found) < 1.5 * len(ids) / 4


def test_no_message_no_range() -> None:
    """An empty queue has no partitions."""
    assert [] == survey(lambda _: (None, None), 0)
