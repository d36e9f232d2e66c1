"""Pytest fixtures for projects that use queues: a service with its own database for each test.

Turn them on in the top-level ``conftest.py``::

    pytest_plugins = ["queue_over_sql.testing.fixtures"]

They are not enabled by default, because test runs without queues would load them, too.

Fixtures
    ``queue_url``
        the URL of the test's database, a new SQLite file. Define a fixture of this name to use
        another database: ``sqlite://`` for one in memory, or a server's URL. Your fixture must
        empty that database between tests.
    ``queue_service``
        a `QueueService` on it, stopped when the test ends. It is not started, so it has no
        background jobs: `Clock.advance` and `QueueService.reap` do what is due.
    ``queue_clock``
        the `Clock` of that service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from queue_over_sql import QueueService
    from queue_over_sql.testing.clock import Clock


@pytest.fixture
def queue_url(tmp_path: Path) -> str:
    """The URL of a new SQLite file."""
    return f"sqlite:///{tmp_path / 'queues.db'}"


@pytest.fixture
def queue_service(queue_url: str) -> Iterator[QueueService]:
    """A service on the test's database, not started."""
    from queue_over_sql import QueueService

    service = QueueService(queue_url)
    yield service
    service.stop()


@pytest.fixture
def queue_clock(queue_service: QueueService) -> Clock:
    """The clock of ``queue_service``."""
    from queue_over_sql.testing.clock import Clock

    return Clock(queue_service)
