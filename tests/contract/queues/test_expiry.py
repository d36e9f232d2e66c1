"""Expiry: what nobody started in time ends, however it is found, and nothing else does."""

from __future__ import annotations

import dataclasses
import json
import logging
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from queue_over_sql import Observer, Publication, Reason
from queue_over_sql.observability.history import Minute
from queue_over_sql.queue import core_of
from queue_over_sql.values.limits import HISTORY_COUNTS
from tests.contract.durable.queries import Query
from tests.contract.queue_state import archived, counts, ids, outcomes, payloads, set_columns
from tests.contract.worker.running_worker import running
from tests.refusals import refused
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.driver_decides

LONG = 3600
REASON = "expired: not started within 1 h"


def lapse(engine: Engine, queue: Queue, *lapsed: int) -> None:
    """Let the expiry of messages have passed, as if they had been published an hour earlier."""
    for message in queue.messages().list():
        if message.id in lapsed:
            assert message.expires_at is not None
            published = int(message.published_at.timestamp() * 1_000_000) - LONG * 1_000_000
            set_columns(
                engine,
                queue,
                message.id,
                published_at=published,
                expires_at=published + LONG * 1_000_000,
            )


def test_a_claim_ends_what_expired_and_finds_what_lies_behind(queue: Queue, engine: Engine) -> None:
    """A message that was not started in time becomes a dead letter, frees its key, hides nobody."""
    late = [queue.publish(f"late {n}", expires=LONG, key=f"k{n}").id for n in range(3)]
    queue.publish("in time", expires=LONG)
    queue.publish("for ever")
    lapse(engine, queue, *late)
    assert ["in time"] == payloads(queue.consume(1))
    assert ["for ever"] == payloads(queue.consume(5))
    assert ["expired"] * 3 == outcomes(queue)
    assert {REASON} == {message.last_error for message in archived(queue)}
    assert 3 == queue.stats().expired
    again = queue.publish("again", key="k0")
    assert again.id not in late


def test_only_the_first_start_can_come_too_late(queue: Queue, engine: Engine) -> None:
    """A retry does not expire; a message that was given back uncounted was not started."""
    made = [queue.publish(name, expires=LONG).id for name in ("retried", "released")]
    retried, released = queue.consume(2)
    retried.nack("later", delay=0)
    released.release()
    lapse(engine, queue, *made)
    assert ["retried"] == payloads(queue.consume(5))
    assert ["expired"] == outcomes(queue)


def test_a_take_and_an_exchange_end_what_expired(queue: Queue, engine: Engine) -> None:
    """Each way to get messages ends those that come too late, and returns the others."""
    late = queue.publish("late", expires=LONG).id
    queue.publish("first")
    lapse(engine, queue, late)
    with engine.begin() as connection:
        assert ["first"] == payloads(queue.take(2, connection=connection))
    assert ["expired"] == outcomes(queue)
    queue.publish("held")
    held = queue.consume(1)
    late = queue.publish("late", expires=LONG).id
    queue.publish("second")
    lapse(engine, queue, late)
    assert ["second"] == payloads(queue.exchange(held, 1))
    assert ["expired"] * 2 == outcomes(queue)


@pytest.mark.engines("sqlite")
def test_no_expiry_is_later_than_a_time_can_be(make_service: MakeService) -> None:
    """A message that is due at the end of all times can be read, asked for, and exported."""
    queue = make_service().create_queue("far", expires="1h", archive="all")
    end = datetime.max.replace(tzinfo=UTC)
    far = [queue.publish("one", at=end, expires="1h"), queue.publish("own", at=end)]
    far += queue.publish_many([Publication("many", at=end, expires="1h")])
    for each in far:
        assert Reason.DUE_LATER is queue.why(each.id).reason
        found = next(m for m in queue.messages().list() if m.id == each.id)
        assert end == found.expires_at
        assert queue.cancel(each.id)
    assert 3 == len(queue.archive.messages().list())


