"""SQLite's files and its lock: what is lost is told, and a lock costs no connection."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import event

from queue_over_sql import DatabaseUnavailable
from queue_over_sql.service import parts_of
from queue_over_sql.sql.errors import ErrorKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = pytest.mark.engines("sqlite")

OPEN_AND_CLOSE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM queue_jobs").fetchall()
connection.close()
"""


def _drop_the_log(file: Path) -> None:
    # Whoever closes a file drops all locks of the process on it, as another SQLite library does.
    with file.open("rb"):
        pass
    # So this process takes itself for the last one, and deletes the log when it ends.
    subprocess.run([sys.executable, "-c", OPEN_AND_CLOSE, str(file)], check=True)
    assert not file.with_name(f"{file.name}-wal").exists()


def _replace(file: Path) -> None:
    other = file.with_name("other.db")
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE t (x)")
    other.replace(file)


@pytest.mark.parametrize("lose", [_drop_the_log, _replace, Path.unlink])
def test_a_publish_into_a_lost_file_is_refused(
    database: TestDatabase, service: QueueService, queue: Queue, lose: Callable[[Path], None]
) -> None:
    """It said that it had published, but nobody would ever see the message."""
    queue.publish(1)
    lose(Path(database.url.removeprefix("sqlite:///")))
    with pytest.raises(DatabaseUnavailable, match="was removed or replaced"):
        queue.publish(2)
    # From then on nothing works, so that nobody takes the service for a sound one.
    with pytest.raises(DatabaseUnavailable, match="start them again"):
        queue.consume(1)
    with pytest.raises(DatabaseUnavailable, match="start them again"):
        service.reap()


def test_a_pass_of_the_reaper_finds_a_lost_file(
    database: TestDatabase, service: QueueService, queue: Queue
) -> None:
    """Also where nobody publishes."""
    queue.publish(1)
    Path(database.url.removeprefix("sqlite:///")).unlink()
    with pytest.raises(DatabaseUnavailable, match="was removed or replaced"):
        service.reap()


def test_a_lock_costs_no_connection(
    database: TestDatabase, service: QueueService, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publish that meets the lock of another writer tries again on the same connection."""
    queue.publish_many([1])
    connections = parts_of(service).connections
    opened: list[object] = []
    event.listen(connections.engine, "connect", lambda *_: opened.append(1))
    classify = connections.dialect.errors.classify_driver_error
    with contextlib.closing(
        sqlite3.connect(
            database.url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False
        )
    ) as other:

        def met(error: BaseException | None) -> ErrorKind:
            if other.in_transaction:
                other.execute("ROLLBACK")
            return classify(error)

        monkeypatch.setattr(connections.dialect.errors, "classify_driver_error", met)
        other.execute("BEGIN IMMEDIATE")
        queue.publish_many([2, 3])
        assert not other.in_transaction
    assert [] == opened
    assert 3 == queue.stats().ready
