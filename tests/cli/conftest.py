"""Fixtures of the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queue_over_sql import Queue, QueueService


@pytest.fixture
def jobs(sqlite_url: str) -> Iterator[Queue]:
    """The queue ``jobs`` there, as another process than the command sees it."""
    service = QueueService(sqlite_url)
    yield service.create_queue("jobs")
    service.stop()
