"""Durable consumers and others at once: no message has two holders."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import ConsumerFenced
from tests.contract.durable.queries import Query
from tests.contract.queue_state import counts

if TYPE_CHECKING:
    from queue_over_sql import Queue
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.threads("a streaming engine reads by threads and processes")

MESSAGES = 600


def work(queue: Queue, stop: threading.Event) -> list[int]:
    """An ordinary consumer, until there is nothing left."""
    done: list[int] = []
    while not stop.is_set():
        messages = queue.consume(7)
        if messages:
            queue.ack(messages)
            done += [message.payload for message in messages]
    return done


@pytest.mark.engines("postgresql", "mysql", "mariadb")
@pytest.mark.default_on("postgresql")
def test_workers_and_rounds_share_a_queue(make_service: MakeService) -> None:
    """All is delivered, and nothing twice."""
    share(make_service, apart=False)


@pytest.mark.default_on("sqlite", "postgresql")
def test_workers_and_rounds_share_a_queue_by_readers(make_service: MakeService) -> None:
    """The same where readers claim the rounds, if the engine can."""
    share(make_service, apart=True)


def share(make_service: MakeService, *, apart: bool) -> None:
    """Let two workers and a query empty a queue."""
    queue = make_service().create_queue("jobs", lease=3600)
    query = Query(queue, apart=apart)
    queue.publish_many(range(MESSAGES))
    stop = threading.Event()
    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(work, make_service().queue("jobs"), stop) for _ in range(2)]
        read: list[int] = []
        try:
            while queue.stats().ready:
                opened = query.plan(most=90, each=30)
                for part in (
                    pool.map(query.read, opened) if query.apart else map(query.read, opened)
                ):
                    read += part
                query.checkpoint = opened[-1].consumer_round if opened else query.checkpoint
        finally:
            stop.set()
        handled = [number for worker in workers for number in worker.result()]
    query.done()
    assert Counter(range(MESSAGES)) == Counter(read + handled)
    assert (0, 0, 0) == counts(queue)


@pytest.mark.engines("postgresql", "mysql", "mariadb")
@pytest.mark.default_on("postgresql", "mysql")
def test_attempts_of_one_round_read_the_same(make_service: MakeService) -> None:
    """A task, its repetition and a speculative one claim once and read alike."""
    queue = make_service().create_queue("jobs")
    queue.publish_many(range(200))
    query = Query(queue, apart=True)
    opened = query.plan(each=50)
    meet = threading.Barrier(4)

    def attempt(_: int) -> list[list[int]]:
        meet.wait(30)
        return [query.read(each) for each in opened]

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(attempt, range(4))
    assert [first] * 3 == others
    assert sorted(number for part in first for number in part) == list(range(200))
    assert 200 == query.consumer.outstanding()


@pytest.mark.default_on("sqlite", "postgresql")
def test_of_queries_that_start_together_one_remains(make_service: MakeService) -> None:
    """Each registers or takes over; all but the last are fenced."""
    services = [make_service() for _ in range(4)]
    services[0].create_queue("jobs").publish_many(range(10))
    queues = [service.queue("jobs") for service in services]
    meet = threading.Barrier(4)

    def start(queue: Queue) -> Query:
        meet.wait(30)
        return Query(queue)

    with ThreadPoolExecutor(4) as pool:
        queries = list(pool.map(start, queues))
    assert 4 == len({query.consumer.epoch for query in queries})
    remaining = []
    for query in queries:
        try:
            remaining.append(query.batch())
        except ConsumerFenced:
            continue
    assert [[list(range(10))]] == remaining
