"""`queue_limit`: at most so many messages of a queue are in hand, whoever has them."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, inspect, select, text
from sqlalchemy.pool import StaticPool

from queue_over_sql import FixedDelay, Publication, QueueService, Reason
from queue_over_sql.database.notify import noting_ready
from queue_over_sql.durable.consumer import AdvanceRequest, DurableConsumer
from queue_over_sql.message import claim_of
from queue_over_sql.observability import Level, count_queues, diagnose
from queue_over_sql.queue import core_of
from queue_over_sql.settling.operations import finish
from queue_over_sql.statements.requests import Settlement
from tests.contract.queue_state import live_rows, payloads, set_columns
from tests.refusals import refused
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.driver_decides


def limited(service: QueueService, limit: int, count: int = 10, **settings: Any) -> Queue:
    """A queue with a limit and some messages."""
    settings = {"archive": "all", "retry": FixedDelay(0), **settings}
    queue = service.create_queue("jobs", queue_limit=limit, **settings)
    queue.publish_many(range(count))
    return queue


def slots(engine: Engine) -> list[tuple[Any, ...]]:
    """The rows of the slots, by number."""
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT * FROM queue_jobs_limits ORDER BY slot"))
        return [tuple(row) for row in rows]


def test_no_more_than_the_limit_is_in_hand(service: QueueService, engine: Engine) -> None:
    """A claim gets what the limit leaves, oldest first; each end leaves room for one more."""
    queue = limited(service, 3)
    hand = queue.consume(10)
    assert [0, 1, 2] == payloads(hand)
    assert [] == queue.consume(10)
    hand[1].ack()
    assert [3] == payloads(queue.consume(10))
    queue.ack([hand[0], hand[2]])
    assert [4, 5] == payloads(queue.consume(10))
    service.drop_queue("jobs")
    assert not inspect(engine).has_table("queue_jobs_limits")


def test_earlier_releases_are_refused(service: QueueService, engine: Engine) -> None:
    """By the version, and one that runs already by columns that it does not know."""
    limited(service, 3, 0)
    with engine.connect() as connection:
        query = text("SELECT groups_at, schema_release, settings FROM queue_over_sql_queues")
        groups_at, release, settings = connection.execute(query).one()
    assert groups_at is not None
    assert 3 == json.loads(release)["oldest"]
    assert {"queue limit": "BIGINT"} == json.loads(settings)["columns"]


def test_a_queue_without_a_limit_has_no_slots(service: QueueService, engine: Engine) -> None:
    """Its tables and its record are as they were."""
    queue = service.create_queue("jobs")
    assert (None, "wait") == (queue.settings.queue_limit, queue.settings.when_full)
    assert not inspect(engine).has_table("queue_jobs_limits")
    with engine.connect() as connection:
        query = text("SELECT groups_at FROM queue_over_sql_queues WHERE name = 'jobs'")
        assert connection.execute(query).scalar_one() is None


EXITS: dict[str, Callable[[Queue, Message], Any]] = {
    "ack": lambda _, message: message.ack(),
    "nack": lambda _, message: message.nack("no"),
    "nack, later": lambda _, message: message.nack("no", delay=3600),
    "release": lambda _, message: message.release(),
    "reject": lambda _, message: message.reject("no"),
    "delete": lambda queue, message: queue.delete(message.id),
    "cancel": lambda queue, message: queue.cancel(message.id),
    "purge": lambda queue, _: queue.purge(claimed=True),
    "by a token": lambda queue, message: queue.held(message.token).ack(),
}


def test_every_exit_frees(service: QueueService) -> None:
    """Whatever takes a message out of the hand of its consumer leaves room for another one."""
    queue = limited(service, 1, 0)
    for end, leave in EXITS.items():
        queue.publish("first")
        [message] = queue.consume()
        queue.publish("next")
        assert [] == queue.consume(wait=0), end
        leave(queue, message)
        if end == "purge":
            queue.publish("next")
        [again] = queue.consume(10)
        assert [] == queue.consume(10), end
        again.ack()
        queue.purge()


def test_reaped_messages_leave_room(service: QueueService, engine: Engine) -> None:
    """Also edits by SQL, which know nothing of slots, do."""
    queue = limited(service, 2)
    first, second = queue.consume(5)
    set_columns(engine, queue, first.id, lease_expires_at=1)
    service.reap()
    with engine.begin() as connection:
        connection.execute(queue.table.delete().where(queue.table.c.id == second.id))
    assert 2 == len(queue.consume(5))


def test_an_exchange_takes_the_slots_that_it_frees(service: QueueService) -> None:
    """It settles first, so a saturated queue goes on; a rollback of both changes nothing."""
    queue = limited(service, 2)
    hand = queue.consume(5)
    for _ in range(3):
        hand = queue.exchange(hand, 5)
        assert 2 == len(hand)
    assert [6, 7] == payloads(hand)
    assert [8] == payloads(queue.exchange(hand[:1], 5))


def test_a_saturated_queue_writes_nothing(service: QueueService, engine: Engine) -> None:
    """Claims that find no slot count no attempt, and leave every row as it is."""
    queue = limited(service, 2, priorities=2)
    hand = queue.consume(5)
    before = live_rows(engine, queue), slots(engine)
    others = [service.queue("jobs") for _ in range(3)]
    for _ in range(5):
        assert [] == [each for other in others for each in other.consume(5)]
        assert [] == queue.consume(5, where=queue.table.c.id > 0)
    assert before == (live_rows(engine, queue), slots(engine))
    queue.ack(hand)
    assert 2 == len(queue.consume(5))


@pytest.mark.threads("what an operation notes is the same on an event loop")
@pytest.mark.parametrize("archive", ["all", "none"])
@pytest.mark.parametrize("groups", [{}, {"group_limit": 1}], ids=["plain", "fifo"])
def test_an_end_notes_freed_room_once(
    archive: str, groups: dict[str, Any], service: QueueService, engine: Engine
) -> None:
    """However many messages a settle ends: who waits is woken once."""
    queue = limited(service, 3, 3, archive=archive, **groups)
    hand = queue.consume(3)
    sql = core_of(queue).context.sql
    ids, claim = [message.id for message in hand], claim_of(hand[0])
    assert claim is not None
    end = finish(sql, [Settlement(ids, claim)], keep=archive == "all")
    with engine.begin() as connection, noting_ready() as noted:
        assert set(ids) == end.do(connection)
    assert [sql] == noted


@pytest.mark.parametrize(
    "groups", [{}, {"group_limit": 1}, {"group_limit": 2, "group_order": "any"}]
)
def test_a_lowered_limit_waits_for_what_is_in_hand(
    groups: dict[str, Any], service: QueueService, make_service: MakeService, engine: Engine
) -> None:
    """From 4 to 1 with four in hand, in another service: none more until the last one ended."""
    queue = limited(service, 4, **groups)
    other = make_service().queue("jobs")
    hand = queue.consume(2) + other.consume(2)
    assert 4 == len(hand)
    make_service().create_queue("jobs", queue_limit=1)
    for message in hand:
        assert [] == queue.consume(5) + other.consume(5)
        message.ack()
    [one] = other.consume(5)
    assert [] == queue.consume(5)
    assert [1] == [row[0] for row in slots(engine)]
    one.ack()


def test_a_raised_limit_needs_no_publish(service: QueueService, make_service: MakeService) -> None:
    """From 1 to 4: a consumer that waits gets more at once; lowered and raised again, too."""
    queue = limited(service, 1)
    hand = queue.consume(5)
    assert 1 == len(hand)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(queue.consume, 10, wait=30)
        eventually(lambda: core_of(queue).context.arrivals._waiting, "it waits")
        make_service().create_queue("jobs", queue_limit=4)
        hand += waiting.result(20)
    while len(hand) < 4:
        hand += queue.consume(10, wait=5)
    service.create_queue("jobs", queue_limit=2)
    assert [] == queue.consume(5)
    service.create_queue("jobs", queue_limit=5)
    assert 1 == len(queue.consume(5))


def test_two_operators_at_once_leave_what_one_of_them_said(
    service: QueueService, make_service: MakeService, engine: Engine
) -> None:
    """The slots are those of the settings, and no change of another setting is lost."""
    queue = limited(service, 3)
    operators = [make_service() for _ in range(2)]
    for operator in operators:
        operator.queue("jobs")

    def change(operator: QueueService, **settings: Any) -> None:
        operator.create_queue("jobs", **settings)

    for limits in ((4, 7), (2, 9), (1, 3)):
        with ThreadPoolExecutor() as pool:
            ends = [
                pool.submit(change, operators[0], queue_limit=limits[0]),
                pool.submit(change, operators[1], queue_limit=limits[1], max_attempts=limits[0]),
            ]
            for end in ends:
                end.result(60)
        queue.refresh()
        limit = queue.settings.queue_limit
        assert limit in limits
        assert limits[0] == queue.settings.max_attempts
        assert limit is not None
        assert list(range(1, limit + 1)) == [row[0] for row in slots(engine) if row[0] > 0]
        hand = queue.consume(20)
        assert min(limit, 10) == len(hand)
        for message in hand:
            message.release()


def test_a_limit_that_is_turned_on_counts_what_is_in_hand(
    service: QueueService, make_service: MakeService
) -> None:
    """Other services, which know of no limit, obey it with their next claim; then it is gone."""
    queue = service.create_queue("jobs")
    queue.publish_many(range(10))
    others = [make_service().queue("jobs") for _ in range(2)]
    hand = queue.consume(2) + others[0].consume(1)
    make_service().create_queue("jobs", queue_limit=4)
    everybody = (*others, queue)
    assert 1 == len(_found(everybody))
    assert [] == [each for other in everybody for each in other.consume(10)]
    queue.ack(hand[:1])
    assert 1 == len(_found(everybody[1:2]))
    make_service().create_queue("jobs", queue_limit=None)
    assert 5 == len(_found(everybody[:1]))


def _found(queues: Sequence[Queue]) -> list[Message]:
    """What these consumers get, who may have to read the settings anew."""
    return eventually(lambda: [each for one in queues for each in one.consume(10)], "some")


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
def test_a_take_holds_only_its_slots(service: QueueService, engine: Engine) -> None:
    """While its transaction is open, others get what the limit leaves; then all of it."""
    queue = limited(service, 3, 5)
    with engine.connect() as caller, caller.begin() as transaction:
        assert [0] == payloads(queue.take(1, connection=caller))
        hand = queue.consume(10)
        assert [1, 2] == payloads(hand)
        assert [] == queue.take(1, connection=caller)
        queue.ack(hand[:1])
        assert [3] == payloads(queue.take(5, connection=caller))
        transaction.rollback()
    assert [0, 3] == payloads(queue.consume(10))
    queue.ack(hand[1:])
    with engine.begin() as caller:
        assert [4] == payloads(queue.take(10, connection=caller))
    queue.publish_many([6, 7, 8])
    assert [6] == payloads(queue.consume(10))


def test_a_take_obeys_the_limit(service: QueueService, engine: Engine) -> None:
    """Also in several calls of one transaction; after its end the slots are free."""
    queue = limited(service, 3, 8)
    [message] = queue.consume()
    for _ in range(2):
        with engine.begin() as caller:
            taken = queue.take(1, connection=caller)
            taken += queue.take(5, connection=caller)
            assert 2 == len(taken)
            assert [] == queue.take(5, connection=caller)
    message.ack()
    with engine.begin() as caller:
        assert 3 == len(queue.take(5, connection=caller))
    with engine.begin() as caller:
        assert [] == queue.take(5, connection=caller)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("a database in memory has one connection")
def test_takes_on_the_only_connection_obey_the_limit() -> None:
    """What a transaction has taken counts until it ends, though nobody else can look."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    with QueueService(engine) as service:
        queue = limited(service, 3, 10)
        for first in (0, 3):
            with engine.begin() as caller:
                taken = queue.take(2, connection=caller) + queue.take(5, connection=caller)
                assert [first, first + 1, first + 2] == payloads(taken)
                assert [] == queue.take(5, connection=caller)
        with engine.connect() as caller:
            for _ in range(2):
                with caller.begin() as transaction:
                    assert 3 == len(queue.take(5, connection=caller))
                    transaction.rollback()


