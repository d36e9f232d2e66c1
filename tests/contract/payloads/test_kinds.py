"""Kinds: typed payloads from the publisher to the consumer, and what is refused."""

from __future__ import annotations

import datetime as dt
import decimal
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer

from queue_over_sql import (
    DuplicateKey,
    PayloadInvalid,
    PayloadTooLarge,
    Publication,
    QueueNotFound,
    QueueSchemaMismatch,
    QueueSettings,
)
from tests.contract.payloads.kind_types import (
    BOTH,
    ORDERS,
    Address,
    Order,
    Parcel,
    Ping,
    Pong,
    Refund,
    Rush,
)
from tests.contract.queue_state import ARGUMENT_ERRORS, archived, counts, effects, payloads
from tests.contract.worker.running_worker import running
from tests.refusals import refused
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

ALL: dict[str, Any] = {
    "order.created": Order,
    "parcel": Parcel,
    "address": Address,
    "ping": Ping,
    "pong": Pong,
    "json": dict,
    "numbers": list[int],
    "text": str,
    "number": int,
    "nothing": None,
}


@pytest.fixture
def orders(service: QueueService) -> Queue:
    """A queue of orders and refunds that keeps all that is finished."""
    return service.create_queue("jobs", kinds=BOTH, archive="all")


# -- from the publisher to the consumer


def test_every_sort_of_type_is_delivered_as_it_was_published(service: QueueService) -> None:
    """Models, dataclasses, typed dictionaries and plain JSON, under the names they were given."""
    queue = service.create_queue("jobs", kinds=ALL)
    parcel = Parcel(
        uuid.UUID(int=7), decimal.Decimal("1.50"), dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    )
    implied = [Order(id=2**70), parcel, Address("Žižkov 😀")]
    named: list[tuple[str, Any]] = [
        ("ping", {"host": "a", "at": dt.date(2026, 1, 2)}),
        ("pong", {"host": "b"}),
        ("json", {"a": [1, None, {"b": 2.5}]}),
        ("numbers", [1, 2]),
        ("text", ""),
        ("number", 5),
        ("nothing", None),
    ]
    queue.publish_many(implied)
    for kind, payload in named:
        queue.publish(payload, kind=kind)
    messages = queue.consume(20)
    expected = [*implied, *(payload for _, payload in named)]
    assert expected == payloads(messages)
    assert [type(one) for one in expected] == [type(one) for one in payloads(messages)]
    kinds = ["order.created", "parcel", "address", *(kind for kind, _ in named)]
    assert kinds == [message.kind for message in messages]


def test_every_way_to_publish_takes_typed_payloads(orders: Queue, engine: Engine) -> None:
    """One, many, bulk, with options, and inside the caller's own transaction."""
    orders.publish(Order(id=1), key="k", headers={"h": 1})
    orders.publish_many([Refund(id=2), Publication(Order(id=3), priority=0, key="l")])
    assert 2 == orders.load([Order(id=4), Publication({"id": 5}, kind="Refund")])
    with engine.begin() as connection:
        orders.publish(Order(id=6), connection=connection)
        orders.publish_many([Order(id=7)], connection=connection)
    messages = consume_exactly(orders, 7)
    assert [1, 2, 3, 4, 5, 6, 7] == [message.payload.id for message in messages]
    assert ["Order", "Refund", "Order", "Order", "Refund", "Order", "Order"] == [
        message.kind for message in messages
    ]
    assert {"h": 1} == messages[0].headers


def test_every_way_to_consume_gives_typed_payloads(orders: Queue, engine: Engine) -> None:
    """Receive, stream, exchange and take decode as consume does."""
    orders.publish_many([Order(id=number) for number in range(5)])
    with orders.receive() as message:
        assert message is not None
        assert Order(id=0) == message.payload
    stream = orders.stream()
    streamed = next(stream)
    assert Order(id=1) == streamed.payload
    assert [Order(id=2)] == payloads(orders.exchange(streamed, 1))
    stream.close()
    with engine.begin() as connection:
        assert [Order(id=3), Order(id=4)] == payloads(orders.take(2, connection=connection))
    assert [Order(id=number) for number in (0, 1, 3, 4)] == payloads(archived(orders))


