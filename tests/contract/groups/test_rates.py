"""Rates of groups: how fast their messages start, over all consumers."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select, update

from queue_over_sql import FixedDelay, GroupState, Publication, Reason
from queue_over_sql.queue import core_of
from queue_over_sql.testing import Clock
from tests.contract.queue_state import start_through_steps_of_the_clock
from tests.refusals import refused
from tests.waiting import consume_exactly, eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

HALF_HOUR = 1800.0
FIFO: dict[str, Any] = {"group_limit": 1}
SEVERAL: dict[str, Any] = {"group_limit": 5}
ANY: dict[str, Any] = {}
FAIR: dict[str, Any] = {"group_fair": True}


def publish(queue: Queue, groups: Iterable[str | None]) -> list[int]:
    """Publish a message for each name, in one transaction; returns their ids."""
    made = queue.publish_many([Publication(n, group=group) for n, group in enumerate(groups)])
    return [each.id for each in made]


def ids_of(messages: Iterable[Message]) -> list[int]:
    """The ids, in this order."""
    return [message.id for message in messages]


def all_of(queue: Queue, count: int = 10) -> list[Message]:
    """What several claims get: all that may start now."""
    return [message for _ in range(4) for message in queue.consume(count)]


def in_claim_index(queue: Queue, engine: Engine) -> int:
    """How many messages a claim could meet now or later."""
    live = core_of(queue).context.tables.live
    waiting = select(live.c.id).where(live.c.consumer_id.is_(None), live.c.available_at > 0)
    with engine.connect() as connection:
        return len(connection.execute(waiting).all())


@pytest.mark.threads
@pytest.mark.parametrize(
    "settings", [FIFO, SEVERAL, ANY, FAIR], ids=["fifo", "several", "any", "fair"]
)
@pytest.mark.parametrize("count", [1, 10])
def test_a_group_starts_no_more_than_its_rate(
    service: QueueService, engine: Engine, settings: dict[str, Any], count: int
) -> None:
    """At first as many as the burst, then one at each interval, in order; other groups go on."""
    queue = service.create_queue("jobs", group_rate="2/h", **settings)
    clock = Clock(service)
    a1, a2, a3, a4, a5, b1, none = publish(queue, ["a", "a", "a", "a", "a", "b", None])
    found = all_of(queue, count)
    # In a FIFO group with the limit 1 the second one waits for the first.
    more = found
    while more:
        queue.ack(more)
        more = all_of(queue, count)
        found += more
    assert sorted([a1, a2, b1, none]) == sorted(ids_of(found))
    assert [] == all_of(queue, count)
    # What takes no room in a window is not parked so soon.
    assert 1 <= in_claim_index(queue, engine) <= (1 if count == 1 else 3)
    why = queue.why(a3)
    assert Reason.GROUP_RATE is why.reason
    assert "group 'a' has used up its rate of 2/h" in why.text
    assert why.until is not None
    begun = min(message.claimed_at for message in found if message.claimed_at is not None)
    assert timedelta(seconds=HALF_HOUR) <= why.until - begun < timedelta(seconds=2 * HALF_HOUR)
    info = queue.groups["a"].info()
    assert (GroupState.THROTTLED, why.until) == (info.state, info.next_token)
    assert ("2/h", None) == (info.rate, info.own_rate)
    assert (3, 0) == ((stats := queue.stats()).ready, stats.delayed)
    clock.advance(HALF_HOUR + 1)
    [third] = all_of(queue, count)
    assert a3 == third.id
    third.ack()
    clock.advance(10 * HALF_HOUR)
    last = all_of(queue, count)
    while len(last) < 2:
        last[-1].ack()
        last += all_of(queue, count)
    assert [a4, a5] == ids_of(last)


@pytest.mark.parametrize("settings", [FIFO, ANY, FAIR], ids=["fifo", "any", "fair"])
def test_an_exhausted_group_keeps_nobody_from_others(
    service: QueueService, engine: Engine, settings: dict[str, Any]
) -> None:
    """Its backlog leaves the way of claims, so that these get others' messages one by one."""
    queue = service.create_queue("jobs", group_rate="1/h", **settings)
    publish(queue, ["a"] * 600)
    for message in all_of(queue):
        message.ack()
    for name in ("b", "c", "d"):
        [mine] = publish(queue, [name])
        assert [mine] == ids_of(queue.consume(1))
    publish(queue, ["a"] * 5)
    assert [] == all_of(queue, 1)
    assert 1 <= in_claim_index(queue, engine) <= 50
    assert 604 == queue.stats().ready


