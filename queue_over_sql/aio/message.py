"""AsyncMessage: a message whose verbs are awaited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from queue_over_sql.aio.faces import Face, Fact, face_of, twin
from queue_over_sql.durations import Duration
from queue_over_sql.message import Message
from queue_over_sql.publications import Published

if TYPE_CHECKING:
    from queue_over_sql.aio.callers import CallersConnection


@face_of(Message)
class AsyncMessage(Face[Message]):
    """A message as it was claimed, found or archived; ``Message`` with verbs to be awaited."""

    __slots__ = ()

    id = Fact(Message.id)
    key = Fact(Message.key)
    kind = Fact(Message.kind)
    priority = Fact(Message.priority)
    attempt = Fact(Message.attempt)
    max_attempts = Fact(Message.max_attempts)
    columns = Fact(Message.columns)
    consumer_id = Fact(Message.consumer_id)
    consumer_round = Fact(Message.consumer_round)
    last_error = Fact(Message.last_error)
    published_at = Fact(Message.published_at)
    scheduled_at = Fact(Message.scheduled_at)
    available_at = Fact(Message.available_at)
    claimed_at = Fact(Message.claimed_at)
    last_attempt_at = Fact(Message.last_attempt_at)
    finished_at = Fact(Message.finished_at)
    lease_expires_at = Fact(Message.lease_expires_at)
    outcome = Fact(Message.outcome)
    reply_to = Fact(Message.reply_to)
    correlation_id = Fact(Message.correlation_id)
    claim = Fact(Message.claim)

    @property
    def queue(self) -> str:
        """Name of its queue."""
        return self._sync.queue

    @property
    def payload(self) -> Any:
        """As it was published; of an adopted table, the same mapping as ``row``."""
        return self._sync.payload

    @property
    def headers(self) -> dict[str, Any]:
        """As they were published; empty when there were none."""
        return self._sync.headers

    @property
    def row(self) -> Mapping[str, Any] | None:
        """Of an adopted table, the columns of the user's by name; None in other queues."""
        return self._sync.row

    @property
    def settled(self) -> bool:
        """Whether one of its verbs but ``extend`` was called."""
        return self._sync.settled

    @twin(Message.ack)
    async def ack(self, connection: CallersConnection | None = None) -> None: ...

    @twin(Message.nack)
    async def nack(
        self,
        error: str | BaseException | None = None,
        delay: Duration | None = None,
        connection: CallersConnection | None = None,
    ) -> None: ...

    @twin(Message.release)
    async def release(self, connection: CallersConnection | None = None) -> None: ...

    @twin(Message.reject)
    async def reject(self, reason: str, connection: CallersConnection | None = None) -> None: ...

    @twin(Message.extend)
    async def extend(
        self, lease: Duration | None = None, connection: CallersConnection | None = None
    ) -> None: ...

    @twin(Message.reply)
    async def reply(
        self,
        payload: Any,
        *,
        kind: str | None = None,
        headers: Mapping[str, Any] | None = None,
        connection: CallersConnection | None = None,
    ) -> Published: ...