def test_what_expires_between_its_claim_and_its_start_is_not_started(
    queue: Queue, service: QueueService
) -> None:
    """A message that was claimed ahead ends if its time passes before its turn comes."""
    for name in ("first", "second", "third"):
        queue.publish(name, expires=0.5 if name == "second" else LONG)
    stream = queue.stream(prefetch=3)
    first = next(stream)
    second = list(queue.messages(status="claimed").list())[1]
    assert "second" == second.payload
    clock, expires_at = service.create_queue("clock"), second.expires_at
    assert expires_at is not None

    def has_passed() -> bool:
        clock.publish("tick")
        return list(clock.messages().list())[-1].published_at > expires_at

    wait_until(has_passed)
    first.ack()
    third = next(stream)
    assert "third" == third.payload
    third.ack()
    stream.close()
    assert ["expired"] == outcomes(queue)


def test_a_worker_starts_nothing_that_expired(
    queue: Queue, make_service: MakeService, engine: Engine
) -> None:
    """The handler is called with the others only."""
    late = queue.publish("late", expires=LONG).id
    queue.publish("in time", expires=LONG)
    lapse(engine, queue, late)
    worker, seen = make_service().worker(concurrency=1, poll_interval=(0.01, 0.05)), list[str]()

    @worker.handle(queue.name)
    def handle(message: Message) -> None:
        seen.append(message.payload)

    with running(worker):
        wait_until(lambda: queue.stats().live == 0)
    assert ["in time"] == seen
    assert ["expired"] == outcomes(queue)


def test_the_reaper_ends_what_nobody_claims(
    queue: Queue, service: QueueService, engine: Engine
) -> None:
    """Unclaimed messages end while nobody consumes; claimed, held and retried ones stay."""
    names = ("late", "claimed", "held", "retried", "in time")
    by_name = {name: queue.publish(name, expires=LONG).id for name in names}
    for message in queue.consume(5):
        if message.payload == "retried":
            message.nack("later", delay=0)
        elif message.payload != "claimed":
            message.release()
    queue.messages(where=queue.table.c.id == by_name["held"]).hold()
    lapse(engine, queue, *(by_name[name] for name in names[:4]))
    service.reap()
    assert ["expired"] == outcomes(queue)
    assert REASON == archived(queue)[0].last_error
    assert (2, 1, 1) == counts(queue)
    assert 1 == queue.stats().held


def test_without_an_archive_they_count_as_discarded(service: QueueService, engine: Engine) -> None:
    """Their number stays known if the queue keeps no dead letters."""
    queue = service.create_queue("gone", archive="none")
    made = [queue.publish(n, expires=LONG).id for n in range(2)]
    lapse(engine, queue, made[0])
    assert [1] == payloads(queue.consume(1))
    assert 1 == queue.stats().discarded
    later = queue.publish(3, expires=LONG).id
    lapse(engine, queue, later)
    service.reap()
    assert 2 == queue.stats().discarded


