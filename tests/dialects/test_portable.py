"""The fallback for any other SQLAlchemy engine, run on a server that has a dialect of its own."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import ClaimLost, DuplicateKey, Publication, QueueService
from queue_over_sql.dialects import engines
from queue_over_sql.service import parts_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queue_over_sql.testing.plugin import TestDatabase

# The tables are made without what PostgreSQL has of its own.
pytestmark = [pytest.mark.engines("postgresql"), pytest.mark.empty_database]


@pytest.fixture
def generic(database: TestDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueService]:
    """A service that takes its server for an unknown one."""
    monkeypatch.setattr(engines, "_DIALECTS", {})
    service = QueueService(database.url, consumer_timeout=5, reaper_interval=0.2)
    assert "generic" == service._parts.connections.dialect.features.name
    yield service
    service.stop()


def test_messages_go_round(generic: QueueService) -> None:
    """Publish, claim in order, settle by every verb, archive."""
    queue = generic.create_queue("jobs", archive="all", priorities=2)
    queue.publish("low", priority=1)
    queue.publish_many(["a", "b", "c", "d"])
    messages = queue.consume(5)
    assert ["a", "b", "c", "d", "low"] == [message.payload for message in messages]
    a, b, c, d, low = messages
    a.ack()
    b.nack("bad", delay=0)
    c.release()
    d.reject("never")
    low.extend(60)
    with pytest.raises(ClaimLost):
        a.ack()
    assert [("c", 1), ("b", 2)] == [(m.payload, m.attempt) for m in queue.exchange(low, 5)]
    assert {"done": 2, "rejected": 1} == {
        "done": queue.stats().done,
        "rejected": queue.stats().rejected,
    }


def test_keys(generic: QueueService) -> None:
    """A conflict is found without spoiling the caller's transaction."""
    queue = generic.create_queue("jobs")
    first = queue.publish(1, key="k")
    with parts_of(generic).connections.engine.begin() as connection:
        with pytest.raises(DuplicateKey) as caught:
            queue.publish(2, key="k", connection=connection)
        assert first.id == caught.value.id
        queue.publish(3, connection=connection)
    outcomes = queue.publish_many([Publication(4, key="k"), 5], on_conflict="replace")
    assert ["replaced", "created"] == [published.outcome for published in outcomes]
    assert [3, 4, 5] == [message.payload for message in queue.consume(5)]


def test_expired_claims_come_back(generic: QueueService) -> None:
    """The reaper works in portable SQL too: once it gives back, once it buries."""
    queue = generic.create_queue("jobs", max_attempts=2)
    queue.publish("x")
    assert 1 == queue.consume(lease=0.05)[0].attempt
    assert 2 == queue.consume(lease=0.05, wait=10)[0].attempt
    wait_until(lambda: generic.reap().dead_lettered == 1)
    buried = queue.archive.messages(status="failed").first()
    assert buried is not None
    assert "lease expired" in (buried.last_error or "")


def test_no_message_is_claimed_twice(generic: QueueService) -> None:
    """Four threads race for 600 messages: each goes to one of them."""
    queue = generic.create_queue("jobs")
    queue.load(range(600))
    delivered: Counter[int] = Counter()
    lock = threading.Lock()

    def consume() -> None:
        misses = 0
        while misses < 20:
            messages = queue.consume(7)
            with lock:
                delivered.update(message.payload for message in messages)
            misses = 0 if messages else misses + 1

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dict.fromkeys(range(600), 1) == dict(delivered)
