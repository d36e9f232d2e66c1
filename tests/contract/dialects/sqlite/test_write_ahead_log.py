"""SQLite's write-ahead log while a reader in another process does not end."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from queue_over_sql.dialects.sqlite import write_ahead_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = pytest.mark.engines("sqlite")

READER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM queue_jobs").fetchall()
print("reading", flush=True)
sys.stdin.read()
"""
MANY, TEXT = 2_500, "x" * 10_000
SMALL, LARGE = write_ahead_log.LARGE_BYTES, 2_500 * 10_000


@contextlib.contextmanager
def reading(database: TestDatabase) -> Iterator[None]:
    """Meanwhile another process has a read transaction open."""
    command = [sys.executable, "-c", READER, database.url.removeprefix("sqlite:///")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        assert "reading\n" == reader.stdout.readline()
        yield


def size(queue: Queue) -> int:
    """Of the log."""
    found = queue.stats().wal_bytes
    assert found is not None
    return found


def test_the_log_is_emptied_when_the_reader_has_ended(
    database: TestDatabase, service: QueueService, queue: Queue
) -> None:
    """Not before: the reader goes on to see what it saw. Nothing is lost."""
    with reading(database):
        queue.load([TEXT] * MANY)
        service.reap()
        assert size(queue) > LARGE
        queue.publish("writers are not kept waiting")
    service.reap()
    assert 0 == size(queue)
    assert MANY + 1 == queue.stats().ready


def test_writers_cut_the_log_where_nobody_reaps(database: TestDatabase, queue: Queue) -> None:
    """The first that write when it begins anew give the file's space back."""
    with reading(database):
        queue.load([TEXT] * MANY)
        assert size(queue) > LARGE
    for number in range(3):
        queue.publish(number)
    assert size(queue) <= SMALL


def test_a_log_that_stays_large_is_told_of_once(
    database: TestDatabase,
    service: QueueService,
    queue: Queue,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With what to do; again only when it has been small meanwhile."""
    monkeypatch.setattr(write_ahead_log, "ALARMING_BYTES", LARGE)
    told = []
    with caplog.at_level(logging.WARNING, logger=write_ahead_log.__name__):
        for _ in range(2):
            with reading(database):
                queue.load([TEXT] * MANY)
                service.reap()
                service.reap()
                told.append(len(caplog.records))
            service.reap()
    assert [1, 2] == told
    assert "End its transaction" in caplog.text


def test_a_small_log_is_left_alone(service: QueueService, queue: Queue) -> None:
    """SQLite keeps it small by itself, and an empty one would have to grow again."""
    queue.publish("x")
    before = size(queue)
    service.reap()
    assert 0 < before <= size(queue)