def check(taken: Sequence[Message], interval: timedelta, burst: int) -> None:
    """In no time more than the burst and the rate, by the database's own times of the claims."""
    times = sorted(message.claimed_at for message in taken if message.claimed_at is not None)
    assert len(taken) == len(times)
    for place, first in enumerate(times):
        for further, last in enumerate(times[place:], 1):
            assert (further - burst) * interval <= last - first, (first, last, further)


@pytest.mark.threads
@pytest.mark.parametrize(
    ("settings", "count"),
    [(FIFO, 3), (ANY, 1), (SEVERAL, 2), (FAIR, 2)],
    ids=["fifo", "any", "several", "fair"],
)
def test_consumers_together_keep_to_the_rate(
    make_service: MakeService, settings: dict[str, Any], count: int
) -> None:
    """Eight at once: no window is above burst and rate, and each group has a budget of its own."""
    services = [make_service() for _ in range(2)]
    queue = services[0].create_queue("jobs", group_rate="20/s burst 3", **settings)
    queue.groups["fast"].configure(rate="40/s burst 5")
    queue.groups["free"].configure(rate="unlimited")
    publish(queue, ["slow", "fast", "free"] * 150)
    taken: list[Message] = []
    lock, ends = threading.Lock(), time.monotonic() + 30

    def of(name: str) -> list[Message]:
        with lock:
            return [each for each in taken if each.group == name]

    def consume(mine: Queue) -> None:
        # Both use their rates: no budget is another one's, and nothing stops.
        while time.monotonic() < ends and (len(of("slow")) < 12 or len(of("fast")) < 20):
            messages = mine.consume(count, wait=0.1)
            with lock:
                taken.extend(messages)
            for message in messages:
                message.ack()

    with ThreadPoolExecutor(8) as threads:
        queues = [each.queue("jobs") for each in services] * 4
        for done in [threads.submit(consume, each) for each in queues]:
            done.result()
    assert time.monotonic() < ends, (len(of("slow")), len(of("fast")), len(of("free")))
    assert len({message.id for message in taken}) == len(taken)
    check(of("slow"), timedelta(milliseconds=50), 3)
    check(of("fast"), timedelta(milliseconds=25), 5)


@pytest.mark.threads
def test_a_step_of_the_databases_clock_neither_stops_a_rate_nor_lifts_it(
    service: QueueService,
) -> None:
    """An hour ahead gives no more than a burst; back, the next one comes after an interval."""
    queue = service.create_queue("jobs", group_rate="60/h burst 2")
    clock = Clock(service)
    ids = publish(queue, ["a"] * 10)

    def start(count: int) -> None:
        found = all_of(queue, 1)
        assert ids[:count] == ids_of(found)
        queue.ack(found)
        del ids[:count]
        assert [] == all_of(queue)

    start_through_steps_of_the_clock(service, start, clock)


@pytest.mark.parametrize("settings", [FIFO, ANY, FAIR], ids=["fifo", "any", "fair"])
def test_operators_change_rates_at_once(
    service: QueueService, make_service: MakeService, settings: dict[str, Any]
) -> None:
    """Of one group and of the queue; what waited for the earlier rate does not wait for it."""
    queue = service.create_queue("jobs", **settings | {"group_limit": 5})
    operator = make_service()
    ids = publish(queue, ["a"] * 40)

    def starts(count: int) -> None:
        found = all_of(queue, 1)
        assert ids[:count] == ids_of(found)
        del ids[:count]
        for message in found:
            message.ack()
        assert count >= 4 or [] == all_of(queue)

    starts(4)
    operator.queue("jobs").groups["a"].configure(rate="2/day")
    starts(2)
    operator.queue("jobs").groups["a"].configure(rate="unlimited")
    starts(4)
    operator.create_queue("jobs", group_rate="1/day")
    starts(4)
    operator.queue("jobs").groups["a"].configure(rate=None)
    # The bucket of the queue's rate, after that of the group.
    assert [] == all_of(queue) or ids.pop(0)
    group = operator.queue("jobs").groups["a"]
    assert ("1/day", None) == ((info := group.info()).rate, info.own_rate)
    operator.create_queue("jobs", group_rate="3/day")
    assert "3/day" == group.info().rate
    operator.create_queue("jobs", group_rate=None)
    starts(4)
    assert None is group.info().rate


def test_a_retry_spends_again(service: QueueService) -> None:
    """And what is given back uncounted has spent, too: it was started."""
    queue = service.create_queue("jobs", group_rate="4/h", group_limit=1, retry=FixedDelay(0))
    a1, a2 = publish(queue, ["a", "a"])
    [first] = queue.consume(1)
    first.nack("no")
    [again] = eventually(lambda: queue.consume(1), "the retry")
    again.release()
    [third] = eventually(lambda: queue.consume(1), "what was given back")
    assert (a1, 2) == (third.id, third.attempt)
    third.ack()
    assert [a2] == ids_of(queue.consume(5))
    publish(queue, ["a"])
    assert [] == all_of(queue)


