"""A process forks after using a service."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = pytest.mark.chaos


@pytest.mark.engines("sqlite", "postgresql", "mariadb")
@pytest.mark.default_on("sqlite", "postgresql")
def test_parent_and_child_are_two_consumers(database: TestDatabase) -> None:
    """No shared identity, no shared connection, no claim of the parent in the child's hands.

    The child has no threads of the service, which is why it is not started there.

    H2 is left out: a JVM does not survive a fork, which its driver says (test_h2_driver_process).
    """
    _run("forker", database.url)


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("form", ["busy", "outliving", "refused"])
def test_a_child_of_a_busy_parent_has_locks_of_its_own(database: TestDatabase, form: str) -> None:
    """A child inherits no lock of SQLite's that it does not have, and loses nothing.

    ``busy``: threads of the parent are inside SQLite, so children hung or found it locked.
    ``outliving``: the parent closed the file, as it saw no other process, and what its child
    published afterwards was lost. ``refused``: an open transaction does not end in time.
    """
    _run("busy_forker", form, database.url)


@pytest.mark.engines("sqlite", "postgresql", "mariadb")
@pytest.mark.default_on("sqlite", "postgresql")
def test_a_child_of_a_parent_that_starts_inherits_no_lock(database: TestDatabase) -> None:
    """Another thread is inside ``start()``, at every fourth of its statements in turn.

    The child starts the same service, which waited for locks that no thread of it would release.
    """
    _run("busy_forker", "starting", database.url)


@pytest.mark.engines("mysql", "mariadb")
@pytest.mark.default_on("mariadb")
def test_a_child_sends_nothing_over_idle_connections_of_its_parent(database: TestDatabase) -> None:
    """The sessions of other threads, and at the child's end that of its own thread.

    The child freed them, and so sent SET AUTOCOMMIT = 0 and ROLLBACK through its parent's sockets.
    What the parent published then was never committed, and it took answers for those to others.
    """
    _run("busy_forker", "idle", database.url)


@pytest.mark.engines("sqlite", "postgresql", "mariadb")
@pytest.mark.default_on("sqlite", "postgresql")
def test_a_child_that_a_handler_forked_ends_with_its_call(database: TestDatabase) -> None:
    """It rolled back its parent's transaction over the shared connection, and hung.

    The parent then acked the message without the handler's effects.
    """
    _run("handler_forker", database.url)


def _run(role: str, *arguments: str) -> None:
    command = [sys.executable, "-m", f"tests.chaos.roles.{role}", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert 0 == ended.returncode
    assert "" == ended.stderr