@pytest.mark.engines("sqlite")
def test_a_worker_hands_out_typed_payloads(make_service: MakeService, engine: Engine) -> None:
    """To plain, batch and transactional handlers."""
    service = make_service(reaper_interval=0.1)
    names = ("plain", "batched", "together")
    queues = [service.create_queue(name, kinds=BOTH) for name in names]
    effects.create(engine)
    worker = service.worker(concurrency=1, poll_interval=(0.005, 0.05))
    seen: list[tuple[str, object]] = []

    @worker.handle("plain")
    def plain(message: Message) -> None:
        seen.append(("plain", message.payload))

    @worker.handle("batched", batch=2)
    def batched(messages: list[Message]) -> None:
        seen.extend(("batched", message.payload) for message in messages)

    @worker.handle("together", transactional=True)
    def together(message: Message, connection: Connection) -> None:
        connection.execute(effects.insert().values(id=message.payload.id))
        seen.append(("together", message.payload))

    for queue in queues:
        queue.publish_many([Order(id=1), Refund(id=2)])
    with running(worker):
        wait_until(lambda: len(seen) == 6)
        wait_until(lambda: all(counts(queue) == (0, 0, 0) for queue in queues))
    for name in names:
        assert [Order(id=1), Refund(id=2)] == [payload for where, payload in seen if where == name]


def test_a_message_keeps_kind_and_type_in_all_its_lives(orders: Queue) -> None:
    """After a release, a nack, and a requeue from the archive it is the same payload."""
    orders.publish(Order(id=1))
    orders.consume()[0].release()
    orders.consume()[0].nack("busy", delay=0)
    (message,) = consume_exactly(orders, 1)
    assert Order(id=1) == message.payload
    assert 2 == message.attempt
    message.reject("no")
    assert 1 == orders.archive.messages().requeue()
    (message,) = orders.consume()
    assert "Order" == message.kind
    assert Order(id=1) == message.payload


@pytest.mark.engines("sqlite")
def test_lists_show_types_where_they_are_known(orders: Queue, make_service: MakeService) -> None:
    """Live and archived; what is unknown to the one who looks is shown as plain JSON."""
    orders.publish_many([Order(id=1), Refund(id=2)])
    narrow = make_service().create_queue("jobs", kinds=ORDERS)
    plain = make_service().queue("jobs")
    refund = {"id": 2, "reason": ""}
    assert [Order(id=1), Refund(id=2)] == payloads(orders.messages().list())
    assert [Order(id=1), refund] == payloads(narrow.messages().list())
    assert [{"id": 1}, refund] == payloads(plain.messages().list())
    orders.ack(orders.consume(2))
    assert [Order(id=1), Refund(id=2)] == payloads(archived(orders))
    assert [Order(id=1), refund] == payloads(archived(narrow))
    found = orders.archive.messages(kind="Refund").first()
    assert found is not None
    assert Refund(id=2) == found.payload


@pytest.mark.engines("sqlite")
def test_keys_compare_typed_payloads(orders: Queue) -> None:
    """Equal content is unchanged, other content replaces, and a taken key is told."""
    first = orders.publish(Order(id=1), key="k")
    assert "unchanged" == orders.publish(Order(id=1), key="k", on_conflict="replace").outcome
    assert "replaced" == orders.publish(Refund(id=9), key="k", on_conflict="replace").outcome
    assert "skipped" == orders.publish(Order(id=1), key="k", on_conflict="skip").outcome
    with pytest.raises(DuplicateKey):
        orders.publish(Order(id=1), key="k")
    (message,) = orders.consume(5)
    assert first.id == message.id
    assert Refund(id=9) == message.payload


@pytest.mark.engines("sqlite")
def test_a_kind_works_beside_columns_of_ones_own(service: QueueService) -> None:
    """Columns, priority and conditions are as on any queue."""
    queue = service.create_queue(
        "jobs", kinds=BOTH, priorities=2, columns=[Column("tenant", Integer)]
    )
    queue.publish(Order(id=1), priority=1, columns={"tenant": 5})
    queue.publish(Order(id=2), priority=0, columns={"tenant": 6})
    (message,) = queue.consume(5, where=queue.table.c.tenant == 5)
    assert Order(id=1) == message.payload
    assert 5 == message.columns["tenant"]


# -- queues with and without kinds


@pytest.mark.engines("sqlite")
def test_services_with_and_without_kinds(orders: Queue, make_service: MakeService) -> None:
    """Who knows no kinds gets plain JSON and the name of each kind, and publishes what it likes.

    What it publishes without a kind everybody gets as it is.
    """
    plain = make_service().queue("jobs")
    plain.publish({"id": "anything"})
    plain.publish(None)
    plain.publish({"id": 3}, kind="Order")
    assert [{"id": "anything"}, None, Order(id=3)] == payloads(orders.consume(3))
    orders.publish_many([Order(id=1), Refund(id=2)])
    assert [("Order", {"id": 1}), ("Refund", {"id": 2, "reason": ""})] == [
        (message.kind, message.payload) for message in plain.consume(2)
    ]


