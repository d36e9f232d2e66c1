"""The low watermark skips dead rows and hides no message; late ones are found in time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine

from queue_over_sql import Publication
from tests.waiting import wait_until

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService, TestDatabase

# What a look costs decides when the next one comes; and many consumers want the machine.
pytestmark = pytest.mark.timing

# The documented bound is a second on a healthy table; the rest is for a busy machine.
BOUND = 10.0


def seconds_until(queue: Queue, late: object) -> float:
    """Consume one by one under a steady load until ``late`` comes; how long that took."""
    began = time.monotonic()
    while time.monotonic() < began + BOUND:
        queue.publish_many(["load"] * 3)
        for message in queue.consume(2):
            message.ack()
            if message.payload == late:
                return time.monotonic() - began
    raise AssertionError(f"{late!r} did not come within {BOUND} s")


def warmed_up(service: QueueService) -> Queue:
    """A queue whose consumer has a mark, well above what comes next."""
    queue = service.create_queue("jobs")
    queue.publish_many(["old"] * 20)
    time.sleep(0.25)
    queue.publish_many(["load"] * 20)
    for _ in range(15):
        queue.ack(queue.consume(2))
    return queue


@pytest.mark.threads("its publisher's engine is a synchronous one")
def test_a_late_commit_is_found_under_load(service: QueueService, database: TestDatabase) -> None:
    """A publisher that commits long after it published is served, though newer ones wait."""
    queue = warmed_up(service)
    if database.engine == "sqlite":
        # There is one writer: a publish cannot stay open while others publish.
        queue.publish("late", at=datetime.now(UTC) - timedelta(seconds=30))
        seconds_until(queue, "late")
        return
    engine = create_engine(database.url)
    with engine.begin() as publisher:
        queue.publish("late", connection=publisher)
        time.sleep(0.3)
        for _ in range(10):
            queue.publish_many(["load"] * 2)
            queue.ack(queue.consume(2))
    seconds_until(queue, "late")
    engine.dispose()


def test_a_back_dated_message_is_found_under_load(service: QueueService) -> None:
    """``at`` in the past puts a message behind the mark."""
    queue = warmed_up(service)
    queue.publish("late", at=datetime.now(UTC) - timedelta(days=1))
    seconds_until(queue, "late")


def test_a_message_restored_by_another_is_found_under_load(
    service: QueueService, make_service: MakeService
) -> None:
    """What another consumer gives back lands behind this one's mark, and is found."""
    queue = service.create_queue("jobs")
    queue.publish("late")
    other = make_service().queue("jobs")
    held = other.consume()
    warmed_up(service)
    other.release(held)
    seconds_until(queue, "late")


@pytest.mark.threads("a look on a busy loop costs what the other tasks cost, too")
def test_an_idle_queue_hides_nothing(service: QueueService, make_service: MakeService) -> None:
    """Without load the very next look finds what came back, however old its place is."""
    queue = service.create_queue("jobs")
    queue.publish("late")
    other = make_service().queue("jobs")
    held = other.consume()
    warmed_up(service)
    while rest := queue.consume(100):
        queue.ack(rest)
    for _ in range(5):
        other.release(held)
        found = queue.consume()
        assert ["late"] == [message.payload for message in found]
        queue.release(found)
        held = other.consume()
        assert 1 == len(held)


# -- many consumers
#
# Four of them, each with a watermark of its own, eat a backlog that never ends, so that their
# claims are bounded by their watermarks; then messages turn up whose place lies below all of these.

CONSUMERS = 4
LATE = [f"late-{number}" for number in range(20)]
BACKLOG = 200


