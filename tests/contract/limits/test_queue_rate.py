"""`queue_rate`: how fast messages of a whole queue start, over all consumers."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine as AnyEngine
from sqlalchemy import event, text

from queue_over_sql import FixedDelay, Publication, Reason
from queue_over_sql.durable.consumer import AdvanceRequest, DurableConsumer
from queue_over_sql.limits import tokens
from queue_over_sql.observability import Level, count_queues, diagnose
from queue_over_sql.queue import core_of
from queue_over_sql.testing import Clock
from tests.contract.queue_state import live_rows, payloads, start_through_steps_of_the_clock
from tests.refusals import refused
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.driver_decides
HALF_HOUR = 1800.0


def rated(service: QueueService, rate: str, count: int = 10, **settings: Any) -> Queue:
    """A queue with a rate and some messages."""
    settings = {"archive": "all", "retry": FixedDelay(0), **settings}
    queue = service.create_queue("jobs", queue_rate=rate, **settings)
    queue.publish_many(range(count))
    return queue


def all_of(queue: Queue, count: int = 10) -> list[Message]:
    """What several claims get: all that may start now."""
    return [message for _ in range(4) for message in queue.consume(count)]


def bounds(engine: Engine) -> list[tuple[Any, ...]]:
    """The rows of the queue's limits."""
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT * FROM queue_jobs_limits ORDER BY slot"))
        return [tuple(row) for row in rows]


