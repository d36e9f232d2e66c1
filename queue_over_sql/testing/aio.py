"""The test helpers for an event loop: coroutines with the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from queue_over_sql.inside.aio import Proxy, awaited, inward, run
from queue_over_sql.testing import clock, handlers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import ColumnElement

    from queue_over_sql import AsyncMessage, AsyncQueue, AsyncQueueService, AsyncWorker
    from queue_over_sql.inside.aio import CallersConnection

__all__ = ["AsyncClock", "drain", "published"]


class AsyncClock(Proxy[clock.Clock]):
    """Moves the database's clock forward for some services: the asynchronous ``Clock``.

    Args:
        service: the service whose clock moves.
        others: further services of the same test that use this clock.
    """

    __slots__ = ()

    def __init__(self, service: AsyncQueueService, *others: AsyncQueueService) -> None:
        super().__init__(clock.Clock(*map(inward, (service, *others))))

    advance = awaited(clock.Clock.advance)
    now = awaited(clock.Clock.now)


async def drain(worker: AsyncWorker, *, limit: int | None = None) -> int:
    """Run the handlers of a worker in this task until no message is due, and raise their errors.

    See ``queue_over_sql.testing.drain``.
    """
    return cast("int", await run(handlers.drain, cast("Any", worker), limit=limit))


async def published(
    queue: AsyncQueue,
    *,
    where: ColumnElement[bool] | None = None,
    payload: Mapping[str, Any] | None = None,
    key: str | None = None,
    kind: str | None = None,
    connection: CallersConnection | None = None,
) -> list[AsyncMessage]:
    """Return the unfinished messages of a queue, in publish order.

    See ``queue_over_sql.testing.published``.
    """
    found = await run(
        handlers.published,
        cast("Any", queue),
        where=where,
        payload=payload,
        key=key,
        kind=kind,
        connection=cast("Any", connection),
    )
    return cast("list[AsyncMessage]", found)
