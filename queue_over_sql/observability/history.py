"""History: counts per queue and minute, stored in the database.

Each process adds one row per queue and active minute, so the cost does not grow with the number of
messages.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import delete, insert, select

from queue_over_sql.backoff import OutageLog
from queue_over_sql.durations import Duration, to_timedelta
from queue_over_sql.errors import DatabaseUnavailable, NotPermitted, QueueError, ServiceClosed
from queue_over_sql.observer import MessageFacts, Observer
from queue_over_sql.schema.system_tables import HISTORY_COUNTS
from queue_over_sql.service import QueueService, parts_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.catalog import ServiceParts
    from queue_over_sql.database.runtime import Condition

_log = logging.getLogger(__name__)

BOUNDS: Final[tuple[float, ...]] = tuple(0.001 * 2**exponent for exponent in range(24))
"""Upper bounds of the histogram buckets in seconds, from 1 ms to 2 h 20 min.

One more bucket has all larger values.
"""

_MINUTE: Final = 60
_MICROSECONDS: Final = 60_000_000
# How many rows are kept in memory while the database is unavailable.
_MOST_ROWS: Final = 5_000
_PRUNE_SECONDS: Final = 3_600


@dataclasses.dataclass
class Minute:
    """The activity of one queue in one minute, in all processes together.

    Attributes:
        queue: name of the queue.
        begins_at: when the minute began, by the database's clock.
        published, claimed: numbers of messages.
        redelivered: claimed messages that had been delivered before.
        done, retried, failed, rejected, released: messages by how they were settled; ``failed``
            were out of attempts, also those that the reaper found; ``released`` went back to the
            queue without a counted attempt. Those that expired are not counted.
        claims_lost: messages that could not be settled, because their claims were lost.
        handler_failures: handler calls that raised an exception.
        waited: a histogram (``BOUNDS``) of the seconds that messages waited from their due time to
            their first claim.
        handled: a histogram (``BOUNDS``) of the duration of handler calls.
    """

    queue: str
    begins_at: datetime
    published: int = 0
    claimed: int = 0
    redelivered: int = 0
    done: int = 0
    retried: int = 0
    failed: int = 0
    rejected: int = 0
    released: int = 0
    claims_lost: int = 0
    handler_failures: int = 0
    waited: list[int] = dataclasses.field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    handled: list[int] = dataclasses.field(default_factory=lambda: [0] * (len(BOUNDS) + 1))

    def add(self, other: Minute) -> None:
        """Add the counts of another process or minute."""
        for name in HISTORY_COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in ((self.waited, other.waited), (self.handled, other.handled)):
            mine[:] = [a + b for a, b in zip(mine, theirs, strict=True)]


def quantile(histogram: Sequence[int], share: float) -> float | None:
    """Estimate a quantile in seconds; None if there are no values.

    The result is the upper bound of a bucket, so at most twice the true value; ``inf`` above the
    last bound.
    """
    wanted, seen = share * sum(histogram), 0
    if not wanted:
        return None
    for place, count in enumerate(histogram):
        seen += count
        if seen >= wanted:
            return BOUNDS[place] if place < len(BOUNDS) else float("inf")
    return None


class History(Observer):
    """An observer that records the activity of each queue and minute in the database.

    Give it to ``QueueService(observer=…)``.

    It writes a row after the end of each minute, and when the service stops. A process that is
    killed loses the current minute.

    Args:
        keep: how long to keep rows.

    Raises:
        TypeError, ValueError: ``keep`` is not a duration above zero, or another service already
            uses this object.
    """

    def __init__(self, *, keep: Duration = timedelta(days=7)) -> None:
        self._keep = to_timedelta(keep, "keep")
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._open: dict[tuple[str, int], Minute] = {}
        self._parts: ServiceParts | None = None
        self._changed: Condition | None = None
        self._running = self._closing = False
        self._pruned_at = float("-inf")
        self._outage = OutageLog("The history")

    def opened(self, service: QueueService) -> None:
        """Use the database of this service."""
        if self._parts is not None:
            msg = "this History already belongs to another service: create one for each service"
            raise ValueError(msg)
        self._parts = parts_of(service)
        self._changed = self._parts.connections.runtime.condition()

    def closing(self) -> None:
        """Write the remaining counts."""
        self._closing = True
        if self._changed is not None:
            with self._changed:
                self._changed.notify_all()
        self._flush(float("inf"))

    def published(self, queue: str, count: int, seconds: float, ids: Sequence[int]) -> None:
        """Count it."""
        del seconds, ids
        with self._mine():
            self._minute(queue).published += count

    def claimed(self, queue: str, messages: Sequence[MessageFacts], seconds: float) -> None:
        """Count it."""
        del seconds
        with self._mine():
            minute = self._minute(queue)
            minute.claimed += len(messages)
            for message in messages:
                minute.redelivered += message.attempt > 1
                if message.waited is not None:
                    minute.waited[bisect.bisect_left(BOUNDS, message.waited)] += 1

    def handled(
        self,
        queue: str,
        messages: Sequence[MessageFacts],
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """Count it."""
        del messages
        with self._mine():
            minute = self._minute(queue)
            minute.handled[bisect.bisect_left(BOUNDS, seconds)] += 1
            minute.handler_failures += error is not None

    def settled(self, queue: str, outcome: str, ids: Sequence[int]) -> None:
        """Count it."""
        with self._mine():
            minute = self._minute(queue)
            setattr(minute, outcome, getattr(minute, outcome) + len(ids))

    def claim_lost(self, queue: str, ids: Sequence[int]) -> None:
        """Count it."""
        with self._mine():
            self._minute(queue).claims_lost += len(ids)

    def _mine(self) -> threading.Lock:
        if self._pid != os.getpid():
            # A forked child has none of its parent's threads, and must not count for the parent.
            self._pid, self._running = os.getpid(), False
            self._lock, self._open = threading.Lock(), {}
        return self._lock

    def _minute(self, queue: str) -> Minute:
        number = int(time.time()) // _MINUTE
        found = self._open.get((queue, number))
        if found is None:
            begins_at = datetime.fromtimestamp(number * _MINUTE, UTC)
            found = self._open[queue, number] = Minute(queue, begins_at)
            if not self._running and self._parts is not None:
                runtime = self._parts.connections.runtime
                runtime.start("queue-over-sql-history", self._run, job=True)
                self._running = True
        return found

    def _run(self) -> None:
        changed = self._changed
        while changed is not None and not self._closing:
            with changed:
                if not self._closing:
                    changed.wait(_MINUTE - time.time() % _MINUTE + 0.5)
            if not self._closing:
                try:
                    self._flush(time.time() // _MINUTE)
                except Exception:  # noqa: BLE001 - else nothing would be recorded any more
                    _log.exception("The history continues after an unexpected error.")

    def _flush(self, before: float) -> None:
        with self._mine():
            ended = {key: minute for key, minute in self._open.items() if key[1] < before}
            for key in ended:
                del self._open[key]
        parts = self._parts
        if parts is None or not ended:
            return
        try:
            self._write(parts, list(ended.values()))
            self._outage.ended()
        except (DatabaseUnavailable, ServiceClosed) as error:
            self._outage.began(error)
            self._keep_for_later(ended)
        except QueueError as error:
            _log.warning(
                "The history of %d minutes could not be written and is lost: %s", len(ended), error
            )

    def _keep_for_later(self, ended: dict[tuple[str, int], Minute]) -> None:
        with self._mine():
            self._open = {**ended, **self._open}
            for key in list(self._open)[: max(0, len(self._open) - _MOST_ROWS)]:
                del self._open[key]

    def _write(self, parts: ServiceParts, minutes: Sequence[Minute]) -> None:
        table, prefix = parts.system().history, parts.settings.table_prefix
        # A new one each time, because a minute may occur twice if the clock is set back.
        process = uuid.uuid4().hex

        def act(connection: Connection) -> None:
            now = parts.connections.dialect.read_clock(connection)
            # Minutes are by the database's clock.
            ahead = round((now - time.time_ns() // 1000) / _MICROSECONDS)
            rows = [
                {
                    "table_prefix": prefix,
                    "queue": minute.queue,
                    "minute": int(minute.begins_at.timestamp()) // _MINUTE + ahead,
                    "process": process,
                    **{name: getattr(minute, name) for name in HISTORY_COUNTS},
                    "waited": json.dumps(minute.waited),
                    "handled": json.dumps(minute.handled),
                }
                for minute in minutes
            ]
            connection.execute(insert(table), rows)

        def prune(connection: Connection) -> None:
            now = parts.connections.dialect.read_clock(connection)
            oldest = now // _MICROSECONDS - int(self._keep.total_seconds()) // _MINUTE
            of_ours = table.c.table_prefix == prefix
            connection.execute(delete(table).where(of_ours, table.c.minute < oldest))

        parts.connections.run(act, atomic=True)
        if time.monotonic() > self._pruned_at + _PRUNE_SECONDS:
            self._pruned_at = time.monotonic()
            # A login that may only insert rows leaves pruning to others.
            with contextlib.suppress(NotPermitted):
                parts.connections.run(prune, atomic=True)


def read_history(service: QueueService, since: Duration, queue: str | None = None) -> list[Minute]:
    """Read the recent activity by queue and minute.

    Args:
        service: a service of the database.
        since: how far to look back.
        queue: only this queue.

    Returns:
        The active minutes, of all processes together, by queue and time.

    Raises:
        TypeError, ValueError: ``since`` is not a duration above zero.
    """
    parts = parts_of(service)
    seconds = to_timedelta(since, "since").total_seconds()
    table, dialect = parts.system().history, parts.connections.dialect
    wanted = select(table).where(table.c.table_prefix == parts.settings.table_prefix)
    if queue is not None:
        wanted = wanted.where(table.c.queue == queue)

    def act(connection: Connection) -> Sequence[Any]:
        now = dialect.read_clock(connection)
        first = (now - int(seconds * 1_000_000)) // _MICROSECONDS
        return connection.execute(wanted.where(table.c.minute >= first)).all()

    found: dict[tuple[str, int], Minute] = {}
    for row in parts.connections.run(act):
        begins_at = datetime.fromtimestamp(row.minute * _MINUTE, UTC)
        minute = found.setdefault((row.queue, row.minute), Minute(row.queue, begins_at))
        waited, handled = _histogram(row.waited), _histogram(row.handled)
        counts = {name: getattr(row, name) for name in HISTORY_COUNTS}
        minute.add(Minute(row.queue, begins_at, **counts, waited=waited, handled=handled))
    return [found[key] for key in sorted(found)]


def _histogram(text: str) -> list[int]:
    # A stored histogram; empty if somebody else has written something there.
    try:
        counts: Any = json.loads(text)
    except ValueError:
        counts = None
    if isinstance(counts, list) and len(counts) == len(BOUNDS) + 1:
        return [count if isinstance(count, int) else 0 for count in counts]
    return [0] * (len(BOUNDS) + 1)
