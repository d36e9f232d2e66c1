"""Faults by chance, a minute on each engine; the histories of all processes are checked."""

from __future__ import annotations

import time

import pytest

from scripts.benchmarks.faults import soak

MINUTES = 1.0


@pytest.mark.chaos
@pytest.mark.full
@pytest.mark.engines("sqlite")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mysql", "mariadb", "h2"])
def test_faults_by_seed(engine: str) -> None:
    """Nothing is lost, held by two, settled by a non-holder or done twice; work always goes on.

    The seed is new each time. The message of a failure has the command that repeats it.
    """
    seed = int(time.time())
    found = soak([engine], seed, MINUTES)
    again = f"scripts/benchmarks/run faults --engines {engine} --soak {MINUTES:.0f} --seed {seed}"
    assert [] == found["violations"], again
    assert found["handled"] > 0, again
