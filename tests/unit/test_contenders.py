"""The processes of the benchmarks' contenders."""

from __future__ import annotations

import sys

import pytest

from scripts.benchmarks import workloads_processes
from scripts.benchmarks.workloads_processes import ContenderFailed, Kind, Running

SILENT = """
import sys
for line in sys.stdin:
    if "quit" in line:
        sys.exit("it was too much")
"""


class Silent(Kind):
    """Answers nothing, and says something when it quits."""

    def command(self) -> list[str]:
        """A program that only reads."""
        return [sys.executable, "-c", SILENT]


def test_one_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be told and ended again after that, and its last words are known."""
    monkeypatch.setattr(workloads_processes, "_PATIENCE_SECONDS", 0.1)
    running = Running(Silent("silent", ()), "sqlite://")
    with pytest.raises(ContenderFailed, match=r"silent did not answer for 0 s"):
        running.ask("open")
    with pytest.raises(ContenderFailed, match="silent ended: it was too much"):
        running.tell("open")
    running.end()
