"""The three tiers of the tests: which case runs in which.

fast
    what a change breaks first: SQLite, on threads and, where the driver decides, on an event loop
    (``driver_decides``); no kills, no Spark, no browser, no generators of clients.
default
    fast, and what the other databases decide, short kills, the dashboard in a browser,
    Spark's core. CI runs this one.
full
    everything. What is marked ``timing`` runs by itself there.

Without ``--tier`` pytest runs what it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

TIERS = ("fast", "default", "full")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--tier``."""
    parser.addoption("--tier", choices=TIERS, default="full", help="which cases to run (full)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what belongs to a later tier."""
    wanted = TIERS.index(config.getoption("--tier"))
    later = {item: None for item in items if TIERS.index(tier_of(item)) > wanted}
    if later:
        config.hook.pytest_deselected(items=list(later))
        items[:] = [item for item in items if item not in later]


def tier_of(item: pytest.Item) -> str:
    """Return the first tier that a case runs in."""
    callspec = getattr(item, "callspec", None)
    parameters = {} if callspec is None else callspec.params
    engine = parameters.get("engine_name") or parameters.get("server_engine") or "sqlite"
    only = item.get_closest_marker("default_on")
    if (
        item.get_closest_marker("full")
        or item.get_closest_marker("timing")
        or (only and engine not in only.args)
        or (parameters.get("face") == "asyncio" and not item.get_closest_marker("driver_decides"))
    ):
        return "full"
    slow = any(map(item.get_closest_marker, ("browser", "chaos", "generators", "spark")))
    return "default" if engine != "sqlite" or slow else "fast"
