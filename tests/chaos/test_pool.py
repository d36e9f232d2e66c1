"""The pool of a user's own Engine is exhausted: heartbeats continue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import QueuePool

from queue_over_sql import QueueService
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]

TIMEOUT = 4.0


@pytest.fixture
def small_engine(database: TestDatabase) -> Iterator[Engine]:
    """An engine with one connection and no more."""
    engine = create_engine(
        database.url, poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=5
    )
    yield engine
    engine.dispose()


def is_after(heartbeat: Callable[[], datetime | None], last: datetime) -> bool:
    """Whether there was a heartbeat since the last one; a consumer without a row is dead."""
    now = heartbeat()
    assert now is not None
    return now > last


@pytest.mark.default_on("sqlite", "postgresql")
def test_heartbeats_go_on_while_the_pool_is_exhausted(
    make_service: MakeService, small_engine: Engine
) -> None:
    """The only connection is taken beyond the timeout: the consumer lives and keeps its claim."""
    with make_service(reaper_interval=0.2) as observer:
        queue = observer.create_queue("jobs")
        queue.publish({"token": "held"})
        starved = QueueService(small_engine, consumer_timeout=TIMEOUT)
        [message] = starved.queue("jobs").consume()

        def heartbeat() -> datetime | None:
            seen = {c.consumer_id: c.heartbeat_at for c in observer.consumers()}
            return seen.get(str(message.consumer_id))

        with small_engine.connect() as connection:
            connection.execute(text("SELECT 1"))
            for _ in range(4):
                last = heartbeat()
                assert last is not None
                eventually(partial(is_after, heartbeat, last), "a heartbeat", within=3 * TIMEOUT)
            assert [] == queue.consume()
        assert message.consumer_id == starved.consumer_id
        message.ack()
        starved.stop()
        assert 0 == queue.stats().claimed
