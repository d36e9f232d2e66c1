"""Whether the loops of a service or worker come round: what health checks may look at."""

from __future__ import annotations

import dataclasses
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from queue_over_sql.consumers import registrations
from queue_over_sql.consumers.consumer import Consumer
from queue_over_sql.database.connections import Connections
from queue_over_sql.service import QueueService, parts_of
from queue_over_sql.sql.operation import Operation
from queue_over_sql.worker.threads import HandlerThreads
from queue_over_sql.worker.worker import Worker, vital_parts

if TYPE_CHECKING:
    import threading
    from types import CodeType, FrameType

    from queue_over_sql.database.runtime import LoopProgress

# These waits are for the database, or between two attempts to reach it.
_ASKING: Final[frozenset[CodeType]] = frozenset(
    {
        Connections.run.__code__,
        Connections._connect.__code__,  # noqa: SLF001 - to see who is inside
        HandlerThreads.insist.__code__,
        Consumer.identity.__code__,
    }
)


class Loop(Protocol):
    """A loop that runs in the background.

    Attributes:
        name: of the loop, for people.
        due_at: when its next round is due, on the monotonic clock; it may wait longer for the
            database.
        thread: the thread that it runs in; None before it starts.
    """

    name: str
    due_at: float
    thread: threading.Thread | None


@dataclasses.dataclass(frozen=True)
class HandlersAtWork:
    """What the handlers of a worker are doing.

    Attributes:
        running: whether the worker runs.
        draining: whether it finishes its current messages and takes no others.
        in_outage: whether it waits for the database.
        concurrency: how many calls it makes at a time.
        called_at: when each present call began, on the monotonic clock.
    """

    running: bool
    draining: bool
    in_outage: bool
    concurrency: int
    called_at: Sequence[float]


class Vitals:
    """What shows whether a service or a worker is alive; any thread may ask.

    Args:
        watched: a worker, or a service; also an asynchronous one.

    Attributes:
        consumer_timeout: after how many seconds without a heartbeat the consumer counts as dead.
        has_threads: whether the loops run in threads; otherwise on an event loop.

    Raises:
        TypeError: it is neither.
    """

    def __init__(self, watched: Any) -> None:
        # An asynchronous proxy contains one of these.
        watched = getattr(watched, "_sync", watched)
        self._threads: HandlerThreads | None = None
        self._renewal: LoopProgress | None = None
        if isinstance(watched, Worker):
            self._parts, self._threads, self._renewal = vital_parts(watched)
        elif isinstance(watched, QueueService):
            self._parts = parts_of(watched)
        else:
            msg = f"watched must be a service or a worker, not {type(watched).__name__}"
            raise TypeError(msg)
        self.consumer_timeout = self._parts.settings.consumer_timeout_us / 1_000_000
        self.has_threads = self._parts.connections.runtime.has_threads

    @property
    def closed(self) -> bool:
        """Whether the service was stopped."""
        return self._parts.closed

    @property
    def may_register(self) -> bool:
        """Whether the login may register a consumer; True until the database refuses it."""
        return self._parts.consumer.may_register

    @property
    def registered(self) -> bool:
        """Whether the service is registered as a consumer."""
        return self._parts.consumer.consumer_id is not None

    @property
    def alive(self) -> bool:
        """Whether its last heartbeat is recent enough."""
        return self._parts.consumer.alive

    @property
    def handlers(self) -> HandlersAtWork | None:
        """What the handlers are doing; None if a service is watched."""
        threads = self._threads
        if threads is None:
            return None
        return HandlersAtWork(
            running=bool(threads.supplies),
            draining=threads.draining,
            in_outage=threads.in_outage,
            concurrency=threads.concurrency,
            called_at=list(threads.called_at.values()),
        )

    def loops(self) -> Iterator[Loop]:
        """The loops that are expected to come round now."""
        if self.closed:
            return
        yield from self._parts.background.loops
        watchdog = self._parts.connections.watchdog.progress
        # Some engines need none.
        if watchdog.due_at < math.inf:
            yield watchdog
        if self._threads is not None and self._renewal is not None:
            yield self._renewal
            yield from (supply.progress for supply in self._threads.supplies)

    def asks_database(self, frame: FrameType) -> bool:
        """Whether a thread that stands there waits for the database, as it may for any time."""
        return any(each.f_code in _ASKING for each, _ in traceback.walk_stack(frame))

    def start(self, name: str, function: Callable[[], object]) -> None:
        """Start a job of the service from a thread that does not belong to it.

        Raises:
            RuntimeError: nothing can be started any more.
        """
        self._parts.connections.runtime.start_from_outside(name, function)

    def ask(self) -> bool:
        """Ask the database once whether it considers this consumer alive, or just whether it runs.

        Raises:
            ServiceClosed, DatabaseUnavailable, DatabaseRefused: as ``inside.run``.
        """
        connections, me = self._parts.connections, self._parts.consumer.consumer_id
        system, dialect = self._parts.system(), connections.dialect
        if me is None or not self._parts.consumer.may_register:
            connections.run(Operation(dialect.read_clock, repeatable=False))
            return True
        # Close the session even if the service stops meanwhile.
        asking = Operation(
            lambda c: registrations.alive(c, system, dialect.expressions, me), repeatable=False
        )
        return connections.run(asking)
