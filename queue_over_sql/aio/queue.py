"""Asynchronous queues, messages, selections and archives."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, Unpack

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

from queue_over_sql.aio.proxies import (
    Fact,
    Proxy,
    awaited,
    inward,
    outward,
    proxied,
    proxy_of,
    returned_as,
    run,
)
from queue_over_sql.archive.archive import Archive
from queue_over_sql.archive.selection import ArchiveSelection
from queue_over_sql.existing_tables.queue import AdoptedQueue
from queue_over_sql.groups.groups import Group, Groups
from queue_over_sql.message import Message, Payload, Payload_co, Published
from queue_over_sql.queue import Queue, core_of
from queue_over_sql.selection.operations import EditResult
from queue_over_sql.selection.selection import LiveSelection, Selection
from queue_over_sql.settings import UNSET
from queue_over_sql.values.durations import Duration

if TYPE_CHECKING:
    from types import TracebackType

    from sqlalchemy import ColumnElement, Table

    from queue_over_sql.message import DriverConnection, Publication
    from queue_over_sql.settings import EffectiveSettings
    from queue_over_sql.values.options import PublishOptions, RequestOptions
    from queue_over_sql.values.states import OnConflict, Outcome, Status

    CallersConnection: TypeAlias = (
        AsyncConnection | AsyncSession | async_scoped_session[Any] | DriverConnection
    )
    """What has the caller's own transaction."""


@proxy_of(Message)
class AsyncMessage(Proxy[Message], Generic[Payload_co]):
    """A message as it was claimed, listed or archived: the asynchronous ``Message``."""

    __slots__ = ()

    id: Fact[int] = Fact(Message.id)
    key: Fact[str | None] = Fact(Message.key)
    kind: Fact[str | None] = Fact(Message.kind)
    group: Fact[str | None] = Fact(Message.group)
    priority: Fact[int] = Fact(Message.priority)
    attempt: Fact[int] = Fact(Message.attempt)
    max_attempts: Fact[int] = Fact(Message.max_attempts)
    columns: Fact[Mapping[str, Any]] = Fact(Message.columns)
    consumer_id: Fact[str | None] = Fact(Message.consumer_id)
    consumer_round: Fact[int | None] = Fact(Message.consumer_round)
    token: Fact[str] = Fact(Message.token)
    last_error: Fact[str | None] = Fact(Message.last_error)
    published_at: Fact[datetime] = Fact(Message.published_at)
    scheduled_at: Fact[datetime] = Fact(Message.scheduled_at)
    available_at: Fact[datetime | None] = Fact(Message.available_at)
    expires_at: Fact[datetime | None] = Fact(Message.expires_at)
    claimed_at: Fact[datetime | None] = Fact(Message.claimed_at)
    last_attempt_at: Fact[datetime | None] = Fact(Message.last_attempt_at)
    finished_at: Fact[datetime | None] = Fact(Message.finished_at)
    lease_expires_at: Fact[datetime | None] = Fact(Message.lease_expires_at)
    cancelled: Fact[bool] = Fact(Message.cancelled)
    status: Fact[Status | Outcome | None] = Fact(Message.status)
    outcome: Fact[Outcome | None] = Fact(Message.outcome)
    reply_to: Fact[str | None] = Fact(Message.reply_to)
    correlation_id: Fact[str | None] = Fact(Message.correlation_id)

    @property
    def queue(self) -> str:
        """Name of its queue."""
        return self._sync.queue

    @property
    def payload(self) -> Payload_co:
        """The published payload; for an adopted table, the same mapping as ``row``."""
        found: Payload_co = self._sync.payload
        return found

    @property
    def headers(self) -> dict[str, Any]:
        """The published headers; may be empty."""
        return self._sync.headers

    @property
    def row(self) -> Mapping[str, Any] | None:
        """For an adopted table, your columns by name; None in other queues."""
        return self._sync.row

    @property
    def settled(self) -> bool:
        """Whether it was settled through this object."""
        return self._sync.settled

    @proxied(Message.ack)
    async def ack(
        self, connection: CallersConnection | None = None, *, result: Any = None
    ) -> None: ...

    @proxied(Message.nack)
    async def nack(
        self,
        error: str | BaseException | None = None,
        delay: Duration | None = None,
        connection: CallersConnection | None = None,
    ) -> None: ...

    @proxied(Message.release)
    async def release(
        self,
        connection: CallersConnection | None = None,
        *,
        delay: Duration | None = None,
        count: bool = False,
    ) -> None: ...

    @proxied(Message.reject)
    async def reject(self, reason: str, connection: CallersConnection | None = None) -> None: ...

    @proxied(Message.extend)
    async def extend(
        self, lease: Duration | None = None, connection: CallersConnection | None = None
    ) -> None: ...

    @proxied(Message.reply)
    async def reply(
        self,
        payload: Any,
        *,
        kind: str | None = None,
        headers: Mapping[str, Any] | None = None,
        connection: CallersConnection | None = None,
    ) -> Published: ...


