"""Messages: what is published and what is consumed, and their states."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NamedTuple,
    Protocol,
    TypeAlias,
    cast,
)

from typing_extensions import TypeVar

from queue_over_sql.errors import QueueError
from queue_over_sql.values.durations import (
    Duration,
    instant,
    optional_instant,
    optional_number,
    stored_number,
)
from queue_over_sql.values.headers import (
    CORRELATION_ID,
    REPLY_TO,
)
from queue_over_sql.values.options import GROUP_KEY
from queue_over_sql.values.reasons import not_started_within
from queue_over_sql.values.states import (
    Outcome,
    PublishOutcome,
    Status,
    status_at,
)
from queue_over_sql.values.texts import printable

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, scoped_session

    class DriverConnection(Protocol):
        """A connection of a driver, or Django's."""

        def cursor(self, *args: Any, **options: Any) -> Any: ...  # noqa: D102
        def close(self, *args: Any, **options: Any) -> Any: ...  # noqa: D102

    CallersConnection: TypeAlias = Connection | Session | scoped_session[Any] | DriverConnection
    """What has the caller's own transaction."""


Payload = TypeVar("Payload", default=Any)
Payload_co = TypeVar("Payload_co", covariant=True, default=Any)


@dataclasses.dataclass(frozen=True)
class Publication(Generic[Payload_co]):
    """A message to publish, with its options.

    ``publish`` and ``request`` take these options as keywords; ``publish_many`` and ``load`` take
    this object.

    Args:
        payload: a JSON value, a ``str`` or ``bytes``, depending on the queue's payload type.
        key: a queue has at most one live message with this key, or one that waits (``unique``);
            up to 200 characters.
        kind: name of the payload's type, up to 100 characters.
        group: a queue with a ``group_limit`` keeps the order of messages with the same group, and
            has only so many of them in hand at once; up to 200 characters, and ``""`` is a group,
            too. Groups are equal if their UTF-8 bytes are.
        headers: a mapping of strings to JSON values, up to 64 KiB. ``ack_result``, which a finished
            message has, is left out.
        priority: 0 is the most urgent; up to the queue's ``priorities`` - 1.
        delay: the message becomes due after this time.
        at: the message becomes due at this time; instead of ``delay``.
        max_attempts: deliveries before it becomes a dead letter, instead of the queue's.
        lease: length of the lease, instead of the queue's.
        expires: a message that was not started within this time of its publish, or of ``at`` if
            that is later, becomes a dead letter with the outcome ``expired``, instead of the
            queue's. It must not be shorter than ``delay``. Once an attempt began, the message does
            not expire: neither its retries, nor what a dead consumer gives back. After a
            ``release`` it counts as not started.
        columns: values of the queue's own columns, by name.
    """

    payload: Payload_co
    _: dataclasses.KW_ONLY
    key: str | None = None
    kind: str | None = None
    group: str | None = None
    headers: Mapping[str, Any] | None = None
    priority: int = 0
    delay: Duration | None = None
    at: datetime | None = None
    max_attempts: int | None = None
    lease: Duration | None = None
    expires: Duration | None = None
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)


# As names of this module: to look up a member in its class takes as long as to set an attribute.
_CREATED: Final = PublishOutcome.CREATED
_set: Final = object.__setattr__


@dataclasses.dataclass(frozen=True)
class Published:
    """The result of a publication.

    Attributes:
        id: id of the live message. With ``skipped``, id of the existing message, or of the one that
            finished within the queue's ``dedup_window``.
        outcome: ``created``, ``skipped``, ``replaced`` or ``unchanged``.
        queue: for a topic, the queue that got this copy; otherwise None.
        published_at: of a ``created`` message, when it was published by the database's clock. None
            for rows of an adopted table, and if MySQL inserted it alone, which cannot return it.
    """

    id: int
    outcome: PublishOutcome = PublishOutcome.CREATED
    queue: str | None = None
    published_at: datetime | None = dataclasses.field(default=None, compare=False)

    def __init__(
        self,
        id: int,  # noqa: A002 - the attribute's name
        outcome: PublishOutcome = _CREATED,
        queue: str | None = None,
        published_at: datetime | None = None,
    ) -> None:
        # A batch has thousands: the one that is generated for frozen classes takes twice the time.
        # What is not set here is read from the class, where a dataclass keeps its defaults.
        _set(self, "id", id)
        if outcome is not _CREATED:
            _set(self, "outcome", outcome)
        if queue is not None:
            _set(self, "queue", queue)
        if published_at is not None:
            _set(self, "published_at", published_at)


