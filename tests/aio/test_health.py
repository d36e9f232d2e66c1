"""Health on an event loop: a blocked loop is not live."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from queue_over_sql.aio import AsyncQueueService
from queue_over_sql.observability import Health
from tests.waiting import wait_until


@contextmanager
def loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that this thread watches from outside; it ends as that of a program."""
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def stay() -> None:
        over = asyncio.Event()
        begun.set_result((asyncio.get_running_loop(), over))
        await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(stay()))
    thread.start()
    loop, over = begun.result(30)
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


@pytest.mark.engines("sqlite", "postgresql", "mysql", "mariadb")
def test_a_loop_that_is_blocked_is_not_live(url: str) -> None:
    """A handler that does not await holds up the heartbeat, too; afterwards all is well again."""
    go = threading.Event()

    async def work(service: AsyncQueueService) -> None:
        async with service:
            queue = await service.create_queue("jobs")
            worker = service.worker(concurrency=1)

            @worker.handle("jobs")
            async def block(message: object) -> None:
                assert message is not None
                # As a handler should not do.
                go.wait(60)
                worker.stop()

            watched.append(Health(worker, turn_timeout=1.5))
            await queue.publish(1)
            await worker.run()

    watched: list[Health] = []
    with loop_in_a_thread() as loop:
        service = AsyncQueueService(url, consumer_timeout=30)
        running = asyncio.run_coroutine_threadsafe(work(service), loop)
        wait_until(lambda: watched)
        [health] = watched
        wait_until(lambda: not health.live().ok)
        assert "it has been blocked for " in health.live().checks["event loop"]
        assert not health.ready().ok
        go.set()
        running.result(30)
        assert health.live().ok


@pytest.mark.engines("sqlite", "postgresql", "mysql", "mariadb")
def test_a_service_is_ready_while_its_loop_answers(url: str) -> None:
    """The question is put in the loop, and answered by its drivers."""
    with loop_in_a_thread() as loop:

        async def start() -> AsyncQueueService:
            service = AsyncQueueService(url)
            await service.start()
            return service

        service = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
        health = Health(service, database_timeout=60)
        assert {"heartbeat": "ok", "database": "ok"} == health.ready().checks
        assert {"event loop": "ok"} == health.live().checks
        began = time.monotonic()
        asyncio.run_coroutine_threadsafe(service.stop(), loop).result(30)
        wait_until(lambda: not health.ready().ok)
        assert time.monotonic() - began < 30
