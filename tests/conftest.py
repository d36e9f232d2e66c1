"""Fixtures of all tests: the package's own pytest plugin."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sql_api.sql_clients import trusting_creators

if TYPE_CHECKING:
    from queue_over_sql.testing.plugin import TestDatabase

pytest_plugins = ["queue_over_sql.testing.plugin", "tests.tiers", "tests.flaky"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--write-sql``, and the options of ``tests/interleavings``."""
    help_ = "write the files of tests/dialects/sql instead of comparing them"
    parser.addoption("--write-sql", action="store_true", help=help_)
    help_ = "how many schedules of each scenario of tests/interleavings to play (200)"
    parser.addoption("--schedules", type=int, default=200, help=help_)
    help_ = "play this schedule of tests/interleavings, as its failure printed it"
    parser.addoption("--schedule", help=help_)


def pytest_configure() -> None:
    """Let children be interrupted: a shell's background job ignores SIGINT, and they inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def functions_allowed(database: TestDatabase) -> Iterator[None]:
    """An administrator has allowed the functions of the SQL API, where the server asks for that."""
    with trusting_creators(database):
        yield


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a fresh embedded database, for what is the same on every engine."""
    file = tmp_path / "queues.db"
    file.touch()
    return f"sqlite:///{file}"
