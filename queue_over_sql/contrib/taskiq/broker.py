"""A broker of taskiq over one queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any

from sqlalchemy import URL
from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from queue_over_sql import (
    AsyncMessage,
    AsyncQueue,
    AsyncQueueService,
    ClaimLost,
    DatabaseRefused,
    DatabaseUnavailable,
)

_log = logging.getLogger(__name__)
_LABELS = {"delay": float, "expires": float, "group": str, "priority": int}
"""Labels of a task that are options of its message, and their types; taskiq sends all as text."""
_POLL = 60.0
# Between tries while the database is away, or refuses.
_PAUSE = 1.0


class QueueBroker(AsyncBroker):
    """Sends tasks to a queue, and hands them to taskiq's workers.

    A worker holds a task until it has finished; the tasks of one that dies go to another. The queue
    counts each start, and after ``max_attempts`` keeps the task as a dead letter. Start the broker
    before you send tasks: ``await broker.startup()``.

    The labels ``delay``, ``expires`` (seconds), ``priority`` and ``group`` of a task are options of
    its message (see ``Publication``). The last two need a queue with ``priorities`` and
    ``group_limit``.

    Args:
        database: an SQLAlchemy URL of SQLite, PostgreSQL, MySQL or MariaDB.
        queue: the name of the queue, which is made where it is missing.
        service: arguments of ``AsyncQueueService``, as ``{"consumer_timeout": 30}``.
        settings: settings of the queue, as for ``create_queue``.
    """

    def __init__(
        self,
        database: str | URL,
        queue: str = "taskiq",
        *,
        service: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._database = database
        self._name = queue
        self._of_service = service or {}
        self._settings = {**settings, "payload": "bytes"}
        self._service: AsyncQueueService | None = None
        self._queue: AsyncQueue | None = None

    async def startup(self) -> None:
        """Connect to the database, and make the queue where it is missing."""
        if self._service is None:
            # Of this process and its loop, so it is made here.
            service = AsyncQueueService(self._database, **self._of_service)
            try:
                await service.start()
                self._queue = await service.create_queue(self._name, **self._settings)
            except BaseException:
                await service.stop()
                raise
            self._service = service
        await super().startup()

    async def shutdown(self) -> None:
        """Close the connections; what was received and not begun goes to other workers."""
        await super().shutdown()
        service, self._service, self._queue = self._service, None, None
        if service is not None:
            await service.stop()

    async def kick(self, message: BrokerMessage) -> None:
        """Publish a task; it is durable when this returns.

        Raises:
            RuntimeError: the broker was not started.
            TypeError, ValueError: a label is no option of a message.
            DatabaseUnavailable: it is unknown whether the task was published.
        """
        labels = message.labels
        options = {name: kind(labels[name]) for name, kind in _LABELS.items() if name in labels}
        headers = {"task": message.task_name, "task_id": message.task_id}
        await self._started().publish(message.message, headers=headers, **options)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks as they come, the oldest first, and hold each until taskiq acks it.

        It goes on when the database answers again: an error would end the worker with all that it
        runs.
        """
        queue = self._started()
        while True:
            try:
                messages = await queue.consume(keep=True, wait=_POLL)
                known = [each for each in messages if await self._is_known(each)]
            except ClaimLost as lost:
                _log.warning("A task goes to another worker: %s", lost)
                continue
            except (DatabaseUnavailable, DatabaseRefused) as error:
                _log.warning("No tasks for now: %s", error)
                await asyncio.sleep(_PAUSE)
                continue
            for message in known:
                yield AckableMessage(data=message.payload, ack=partial(_settle, message.ack))

    def _started(self) -> AsyncQueue:
        if self._queue is None:
            msg = "The broker is not started: call `await broker.startup()` first."
            raise RuntimeError(msg)
        return self._queue

    async def _is_known(self, message: AsyncMessage) -> bool:
        """Whether this worker can run a task; taskiq would ack, and so lose, what it cannot."""
        try:
            task = self.formatter.loads(message.payload)
            task.parse_labels()
        except Exception as error:  # noqa: BLE001 - formatters raise what they like
            reason = f"no task of taskiq: {type(error).__name__}: {error}"
            await _settle(partial(message.reject, reason))
            return False
        if self.find_task(task.task_name) is None:
            # Perhaps another worker, or the next release, knows it.
            reason = f"no task is called {task.task_name!r} here"
            await _settle(partial(message.nack, error=reason))
            return False
        return True


async def _settle(settle: Callable[[], Awaitable[None]]) -> None:
    """Settle a task, or try until the database lets it: the worker keeps its claim so long."""
    while True:
        try:
            await settle()
        except ClaimLost as lost:
            _log.warning("A task may run again: %s", lost)
        except (DatabaseUnavailable, DatabaseRefused) as error:
            _log.warning("The end of a task is not stored yet: %s", error)
            await asyncio.sleep(_PAUSE)
            continue
        return
