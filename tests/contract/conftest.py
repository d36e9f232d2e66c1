"""Fixtures of the contract suite beside those that every suite shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine

from queue_over_sql import FixedDelay
from tests.contract.looking import effects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService, TestDatabase
    from queue_over_sql.worker import Worker


@pytest.fixture
def engine(database: TestDatabase) -> Iterator[Engine]:
    """An engine of the user's own on the test's database."""
    own = create_engine(database.url)
    yield own
    own.dispose()


@pytest.fixture
def effects_engine(engine: Engine) -> Engine:
    """The user's own engine, with a table for effects."""
    effects.create(engine)
    return engine


@pytest.fixture
def outside(make_service: MakeService) -> Queue:
    """The queue as a service sees it that runs no worker."""
    return make_service().create_queue("jobs", retry=FixedDelay(0), max_attempts=3)


@pytest.fixture
def worker(make_service: MakeService, outside: Queue) -> Worker:
    """A quick worker on a service of its own, not yet running."""
    service: QueueService = make_service(reaper_interval=0.1)
    assert outside.name == "jobs"
    return service.worker(concurrency=2, poll_interval=(0.005, 0.05))
