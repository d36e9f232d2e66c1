"""AsyncWorker: the run-loop around coroutine functions, on an event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.util import await_only

from queue_over_sql.aio.faces import Face, outward, run
from queue_over_sql.handlers import HandlerStopped, is_asynchronous
from queue_over_sql.queue import name_of
from queue_over_sql.worker import Worker

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.service import QueueService

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


class AsyncWorker(Face[Worker]):
    """Runs coroutine functions over the messages of queues. Made by ``service.worker()``."""

    __slots__ = ("_service",)

    def __init__(self, core: Worker, service: QueueService) -> None:
        super().__init__(core)
        self._service = service

    def handle(
        self,
        queue: str,
        *,
        transactional: bool = False,
        lease_keepalive: bool = True,
        batch: int | None = None,
        where: ColumnElement[bool] | None = None,
    ) -> Callable[[F], F]:
        """Make a coroutine function the handler of a queue.

        Args:
            queue: name of the queue; it must exist when the worker runs.
            transactional: call ``function(message, connection)`` with an ``AsyncConnection`` and
                commit what it writes through it together with the ack.
            lease_keepalive: renew the lease while the function runs.
            batch: call the function with a list of up to so many messages.
            where: only messages that match this SQLAlchemy condition on the queue's ``table``.
                With it a queue may have several handlers; what matches none of them stays.

        Raises:
            TypeError: the function is a plain one, ``where`` is no condition, or ``queue`` no
                queue.
            ValueError: the queue has a handler already, and not all of them have a ``where``.
        """
        name = name_of(queue)
        register = self._sync.handle(
            name,
            transactional=transactional,
            lease_keepalive=lease_keepalive,
            batch=batch,
            where=where,
        )

        def decorate(function: F) -> F:
            if not is_asynchronous(function) or inspect.isasyncgenfunction(function):
                msg = (
                    f"the handler of queue {name!r} must be a coroutine function (async def): a "
                    "plain one would block the event loop; call it by asyncio.to_thread in one"
                )
                raise TypeError(msg)
            register(self._bridge(function))
            return function

        return decorate

    async def run(self, *, signals: bool = False) -> None:
        """Handle messages until ``stop()`` or ``abort()``; starts the service where needed.

        When the task of this call is cancelled, handlers are cancelled, and what was being handled
        comes back. A service that was started here is stopped when the event loop ends.

        Args:
            signals: whether SIGTERM and SIGINT end it, too; for a program that is nothing but a
                worker. The first one drains: handlers that run are waited for, what was only
                claimed is released. A second one cancels the handlers. It needs a loop in the main
                thread; in any other, and by default, signals mean what they meant before.

        Raises:
            ValueError: there is no handler.
            QueueNotFound: a handler's queue does not exist.
            DatabaseUnavailable: the database cannot be reached at the start. Once running, the
                worker waits for a database that goes away.
        """
        await run(self._sync.run, signals=signals)

    def stop(self) -> None:
        """Let handlers that run finish, then end ``run()``; to be called in the event loop.

        What was only claimed is released. The service is not stopped.
        """
        self._sync.stop()

    def abort(self) -> None:
        """End ``run()`` at once: handlers are cancelled, their messages are given to others."""
        self._sync.abort()

    def _bridge(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., None]:
        """A plain function for the core, which awaits the coroutine function."""
        engine = AsyncEngine(self._service.connections.engine)

        def handler(argument: Any, *connection: Connection) -> None:
            lent = [AsyncConnection(engine, sync) for sync in connection]
            try:
                await_only(_awaited(function, outward(argument), *lent))
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise HandlerStopped from error
                raise

        return handler


async def _awaited(function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
    await function(*arguments)