class Crowd:
    """Consumers and a publisher at work, and an account of what came.

    Args:
        make_service: makes a service for each of them.
    """

    def __init__(self, make_service: MakeService) -> None:
        self.came: list[str] = []
        self.published = 0
        self._stop = threading.Event()
        self._consumers = [make_service().queue("jobs") for _ in range(CONSUMERS)]
        self._publisher = make_service().queue("jobs")
        self._errors: list[BaseException] = []

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Consume and publish while the block runs, from when all have a mark."""
        works = [self._publish, *(partial(self._consume, queue) for queue in self._consumers)]
        threads = [threading.Thread(target=self._kept, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        try:
            # All marks are now well above what was there before.
            self._await(lambda: len(self.came) > BACKLOG * 2)
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(30)
        assert [] == self._errors

    def await_late(self) -> None:
        """Wait until all late messages came."""
        self._await(lambda: set(LATE) <= set(self.came))

    def check(self) -> None:
        """All that was published came exactly once, with what the queue still has."""
        queue = self._publisher
        while messages := queue.consume(100):
            self.came.extend(message.payload for message in messages)
            queue.ack(messages)
        expected = Counter([*LATE, *(f"load-{number}" for number in range(self.published))])
        assert expected == Counter(self.came)

    def _await(self, predicate: Callable[[], object]) -> None:
        wait_until(lambda: self._errors or predicate(), BOUND)
        assert [] == self._errors

    def _kept(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self._errors.append(error)

    def _consume(self, queue: Queue) -> None:
        while not self._stop.is_set():
            messages = queue.consume(2)
            self.came.extend(message.payload for message in messages)
            queue.ack(messages)

    def _publish(self) -> None:
        while not self._stop.is_set():
            if self.published - len(self.came) > BACKLOG:
                time.sleep(0.002)
                continue
            numbers = range(self.published, self.published + BACKLOG)
            self._publisher.publish_many([f"load-{number}" for number in numbers])
            self.published += BACKLOG


Call = Callable[[], object]


def late_commit(make_service: MakeService, database: TestDatabase) -> Call:
    """A publisher that commits when much that was published after it has been consumed."""
    queue = make_service().queue("jobs")
    if database.engine == "sqlite":
        # There is one writer: a publish cannot stay open while others publish.
        past = datetime.now(UTC) - timedelta(seconds=30)
        return lambda: queue.publish_many([Publication(each, at=past) for each in LATE])

    def operation() -> None:
        engine = create_engine(database.url)
        with engine.begin() as publisher:
            queue.publish_many(LATE, connection=publisher)
            time.sleep(0.5)
        engine.dispose()

    return operation


def released(make_service: MakeService, _: TestDatabase) -> Call:
    """Another consumer gives back what it held since before."""
    queue = make_service().queue("jobs")
    queue.publish_many(LATE)
    held = queue.consume(len(LATE))
    return lambda: queue.release(held)


def restored(make_service: MakeService, _: TestDatabase) -> Call:
    """The lease of a consumer that hangs is over, and the reaper restores what it held."""
    service = make_service()
    queue = service.queue("jobs")
    queue.publish_many(LATE)
    held = queue.consume(len(LATE), lease=0.5)

    def operation() -> None:
        ends_at = held[0].lease_expires_at
        assert ends_at is not None
        wait_until(lambda: datetime.now(UTC) > ends_at, BOUND)
        service.reap()

    return operation


def nacked(make_service: MakeService, _: TestDatabase) -> Call:
    """A failed message that may be tried again at once."""
    queue = make_service().queue("jobs")
    queue.publish_many(LATE)
    held = queue.consume(len(LATE))
    return lambda: queue.nack(held, error="again", delay=0)


def more_urgent(make_service: MakeService, _: TestDatabase) -> Call:
    """Old messages of a level that nobody gets to, put into the level that all work on."""
    queue = make_service().queue("jobs")
    queue.publish_many([Publication(each, priority=1, kind="late") for each in LATE])
    return lambda: queue.messages(kind="late").prioritize(priority=0)


@pytest.mark.threads("the crowd are threads")
@pytest.mark.parametrize("prepare", [late_commit, released, restored, nacked, more_urgent])
def test_late_messages_come_in_time_and_once(
    make_service: MakeService,
    database: TestDatabase,
    prepare: Callable[[MakeService, TestDatabase], Call],
) -> None:
    """However a message gets below the marks, some consumer finds it, and only one."""
    make_service().create_queue("jobs", priorities=2)
    operation = prepare(make_service, database)
    crowd = Crowd(make_service)
    with crowd.at_work():
        operation()
        crowd.await_late()
    crowd.check()
