"""Selections and the archive of a queue, with verbs to be awaited."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from queue_over_sql.aio.faces import Face, Fact, awaited, awaited_list, face_of, outward, twin
from queue_over_sql.aio.message import AsyncMessage
from queue_over_sql.archive import Archive
from queue_over_sql.durations import Duration
from queue_over_sql.selection import ArchiveSelection, LiveSelection, Selection
from queue_over_sql.store import Edited

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import ColumnElement

    from queue_over_sql.aio.callers import CallersConnection

S = TypeVar("S", bound=Selection)


class AsyncSelection(Face[S]):
    """Some messages of a queue or of its archive; ``Selection`` with verbs to be awaited."""

    __slots__ = ()

    list = awaited_list(AsyncMessage, Selection.list)
    count = awaited(Selection.count)

    @twin(Selection.first)
    async def first(self) -> AsyncMessage | None: ...

    @twin(Selection.remove)
    async def remove(
        self,
        *,
        connection: CallersConnection | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Edited: ...


@face_of(LiveSelection)
class AsyncLiveSelection(AsyncSelection[LiveSelection]):
    """Some live messages; ``LiveSelection`` with verbs to be awaited."""

    __slots__ = ()

    @twin(LiveSelection.reschedule)
    async def reschedule(
        self,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        connection: CallersConnection | None = None,
    ) -> Edited: ...

    @twin(LiveSelection.prioritize)
    async def prioritize(
        self,
        *,
        priority: int | None = None,
        front: bool = False,
        connection: CallersConnection | None = None,
    ) -> Edited: ...

    @twin(LiveSelection.hold)
    async def hold(self, *, connection: CallersConnection | None = None) -> Edited: ...

    @twin(LiveSelection.unhold)
    async def unhold(self, *, connection: CallersConnection | None = None) -> Edited: ...


@face_of(ArchiveSelection)
class AsyncArchiveSelection(AsyncSelection[ArchiveSelection]):
    """Some finished messages; ``ArchiveSelection`` with verbs to be awaited."""

    __slots__ = ()

    @twin(ArchiveSelection.requeue)
    async def requeue(
        self,
        *,
        connection: CallersConnection | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Edited: ...


@face_of(Archive)
class AsyncArchive(Face[Archive]):
    """The finished messages that a queue keeps; ``Archive`` with verbs to be awaited.

    ``export`` writes its file on the event loop, page by page.
    """

    __slots__ = ()

    table = Fact(Archive.table)
    export = awaited(Archive.export)

    def messages(
        self,
        *,
        status: str | None = None,
        key: str | None = None,
        kind: str | None = None,
        payload: Mapping[str, Any] | None = None,
        where: ColumnElement[bool] | None = None,
    ) -> AsyncArchiveSelection:
        """Select archived messages; see ``Archive.messages``. Nothing is asked before a verb."""
        found: AsyncArchiveSelection = outward(
            self._sync.messages(status=status, key=key, kind=kind, payload=payload, where=where)
        )
        return found
