"""AsyncTopic: publish to the queues that subscribed, on an event loop."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from queue_over_sql.aio.faces import Face, awaited, face_of, twin
from queue_over_sql.durations import Duration
from queue_over_sql.publications import Published
from queue_over_sql.topics import Topic

if TYPE_CHECKING:
    from queue_over_sql.aio.callers import CallersConnection
    from queue_over_sql.aio.queue import AsyncQueue


@face_of(Topic)
class AsyncTopic(Face[Topic]):
    """One topic; ``Topic`` with verbs to be awaited. Made by ``AsyncQueueService``."""

    __slots__ = ()

    subscriptions = awaited(Topic.subscriptions)

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._sync.name

    @twin(Topic.subscribe)
    async def subscribe(
        self,
        queue: AsyncQueue | str,
        pattern: str = "#",
        where: Mapping[str, Any] | None = None,
    ) -> None: ...

    @twin(Topic.unsubscribe)
    async def unsubscribe(self, queue: AsyncQueue | str, pattern: str | None = None) -> bool: ...

    @twin(Topic.publish)
    async def publish(
        self,
        payload: Any,
        *,
        routing_key: str,
        key: str | None = None,
        kind: str | None = None,
        headers: Mapping[str, Any] | None = None,
        priority: int = 0,
        delay: Duration | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        lease: Duration | None = None,
        on_conflict: str = "raise",
        connection: CallersConnection | None = None,
    ) -> list[Published]: ...