class Claim(NamedTuple):
    """The stamp of one claim, which fences every change of the message."""

    consumer_id: str
    consumer_round: int


class Settler(Protocol):
    """The part of a queue that settles its messages."""

    def ack(self, messages: Any, *, connection: Any = None, result: Any = None) -> None: ...  # noqa: D102
    def nack(  # noqa: D102
        self, messages: Any, *, error: Any = None, delay: Any = None, connection: Any = None
    ) -> None: ...
    def release(  # noqa: D102
        self, messages: Any, *, connection: Any = None, delay: Any = None, count: bool = False
    ) -> None: ...
    def reject(self, messages: Any, reason: str, *, connection: Any = None) -> None: ...  # noqa: D102
    def extend(self, messages: Any, lease: Any = None, *, connection: Any = None) -> None: ...  # noqa: D102
    def reply(self, message: Any, reply: Publication, connection: Any) -> Published: ...  # noqa: D102
    def token(self, message: Any) -> str: ...  # noqa: D102


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """Stands in a row for a column value that its type cannot convert."""

    error: Exception


class MessageRow(NamedTuple):
    """A row of a queue's table, as statements read it; times are microseconds since the epoch."""

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
    expires_at: int | None
    columns: Mapping[str, Any]
    finished_at: int | None = None
    outcome: str | None = None
    listed: bool = False
    # Whether the stamp alone gives the right to settle it, whatever became of the claimer.
    by_token: bool = False
    # The database's time at which it was listed as a live message.
    listed_at: int | None = None

    @property
    def claim(self) -> Claim | None:
        """The stamp of the claim; None if the row was only listed."""
        if self.listed or self.consumer_id is None or self.consumer_round is None:
            return None
        return Claim(self.consumer_id, self.consumer_round)

    def is_expired(self, now: int | None) -> bool:
        """Whether its first attempt, which this row has, began too late: at ``now``, in µs."""
        if self.expires_at is None or now is None or self.attempt_count > 1:
            return False
        return now >= self.expires_at

    @property
    def claimed_lease_us(self) -> int | None:
        """Length of the lease when it was claimed."""
        if self.lease_expires_at is None or self.claimed_at is None:
            return None
        return self.lease_expires_at - self.claimed_at


AGE = attrgetter("available_at", "id")
"""What rows are sorted by: the oldest first."""


