"""The reaper: what it releases, dead-letters and prunes."""

from __future__ import annotations

import math
import os
import socket
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import column, table, update

from queue_over_sql import FixedDelay
from queue_over_sql.queue import core_of
from queue_over_sql.recovery import recovery
from tests.contract.queue_state import archived, counts, ids, live_rows, payloads, set_columns
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService


consumers = table(
    "queue_over_sql_consumers",
    column("consumer_id"),
    column("heartbeat_at"),
    column("expires_at"),
)


def kill(engine: Engine, service: QueueService) -> None:
    """Make a consumer's row look like that of a dead one."""
    change = update(consumers).where(consumers.c.consumer_id == service.consumer_id)
    with engine.begin() as connection:
        connection.execute(change.values(heartbeat_at=0, expires_at=1))


def test_what_the_dead_held_in_several_queues_counts_together(
    service: QueueService, make_service: MakeService, engine: Engine
) -> None:
    """So none is a dead letter for the death of another. If it is alone, the attempt counts."""
    queues = [service.create_queue(name, max_attempts=2) for name in ("one", "two")]

    def die(*held: Queue) -> list[int]:
        dead = make_service()
        for queue in held:
            (message,) = dead.queue(queue.name).consume()
            set_columns(engine, queue, message.id, attempt_count=message.max_attempts)
        with engine.begin() as connection:
            late = update(consumers).where(consumers.c.consumer_id == dead.consumer_id)
            connection.execute(late.values(heartbeat_at=1, expires_at=2))
        service.reap()
        return [queue.messages().count() for queue in queues]

    for queue in queues:
        queue.publish("x")
    assert [1, 1] == die(*queues)
    reasons = [str(queue.messages().list()[0].last_error) for queue in queues]
    assert [True, True] == [" and 1 other: " in reason for reason in reasons]
    assert [0, 1] == die(queues[0])
    # Whoever has no worker may always hold something beside a suspect.
    queues[0].publish("y")
    assert [1, 0] == die(*queues)


@pytest.fixture
def reaper(make_service: MakeService) -> Iterator[QueueService]:
    """A started service, whose embedded reaper looks often."""
    with make_service(reaper_interval=0.05) as service:
        yield service


@pytest.mark.usefixtures("reaper")
def test_an_expired_lease_comes_back_at_its_old_place(queue: Queue, engine: Engine) -> None:
    """Restored messages keep their due time, so they are first again."""
    queue.publish_many(["a", "b", "c"])
    due = [row[2] for row in live_rows(engine, queue)]
    queue.consume(2, lease=0.05)
    wait_until(lambda: counts(queue) == (3, 0, 0))
    assert due == [row[2] for row in live_rows(engine, queue)]
    again = consume_exactly(queue, 3)
    assert [("a", 2), ("b", 2), ("c", 1)] == [(one.payload, one.attempt) for one in again]


