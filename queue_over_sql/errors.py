"""Every error that queue_over_sql raises, under one root.

::

    QueueError
    ├── QueueNotFound            the queue was never created in this database, or was dropped
    ├── InvalidQueueName         also a ValueError
    ├── QueueSchemaMismatch      the queue exists with another payload type or columns
    ├── SchemaTooNew             a newer release created the tables: install that release
    ├── SchemaOutdated           an older release created them; this service may not upgrade them
    ├── DuplicateKey             a live or recently finished message has this key
    ├── GroupFull                a limit leaves no room for the message
    ├── PayloadInvalid           also a ValueError: loses data in storage, or does not fit its kind
    ├── PayloadTooLarge          also a ValueError
    ├── TopicNotFound            the topic was never created in this database, or was dropped
    ├── StageLost                some messages of a staged write are missing
    ├── ScheduleNotFound         there is no schedule with that name
    ├── RequestTimeout           also a TimeoutError: no reply arrived in time
    ├── NoResult                 the message has no result, and gets none
    │   └── ResultTimeout        also a TimeoutError: the message was not finished in time
    ├── ReplyQueueGone           the requester is gone, or its reply queue was dropped
    ├── WrongDatabase            also a ValueError: connection= belongs to another database
    ├── InvalidToken             also a ValueError: it is no claim token of this queue
    ├── ClaimLost                this consumer no longer holds the message
    │   └── ConsumerExpired      this consumer missed its heartbeat deadline
    ├── ConsumerNotFound         there is no durable consumer with that name
    ├── ConsumerTaken            the name belongs to a consumer of another queue
    ├── ConsumerFenced           another query took over the durable consumer
    ├── CheckpointBehind         a query's checkpoint is older than what it acknowledged
    ├── RoundsGone               the messages that a query had claimed were released
    ├── DatabaseUnavailable      unreachable, connection broken, or statement cancelled
    ├── DatabaseRefused          the database returned another error
    │   ├── NotPermitted         the login lacks a right
    │   └── NotFinished          it refused to finish messages, which are held now
    ├── HistoryDiffers           an export's files do not match the archives
    ├── UnsupportedByEngine      this database does not support the operation
    └── ServiceClosed            the service was stopped

Errors of drivers and of SQLAlchemy are never raised directly. They are the ``__cause__``.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


QUEUE_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
# On some engines tables and indexes share one namespace.
TAKEN_ENDING: Final = re.compile(
    r"_(archive|dedup_keys|groups|limits|pkey|id_seq|key_uq|json_ck"
    r"|(claim|lease|archive|archive_err|dedup_keys|group|group_held|c\d+)_ix)\Z"
)


def shown(value: object, limit: int = 100) -> str:
    """The repr of a value for an error message, shortened; never raises."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a repr may raise anything
        # For example, Python refuses to convert very large integers to text.
        return f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= limit else f"{text[:limit]}…"


def no_groups(queue: str) -> str:
    """What an error says of a message with a group for a queue without groups."""
    return (
        f"queue {queue!r} has no groups, so it does not accept group. Turn them on with "
        f"create_queue({queue!r}, group_limit=1), or leave group out."
    )


# Control characters, changes of the direction of writing, and what no character is.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# They join the parts of an emoji, and letters of some scripts.
_JOINERS: Final = "\u200c\u200d"


def visible(text: str, keep: str = "\n\t") -> str:
    r"""A text with what cannot be seen written out, such as ``\x1b`` or ``\u202e``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        repr(each)[1:-1] if is_unseen(each) and each not in keep else each for each in text
    )


def is_unseen(character: str) -> bool:
    """Whether a character does something to whoever looks, or is not there for them."""
    return unicodedata.category(character) in _UNSEEN and character not in _JOINERS


def near_queue_name(name: object) -> str:
    """A valid queue or topic name to suggest: this one if it is valid, else a similar one."""
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


def near_names(name: object, names: Iterable[str]) -> list[str]:
    """Those of the names that are close to what may be a mistyped one, the closest first."""
    from difflib import get_close_matches  # noqa: PLC0415 - only after a mistake

    return get_close_matches(near_queue_name(name), names)


def did_you_mean(names: Iterable[str]) -> str:
    """The question, without its first word's capital and its question mark."""
    return f"did you mean {' or '.join(map(repr, names))}"


def _never_created(sort: str, name: object, near: Sequence[str] = ()) -> str:
    found = f"There is no {sort} {shown(name)} in this database"
    valid = near_queue_name(name)
    create = f"reate it with service.create_{sort}({valid!r})."
    if not near:
        return f"{found} (it was never created, or it was dropped). C{create}"
    otherwise = "" if valid in near else f" If not, c{create}"
    return f"{found}: {did_you_mean(near)}?{otherwise}"


