"""A message of an unknown kind waits at its place for a server that knows the kind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import Publication
from tests.contract.payloads.kind_types import BOTH, ORDERS, Order, Refund, knowing, long_ago
from tests.contract.queue_state import archived, counts, live_rows, payloads, set_columns
from tests.contract.worker.running_worker import running
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import MakeService

REFUND = {"id": 0}


@pytest.fixture
def narrow(make_service: MakeService) -> Queue:
    """The queue of a server that knows orders only."""
    return knowing(make_service, ORDERS, priorities=2, kind_timeout=60)


@pytest.fixture
def wide(narrow: Queue, make_service: MakeService) -> Queue:
    """The same queue, of a server that knows orders and refunds."""
    assert "jobs" == narrow.name
    return knowing(make_service, BOTH)


@pytest.fixture
def mixed(wide: Queue) -> list[int]:
    """A refund, and three orders after it; their ids."""
    return [one.id for one in wide.publish_many([Refund(id=0), *(Order(id=n) for n in (1, 2, 3))])]


# -- who gets what


def test_an_unknown_kind_is_left_for_one_that_knows_it(
    narrow: Queue, wide: Queue, mixed: list[int], engine: Engine
) -> None:
    """The first goes on with later orders; the refund keeps its place and its attempts.

    Where it is known it comes first, before newer messages.
    """
    before = live_rows(engine, narrow)[0]
    orders = narrow.consume(10)
    assert [Order(id=1), Order(id=2), Order(id=3)] == payloads(orders)
    assert [] == narrow.consume(10)
    assert before == live_rows(engine, narrow)[0]
    narrow.ack(orders[:2])
    orders[2].release()
    wide.publish(Order(id=4))
    first, *others = wide.consume(10)
    assert mixed[0] == first.id
    assert Refund(id=0) == first.payload
    assert 1 == first.attempt
    assert [Order(id=3), Order(id=4)] == payloads(others)


@pytest.mark.default_on("sqlite", "postgresql")
def test_many_unknown_messages_hide_none(narrow: Queue, wide: Queue) -> None:
    """However many of them are in front, a claim of one finds what it knows."""
    wide.publish_many([Refund(id=number) for number in range(300)])
    assert [] == narrow.consume(1)
    wide.publish_many([Order(id=1), Order(id=2)])
    assert [Order(id=1)] == payloads(consume_exactly(narrow, 1))
    assert [Order(id=2)] == payloads(narrow.consume(5, wait=2))
    assert 300 == len(consume_exactly(wide, 300))


@pytest.mark.usefixtures("mixed")
def test_exchange_leaves_it(narrow: Queue, wide: Queue, make_service: MakeService) -> None:
    """The next messages of an exchange are of known kinds, the refund not among them.

    Also on one level, where settling and claiming are a single statement.
    """
    (first,) = narrow.consume()
    second, third = narrow.exchange(first, 5)
    assert [Order(id=1), Order(id=2), Order(id=3)] == payloads([first, second, third])
    assert [] == narrow.exchange([second, third], 5)
    assert [Refund(id=0)] == payloads(wide.consume(5))
    one = make_service().create_queue("single", kinds=ORDERS)
    other = make_service().create_queue("single", kinds=BOTH)
    other.publish_many([Order(id=1), Refund(id=2), Order(id=3)])
    (message,) = one.exchange(one.consume(), 5)
    assert Order(id=3) == message.payload
    assert [Refund(id=2)] == payloads(other.consume(5))


@pytest.mark.usefixtures("mixed")
def test_take_leaves_it(narrow: Queue, wide: Queue, engine: Engine) -> None:
    """The caller's transaction removes known kinds only."""
    with engine.begin() as connection:
        taken = narrow.take(5, connection=connection)
    assert [Order(id=1), Order(id=2), Order(id=3)] == payloads(taken)
    with engine.begin() as connection:
        assert [Refund(id=0)] == payloads(wide.take(5, connection=connection))


@pytest.mark.engines("sqlite")
@pytest.mark.usefixtures("mixed")
def test_stream_and_receive_leave_it(narrow: Queue, wide: Queue) -> None:
    """They end, or give nothing, when only unknown kinds are left."""
    with narrow.receive() as received:
        assert received is not None
        assert Order(id=1) == received.payload
    streamed = []
    for message in narrow.stream(prefetch=5):
        streamed.append(message.payload)
        message.ack()
    assert [Order(id=2), Order(id=3)] == streamed
    with narrow.receive() as nothing:
        assert nothing is None
    assert [Refund(id=0)] == payloads(wide.consume(5))


