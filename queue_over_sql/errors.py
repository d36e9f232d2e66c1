"""Every error that queue_over_sql raises, under one root.

::

    QueueError
    ├── QueueNotFound            the queue was never created here, or was dropped
    ├── InvalidQueueName         also a ValueError
    ├── QueueSchemaMismatch      it exists with another payload type or columns
    ├── SchemaTooNew             a newer release made the tables: install that one
    ├── SchemaOutdated           an older release made them, and this service does not change them
    ├── DuplicateKey             a live message has this key, or one that finished lately
    ├── PayloadInvalid           also a ValueError: it cannot be kept exactly, or fits no kind
    ├── PayloadTooLarge          also a ValueError
    ├── TopicNotFound            the topic was never created here, or was dropped
    ├── StageLost                what was staged is not all there any more
    ├── ScheduleNotFound         there is no schedule of that name
    ├── RequestTimeout           also a TimeoutError: no reply came in time
    ├── ReplyQueueGone           who asked is gone, or its queue of replies was dropped
    ├── WrongDatabase            also a ValueError: connection= leads to another database
    ├── ClaimLost                the fence refused: someone else may hold the message now
    │   └── ConsumerExpired      this consumer missed its own heartbeat deadline and fenced itself
    ├── ConsumerNotFound         there is no durable consumer of that name
    ├── ConsumerTaken            the name belongs to a consumer of another queue
    ├── ConsumerFenced           another query took the durable consumer over
    ├── CheckpointBehind         a query went back to before what it has acknowledged
    ├── RoundsGone               what a query had claimed was given back meanwhile
    ├── DatabaseUnavailable      it cannot be reached, the connection broke, or it cancelled
    ├── DatabaseRefused          the database answered with an error that is none of the above
    │   └── NotPermitted         the login lacks a right
    ├── HistoryDiffers           what an export wrote is not what the archives have
    ├── UnsupportedByEngine      this database cannot do that
    └── ServiceClosed            the service was stopped

Errors of drivers and of SQLAlchemy are never raised bare: they are the ``__cause__``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


QUEUE_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
# Tables and indexes share one space of names on some engines.
TAKEN_ENDING: Final = re.compile(
    r"_(archive|dedup_keys|pkey|id_seq|(claim|lease|archive|dedup_keys|c\d+)_ix|key_uq|json_ck)\Z"
)


def shown(value: object, limit: int = 100) -> str:
    """What an error says of a value that it was given: its repr, cut short; never fails itself."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a repr may raise anything
        # Python refuses to write very large numbers, for one.
        return f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= limit else f"{text[:limit]}…"


def near_queue_name(name: object) -> str:
    """A name that a queue or topic may have, for advice: this one where it may, or one close by."""
    if not isinstance(name, str):
        return "order_events"
    name = str.__str__(name)[:100]
    if (
        QUEUE_NAME.match(name)
        and not TAKEN_ENDING.search(name)
        and not name.startswith("over_sql_")
    ):
        return name
    words = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    found = re.sub(r"\A(over_sql_)+", "", words)
    found = (found if QUEUE_NAME.match(found[:1]) else f"queue_{found}")[:40].rstrip("_")
    while shorter := TAKEN_ENDING.search(found):
        found = found[: shorter.start()].rstrip("_")
    return found


def _never_created(sort: str, name: object) -> str:
    return (
        f"There is no {sort} {shown(name)} in this database (it was never created, or it was "
        f"dropped). Create it with service.create_{sort}({near_queue_name(name)!r})."
    )


UNREADABLE: Final = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError),
)
"""What Python raises where a stored value is not what this library writes."""


class QueueError(Exception):
    """Root of all errors of queue_over_sql."""


class QueueNotFound(QueueError):
    """There is no such queue in this database.

    Attributes:
        queue: the name that was asked for.
    """

    def __init__(self, queue: str) -> None:
        super().__init__(_never_created("queue", queue))
        self.queue = queue


class InvalidQueueName(QueueError, ValueError):
    """The name cannot be a queue's: see ``queue_over_sql.schema.queue_tables.check_queue_name``."""


