"""The types that users of the asynchronous API see: mypy and pyright check them, nothing runs it.

``type: ignore`` marks what both must refuse: they complain about one that is not needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, assert_type

import queue_over_sql
from queue_over_sql import EditResult, Publication, Published, QueueStats, Schedule
from queue_over_sql.aio import (
    AsyncAdoptedQueue,
    AsyncArchiveSelection,
    AsyncLiveSelection,
    AsyncMessage,
    AsyncQueue,
    AsyncQueueService,
    AsyncTopic,
    AsyncWorker,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection


async def service(made: queue_over_sql.AsyncQueueService) -> None:
    """What a service gives."""
    assert_type(made, AsyncQueueService)
    assert_type(made.consumer_id, str | None)
    assert_type(await made.create_queue("jobs", priorities=3), AsyncQueue)
    assert_type(await made.queue("jobs"), AsyncQueue)
    assert_type(await made.queues(), list[AsyncQueue])
    assert_type(await made.create_topic("orders"), AsyncTopic)
    assert_type(made.worker(concurrency=2), AsyncWorker)
    made.worker(concurrency="2")  # type: ignore[arg-type]
    await made.queue(7)  # type: ignore[call-overload]
    added = await made.schedules.add("nightly", "jobs", {}, cron="@daily", kind="report")
    assert_type(added, Schedule)


async def publishing(queue: AsyncQueue, topic: AsyncTopic, mine: AsyncConnection) -> None:
    """The options are typed, and the connection is an asynchronous one."""
    assert_type(
        await queue.publish({}, key="a", delay=3, connection=mine, columns={"tenant": 7}), Published
    )
    assert_type(await queue.publish_many([{}], on_conflict="skip"), list[Published])
    assert_type(await queue.load([{}]), int)
    assert_type(await topic.publish({}, routing_key="a.b", connection=mine), list[Published])
    await queue.publish({}, priority="high")  # type: ignore[arg-type]
    await queue.publish({}, dealy=3)  # type: ignore[call-arg]
    await topic.publish({}, routing_key="a.b", headers=7)  # type: ignore[arg-type]
    await topic.publish({})  # type: ignore[call-arg]


async def asking(queue: AsyncQueue) -> None:
    """A request has the options of the synchronous one, and the reply is asynchronous."""
    reply = await queue.request(
        {}, timeout=5, kind="price", headers={"a": 1}, columns={"tenant": 7}
    )
    assert_type(reply, AsyncMessage)
    assert_type(reply.headers, dict[str, Any])
    await queue.request({})  # type: ignore[call-arg]
    await queue.request({}, timeout=5, lese=3)  # type: ignore[call-arg]
    await queue.request({}, timeout=5, priority="high")  # type: ignore[arg-type]


async def consuming(queue: AsyncQueue, mine: AsyncConnection, theirs: Connection) -> None:
    """Messages are asynchronous ones everywhere."""
    [message] = await queue.consume(1, wait=5)
    assert_type(message, AsyncMessage)
    assert_type(message.id, int)
    assert_type(message.key, str | None)
    assert_type(message.columns, Mapping[str, Any])
    assert_type(await queue.exchange(message, 2), list[AsyncMessage])
    assert_type(await queue.take(2, connection=mine), list[AsyncMessage])
    assert_type(queue.receive(), AbstractAsyncContextManager[AsyncMessage | None])
    assert_type(queue.holds(message), bool)
    assert_type(await message.reply({}), Published)
    async for each in queue.stream():
        assert_type(each, AsyncMessage)
    await message.ack(mine)
    await message.ack(theirs)  # type: ignore[arg-type]
    await queue.nack([message], error="late", delay=3)
    await queue.reject(message)  # type: ignore[call-arg]


async def looking(queue: AsyncQueue, adopted: AsyncAdoptedQueue) -> None:
    """Selections know which messages they have."""
    live = queue.messages(status="ready", key="a")
    assert_type(live, AsyncLiveSelection)
    assert_type(await live.list(), list[AsyncMessage])
    assert_type(await live.first(), AsyncMessage | None)
    assert_type(await live.hold(), EditResult)
    archived = queue.archive.messages(kind="b")
    assert_type(archived, AsyncArchiveSelection)
    assert_type(await archived.requeue(), EditResult)
    queue.messages(state="ready")  # type: ignore[call-arg]
    assert_type(await queue.stats(), QueueStats)
    assert_type(await adopted.enqueue(priority=1), int)


@dataclasses.dataclass
class Order:
    """A payload."""

    number: int


async def payloads(made: AsyncQueueService, adopted: AsyncAdoptedQueue) -> None:
    """The kinds of a queue say what its payloads are; without kinds they are anything."""
    orders = await made.create_queue("orders", kinds=[Order], lease=60)
    assert_type(orders, AsyncQueue[Order])
    assert_type(await made.queue("orders", kinds={"order": Order}), AsyncQueue[Order])
    await made.create_queue("orders", kinds=[Order], laese=60)  # type: ignore[call-overload]
    await orders.publish(Order(7), delay=3)
    await orders.publish({"number": 7})  # type: ignore[arg-type]
    await orders.publish_many([Order(7), Publication(Order(8), key="k")])
    await orders.publish_many([7])  # type: ignore[list-item]
    await orders.request(Order(7), timeout=3)
    assert_type(await orders.consume(), list[AsyncMessage[Order]])
    (held,) = await orders.consume(hold_for=600)
    assert_type(held.token, str)
    assert_type(await orders.held(held.token), AsyncMessage[Order])
    assert_type(await orders.held_many([held.token]), list[AsyncMessage[Order]])
    async with orders.receive() as received:
        assert_type(received, AsyncMessage[Order] | None)
    async for message in orders.stream():
        assert_type(message.payload, Order)
        str(message.payload.nubmer)  # type: ignore[attr-defined]
    for row in await adopted.consume():
        assert_type(row.payload, Mapping[str, Any])


async def of_order(message: AsyncMessage[Order]) -> int:
    """A handler for orders."""
    return message.payload.number


async def of_many(messages: Sequence[AsyncMessage]) -> None:
    """A handler for batches."""


async def with_connection(message: AsyncMessage, connection: AsyncConnection) -> None:
    """A transactional handler."""


async def with_another(message: AsyncMessage, connection: Connection) -> None:
    """No handler, because of its connection."""


def synchronous(message: AsyncMessage) -> None:
    """No handler on an event loop."""


async def handlers(
    worker: AsyncWorker,
    orders: AsyncQueue[Order],
    numbers: AsyncQueue[int],
    message: AsyncMessage[Order],
) -> None:
    """A handler is a coroutine function that takes what the worker gives it, and stays one."""
    assert_type(await worker.handle(orders)(of_order)(message), int)
    worker.handle("orders", timeout=3)(of_order)
    worker.handle(numbers)(of_order)  # type: ignore[arg-type]
    worker.handle(orders)(synchronous)  # type: ignore[type-var]
    worker.handle(orders, batch=10)(of_many)
    worker.handle(orders, batch=10)(of_order)  # type: ignore[arg-type]
    worker.handle(orders, transactional=True)(with_connection)
    worker.handle("orders", transactional=True)(with_another)  # type: ignore[arg-type]
    worker.handle("orders", transactional=True)(of_order)  # type: ignore[arg-type]
    worker.handle("orders", timeuot=3)  # type: ignore[call-overload]
