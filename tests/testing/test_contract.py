"""The contract suite in another project with its own engine."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.cli.command_line import environment

if TYPE_CHECKING:
    from pathlib import Path

CONFTEST = """
import pytest
from queue_over_sql.testing.plugin import TestDatabase

pytest_plugins = ["queue_over_sql.testing.plugin"]

@pytest.fixture
def database(tmp_path):
    return TestDatabase("mine", f"sqlite+pysqlite:///{tmp_path}/queues.db")
"""
CASES = """
from queue_over_sql.testing.contract import QueueContract

class TestMyEngine(QueueContract):
    pass
"""


def test_the_contract_runs_on_a_database_of_the_projects_own(tmp_path: Path) -> None:
    """A project gives it a database by one fixture, and gets each case once."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_mine.py").write_text(CASES)
    chosen = "oldest_first or follows_the_callers or another_claimed"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-k", chosen, "."],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr
