"""Messages of abandoned durable consumers: expiry, release and drop."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, select, text

from queue_over_sql import ConsumerFenced, ConsumerNotFound, RoundsGone
from queue_over_sql.service import parts_of
from tests.contract.durable.queries import Query
from tests.contract.queue_state import counts
from tests.refusals import refused
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import ConsumerInfo, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.threads("a streaming engine reads by threads and processes")

NEWER_COLUMNS = (
    "durable",
    "table_prefix",
    "queue",
    "epoch",
    "claimed_round",
    "acked_round",
    "owner",
)


def durable(service: QueueService) -> ConsumerInfo:
    """The one durable consumer."""
    (found,) = (consumer for consumer in service.consumers() if consumer.durable)
    return found


def seals(service: QueueService) -> int:
    """How many rounds are noted."""
    rounds = service._parts.system().rounds
    count = select(func.count()).select_from(rounds)
    return int(service._parts.connections.run(lambda c: c.execute(count).scalar_one()))


def expire(service: QueueService, engine: Engine) -> None:
    """Let the durable consumer not have been heard of for its timeout."""
    consumers = service._parts.system().consumers
    with engine.begin() as connection:
        connection.execute(consumers.update().where(consumers.c.durable == 1).values(expires_at=1))


def test_it_is_listed(service: QueueService, queue: Queue) -> None:
    """With its queue, its rounds and who has it."""
    queue.publish_many(range(5))
    query = Query(queue, timeout=7200.0)
    query.batch(most=1)
    query.batch(each=2)
    found = durable(service)
    assert "query" == found.consumer_id
    assert "jobs" == found.queue
    assert 3 == found.claimed_round
    assert 1 == found.acked_round
    assert "here:1" == found.owner
    assert "queue_" == found.table_prefix
    assert query.consumer.epoch == found.epoch
    assert 7200 == (found.expires_at - found.heartbeat_at).total_seconds()
    assert 4 == query.consumer.outstanding()
    assert not found.permanent


@pytest.mark.engines("sqlite")
def test_one_may_be_kept_for_ever(service: QueueService, queue: Queue) -> None:
    """A timeout of None never ends."""
    Query(queue, timeout=None)
    assert durable(service).never_expires
    assert 0 == service.reap().consumers


def test_it_goes_with_its_queue(make_service: MakeService) -> None:
    """With its rounds, and only that of this queue; a query that goes on fails loudly."""
    service = make_service()
    other = service.create_queue("others")
    other.publish(1)
    Query(other, name="kept").plan()
    queue = service.create_queue("jobs")
    queue.publish_many(range(3))
    query = Query(queue)
    query.batch(most=1)
    assert service.drop_queue("jobs")
    assert "kept" == durable(service).consumer_id
    assert 1 == seals(service)
    again = service.create_queue("jobs")
    again.publish(1)
    with pytest.raises(RoundsGone):
        Query(again, checkpoint=query.checkpoint).plan()


@pytest.mark.engines("sqlite")
def test_it_outlives_its_process(make_service: MakeService) -> None:
    """Neither the end of its service nor a reaper gives back what it holds."""
    first = make_service()
    queue = first.create_queue("jobs")
    queue.publish_many(range(3))
    Query(queue).plan()
    first.stop()
    second = make_service()
    assert 0 == second.reap().restored
    assert (0, 3, 0) == counts(second.queue("jobs"))


def test_after_its_timeout_the_reaper_gives_all_back(
    make_service: MakeService, queue: Queue, engine: Engine
) -> None:
    """As of any dead consumer, with its rounds; the query that comes back fails loudly."""
    queue.publish_many(range(3))
    query = Query(queue)
    query.batch(most=1)
    query.batch(most=1)
    other = make_service()
    expire(other, engine)
    with pytest.raises(RoundsGone):
        query.plan()
    report = other.reap()
    assert 1 == report.restored
    assert 1 == report.consumers
    assert 0 == seals(other)
    assert (2, 0, 0) == counts(queue)
    with pytest.raises(RoundsGone):
        query.consumer.rounds(1, 2)
    again = Query(queue, checkpoint=query.checkpoint)
    with pytest.raises(RoundsGone):
        again.plan()
    assert [[1, 2]] == Query(queue).batch()


def test_who_comes_before_the_reaper_does_gives_it_back(
    make_service: MakeService, queue: Queue, engine: Engine
) -> None:
    """A consumer that is taken over after its timeout begins anew; the reaper spares it then."""
    queue.publish_many(range(3))
    query = Query(queue)
    query.batch(most=2)
    other = make_service()
    expire(other, engine)
    again = Query(queue)
    assert (3, 0, 0) == counts(queue)
    assert 0 == seals(other)
    assert 0 == again.consumer.state().claimed_round
    assert 0 == other.reap().consumers
    assert [[0, 1, 2]] == again.batch()
    assert 0 == other.reap().restored


@pytest.mark.default_on("sqlite", "postgresql")
def test_the_reaper_forgets_only_who_is_still_dead(
    make_service: MakeService, queue: Queue, engine: Engine
) -> None:
    """One that came back while the reaper was at work keeps its registration."""
    queue.publish(1)
    Query(queue)
    service = make_service()
    expire(service, engine)
    dead = parts_of(service).consumer.deaths.declare()
    query = Query(queue)
    for consumer_id in dead:
        service._registered.forget_dead(consumer_id)
    assert [[1]] == query.batch()


@pytest.mark.engines("sqlite")
def test_asking_is_a_sign_of_life(service: QueueService, queue: Queue) -> None:
    """While a query asks, idle or not, its time is put off."""
    query = Query(queue, timeout=6.0)
    before = durable(service).expires_at

    def renewed() -> bool:
        query.plan()
        return durable(service).expires_at > before

    wait_until(renewed, timeout=30.0, step=0.05)


@pytest.mark.engines("sqlite")
def test_signs_of_life_are_few(service: QueueService, queue: Queue) -> None:
    """A query may ask often without a write each time."""
    query = Query(queue)
    before = durable(service).heartbeat_at
    for _ in range(5):
        query.plan()
        time.sleep(0.01)
    assert before == durable(service).heartbeat_at


def test_an_operator_releases_it(service: QueueService, queue: Queue) -> None:
    """All that it holds comes back uncounted; the query is fenced, and may be started anew."""
    queue.publish_many(range(4))
    query = Query(queue)
    query.batch(each=2)
    assert 4 == service.release_consumer("query")
    assert [0] * 4 == [message.attempt for message in queue.messages().list()]
    assert 0 == seals(service)
    assert durable(service).owner is None
    with pytest.raises(ConsumerFenced, match="operator"):
        query.plan()
    again = Query(queue, checkpoint=0)
    with pytest.raises(RoundsGone):
        again.consumer.rounds(0, 2)
    assert 2 == again.consumer.recover(0)
    again.checkpoint = 2
    assert [[0, 1, 2, 3]] == again.batch()
    assert 3 == again.checkpoint


def test_an_operator_drops_it(service: QueueService, queue: Queue) -> None:
    """What it holds comes back, and nothing remembers it; its old checkpoint is refused."""
    queue.publish_many(range(4))
    query = Query(queue)
    query.batch(most=2)
    epoch = query.consumer.epoch
    assert 2 == service.drop_consumer("query")
    assert [] == [c for c in service.consumers() if c.durable]
    assert 0 == seals(service)
    with pytest.raises(RoundsGone):
        query.plan()
    again = Query(queue, checkpoint=query.checkpoint)
    assert again.consumer.epoch > epoch
    with pytest.raises(RoundsGone, match="new checkpoint"):
        again.plan()


@pytest.mark.engines("sqlite")
def test_a_checkpoint_knows_its_registration(
    service: QueueService, queue: Queue, engine: Engine
) -> None:
    """It stays through take-overs and a release; a drop and an expiry end it."""
    first = Query(queue).consumer
    service.release_consumer("query")
    second = Query(queue).consumer
    assert first.registered_at == second.registered_at
    second.check_registration(first.registered_at)
    service.drop_consumer("query")
    third = Query(queue).consumer
    with pytest.raises(RoundsGone, match="registered again at 2"):
        third.check_registration(first.registered_at)
    expire(service, engine)
    assert first.registered_at < third.registered_at < Query(queue).consumer.registered_at


@pytest.mark.engines("sqlite")
def test_who_is_not_there_is_named(service: QueueService, queue: Queue) -> None:
    """And an ordinary consumer is left alone."""
    queue.publish_many(range(2))
    queue.consume()
    (lasting,) = queue.consume(hold_for=60)
    for operation in (service.release_consumer, service.drop_consumer):
        with pytest.raises(ConsumerNotFound, match="'nobody'"):
            operation("nobody")
        with pytest.raises(ValueError, match=r"its process releases its messages|call stop\(\)"):
            operation(str(service.consumer_id))
        with pytest.raises(ValueError, match="comes back when its lease ends"):
            operation(str(lasting.consumer_id))


@pytest.mark.engines("sqlite")
def test_one_of_another_prefix_is_left_alone(make_service: MakeService) -> None:
    """Its queue is not among those of this service."""
    Query(make_service(table_prefix="other_").create_queue("jobs"))
    service = make_service()
    service.create_queue("jobs")
    with pytest.raises(ValueError, match="other_"):
        service.drop_consumer("query")


@pytest.mark.engines("sqlite")
def test_one_of_a_dropped_queue_can_be_dropped(
    service: QueueService, queue: Queue, engine: Engine
) -> None:
    """One that an older version has left behind: there is nothing to give back."""
    queue.publish(1)
    Query(queue).batch()
    consumers = service._parts.system().consumers
    with engine.begin() as connection:
        kept = connection.execute(select(consumers).where(consumers.c.durable == 1)).mappings()
        row = dict(kept.one())
    service.drop_queue("jobs")
    with engine.begin() as connection:
        connection.execute(consumers.insert().values(row))
    assert 0 == service.drop_consumer("query")
    assert [] == [consumer for consumer in service.consumers() if consumer.durable]


# H2 is upgraded while nobody else is connected.
@pytest.mark.engines("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.empty_database
def test_older_tables_get_what_is_new(make_service: MakeService, engine: Engine) -> None:
    """A database that knows of no durable consumers, with one of the others in it."""
    first = make_service()
    first.create_queue("jobs").publish("old")
    first.queue("jobs").release(first.queue("jobs").consume())
    first.start()
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE queue_over_sql_consumer_rounds"))
        for column in NEWER_COLUMNS:
            connection.execute(text(f"ALTER TABLE queue_over_sql_consumers DROP COLUMN {column}"))
    second = make_service()
    query = Query(second.queue("jobs"))
    assert [["old"]] == query.batch()
    assert [False, True] == [consumer.durable for consumer in second.consumers()]
    query.done()
    assert (0, 0, 0) == counts(second.queue("jobs"))


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_a_round_that_cannot_be_is_refused(queue: Queue) -> None:
    """A checkpoint that somebody changed: its leases would have passed before they began."""
    queue.publish("x")
    query = Query(queue)
    consumer, request = query.consumer, query.request()
    operations: list[Callable[[Any], object]] = [
        consumer.recover,
        consumer.ack,
        lambda number: consumer.advance(number, request),
        lambda number: consumer.rounds(number, 1),
        lambda number: consumer.rounds(0, number),
    ]
    for wrong in (-1, 10**18, True, "1", 1.5, None):
        for operation in operations:
            with refused(wrong, TypeError, ValueError, match="start|end"):
                operation(wrong)
    with pytest.raises(TypeError, match="up_to_id"):
        query.request(up_to_id="1")
    assert ["x"] == [payload for one in query.plan() for payload in query.read(one)]
