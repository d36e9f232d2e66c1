"""The types that users see: mypy and pyright check this module, nothing runs it.

``type: ignore`` marks what both must refuse: they complain about one that is not needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, assert_type

from queue_over_sql import (
    AdoptedQueue,
    Message,
    Publication,
    Published,
    Queue,
    QueueService,
    Worker,
)

if TYPE_CHECKING:
    import sqlite3

    import psycopg
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from queue_over_sql import Topic


@dataclasses.dataclass
class Order:
    """A payload."""

    number: int


@dataclasses.dataclass
class Refund:
    """Another one."""

    reason: str


def words(service: QueueService, queue: Queue, topic: Topic) -> None:
    """A word that is none of those that an option knows is refused."""
    queue.publish({}, key="k", on_conflict="skip")
    queue.publish({}, key="k", on_conflict="skpi")  # type: ignore[arg-type]
    queue.publish_many([], on_conflict="replce")  # type: ignore[arg-type]
    topic.publish({}, routing_key="a.b", on_conflict="rise")  # type: ignore[arg-type]
    queue.messages(status="held")
    queue.messages(status="done")  # type: ignore[arg-type]
    queue.archive.messages(status="done")
    queue.archive.messages(status="held")  # type: ignore[arg-type]
    service.create_queue("jobs", payload="text", archive="all")
    service.create_queue("jobs", payload="jsn")  # type: ignore[call-overload]
    service.create_queue("jobs", archive="every")  # type: ignore[call-overload]
    service.schedules.add("nightly", "jobs", {}, cron="@daily", missed="skip")
    service.schedules.add("nightly", "jobs", {}, cron="@daily", missed="none")  # type: ignore[arg-type]
    service.schedules.add("nightly", "jobs", {}, cron="@daily", lease=9, columns={"tenant": 7})
    service.schedules.add("nightly", "jobs", {}, cron="@daily", dealy=3)  # type: ignore[call-arg]
    service.worker(ack="each")
    service.worker(ack="all")  # type: ignore[arg-type]


def options(queue: Queue) -> None:
    """An option that there is not is no column: those have an argument."""
    queue.publish({}, delay=3, columns={"tenant": 7})
    queue.publish({}, dealy=3)  # type: ignore[arg-type]
    queue.request({}, timeout=3, columns={"tenant": 7})
    queue.request({}, timeout=3, lese=3)  # type: ignore[call-arg]


def connections(
    queue: Queue,
    message: Message,
    mine: Connection | Session | sqlite3.Connection | psycopg.Connection[Any],
) -> None:
    """A connection of SQLAlchemy or of a driver; anything else is refused."""
    assert_type(queue.publish({}, connection=mine), Published)
    message.ack(connection=mine)
    message.ack(connection="sqlite://")  # type: ignore[arg-type]
    queue.take(2, connection=queue)  # type: ignore[arg-type]


def queues(service: QueueService, adopted: AdoptedQueue) -> None:
    """The kinds of a queue say what its payloads are; without kinds they are anything."""
    assert_type(service.create_queue("jobs"), Queue)
    assert_type(service.create_queue("jobs", lease=60, payload="text"), Queue[Any])
    assert_type(service.queue("jobs"), Queue[Any])
    assert_type(service.create_queue("orders", kinds=[Order], lease=60), Queue[Order])
    assert_type(service.queue("orders", kinds={"order.created": Order}), Queue[Order])
    both: Queue[Order | Refund] = service.create_queue("both", kinds=[Order, Refund])
    both = service.queue("both", kinds={"order": Order, "refund": Refund})
    assert_type(both.consume(), list[Message[Order | Refund]])
    assert_type(service.queue("forms", kinds={"a": list[int]}), Queue[list[int]])
    service.queue("forms", kinds={"a": int | str, "b": Order})
    assert_type(adopted.consume(), list[Message[Mapping[str, Any]]])
    service.queue("orders", kinds=7)  # type: ignore[call-overload]
    service.create_queue("orders", kinds=[Order], laese=60)  # type: ignore[call-overload]


def payloads(orders: Queue[Order], plain: Queue, mine: Connection) -> None:
    """What is published and what is consumed have the type of the queue."""
    orders.publish(Order(7), delay=3)
    orders.publish(Refund("late"))  # type: ignore[arg-type]
    orders.publish_many([Order(7), Publication(Order(8), key="k")])
    orders.publish_many([Refund("late")])  # type: ignore[list-item]
    orders.load([Publication(Refund("late"), key="k")])  # type: ignore[arg-type]
    orders.request(Order(7), timeout=3)
    assert_type(orders.take(connection=mine), list[Message[Order]])
    assert_type(orders.exchange([], 2), list[Message[Order]])
    (held,) = orders.consume(hold_for="10m")
    assert_type(held.token, str)
    assert_type(orders.held(held.token), Message[Order])
    assert_type(orders.held_many([held.token]), list[Message[Order]])
    orders.held(held)  # type: ignore[arg-type]
    with orders.receive() as received:
        assert_type(received, Message[Order] | None)
    for message in orders.stream():
        assert_type(message.payload, Order)
        str(message.payload.nubmer)  # type: ignore[attr-defined]
        orders.ack(message)
        plain.ack([message])
    plain.publish({"number": 7})
    plain.publish_many([Order(7), {"number": 8}, Publication(9)])
    assert_type(plain.consume(), list[Message])
    assert_type(plain.consume()[0].payload, Any)


def of_any(message: Message) -> None:
    """A handler for any queue."""


def of_order(message: Message[Order]) -> int:
    """A handler for orders."""
    return message.payload.number


def of_either(message: Message[Order | Refund]) -> None:
    """A handler for orders and more."""


def of_refund(message: Message[Refund]) -> None:
    """A handler for something else."""


def of_many(messages: Sequence[Message[Order]]) -> None:
    """A handler for batches."""


def with_connection(message: Message[Order], connection: Connection) -> None:
    """A transactional handler."""


def many_with_connection(messages: list[Message[Order]], connection: Connection) -> None:
    """A transactional handler for batches."""


def late(message: Message, seconds: float) -> None:
    """Called for slow handlers."""


def handlers(worker: Worker, orders: Queue[Order], several: int | None) -> None:
    """A handler takes what the worker gives it, and stays what it is."""
    assert_type(worker.handle(orders)(of_order), Callable[[Message[Order]], int])
    worker.handle(orders, timeout="30s", slow_after=3, on_slow=late)(of_any)
    worker.handle(orders)(of_either)
    worker.handle(orders)(of_refund)  # type: ignore[arg-type]
    worker.handle(orders)(of_many)  # type: ignore[arg-type]
    worker.handle(orders)(with_connection)  # type: ignore[arg-type]
    worker.handle(orders, transactional=True)(with_connection)
    worker.handle(orders, transactional=True, commit_every=5)(of_order)  # type: ignore[arg-type]
    worker.handle(orders, batch=10)(of_many)
    worker.handle(orders, batch=10)(of_order)  # type: ignore[arg-type]
    worker.handle(orders, batch=10, transactional=True)(many_with_connection)
    worker.handle(orders, batch=10, transactional=True)(of_many)  # type: ignore[arg-type]
    worker.handle(orders, timeuot=3)  # type: ignore[call-overload]
    worker.handle("jobs")(of_any)
    worker.handle("jobs")(of_order)
    worker.handle("jobs")(with_connection)  # type: ignore[arg-type]
    worker.handle("jobs", transactional=several is None)(with_connection)
    worker.handle(7)  # type: ignore[call-overload]


class Decorated:
    """Handlers may be decorated."""

    def __init__(self, worker: Worker) -> None:
        @worker.handle("jobs", transactional=True)
        def book(message: Message, connection: Connection) -> str:
            return f"{message} {connection}"

        self.book = book

    def test(self, message: Message, connection: Connection) -> None:
        """And called as before."""
        assert_type(self.book(message, connection), str)
        self.book(message)  # type: ignore[call-arg]