UNREADABLE: Final = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError),
)
"""The exceptions that reading an invalid stored value may raise."""


class QueueError(Exception):
    """Base class of all errors of queue_over_sql.

    Every error can be pickled, so process pools can raise it in the parent process.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # Python's own way calls the class with the text, but these classes take other arguments.
        return _restored, (type(self), self.args), self.__dict__ or None


def _restored(kind: type[QueueError], args: tuple[Any, ...]) -> QueueError:
    error = kind.__new__(kind)
    error.args = args
    return error


class QueueNotFound(QueueError):
    """There is no such queue in this database.

    Attributes:
        queue: the requested name.
        near: names of existing queues that are close to it, as far as they were looked up.
    """

    def __init__(self, queue: str, near: Sequence[str] = ()) -> None:
        super().__init__(_never_created("queue", queue, near))
        self.queue = queue
        self.near = tuple(near)


class InvalidQueueName(QueueError, ValueError):
    """The name is not valid for a queue; the message says why."""


class QueueSchemaMismatch(QueueError):
    """The queue exists with another payload type or other columns than the requested ones."""


class SchemaTooNew(QueueError):
    """A newer release created the queue's tables, with a schema version that this one cannot use.

    Nothing was written.

    Attributes:
        queue: name of the queue.
        found: the schema version of its tables.
        known: the newest schema version that this release knows.
        release: the release that created them, as text; None if it is not recorded.
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
            f"The tables of queue {queue!r} have schema version {found}, from a newer release. "
            f"This release, {mine}, supports versions up to {known}. Install {which}. Nothing was "
            "written."
        )
        self.queue = queue
        self.found = found
        self.known = known
        self.release = release


class SchemaOutdated(QueueError):
    """An earlier release created tables, and this service may not or cannot upgrade them.

    Attributes:
        missing: the pending changes, a sentence for each table or queue.
        statements: the SQL for these changes, as ``queue-over-sql migrate --sql`` prints it.
    """

    def __init__(
        self, why: str, missing: Sequence[str] = (), statements: Sequence[str] = ()
    ) -> None:
        shown_first, more = "; ".join(missing[:5]), len(missing) - 5
        rest = f"; and {more} more" if more > 0 else ""
        super().__init__(
            f"{why} Pending changes: {shown_first}{rest}. Run queue-over-sql migrate as a "
            "database user that may alter tables, or give the output of queue-over-sql migrate "
            "--sql to your database administrator."
        )
        self.missing = tuple(missing)
        self.statements = tuple(statements)


class DuplicateKey(QueueError):
    """A live message of the queue, or one within its ``dedup_window``, already has this key.

    Attributes:
        queue: name of the queue.
        key: the key.
        id: id of the message that has the key; None if two of the new messages have it.
    """

    def __init__(
        self,
        queue: str,
        key: str,
        message_id: int | None,
        *,
        finished: bool = False,
        requeued: bool = False,
    ) -> None:
        if requeued:
            text = (
                f"Queue {queue!r}: this transaction requeued nothing, because a live message, or "
                f"another one to requeue, has the key {key!r}. Only one live message may have a "
                "key. Finish or delete the live one first, or requeue one of them by its id."
            )
        elif message_id is None:
            text = (
                f"Two messages of one batch for queue {queue!r} have the key {key!r}. Publish "
                "with on_conflict='skip' to keep the first one or 'replace' to keep the last one."
            )
        elif finished:
            text = (
                f"In queue {queue!r} message {message_id} with key {key!r} finished within the "
                "queue's dedup_window. Publish with on_conflict='skip' to ignore such duplicates."
            )
        else:
            text = (
                f"Queue {queue!r} already has a live message with key {key!r} (id {message_id}). "
                "Publish with on_conflict='skip' to keep it or 'replace' to replace its content."
            )
        super().__init__(text)
        self.queue = queue
        self.key = key
        self.id = message_id


class GroupFull(QueueError):
    """A group, or a queue, has as many unfinished messages as its limit allows to be in hand.

    Or the queue has its ``max_length``. Only in a queue with ``when_full="reject"``.

    Attributes:
        queue: name of the queue.
        group: the group; None if the whole queue is full.
        limit: how many messages may be in hand, or the ``max_length``.
        place: the place of the message among several that were published together, from 0; None if
            it was the only one.
    """

    def __init__(self, queue: str, group: str | None, limit: int, place: int | None = None) -> None:
        which = "" if place is None else f"items[{place}]: "
        full = f"queue {queue!r}" if group is None else f"group {shown(group)} of queue {queue!r}"
        text = (
            f"{which}The limit of {full} leaves no room for another message: it has {limit} "
            "unfinished ones. Nothing was published. Publish again after one of them has ended, "
            "or change when_full."
        )
        super().__init__(text)
        self.queue = queue
        self.group = group
        self.limit = limit
        self.place = place