@pytest.mark.engines("postgresql", "mysql", "mariadb")
def test_a_take_in_an_older_snapshot_obeys_the_limit(service: QueueService, engine: Engine) -> None:
    """A slot that a claim took after the snapshot is not free for it."""
    queue = limited(service, 1, 3)
    repeatable = engine.execution_options(isolation_level="REPEATABLE READ")
    with repeatable.connect() as caller, caller.begin():
        caller.execute(select(queue.table.c.id)).all()
        assert 1 == len(queue.consume(5))
        assert [] == queue.take(5, connection=caller)


def test_the_end_of_one_wakes_a_waiting_consumer(
    service: QueueService, make_service: MakeService
) -> None:
    """Capacity that comes free is news, as a message is: no poll has to come round."""
    queue = limited(service, 1, 2)
    other = make_service().queue("jobs")
    [message] = queue.consume()
    waits = core_of(queue).context.arrivals
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(queue.consume, wait=30)
        eventually(lambda: waits._waiting, "it waits")
        before = waits.count
        message.ack()
        assert waits.count > before
        assert [1] == payloads(waiting.result(20))
    assert [] == other.consume()


def test_limits_of_groups_and_of_the_queue_hold_together(service: QueueService) -> None:
    """In order within each group; what the queue's limit stops is not parked, and comes next."""
    queue = service.create_queue("jobs", group_limit=1, queue_limit=2, archive="all")
    queue.publish_many([Publication(n, group="abc"[n % 3]) for n in range(9)])
    handled: list[int] = []
    while found := queue.consume(10, wait=1):
        assert len(found) <= 2
        handled += payloads(found)
        queue.ack(found)
    assert sorted(handled) == list(range(9))
    for group in range(3):
        assert sorted(n for n in handled if n % 3 == group) == [
            n for n in handled if n % 3 == group
        ]


