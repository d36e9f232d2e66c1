"""queue_over_sql through its public interface, on any engine."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from sqlalchemy import event, make_url

from queue_over_sql import Message, Publication, QueueService, Worker
from queue_over_sql.aio import AsyncMessage, AsyncQueueService
from queue_over_sql.service import parts_of
from scripts.benchmarks.contenders.serving import (
    HANDLER_SECONDS,
    PATIENCE,
    Contender,
    number_of,
    serve,
)

QUEUE = "workloads"
GROUPS = "groups"
DURABILITY = {
    "sqlite": "each publish reaches the disk; a claim or ack lost with the power is redelivered",
    "h2": "each commit is written; it survives the process, not a power cut",
}
# How long until a new worker has polled once and waits.
_SETTLED = 1.0
# How long a worker waits for its first message: MariaDB claims slowly after many deletes.
_READY = 2.0
# How long the worker of tasks waits for it: a busy machine starts 1,000 tasks slowly.
_FIRST = 10.0


class Ours(Contender):
    """The defaults of queue, service and worker, except for the command's arguments."""

    name = "queue_over_sql"
    durability = "each commit reaches the disk"
    fence = True
    transactional = True

    def __init__(self, url: str) -> None:
        super().__init__(url)
        backend = make_url(url).get_backend_name()
        self.durability = DURABILITY.get(backend, self.durability)
        # H2 has no asynchronous driver.
        self.asynchronous = backend != "h2"

    @property
    def version(self) -> str:
        """Of the installed package."""
        return version("queue-over-sql")

    def prepare(self) -> None:
        """Create the queue."""
        with QueueService(self.url) as service:
            service.create_queue(QUEUE)

    def open(self) -> None:
        """Register, and open the connections that publish and consume."""
        self._service = QueueService(self.url)
        self._service.start()
        self._queue = self._service.queue(QUEUE)
        self._queue.consume(1)

    def content(self, payload: str) -> Any:
        """A JSON value."""
        return json.loads(payload)

    def publish(self, payloads: list[Any], batch: int) -> None:
        """By ``publish`` or ``publish_many``."""
        if batch == 1:
            for payload in payloads:
                self._queue.publish(payload)
            return
        for start in range(0, len(payloads), batch):
            self._queue.publish_many(payloads[start : start + batch])

    def load(self, payloads: list[Any]) -> None:
        """By ``load``."""
        self._queue.load(payloads)

    def consume(self, batch: int, count: int) -> list[int]:
        """One by one by ``exchange``, as the worker does; several by ``consume`` and ``ack``."""
        finished: list[Message] = []

        def exchange(wanted: int) -> list[int]:
            if finished:
                finished[:] = self._queue.exchange(finished, wanted)
            else:
                finished[:] = self._queue.consume(wanted)
            return [number_of(message.payload) for message in finished]

        def consume(wanted: int) -> list[int]:
            messages = self._queue.consume(wanted)
            numbers = [number_of(message.payload) for message in messages]
            if messages:
                self._queue.ack(messages)
            return numbers

        numbers = self.until_empty(exchange if batch == 1 else consume, batch, count)
        if finished:
            self._queue.ack(finished)
            self.finished_at = time.monotonic()
        return numbers

    def prepare_groups(self) -> None:
        """First in first out, one message of a group in hand."""
        self._service.create_queue(GROUPS, group_limit=1)

    def publish_groups(self, payloads: list[Any], groups: list[str]) -> None:
        """By ``load``."""
        both = zip(payloads, groups, strict=True)
        self._service.queue(GROUPS).load(Publication(each, group=name) for each, name in both)

    def consume_groups(self, batch: int, seconds: float) -> list[int]:
        """By ``consume`` and ``ack``."""
        queue, end, numbers = self._service.queue(GROUPS), time.monotonic() + seconds, list[int]()
        while time.monotonic() < end:
            messages = queue.consume(batch, wait=0.1)
            queue.ack(messages)
            numbers += [number_of(message.payload) for message in messages]
        return numbers

    def take(self, batch: int, count: int) -> list[int]:
        """By ``take`` on the consumer's own connection."""
        with parts_of(self._service).connections.engine.connect() as connection:

            def take(wanted: int) -> list[int]:
                messages = self._queue.take(wanted, connection=connection)
                numbers = [number_of(message.payload) for message in messages]
                connection.commit()
                return numbers

            return self.until_empty(take, batch, count)

    def work(self, threads: int, count: int, transactional: bool) -> tuple[float, list[int]]:
        """By a worker with its own choice of prefetch.

        A batch is the prefetch, or how many messages share a commit if it is transactional.
        """
        seen: list[tuple[int, float]] = []
        together = transactional and self.batch > 1
        worker = self._service.worker(
            concurrency=threads, prefetch=self.batch if self.batch > 1 and not together else None
        )

        def note(message: Message, *_: Any) -> None:
            seen.append((number_of(message.payload), time.monotonic()))
            if len(seen) == count:
                worker.stop()

        shared = self.batch if together else 1
        worker.handle(QUEUE, transactional=transactional, commit_every=shared)(note)
        begun = time.monotonic()
        run_until_idle(worker, lambda: seen[-1][1] if seen else None, _READY, PATIENCE)
        last = max((moment for _, moment in seen), default=begun)
        return last - begun, [number for number, _ in seen]

    def tasks(self, tasks: int, count: int) -> tuple[float, list[int]]:
        """By an asynchronous worker."""
        return asyncio.run(self._tasks(tasks, count))

    async def _tasks(self, tasks: int, count: int) -> tuple[float, list[int]]:
        seen: list[tuple[int, float]] = []
        given = make_url(self.url)
        async with AsyncQueueService(given.set(drivername=given.get_backend_name())) as service:
            worker = service.worker(concurrency=tasks)

            @worker.handle(QUEUE)
            async def note(message: AsyncMessage) -> None:
                await asyncio.sleep(HANDLER_SECONDS)
                seen.append((number_of(message.payload), time.monotonic()))
                if len(seen) == count:
                    worker.stop()

            async def watch() -> None:
                while time.monotonic() < (seen[-1][1] + PATIENCE if seen else begun + _FIRST):  # noqa: ASYNC110 - a worker gives no event
                    await asyncio.sleep(0.05)
                worker.stop()

            begun = time.monotonic()
            watching = asyncio.create_task(watch())
            await worker.run()
            watching.cancel()
        last = max((moment for _, moment in seen), default=begun)
        return last - begun, [number for number, _ in seen]

    def latency(self, count: int, ready: Callable[[], None]) -> dict[int, float]:
        """By a worker of one thread."""
        received: dict[int, float] = {}
        worker = self._service.worker(concurrency=1)

        @worker.handle(QUEUE)
        def note(message: Message) -> None:
            received[number_of(message.payload)] = time.monotonic()
            if len(received) == count:
                worker.stop()

        timer = threading.Timer(_SETTLED, ready)
        timer.start()
        worker.run()
        return received

    def idle(self, seconds: float) -> int:
        """By a worker of one thread; the service's own statements count, too."""
        counted = itertools.count()
        engine = parts_of(self._service).connections.engine
        event.listen(engine, "before_cursor_execute", lambda *_: next(counted))
        worker = self._service.worker(concurrency=1)
        worker.handle(QUEUE)(print)
        timer = threading.Timer(seconds, worker.stop)
        timer.start()
        worker.run()
        return next(counted)

    def remaining(self) -> int:
        """From the statistics."""
        stats = self._queue.stats()
        return stats.ready + stats.delayed + stats.claimed + stats.held

    def close(self) -> None:
        """Stop the service."""
        self._service.stop()


def run_until_idle(
    worker: Worker, last: Callable[[], float | None], first_patience: float, patience: float
) -> None:
    """Run a worker until it has had no message for some seconds.

    Args:
        worker: the worker with its handlers.
        last: when it had its last message; None before the first.
        first_patience: how long it waits for the first one.
        patience: how long it waits for another.
    """
    ended, begun = threading.Event(), time.monotonic()

    def watch() -> None:
        while not ended.wait(0.05):
            at = last()
            due = begun + first_patience if at is None else at + patience
            if time.monotonic() > due:
                worker.stop()
                return

    watching = threading.Thread(target=watch)
    watching.start()
    worker.run()
    ended.set()
    watching.join()


if __name__ == "__main__":
    serve(Ours)
