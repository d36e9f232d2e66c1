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

from queue_over_sql import MessageFacts, Observer, inside
from queue_over_sql.errors import DatabaseUnavailable, NotPermitted, QueueError, ServiceClosed
from queue_over_sql.values.backoff import OutageLog
from queue_over_sql.values.durations import Duration, to_timedelta
from queue_over_sql.values.limits import HISTORY_COUNTS

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql import QueueService

_log = logging.getLogger(__name__)

BOUNDS: Final[tuple[float, ...]] = tuple(0.001 * 2**exponent for exponent in range(24))
"""Upper bounds of the histogram buckets in seconds, from 1 ms to 2 h 20 min.

One more bucket has all larger values.
"""

_MINUTE: Final = 60
# How often the row of the present minute is written again.
_WRITE_SECONDS: Final = 5.0
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
        done, retried, failed, rejected, expired, released: messages by how they were settled;
            ``failed`` were out of attempts, also those that the reaper found; ``released`` went
            back to the queue without a counted attempt.
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
    expired: int = 0
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


@dataclasses.dataclass
class _Row:
    """A minute of this process, and its row: a minute occurs twice if the clock is set back."""

    minute: Minute
    process: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    # Its number by the database's clock, once it was written.
    number: int | None = None
    changed: bool = True

    def copy(self) -> _Row:
        """As it is now; others go on to count."""
        minute = dataclasses.replace(
            self.minute, waited=list(self.minute.waited), handled=list(self.minute.handled)
        )
        return dataclasses.replace(self, minute=minute)


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


_STARTED: Final = time.time() - time.monotonic()


def _time() -> float:
    """The time of day, counted on from the start of this process without steps of the clock."""
    return _STARTED + time.monotonic()


class History(Observer):
    """An observer that records the activity of each queue and minute in the database.

    Give it to ``QueueService(observer=…)``.

    It writes the counts every five seconds, and when the service stops; a process that is killed
    loses what came after that. A login that may only insert rows writes a minute when it is over.

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
        self._open: dict[tuple[str, int], _Row] = {}
        self._rewrites = True
        self._service: QueueService | None = None
        self._changed: inside.Condition | None = None
        self._running = self._closing = False
        self._pruned_at = float("-inf")
        self._outage = OutageLog("The history")

    def opened(self, service: QueueService) -> None:
        """Use the database of this service."""
        if self._service is not None:
            msg = "this History already belongs to another service: create one for each service"
            raise ValueError(msg)
        self._service = service
        self._changed = inside.condition(service)

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
        number = int(_time()) // _MINUTE
        found = self._open.get((queue, number))
        if found is None:
            begins_at = datetime.fromtimestamp(number * _MINUTE, UTC)
            found = self._open[queue, number] = _Row(Minute(queue, begins_at))
            if not self._running and self._service is not None:
                inside.start(self._service, "queue-over-sql-history", self._run)
                self._running = True
        found.changed = True
        return found.minute

    def _run(self) -> None:
        changed = self._changed
        while changed is not None and not self._closing:
            with changed:
                if not self._closing:
                    changed.wait(_WRITE_SECONDS)
            if not self._closing:
                try:
                    self._flush(_time() // _MINUTE)
                except Exception:  # noqa: BLE001 - else nothing would be recorded any more
                    _log.exception("The history continues after an unexpected error.")

    def _flush(self, before: float) -> None:
        """Write what was counted since, and finish the minutes before one."""
        with self._mine():
            rows = {
                key: row
                for key, row in self._open.items()
                if row.changed and (self._rewrites or key[1] < before)
            }
            for row in rows.values():
                row.changed = False
            copies = [row.copy() for row in rows.values()]
            for key in [key for key in self._open if key[1] < before]:
                del self._open[key]
        service = self._service
        if service is None or not rows:
            return
        try:
            self._write(service, copies)
            self._outage.ended()
        except (DatabaseUnavailable, ServiceClosed) as error:
            self._outage.began(error)
            self._keep_for_later(rows)
        except NotPermitted as error:
            if not self._rewrites:
                _log.warning("This login may not write the history, so it is lost: %s", error)
                return
            self._rewrites = False
            self._keep_for_later(rows)
            self._flush(before)
        except QueueError as error:
            _log.warning(
                "The history of %d minutes could not be written and is lost: %s", len(rows), error
            )
        finally:
            for row, copy in zip(rows.values(), copies, strict=True):
                row.number = copy.number

    def _keep_for_later(self, rows: dict[tuple[str, int], _Row]) -> None:
        with self._mine():
            for row in rows.values():
                row.changed = True
            self._open = {**rows, **self._open}
            for key in list(self._open)[: max(0, len(self._open) - _MOST_ROWS)]:
                del self._open[key]

    def _write(self, service: QueueService, rows: Sequence[_Row]) -> None:
        table, prefix = inside.system(service).history, inside.settings(service).table_prefix
        engine = inside.engine(service)

        def do(connection: Connection) -> None:
            now = engine.read_clock(connection)
            # Minutes are by the database's clock.
            ahead = round((now - _time() * 1_000_000) / _MICROSECONDS)
            for row in rows:
                if row.number is None:
                    row.number = int(row.minute.begins_at.timestamp()) // _MINUTE + ahead
            if self._rewrites:
                # Also what a first try has written whose answer was lost.
                ours = (
                    table.c.table_prefix == prefix,
                    table.c.minute.in_(sorted({row.number or 0 for row in rows})),
                    table.c.process.in_([row.process for row in rows]),
                )
                connection.execute(delete(table).where(*ours))
            values = [
                {
                    "table_prefix": prefix,
                    "queue": row.minute.queue,
                    "minute": row.number,
                    "process": row.process,
                    **{name: getattr(row.minute, name) for name in HISTORY_COUNTS},
                    "waited": json.dumps(row.minute.waited),
                    "handled": json.dumps(row.minute.handled),
                }
                for row in rows
            ]
            connection.execute(insert(table), values)

        def prune(connection: Connection) -> None:
            now = engine.read_clock(connection)
            oldest = now // _MICROSECONDS - int(self._keep.total_seconds()) // _MINUTE
            of_ours = table.c.table_prefix == prefix
            connection.execute(delete(table).where(of_ours, table.c.minute < oldest))

        inside.run(service, do, atomic=True)
        if time.monotonic() > self._pruned_at + _PRUNE_SECONDS:
            self._pruned_at = time.monotonic()
            # A login that may only insert rows leaves pruning to others.
            with contextlib.suppress(NotPermitted):
                inside.run(service, prune, atomic=True)


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
    seconds = to_timedelta(since, "since").total_seconds()
    table, engine = inside.system(service).history, inside.engine(service)
    prefix = inside.settings(service).table_prefix
    wanted = select(table).where(table.c.table_prefix == prefix)
    if queue is not None:
        wanted = wanted.where(table.c.queue == queue)

    def do(connection: Connection) -> Sequence[Any]:
        now = engine.read_clock(connection)
        first = (now - int(seconds * 1_000_000)) // _MICROSECONDS
        return connection.execute(wanted.where(table.c.minute >= first)).all()

    found: dict[tuple[str, int], Minute] = {}
    for row in inside.run(service, do):
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