def test_many_consumers_never_exceed_the_limit(
    service: QueueService, make_service: MakeService, engine: Engine
) -> None:
    """Eight of them claim, extend, settle, exchange and fail at the same time; none is lost."""
    limited(service, 4, 160, max_attempts=1000)
    done, hand, most = [], 0, 0
    lock = threading.Lock()

    def work(number: int) -> None:
        nonlocal hand, most
        own = make_service().queue("jobs")
        while True:
            found = own.consume(1 + number % 3, wait=0.5)
            if not found:
                return
            with lock:
                hand += len(found)
                most = max(most, hand)
            time.sleep(0.001)
            with lock:
                hand -= len(found)
            if number % 4 == 3 and found[0].attempt == 1:
                for message in found:
                    message.nack("again")
                continue
            with lock:
                done.extend(payloads(found))
            own.ack(found)

    with ThreadPoolExecutor() as pool:
        for end in [pool.submit(work, number) for number in range(8)]:
            end.result(120)
    assert sorted(done) == list(range(160))
    assert 1 <= most <= 4
    assert [1, 2, 3, 4] == [row[0] for row in slots(engine)]


@pytest.mark.threads("a streaming engine reads by threads and processes")
def test_rounds_obey_the_limit(service: QueueService) -> None:
    """Those of durable consumers have at most what the limit leaves, and free it by their ack."""
    queue = limited(service, 3, 8)
    [message] = queue.consume()
    consumer = DurableConsumer(queue, "stream", owner="test")
    opened = consumer.advance(consumer.take_over(), AdvanceRequest(10, 1))
    assert 2 == consumer.outstanding()
    assert [] == queue.consume(5)
    opened = consumer.advance(opened, AdvanceRequest(10, 1))
    assert 2 == consumer.outstanding()
    message.ack()
    consumer.release()
    assert 3 == len(queue.consume(5))


