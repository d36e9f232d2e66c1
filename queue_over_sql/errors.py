"""Every error that queue_over_sql raises, under one root.

::

    QueueError
    ├── QueueNotFound            the queue was never created here, or was dropped
    ├── InvalidQueueName         also a ValueError
    ├── QueueSchemaMismatch      it exists with another payload type or columns
    ├── DuplicateKey             a live message has this key, or one that finished lately
    ├── PayloadInvalid           also a ValueError: it cannot be kept exactly, or fits no kind
    ├── PayloadTooLarge          also a ValueError
    ├── TopicNotFound            the topic was never created here, or was dropped
    ├── ScheduleNotFound         there is no schedule of that name
    ├── RequestTimeout           also a TimeoutError: no reply came in time
    ├── ReplyQueueGone           who asked is gone, or its queue of replies was dropped
    ├── WrongDatabase            also a ValueError: connection= leads to another database
    ├── ClaimLost                the fence refused: someone else may hold the message now
    │   └── ConsumerExpired      this consumer missed its own heartbeat deadline and fenced itself
    ├── DatabaseUnavailable      the database cannot be reached, or the connection broke
    ├── DatabaseRefused          the database answered with an error that is none of the above
    ├── UnsupportedByEngine      this database cannot do that
    └── ServiceClosed            the service was stopped

Errors of drivers and of SQLAlchemy are never raised bare: they are the ``__cause__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queue_over_sql.message import Message


class QueueError(Exception):
    """Root of all errors of queue_over_sql."""


class QueueNotFound(QueueError):
    """There is no such queue in this database.

    Attributes:
        queue: the name that was asked for.
    """

    def __init__(self, queue: str) -> None:
        super().__init__(
            f"There is no queue {queue!r} in this database (it was never created, or it was "
            f"dropped). Create it with service.create_queue({queue!r})."
        )
        self.queue = queue


class InvalidQueueName(QueueError, ValueError):
    """The name cannot be a queue's: see ``queue_over_sql.schema.check_queue_name``."""


class QueueSchemaMismatch(QueueError):
    """The queue exists with another payload type or other columns than were asked for."""


class DuplicateKey(QueueError):
    """A live message of the queue has this key already, or one that finished a short while ago.

    Attributes:
        queue: name of the queue.
        key: the key that is taken.
        id: id of the message that has the key.
    """

    def __init__(self, queue: str, key: str, message_id: int, *, finished: bool = False) -> None:
        if finished:
            text = (
                f"In queue {queue!r} message {message_id} with key {key!r} finished within the "
                "queue's dedup_window. Publish with on_conflict='skip' to take that as done."
            )
        else:
            text = (
                f"Queue {queue!r} has a live message with key {key!r} already (id {message_id}). "
                "Publish with on_conflict='skip' to keep it or 'replace' to replace its content."
            )
        super().__init__(text)
        self.queue = queue
        self.key = key
        self.id = message_id


class PayloadInvalid(QueueError, ValueError):
    """The payload or the headers would not come back as they were given, or fit no kind."""


class PayloadTooLarge(QueueError, ValueError):
    """The encoded payload or headers are larger than the limit.

    Attributes:
        size: encoded size in bytes.
        limit: largest size allowed, in bytes.
    """

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"The {what} takes {size:,} bytes; the limit is {limit:,}. Keep large content "
            "elsewhere and publish a reference, or create the queue with a larger limit."
        )
        self.size = size
        self.limit = limit


class WrongDatabase(QueueError, ValueError):
    """The caller's ``connection=`` leads to another database than the queue's; nothing was done."""


class TopicNotFound(QueueError):
    """There is no such topic in this database.

    Attributes:
        topic: the name that was asked for.
    """

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"There is no topic {topic!r} in this database (it was never created, or it was "
            f"dropped). Create it with service.create_topic({topic!r})."
        )
        self.topic = topic


class ScheduleNotFound(QueueError):
    """There is no such schedule in this database.

    Attributes:
        schedule: the name that was asked for.
    """

    def __init__(self, schedule: str) -> None:
        super().__init__(
            f"There is no schedule {schedule!r} in this database (it was never added, or it was "
            "removed). Add it with service.schedules.add(...)."
        )
        self.schedule = schedule


class RequestTimeout(QueueError, TimeoutError):
    """No reply came in time.

    Attributes:
        queue: that the request was published to.
        correlation_id: of the request.
        message_id: of the request.
        withdrawn: whether it was taken back before anybody had begun with it.
    """

    def __init__(
        self, queue: str, correlation_id: str, message_id: int, seconds: float, *, withdrawn: bool
    ) -> None:
        fate = (
            "Nobody had begun with it, so it was withdrawn."
            if withdrawn
            else "It was claimed, so it may be done or still be done."
        )
        super().__init__(
            f"No reply to message {message_id} of queue {queue!r} came in {seconds:g} s. {fate}"
        )
        self.queue = queue
        self.correlation_id = correlation_id
        self.message_id = message_id
        self.withdrawn = withdrawn


class ReplyQueueGone(QueueError):
    """The queue that a reply goes to is gone: who asked has ended, or was taken for dead.

    Attributes:
        queue: name of the queue of replies.
    """

    def __init__(self, queue: str, text: str) -> None:
        super().__init__(text)
        self.queue = queue


class ClaimLost(QueueError):
    """The messages are not held by this claim any more; nothing of them was changed.

    Attributes:
        messages: the messages whose claim is lost. In a batch, all the others were settled.
    """

    def __init__(self, text: str, messages: Sequence[Message] = ()) -> None:
        super().__init__(text)
        self.messages = list(messages)


class ConsumerExpired(ClaimLost):
    """This consumer could not renew its heartbeat in time, so it refuses to settle.

    Its messages are given to others. The next ``consume`` registers it anew.
    """


class DatabaseUnavailable(QueueError):
    """The database cannot be reached, or the connection broke."""


class DatabaseRefused(QueueError):
    """The database refused a statement; the driver's error is the ``__cause__``."""


class UnsupportedByEngine(QueueError):
    """This database engine, or this version of it, cannot do what was asked for."""


class ServiceClosed(QueueError):
    """The service was stopped; make a new ``QueueService``."""

    def __init__(self) -> None:
        super().__init__("This QueueService was stopped. Make a new one to go on.")
