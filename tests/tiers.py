"""The three tiers of the tests: which case runs in which.

fast
    what a change breaks first: SQLite, on threads and, where the driver decides, on an event loop
    (``driver_decides``); no kills, no Spark, no browser, no generators of clients.
default
    fast, and what the other databases decide, short kills, the dashboard in a browser,
    Spark's core. CI runs this one. MySQL and MariaDB share a dialect, so what both decide is shown
    by one of them; what H2 decides, too, by one of the three (``IN_TURN``). On an event loop,
    PostgreSQL and MariaDB take turns. H2's plans are read later, because they take minutes.
full
    everything. What is marked ``timing`` runs by itself there.

Without ``--tier`` pytest runs what it is asked for.
"""

from __future__ import annotations

import zlib

import pytest

TIERS = ("fast", "default", "full")
OF_SPARK = ("tests/spark/", "tests/chaos/spark/", "tests/docs/", "tests/cli/test_spark")
"""Where ``scripts/test`` looks for tests of Spark, in a run of their own."""

IN_TURN = (("mysql", "mariadb", "mysql", "mariadb", "h2"), ("mysql", "mariadb"))
"""The engines that take turns, test by test, in the earlier tiers; by the name of the test.

Those of the first line that a test runs on. H2 has fewer turns, because its cases take three times
as long.
"""
ON_LOOP_IN_TURN = ("postgresql", "mariadb")
"""The engines that take turns on an event loop."""
PLANS = ("tests/dialects/plans/", "tests/dialects/test_round_trips")
"""Which indexes and how many statements each act needs."""
WHERE_IN_TURN = ("tests/contract/", "tests/chaos/", "tests/sql_api/", "tests/web/")
"""Where they do so."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--tier``."""
    parser.addoption("--tier", choices=TIERS, default="full", help="which cases to run (full)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what belongs to a later tier."""
    for item in items:
        if item.get_closest_marker("spark") and not item.nodeid.startswith(OF_SPARK):
            raise pytest.UsageError(f"scripts/test runs no test of Spark there: {item.nodeid}")
    wanted = TIERS.index(config.getoption("--tier"))
    later = {item: None for item in items if TIERS.index(tier_of(item)) > wanted}
    if later:
        config.hook.pytest_deselected(items=list(later))
        items[:] = [item for item in items if item not in later]


def faces_belong_to(metafunc: pytest.Metafunc) -> bool:
    """Whether a test may run on an event loop, too; to collect cases and drop them takes long."""
    wanted = metafunc.config.getoption("--tier")
    return wanted == "full" or metafunc.definition.get_closest_marker("driver_decides") is not None


def tier_of(item: pytest.Item) -> str:
    """Return the first tier that a case runs in."""
    callspec = getattr(item, "callspec", None)
    parameters = {} if callspec is None else callspec.params
    engine = parameters.get("engine_name") or parameters.get("server_engine")
    if engine is None:
        # A case that makes its own databases.
        named = item.get_closest_marker("engines")
        engine = "sqlite" if named is None or "sqlite" in named.args else named.args[0]
    only = item.get_closest_marker("default_on")
    if (
        item.get_closest_marker("full")
        or item.get_closest_marker("timing")
        or (only and engine not in only.args)
        or (parameters.get("face") == "asyncio" and not _driver_decides(item, engine))
        or _another_shows_it(item, engine)
        or (engine == "h2" and _reads_plans(item))
    ):
        return "full"
    slow = any(map(item.get_closest_marker, ("browser", "chaos", "fetched", "spark")))
    return "default" if engine != "sqlite" or slow else "fast"


def _driver_decides(item: pytest.Item, engine: str) -> bool:
    """Whether a case on an event loop shows what no other one of the earlier tiers shows."""
    if not item.get_closest_marker("driver_decides"):
        return False
    # MySQL and MariaDB have the same driver there.
    markers = map(item.get_closest_marker, ("default_on", "engines"))
    return engine != "mysql" or any(each and "mariadb" not in each.args for each in markers)


def _reads_plans(item: pytest.Item) -> bool:
    """Whether a case reads plans, except those of the SQL files, which are written anew."""
    return item.nodeid.startswith(PLANS) and "test_sql_files" not in item.nodeid


def _another_shows_it(item: pytest.Item, engine: str) -> bool:
    """Whether another engine has its turn, and runs this test in the earlier tiers."""
    callspec = getattr(item, "callspec", None)
    if callspec is None or not item.nodeid.startswith(WHERE_IN_TURN):
        return False
    in_turn = (ON_LOOP_IN_TURN,) if callspec.params.get("face") == "asyncio" else IN_TURN
    markers = list(filter(None, map(item.get_closest_marker, ("default_on", "engines"))))
    for engines in in_turn:
        if all({*engines} <= {*each.args} for each in markers):
            test, _, _ = item.nodeid.partition("[")
            turn = engines[zlib.crc32(test.encode()) % len(engines)]
            return engine in engines and engine != turn
    return False
