"""A slow pass of the reaper delays the next pass, but not its urgent chores."""

from __future__ import annotations

import pytest

import queue_over_sql
import queue_over_sql.reaper
from queue_over_sql.errors import DatabaseUnavailable, Locked
from queue_over_sql.observer import ReaperReport
from queue_over_sql.reaper import Reaper
from queue_over_sql.values import backoff as pacing
from queue_over_sql.values.backoff import Turns


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


def test_what_failed_or_waited_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pass that waited for a database or for a lock, the next one comes in time."""
    clock = Clock()
    monkeypatch.setattr(pacing, "time", clock)
    passes: list[float] = []

    def look() -> list[str]:
        passes.append(clock.now)
        clock.now += 30
        raise DatabaseUnavailable("it does not answer")

    def chore() -> ReaperReport:
        clock.now += 1000
        raise Locked("somebody reads the table")

    failing = Reaper(list, look, lambda _: None)
    for _ in range(5):
        failing.run_if_due()
    assert 5 == len(passes)
    monkeypatch.setattr(queue_over_sql.reaper, "time", clock)

    def note() -> list[str]:
        passes.append(clock.now)
        return []

    waiting = Reaper(list, note, lambda _: None, chores=[chore])
    for _ in range(5):
        waiting.run_if_due()
    assert 10 == len(passes)


def test_one_chore_that_fails_keeps_no_other_from_being_done() -> None:
    """Each has its turn, and who asked for the pass learns what failed."""
    done: list[int] = []

    def fail() -> ReaperReport:
        raise Locked("somebody reads the table")

    def work() -> ReaperReport:
        done.append(1)
        return ReaperReport()

    reaper = Reaper(list, list, lambda _: None, chores=[fail, work], elsewhere=[work])
    with pytest.raises(Locked):
        reaper.run_once()
    assert [1, 1] == done


def test_what_is_locked_comes_last_and_gets_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many locked queues delay the others once; later they share a few seconds, in turn."""
    clock = Clock()
    monkeypatch.setattr(pacing, "time", clock)
    turns = Turns[str]("The test")
    names = ["a", "b", "c", "d", "e", "free"]

    def run() -> list[str]:
        served = []
        for name in turns.of(names):
            served.append(name)
            if name == "free":
                turns.served(name)
            else:
                clock.now += 1
                turns.blocked(name, Locked("it is in use"))
        return served

    assert names == run()
    assert ["free", "a", "b", "c"] == run()
    assert ["free", "d", "e", "a"] == run()


def test_a_pass_counts_what_its_chores_did() -> None:
    """The report of a pass is the sum of all."""
    reaper = Reaper(list, list, lambda _: None, chores=[lambda: ReaperReport(scheduled=2)] * 3)
    assert ReaperReport(scheduled=6) == reaper.run_once()


def test_former_names_of_results_are_deprecated() -> None:
    """Each still gives the value of the new name, with a warning that says which that is."""
    report = ReaperReport(dead_lettered=1, scheduled=2, cleaned=3)
    with pytest.warns(DeprecationWarning, match=r"ReaperReport\.dead_lettered"):
        assert 1 == report.buried
    with pytest.warns(DeprecationWarning, match=r"ReaperReport\.scheduled"):
        assert 2 == report.fired
    with pytest.warns(DeprecationWarning, match=r"ReaperReport\.cleaned"):
        assert 3 == report.swept
    with pytest.warns(DeprecationWarning, match="EditResult"):
        assert queue_over_sql.EditResult is queue_over_sql.Edited
