"""Cancelling a task anywhere loses no message, duplicates none and breaks no connection."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy.util import await_only, greenlet_spawn

from queue_over_sql import ClaimLost, FixedDelay
from queue_over_sql.aio import AsyncMessage, AsyncQueue, AsyncQueueService
from queue_over_sql.aio.proxies import run as run_awaited
from queue_over_sql.aio.runtime import EventLoop
from queue_over_sql.database.connections import Connections
from queue_over_sql.queue import core_of
from queue_over_sql.queues import context
from tests.aio.interrupting import interrupt

# Three drivers: to cancel a claim or an exchange is tried with each in the default tier.
pytestmark = [pytest.mark.engines("sqlite", "postgresql", "mariadb"), pytest.mark.timeout(300)]
mostly_on_one = pytest.mark.default_on("postgresql")

MOST_AWAITS = 500
LONGEST_WAIT = 30.0


@pytest.fixture(autouse=True)
def settings_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operation first reads the queue's settings again, so that this is cancelled, too."""
    monkeypatch.setattr(context, "_LONGEST_REFRESH", 0.0)


Check = Callable[[AsyncQueue, int, bool], Awaitable[bool]]
"""Cancels an operation at one of its awaits, early or late; returns whether it was hit."""


async def at_every_await(service: AsyncQueueService, check: Check, *, late: bool) -> None:
    """Check each await in turn, until the operation was over before it was hit."""
    queue = await service.create_queue("jobs", retry=FixedDelay(0), max_attempts=1000)
    for at in range(1, MOST_AWAITS):
        if not await check(queue, at, late):
            assert at > 1, "it never awaited anything"
            break
    else:
        pytest.fail("it never ended")
    await queue.purge(claimed=True)
    published = await queue.publish("after")
    (message,) = await queue.consume(wait=LONGEST_WAIT)
    assert published.id == message.id
    assert "after" == message.payload
    await message.ack()
    assert 0 == (await queue.stats()).claimed


def run(url: str, check: Check) -> None:
    """Run it on one service: cancelled before the answer of each await, and after it."""

    async def main() -> None:
        async with AsyncQueueService(url, reaper_interval=0.2) as service:
            await at_every_await(service, check, late=False)
            await at_every_await(service, check, late=True)

    asyncio.run(main())


async def all_ready(queue: AsyncQueue, count: int) -> list[AsyncMessage]:
    """Claim what must be there, given back where it had been claimed, and no more than that."""
    found: list[AsyncMessage] = []
    async with asyncio.timeout(LONGEST_WAIT):
        while len(found) < count:
            found += await queue.consume(10, wait=0.5)
    assert count == len({message.id for message in found}) == len(found)
    return found


