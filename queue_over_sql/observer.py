"""Observer: notified of what a service does, for your own metrics, traces and logs."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from queue_over_sql.message import row_of
from queue_over_sql.values.options import GROUP_KEY

if TYPE_CHECKING:
    from queue_over_sql.errors import ClaimLost
    from queue_over_sql.message import Message

_log = logging.getLogger(__name__)
_SECOND = 1_000_000
_NO_HEADERS: AbstractContextManager[dict[str, Any]] = contextlib.nullcontext({})


class MessageFacts(NamedTuple):
    """The facts about a claimed message for observers; they do not include its payload.

    Attributes:
        id: id of the message.
        attempt: number of this delivery, from 1.
        round: the consumer's round in which it was claimed; None for a taken message.
        consumer_id: id of the consumer that claimed it; None for a taken message.
        waited: seconds from its due time to its claim; None if that is not known, such as for a
            second attempt.
        headers: the published headers.
        group: its group; None for a message without one.
        priority: its priority; 0 is the most urgent.
        due: when it was first due, in seconds since 1970 by the database's clock.
    """

    id: int
    attempt: int
    round: int | None
    consumer_id: str | None
    waited: float | None
    headers: Mapping[str, Any]
    group: str | None = None
    priority: int = 0
    due: float | None = None


@dataclasses.dataclass(frozen=True)
class ReaperReport:
    """The results of one pass of the reaper.

    Attributes:
        restored: messages returned to their queues.
        dead_lettered: messages that were out of attempts, or deferred for longer than the
            ``kind_timeout``.
        pruned: archived messages that were removed by ``archive_ttl`` or ``archive_limit``.
        consumers: dead consumers whose registrations were removed.
        scheduled: messages that schedules published.
        dropped: temporary queues of dead consumers that were dropped.
        cleaned: abandoned staged batches that were dropped.
        repaired: groups whose messages waited for nothing: somebody had removed one by SQL, or died
            while raising the group limit.
    """

    restored: int = 0
    dead_lettered: int = 0
    pruned: int = 0
    consumers: int = 0
    scheduled: int = 0
    dropped: int = 0
    cleaned: int = 0
    repaired: int = 0

    @property
    def buried(self) -> int:
        """Deprecated: the former name of ``dead_lettered``."""
        return self._renamed("buried", "dead_lettered")

    @property
    def fired(self) -> int:
        """Deprecated: the former name of ``scheduled``."""
        return self._renamed("fired", "scheduled")

    @property
    def swept(self) -> int:
        """Deprecated: the former name of ``cleaned``."""
        return self._renamed("swept", "cleaned")

    def _renamed(self, old: str, new: str) -> int:
        msg = f"ReaperReport.{old} is deprecated: use ReaperReport.{new}"
        warnings.warn(msg, DeprecationWarning, stacklevel=3)
        return int(getattr(self, new))

    def __add__(self, other: ReaperReport) -> ReaperReport:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return ReaperReport(*(mine + theirs for mine, theirs in pairs))


class Observer:
    """Is notified of what a service does. Subclass it and override the methods that you need.

    Pass it to ``QueueService(observer=…)``. The service calls it in the thread or event loop that
    called the verb, so its methods must be fast and thread-safe. Their exceptions are logged and
    have no other effect. A verb with ``connection=`` calls it at the end of the verb, even if the
    caller's transaction does not commit later. A worker that acks in the transaction of its handler
    calls ``settled`` after the commit.
    """

    def opened(self, service: Any) -> None:
        """A ``QueueService`` was created with this observer; it raises the method's exceptions."""

    def closing(self) -> None:
        """The service is stopping, and can still reach its database."""

    def publishing(self, queue: str, count: int) -> AbstractContextManager[Any] | None:
        """Wrap a publish.

        Args:
            queue: name of the queue, or of the topic.
            count: how many messages; 0 if that is not known yet.

        Returns:
            A context manager around the publish, or None. It gets the error, if there is one. It
            may yield headers to add to each message.
        """
        del queue, count
        return None

    def published(self, queue: str, count: int, seconds: float, ids: Sequence[int]) -> None:
        """Messages were published, requeued, or copied to a ``dead_letter_queue``.

        Args:
            queue: name of the queue that has them.
            count: how many messages were added; a message that replaced another one adds none.
            seconds: how long the publish took.
            ids: ids of those that were added or replaced; empty for ``load``, ``enqueue`` and
                schedules.
        """

    def claimed(self, queue: str, messages: Sequence[MessageFacts], seconds: float) -> None:
        """Messages were claimed or taken.

        Args:
            queue: name of the queue.
            messages: the claimed messages, at least one.
            seconds: how long the claim took, without the wait for a message.
        """

    def handling(
        self, queue: str, messages: Sequence[MessageFacts]
    ) -> AbstractContextManager[Any] | None:
        """Wrap a call of a worker's handler.

        Returns:
            A context manager around the call, or None. It gets the error, if there is one.
        """
        del queue, messages
        return None

    def handled(
        self,
        queue: str,
        messages: Sequence[MessageFacts],
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """A worker's handler ended.

        Args:
            queue: name of the queue.
            messages: the messages of the call: one, unless the handler takes batches.
            seconds: how long the handler ran.
            error: the exception that it raised, or None.
        """

    def settled(self, queue: str, outcome: str, ids: Sequence[int]) -> None:
        """Messages were settled.

        Args:
            queue: name of the queue.
            outcome: ``done``, ``retried``, ``failed`` (out of attempts), ``rejected``, ``expired``
                or ``released``.
            ids: ids of the messages.
        """

    def claim_lost(self, queue: str, ids: Sequence[int]) -> None:
        """Messages could not be settled, because their claims were lost."""

    def dead_lettered(self, queue: str, ids: Sequence[int], reason: str | None) -> None:
        """Messages became dead letters, through a verb of this service or its reaper."""

    def reaped(self, report: ReaperReport, seconds: float) -> None:
        """A pass of the reaper ended, after this many seconds."""

    def schedule_fired(self, schedule: str, queue: str, count: int) -> None:
        """A schedule published messages."""


class Observers(Observer):
    """Notifies several observers; their exceptions do not reach the verb."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        # Methods that an observer does not override are not called.
        self._listeners = {
            name: [getattr(o, name) for o in observers if getattr(type(o), name) is not method]
            for name, method in vars(Observer).items()
            if not name.startswith("_")
        }
        self.wraps_publishing = bool(self._listeners["publishing"])
        """Whether any of them overrides ``publishing``."""
        self._complained: set[Callable[..., Any]] = set()

    def opened(self, service: Any) -> None:
        """Notify them; their exceptions are raised."""
        for notify in self._listeners["opened"]:
            notify(service)

    def closing(self) -> None:
        """Notify them."""
        self._notify("closing")

    def publishing(self, queue: str, count: int) -> AbstractContextManager[dict[str, Any]]:
        """Wrap a publish; yields the headers of all observers."""
        return self._publishing(queue, count) if self.wraps_publishing else _NO_HEADERS

    @contextlib.contextmanager
    def _publishing(self, queue: str, count: int) -> Iterator[dict[str, Any]]:
        with self._wrapped("publishing", queue, count) as yielded:
            headers: dict[str, Any] = {}
            for given in yielded:
                headers.update(given if isinstance(given, Mapping) else {})
            yield headers

    def handling(
        self, queue: str, messages: Sequence[MessageFacts]
    ) -> AbstractContextManager[object]:
        """Wrap a call of a handler."""
        if not self._listeners["handling"]:
            return _NO_HEADERS
        return self._wrapped("handling", queue, messages)

    def published(self, queue: str, count: int, seconds: float, ids: Sequence[int]) -> None:
        """Notify them."""
        # Inlined ``_notify``, which saves a call on each publish.
        for notify in self._listeners["published"]:
            try:
                notify(queue, count, seconds, ids)
            except Exception:  # noqa: BLE001 - a user's observer must not fail a verb
                self._complain(notify)

    def claimed(self, queue: str, messages: Sequence[MessageFacts], seconds: float) -> None:
        """Notify them."""
        self._notify("claimed", queue, messages, seconds)

    def handled(
        self,
        queue: str,
        messages: Sequence[MessageFacts],
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """Notify them."""
        self._notify("handled", queue, messages, seconds, error)

    def settled(self, queue: str, outcome: str, ids: Sequence[int]) -> None:
        """Notify them."""
        self._notify("settled", queue, outcome, ids)

    def claim_lost(self, queue: str, ids: Sequence[int]) -> None:
        """Notify them."""
        self._notify("claim_lost", queue, ids)

    def dead_lettered(self, queue: str, ids: Sequence[int], reason: str | None) -> None:
        """Notify them."""
        self._notify("dead_lettered", queue, ids, reason)

    def reaped(self, report: ReaperReport, seconds: float) -> None:
        """Notify them."""
        self._notify("reaped", report, seconds)

    def schedule_fired(self, schedule: str, queue: str, count: int) -> None:
        """Notify them."""
        self._notify("schedule_fired", schedule, queue, count)

    def _notify(self, what: str, *facts: Any) -> None:
        for notify in self._listeners[what]:
            try:
                notify(*facts)
            except Exception:  # noqa: BLE001 - a user's observer must not fail a verb
                self._complain(notify)

    @contextlib.contextmanager
    def _wrapped(self, what: str, *facts: Any) -> Iterator[list[Any]]:
        entered: list[tuple[Callable[..., Any], AbstractContextManager[Any]]] = []
        yielded = []
        for wrap in self._listeners[what]:
            try:
                wrapper = wrap(*facts)
                if wrapper is not None:
                    yielded.append(wrapper.__enter__())
                    entered.append((wrap, wrapper))
            except Exception:  # noqa: BLE001 - as in _notify
                self._complain(wrap)
        failure: tuple[Any, Any, Any] = (None, None, None)
        try:
            yield yielded
        except BaseException:
            failure = sys.exc_info()
            raise
        finally:
            for wrap, wrapper in reversed(entered):
                try:
                    # Its return value is ignored, so an observer cannot suppress an error.
                    wrapper.__exit__(*failure)
                except Exception as error:  # noqa: BLE001 - as in _notify
                    if error is not failure[1]:
                        self._complain(wrap)

    def _complain(self, method: Callable[..., Any]) -> None:
        if method not in self._complained:
            self._complained.add(method)
            _log.exception(
                "The method %s of the observer failed; its further failures are not logged.", method
            )


def as_observers(given: Any) -> Observers | None:
    """The observers given as ``observer=``; None if there are none.

    Raises:
        TypeError: it is neither an ``Observer`` nor a list of them.
    """
    if given is None:
        return None
    several = [given] if isinstance(given, Observer) else given
    if not isinstance(several, list | tuple) or not all(isinstance(o, Observer) for o in several):
        msg = f"observer must be an Observer or a list of them, not {type(given).__name__}"
        raise TypeError(msg)
    return Observers(several) if several else None


def facts_of(messages: Sequence[Message]) -> list[MessageFacts]:
    """The facts about claimed messages for observers."""
    return [_facts(message) for message in messages]


def _facts(message: Message) -> MessageFacts:
    row = row_of(message)
    waited = None
    if row.attempt_count == 1 and row.claimed_at is not None:
        waited = max(0, row.claimed_at - row.scheduled_at) / _SECOND
    return MessageFacts(
        row.id,
        row.attempt_count,
        row.consumer_round,
        row.consumer_id,
        waited,
        message.headers,
        row.columns.get(GROUP_KEY),
        row.priority,
        row.scheduled_at / _SECOND,
    )


def log_fields(queue: str, messages: Sequence[Message]) -> dict[str, Any]:
    """The fields of a log record about messages, for ``extra``."""
    if len(messages) != 1:
        return {"queue": queue, "message_ids": [message.id for message in messages]}
    message = messages[0]
    return {
        "queue": queue,
        "message_id": message.id,
        "attempt": message.attempt,
        "round": message.consumer_round,
        "consumer_id": message.consumer_id,
    }


def log_lost(queue: str, error: ClaimLost) -> None:
    """Log as an error that a worker lost claims."""
    _log.error("Queue %s: %s", queue, error, extra=log_fields(queue, error.messages))