class _Elsewhere:
    """Stands for the queue in a message that came from another process."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        msg = (
            "This message was pickled, so it has no service here. Settle it by its token, as in "
            "queue.held(message.token).ack(). Or send your result back to the process that "
            "consumed it, and settle the message there."
        )
        raise QueueError(msg)

    ack = nack = release = reject = extend = reply = token = _refuse


_ELSEWHERE: Final = _Elsewhere()


class Message(Generic[Payload_co]):
    """A message as it was claimed, listed or archived; its attributes are read-only.

    ``Message[Order]`` has a payload of type ``Order``, for type checkers; ``Message`` has any.

    It can be pickled. The copy in the other process can only be read: settle the message there with
    ``queue.held(message.token)``, or in the process that consumed it.

    Attributes:
        queue: name of its queue.
        payload: the published payload; for an adopted table, the same mapping as ``row``.
        headers: the published headers; may be empty.
        row: for an adopted table, a read-only mapping of your columns by name, as they were when
            the message was claimed or listed; None in other queues.
        settled: whether it was settled through this object.
    """

    __slots__ = (
        "_came_back",
        "_cancelled",
        "_claim",
        "_committed",
        "_lease_ends_at",
        "_lease_expires_at",
        "_on_cancelled",
        "_queue_max_attempts",
        "_result",
        "_row",
        "_settler",
        "_token",
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
        payload: Payload_co,
        headers: dict[str, Any],
        queue_max_attempts: int,
        own_row: Mapping[str, Any] | None = None,
    ) -> None:
        self._row = row
        self._claim: Claim | None = None
        self._token: str | None = None
        self._result: str | None = None
        self._settler = settler
        self._lease_expires_at = row.lease_expires_at
        self._lease_ends_at = math.inf
        self._queue_max_attempts = queue_max_attempts
        self.settled = self._came_back = self._committed = False
        self._cancelled = False
        self._on_cancelled: Callable[[], None] | None = None
        self.queue = queue
        self.payload = payload
        self.headers = headers
        self.row = own_row

    @property
    def id(self) -> int:
        """The id: unique in its queue, and increasing in publish order."""
        return self._row.id

    @property
    def key(self) -> str | None:
        """The key; a queue has at most one live message with it."""
        return self._row.message_key

    @property
    def kind(self) -> str | None:
        """Name of the payload's type."""
        return self._row.kind

    @property
    def group(self) -> str | None:
        """The group, in which messages keep their order; None for a message without one."""
        found: str | None = self._row.columns.get(GROUP_KEY)
        return found

    @property
    def reply_to(self) -> str | None:
        """Name of a request's reply queue; None for other messages."""
        return _text(self.headers.get(REPLY_TO))

    @property
    def correlation_id(self) -> str | None:
        """The correlation id of a request or reply; None for other messages."""
        return _text(self.headers.get(CORRELATION_ID))

    @property
    def priority(self) -> int:
        """The priority; 0 is the most urgent."""
        return self._row.priority

    @property
    def attempt(self) -> int:
        """Number of this delivery, from 1; 0 if it was never delivered."""
        return self._row.attempt_count

    @property
    def max_attempts(self) -> int:
        """Deliveries before it becomes a dead letter."""
        own = self._row.max_attempts
        return stored_number("max_attempts", own) if own else self._queue_max_attempts

    @property
    def columns(self) -> Mapping[str, Any]:
        """Values of the queue's own columns, by name."""
        columns = self._row.columns
        if GROUP_KEY in columns:
            return {name: value for name, value in columns.items() if name != GROUP_KEY}
        return columns

    @property
    def consumer_id(self) -> str | None:
        """Id of the consumer that claimed it."""
        return self._row.consumer_id

    @property
    def consumer_round(self) -> int | None:
        """The consumer's round in which it was claimed."""
        return self._row.consumer_round

    @property
    def token(self) -> str:
        """The claim as text, with which ``Queue.held`` settles the message in any process.

        It is at most 186 characters: letters, digits, ``-`` and ``_``. Keep it secret: whoever has
        it can settle the message. It is signed, so it cannot be guessed. It is worth nothing when
        the claim has ended.

        Raises:
            ClaimLost: the message has no claim, because it was only listed, or was taken.
        """
        if self._token is None:
            self._token = self._settler.token(self)
        return self._token

    @property
    def last_error(self) -> str | None:
        """The reason of its last failure."""
        stored = self._row.last_error
        # Another client may have stored bytes.
        return printable(stored) if isinstance(stored, str) else stored

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
    def expires_at(self) -> datetime | None:
        """Until when its first attempt must begin; None if it does not expire."""
        return optional_instant(self._row.expires_at)

    @property
    def claimed_at(self) -> datetime | None:
        """When it was claimed."""
        return optional_instant(self._row.claimed_at)

    @property
    def last_attempt_at(self) -> datetime | None:
        """When it last failed."""
        return optional_instant(self._row.last_attempt_at)

    @property
    def finished_at(self) -> datetime | None:
        """When it was archived; None for a live message."""
        return optional_instant(self._row.finished_at)

    @property
    def lease_expires_at(self) -> datetime | None:
        """When the lease ends unless it is extended; ``extend`` updates it."""
        return optional_instant(self._lease_expires_at)

    @property
    def cancelled(self) -> bool:
        """Whether to stop working on it, because its claim is lost or its handler timed out.

        A worker sets it after the handler's ``timeout``. It also sets it if a lease renewal finds
        that the claim is lost: the lease or the consumer expired, or the message was cancelled,
        deleted or replaced. Reading it does not query the database. It never becomes False again.
        """
        return self._cancelled

    @property
    def status(self) -> Status | Outcome | None:
        """How it stood when it was listed: what ``messages(status=…)`` finds it by.

        It is ``ready``, ``delayed``, ``claimed`` or ``held``, by the database's clock; of an
        archived message its outcome. None for a message that was consumed.

        Raises:
            QueueError: the database holds an invalid due time or outcome.
        """
        row = self._row
        if row.listed_at is None:
            return self.outcome
        due = optional_number("available_at", row.available_at)
        return status_at(row.listed_at, consumer_id=row.consumer_id, available_at=due)

    @property
    def outcome(self) -> Outcome | None:
        """The outcome; None for a live message.

        Raises:
            QueueError: the archive holds an unknown outcome.
        """
        try:
            return None if self._row.outcome is None else Outcome(self._row.outcome)
        except ValueError as error:
            msg = (
                f"Message {self.id} of queue {self.queue!r} has no valid outcome in the "
                f"archive: {error}"
            )
            raise QueueError(msg) from error

    def ack(self, connection: CallersConnection | None = None, *, result: Any = None) -> None:
        """Finish the message: it is removed, or archived if the queue keeps finished messages.

        Args:
            connection: the caller's own transaction, which this does not commit.
            result: kept with the archived message for ``Queue.result``; see ``Queue.ack``.

        Raises:
            ClaimLost: this claim no longer holds the message; nothing was changed.
        """
        if result is None:
            self._settler.ack(self, connection=connection)
        else:
            self._settler.ack(self, connection=connection, result=result)

    def nack(
        self,
        error: str | BaseException | None = None,
        delay: Duration | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Report a failure: it is retried later, or becomes a dead letter if out of attempts.

        Args:
            error: the reason, stored as ``last_error``.
            delay: when to retry, instead of the queue's retry policy.
            connection: the caller's own transaction, which this does not commit.

        Raises:
            ClaimLost: as in ``ack``.
        """
        self._settler.nack(self, error=error, delay=delay, connection=connection)

    def release(
        self,
        connection: CallersConnection | None = None,
        *,
        delay: Duration | None = None,
        count: bool = False,
    ) -> None:
        """Return the message to the queue unchanged; this delivery is not counted.

        Args:
            connection: the caller's own transaction, which this does not commit.
            delay: when it is due again. None: it is due now, at its old place.
            count: count the delivery as a failed attempt. If it was the last attempt, the message
                becomes a dead letter.

        Raises:
            ClaimLost: as in ``ack``.
        """
        self._settler.release(self, connection=connection, delay=delay, count=count)

    def reject(self, reason: str, connection: CallersConnection | None = None) -> None:
        """Make a dead letter of the message: it is not delivered again.

        Args:
            reason: stored in the archive as ``last_error``.
            connection: the caller's own transaction, which this does not commit.

        Raises:
            ClaimLost: as in ``ack``.
        """
        self._settler.reject(self, reason, connection=connection)

    def extend(
        self,
        lease: Duration | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Renew the lease, counted from now, and update ``lease_expires_at``.

        Args:
            lease: the new length; None: that of the claim.
            connection: the caller's own transaction, which this does not commit.

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
        """Reply to a request; you still have to settle the message.

        Only the first reply counts. Further ones, such as after a redelivery, are skipped.

        Args:
            payload: payload of the reply: a JSON value, unless the reply queue has another payload
                type.
            kind: name of the payload's type.
            headers: headers of the reply.
            connection: the caller's own transaction, which this does not commit.

        Returns:
            The reply's id, and whether it was created or skipped.

        Raises:
            ReplyQueueGone: the requester is gone; nothing was published.
            ClaimLost: as in ``ack``; nothing was published.
            ValueError: the message is not a request.
        """
        reply = Publication(payload, kind=kind, headers=headers)
        return self._settler.reply(self, reply, connection)

    def __copy__(self) -> Message[Payload_co]:
        copy: Message[Payload_co] = object.__new__(type(self))
        for name in self.__slots__:
            setattr(copy, name, getattr(self, name))
        return copy

    def __getstate__(self) -> dict[str, Any]:
        if claim_of(self) is not None:
            # The copy has no service to ask.
            with contextlib.suppress(QueueError):
                _ = self.token
        # Neither a queue nor a read-only mapping can be pickled.
        state = {name: getattr(self, name) for name in self.__slots__}
        row = None if self.row is None else dict(self.row)
        if self.payload is self.row:
            state["payload"] = row
        return state | {"row": row, "_settler": _ELSEWHERE, "_on_cancelled": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        if self.row is not None:
            read_only = MappingProxyType(self.row)
            if self.payload is self.row:
                self.payload = cast("Payload_co", read_only)
            self.row = read_only

    def __repr__(self) -> str:
        key = "" if self.key is None else f" key={self.key!r}"
        return f"<Message {self.queue}/{self.id}{key} attempt={self.attempt}>"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# -- for the other modules of this package


def claim_of(message: Message) -> Claim | None:
    """The stamp that fences every change of a message; None if it was only listed."""
    # Made once: a worker asks several times for each message.
    if message._claim is None:
        message._claim = message._row.claim
    return message._claim


id_of: Final[Callable[[Message], int]] = attrgetter("_row.id")
"""The id of a message; in large batches the property takes several times as long."""
holder_of: Final[Callable[[Message], str | None]] = attrgetter("_row.consumer_id")
expiry_of: Final[Callable[[Message], int | None]] = attrgetter("_row.expires_at")
expiry_of_row: Final[Callable[[MessageRow], int | None]] = attrgetter("expires_at")


def row_of(message: Message) -> MessageRow:
    """The row of a message as it was read, with its stored payload."""
    return message._row


def payload_size(message: Message) -> int:
    """Approximate size of the stored payload in bytes."""
    stored = message._row.payload
    return len(stored) if isinstance(stored, str | bytes) else 0


def claimed_lease_us(message: Message) -> int | None:
    """Length of a message's lease at its claim, in microseconds."""
    return message._row.claimed_lease_us


is_by_token: Final[Callable[[Message], bool]] = attrgetter("_row.by_token")
"""Whether its stamp alone gives the right to settle it, whatever became of the claimer."""


def note_token(message: Message, token: str) -> None:
    """Note the token by which a message is held."""
    message._token = token


result_of: Final[Callable[[Message], str | None]] = attrgetter("_result")
"""The encoded result that its handler returned; None if it has none."""


def note_result(message: Message, encoded: str | None) -> None:
    """Note the result that the handler of a message returned, as JSON."""
    message._result = encoded


def lease_runs_at(message: Message, microseconds: int) -> bool:
    """Whether the lease of a message is still valid at a time of the database's clock."""
    return message._lease_expires_at is not None and microseconds < message._lease_expires_at


def note_lease(message: Message, microseconds: int, ends_at: float) -> None:
    """Note a renewed lease: its end by the database's clock, and on ``elapsed_clock``."""
    message._lease_expires_at = microseconds
    message._lease_ends_at = ends_at


def note_claim(messages: Sequence[Message], began: float) -> None:
    """Note that the claim of these messages began at this time of ``elapsed_clock``."""
    for message in messages:
        row = message._row
        if row.lease_expires_at is not None and row.claimed_at is not None:
            message._lease_ends_at = began + (row.lease_expires_at - row.claimed_at) / 1_000_000


def is_expired(message: Message, microseconds: int) -> bool:
    """Whether it expired before this time of the database's clock without having been started."""
    return message._row.is_expired(microseconds)


def may_have_expired(message: Message, now: float) -> bool:
    """Whether it may have expired at ``now`` of ``elapsed_clock``; the database's clock decides."""
    row, ends_at = message._row, message._lease_expires_at
    if row.expires_at is None or ends_at is None:
        return False
    left = message._lease_ends_at - now
    # Not earlier than the claim, since which a lease of any length runs.
    return math.isinf(left) or row.is_expired(ends_at - math.floor(left * 1_000_000))


def expiry_reason(message: Message) -> str:
    """Why a message ends that was not started in time."""
    row = message._row
    waited = None if row.expires_at is None else row.expires_at - row.published_at
    return not_started_within(waited)


_SHORTEST_LEASE_US: Final = 100_000


def may_come_in_time(message: Message) -> bool:
    """Whether its lease is long enough that a handler can usually begin before it ends.

    A message with a shorter lease is not released when it is late: it would be claimed again and
    again, uncounted. When its lease is found expired, the attempt counts.
    """
    return (claimed_lease_us(message) or 0) >= _SHORTEST_LEASE_US


def lease_ends_at(message: Message) -> float:
    """The earliest end of its lease on ``elapsed_clock``; infinite if it has none."""
    return message._lease_ends_at


def has_ended(message: Message) -> bool:
    """Whether it was settled so that it does not come back, as far as is known."""
    return message.settled and not message._came_back


def is_given_back(message: Message) -> bool:
    """Whether it was settled so that it comes back, or its claim was found lost."""
    return message.settled and message._came_back


def is_committed(message: Message) -> bool:
    """Whether it was settled in a transaction of its own, which nothing can undo."""
    return message.settled and message._committed


def note_committed(messages: Iterable[Message]) -> None:
    """Note that the transaction that settled messages was committed."""
    for message in messages:
        message._committed = True


def note_came_back(messages: Iterable[Message]) -> None:
    """Note that messages were given back, or that their claims are lost."""
    for message in messages:
        message._came_back = True


def note_unsettled(message: Message) -> None:
    """Note that the transaction that settled a message was rolled back, with its result."""
    message.settled = message._came_back = message._committed = False
    message._result = None


def still_wanted(message: Message) -> Message:
    """A copy, whose claim is renewed although the message was cancelled at its time limit."""
    copy = message.__copy__()
    copy._cancelled, copy._on_cancelled, copy.settled = False, None, False
    return copy


def note_cancelled(message: Message) -> None:
    """Mark a message as cancelled, and notify its handler."""
    message._cancelled = True
    if (notify := message._on_cancelled) is not None:
        notify()


def when_cancelled(message: Message, notify: Callable[[], None] | None) -> None:
    """Set the function to call when a message is cancelled; None removes it."""
    message._on_cancelled = notify