@pytest.mark.engines("sqlite")
def test_an_expiry_in_a_queue_that_ends_by_itself_is_no_error(
    service: QueueService, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Else Sentry hears of each of Celery's events that a killed monitor does not fetch."""
    caplog.set_level(logging.DEBUG, "queue_over_sql")
    queues = {
        service.create_queue("stays", archive="none"): logging.ERROR,
        service.create_queue("unused", archive="none", unused_for=60): logging.DEBUG,
        service.create_queue("mine", temporary=True): logging.DEBUG,
    }
    for queue, level in queues.items():
        for find in (partial(queue.consume, 1), service.reap):
            lapse(engine, queue, queue.publish("late", expires=LONG).id)
            caplog.clear()
            find()
            said = [each for each in caplog.records if REASON in each.getMessage()]
            assert {level} == {each.levelno for each in said}


def test_every_way_to_publish_takes_an_expiry(service: QueueService) -> None:
    """By the database's clock from the publish; the queue has a default."""
    queue = service.create_queue("jobs", expires=timedelta(hours=2))
    queue.publish("usual")
    queue.publish("own", expires=60)
    queue.publish("keyed", key="k", expires=60)
    queue.publish_many(["many", Publication("own of many", expires=60)])
    queue.load([Publication("loaded", expires=60), Publication("usually loaded")])
    topic = service.create_topic("news")
    topic.subscribe("jobs", "#")
    topic.publish("told", routing_key="a", expires=60)
    waits = {
        message.payload: (message.expires_at - message.published_at).total_seconds()
        for message in queue.messages().list()
        if message.expires_at is not None
    }
    assert {
        "usual": 7200.0,
        "own": 60.0,
        "keyed": 60.0,
        "many": 7200.0,
        "own of many": 60.0,
        "loaded": 60.0,
        "usually loaded": 7200.0,
        "told": 60.0,
    } == waits


def test_an_expiry_counts_from_the_time_at_which_it_is_due(service: QueueService) -> None:
    """Or it would end before it may begin; a time that has passed counts for nothing."""
    queue = service.create_queue("jobs")
    later, passed = datetime.now(UTC) + timedelta(days=1), datetime.now(UTC) - timedelta(days=1)
    for at in (later, passed):
        one = Publication("single", expires=60, at=at)
        queue.publish("single", expires=60, at=at)
        queue.publish("old", key=f"k{at}")
        queue.publish("replaced", key=f"k{at}", expires=60, at=at, on_conflict="replace")
        queue.publish_many([dataclasses.replace(one, payload="many")])
        queue.publish_many([dataclasses.replace(one, payload="keyed", key=f"m{at}")])
        queue.load([dataclasses.replace(one, payload="loaded")])
    queue.publish_many([Publication("delayed", key="d", delay=30, expires=60)])
    found = queue.messages().list()
    assert 11 == len(found)
    for message in found:
        due = message.payload != "delayed" and message.scheduled_at > message.published_at
        begins = message.scheduled_at if due else message.published_at
        assert message.expires_at is not None
        # A replaced message keeps the time of its first publish.
        assert 59 < (message.expires_at - begins).total_seconds() < 65


def test_a_new_life_has_an_expiry_of_its_own(queue: Queue, engine: Engine) -> None:
    """A replacement has its own or none, a requeued one none, an edited one keeps it."""
    queue.publish("old", key="k", expires=60)
    queue.publish("new", key="k", on_conflict="replace")
    assert next(iter(queue.messages().list())).expires_at is None
    queue.publish("new", key="k", expires=60, on_conflict="replace")
    kept = next(iter(queue.messages().list())).expires_at
    assert kept is not None
    queue.messages(key="k").reschedule(delay=0)
    assert kept == next(iter(queue.messages().list())).expires_at
    queue.purge()
    late = queue.publish("late", expires=LONG).id
    lapse(engine, queue, late)
    assert [] == queue.consume(1)
    assert 1 == queue.archive.messages().requeue()
    assert [None] == [message.expires_at for message in queue.messages().list()]
    assert ["late"] == payloads(queue.consume(1))


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_a_message_that_could_never_start_is_refused(service: QueueService) -> None:
    """A delay that is not below the expiry is a mistake of the publisher."""
    queue = service.create_queue("jobs", expires=60)
    wrong: list[dict[str, Any]] = [
        {"expires": 10, "delay": 10},
        {"delay": 61},
        {"expires": 0},
        {"expires": -1},
    ]
    for given in wrong:
        with refused(given, ValueError):
            queue.publish("x", **given)
    queue.publish("x", expires=100, delay=61)


@pytest.mark.threads("the claim alone has no public name")
def test_a_consumer_that_died_before_it_ended_them_loses_nothing(
    queue: Queue, make_service: MakeService, engine: Engine
) -> None:
    """What was claimed and not ended comes back with its lease, as a claim that was begun."""
    late = queue.publish("late", expires=LONG).id
    lapse(engine, queue, late)
    rows = core_of(queue).claimer.claim(1, 60)
    assert [late] == [row.id for row in rows]
    set_columns(engine, queue, late, lease_expires_at=1)
    other = make_service()
    other.reap()
    again = other.queue(queue.name).consume(1)
    assert ["late"] == payloads(again)
    assert 2 == again[0].attempt


@pytest.mark.threads("durable consumers have no other face")
@pytest.mark.parametrize("apart", [False, True])
def test_a_round_of_a_durable_consumer_holds_none(
    make_service: MakeService, engine: Engine, apart: bool
) -> None:
    """They end when the round is claimed, under its fence, and the round has the others."""
    told = Told()
    queue = make_service(observer=told).create_queue("jobs")
    late = queue.publish("late", expires=LONG).id
    queue.publish("in time", expires=LONG)
    lapse(engine, queue, late)
    query = Query(queue, apart=apart)
    (opened,) = query.plan()
    assert ["in time"] == query.read(opened)
    assert ["expired"] == outcomes(queue)
    assert [("expired", 1)] == told.ended
    assert [REASON] == told.dead
    query.consumer.ack(opened.consumer_round)
    assert 0 == queue.stats().live


@pytest.mark.threads("durable consumers have no other face")
@pytest.mark.parametrize("apart", [False, True])
def test_rounds_go_past_what_expired(queue: Queue, engine: Engine, apart: bool) -> None:
    """If whole rounds expired, the message behind them is read all the same."""
    late = [queue.publish(f"late {n}", expires=LONG).id for n in range(5)]
    queue.publish("in time", expires=LONG)
    lapse(engine, queue, *late)
    query, read = Query(queue, apart=apart), list[Any]()
    while parts := query.batch(most=2, each=1):
        read += [payload for part in parts for payload in part]
    assert ["in time"] == read
    assert ["expired"] * 5 == outcomes(queue)


@pytest.mark.engines("postgresql")
@pytest.mark.threads("columns are taken by threads")
def test_columns_are_not_taken_past_an_expiry(queue: Queue, engine: Engine) -> None:
    """The fast way takes no message that may expire; ``take`` does, and ends what expired."""
    late = queue.publish("late", expires=LONG).id
    queue.publish("in time")
    lapse(engine, queue, late)
    core = core_of(queue)
    # As in a process that has not read the queue's record again.
    core.context.expiring = False
    with engine.begin() as connection:
        taken = core.take_columns(5, connection)
    assert taken is not None
    assert 1 == sum(batch.num_rows for batch in taken)
    assert [late] == ids(queue.messages().list())
    core.context.refresh()
    with engine.begin() as connection:
        assert core.take_columns(5, connection) is None
        assert [] == queue.take(5, connection=connection)
    assert ["expired"] == outcomes(queue)


def test_an_earlier_release_is_refused_once_messages_expire(
    queue: Queue, service: QueueService, engine: Engine
) -> None:
    """It would start them, however late; a queue without expiries stays open to it."""
    service.create_queue("others").publish("for ever")
    queue.publish("x", expires=LONG)
    queue.publish_many([Publication("y", expires=LONG)])
    with engine.connect() as connection:
        found = connection.execute(
            text("SELECT name, schema_release, expiring_since FROM queue_over_sql_queues")
        ).all()
    said = {row[0]: (json.loads(row[1])["oldest"], row[2] is not None) for row in found}
    assert {queue.name: (3, True), "others": (1, False)} == said


class Told(Observer):
    """Notes what observers hear of the ends of messages."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, int]] = []
        self.dead: list[str | None] = []

    def settled(self, queue: str, outcome: str, ids: Sequence[int]) -> None:
        """Note it."""
        del queue
        self.ended.append((outcome, len(ids)))

    def dead_lettered(self, queue: str, ids: Sequence[int], reason: str | None) -> None:
        """Note it."""
        del queue, ids
        self.dead.append(reason)


@pytest.mark.engines("sqlite")
def test_observers_hear_of_it(make_service: MakeService, engine: Engine) -> None:
    """From the claim and from the reaper alike; the history has a count for it."""
    told = Told()
    service = make_service(observer=told)
    queue = service.create_queue("jobs")
    for _ in range(2):
        lapse(engine, queue, queue.publish("late", expires=LONG).id)
        assert [] == queue.consume(1)
        lapse(engine, queue, queue.publish("late", expires=LONG).id)
        service.reap()
    assert [("expired", 1)] * 4 == told.ended
    assert [REASON] * 4 == told.dead
    assert "expired" in HISTORY_COUNTS
    assert 0 == Minute("jobs", datetime.now(UTC)).expired
