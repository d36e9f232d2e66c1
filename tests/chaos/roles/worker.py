"""A server with a Worker whose handler can be slow or kill the process."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from sqlalchemy import Connection, make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection

from queue_over_sql import Message, QueueService
from queue_over_sql.aio import AsyncMessage, AsyncQueueService
from tests.chaos.journal import Journal
from tests.chaos.roles.protocol import emit, play


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the worker handles, and how long that takes it."""

    url: str
    journal: str
    queue: str = "jobs"
    concurrency: int = 2
    prefetch: int | None = None
    seconds: float = 0.0
    """How long a handler takes."""
    transactional: bool = False
    """Write `effects (token, attempt)` in the transaction of the ack."""
    timeout: float | None = None
    """How long a handler may take."""
    hanging: str = ""
    """The first attempt at a token that begins so never ends."""
    deadly: str = ""
    """The handling of this token kills the process, after its effect was written."""
    deadly_once: str = ""
    """A file: with it the deadly token kills only the first time."""
    consumer_timeout: float = 30.0
    reaper_interval: float = 0.2
    asynchronous: bool = False
    """Run coroutine functions on an event loop."""


class Handler:
    """Handles a message as the arguments say."""

    def __init__(self, arguments: Arguments) -> None:
        """Begin a journal of what is handled."""
        self._arguments = arguments
        self._journal = Journal(arguments.journal)

    def handle(self, message: Message) -> None:
        """Take the time, without effects."""
        self._journal.note("started", message)
        self._perhaps_die(message)
        if self._hangs(message):
            threading.Event().wait()
        time.sleep(self._arguments.seconds)
        self._journal.note("finished", message)

    def handle_in_transaction(self, message: Message, connection: Connection) -> None:
        """Write one effect in the transaction which the worker ends with the ack."""
        self._journal.note("started", message)
        connection.execute(
            text("INSERT INTO effects (token, attempt) VALUES (:token, :attempt)"),
            {"token": message.payload["token"], "attempt": message.attempt},
        )
        self._perhaps_die(message)
        if self._hangs(message):
            threading.Event().wait()
        time.sleep(self._arguments.seconds)
        self._journal.note("finished", message)

    async def await_handle(self, message: AsyncMessage) -> None:
        """Take the time on an event loop, without effects."""
        self._journal.note("started", message)
        self._perhaps_die(message)
        if self._hangs(message):
            await asyncio.Event().wait()
        await asyncio.sleep(self._arguments.seconds)
        self._journal.note("finished", message)

    async def await_handle_in_transaction(
        self, message: AsyncMessage, connection: AsyncConnection
    ) -> None:
        """Write one effect on an event loop, in the transaction of the ack."""
        self._journal.note("started", message)
        await connection.execute(
            text("INSERT INTO effects (token, attempt) VALUES (:token, :attempt)"),
            {"token": message.payload["token"], "attempt": message.attempt},
        )
        self._perhaps_die(message)
        if self._hangs(message):
            await asyncio.Event().wait()
        await asyncio.sleep(self._arguments.seconds)
        self._journal.note("finished", message)

    def _hangs(self, message: Message | AsyncMessage) -> bool:
        hanging = self._arguments.hanging
        first = message.attempt == 1 and message.payload["token"].startswith(hanging)
        return bool(hanging) and first

    def _perhaps_die(self, message: Message | AsyncMessage) -> None:
        if message.payload["token"] != self._arguments.deadly:
            return
        if self._arguments.deadly_once:
            try:
                Path(self._arguments.deadly_once).touch(exist_ok=False)
            except FileExistsError:
                return
        _die()


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


async def main_on_loop(arguments: Arguments) -> None:
    """Run on an event loop until a signal."""
    given = make_url(arguments.url)
    service = AsyncQueueService(
        given.set(drivername=given.get_backend_name()),
        consumer_timeout=arguments.consumer_timeout,
        reaper_interval=arguments.reaper_interval,
        **recorder(arguments),
    )
    worker = service.worker(concurrency=arguments.concurrency, prefetch=arguments.prefetch)
    handler = Handler(arguments)
    if arguments.transactional:
        register = worker.handle(arguments.queue, transactional=True, timeout=arguments.timeout)
        register(handler.await_handle_in_transaction)
    else:
        worker.handle(arguments.queue, timeout=arguments.timeout)(handler.await_handle)
    emit("ready")
    await worker.run(signals=True)
    emit("drained")


def recorder(arguments: Arguments) -> dict[str, Any]:
    """What notes the claims and settles of the worker; an earlier release has no observers."""
    try:
        from queue_over_sql.testing.history import Recorder
    except ImportError:
        return {}
    return {"observer": Recorder(arguments.journal, f"process-{os.getpid()}")}


def main(arguments: Arguments) -> None:
    """Run until a signal; `drained` is said when the worker has ended by itself."""
    if arguments.asynchronous:
        asyncio.run(main_on_loop(arguments))
        return
    service = QueueService(
        arguments.url,
        consumer_timeout=arguments.consumer_timeout,
        reaper_interval=arguments.reaper_interval,
        **recorder(arguments),
    )
    worker = service.worker(concurrency=arguments.concurrency, prefetch=arguments.prefetch)
    handler = Handler(arguments)
    # An earlier release knows no time limits.
    options: dict[str, Any] = {} if arguments.timeout is None else {"timeout": arguments.timeout}
    if arguments.transactional:
        register = worker.handle(arguments.queue, transactional=True, **options)
        register(handler.handle_in_transaction)
    else:
        worker.handle(arguments.queue, **options)(handler.handle)
    emit("ready")
    worker.run(signals=True)
    emit("drained")


if __name__ == "__main__":
    play(main, Arguments)