def test_half_a_claim_comes_back(
    queue: Queue,
    engine: Engine,
    service: QueueService,
    make_service: MakeService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody set only some columns of a claim: no consumer got the message, for ever.

    Whole claims stay, and an edit behind the rows of the first look is found by a later one.
    """
    monkeypatch.setattr(recovery, "_EDITED_ROWS", 2)
    published = queue.publish_many(["held", "whole", "no lease", "no round", "free"])
    messages = [each.id for each in published]
    [held] = queue.consume(1)
    assert messages[0] == held.id
    for each in messages[1:4]:
        set_columns(engine, queue, each, consumer_id="somebody")
    whole = {"consumer_id": service.consumer_id, "consumer_round": 99}
    set_columns(engine, queue, messages[1], lease_expires_at=2**53, **whole)
    set_columns(engine, queue, messages[3], lease_expires_at=2**53)
    assert ["free"] == payloads(queue.consume(9))
    assert 2 == make_service().reap().restored
    assert ["no lease", "no round"] == payloads(queue.consume(9))
    held.ack()


def test_what_no_consumer_looks_for_gets_the_last_priority(
    make_service: MakeService, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """A publisher may not know yet that the queue has fewer priorities than before."""
    queue = make_service().create_queue("jobs", priorities=2)
    lost, held, _, taken = queue.publish_many(["lost", "held", "found", "taken"])
    [first] = queue.consume(1)
    assert lost.id == first.id
    first.release()
    queue.messages(where=queue.table.c.id == held.id).hold()
    for each in (lost, held):
        set_columns(engine, queue, each.id, priority=5)
    assert ["found"] == payloads(queue.consume(1))
    [last] = queue.consume(1)
    set_columns(engine, queue, taken.id, priority=5)

    make_service().reap()

    assert "Moved 2 messages" in caplog.text
    assert ["lost"] == payloads(queue.consume(9))
    assert 1 == queue.messages(status="held").unhold()
    assert [("held", 1)] == [(each.payload, each.priority) for each in queue.consume(9)]
    last.ack()


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides it")
def test_a_priority_that_a_reaper_does_not_know_yet_stays(make_service: MakeService) -> None:
    """It has read the settings before somebody gave the queue more priorities."""
    reaping, service = make_service(), make_service()
    core_of(reaping.create_queue("jobs")).context._refresh_after = math.inf
    queue = service.create_queue("jobs", priorities=3)
    queue.publish("relaxed", priority=2)
    reaping.reap()
    assert [2] == [message.priority for message in queue.consume()]


def test_a_short_consume_restores_without_a_reaper(make_service: MakeService) -> None:
    """A deployment without any reaper still makes progress."""
    a = make_service().create_queue("jobs")
    b = make_service(reaper_interval=0.1).queue("jobs")
    a.publish("x")
    a.consume(lease=0.05)
    (message,) = consume_exactly(b, 1)
    assert 2 == message.attempt


@pytest.mark.usefixtures("reaper")
def test_an_extended_lease_does_not_expire(queue: Queue, engine: Engine) -> None:
    """While its holder extends, a message is not given back."""
    queue.publish_many(["extended", "forgotten"])
    extended, forgotten = queue.consume(2, lease=60)
    extended.extend(lease=600)
    # As if two minutes had passed.
    earlier = queue.table.c.lease_expires_at - 120_000_000
    for message in (extended, forgotten):
        set_columns(engine, queue, message.id, lease_expires_at=earlier)
    wait_until(lambda: counts(queue) == (1, 1, 0))
    extended.ack()
    assert ["forgotten"] == payloads(consume_exactly(queue, 1))


@pytest.mark.usefixtures("reaper")
def test_a_poison_message_ends_in_the_archive(service: QueueService) -> None:
    """A message whose every consumer vanishes runs out of attempts, and the archive says why."""
    queue = service.create_queue("jobs", max_attempts=2)
    published = queue.publish("poison")
    for attempt in (1, 2):
        (message,) = consume_exactly(queue, 1)
        assert attempt == message.attempt
        message.extend(lease=0.05)
    wait_until(lambda: counts(queue) == (0, 0, 1))
    (dead,) = archived(queue)
    assert published.id == dead.id
    assert "poison" == dead.payload
    assert 2 == dead.attempt
    assert dead.outcome in {"failed", "expired"}
    assert dead.last_error
    assert dead.finished_at is not None


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_poison_message_ends_without_a_reaper_too(make_service: MakeService) -> None:
    """The consumers themselves bury it, and go on with the next."""
    queue = make_service().create_queue("jobs", max_attempts=1)
    queue.publish("poison")
    queue.consume(lease=0.05)
    other = make_service(reaper_interval=0.1).queue("jobs")
    wait_until(lambda: other.consume() == [] and other.stats().archived == 1)
    other.publish("next")
    assert ["next"] == payloads(consume_exactly(other, 1))


@pytest.mark.default_on("sqlite", "postgresql")
@pytest.mark.usefixtures("reaper")
def test_a_dead_message_without_archive_is_deleted(service: QueueService) -> None:
    """With archive="none" the last attempt ends a message for good."""
    queue = service.create_queue("jobs", max_attempts=1, archive="none")
    queue.publish("poison")
    queue.consume(lease=0.05)
    wait_until(lambda: queue.messages().count() == 0)
    assert (0, 0, 0) == counts(queue)


@pytest.mark.engines("sqlite")
@pytest.mark.usefixtures("reaper")
def test_the_archive_is_pruned_after_its_ttl(service: QueueService) -> None:
    """Archived messages go when their time is up; a queue without a time keeps its own."""
    short = service.create_queue("short", archive="all", archive_ttl=0.05)
    forever = service.create_queue("forever", archive="all")
    for queue in (short, forever):
        queue.publish("x")
        queue.consume()[0].ack()
    assert [] != archived(forever)
    wait_until(lambda: archived(short) == [], timeout=30)
    assert ["x"] == payloads(archived(forever))


@pytest.mark.engines("sqlite")
@pytest.mark.usefixtures("reaper")
def test_a_reaper_serves_queues_created_after_it_started(make_service: MakeService) -> None:
    """Queues that other services create later are looked after too."""
    queue = make_service().create_queue("later")
    queue.publish("x")
    queue.consume(lease=0.05)
    wait_until(lambda: counts(queue) == (1, 0, 0), timeout=8)


@pytest.mark.default_on("sqlite", "postgresql")
def test_several_reapers_restore_once(make_service: MakeService) -> None:
    """Reapers of several services do not count or bury twice."""
    services = [make_service(reaper_interval=0.05) for _ in range(3)]
    for service in services:
        service.start()
    queue = make_service().create_queue("jobs", max_attempts=2)
    published = queue.publish_many(list(range(10)))
    queue.consume(10, lease=0.05)
    wait_until(lambda: counts(queue) == (10, 0, 0))
    again = consume_exactly(queue, 10)
    assert [one.id for one in published] == ids(again)
    assert {2} == {message.attempt for message in again}
    queue.extend(again, lease=0.05)
    wait_until(lambda: counts(queue) == (0, 0, 10))
    assert [one.id for one in published] == ids(archived(queue))


def test_the_messages_of_a_dead_consumer_come_back_apart(
    make_service: MakeService, engine: Engine
) -> None:
    """One of them may have killed it: each is then claimed alone, and keeps its attempts.

    The reason names the consumer, and keeps the last error of a handler with its traceback. A
    message that was alone with a consumer that died has used an attempt for good.
    """
    service = make_service()
    queue = service.create_queue("jobs", retry=FixedDelay(0), max_attempts=2)
    first = queue.publish("failed before", max_attempts=3).id
    (message,) = queue.consume()
    try:
        int("not today")
    except ValueError as error:
        message.nack(error)
    queue.publish_many(range(3))
    once = queue.publish("only once", max_attempts=1).id
    others = queue.publish_many(["a", "b", "c"])
    lost = make_service(consumer_name="lost")
    claimed = lost.queue("jobs").consume(5)
    assert first in ids(claimed)
    kill(engine, lost)
    service.reap()
    assert [once] == ids(archived(queue))

    found = [queue.consume(10) for _ in range(6)]
    # A claim for one shows that no more suspects are at the head.
    assert [1, 1, 1, 1, 1, 2] == [len(each) for each in found]
    innocent = [*found[4], *found[5]]
    assert [other.id for other in others] == ids(innocent)
    suspects = [message for (message, *_) in found[:4]]
    by_id = {message.id: message for message in suspects}
    assert 3 == by_id[first].attempt
    assert 4 == by_id[first].max_attempts
    assert {(2, 3)} == {(m.attempt, m.max_attempts) for m in suspects if m.id != first}
    who = f"lost, process {os.getpid()} on host {socket.gethostname()}"
    died = f"the consumer died while it held the message and 4 others: {who}"
    assert {died} == {m.last_error for m in suspects if m.id != first}
    assert f"{died}\nThe last error before: ValueError: invalid" in str(by_id[first].last_error)
    assert "not today" in str(queue.last_traceback(first))
    queue.ack([*suspects[1:], *innocent])
    suspects[0].release()

    alone = make_service(consumer_name="alone")
    for attempt in (by_id[suspects[0].id].attempt, by_id[suspects[0].id].attempt + 1):
        (message,) = alone.queue("jobs").consume(10)
        assert attempt == message.attempt
        kill(engine, alone)
        service.reap()
        alone = make_service(consumer_name="alone")
    assert 0 == queue.stats().live
    (dead,) = [each for each in archived(queue) if each.id != once]
    assert "out of attempts: the consumer died while it held the message: alone, " in str(
        dead.last_error
    )
    queue.archive.messages().requeue()
    assert 2 == len(queue.consume(10))


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_lease_that_ends_after_its_consumer_fell_silent_is_a_death(
    make_service: MakeService, engine: Engine
) -> None:
    """A short lease ends before the heartbeat is overdue; one of a living consumer just expires."""
    service = make_service()
    queue = service.create_queue("jobs")
    queue.publish_many(range(4))
    alive, silent = make_service(), make_service()
    mine, theirs = alive.queue("jobs").consume(2), silent.queue("jobs").consume(2)
    with engine.begin() as connection:
        # It sends a heartbeat each 10 s, and its last was 20 s ago.
        change = update(consumers).where(consumers.c.consumer_id == silent.consumer_id)
        connection.execute(
            change.values(
                heartbeat_at=consumers.c.heartbeat_at - 20_000_000,
                expires_at=consumers.c.expires_at - 20_000_000,
            )
        )
    for message in (*mine, *theirs):
        set_columns(engine, queue, message.id, lease_expires_at=1)
    service.reap()
    reasons = {message.id: str(message.last_error) for message in queue.messages().list()}
    for message in mine:
        assert "the lease expired before the message was settled" == reasons[message.id]
    for message in theirs:
        assert reasons[message.id].startswith("the consumer died while it held the message and 1")
    assert [2, 1, 1] == [len(queue.consume(10)) for _ in range(3)]
