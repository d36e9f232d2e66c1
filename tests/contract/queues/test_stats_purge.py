"""Counting the messages of a queue, and removing them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import ClaimLost
from tests.contract.queue_state import archived, counts, ids, payloads, set_columns

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import MakeService
    from queue_over_sql.values.states import LiveStatus


@pytest.fixture
def claimed(queue: Queue, engine: Engine) -> list[Message]:
    """A queue with two ready messages, and one of every other state; the claimed one."""
    held, _, bad = queue.publish_many(["held", "claimed", "bad"])
    set_columns(engine, queue, held.id, available_at=None)
    in_work, rejected = queue.consume(2)
    rejected.reject("bad")
    assert bad.id == rejected.id
    queue.publish("delayed", delay=60)
    queue.publish_many(["ready", "ready too"])
    return [in_work]


STATES: dict[LiveStatus | None, list[str]] = {
    "ready": ["ready", "ready too"],
    "delayed": ["delayed"],
    "claimed": ["claimed"],
    "held": ["held"],
    None: ["held", "claimed", "delayed", "ready", "ready too"],
}


@pytest.mark.usefixtures("claimed")
def test_each_message_is_counted_in_its_state(queue: Queue) -> None:
    """Looking finds exactly what stats count, by id, and claims nothing."""
    for status, expected in STATES.items():
        selection = queue.messages(status=status)
        assert expected == payloads(selection.list()), status
        assert len(expected) == selection.count(), status
        first = selection.first()
        assert first is not None
        assert expected[0] == first.payload
    stats = queue.stats()
    found = (stats.ready, stats.delayed, stats.claimed, stats.held, stats.archived)
    assert (2, 1, 1, 1, 1) == found


@pytest.mark.threads("the statement is that of the other tests")
def test_stats_are_of_one_moment(make_service: MakeService) -> None:
    """A message that is acked meanwhile is counted once, as claimed or as archived."""
    queue, worker = (make_service().create_queue("jobs", archive="all") for _ in range(2))
    queue.publish_many(list(range(300)))
    sums = []

    def work() -> None:
        while messages := worker.consume(3):
            worker.ack(messages)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        while not done.done():
            stats = queue.stats()
            sums.append(stats.live + stats.archived)
        done.result()
    assert {300} == set(sums)


def test_stats_of_an_empty_queue_are_zero(queue: Queue, engine_name: str) -> None:
    """Nothing there counts nothing.

    Only SQLite has a size of the log, where a long reader makes it grow.
    """
    stats = queue.stats()
    found = (stats.ready, stats.delayed, stats.claimed, stats.held, stats.archived)
    assert (0, 0, 0, 0, 0) == found
    queue.publish("x")
    size = queue.stats().wal_bytes
    assert (size or 0) > 0 if engine_name == "sqlite" else size is None


def test_the_age_of_the_oldest_ready_message(queue: Queue, engine: Engine) -> None:
    """It is measured by the due time of the oldest ready message."""
    published = queue.publish("x")
    (listed,) = queue.messages().list()
    due = listed.scheduled_at - timedelta(hours=1)
    micros = round(due.timestamp() * 1_000_000)
    set_columns(engine, queue, published.id, available_at=micros)
    age = queue.stats().oldest_ready_age
    assert age is not None
    assert timedelta(hours=1) <= age < timedelta(hours=1, minutes=1)


@pytest.mark.engines("sqlite")
def test_a_selection_is_paged_by_id(queue: Queue) -> None:
    """Limit and after walk through all, in order."""
    published = queue.publish_many(list(range(5)))
    selection = queue.messages()
    first = selection.list(limit=2)
    second = selection.list(limit=2, after=first[-1].id)
    rest = selection.list(after=second[-1].id)
    assert [one.id for one in published] == ids([*first, *second, *rest])
    assert [] == selection.list(after=rest[-1].id)
    assert queue.messages(key="none").first() is None


def test_purge_clears_what_nobody_holds(queue: Queue, claimed: list[Message]) -> None:
    """Ready, delayed and held messages go; the claimed one is finished by its holder."""
    assert 4 == queue.purge()
    assert ["claimed"] == payloads(queue.messages().list())
    queue.ack(claimed)
    assert (0, 0, 1) == counts(queue)
    assert 0 == queue.purge()


def test_purge_of_the_claimed_too_makes_the_holder_lose(
    queue: Queue, claimed: list[Message]
) -> None:
    """Everything live goes; the archive stays."""
    assert 5 == queue.purge(claimed=True)
    with pytest.raises(ClaimLost):
        queue.ack(claimed)
    assert (0, 0, 1) == counts(queue)
    assert ["bad"] == payloads(archived(queue))


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_purged_queue_goes_on(make_service: MakeService) -> None:
    """Messages published after the purge are delivered, with new ids, to every service."""
    queue = make_service().create_queue("jobs")
    before = queue.publish("before", key="k")
    queue.purge()
    after = make_service().queue("jobs").publish("after", key="k")
    assert after.id > before.id
    assert ["after"] == payloads(queue.consume(2))
