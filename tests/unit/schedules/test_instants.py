"""Instants: which messages of a schedule are published at a moment."""

from __future__ import annotations

import pytest

from queue_over_sql.schedules.calendar import EveryTrigger, plan

SECOND = 1_000_000


@pytest.mark.parametrize("first", [50, 91, 96])
def test_none_of_the_last_seconds_is_skipped(first: int) -> None:
    """What is less than 5 s over has not been missed, however often it comes."""
    firing = plan(EveryTrigger(0, SECOND), first * SECOND, 100 * SECOND, "skip")
    late = [at // SECOND for at in firing.instants if at <= 100 * SECOND]
    assert [96, 97, 98, 99, 100] == late


def test_nothing_older_is_made_up_for() -> None:
    """Where all of it is longer over the next one follows, and nothing else."""
    firing = plan(EveryTrigger(0, 60 * SECOND), 60 * SECOND, 130 * SECOND, "skip")
    assert (180 * SECOND,) == firing.instants
