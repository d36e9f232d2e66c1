"""The helpers for tests of handlers: ``drain`` and ``published``, and the service fixtures."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from queue_over_sql import FixedDelay, QueueService
from queue_over_sql.aio import AsyncMessage, AsyncQueueService
from queue_over_sql.testing import Clock, aio, drain, published
from queue_over_sql.testing.fixtures import (  # noqa: F401 - pytest finds them by their names
    queue_clock,
    queue_service,
    queue_url,
)
from tests.contract.queue_state import counts, payloads

if TYPE_CHECKING:
    from queue_over_sql import Message


class HandlerFailed(Exception):
    """What a handler of a test raises."""


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, queue_url: str) -> str:  # noqa: F811
    """A database in a file, or in memory."""
    return queue_url if request.param == "file" else "sqlite://"


def test_drain_runs_handlers_until_nothing_is_due(url: str) -> None:
    """What handlers publish is handled; batches, conditions and transactions are as in a worker.

    An error is raised once its message was nacked, and what it wrote is rolled back. What is due
    later stays.
    """
    with QueueService(url) as service:
        first = service.create_queue("first", retry=FixedDelay(3600))
        batches = service.create_queue("batches")
        worker = service.worker()
        seen: list[object] = []

        @worker.handle("batches", batch=2)
        def together(messages: list[Message]) -> None:
            seen.append(payloads(messages))

        @worker.handle("first", transactional=True, where=first.table.c.message_key.is_(None))
        def work(message: Message, connection: Connection) -> None:
            batches.publish(message.payload, connection=connection)
            if message.payload == "bad":
                raise HandlerFailed

        first.publish_many(["a", "b", "bad", "c"])
        first.publish("for nobody", key="k")
        first.publish("later", delay=60)
        with pytest.raises(HandlerFailed):
            drain(worker)
        assert ["a", "b"] == payloads(published(batches))
        [failed] = published(first, where=first.table.c.attempt_count == 1)
        assert "bad" == failed.payload
        assert "HandlerFailed: " == failed.last_error
        assert 4 == drain(worker)
        assert [["a", "b"], ["c"]] == seen
        assert {"bad", "for nobody", "later"} == set(payloads(published(first)))


def test_drain_stops_at_its_limit(queue_service: QueueService) -> None:  # noqa: F811
    """A handler that publishes without end is stopped there, also in the middle of a batch."""
    queue = queue_service.create_queue("jobs")
    worker = queue_service.worker()
    with pytest.raises(ValueError, match="no handler"):
        drain(worker)

    @worker.handle("jobs", batch=2)
    def again(messages: list[Message]) -> None:
        queue.publish_many([message.payload + 1 for message in messages])

    queue.publish_many([0, 0])
    assert 5 == drain(worker, limit=5)
    assert (2, 0, 0) == counts(queue)
    assert [2, 3] == payloads(published(queue))
    with pytest.raises(ValueError, match="limit"):
        drain(worker, limit=0)


def test_published_finds_by_field_and_key(queue_service: QueueService) -> None:  # noqa: F811
    """All that was published and is not finished, claimed or not, in more than one page."""
    queue = queue_service.create_queue("jobs")
    queue.publish({"to": "ada"}, key="k", delay=60)
    queue.publish_many([{"to": str(number)} for number in range(1000)])
    queue.consume()
    assert 1001 == len(published(queue))
    assert ["k"] == [message.key for message in published(queue, payload={"to": "ada"})]
    assert [{"to": "ada"}] == payloads(published(queue, key="k"))
    assert [] == published(queue, payload={"to": "bob"})


def test_published_sees_what_a_transaction_has_not_committed(
    queue_service: QueueService,  # noqa: F811
    queue_url: str,  # noqa: F811
) -> None:
    """With its connection, in more than one page; other connections do not see it."""
    queue = queue_service.create_queue("jobs")
    engine = create_engine(queue_url)
    with engine.begin() as connection:
        queue.publish_many([{"n": number} for number in range(501)], connection=connection)
        assert [] == published(queue)
        assert 501 == len(published(queue, connection=connection))
        assert [{"n": 7}] == payloads(published(queue, payload={"n": 7}, connection=connection))
        connection.rollback()
    engine.dispose()
    assert [] == published(queue)


def test_drain_on_an_event_loop(queue_url: str) -> None:  # noqa: F811
    """The same for coroutine functions, with a clock."""

    async def main() -> None:
        async with AsyncQueueService(queue_url) as service:
            queue = await service.create_queue("jobs", retry=FixedDelay(60))
            worker, clock = service.worker(), aio.AsyncClock(service)
            seen: list[object] = []

            @worker.handle("jobs", transactional=True)
            async def work(message: AsyncMessage, connection: object) -> None:
                del connection
                await asyncio.sleep(0)
                seen.append(message.payload)
                if message.attempt == 1:
                    raise HandlerFailed

            await queue.publish({"n": 1})
            with pytest.raises(HandlerFailed):
                await aio.drain(worker)
            assert 0 == await aio.drain(worker)
            engine = create_async_engine(queue_url.replace("sqlite:", "sqlite+aiosqlite:"))
            async with engine.connect() as connection:
                assert 1 == len(await aio.published(queue, connection=connection))
            await engine.dispose()
            [waiting] = await aio.published(queue, payload={"n": 1})
            assert waiting.available_at is not None
            assert waiting.available_at > await clock.now()
            await clock.advance(61)
            assert 1 == await aio.drain(worker, limit=3)
            assert [{"n": 1}] * 2 == seen

    asyncio.run(main())


def test_the_fixtures_belong_together(
    queue_service: QueueService,  # noqa: F811
    queue_clock: Clock,  # noqa: F811
) -> None:
    """The clock is that of the service, which nothing runs beside."""
    queue = queue_service.create_queue("jobs")
    queue.publish("x", delay=60)
    assert not queue_service.started
    assert [] == queue.consume()
    queue_clock.advance(61)
    assert ["x"] == payloads(queue.consume())


def test_the_plugin_is_not_loaded_by_itself(tmp_path: object) -> None:
    """Neither the package nor its helpers import pytest."""
    import subprocess
    import sys

    program = "import sys, queue_over_sql.testing; sys.exit('pytest' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=str(tmp_path))
