"""AsyncSchedules: messages that are published again and again, on an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queue_over_sql.aio.faces import Face, awaited, face_of, twin
from queue_over_sql.durations import Duration
from queue_over_sql.schedules import Schedule, Schedules

if TYPE_CHECKING:
    from datetime import tzinfo

    from queue_over_sql.aio.queue import AsyncQueue


@face_of(Schedules)
class AsyncSchedules(Face[Schedules]):
    """The schedules of a service's queues; ``Schedules`` with verbs to be awaited."""

    __slots__ = ()

    list = awaited(Schedules.list)
    get = awaited(Schedules.get)
    upcoming = awaited(Schedules.upcoming)
    remove = awaited(Schedules.remove)
    pause = awaited(Schedules.pause)
    resume = awaited(Schedules.resume)
    fire_due = awaited(Schedules.fire_due)

    @twin(Schedules.add)
    async def add(
        self,
        name: str,
        queue: str | AsyncQueue,
        payload: Any,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str | tzinfo = "UTC",
        missed: str = "one",
        **publish_options: Any,
    ) -> Schedule: ...