@pytest.mark.engines("sqlite")
@pytest.mark.usefixtures("mixed")
def test_a_worker_leaves_it(make_service: MakeService, wide: Queue) -> None:
    """Its handler never sees it; it is neither retried nor buried."""
    service = make_service(reaper_interval=0.1)
    service.create_queue("jobs", kinds=ORDERS)
    worker = service.worker(concurrency=2, prefetch=2, poll_interval=(0.005, 0.05))
    seen: list[object] = []

    @worker.handle("jobs")
    def work(message: Message) -> None:
        seen.append(message.payload)

    with running(worker):
        wait_until(lambda: len(seen) == 3)
        wide.publish(Order(id=4))
        wait_until(lambda: len(seen) == 4)
        wait_until(lambda: counts(wide) == (1, 0, 0))
    assert {1, 2, 3, 4} == {order.id for order in seen if isinstance(order, Order)}
    (refund,) = wide.consume()
    assert Refund(id=0) == refund.payload
    assert 1 == refund.attempt


@pytest.mark.default_on("sqlite", "postgresql")
def test_an_unknown_kind_of_an_urgent_priority_blocks_no_other(narrow: Queue, wide: Queue) -> None:
    """Levels are walked as ever, each without what is unknown."""
    wide.publish(Order(id=2), priority=1)
    wide.publish(Refund(id=0), priority=0)
    wide.publish(Order(id=1), priority=0)
    assert [Order(id=1), Order(id=2)] == payloads(narrow.consume(5))
    assert [Refund(id=0)] == payloads(wide.consume(5))


@pytest.mark.usefixtures("mixed")
def test_a_condition_does_not_bring_it_back(narrow: Queue, wide: Queue, engine: Engine) -> None:
    """``where=`` chooses among the known; asking for the unknown kind finds nothing."""
    kind = narrow.table.c.kind
    assert [] == narrow.consume(5, where=kind == "Refund")
    assert [] == narrow.consume(5, where=(kind == "Refund") | (kind == "Nothing"))
    with engine.begin() as connection:
        assert [] == narrow.take(5, connection=connection, where=kind == "Refund")
    assert [Order(id=1)] == payloads(narrow.consume(1, where=narrow.table.c.id > 0))
    assert [Refund(id=0)] == payloads(wide.consume(5, where=kind == "Refund"))


@pytest.mark.engines("sqlite")
def test_waiting_for_what_is_known_is_not_cut_short(narrow: Queue, wide: Queue) -> None:
    """Only unknown kinds are as good as nothing, and what comes is found."""
    wide.publish(Refund(id=0))
    assert [] == narrow.consume(wait=0.05)
    wide.publish(Order(id=1))
    assert [Order(id=1)] == payloads(narrow.consume(wait=5))


def test_messages_without_a_kind_are_for_everybody(
    narrow: Queue, wide: Queue, make_service: MakeService
) -> None:
    """They are delivered in their order among the typed ones."""
    plain = make_service().queue("jobs")
    plain.publish("first")
    plain.publish(REFUND, kind="Refund")
    plain.publish("second")
    plain.publish({"id": 1}, kind="Order")
    assert ["first", "second", Order(id=1)] == payloads(narrow.consume(10))
    assert [Refund(id=0)] == payloads(wide.consume(10))


def test_kinds_may_differ_in_their_letters_only(make_service: MakeService) -> None:
    """Databases that compare texts loosely do not make ``order`` an ``Order``.

    Each is a kind of its own, declared and delivered as such.
    """
    both = knowing(make_service, {"order": Refund, "Order": Order}, kind_timeout=60)
    lower = knowing(make_service, {"order": Refund})
    both.publish(Order(id=1))
    both.publish(Refund(id=2))
    assert [Refund(id=2)] == payloads(lower.consume(5))
    assert [Order(id=1)] == payloads(both.consume(5))
    plain = make_service().queue("jobs")
    for kind in ("ORDER", "Order ", "Örder"):
        plain.publish({"id": 1}, kind=kind)
    assert [] == both.consume(10)
    assert 3 == both.stats().ready
    assert 2 == both.messages(status="claimed").count()


def test_letters_count_for_the_limit_too(make_service: MakeService) -> None:
    """That somebody knows ``Order`` keeps no ``order``."""
    service = make_service()
    queue = service.create_queue("jobs", kinds=ORDERS, kind_timeout=60)
    queue.consume()
    plain = make_service().queue("jobs")
    plain.publish({"id": 1}, kind="order", at=long_ago())
    plain.publish({"id": 2}, kind="Order", at=long_ago())
    assert 1 == service.reap().dead_lettered
    assert ["order"] == [dead.kind for dead in archived(queue)]
    assert [Order(id=2)] == payloads(queue.consume(5))