@pytest.mark.parametrize("cancelled_after", range(6))
@pytest.mark.parametrize("ended_after", range(6))
def test_what_nobody_took_is_given_back_though_the_loop_ends(
    cancelled_after: int, ended_after: int
) -> None:
    """Else a connection that came late is lost, and its pool tells whichever test runs then."""
    got: list[str] = []
    given_back: list[str] = []

    async def steps(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def main() -> None:
        answer = asyncio.get_running_loop().create_future()

        def get() -> str:
            got.append(await_only(answer))
            return got[0]

        obtaining = greenlet_spawn(EventLoop(1).obtained, get, given_back.append)
        caller = asyncio.create_task(obtaining)
        await steps(3)
        answer.set_result("connection")
        await steps(cancelled_after)
        caller.cancel()
        await steps(ended_after)
        if caller.done() and not caller.cancelled():
            given_back.append(caller.result())

    asyncio.run(main())
    assert got == given_back


@mostly_on_one
def test_a_cancelled_check_of_a_session_loses_no_connection(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A session of a background job gets its wait for locks back before others use it."""

    async def main() -> None:
        service = AsyncQueueService(url)
        queue = await service.create_queue("jobs")
        for late in (False, True):
            for at in range(1, MOST_AWAITS):
                with Connections.giving_way():
                    await queue.stats()
                hit, _ = await interrupt(queue.stats(), at, late=late)
                if not hit:
                    break
        await service.stop()

    asyncio.run(main())
    gc.collect()
    assert "garbage collector" not in caplog.text


@mostly_on_one
def test_a_cancelled_publish_is_there_once_or_not_at_all(url: str) -> None:
    """What is left of it is one whole message, or nothing."""

    async def check(queue: AsyncQueue, at: int, late: bool) -> bool:
        hit, published = await interrupt(queue.publish({"at": at}), at, late=late)
        ready = (await queue.stats()).ready
        assert ready in ({0, 1} if published is None else {1})
        for message in await queue.consume(5):
            assert {"at": at} == message.payload
            await message.ack()
        return hit

    run(url, check)


@mostly_on_one
def test_a_cancelled_batch_is_there_whole_or_not_at_all(url: str) -> None:
    """All messages of a transaction, or none."""

    async def check(queue: AsyncQueue, at: int, late: bool) -> bool:
        hit, _ = await interrupt(queue.publish_many(["a", "b", "c"]), at, late=late)
        assert (await queue.stats()).ready in {0, 3}
        await queue.purge()
        return hit

    run(url, check)


def test_a_cancelled_claim_is_given_back(url: str) -> None:
    """The same service gets the messages again, long before their lease ends."""

    async def check(queue: AsyncQueue, at: int, late: bool) -> bool:
        await queue.publish_many(["a", "b"])
        hit, messages = await interrupt(queue.consume(2), at, late=late)
        held = messages or await all_ready(queue, 2)
        assert ["a", "b"] == [message.payload for message in held]
        await queue.ack(held)
        return hit

    run(url, check)


def test_a_cancelled_claim_comes_back_without_another(url: str) -> None:
    """A service that was not started has no reaper, and may never claim again."""

    async def main() -> None:
        service = AsyncQueueService(url)
        queue = await service.create_queue("jobs")
        sync = core_of(queue._sync).context
        await queue.consume()
        await queue.publish_many(["a", "b"])
        for late in (False, True):
            for at in range(1, MOST_AWAITS):
                hit, messages = await interrupt(queue.consume(2), at, late=late)
                await queue.release(messages or [])
                async with asyncio.timeout(LONGEST_WAIT):
                    while (await queue.stats()).ready < 2:
                        await run_awaited(sync.consumer.heartbeat)
                if not hit:
                    break
            assert at > 1, "it never awaited anything"
        await service.stop()

    asyncio.run(main())


@mostly_on_one
def test_a_cancelled_ack_is_done_or_not(url: str) -> None:
    """The message is gone, or it is still held and may be acked again."""

    async def check(queue: AsyncQueue, at: int, late: bool) -> bool:
        await queue.publish("x")
        (message,) = await queue.consume(wait=LONGEST_WAIT)
        hit, _ = await interrupt(message.ack(), at, late=late)
        claimed = (await queue.stats()).claimed
        assert claimed in ({0, 1} if hit else {0})
        if claimed:
            await message.ack()
        return hit

    run(url, check)


@mostly_on_one
def test_a_cancelled_nack_keeps_the_message(url: str) -> None:
    """It is back in the queue, or still held."""

    async def check(queue: AsyncQueue, at: int, late: bool) -> bool:
        await queue.publish("x")
        (message,) = await queue.consume(wait=LONGEST_WAIT)
        hit, _ = await interrupt(message.nack("no"), at, late=late)
        stats = await queue.stats()
        assert 1 == stats.claimed + stats.ready
        if stats.claimed:
            await message.release()
        (again,) = await all_ready(queue, 1)
        await again.ack()
        return hit

    run(url, check)


def test_a_cancelled_exchange_acks_nothing_by_accident(url: str) -> None:
    """Only the finished message can be gone; the next one is there, claimed by nobody."""

    async def check(queue: AsyncQueue, at: int, late: bool) -> bool:
        await queue.publish_many(["first", "next"])
        (first,) = await queue.consume(1, wait=LONGEST_WAIT)
        hit, claimed = await interrupt(queue.exchange(first, 1), at, late=late)
        following = claimed or await all_ready(queue, 1)
        assert ["next"] == [message.payload for message in following]
        try:
            await first.ack()
        except ClaimLost:
            assert 0 == (await queue.stats()).ready
        await queue.ack(following)
        return hit

    run(url, check)


@mostly_on_one
def test_a_cancelled_block_gives_its_message_back(url: str) -> None:
    """Whether it is cancelled while claiming, inside the block or while acking."""

    async def block(queue: AsyncQueue) -> None:
        async with queue.receive() as message:
            assert message is not None
            await asyncio.sleep(0)

    async def check(queue: AsyncQueue, at: int, late: bool) -> bool:
        await queue.publish("x")
        hit, _ = await interrupt(block(queue), at, late=late)
        stats = await queue.stats()
        left = stats.ready + stats.claimed
        assert left in ({0, 1} if hit else {0})
        # What was claimed and never came into the block is given back by the next claim; what was
        # in the block was nacked, unless the ack itself was hit.
        await run_awaited(core_of(queue._sync).claimer.recall)
        for message in await queue.consume(5):
            await message.ack()
        await queue.purge(claimed=True)
        return hit

    run(url, check)


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
def test_nothing_is_lost_from_a_database_in_memory(late: bool) -> None:
    """Its only connection outlives every cancellation."""

    async def main() -> None:
        async with AsyncQueueService("sqlite://") as service:
            queue = await service.create_queue("jobs")
            kept = await queue.publish("kept")
            held = await queue.consume()
            for at in range(1, 60):
                operation: Any = queue.publish("x") if at % 2 else queue.consume(5)
                _, done = await interrupt(operation, at // 2 + 1, late=late)
                if isinstance(done, list):
                    await queue.release(done)
                await run_awaited(core_of(queue._sync).claimer.recall)
            assert [kept.id] == [message.id for message in held]
            await queue.ack(held)
            ready, there = (
                await queue.messages(status="ready").count(),
                await queue.messages().count(),
            )
            assert ready == there

    asyncio.run(main())
