"""Claims in the name of clients that are not processes of this library, such as those of HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql.claiming.claimer import FIRST_POLL, LAST_POLL
from queue_over_sql.queue import Queue, core_of
from queue_over_sql.service import QueueService, parts_of
from queue_over_sql.values import backoff

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queue_over_sql.message import Message
    from queue_over_sql.values.durations import Duration


class ClientClaims:
    """Claims of one queue that end with their leases, in the name of a consumer without a process.

    Any process settles them by their tokens, with ``Queue.held`` or with ``held``.

    Args:
        queue: the queue.
        holder: the id of the consumer, which all processes share; registered at the first claim.
        host: what the list of consumers shows instead of a host.
    """

    def __init__(self, queue: Queue, holder: str, host: str) -> None:
        self._tokens = core_of(queue).tokens
        self._claimer = core_of(queue).lasting_for(holder, host)

    def claim(self, count: int, lease: Duration | None) -> list[Message]:
        """Claim messages that are available now; payloads are not decoded by their kinds.

        Args:
            count: the maximum number of messages.
            lease: length of the lease; None: that of each message, or of the queue.

        Raises:
            ConsumerTaken: a consumer that can expire has this id. Otherwise as ``Queue.consume``.
        """
        return self._claimer.consume(count, lease, 0.0, None)

    def held(self, tokens: Sequence[str]) -> dict[str, Message]:
        """As ``Queue.held_many``, by token, and without contents: to settle the messages.

        An extension without a length takes the lease of the message or the queue.

        Raises:
            InvalidToken: one is no token of this queue.
        """
        return self._tokens.held(tokens, contents=False)


class Arrivals:
    """Wakes who waits for messages of any queue of a service, also for those of other processes."""

    def __init__(self, service: QueueService) -> None:
        self._parts = parts_of(service)

    @property
    def count(self) -> int:
        """The count of arrivals; read it before the poll that finds nothing."""
        return self._parts.arrivals.count

    @property
    def ended(self) -> bool:
        """Whether the service was stopped."""
        return self._parts.closed

    def listen(self) -> None:
        """Let other processes notify this one, where the engine can; polls go on."""
        self._parts.wakeups.listen()

    def wait(self, seen: int, seconds: float) -> None:
        """Sleep until something arrives, at most ``seconds``; not if ``count`` is not ``seen``."""
        self._parts.arrivals.wait(seen, seconds)

    def notify(self) -> None:
        """Wake all that wait in this process."""
        self._parts.arrivals.notify()


def poll_pauses() -> backoff.Backoff:
    """The pauses between polls of an empty queue, as consumers make them."""
    return backoff.poll_pauses(FIRST_POLL, LAST_POLL)