@pytest.mark.parametrize("settings", [FIFO, ANY, FAIR], ids=["fifo", "any", "fair"])
def test_a_take_spends_in_the_callers_transaction(
    service: QueueService, engine: Engine, settings: dict[str, Any]
) -> None:
    """What is rolled back has not spent; an exhausted group gives nothing to it."""
    queue = service.create_queue("jobs", group_rate="2/h", **settings)
    queue.groups["own"].configure(rate="1/h")
    ids = publish(queue, ["a", "a", "a", "own", "own", None])
    for _ in range(2):
        with engine.connect() as caller, caller.begin() as transaction:
            assert sorted([*ids[:2], ids[3], ids[5]]) == sorted(
                ids_of(queue.take(10, connection=caller))
            )
            transaction.rollback()
    with engine.begin() as caller:
        assert 4 == len(queue.take(10, connection=caller))
    with engine.begin() as caller:
        assert [] == queue.take(10, connection=caller)
    assert [] == all_of(queue)


def test_an_exchange_keeps_to_the_rate(service: QueueService) -> None:
    """It gets what its ack sets free, while there are tokens."""
    queue = service.create_queue("jobs", group_rate="2/h", group_limit=1)
    a1, a2, _, b1 = publish(queue, ["a", "a", "a", "b"])
    batch = queue.consume(1)
    assert [a1] == ids_of(batch)
    found = list[int]()
    while batch := queue.exchange(batch, 4):
        found += ids_of(batch)
    assert sorted([a2, b1]) == sorted(found)


def test_a_rate_alone_turns_groups_on(service: QueueService, make_service: MakeService) -> None:
    """Then any number of a group is in hand, in any order; groups cannot be lost beside it."""
    queue = make_service().create_queue("jobs", group_rate=" 100 / minute ")
    settings = queue.settings
    assert ("100/min", "any", 2**31 - 1) == (
        settings.group_rate,
        settings.group_order,
        settings.group_limit,
    )
    lines = service.create_queue("lines", group_rate="5/s", group_limit=1)
    assert "fifo" == lines.settings.group_order
    with pytest.raises(ValueError, match="group_rate needs groups"):
        make_service().create_queue("jobs", group_limit=None)
    with pytest.raises(ValueError, match="group_rate: 'fast' is not a rate"):
        service.create_queue("jobs", group_rate="fast")
    group = lines.groups["a"]
    with refused("rate", ValueError, match="not a rate"):
        group.configure(rate="fast")
    with pytest.raises(ValueError, match="a limit, a rate or a weight"):
        group.configure()


@pytest.mark.threads
def test_the_reaper_finds_no_fault_with_what_waits_for_a_token(
    service: QueueService, engine: Engine
) -> None:
    """It repairs only groups that nobody would wake; who waits for a token is woken by time."""
    queue = service.create_queue("jobs", group_rate="1/h")
    clock = Clock(service)
    a1, a2, _ = publish(queue, ["a", "a", "a"])
    [first] = all_of(queue, 1)
    first.ack()
    assert [] == all_of(queue, 1)
    assert (a1, 0) == (first.id, service.reap().repaired)
    # As if somebody had removed what the others wait behind.
    live = core_of(queue).context.tables.live
    with engine.begin() as connection:
        connection.execute(live.delete().where(live.c.id == a2))
        connection.execute(update(live).values(blocks=None))
    assert 1 == service.reap().repaired
    clock.advance(3601)
    assert 1 == len(all_of(queue))


@pytest.mark.threads
def test_what_was_put_off_starts_as_new_once_the_rate_is_gone(service: QueueService) -> None:
    """A retry of it waits for its own time, and what is acked does not come again."""
    jobs = service.create_queue("jobs", group_limit=1, group_order="any", group_rate="2/hour")
    clock = Clock(service)
    publish(jobs, "xxx")
    for _ in range(2):
        jobs.ack(consume_exactly(jobs, 1))
    c = jobs.table.c
    eventually(
        lambda: not jobs.consume(1) and bool(jobs.messages(where=c.parked_at > 0).count()),
        "it is put off",
    )
    service.create_queue("jobs", group_rate=None)
    clock.advance(HALF_HOUR + 1)
    [message] = jobs.consume(1)
    assert 0 == jobs.messages(where=c.parked_at > 0).count()
    message.nack("later", delay=3600)
    assert [] == jobs.consume(1)
