"""Fixtures of the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_over_sql import Queue, QueueService


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a fresh embedded database, for what is the same on every engine."""
    file = tmp_path / "queues.db"
    file.touch()
    return f"sqlite:///{file}"


@pytest.fixture
def jobs(sqlite_url: str) -> Iterator[Queue]:
    """The queue ``jobs`` there, as another process than the command sees it."""
    service = QueueService(sqlite_url)
    yield service.create_queue("jobs")
    service.stop()
