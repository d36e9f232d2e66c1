"""A slow pass of the reaper delays the next pass, but not its urgent chores."""

from __future__ import annotations

import pytest

import queue_over_sql
from queue_over_sql import backoff as pacing
from queue_over_sql.observer import ReaperReport
from queue_over_sql.reaper import Reaper


class Clock:
    """A monotonic clock that only the test moves."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_chores_are_done_between_costly_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedules fire at each interval, though passes over the queues take long."""
    done: list[str] = []
    clock = Clock()
    monkeypatch.setattr(pacing, "time", clock)

    def look() -> list[str]:
        done.append("pass")
        clock.now += 0.4
        return []

    def chore() -> ReaperReport:
        done.append("chore")
        return ReaperReport(scheduled=1)

    reaper = Reaper(list, look, lambda _: None, chores=[chore])
    # One costly pass may be an accident; after two the next one waits, for several seconds here.
    for _ in range(4):
        reaper.run_if_due()
    assert ["pass", "chore", "pass", "chore", "chore", "chore"] == done


def test_a_pass_counts_what_its_chores_did() -> None:
    """The report of a pass is the sum of all."""
    reaper = Reaper(list, list, lambda _: None, chores=[lambda: ReaperReport(scheduled=2)] * 3)
    assert ReaperReport(scheduled=6) == reaper.run_once()


def test_former_names_of_results_are_deprecated() -> None:
    """Each still gives the value of the new name, with a warning that says which that is."""
    report = ReaperReport(dead_lettered=1, scheduled=2, cleaned=3)
    with pytest.warns(DeprecationWarning, match=r"ReaperReport\.(dead_lettered|scheduled|cleaned)"):
        assert (1, 2, 3) == (report.buried, report.fired, report.swept)
    with pytest.warns(DeprecationWarning, match="EditResult"):
        assert queue_over_sql.EditResult is queue_over_sql.Edited