class QueueSchemaMismatch(QueueError):
    """The queue exists with another payload type or other columns than were asked for."""


class SchemaTooNew(QueueError):
    """A newer release made the tables of a queue, in a form that this one cannot use.

    Nothing was written.

    Attributes:
        queue: name of the queue.
        found: the version of its tables.
        known: the newest version that this release knows.
        release: the release that made them, as text; None where it did not say.
    """

    def __init__(
        self, queue: str, found: int, known: int, mine: str, release: str | None = None
    ) -> None:
        which = (
            "the newest release of queue-over-sql"
            if release is None
            else f"queue-over-sql {release} or newer"
        )
        super().__init__(
            f"The tables of queue {queue!r} have schema version {found}, made by a newer release. "
            f"This one, {mine}, knows versions up to {known}. Install {which} here. Nothing was "
            "written."
        )
        self.queue = queue
        self.found = found
        self.known = known
        self.release = release


class SchemaOutdated(QueueError):
    """An earlier release made tables, and this service must not or cannot bring them up to date.

    Attributes:
        missing: what has to be done, a sentence for each table or queue.
        statements: the SQL that does it, as ``queue-over-sql migrate --sql`` prints it.
    """

    def __init__(
        self, why: str, missing: Sequence[str] = (), statements: Sequence[str] = ()
    ) -> None:
        shown_first, more = "; ".join(missing[:5]), len(missing) - 5
        rest = f"; and {more} more" if more > 0 else ""
        super().__init__(
            f"{why} To be done: {shown_first}{rest}. Run queue-over-sql migrate as a user that may "
            "change tables, or give queue-over-sql migrate --sql to your database administrator."
        )
        self.missing = tuple(missing)
        self.statements = tuple(statements)


class DuplicateKey(QueueError):
    """A live message of the queue has this key already, or one that finished a short while ago.

    Attributes:
        queue: name of the queue.
        key: the key that is taken.
        id: id of the message that has the key; None where two new messages have it.
    """

    def __init__(
        self, queue: str, key: str, message_id: int | None, *, finished: bool = False
    ) -> None:
        if message_id is None:
            text = (
                f"Two messages of one batch for queue {queue!r} have the key {key!r}. Publish "
                "with on_conflict='skip' to keep the first or 'replace' to keep the last."
            )
        elif finished:
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
        super().__init__(_never_created("topic", topic))
        self.topic = topic


class StageLost(QueueError):
    """What was staged is not all there any more, so nothing of its batch was published.

    Staged messages survive no crash of some servers, and are removed when nobody published them
    for long. Write the batch again.

    Attributes:
        queue: name of the queue.
        stage: name of the table that they were in.
    """

    def __init__(self, queue: str, stage: str, found: int, expected: int) -> None:
        super().__init__(
            f"{found} of {expected} messages staged for queue {queue!r} in {stage} are there: the "
            "database server crashed, or they waited for too long. Nothing of their batch was "
            "published; write it again."
        )
        self.queue = queue
        self.stage = stage


