"""A process forks after using a service."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.engines("sqlite", "postgresql", "mariadb"),
    pytest.mark.default_on("sqlite", "postgresql"),
]


def test_parent_and_child_are_two_consumers(database: TestDatabase) -> None:
    """No shared identity, no shared connection, no claim of the parent in the child's hands.

    H2 is left out: a JVM does not survive a fork, which its driver says (test_h2_driver_process).
    """
    command = [sys.executable, "-m", "tests.chaos.roles.forker", database.url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (0, "") == (ended.returncode, ended.stderr)
