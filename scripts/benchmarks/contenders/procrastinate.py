"""procrastinate on PostgreSQL: its asynchronous worker, woken by LISTEN/NOTIFY.

Successful jobs are deleted, like acknowledged messages of others; by default they stay.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from importlib import metadata
from typing import Any

import procrastinate

from scripts.benchmarks.contenders.peer import SETTLING, Handled, PostgresqlPeer
from scripts.benchmarks.contenders.serving import HANDLER_SECONDS, serve

_AT_ONCE = 1000
_BESIDE = 10


class Procrastinate(PostgresqlPeer):
    """A worker that is considered dead may still finish its job."""

    name = "procrastinate"
    left = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
    ready = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'todo'"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._handled = Handled()
        self._pause = 0.0
        self._runner = asyncio.Runner()
        self._app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(conninfo=url, min_size=1, max_size=12)
        )
        self._task = self._app.task(name="note")(self._note)

    @property
    def version(self) -> str:
        """Of the installed package."""
        return metadata.version("procrastinate")

    async def _note(self, **content: Any) -> None:
        if self._pause:
            await asyncio.sleep(self._pause)
        self._handled.note(content)

    def content(self, payload: str) -> Any:
        """A task's arguments."""
        return json.loads(payload)

    def prepare(self) -> None:
        """Apply its schema."""
        self._runner.run(self._prepare())

    async def _prepare(self) -> None:
        async with procrastinate.App(
            connector=procrastinate.PsycopgConnector(conninfo=self.url)
        ).open_async() as app:
            await app.schema_manager.apply_schema_async()

    def open(self) -> None:
        """Open the pool of connections."""
        self._runner.run(self._open())

    async def _open(self) -> None:
        await self._app.open_async()

    def publish(self, payloads: list[Any], batch: int) -> None:
        """By ``defer_async`` or ``batch_defer_async``."""
        self._runner.run(self._publish(payloads, batch))

    async def _publish(self, payloads: list[Any], batch: int) -> None:
        if batch == 1:
            for payload in payloads:
                await self._task.defer_async(**payload)
            return
        for start in range(0, len(payloads), batch):
            await self._task.batch_defer_async(*payloads[start : start + batch])

    def work(self, threads: int, count: int, transactional: bool) -> tuple[float, list[int]]:
        """By its worker; threads are its concurrency."""
        del transactional
        handled = self._runner.run(self._work(threads, count))
        return handled.seconds, handled.numbers

    def prepare_groups(self) -> None:
        """Its queues keep the order of jobs with one lock."""

    def publish_groups(self, payloads: list[Any], groups: list[str]) -> None:
        """By ``batch_defer_async`` of tasks with a lock, as its documentation shows."""
        self._runner.run(self._publish_groups(payloads, groups))

    async def _publish_groups(self, payloads: list[Any], groups: list[str]) -> None:
        manager = self._app.job_manager
        locked = [
            self._task.configure(lock=name).job.evolve(task_kwargs=payload)
            for payload, name in zip(payloads, groups, strict=True)
        ]
        for start in range(0, len(locked), _AT_ONCE):
            await manager.batch_defer_jobs_async(locked[start : start + _AT_ONCE])

    def consume_groups(self, batch: int, seconds: float) -> list[int]:
        """By its worker, which has no batches: it fetches one job after another."""
        del batch
        return self._runner.run(self._consume_groups(seconds)).numbers

    async def _consume_groups(self, seconds: float) -> Handled:
        self._handled = Handled()
        worker = self._worker(_BESIDE)
        await asyncio.wait([worker], timeout=seconds)
        await self._stop(worker)
        return self._handled

    def tasks(self, tasks: int, count: int) -> tuple[float, list[int]]:
        """By its worker; tasks are its concurrency."""
        self._pause = HANDLER_SECONDS
        handled = self._runner.run(self._work(tasks, count))
        self._pause = 0.0
        return handled.seconds, handled.numbers

    def latency(self, count: int, ready: Callable[[], None]) -> dict[int, float]:
        """By its worker, which listens."""
        return self._runner.run(self._work(1, count, ready)).moments

    def idle(self, seconds: float) -> None:
        """By its worker, which listens."""
        self._runner.run(self._idle(seconds))

    async def _work(
        self, concurrency: int, count: int, ready: Callable[[], None] | None = None
    ) -> Handled:
        self._handled = Handled()
        worker = self._worker(concurrency)
        if ready:
            await asyncio.sleep(SETTLING)
            ready()
        ending = self._handled.until_async(count, None if ready else self._ready)
        waiting = asyncio.create_task(ending)
        # A worker that fails ends, and no more messages would come.
        await asyncio.wait([worker, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await self._stop(worker)
        return self._handled

    async def _idle(self, seconds: float) -> None:
        worker = self._worker(1)
        await asyncio.sleep(seconds)
        await self._stop(worker)

    def _worker(self, concurrency: int) -> asyncio.Task[None]:
        running = self._app.run_worker_async(
            concurrency=concurrency, delete_jobs="successful", install_signal_handlers=False
        )
        return asyncio.create_task(running)

    @staticmethod
    async def _stop(worker: asyncio.Task[None]) -> None:
        if worker.cancel():
            await asyncio.wait([worker])
        if not worker.cancelled():
            worker.result()

    def close(self) -> None:
        """Close the pool."""
        self._runner.run(self._close())
        self._runner.close()
        super().close()

    async def _close(self) -> None:
        await self._app.close_async()


if __name__ == "__main__":
    serve(Procrastinate)