class PayloadInvalid(QueueError, ValueError):
    """The payload or the headers cannot be stored without loss, or do not fit their kind."""


class PayloadTooLarge(QueueError, ValueError):
    """The encoded payload or headers are larger than the limit.

    Attributes:
        size: encoded size in bytes.
        limit: largest allowed size in bytes.
    """

    def __init__(
        self, what: str, size: int, limit: int, raises: str = "create the queue with a larger limit"
    ) -> None:
        verb = "take" if what == "headers" else "takes"
        # Only that of payloads can be changed.
        otherwise = "" if what in {"headers", "result"} else f", or {raises}"
        super().__init__(
            f"The {what} {verb} {size:,} bytes; the limit is {limit:,}. Keep large content "
            f"elsewhere and {'return' if what == 'result' else 'publish'} a reference{otherwise}."
        )
        self.size = size
        self.limit = limit


class WrongDatabase(QueueError, ValueError):
    """The caller's ``connection=`` belongs to another database than the queue; nothing was done."""


class TopicNotFound(QueueError):
    """There is no such topic in this database.

    Attributes:
        topic: the requested name.
    """

    def __init__(self, topic: str) -> None:
        super().__init__(_never_created("topic", topic))
        self.topic = topic


class StageLost(QueueError):
    """Some messages of a staged write are missing, so nothing of its batch was published.

    Some database servers lose staged messages in a crash, and the reaper removes those that nobody
    published for a long time. Write the batch again.

    Attributes:
        queue: name of the queue.
        stage: name of the staging table.
    """

    def __init__(self, queue: str, stage: str, found: int, expected: int) -> None:
        super().__init__(
            f"Only {found} of {expected} messages staged for queue {queue!r} in table {stage} are "
            "left: the database server crashed, or they waited for too long. Nothing of the batch "
            "was published. Write it again."
        )
        self.queue = queue
        self.stage = stage


class ScheduleNotFound(QueueError):
    """There is no such schedule in this database.

    Attributes:
        schedule: the requested name.
    """

    def __init__(self, schedule: str) -> None:
        super().__init__(
            f"There is no schedule {shown(schedule)} in this database (it was never added, or "
            "it was removed). Add it with service.schedules.add(...)."
        )
        self.schedule = schedule


class RequestTimeout(QueueError, TimeoutError):
    """No reply arrived in time.

    Attributes:
        queue: name of the request's queue.
        correlation_id: correlation id of the request.
        message_id: id of the request.
        withdrawn: whether it was removed before a consumer claimed it.
    """

    def __init__(
        self,
        queue: str,
        correlation_id: str,
        message_id: int,
        waited: str,
        *,
        withdrawn: bool,
        gone: bool = False,
    ) -> None:
        ending = (
            "It could not be withdrawn, because a consumer claimed it or this login may not remove "
            "it; it may still be handled."
        )
        if withdrawn:
            ending = "No consumer had claimed it, so it was withdrawn."
        elif gone:
            ending = (
                "It is no longer in the queue: it ended without a reply, or it was removed or "
                "replaced."
            )
        super().__init__(
            f"No reply to message {message_id} of queue {queue!r} arrived within {waited}. {ending}"
        )
        self.queue = queue
        self.correlation_id = correlation_id
        self.message_id = message_id
        self.withdrawn = withdrawn