@pytest.mark.engines("sqlite")
def test_kinds_stay_when_the_queue_is_opened_again(service: QueueService) -> None:
    """What is not given stays as it is, and what is given last counts."""
    service.create_queue("jobs", kinds=ORDERS).publish(Order(id=1))
    assert [Order(id=1)] == payloads(service.queue("jobs").consume())
    again = service.create_queue("jobs", lease=60)
    again.publish(Order(id=2))
    assert [Order(id=2)] == payloads(again.consume())
    with pytest.raises(PayloadInvalid, match="Order"):
        again.publish(Refund(id=3))
    wider = service.create_queue("jobs", kinds=BOTH)
    wider.publish(Refund(id=3))
    assert [Refund(id=3)] == payloads(wider.consume())


@pytest.mark.engines("sqlite")
def test_kinds_may_be_given_when_a_queue_is_opened(make_service: MakeService) -> None:
    """A consumer need not create the queue; the same kinds once more change nothing."""
    make_service().create_queue("jobs", kinds=BOTH).publish_many([Order(id=1), Refund(id=2)])
    service = make_service()
    orders = service.queue("jobs", kinds=ORDERS)
    assert orders == service.queue("jobs")
    assert orders == service.queue("jobs", kinds=ORDERS)
    assert [Order(id=1)] == payloads(orders.consume(5))
    both = service.queue("jobs", kinds=BOTH)
    assert orders != both == service.queue("jobs")
    assert [Refund(id=2)] == payloads(both.consume(5))


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_kinds_of_a_queue_that_can_have_none(service: QueueService, engine: Engine) -> None:
    """The queue stays as it is, and can be opened without kinds."""
    with pytest.raises(QueueNotFound):
        service.queue("jobs", kinds=ORDERS)
    service.create_queue("jobs", payload="text").publish("a")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE mine (id INTEGER PRIMARY KEY)")
    service.adopt_queue("rows", "mine")
    for name in ("jobs", "rows"):
        with pytest.raises(ValueError, match="kinds need"):
            service.queue(name, kinds=ORDERS)
    with pytest.raises(TypeError, match="kinds must be"):
        service.queue("jobs", kinds=Order)  # type: ignore[call-overload]
    assert ["a"] == payloads(service.queue("jobs").consume())
    assert [] == service.queue("rows").consume()


@pytest.mark.engines("sqlite")
def test_kinds_may_be_given_at_boot(service: QueueService) -> None:
    """By ``create_queues``, each queue its own."""
    queues = service.create_queues(
        {"jobs": QueueSettings(kinds=ORDERS), "pings": QueueSettings(kinds={"ping": Ping})}
    )
    queues["jobs"].publish(Order(id=1))
    queues["pings"].publish({"host": "a"}, kind="ping")
    assert [Order(id=1)] == payloads(queues["jobs"].consume())
    assert [{"host": "a"}] == payloads(queues["pings"].consume())


@pytest.mark.engines("sqlite")
def test_a_queue_created_anew_keeps_the_kinds_of_the_code(make_service: MakeService) -> None:
    """Kinds are a property of each server's code, not of the queue that was dropped."""
    one, other = make_service(reaper_interval=0.1), make_service(reaper_interval=0.1)
    one.create_queue("jobs", kinds=BOTH).publish(Order(id=1))
    watching = other.create_queue("jobs", kinds=ORDERS)
    assert [Order(id=1)] == payloads(watching.consume())
    assert one.drop_queue("jobs")
    with pytest.raises(QueueNotFound):
        watching.consume()
    fresh = one.create_queue("jobs", kinds=BOTH)
    fresh.publish_many([Refund(id=2), Order(id=3)])
    assert [Order(id=3)] == payloads(consume_exactly(watching, 1))
    assert [Refund(id=2)] == payloads(consume_exactly(fresh, 1))


