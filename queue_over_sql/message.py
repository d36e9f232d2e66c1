"""Messages: what is published, what comes out of a queue, and the words for their states."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from queue_over_sql.durations import Duration, instant, optional_instant, stored_number
from queue_over_sql.errors import QueueError

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, scoped_session

    class DriverConnection(Protocol):
        """A connection of a driver, or Django's."""

        def cursor(self, *args: Any, **options: Any) -> Any: ...  # noqa: D102
        def close(self, *args: Any, **options: Any) -> Any: ...  # noqa: D102

    CallersConnection: TypeAlias = Connection | Session | scoped_session[Any] | DriverConnection
    """What has the caller's own transaction."""


PREVIOUS_ERROR: Final = "previous_error"
"""The header in which a message that was sent again carries the reason it had failed for."""

REPLY_TO: Final = "reply_to"
"""The header in which a request names the queue that its reply goes to."""

CORRELATION_ID: Final = "correlation_id"
"""The header that a request and its reply share."""

UNFIT_SINCE: Final = "unfit_since"
"""The header that tells, in seconds since the epoch, since when a message that does not fit its
kind waits for a server that knows better."""

SCHEDULE: Final = "schedule"
"""The header in which a message carries the name of its schedule."""

TOPIC: Final = "topic"
"""The header that names the topic to which a message was published."""

ROUTING_KEY: Final = "routing_key"
"""The header with the routing key under which a message was published to a topic."""


class PublishOutcome(enum.StrEnum):
    """What a publish did about its key."""

    CREATED = "created"
    SKIPPED = "skipped"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"


@dataclasses.dataclass(frozen=True)
class Publication:
    """One message to be published, with its options.

    ``publish`` and ``request`` take the options as keywords; ``publish_many`` and ``load`` take
    this object.

    Args:
        payload: a JSON value, a ``str`` or ``bytes``, by the queue's payload type.
        key: at most one live message of the queue has it; up to 200 characters.
        kind: name of the payload's type, up to 100 characters.
        headers: string keys to JSON values, up to 64 KiB.
        priority: 0 is the most urgent; up to the queue's ``priorities`` - 1.
        delay: stays invisible for so long.
        at: stays invisible until then; instead of ``delay``.
        max_attempts: deliveries before it is a dead letter, instead of the queue's.
        lease: how long a claim holds, instead of the queue's.
        columns: values of the queue's own columns, by name.
    """

    payload: Any
    _: dataclasses.KW_ONLY
    key: str | None = None
    kind: str | None = None
    headers: Mapping[str, Any] | None = None
    priority: int = 0
    delay: Duration | None = None
    at: datetime | None = None
    max_attempts: int | None = None
    lease: Duration | None = None
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)


PUBLISH_OPTIONS: Final = tuple(field.name for field in dataclasses.fields(Publication))[1:]
"""The options of a publication by name, in their order; the queue's own columns are the last."""


@dataclasses.dataclass(frozen=True)
class Published:
    """What became of a publication.

    Attributes:
        id: id of the live message; with ``skipped`` that of the one that was there, or that
            finished within the queue's ``dedup_window``.
        outcome: ``created``, ``skipped``, ``replaced`` or ``unchanged``.
        queue: which queue got this copy of a message to a topic; None of a message to one queue.
    """

    id: int
    outcome: PublishOutcome = PublishOutcome.CREATED
    queue: str | None = None

    def __init__(
        self,
        id: int,  # noqa: A002 - the attribute's name
        outcome: PublishOutcome = PublishOutcome.CREATED,
        queue: str | None = None,
    ) -> None:
        # A batch has thousands: the one that is generated for frozen classes takes twice the time.
        values = self.__dict__
        values["id"] = id
        values["outcome"] = outcome
        values["queue"] = queue


class Status(enum.StrEnum):
    """Where a live message stands."""

    READY = "ready"
    DELAYED = "delayed"
    CLAIMED = "claimed"
    HELD = "held"


class Outcome(enum.StrEnum):
    """How an archived message ended."""

    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"
    EXPIRED = "expired"


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """The stamp of one claim; every change of the message is fenced by it."""

    consumer_id: str
    consumer_round: int


class Settler(Protocol):
    """What a message needs of its queue."""

    def ack(self, messages: Any, *, connection: Any = None) -> None: ...  # noqa: D102
    def nack(  # noqa: D102
        self, messages: Any, *, error: Any = None, delay: Any = None, connection: Any = None
    ) -> None: ...
    def release(  # noqa: D102
        self, messages: Any, *, connection: Any = None, delay: Any = None
    ) -> None: ...
    def reject(self, messages: Any, reason: str, *, connection: Any = None) -> None: ...  # noqa: D102
    def extend(self, messages: Any, lease: Any = None, *, connection: Any = None) -> None: ...  # noqa: D102
    def reply(self, message: Any, reply: Publication, connection: Any) -> Published: ...  # noqa: D102


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """Stands in a row for a value of an own column that its type cannot make."""

    error: Exception