class NoResult(QueueError):
    """A message has no result, and gets none.

    Attributes:
        queue: name of the queue.
        message_id: id of the message.
        outcome: how it ended: ``failed``, ``rejected`` or ``expired``; None if that is not known.
        reason: why it ended so, if it is known.
    """

    def __init__(
        self,
        text: str,
        queue: str,
        message_id: int,
        outcome: str | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(text)
        self.queue = queue
        self.message_id = message_id
        self.outcome = outcome
        self.reason = reason


class ResultTimeout(NoResult, TimeoutError):
    """A message was not finished in time. Its attributes are those of ``NoResult``."""


class ReplyQueueGone(QueueError):
    """The reply queue is gone, because the requester has stopped or is considered dead.

    Attributes:
        queue: name of the reply queue.
    """

    def __init__(self, queue: str, text: str) -> None:
        super().__init__(text)
        self.queue = queue


class ConsumerNotFound(QueueError):
    """There is no such durable consumer in this database.

    Attributes:
        consumer_id: the requested id.
    """

    def __init__(self, consumer_id: str) -> None:
        super().__init__(
            f"There is no durable consumer {shown(consumer_id)} in this database (it was never "
            "registered, it was dropped, or it expired). List them with: queue-over-sql consumers"
        )
        self.consumer_id = consumer_id


class ConsumerTaken(QueueError):
    """A consumer of another queue, or of another kind, already has this name."""


class ConsumerFenced(QueueError):
    """Another query took over the durable consumer, so this query may not change anything.

    Attributes:
        consumer_id: the durable consumer.
        epoch: epoch of the query that has it now.
        owner: host and process of that query.
    """

    def __init__(self, consumer_id: str, mine: int, epoch: int, owner: str | None) -> None:
        super().__init__(
            f"Durable consumer {consumer_id!r} was taken over by {owner or 'another query'} "
            f"(epoch {epoch}; this query has epoch {mine}), or an operator released it. Only one "
            "query at a time may use a consumerId: stop one of them, or give it another consumerId."
        )
        self.consumer_id = consumer_id
        self.epoch = epoch
        self.owner = owner


class CheckpointBehind(QueueError):
    """A query requests rounds that are already acknowledged: its checkpoint is an old copy.

    Attributes:
        consumer_id: the durable consumer.
        start: the round of the checkpoint.
        acked_round: the last acknowledged round.
    """

    def __init__(self, consumer_id: str, start: int, acked_round: int) -> None:
        super().__init__(
            f"The checkpoint of durable consumer {consumer_id!r} is at round {start}, but round "
            f"{acked_round} is already acknowledged, so the messages between are finished. "
            "Restore the newest checkpoint, or start with a new one, or set failOnDataLoss=false "
            "to continue after the finished messages."
        )
        self.consumer_id = consumer_id
        self.start = start
        self.acked_round = acked_round


class RoundsGone(QueueError):
    """Rounds of a durable consumer do not exist: they were released, or were never claimed.

    Attributes:
        consumer_id: the durable consumer.
    """

    def __init__(self, consumer_id: str, text: str) -> None:
        super().__init__(
            f"Durable consumer {consumer_id!r}: {text} It expired, or an operator released or "
            "dropped it, or the checkpoint belongs to another database. Messages that it had not "
            "acknowledged are delivered again in new rounds. Start with a new checkpoint, or set "
            "failOnDataLoss=false to continue with this one."
        )
        self.consumer_id = consumer_id


class InvalidToken(QueueError, ValueError):
    """A text is not a token that this queue gave for a claim; nothing was changed."""


class ClaimLost(QueueError):
    """This claim no longer holds the messages; they were not changed.

    Attributes:
        messages: a list of the ``Message`` objects whose claim is lost. All others of the batch
            were settled.
    """

    def __init__(self, text: str, messages: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.messages = list(messages)


class ConsumerExpired(ClaimLost):
    """This consumer did not renew its heartbeat in time, so it may not settle messages.

    Its messages go to other consumers. The next ``consume`` registers it again. A process that was
    forked gets it, too, for claims of its parent, which still hold.
    """


class DatabaseUnavailable(QueueError):
    """The database cannot be reached, the connection broke, or a statement was cancelled."""


class Locked(DatabaseUnavailable):
    """Others held a lock for longer than a background job waits; nothing was changed."""


class DatabaseRefused(QueueError):
    """The database refused a statement; the driver's error is the ``__cause__``."""


class NotPermitted(DatabaseRefused):
    """The database login lacks a right; nothing was changed. ``docs/roles.md`` lists the rights.

    Attributes:
        table: the table on which the right is missing; None if the server did not name one of ours.
        rights: the rights that the statement needs on it, such as ``INSERT``.
        roles: our roles that have these rights; empty if only the owner of the tables has them.
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


class NotFinished(DatabaseRefused):
    """The database refused to finish messages in the caller's transaction, such as by a constraint.

    The transaction is still usable. If it commits, the messages are held with the reason in
    ``last_error``, and all others are settled. If it rolls back, all are as they were.

    Attributes:
        messages: a list of the ``Message`` objects that are held.
        reasons: why the database refused them, by id.
    """

    def __init__(
        self, text: str, messages: Sequence[Any] = (), reasons: Mapping[int, str] | None = None
    ) -> None:
        super().__init__(text)
        self.messages = list(messages)
        self.reasons = dict(reasons or {})


class HistoryDiffers(QueueError):
    """The files of an export do not match the archives; nothing was added."""


class UnsupportedByEngine(QueueError):
    """This database engine, or this version of it, does not support the operation."""


class ServiceClosed(QueueError):
    """The service was stopped; create a new ``QueueService``."""

    def __init__(self) -> None:
        super().__init__("This service was stopped. Create a new one.")