@pytest.mark.engines("sqlite")
def test_a_server_that_learns_the_kind_gets_what_waited(make_service: MakeService) -> None:
    """Within the same process: the next create_queue with more kinds finds the old messages."""
    service = make_service()
    queue = service.create_queue("jobs", kinds=ORDERS)
    plain = make_service().queue("jobs")
    plain.publish(REFUND, kind="Refund")
    plain.publish_many([Publication({"id": number}, kind="Order") for number in range(5)])
    queue.ack(queue.consume(10))
    assert [] == queue.consume(10)
    service.create_queue("jobs", kinds=BOTH)
    assert [Refund(id=0)] == payloads(consume_exactly(service.queue("jobs"), 1))


# -- the limit


@pytest.mark.engines("sqlite")
def test_kinds_and_a_changed_limit_come_together(make_service: MakeService) -> None:
    """A deployment may bring both to a queue that exists."""
    make_service().create_queue("jobs")
    queue = make_service().create_queue("jobs", kinds=ORDERS, kind_timeout=60)
    assert timedelta(seconds=60) == queue.settings.kind_timeout


@pytest.mark.usefixtures("narrow")
def test_a_kind_that_nobody_knows_is_buried_after_its_time(make_service: MakeService) -> None:
    """Only what has been due for so long; not what is younger, due later, held or known."""
    service = make_service()
    queue = service.create_queue("jobs", kinds=ORDERS)
    plain = make_service().queue("jobs")
    old = plain.publish(REFUND, kind="Refund", at=long_ago(), headers={"h": 1}, key="k")
    plain.publish({"id": 1}, kind="Refund")
    plain.publish({"id": 2}, kind="Refund", delay=3600)
    held = plain.publish({"id": 3}, kind="Refund", at=long_ago())
    assert 1 == plain.messages(where=plain.table.c.id == held.id).hold()
    plain.publish({"id": 4}, kind="Order", at=long_ago())
    plain.publish({"id": 5}, at=long_ago())
    assert 1 == service.reap().dead_lettered
    (dead,) = archived(queue)
    assert old.id == dead.id
    assert "failed" == dead.outcome
    assert REFUND == dead.payload
    assert 0 == dead.attempt
    assert "Refund" == dead.kind
    assert "k" == dead.key
    assert {"h": 1} == dead.headers
    assert dead.last_error is not None
    assert "Refund" in dead.last_error
    assert 5 == queue.messages().count()
    assert 0 == service.reap().dead_lettered


def test_a_living_consumer_that_knows_it_keeps_it(narrow: Queue, make_service: MakeService) -> None:
    """However old it is; once that consumer has left it is buried."""
    assert "jobs" == narrow.name
    knows, reaps = make_service(), make_service()
    knows.create_queue("jobs", kinds=BOTH).consume()
    queue = reaps.create_queue("jobs", kinds=ORDERS)
    queue.consume()
    make_service().queue("jobs").publish(REFUND, kind="Refund", at=long_ago())
    assert 0 == reaps.reap().dead_lettered
    assert 1 == queue.stats().ready
    knows.stop()
    assert 1 == reaps.reap().dead_lettered
    assert ["Refund"] == [dead.kind for dead in archived(queue)]


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_consumer_that_died_keeps_nothing(narrow: Queue, make_service: MakeService) -> None:
    """A registration without a heartbeat counts no longer than its timeout."""
    assert "jobs" == narrow.name
    gone = make_service(consumer_timeout=0.3)
    gone.create_queue("jobs", kinds=BOTH).consume()
    gone._background.stop()  # its heartbeat ends, as if the process had died
    reaps = make_service()
    queue = reaps.create_queue("jobs", kinds=ORDERS)
    queue.consume()
    make_service().queue("jobs").publish(REFUND, kind="Refund", at=long_ago())
    wait_until(lambda: reaps.reap().dead_lettered == 1)
    assert 0 == queue.messages().count()


@pytest.mark.engines("sqlite")
def test_a_consumer_that_learns_a_kind_keeps_it(narrow: Queue, make_service: MakeService) -> None:
    """What a registered consumer knows is what it knows now, not when it registered."""
    assert "jobs" == narrow.name
    learns, reaps = make_service(), make_service()
    learns.create_queue("jobs", kinds=ORDERS).consume()
    learns.create_queue("jobs", kinds=BOTH).consume()
    reaps.create_queue("jobs", kinds=ORDERS).consume()
    make_service().queue("jobs").publish(REFUND, kind="Refund", at=long_ago())
    assert 0 == reaps.reap().dead_lettered