@pytest.mark.engines("sqlite")
def test_threads_share_the_kinds(orders: Queue) -> None:
    """Several threads publish and consume typed payloads through one queue object."""
    seen: list[Any] = []

    def work(number: int) -> None:
        for index in range(5):
            orders.publish(Order(id=10 * number + index))
            seen.extend(payloads(orders.consume()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    seen.extend(payloads(orders.consume(20)))
    expected = sorted(10 * number + index for number in range(3) for index in range(5))
    assert expected == sorted(order.id for order in seen)


# -- refusals


UNFIT: list[tuple[Any, str | None, str]] = [
    ({"id": "1"}, "Order", "kind 'Order': id: Input should be a valid integer"),
    ({}, "Refund", "kind 'Refund': id: Field required"),
    ({"id": 1}, "Ordr", "'Ordr' is unknown .* Order, Refund"),
    ({"id": 1}, None, "give kind= one of: Order, Refund"),
    (Address("x"), None, "Address .* one of: Order, Refund"),
    (Order(id=1), "Refund", "kind Order by its type Order, not of kind 'Refund'"),
    (Rush(id=1, minutes=5), None, "would not come back equal: minutes"),
    (Order.model_construct(id="x"), None, "kind 'Order': id: "),
]


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_what_does_not_fit_is_refused_and_nothing_published(orders: Queue, engine: Engine) -> None:
    """By every way to publish; the text names the kind, the fields, and what is known."""
    for payload, kind, text in UNFIT:
        many = [Order(id=1), Publication(payload, kind=kind)]
        with refused((payload, kind), PayloadInvalid, match=text):
            orders.publish(payload, kind=kind)
        with refused((payload, kind, "key"), PayloadInvalid, match=text):
            orders.publish(payload, kind=kind, key="k", on_conflict="replace")
        with refused((payload, kind, "publish_many"), PayloadInvalid, match=text):
            orders.publish_many(many)
        with refused((payload, kind, "load"), PayloadInvalid, match=text):
            orders.load(many)
        where = (payload, kind, "connection")
        with engine.begin() as connection, refused(where, PayloadInvalid, match=text):
            orders.publish(payload, kind=kind, connection=connection)
    assert 0 == orders.messages().count()


@pytest.mark.engines("sqlite")
def test_load_keeps_the_batches_before_a_refusal(orders: Queue) -> None:
    """As with any refusal: whole batches, never a part of one."""
    items = [Order(id=1), Order(id=2), Order(id=3), {"id": 4}]
    with pytest.raises(PayloadInvalid):
        orders.load(items, batch_size=2)
    assert [Order(id=1), Order(id=2)] == payloads(orders.messages().list())


@pytest.mark.engines("sqlite")
def test_a_typed_payload_may_be_too_large(service: QueueService) -> None:
    """The limit is on what is stored."""
    queue = service.create_queue("jobs", kinds=BOTH, max_payload_bytes=40)
    queue.publish(Refund(id=1, reason="x"))
    with pytest.raises(PayloadTooLarge):
        queue.publish(Refund(id=1, reason="x" * 40))


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_odd_settings_are_refused_and_nothing_created(service: QueueService) -> None:
    """The queue is not created with half of what was asked for."""
    odd: list[Any] = [[], {}, [Order, Order], {"": Order}, ["Order"], Order, [5]]
    for kinds in odd:
        with refused(kinds, *ARGUMENT_ERRORS, match="kind"):
            service.create_queue("jobs", kinds=kinds)
    limits: list[Any] = [0, -1, "1 day"]
    for timeout in limits:
        with refused(timeout, *ARGUMENT_ERRORS, match="kind_timeout"):
            service.create_queue("jobs", kinds=ORDERS, kind_timeout=timeout)
    assert [] == service.queues()


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_a_queue_without_kinds_says_how_to_publish_a_model(service: QueueService) -> None:
    """Its payloads are plain JSON values."""
    with pytest.raises(PayloadInvalid, match=r"kinds=\[Order\], or publish model_dump\("):
        service.create_queue("plain").publish(Order(id=1))


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_a_queue_without_kinds_says_how_to_publish_a_value(service: QueueService) -> None:
    """Types of databases are often not types of JSON."""
    queue = service.create_queue("plain")
    for value in (decimal.Decimal("1.50"), dt.date(2026, 1, 2), uuid.UUID(int=1)):
        with refused(value, PayloadInvalid, match="to text first, or use kinds="):
            queue.publish({"x": value})
        with refused(value, PayloadInvalid, match=r"to text first\.$"):
            queue.publish("x", headers={"x": value})
    with pytest.raises(PayloadInvalid, match=r"^(?!.*first)"):
        queue.publish({"x": float("inf")})
    assert 0 == queue.stats().live


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_kinds_need_json(service: QueueService) -> None:
    """On a new queue and on one that exists."""
    errors = (*ARGUMENT_ERRORS, QueueSchemaMismatch)
    for payload in ("text", "bytes"):
        name = f"of_{payload}"
        with refused(payload, *errors, match=r"(?i)json"):
            service.create_queue(name, payload=payload, kinds=ORDERS)
        assert name not in [queue.name for queue in service.queues()]
        service.create_queue(name, payload=payload)
        with refused(payload, *errors, match=r"(?i)json"):
            service.create_queue(name, kinds=ORDERS)


@pytest.mark.engines("sqlite")
def test_the_timeout_is_a_setting(service: QueueService) -> None:
    """A day, unless it is given; read back as a length of time."""
    queue = service.create_queue("jobs", kinds=ORDERS)
    assert dt.timedelta(days=1) == queue.settings.kind_timeout
    queue = service.create_queue("jobs", kind_timeout=90)
    assert dt.timedelta(seconds=90) == queue.settings.kind_timeout
