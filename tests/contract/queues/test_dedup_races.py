"""``dedup_window`` under publishers and finishers that work at the same moment."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import DuplicateKey
from tests.contract.queue_state import counts

if TYPE_CHECKING:
    from queue_over_sql import Queue
    from queue_over_sql.testing.plugin import MakeService


def publish_all(queue: Queue, rounds: int, way: str) -> Counter[str]:
    """Publish every key again and again; how often each was created."""
    created: Counter[str] = Counter()
    for number in [*range(rounds)] * 3:
        for key in (f"k{number}", f"k{max(0, number - 1)}"):
            try:
                if queue.publish(key, key=key, on_conflict=way).outcome == "created":
                    created[key] += 1
            except DuplicateKey:
                continue
    return created


def finish_all(queue: Queue, over: threading.Event) -> None:
    """Ack, exchange or reject whatever comes, until it is over and nothing is left."""
    turn = 0
    while True:
        ending = over.is_set()
        messages = queue.consume(2)
        if ending and not messages:
            return
        turn += 1
        if turn % 3 == 0:
            queue.reject(messages, "bad")
        elif turn % 3 == 1 and messages:
            messages = queue.exchange(messages, 2)
            queue.ack(messages)
        else:
            queue.ack(messages)


@pytest.mark.default_on("sqlite", "postgresql")
def test_within_the_window_no_second_message_comes_through(make_service: MakeService) -> None:
    """Publishers and finishers at once: every key is created once, whatever is done about it."""
    queues = [
        make_service().create_queue("jobs", dedup_window=600, archive="all") for _ in range(5)
    ]
    over = threading.Event()
    rounds = 25
    with ThreadPoolExecutor(5) as pool:
        finishing = [pool.submit(finish_all, queue, over) for queue in queues[3:]]
        ways = ("raise", "skip", "replace")
        try:
            publishing = [
                pool.submit(publish_all, queue, rounds, way)
                for queue, way in zip(queues, ways, strict=False)
            ]
            created = sum((one.result(60) for one in publishing), Counter[str]())
        finally:
            over.set()
        for one in finishing:
            one.result(60)
    assert {f"k{number}": 1 for number in range(rounds)} == dict(created)
    assert (0, 0, rounds) == counts(queues[0])
