"""Back-off, rate limits of background jobs, and the outage log."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

from queue_over_sql.values.durations import elapsed_clock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


K = TypeVar("K", bound=Hashable)
_log = logging.getLogger(__name__)


class Backoff:
    """Pauses in seconds that grow by a factor, from the first to the last.

    Each pause is multiplied by a random number from ``spread``, so that many clients do not retry
    at the same moment.
    """

    def __init__(
        self,
        first: float,
        last: float,
        *,
        factor: float = 2.0,
        spread: tuple[float, float] = (0.5, 1.0),
    ) -> None:
        self._first, self._last, self._factor, self._spread = first, last, factor, spread
        self._next = first

    def pause(self) -> float:
        """The next pause in seconds, to be slept by the caller."""
        now, self._next = self._next, min(self._last, self._next * self._factor)
        return now * random.uniform(*self._spread)  # noqa: S311 - spreads, guards nothing

    def reset(self) -> None:
        """Start with the first pause again, after a success."""
        self._next = self._first


def poll_pauses(first: float, last: float) -> Backoff:
    """Pauses in seconds between polls of an empty queue, from the shortest to the longest."""
    return Backoff(first, last, factor=1.5, spread=(0.75, 1.25))


class OutageLog:
    """Logs each database outage once, however many threads and retries notice it."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._since: float | None = None
        self._lock = threading.Lock()

    @property
    def lasts(self) -> bool:
        """Whether the last attempt could not reach the database."""
        return self._since is not None

    def began(self, error: Exception) -> None:
        """Note that the database could not be reached."""
        with self._lock:
            if self._since is not None:
                return
            self._since = time.monotonic()
        _log.warning("%s waits for the database: %s", self._who, " ".join(str(error).split()))

    def ended(self) -> None:
        """Note that the database answered."""
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            _log.info(
                "%s continues: the database is back after %.1f s.",
                self._who,
                time.monotonic() - since,
            )


_BLOCKED_SECONDS = 2.0


class Turns(Generic[K]):
    """The order in which a background job serves many things, some of which others have locked.

    What was locked the last time comes last, the longest waiting first. Together these get only a
    few seconds of a run. So each lock delays the others once, when it is first met.
    """

    def __init__(self, who: str) -> None:
        self._who = who
        self._blocked: dict[K, None] = {}

    def of(self, things: Iterable[K]) -> Iterator[K]:
        """The things to serve now; report each by ``served`` or ``blocked``."""
        present = dict.fromkeys(things)
        for gone in self._blocked.keys() - present.keys():
            self._blocked.pop(gone, None)
        last = list(self._blocked)
        yield from [thing for thing in present if thing not in self._blocked]
        until = time.monotonic() + _BLOCKED_SECONDS
        for thing in last:
            if time.monotonic() > until:
                return
            yield thing

    def served(self, thing: K) -> None:
        """Note that it was not locked."""
        if thing in self._blocked:
            self._blocked.pop(thing, None)
            _log.info("%s has served %s, which others had locked.", self._who, thing)

    def blocked(self, thing: K, error: Exception) -> None:
        """Note that others have locked it, and log this once."""
        if thing not in self._blocked:
            reason = " ".join(str(error).split())
            _log.warning("%s serves all others, but waits for %s: %s", self._who, thing, reason)
        self._blocked.pop(thing, None)
        self._blocked[thing] = None


_SHARE = 19


class RateLimit:
    """Decides when a job may run again: after its interval in seconds, or later if it is slow.

    One slow run may be an exception, so only the faster of the last two runs counts. A run that
    fails does not count: it says nothing about the cost, because it may have waited for others.
    """

    def __init__(self, interval: float, *, ready: bool) -> None:
        self._interval = interval
        self._next_at = float("-inf") if ready else elapsed_clock() + interval
        self._costs = (0.0, 0.0)
        self._spared = 0.0
        self._goes_on = False
        self._lock = threading.Lock()

    def due(self) -> bool:
        """Whether the caller may run the job now; others get False until the interval is over."""
        with self._lock:
            now = elapsed_clock()
            if now < self._next_at:
                return False
            self._next_at = now + self._interval
            return True

    def put_off(self) -> None:
        """Delay the job beyond its interval, because another process has just done it."""
        with self._lock:
            self._next_at = max(self._next_at, elapsed_clock() + 1.5 * self._interval)

    def spare(self, seconds: float) -> None:
        """Do not count so much of the present run as its cost."""
        self._spared += seconds

    def go_on(self) -> None:
        """Let the job run again at once, because the present run ends in the middle of its work."""
        self._goes_on = True

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Measure a run, unless it fails."""
        began, self._spared, self._goes_on = elapsed_clock(), 0.0, False
        yield
        ended = elapsed_clock()
        with self._lock:
            if self._goes_on:
                self._next_at = ended
                return
            self._costs = (self._costs[1], max(0.0, ended - began - self._spared))
            stretched = ended + _SHARE * min(self._costs)
            self._next_at = max(began + self._interval, stretched)