@contextlib.contextmanager
def statements() -> Iterator[list[str]]:
    """What is sent to the database, in this process."""
    sent: list[str] = []

    def note(*given: Any) -> None:
        sent.append(given[2])

    event.listen(AnyEngine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(AnyEngine, "before_cursor_execute", note)


@pytest.mark.threads("a testing.Clock is not for event loops")
@pytest.mark.parametrize(
    "groups",
    [{}, {"priorities": 2}, {"group_limit": 1}, {"group_limit": 5, "group_order": "any"}],
    ids=["plain", "priorities", "fifo", "any"],
)
@pytest.mark.parametrize("count", [1, 10])
def test_a_queue_starts_no_more_than_its_rate(
    service: QueueService, groups: dict[str, Any], count: int
) -> None:
    """At first as many as the burst, then one at each interval, oldest first."""
    queue = rated(service, "2/h", 5, **groups)
    clock = Clock(service)
    found = all_of(queue, count)
    assert [0, 1] == payloads(found)
    waiting = queue.messages(status="ready").list()[0].id
    why = queue.why(waiting)
    assert Reason.QUEUE_RATE is why.reason
    assert "Queue jobs has used up its rate of 2/h" in why.text
    assert why.until is not None
    begun = min(message.claimed_at for message in found if message.claimed_at is not None)
    assert timedelta(seconds=HALF_HOUR) <= why.until - begun < timedelta(seconds=HALF_HOUR + 60)
    assert ("2/h", 3) == ((stats := queue.stats()).queue_rate, stats.ready)
    queue.ack(found)
    assert [] == all_of(queue, count)
    clock.advance(HALF_HOUR + 60)
    assert Reason.IN_LINE is queue.why(waiting).reason
    [third] = all_of(queue, count)
    assert 2 == third.payload
    third.ack()
    clock.advance(10 * HALF_HOUR)
    assert [3, 4] == payloads(all_of(queue, count))
    assert [] == queue.consume(count, where=queue.table.c.id > 0)


@pytest.mark.parametrize("groups", [{}, {"group_limit": 1}], ids=["plain", "fifo"])
def test_an_idle_or_exhausted_queue_writes_nothing(
    service: QueueService, engine: Engine, groups: dict[str, Any]
) -> None:
    """It does not lock either: another session may hold the row of the rate."""
    queue = rated(service, "1/day burst 2", 0, **groups)
    assert [] == queue.consume()
    assert [] == queue.consume()
    for exhausted in (False, True):
        before = live_rows(engine, queue), bounds(engine)
        with statements() as sent:
            assert [] == all_of(queue)
            assert [] == queue.consume(5, where=queue.table.c.id > 0)
        writing = ("INSERT", "UPDATE", "DELETE", "BEGIN IMMEDIATE")
        assert [] == [each for each in sent if each.lstrip().startswith(writing)]
        assert [] == [each for each in sent if "FOR UPDATE" in each and "limits" in each]
        assert before == (live_rows(engine, queue), bounds(engine))
        if not exhausted:
            queue.publish_many(range(4))
            assert [0, 1] == payloads(eventually(lambda: all_of(queue), "two"))


def check(taken: Sequence[Message], interval: timedelta, burst: int) -> None:
    """In no time more than the burst and the rate, by the database's own times of the claims."""
    times = sorted(message.claimed_at for message in taken if message.claimed_at is not None)
    assert len(taken) == len(times)
    for place, first in enumerate(times):
        for further, last in enumerate(times[place:], 1):
            assert (further - burst) * interval <= last - first, (first, last, further)


@pytest.mark.threads("it measures threads, or moves a testing.Clock")
@pytest.mark.parametrize(
    "groups",
    [{}, {"group_limit": 1, "group_rate": "10/s burst 2"}, {"queue_limit": 6}],
    ids=["plain", "groups with rates", "limit"],
)
def test_consumers_together_keep_to_the_rate(
    make_service: MakeService, groups: dict[str, Any]
) -> None:
    """Eight at once, with exchanges and retries: no window is above burst and rate."""
    services = [make_service() for _ in range(2)]
    queue = rated(services[0], "40/s burst 4", 0, max_attempts=1000, **groups)
    names = "abcdefgh" if "group_limit" in groups else [None]
    queue.publish_many(Publication(n, group=names[n % len(names)]) for n in range(160))
    taken: list[Message] = []
    lock, ends = threading.Lock(), time.monotonic() + 60

    def consume(mine: Queue, number: int) -> None:
        hand: list[Message] = []
        while len(taken) < 60 and time.monotonic() < ends:
            if hand and number % 2:
                hand = mine.exchange(hand, 1 + number % 3)
            else:
                for message in hand:
                    # In order, a nack takes along those behind it.
                    if message.attempt == 1 and message.group is None:
                        message.nack("again")
                    else:
                        message.ack()
                hand = mine.consume(1 + number % 3, wait=0.2)
            with lock:
                taken.extend(hand)
        for message in hand:
            message.ack()

    with ThreadPoolExecutor(8) as threads:
        queues = [each.queue("jobs") for each in services] * 4
        ended = [threads.submit(consume, each, n) for n, each in enumerate(queues)]
        for done in ended:
            done.result(90)
    assert len(taken) >= 60
    check(taken, timedelta(milliseconds=25), 4)
    if "group_limit" in groups:
        for name in names:
            of_group = [message for message in taken if message.group == name]
            check(of_group, timedelta(milliseconds=100), 2)


@pytest.mark.threads("it measures threads, or moves a testing.Clock")
def test_a_step_of_the_databases_clock_neither_stops_a_rate_nor_lifts_it(
    service: QueueService,
) -> None:
    """An hour ahead gives no more than a burst; back, the next one comes after an interval."""
    queue = rated(service, "60/h burst 2", 10)
    clock = Clock(service)

    def start(count: int) -> None:
        found = all_of(queue, 1)
        assert count == len(found)
        queue.ack(found)
        assert [] == all_of(queue)

    start_through_steps_of_the_clock(service, start, clock)


@pytest.mark.parametrize("groups", [{}, {"group_limit": 5}], ids=["plain", "fifo"])
def test_operators_change_the_rate_at_once(
    service: QueueService, make_service: MakeService, groups: dict[str, Any]
) -> None:
    """Set, raised, lowered and ended by another service; who waits is woken, not asked."""
    queue = service.create_queue("jobs", **groups)
    queue.publish_many(range(40))
    operator = make_service()
    other = make_service().queue("jobs")
    assert 2 == len(queue.consume(2))
    operator.create_queue("jobs", queue_rate="3/day")
    found = eventually(lambda: other.consume(2) + queue.consume(2), "what the rate allows")
    assert len(found) <= 3
    found += all_of(queue) + all_of(other)
    assert 3 == len(found)
    assert "3/day" == operator.queue("jobs").settings.queue_rate
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(queue.consume, 2, wait=30)
        eventually(lambda: core_of(queue).context.arrivals._waiting, "it waits")
        operator.create_queue("jobs", queue_rate=None)
        assert 2 == len(waiting.result(20))
    assert 5 == len(eventually(lambda: other.consume(5), "no rate any more"))
    operator.create_queue("jobs", queue_rate="1/day")
    assert 1 == len(eventually(lambda: all_of(queue) or all_of(other), "the new rate"))
    # What was spent at a slow rate is no debt at a faster one.
    operator.create_queue("jobs", queue_rate="100/s")
    assert 1 <= len(eventually(lambda: other.consume(5), "the faster rate"))


def test_a_consumer_waits_for_the_next_token(service: QueueService) -> None:
    """It comes at that instant, without a news and without many looks."""
    queue = rated(service, "2/s burst 1", 3)
    [first] = queue.consume()
    with statements() as sent:
        [second] = queue.consume(wait=20)
    assert second.claimed_at is not None
    assert first.claimed_at is not None
    assert second.claimed_at - first.claimed_at >= timedelta(milliseconds=500)
    looks = [each for each in sent if "burst" in each]
    assert 1 <= len(looks) <= 8, looks


def test_each_start_spends(service: QueueService) -> None:
    """A retry spends again, and what is given back uncounted has spent: it was started."""
    queue = rated(service, "4/h", 2)
    [first] = queue.consume(1)
    first.nack("no")
    [again] = queue.consume(1)
    again.release()
    [third] = queue.consume(1)
    third.ack()
    assert 1 == len(all_of(queue))
    assert [] == queue.consume()


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
def test_a_take_spends_before_and_holds_nothing(service: QueueService, engine: Engine) -> None:
    """Its tokens are spent although it is rolled back; others go on while it is open."""
    queue = rated(service, "4/h", 10)
    with engine.connect() as caller, caller.begin() as transaction:
        assert [0] == payloads(queue.take(1, connection=caller))
        assert [1, 2] == payloads(queue.consume(2))
        assert [3] == payloads(queue.take(5, connection=caller))
        assert [] == queue.consume(5)
        transaction.rollback()
    assert [] == all_of(queue)
    with engine.begin() as caller:
        assert [] == queue.take(5, connection=caller)


def test_a_take_gives_back_what_it_does_not_use(service: QueueService, engine: Engine) -> None:
    """It spends as many tokens as it gets messages, with groups and without."""
    queue = rated(service, "4/h", 0, group_limit=1)
    queue.publish_many([Publication(n, group="a") for n in range(3)])
    [held] = queue.consume()
    queue.publish("b", group="b")
    with engine.begin() as caller:
        # Those of the group wait for what is in hand.
        assert ["b"] == payloads(queue.take(5, connection=caller))
    held.ack()
    assert [1, 2] == payloads(queue.consume(5))
    queue.publish("c")
    assert [] == all_of(queue)


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
@pytest.mark.threads("what it gives back is the same on an event loop")
def test_a_take_gives_back_no_more_than_it_took(
    make_service: MakeService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though an operator lowers the rate meanwhile, so that a token is worth a day."""
    queue = rated(make_service(), "10/h", 0, group_limit=1)
    other = make_service()
    queue.publish_many([Publication(n, group="a") for n in range(3)])
    [held] = queue.consume()

    def lower_the_rate_first(*arguments: Any, **options: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(other.create_queue, "jobs", queue_rate="1/day burst 10").result(60)
        tokens.give_back(*arguments, **options)

    monkeypatch.setattr("queue_over_sql.claiming.claimer.give_back", lower_the_rate_first)
    with engine.begin() as caller:
        assert [] == queue.take(5, connection=caller)
    held.ack()
    queue.publish_many(range(20))
    assert 9 == len(all_of(queue, 20))


def test_an_exchange_keeps_to_the_rate(service: QueueService) -> None:
    """It settles, and claims what the rate leaves."""
    queue = rated(service, "4/h", 10)
    hand = queue.consume(3)
    hand = queue.exchange(hand, 3)
    assert [3] == payloads(hand)
    assert [] == queue.exchange(hand, 3)
    assert (6, 4) == ((stats := queue.stats()).ready, stats.done)


@pytest.mark.threads("the worker of an event loop has a test of its own kind")
def test_another_queue_is_not_starved(service: QueueService) -> None:
    """One worker of both goes on with the other one, and claims nothing ahead of the rate."""
    rated(service, "1/day burst 3", 20)
    service.create_queue("others").publish_many(range(50))
    worker, done = service.worker(concurrency=2), dict[str, int](jobs=0, others=0)

    @worker.handle("jobs")
    def job(message: Message) -> None:
        done[message.queue] += 1

    @worker.handle("others")
    def other(message: Message) -> None:
        done[message.queue] += 1

    worker.run(until_empty=True)
    # What a slow machine gives back unbegun has spent its token.
    assert (50, True) == (done["others"], 1 <= done["jobs"] <= 3)
    assert 20 - done["jobs"] == service.queue("jobs").stats().ready


@pytest.mark.threads("a streaming engine reads by threads and processes")
@pytest.mark.parametrize("groups", [{}, {"group_limit": 9}], ids=["plain", "fifo"])
def test_rounds_keep_to_the_rate(service: QueueService, groups: dict[str, Any]) -> None:
    """Those of durable consumers claim as many messages as there are tokens."""
    queue = rated(service, "3/h", 8, **groups)
    consumer = DurableConsumer(queue, "stream", owner="test")
    opened = consumer.advance(consumer.take_over(), AdvanceRequest(10, 1))
    assert 3 == consumer.outstanding()
    # It ends what the first one had, and there is no token for another message.
    consumer.advance(opened, AdvanceRequest(10, 1))
    assert 0 == consumer.outstanding()
    assert [] == queue.consume(5)


def test_limit_and_rate_hold_together(
    service: QueueService, make_service: MakeService, engine: Engine
) -> None:
    """What the limit stops has spent nothing; each may be turned off alone."""
    queue = rated(service, "4/h", 10, queue_limit=2)
    hand = queue.consume(5)
    assert 2 == len(hand)
    assert [] == queue.consume(5)
    waiting = queue.messages(status="ready").list()[0].id
    assert Reason.QUEUE_LIMIT is queue.why(waiting).reason
    queue.ack(hand)
    assert 2 == len(queue.consume(5))
    assert [0, 1, 2] == [row[0] for row in bounds(engine)]
    operator = make_service()
    operator.create_queue("jobs", queue_limit=None)
    assert [0] == [row[0] for row in bounds(engine)]
    assert [] == all_of(queue)
    waiting = queue.messages(status="ready").list()[0].id
    assert Reason.QUEUE_RATE is queue.why(waiting).reason
    operator.create_queue("jobs", queue_limit=4, queue_rate=None)
    assert [1, 2, 3, 4] == [row[0] for row in bounds(engine) if row[0] >= 0]
    assert 2 == len(eventually(lambda: queue.consume(5), "what the limit leaves"))


@pytest.mark.threads("the doctor looks from outside, by a service of its own")
def test_the_reaper_brings_back_a_deleted_rate(
    service: QueueService, make_service: MakeService, engine: Engine
) -> None:
    """Without its row nobody claims, which the doctor says."""
    queue = rated(service, "3/h")
    assert "3/h" == count_queues(service)["jobs"].queue_rate
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM queue_jobs_limits"))
    assert [] == queue.consume(5)
    [found] = [each for each in diagnose(service) if "queue_rate is gone" in each.text]
    assert Level.WARNING is found.level
    make_service().reap()
    assert [] == [each for each in diagnose(service) if "queue_rate is gone" in each.text]
    assert 3 == len(queue.consume(5))


def test_settings_that_are_no_rate_are_refused(service: QueueService) -> None:
    """The form is that of groups' rates; a rate alone fills nothing up."""
    with refused("queue_rate", TypeError, ValueError):
        service.create_queue("jobs", queue_rate="fast")
    with refused("when_full", ValueError, match="has none"):
        service.create_queue("jobs", queue_rate="1/s", when_full="reject")