@pytest.mark.usefixtures("narrow")
def test_a_consumer_without_kinds_keeps_all(make_service: MakeService) -> None:
    """It would read the message as plain JSON."""
    takes_all, reaps = make_service(), make_service()
    takes_all.queue("jobs").consume()
    reaps.create_queue("jobs", kinds=ORDERS)
    make_service().queue("jobs").publish(REFUND, kind="Refund", at=long_ago())
    assert 0 == reaps.reap().dead_lettered
    takes_all.stop()
    assert 1 == reaps.reap().dead_lettered


@pytest.mark.engines("sqlite")
@pytest.mark.usefixtures("narrow")
def test_a_pause_dead_letters_nothing(make_service: MakeService) -> None:
    """Nobody may claim what waits, so that nobody did says nothing."""
    reaps = make_service()
    queue = reaps.create_queue("jobs", kinds=ORDERS)
    make_service().queue("jobs").publish(REFUND, kind="Refund", at=long_ago())
    queue.pause()
    assert 0 == reaps.reap().dead_lettered
    queue.resume()
    assert 1 == reaps.reap().dead_lettered


@pytest.mark.engines("sqlite")
@pytest.mark.usefixtures("narrow")
def test_a_server_without_kinds_dead_letters_nothing(make_service: MakeService) -> None:
    """It knows no kinds, so it cannot say that nobody does."""
    service = make_service()
    queue = service.queue("jobs")
    queue.publish(REFUND, kind="Refund", at=long_ago())
    assert 0 == service.reap().dead_lettered
    assert 1 == queue.stats().ready


@pytest.mark.engines("sqlite")
def test_the_embedded_reaper_dead_letters(narrow: Queue, make_service: MakeService) -> None:
    """A started server does it by itself."""
    narrow.publish(Order(id=1))
    plain = make_service().queue("jobs")
    plain.publish(REFUND, kind="Refund", at=long_ago())
    with make_service(reaper_interval=0.05) as service:
        service.create_queue("jobs", kinds=ORDERS)
        wait_until(lambda: ["Refund"] == [dead.kind for dead in archived(plain)], timeout=8)
    assert 1 == plain.messages().count()


@pytest.mark.engines("sqlite")
def test_without_an_archive_it_is_counted(make_service: MakeService) -> None:
    """A dead message that is not kept is a discarded one."""
    service = make_service()
    queue = service.create_queue("jobs", kinds=ORDERS, archive="none", kind_timeout=60)
    make_service().queue("jobs").publish(REFUND, kind="Refund", at=long_ago())
    assert 1 == service.reap().dead_lettered
    assert 0 == queue.stats().live
    assert 0 == queue.stats().archived
    assert 1 == queue.stats().discarded


@pytest.mark.default_on("sqlite", "postgresql")
def test_many_of_them_are_buried(make_service: MakeService) -> None:
    """More than fit into one batch, and nothing else with them."""
    service = make_service()
    queue = service.create_queue("jobs", kinds=ORDERS, kind_timeout=60)
    plain = make_service().queue("jobs")
    moment = long_ago()
    plain.load(Publication({"id": n}, kind="Refund", at=moment) for n in range(1100))
    plain.load(Publication({"id": n}, kind="Order", at=moment) for n in range(3))

    def buried() -> bool:
        service.reap()
        return queue.stats().failed == 1100

    wait_until(buried, timeout=20)
    assert [Order(id=0), Order(id=1), Order(id=2)] == payloads(queue.consume(10))


@pytest.mark.engines("sqlite")
def test_a_requeued_one_has_its_time_again(make_service: MakeService) -> None:
    """A new life starts to wait anew, and then a server that knows the kind gets it."""
    service = make_service()
    queue = service.create_queue("jobs", kinds=ORDERS, kind_timeout=60)
    make_service().queue("jobs").publish(REFUND, kind="Refund", at=long_ago())
    assert 1 == service.reap().dead_lettered
    assert 1 == queue.archive.messages(kind="Refund").requeue()
    assert 0 == service.reap().dead_lettered
    assert [Refund(id=0)] == payloads(consume_exactly(knowing(make_service, BOTH), 1))


@pytest.mark.engines("sqlite")
def test_the_time_counts_from_when_it_is_due(make_service: MakeService, engine: Engine) -> None:
    """A message published long before it is due is not buried on its first day."""
    service = make_service()
    queue = service.create_queue("jobs", kinds=ORDERS, kind_timeout=60)
    published = make_service().queue("jobs").publish(REFUND, kind="Refund", delay=3600)
    long_before = round(long_ago().timestamp() * 1_000_000)
    due = round(datetime.now(UTC).timestamp() * 1_000_000)
    set_columns(engine, queue, published.id, published_at=long_before, available_at=due)
    assert 1 == queue.stats().ready
    assert 0 == service.reap().dead_lettered
    set_columns(engine, queue, published.id, available_at=long_before)
    assert 1 == service.reap().dead_lettered