S = TypeVar("S", bound=Selection)


class AsyncSelection(Proxy[S]):
    """The matching messages of a queue or of its archive: the asynchronous ``Selection``."""

    __slots__ = ()

    @proxied(Selection.list)
    async def list(
        self,
        limit: int = 100,
        after: int | None = None,
        *,
        newest_first: bool = False,
        connection: CallersConnection | None = None,
    ) -> list[AsyncMessage]: ...

    @proxied(Selection.count)
    async def count(self, *, connection: CallersConnection | None = None) -> int: ...

    @proxied(Selection.first)
    async def first(
        self, *, connection: CallersConnection | None = None
    ) -> AsyncMessage | None: ...

    @proxied(Selection.remove)
    async def remove(
        self,
        *,
        connection: CallersConnection | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> EditResult: ...


@proxy_of(LiveSelection)
class AsyncLiveSelection(AsyncSelection[LiveSelection]):
    """The matching live messages: the asynchronous ``LiveSelection``."""

    __slots__ = ()

    @proxied(LiveSelection.reschedule)
    async def reschedule(
        self,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        connection: CallersConnection | None = None,
    ) -> EditResult: ...

    @proxied(LiveSelection.prioritize)
    async def prioritize(
        self,
        *,
        priority: int | None = None,
        front: bool = False,
        connection: CallersConnection | None = None,
    ) -> EditResult: ...

    @proxied(LiveSelection.hold)
    async def hold(self, *, connection: CallersConnection | None = None) -> EditResult: ...

    @proxied(LiveSelection.set_max_attempts)
    async def set_max_attempts(
        self, max_attempts: int, *, connection: CallersConnection | None = None
    ) -> EditResult: ...

    @proxied(LiveSelection.unhold)
    async def unhold(self, *, connection: CallersConnection | None = None) -> EditResult: ...


@proxy_of(ArchiveSelection)
class AsyncArchiveSelection(AsyncSelection[ArchiveSelection]):
    """The matching finished messages: the asynchronous ``ArchiveSelection``."""

    __slots__ = ()

    @proxied(ArchiveSelection.requeue)
    async def requeue(
        self,
        *,
        connection: CallersConnection | None = None,
        progress: Callable[[int], None] | None = None,
        payload: Any = UNSET,
    ) -> EditResult: ...


@proxy_of(Archive)
class AsyncArchive(Proxy[Archive]):
    """The finished messages that a queue keeps: the asynchronous ``Archive``.

    ``export`` writes its file on the event loop, page by page.
    """

    __slots__ = ()

    table: Fact[Table] = Fact(Archive.table)
    messages = returned_as(AsyncArchiveSelection, Archive.messages)
    export = awaited(Archive.export)


@proxy_of(Group)
class AsyncGroup(Proxy[Group]):
    """One group of a queue's messages: the asynchronous ``Group``."""

    __slots__ = ()

    info = awaited(Group.info)
    configure = awaited(Group.configure)
    pause = awaited(Group.pause)
    resume = awaited(Group.resume)
    unblock = awaited(Group.unblock)

    @property
    def name(self) -> str:
        """Its name."""
        return self._sync.name


@proxy_of(Groups)
class AsyncGroups(Proxy[Groups]):
    """The groups of a queue's messages: the asynchronous ``Groups``."""

    __slots__ = ()

    list = awaited(Groups.list)

    def __getitem__(self, name: str) -> AsyncGroup:
        found: AsyncGroup = outward(self._sync[name])
        return found


@proxy_of(Queue)
class AsyncQueue(Proxy[Queue[Payload]], Generic[Payload]):
    """A queue: the asynchronous ``Queue``. ``AsyncQueueService`` creates it.

    A verb whose task is cancelled has the same effect as one whose process dies: a publish or
    settle is either done or not, and messages that it was claiming are released.
    """

    __slots__ = ()

    name: Fact[str] = Fact(Queue.name)
    title: Fact[str] = Fact(Queue.title)
    table: Fact[Table] = Fact(Queue.table)
    temporary: Fact[bool] = Fact(Queue.temporary)

    messages = returned_as(AsyncLiveSelection, Queue.messages)
    stats = awaited(Queue.stats)
    why = awaited(Queue.why)
    pause = awaited(Queue.pause)
    resume = awaited(Queue.resume)
    purge = awaited(Queue.purge)
    last_traceback = awaited(Queue.last_traceback)
    attempts = awaited(Queue.attempts)
    refresh = awaited(Queue.refresh)
    result = awaited(Queue.result)

    @property
    def settings(self) -> EffectiveSettings:
        """The last known settings; ``refresh()`` reads them now.

        While the queue is in use, they are read again at the reaper's interval, but at least every
        5 s.
        """
        return core_of(self._sync).context.known_settings

    @property
    def archive(self) -> AsyncArchive:
        """The archive, which holds finished messages."""
        found: AsyncArchive = outward(self._sync.archive)
        return found

    @property
    def groups(self) -> AsyncGroups:
        """The groups of its messages, by name, if it has a ``group_limit``."""
        found: AsyncGroups = outward(self._sync.groups)
        return found

    @proxied(Queue.publish)
    async def publish(
        self,
        payload: Payload,
        *,
        on_conflict: OnConflict = "raise",
        connection: CallersConnection | None = None,
        **options: Unpack[PublishOptions],
    ) -> Published: ...

    @proxied(Queue.publish_many)
    async def publish_many(
        self,
        items: Iterable[Payload | Publication[Payload]],
        *,
        on_conflict: OnConflict = "raise",
        connection: CallersConnection | None = None,
    ) -> list[Published]: ...

    @proxied(Queue.load)
    async def load(
        self,
        items: Iterable[Payload | Publication[Payload]],
        *,
        batch_size: int = 10_000,
        progress: Callable[[int], None] | None = None,
    ) -> int: ...

    @proxied(Queue.consume)
    async def consume(
        self,
        count: int = 1,
        *,
        lease: Duration | None = None,
        hold_for: Duration | None = None,
        keep: bool = False,
        wait: Duration = 0.0,
        where: ColumnElement[bool] | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> list[AsyncMessage[Payload]]: ...

    @proxied(Queue.held)
    async def held(
        self, token: str, *, connection: CallersConnection | None = None
    ) -> AsyncMessage[Payload]: ...

    @proxied(Queue.held_many)
    async def held_many(
        self, tokens: Sequence[str], *, connection: CallersConnection | None = None
    ) -> list[AsyncMessage[Payload]]: ...

    @proxied(Queue.edit)
    async def edit(
        self,
        message_id: int,
        *,
        payload: Any = UNSET,
        columns: Mapping[str, Any] | None = None,
        connection: CallersConnection | None = None,
    ) -> EditResult: ...

    @proxied(Queue.delete)
    async def delete(
        self, message_id: int, *, connection: CallersConnection | None = None
    ) -> bool: ...

    @proxied(Queue.cancel)
    async def cancel(
        self,
        message_id: int,
        reason: str | None = None,
        *,
        connection: CallersConnection | None = None,
    ) -> bool: ...

    @proxied(Queue.exchange)
    async def exchange(
        self,
        finished: AsyncMessage | Sequence[AsyncMessage],
        count: int = 1,
        *,
        lease: Duration | None = None,
        where: ColumnElement[bool] | None = None,
    ) -> list[AsyncMessage[Payload]]: ...

    @proxied(Queue.take)
    async def take(
        self,
        count: int = 1,
        *,
        connection: CallersConnection,
        where: ColumnElement[bool] | None = None,
    ) -> list[AsyncMessage[Payload]]: ...

    @proxied(Queue.ack)
    async def ack(
        self,
        messages: AsyncMessage | Sequence[AsyncMessage],
        *,
        connection: CallersConnection | None = None,
        result: Any = None,
    ) -> None: ...

    @proxied(Queue.nack)
    async def nack(
        self,
        messages: AsyncMessage | Sequence[AsyncMessage],
        *,
        error: str | BaseException | None = None,
        delay: Duration | None = None,
        connection: CallersConnection | None = None,
    ) -> None: ...

    @proxied(Queue.release)
    async def release(
        self,
        messages: AsyncMessage | Sequence[AsyncMessage],
        *,
        connection: CallersConnection | None = None,
        delay: Duration | None = None,
        count: bool = False,
    ) -> None: ...

    @proxied(Queue.reject)
    async def reject(
        self,
        messages: AsyncMessage | Sequence[AsyncMessage],
        reason: str,
        *,
        connection: CallersConnection | None = None,
    ) -> None: ...

    @proxied(Queue.extend)
    async def extend(
        self,
        messages: AsyncMessage | Sequence[AsyncMessage],
        lease: Duration | None = None,
        *,
        connection: CallersConnection | None = None,
    ) -> None: ...

    @proxied(Queue.request)
    async def request(
        self,
        /,
        payload: Payload,
        *,
        timeout: Duration,  # noqa: ASYNC109 - as the synchronous one
        **options: Unpack[RequestOptions],
    ) -> AsyncMessage: ...

    @proxied(Queue.reply)
    async def reply(
        self,
        message: AsyncMessage,
        payload: Any,
        *,
        kind: str | None = None,
        headers: Mapping[str, Any] | None = None,
        connection: CallersConnection | None = None,
    ) -> Published: ...

    def receive(
        self,
        *,
        wait: Duration = 0.0,
        lease: Duration | None = None,
        hold_for: Duration | None = None,
    ) -> AbstractAsyncContextManager[AsyncMessage[Payload] | None]:
        """Claim one message for an ``async with`` block: ack at its end, nack if it raises.

        If the block settles the message itself, nothing more is done. A cancelled block counts as
        one that raises. The message is None if none arrived in time.
        """
        return _Entered(self._sync.receive(wait=wait, lease=lease, hold_for=hold_for))

    def keep(
        self, messages: AsyncMessage | Sequence[AsyncMessage]
    ) -> AbstractAsyncContextManager[None]:
        """Renew the leases of claimed messages while an ``async with`` block runs.

        A message whose claim is lost meanwhile shows ``cancelled``.
        """
        return _Entered(self._sync.keep(inward(messages)))

    async def stream(
        self,
        *,
        prefetch: int = 1,
        wait: Duration | None = 0.0,
        lease: Duration | None = None,
        hold_for: Duration | None = None,
    ) -> AsyncGenerator[AsyncMessage[Payload], None]:
        """Yield messages one after another; the caller settles each of them. See ``Queue.stream``.

        If the loop may end early, use ``contextlib.aclosing``: it releases prefetched messages
        immediately. Otherwise they are released when the generator is garbage-collected.
        """
        messages = self._sync.stream(prefetch=prefetch, wait=wait, lease=lease, hold_for=hold_for)
        try:
            while (message := await run(next, messages, None)) is not None:
                yield message
        finally:
            await run(messages.close)

    def holds(self, message: AsyncMessage) -> bool:
        """Whether this consumer still holds a message, as far as it knows without a query."""
        return self._sync.holds(message._sync)  # noqa: SLF001 - proxies know each other


@proxy_of(AdoptedQueue)
class AsyncAdoptedQueue(AsyncQueue[Mapping[str, Any]]):
    """A queue over your own table: the asynchronous ``AdoptedQueue``."""

    __slots__ = ()

    count_new = awaited(AdoptedQueue.count_new)

    @proxied(AdoptedQueue.enqueue)
    async def enqueue(
        self,
        where: ColumnElement[bool] | None = None,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int = 0,
        connection: CallersConnection | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int: ...


class _Entered(AbstractAsyncContextManager[Any]):
    """A synchronous context manager; it is entered and left in greenlets."""

    def __init__(self, entered: AbstractContextManager[Any]) -> None:
        self._entered = entered

    async def __aenter__(self) -> Any:
        return await run(self._entered.__enter__)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        swallowed: bool | None = await run(self._entered.__exit__, kind, error, traceback)
        return swallowed