class ScheduleNotFound(QueueError):
    """There is no such schedule in this database.

    Attributes:
        schedule: the name that was asked for.
    """

    def __init__(self, schedule: str) -> None:
        super().__init__(
            f"There is no schedule {shown(schedule)} in this database (it was never added, or "
            "it was removed). Add it with service.schedules.add(...)."
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
        ending = (
            "Nobody had begun with it, so it was withdrawn."
            if withdrawn
            else "It was claimed, or this login may not remove it, so it may be done or still be "
            "done."
        )
        super().__init__(
            f"No reply to message {message_id} of queue {queue!r} came in {seconds:g} s. {ending}"
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


class ConsumerNotFound(QueueError):
    """There is no such durable consumer in this database.

    Attributes:
        consumer_id: that was asked for.
    """

    def __init__(self, consumer_id: str) -> None:
        super().__init__(
            f"There is no durable consumer {shown(consumer_id)} in this database (it never was, it "
            "was dropped, or it expired). queue-over-sql consumers lists those that there are."
        )
        self.consumer_id = consumer_id


class ConsumerTaken(QueueError):
    """The name of a durable consumer belongs to one of another queue, or to one of another sort."""


class ConsumerFenced(QueueError):
    """Another query took the durable consumer over, so this one may change nothing any more.

    Attributes:
        consumer_id: the durable consumer.
        epoch: of the query that has it now.
        owner: that query's host and process.
    """

    def __init__(self, consumer_id: str, mine: int, epoch: int, owner: str | None) -> None:
        super().__init__(
            f"Durable consumer {consumer_id!r} was taken over by {owner or 'another query'} (epoch "
            f"{epoch}; this query has epoch {mine}), or an operator released it. One query at a "
            "time may read under a name: stop one of them, or give it another consumerId."
        )
        self.consumer_id = consumer_id
        self.epoch = epoch
        self.owner = owner


class CheckpointBehind(QueueError):
    """A query asks for rounds that were acknowledged before: its checkpoint is an old copy.

    Attributes:
        consumer_id: the durable consumer.
        start: the round at which the checkpoint stands.
        acked_round: the last round that was acknowledged.
    """

    def __init__(self, consumer_id: str, start: int, acked_round: int) -> None:
        super().__init__(
            f"The checkpoint of durable consumer {consumer_id!r} stands at round {start}, but "
            f"round {acked_round} is acknowledged already: the messages of the rounds between are "
            "done. Restore the newest checkpoint; begin with a new one; or, to go on behind what "
            "is done, set failOnDataLoss=false."
        )
        self.consumer_id = consumer_id
        self.start = start
        self.acked_round = acked_round


class RoundsGone(QueueError):
    """Rounds of a durable consumer are not there: they were given back, or never were.

    Attributes:
        consumer_id: the durable consumer.
    """

    def __init__(self, consumer_id: str, text: str) -> None:
        super().__init__(
            f"Durable consumer {consumer_id!r}: {text} It expired, was released or dropped by an "
            "operator, or the checkpoint belongs to another database; messages that it had not "
            "acknowledged come again in new rounds. Begin with a new checkpoint, or set "
            "failOnDataLoss=false to go on with this one."
        )
        self.consumer_id = consumer_id


class ClaimLost(QueueError):
    """The messages are not held by this claim any more; nothing of them was changed.

    Attributes:
        messages: a list of the ``Message`` objects whose claim is lost. In a batch, all the
            others were settled.
    """

    def __init__(self, text: str, messages: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.messages = list(messages)


class ConsumerExpired(ClaimLost):
    """This consumer could not renew its heartbeat in time, so it refuses to settle.

    Its messages are given to others. The next ``consume`` registers it anew.
    """


class DatabaseUnavailable(QueueError):
    """The database cannot be reached, the connection broke, or a statement was cancelled."""


class DatabaseRefused(QueueError):
    """The database refused a statement; the driver's error is the ``__cause__``."""


class NotPermitted(DatabaseRefused):
    """The login of this service lacks a right; nothing was changed. ``docs/roles.md`` lists them.

    Attributes:
        table: that the right is missing on; None where the server did not name one of ours.
        rights: what the statement needs there, such as ``INSERT``.
        roles: those of ours that have these rights; empty where only the owner of the tables has.
    """

    def __init__(
        self,
        text: str,
        table: str | None = None,
        rights: Sequence[str] = (),
        roles: Sequence[str] = (),
    ) -> None:
        super().__init__(text)
        self.table = table
        self.rights = tuple(rights)
        self.roles = tuple(roles)


class HistoryDiffers(QueueError):
    """Files that an export wrote and the archives do not agree; nothing was added."""


class UnsupportedByEngine(QueueError):
    """This database engine, or this version of it, cannot do what was asked for."""


class ServiceClosed(QueueError):
    """The service was stopped; make a new ``QueueService``."""

    def __init__(self) -> None:
        super().__init__("This QueueService was stopped. Make a new one to go on.")