def test_settings_that_say_nothing_are_refused(service: QueueService) -> None:
    """A limit has a range, since claims read its slots, and ``when_full`` needs one."""
    for wrong in (0, -1, 1_001, True, "3"):
        with refused("queue_limit", TypeError, ValueError):
            service.create_queue("jobs", queue_limit=wrong)  # type: ignore[arg-type]
    with refused("when_full", ValueError, match="has none"):
        service.create_queue("jobs", when_full="reject")


@pytest.mark.threads("the doctor looks from outside, by a service of its own")
def test_an_operator_sees_the_limit(
    service: QueueService, make_service: MakeService, engine: Engine
) -> None:
    """`why` and the counts name it; the doctor and the reaper find what was claimed by SQL."""
    queue = limited(service, 1, 2)
    [message] = queue.consume()
    waiting = queue.messages(status="ready").list()[0].id
    said = queue.why(waiting)
    assert Reason.QUEUE_LIMIT is said.reason
    assert "limit allows: 1" in said.text
    assert Reason.CLAIMED is queue.why(message.id).reason
    assert (1, 1) == (queue.stats().queue_limit, count_queues(service)["jobs"].queue_limit)
    beside = {"consumer_id": service.consumer_id, "consumer_round": 10**9}
    set_columns(engine, queue, waiting, lease_expires_at=2**60, **beside)
    [found] = [each for each in diagnose(service) if "beside its queue_limit" in each.text]
    assert Level.WARNING is found.level
    make_service().reap()
    assert [] == [each for each in diagnose(service) if "beside its queue_limit" in each.text]
    message.ack()
    queue.publish("next")
    assert [] == queue.consume(5)
    queue.delete(waiting)
    assert ["next"] == payloads(queue.consume(5))


def test_a_limit_that_is_turned_on_changes_nothing_else(service: QueueService) -> None:
    """Keys of a queue whose claims free them stay free."""
    queue = service.create_queue("jobs", unique="waiting")
    queue.publish(1, key="k")
    [message] = queue.consume()
    service.create_queue("jobs", queue_limit=1)
    queue.publish(2, key="k")
    assert [] == queue.consume()
    message.ack()
    assert [2] == payloads(queue.consume())


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_a_reaper_serves_a_queue_that_came_again_without_its_rate(
    make_service: MakeService, engine: Engine
) -> None:
    """It notices within the pass that another process has dropped and created it."""
    late, other = (make_service(reaper_interval=3600) for _ in range(2))
    late.create_queue("jobs", queue_rate="1000/s")
    other.drop_queue("jobs")
    queue = other.create_queue("jobs")
    number = queue.publish(1, expires=3600).id
    set_columns(engine, queue, number, expires_at=1)
    late.reap()
    assert 1 == queue.stats().expired