class MessageRow(NamedTuple):
    """A row of a queue's table, as the store reads it; times are microseconds since the epoch."""

    id: int
    message_key: str | None
    kind: str | None
    payload: Any
    headers: str | None
    priority: int
    published_at: int
    scheduled_at: int
    available_at: int | None
    attempt_count: int
    max_attempts: int | None
    lease_us: int | None
    consumer_id: str | None
    consumer_round: int | None
    claimed_at: int | None
    lease_expires_at: int | None
    last_attempt_at: int | None
    last_error: str | None
    columns: Mapping[str, Any]
    finished_at: int | None = None
    outcome: str | None = None
    listed: bool = False

    @property
    def claim(self) -> Claim | None:
        """The stamp of the claim; None where the row was only looked at."""
        if self.listed or self.consumer_id is None or self.consumer_round is None:
            return None
        return Claim(self.consumer_id, self.consumer_round)

    @property
    def claimed_lease_us(self) -> int | None:
        """Length of the lease at the claim."""
        if self.lease_expires_at is None or self.claimed_at is None:
            return None
        return self.lease_expires_at - self.claimed_at


AGE = attrgetter("available_at", "id")
"""What rows are sorted by: the oldest first."""


class Message:
    """A message as it was claimed, found or archived; its facts are read-only.

    Attributes:
        queue: name of its queue.
        payload: as it was published; of an adopted table, the same mapping as ``row``.
        headers: as they were published; empty when there were none.
        row: of an adopted table, the columns of the user's by name, read-only, as they were when
            the message was claimed or listed; None in other queues.
        settled: whether one of its verbs but ``extend`` was called.
    """

    __slots__ = (
        "_cancelled",
        "_lease_expires_at",
        "_on_cancelled",
        "_queue_max_attempts",
        "_row",
        "_settler",
        "headers",
        "payload",
        "queue",
        "row",
        "settled",
    )

    def __init__(
        self,
        row: MessageRow,
        *,
        queue: str,
        settler: Settler,
        payload: Any,
        headers: dict[str, Any],
        queue_max_attempts: int,
        own_row: Mapping[str, Any] | None = None,
    ) -> None:
        self._row = row
        self._settler = settler
        self._lease_expires_at = row.lease_expires_at
        self._queue_max_attempts = queue_max_attempts
        self.settled = False
        self._cancelled = False
        self._on_cancelled: Callable[[], None] | None = None
        self.queue = queue
        self.payload: Any = payload
        self.headers = headers
        self.row = own_row

    @property
    def id(self) -> int:
        """The publish order, unique in its queue for ever."""
        return self._row.id

    @property
    def key(self) -> str | None:
        """The key, of which a queue has at most one live message."""
        return self._row.message_key

    @property
    def kind(self) -> str | None:
        """Name of the payload's type."""
        return self._row.kind

    @property
    def reply_to(self) -> str | None:
        """Name of the queue that the reply to a request goes to; None on any other message."""
        return _text(self.headers.get(REPLY_TO))

    @property
    def correlation_id(self) -> str | None:
        """What a request and its reply have in common; None on any other message."""
        return _text(self.headers.get(CORRELATION_ID))

    @property
    def priority(self) -> int:
        """How urgent it is; 0 is the most urgent."""
        return self._row.priority

    @property
    def attempt(self) -> int:
        """Number of this delivery, from 1; 0 on a message that was never delivered."""
        return self._row.attempt_count

    @property
    def max_attempts(self) -> int:
        """Deliveries before it is a dead letter."""
        own = self._row.max_attempts
        return stored_number("max_attempts", own) if own else self._queue_max_attempts

    @property
    def columns(self) -> Mapping[str, Any]:
        """Values of the queue's own columns, by name."""
        return self._row.columns

    @property
    def consumer_id(self) -> str | None:
        """Who claimed it."""
        return self._row.consumer_id

    @property
    def consumer_round(self) -> int | None:
        """The round of that consumer in which it was claimed."""
        return self._row.consumer_round

    @property
    def last_error(self) -> str | None:
        """The reason of its last failure."""
        return self._row.last_error

    @property
    def published_at(self) -> datetime:
        """When it was published, by the database's clock."""
        return instant(self._row.published_at)

    @property
    def scheduled_at(self) -> datetime:
        """When it was first due."""
        return instant(self._row.scheduled_at)

    @property
    def available_at(self) -> datetime | None:
        """When it is due now; None while it is held."""
        return optional_instant(self._row.available_at)

    @property
    def claimed_at(self) -> datetime | None:
        """When it was claimed."""
        return optional_instant(self._row.claimed_at)

    @property
    def last_attempt_at(self) -> datetime | None:
        """When it failed last."""
        return optional_instant(self._row.last_attempt_at)

    @property
    def finished_at(self) -> datetime | None:
        """When it was archived; None on a live message."""
        return optional_instant(self._row.finished_at)

    @property
    def lease_expires_at(self) -> datetime | None:
        """When the claim ends unless it is extended; follows ``extend``."""
        return optional_instant(self._lease_expires_at)

    @property
    def cancelled(self) -> bool:
        """Whether to stop working on it: its claim is lost, or its time is over.

        A worker sets it when the handler's ``timeout`` has passed, or when it finds, as it renews
        leases, that the claim is lost: the lease or the consumer expired, or the message was
        cancelled, deleted or replaced. It asks nobody, and is never False again.
        """
        return self._cancelled

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None on a live message.

        Raises:
            QueueError: the archive holds something else.
        """
        try:
            return None if self._row.outcome is None else Outcome(self._row.outcome)
        except ValueError as error:
            msg = f"Message {self.id} of queue {self.queue!r} is archived with no outcome: {error}"
            raise QueueError(msg) from error

    def ack(self, connection: CallersConnection | None = None) -> None:
        """Finish the message: it is removed, or archived where the queue keeps finished ones.

        Args:
            connection: the caller's own transaction; it is not committed here.

        Raises:
            ClaimLost: this claim does not hold the message any more; nothing was changed.
        """
        self._settler.ack(self, connection=connection)

    def nack(
        self,
        error: str | BaseException | None = None,
        delay: Duration | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Report a failure: retry later, or dead letter when out of attempts.

        Args:
            error: the reason, kept as ``last_error``.
            delay: when to retry, instead of what the queue's policy says.
            connection: the caller's own transaction; it is not committed here.

        Raises:
            ClaimLost: as in ``ack``.
        """
        self._settler.nack(self, error=error, delay=delay, connection=connection)

    def release(
        self,
        connection: CallersConnection | None = None,
        *,
        delay: Duration | None = None,
    ) -> None:
        """Give the message back untouched; this delivery is not counted.

        Args:
            connection: the caller's own transaction; it is not committed here.
            delay: nobody gets it for so long, and then it has the place of that time. None: it
                goes back to its place, and is due at once.

        Raises:
            ClaimLost: as in ``ack``.
        """
        self._settler.release(self, connection=connection, delay=delay)

    def reject(self, reason: str, connection: CallersConnection | None = None) -> None:
        """End the message as a dead letter; it is never delivered again.

        Args:
            reason: kept in the archive as ``last_error``.
            connection: the caller's own transaction; it is not committed here.

        Raises:
            ClaimLost: as in ``ack``.
        """
        self._settler.reject(self, reason, connection=connection)

    def extend(
        self,
        lease: Duration | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Renew the lease, counted from now; ``lease_expires_at`` follows.

        Args:
            lease: the new length; None for that of the claim.
            connection: the caller's own transaction; it is not committed here.

        Raises:
            ClaimLost: as in ``ack``.
        """
        self._settler.extend(self, lease, connection=connection)

    def reply(
        self,
        payload: Any,
        *,
        kind: str | None = None,
        headers: Mapping[str, Any] | None = None,
        connection: CallersConnection | None = None,
    ) -> Published:
        """Answer a request; the message is still to be settled.

        The first reply stands: one more, as after a redelivery, is skipped.

        Args:
            payload: of the reply: a JSON value, unless ``reply_to`` is a queue of another type.
            kind: name of the payload's type.
            headers: of the reply.
            connection: the caller's own transaction; it is not committed here.

        Returns:
            The id of the reply, and whether it was created or skipped.

        Raises:
            ReplyQueueGone: who asked is gone; nothing was published.
            ClaimLost: as in ``ack``; nothing was published.
            ValueError: the message asks for no reply.
        """
        reply = Publication(payload, kind=kind, headers=headers)
        return self._settler.reply(self, reply, connection)

    def __repr__(self) -> str:
        key = "" if self.key is None else f" key={self.key!r}"
        return f"<Message {self.queue}/{self.id}{key} attempt={self.attempt}>"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# -- for the other modules of this package


def claim_of(message: Message) -> Claim | None:
    """The stamp that fences every change of a message; None on one that was only listed."""
    return message._row.claim


def row_of(message: Message) -> MessageRow:
    """The row of a message as it was read, with its payload as it is stored."""
    return message._row


def payload_size(message: Message) -> int:
    """About how many bytes the payload takes, as it came from the database."""
    stored = message._row.payload
    return len(stored) if isinstance(stored, str | bytes) else 0


def claimed_lease_us(message: Message) -> int | None:
    """Length of the lease that a message was claimed with, in microseconds."""
    return message._row.claimed_lease_us


def lease_runs_at(message: Message, microseconds: int) -> bool:
    """Whether the lease of a message still runs at an instant of the database's clock."""
    return message._lease_expires_at is not None and microseconds < message._lease_expires_at


def note_lease(message: Message, microseconds: int) -> None:
    """Follow a renewed lease."""
    message._lease_expires_at = microseconds


def note_cancelled(message: Message) -> None:
    """Let whoever works on a message know that it is no longer wanted."""
    message._cancelled = True
    if (tell := message._on_cancelled) is not None:
        tell()


def when_cancelled(message: Message, tell: Callable[[], None] | None) -> None:
    """Have a function called when a message is cancelled; None for no longer."""
    message._on_cancelled = tell
