"""One run of a handler: its calls with claimed messages, until each message is settled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from queue_over_sql.errors import QueueError, visible
from queue_over_sql.message import (
    expiry_of,
    has_ended,
    is_given_back,
    lease_ends_at,
    may_come_in_time,
    result_of,
    still_wanted,
)
from queue_over_sql.observer import facts_of
from queue_over_sql.queue import core_of
from queue_over_sql.values.durations import elapsed_clock
from queue_over_sql.worker.call import HandlerCalls
from queue_over_sql.worker.outcomes import Outcomes
from queue_over_sql.worker.shared_transaction import SharedTransaction
from queue_over_sql.worker.time_limits import CallAbandoned, HandlerStopped, TimedOut, TimeLimits
from queue_over_sql.worker.transactions import HandlerTransactions, NotCalled, TransactionConflict

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.database.connections import Connections
    from queue_over_sql.message import Message
    from queue_over_sql.queue import Queue
    from queue_over_sql.worker.handler import Handler


_log = logging.getLogger(__name__)


class Stuck(NamedTuple):
    """A call that took too long and was abandoned, while it still runs.

    Attributes:
        taken: all messages of the call.
        settle: settles them, apart from those that are kept.
        kept: copies of those that stay claimed until the call ends, because their groups wait for
            it.
        settle_kept: settles these.
    """

    taken: Sequence[Message]
    settle: Callable[[], None]
    kept: Sequence[Message]
    settle_kept: Callable[[], None]


def _no_series(_message: Message) -> None:
    return None


class HandlerRun:
    """Runs one handler on claimed messages, and settles each of them or logs its lost claim.

    One thread runs it, and closes it while it has no messages.

    Args:
        handler: the handler.
        queue: the queue of its messages.
        connections: of the service.
        insist: repeats what the unavailable database prevents.
        draining: whether the worker begins no more messages.
        limits: interrupts calls that take too long; None if nothing interrupts them.
        stuck: called from another thread with an abandoned call.
        on_failure: called with each failure of the handler.
        series: the series of a message, whose messages run one after another. If one comes back,
            those behind it come back, too.
    """

    def __init__(
        self,
        handler: Handler,
        queue: Queue,
        connections: Connections,
        insist: Callable[[Callable[[], None]], None],
        draining: Callable[[], bool],
        *,
        limits: TimeLimits | None = None,
        stuck: Callable[[Stuck], None] | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
        series: Callable[[Message], str | None] = _no_series,
    ) -> None:
        self._handler = handler
        self._stuck = stuck
        self._series = series
        self._taken: Sequence[Message] = ()
        self.queue = queue
        self._connections = connections
        self._draining = draining
        self._calls = HandlerCalls(handler, queue, connections, limits, self._abandon)
        self._outcomes = Outcomes(queue, insist, on_failure)
        self._transactions = (
            HandlerTransactions(queue, connections, draining) if handler.transactional else None
        )
        self.used_at = time.monotonic()
        """When its last call ended."""
        self.unbegun: list[Message] = []
        """Messages of the last call that need their own transactions."""

    def close(self) -> None:
        """Give back the connection of a transactional handler."""
        if self._transactions is not None:
            self._transactions.close()

    def handle(self, messages: Sequence[Message]) -> list[Message]:
        """Call the handler; returns the messages that must still be acked."""
        self.unbegun = []
        self._taken = messages
        held = [m for m in messages if self.queue.holds(m) and not m.cancelled]
        if len(held) < len(messages):
            _log.warning(
                "Queue %s: the worker skips messages whose claims are lost.", self.queue.name
            )
        held = self._in_time(held)
        if any(map(expiry_of, held)):
            held = self._not_expired(held)
        if len(held) < len(messages):
            held = self._undisturbed(messages, held)
        if not held:
            return []
        if self._transactions is not None and len(held) > 1 and not self._handler.batch:
            self._call_together(held, self._transactions)
            finished = []
        else:
            finished = self._call(held)
        self.used_at = time.monotonic()
        return finished

    def _in_time(self, messages: list[Message]) -> list[Message]:
        """Those whose lease runs; gives back the others, uncounted, unless it is very short."""
        now = elapsed_clock()
        late = [message for message in messages if now >= lease_ends_at(message)]
        if not late:
            return messages
        _log.warning(
            "Queue %s: the worker skips messages whose lease ended before their handler began. "
            "Set a longer lease, or a smaller prefetch: %s",
            self.queue.name,
            ", ".join(map(repr, late)),
        )
        self._outcomes.give_back([message for message in late if may_come_in_time(message)])
        return [message for message in messages if message not in late]

    def _not_expired(self, messages: list[Message]) -> list[Message]:
        try:
            return core_of(self.queue).not_expired(messages)
        except QueueError as error:
            # Nobody knows which of them may begin.
            _log.warning("Queue %s: messages are given back: %s", self.queue.name, error)
            self._outcomes.give_back(messages)
            return []

    def _undisturbed(self, messages: Sequence[Message], held: Sequence[Message]) -> list[Message]:
        """Those that may begin; gives back what is behind others that may not."""
        broken = set[str | None]()
        behind: list[Message] = []
        for message in messages:
            series = self._series(message)
            if series is None:
                continue
            if series in broken and message in held:
                behind.append(message)
            elif message not in held and not has_ended(message):
                broken.add(series)
        self._outcomes.give_back_behind(behind)
        return [message for message in held if message not in behind]

    def _behind(self, messages: Sequence[Message]) -> list[Message]:
        """Unsettled messages behind those that their handler gave back."""
        if len(messages) == 1 or not any(map(is_given_back, messages)):
            return []
        broken = set[str | None]()
        behind: list[Message] = []
        for message in messages:
            series = self._series(message)
            if series in broken and not message.settled:
                behind.append(message)
            elif series is not None and is_given_back(message):
                broken.add(series)
        return behind

    def _call_together(self, messages: list[Message], transactions: HandlerTransactions) -> None:
        shared = SharedTransaction(self._handler, self._draining, self._calls.call, self._series)
        committed = False
        try:
            transactions.run(messages, lambda connection: shared.handle(messages, connection))
            committed = True
        except NotCalled as error:
            _log.info("Queue %s: %s", self.queue.name, error.__cause__)
            self._outcomes.give_back(messages)
            return
        except CallAbandoned:
            raise
        except asyncio.CancelledError:
            self._outcomes.give_back(messages)
            raise
        except Exception as error:  # noqa: BLE001 - what it is shows when they are handled alone
            _log.info(
                "Queue %s: a shared transaction failed, so its messages are handled one by one: %s",
                self.queue.name,
                visible(str(error), keep=""),
            )
        tried = [*shared.begun, *shared.behind]
        self.unbegun = [message for message in messages if message not in tried]
        if not committed:
            tried = [message for message in messages if message in tried]
            self._call_one_by_one(tried, shared.failures)
            return
        for message, failure in shared.failures.items():
            self._outcomes.nack([message], *failure)
        self._outcomes.give_back_behind(shared.behind)

    def _call_one_by_one(
        self,
        messages: list[Message],
        failures: Mapping[Message, tuple[str, str | None, type[BaseException]]],
    ) -> None:
        broken = set[str | None]()
        for index, message in enumerate(messages):
            series = self._series(message)
            if series in broken:
                self._outcomes.give_back_behind([message])
                continue
            if self._draining() or not self.queue.holds(message):
                self._outcomes.give_back(messages[index:])
                return
            if message.cancelled:
                # It timed out, or its claim is lost.
                if message in failures:
                    self._outcomes.nack([message], *failures[message])
                if series is not None:
                    broken.add(series)
                continue
            try:
                self._call([message])
            except CallAbandoned:
                raise
            except HandlerStopped:
                self._outcomes.give_back(messages[index + 1 :])
                raise
            if series is not None and not has_ended(message):
                broken.add(series)

    def _call(self, messages: list[Message]) -> list[Message]:
        argument: Any = messages if self._handler.batch else messages[0]

        def do(connection: Connection) -> list[Message]:
            self._calls.call(messages, argument, connection)
            behind = self._behind(messages)
            return [message for message in messages if message not in behind]

        try:
            if self._transactions is not None:
                self._transactions.run_until_committed(messages, do)
                self._outcomes.give_back_behind(self._behind(messages))
                return []
            self._calls.call(messages, argument)
        except (NotCalled, TransactionConflict) as error:
            _log.info("Queue %s: %s", self.queue.name, error.__cause__)
            self._outcomes.give_back(messages)
            return []
        except CallAbandoned:
            # The abandoning thread settles its messages.
            raise
        except HandlerStopped:
            self._outcomes.give_back(messages)
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
            self._outcomes.failed(messages, error)
            return []
        if behind := self._behind(messages):
            self._outcomes.give_back_behind(behind)
            messages = [message for message in messages if message not in behind]
        left = [message for message in messages if not message.settled]
        # The others are acked together with the next claim, which keeps no results.
        results = [message for message in left if result_of(message) is not None]
        self._outcomes.ack(results)
        return [message for message in left if message not in results] if results else left

    def _abandon(self, messages: list[Message], reason: str, *connection: Connection) -> None:
        """Settle the messages of a call that does not end; called from another thread or task."""
        self._outcomes.abandoned = True
        others = [m for m in self._taken if m not in messages and not m.settled]
        # Their groups must not go on while the call runs.
        groups = {m.group for m in messages if m.group is not None}
        kept = [still_wanted(m) for m in [*messages, *others] if m.group in groups]
        failed, left = _apart(messages, groups), _apart(others, groups)
        observer = core_of(self.queue).context.observer
        if observer is not None:
            seconds = self._handler.timeout or 0.0
            observer.handled(self.queue.name, facts_of(messages), seconds, TimedOut(reason))

        def settle() -> None:
            # Abort its transaction first, because it may have locked the rows of its messages.
            for each in connection:
                self._connections.break_off(each)
            if failed:
                self._outcomes.nack(failed, reason)
            if left:
                self._outcomes.release(left)

        def settle_kept() -> None:
            ids = {each.id for each in messages}
            self._outcomes.nack([each for each in kept if each.id in ids], reason)
            # These may have come back with them.
            self._outcomes.release_behind([each for each in kept if each.id not in ids])

        _log.warning(
            "Queue %s: the handler of message %s %s. It cannot be stopped, so the worker abandons "
            "the call and continues. The call can no longer settle the message.%s",
            self.queue.name,
            ", ".join(map(repr, messages)),
            reason,
            " Its group waits until the call ends." if kept else "",
        )
        if self._stuck is not None:
            self._stuck(Stuck(self._taken, settle, kept, settle_kept))


def _apart(messages: Sequence[Message], groups: set[str]) -> list[Message]:
    return [message for message in messages if message.group not in groups]
