"""Queues for asyncio: the same classes and methods, to be awaited.

::

    from queue_over_sql.aio import AsyncQueueService

    async with AsyncQueueService("sqlite:///queue.db") as service:
        emails = await service.create_queue("emails")
        await emails.publish({"to": "ada@example.org"})
        async with emails.receive() as message:
            print(message.payload)

It requires the extra ``asyncio``. The synchronous code runs in greenlets of the event loop, so
there is no second implementation. It uses no threads, except those of SQLite's driver.
"""

from __future__ import annotations

try:
    import greenlet  # noqa: F401 - SQLAlchemy asks for it, and advises an extra of its own
except ModuleNotFoundError as error:
    text = "greenlet is not installed: install the extra asyncio of queue-over-sql"
    raise ModuleNotFoundError(text, name="greenlet") from error

from queue_over_sql.aio.queue import (
    AsyncAdoptedQueue,
    AsyncArchive,
    AsyncArchiveSelection,
    AsyncGroup,
    AsyncGroups,
    AsyncLiveSelection,
    AsyncMessage,
    AsyncQueue,
    AsyncSelection,
)
from queue_over_sql.aio.service import (
    AsyncMigrations,
    AsyncQueueService,
    AsyncRoles,
    AsyncSchedules,
    AsyncSqlApi,
    AsyncTopic,
    AsyncWorker,
)

__all__ = [
    "AsyncAdoptedQueue",
    "AsyncArchive",
    "AsyncArchiveSelection",
    "AsyncGroup",
    "AsyncGroups",
    "AsyncLiveSelection",
    "AsyncMessage",
    "AsyncMigrations",
    "AsyncQueue",
    "AsyncQueueService",
    "AsyncRoles",
    "AsyncSchedules",
    "AsyncSelection",
    "AsyncSqlApi",
    "AsyncTopic",
    "AsyncWorker",
]
