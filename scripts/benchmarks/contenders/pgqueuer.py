"""PgQueuer on PostgreSQL, with asyncpg and uvloop, as its command line runs it.

One manager with its own connection per thread. All its tables are logged, which is its default
`durable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from importlib import metadata
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.ports.repository import EntrypointExecutionParameter
from pgqueuer.queries import Queries

from scripts.benchmarks.contenders.peer import QUEUE, SETTLING, Handled, PostgresqlPeer
from scripts.benchmarks.contenders.serving import HANDLER_SECONDS, number_of, serve

_CLAIM = timedelta(seconds=30)
_BATCH = 100
"""Jobs that a manager dequeues at once. With 10, the default, it had a quarter of the rate."""


class Pgqueuer(PostgresqlPeer):
    """A claim ends when its heartbeats do; its holder can still log the job as done."""

    name = "pgqueuer"
    left = "SELECT count(*) FROM pgqueuer"
    ready = "SELECT count(*) FROM pgqueuer WHERE status = 'queued'"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._handled = Handled()
        self._pause = 0.0

    @property
    def version(self) -> str:
        """Of the installed package."""
        return metadata.version("pgqueuer")

    def content(self, payload: str) -> Any:
        """Payloads are bytes."""
        return payload.encode()

    def prepare(self) -> None:
        """Install its tables, all of them logged."""
        self._runner.run(self._prepare())

    async def _prepare(self) -> None:
        connection = await asyncpg.connect(self.url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    def open(self) -> None:
        """Connect."""
        self._runner.run(self._open())

    async def _open(self) -> None:
        self._connection = await asyncpg.connect(self.url)
        self._queries = Queries(AsyncpgDriver(self._connection))
        await self._queries.queue_size()

    def publish(self, payloads: list[Any], batch: int) -> None:
        """By ``enqueue``, of one or of a list."""
        self._runner.run(self._publish(payloads, batch))

    async def _publish(self, payloads: list[Any], batch: int) -> None:
        if batch == 1:
            for payload in payloads:
                await self._queries.enqueue(QUEUE, payload)
            return
        for start in range(0, len(payloads), batch):
            part = payloads[start : start + batch]
            await self._queries.enqueue([QUEUE] * len(part), part, [0] * len(part))

    def consume(self, batch: int, count: int) -> list[int]:
        """By ``dequeue`` and ``log_jobs``, as its worker does."""
        return self._runner.run(self._consume(batch, count))

    async def _consume(self, batch: int, count: int) -> list[int]:
        unlimited = {QUEUE: EntrypointExecutionParameter(concurrency_limit=0)}
        manager = uuid.uuid4()
        numbers: list[int] = []
        while len(numbers) < count and (
            jobs := await self._queries.dequeue(batch, unlimited, manager, None, _CLAIM)
        ):
            await self._queries.log_jobs([(job, "successful", None) for job in jobs])
            numbers += [number_of(job.payload) for job in jobs]
        return numbers

    def work(self, threads: int, count: int, transactional: bool) -> tuple[float, list[int]]:
        """By its queue managers, one per thread."""
        del transactional
        handled = self._runner.run(self._work(threads, count))
        return handled.seconds, handled.numbers

    def tasks(self, tasks: int, count: int) -> tuple[float, list[int]]:
        """By one queue manager, which runs each job in a task and limits them itself."""
        del tasks
        self._pause = HANDLER_SECONDS
        handled = self._runner.run(self._work(1, count))
        self._pause = 0.0
        return handled.seconds, handled.numbers

    def latency(self, count: int, ready: Callable[[], None]) -> dict[int, float]:
        """By a queue manager, which listens."""
        return self._runner.run(self._latency(count, ready)).moments

    def idle(self, seconds: float) -> None:
        """By a queue manager, which listens."""
        self._runner.run(self._idle(seconds))

    async def _work(self, threads: int, count: int) -> Handled:
        async with self._workers(threads):
            await self._handled.until_async(count, self._ready)
        return self._handled

    async def _latency(self, count: int, ready: Callable[[], None]) -> Handled:
        async with self._workers(1):
            await asyncio.sleep(SETTLING)
            ready()
            await self._handled.until_async(count)
        return self._handled

    async def _idle(self, seconds: float) -> None:
        async with self._workers(1):
            await asyncio.sleep(seconds)

    @contextlib.asynccontextmanager
    async def _workers(self, threads: int) -> AsyncIterator[None]:
        connections = [await asyncpg.connect(self.url) for _ in range(threads)]
        managers = [PgQueuer(AsyncpgDriver(connection)) for connection in connections]
        for manager in managers:
            manager.entrypoint(QUEUE)(self._note)
        self._handled = Handled()
        async with asyncio.TaskGroup() as group:
            for manager in managers:
                group.create_task(manager.qm.run(batch_size=_BATCH))
            yield
            for manager in managers:
                manager.qm.shutdown.set()
        for connection in connections:
            await connection.close()

    async def _note(self, job: Any) -> None:
        if self._pause:
            await asyncio.sleep(self._pause)
        self._handled.note(job.payload)

    def close(self) -> None:
        """Disconnect."""
        self._runner.run(self._connection.close())
        self._runner.close()
        super().close()


if __name__ == "__main__":
    serve(Pgqueuer)
