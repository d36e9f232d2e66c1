"""Waits and background work, behind one interface for threads and event loops."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Protocol, TypeVar

from queue_over_sql.database.forks import shared_lock
from queue_over_sql.database.sessions import Session, Sessions, ThreadSessions

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Lock(contextlib.AbstractContextManager[object], Protocol):
    """A reentrant lock; it may be held while SQL runs."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...  # noqa: D102
    def release(self) -> None: ...  # noqa: D102


class Condition(contextlib.AbstractContextManager[object], Protocol):
    """A condition for repeated events; use it inside its own ``with``."""

    def wait(self, timeout: float | None = None) -> bool: ...  # noqa: D102
    def notify(self, n: int = 1) -> None: ...  # noqa: D102
    def notify_all(self) -> None: ...  # noqa: D102


class Event(Protocol):
    """An event that happens once; a signal handler may set it."""

    def is_set(self) -> bool: ...  # noqa: D102
    def set(self) -> None: ...  # noqa: D102
    def wait(self, timeout: float | None = None) -> bool: ...  # noqa: D102


class Running(Protocol):
    """Work that was started in the background."""

    def is_alive(self) -> bool: ...  # noqa: D102
    def join(self, timeout: float | None = None) -> None: ...  # noqa: D102


class Interruption(Protocol):
    """Interrupts one caller from elsewhere; afterwards the caller continues."""

    def begin(self) -> None:
        """Let the caller's present wait, or its next one, raise."""

    def stopped(self) -> bool:
        """Whether the caller was interrupted because its work is to end."""

    def end(self) -> bool:
        """The caller has continued; forget all other interruptions, and return ``stopped``."""


class LoopProgress:
    """The progress of a background loop, for health checks.

    Attributes:
        name: of the loop, for people.
        due_at: when its next round is due, on the monotonic clock; it may wait longer for the
            database.
        thread: the thread that it runs in; None before it starts.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.due_at = math.inf
        self.thread: threading.Thread | None = None

    def begin(self) -> None:
        """Note that the calling thread runs the loop from now on."""
        self.thread, self.due_at = threading.current_thread(), time.monotonic()

    def end(self) -> None:
        """Note that the loop has ended, so that health checks do not expect it."""
        # In this order, or it would look late without a thread.
        self.due_at, self.thread = math.inf, None


class Runtime:
    """How one service waits and runs work in the background: here with threads.

    A caller that waits blocks its own thread.
    """

    has_threads = True
    """Background work runs in its own threads."""

    def sessions(self, make: Callable[[bool], Session], forked: Callable[[], None]) -> Sessions:
        """The long-held connections, which ``make`` opens."""
        return ThreadSessions(make, forked)

    def lock(self) -> Lock:
        """A lock that may be held for long."""
        return shared_lock()

    def condition(self) -> Condition:
        """A condition for repeated events."""
        return threading.Condition(shared_lock())

    def event(self) -> Event:
        """An event that happens once."""
        return threading.Event()

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def let_others_run(self) -> None:
        """Give way between two operations that may both run without a wait."""
        # The operating system does this for threads.

    def me(self) -> Hashable:
        """The caller, as one that can hold a lock."""
        return threading.get_ident()

    def undisturbed(self, do: Callable[[], T]) -> T:
        """Run it to its end, even if the caller is interrupted meanwhile."""
        # Only signals interrupt a thread.
        return do()

    def obtained(self, get: Callable[[], T], give_back: Callable[[T], object]) -> T:
        """Get something; if the caller was interrupted meanwhile, it is given back.

        It raises TimeoutError if this takes too long.
        """
        del give_back
        return get()

    def start(
        self,
        name: str,
        function: Callable[..., object],
        *arguments: object,
        job: bool = False,
        few: bool = False,
    ) -> Running:
        """Run a function in the background, until it or the process ends.

        A ``job`` never waits behind callers for a connection. One of ``few`` does not, either, but
        only a few of these have a connection at once, because there may be many.
        """
        del job, few  # Each thread has its own.
        thread = threading.Thread(target=function, args=arguments, name=name, daemon=True)
        thread.start()
        return thread

    def start_from_outside(self, name: str, function: Callable[[], object]) -> None:
        """Start a job from a thread that does not belong to the service.

        Raises:
            RuntimeError: nothing can be started any more.
        """
        self.start(name, function)

    def stop(self, running: Running) -> bool:
        """Stop work that was started; returns whether that is possible from outside."""
        # A thread cannot be stopped, so its messages are given back.
        del running
        return False

    def interruption(self) -> Interruption | None:
        """What can interrupt the caller from elsewhere; None if that is not possible."""
        return None

    def at_exit(self, function: Callable[[], object]) -> None:
        """Call a function at exit, in case the service was not stopped."""
        atexit.register(function)

    @contextlib.contextmanager
    def on_signals(
        self, numbers: tuple[signal.Signals, ...], handler: Callable[[int], None]
    ) -> Iterator[None]:
        """Call a function on signals during the block, if this caller can receive them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {n: signal.signal(n, lambda number, _: handler(number)) for n in numbers}
        try:
            yield
        finally:
            for number, former in before.items():
                signal.signal(number, former)


THREADS = Runtime()
"""The runtime of threads, which has no state and is shared."""


class Background:
    """The background jobs of one service; none of them delays the callers or another job.

    Each job waits and runs in its own thread or task, on one connection, so that a long pass of the
    reaper does not delay a heartbeat.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = shared_lock()
        self._pid = os.getpid()
        self._jobs: dict[str, _Job] = {}

    def every(
        self, seconds: float, name: str, job: Callable[[], float | None], *, weak: bool = False
    ) -> None:
        """Run a job at an interval from now on; a running job of this name is kept.

        A job that returns a number runs again after so many seconds, and then at the interval.

        ``weak``: the job is a method, and ends when its object is collected.

        Raises:
            RuntimeError: no thread can be started now. Call again; until then health checks miss
                the job.
        """
        with self._lock:
            if self._pid != os.getpid():
                # A forked child has none of its parent's threads.
                self._pid, self._jobs = os.getpid(), {}
            present = self._jobs.get(name)
            if present is None or not present.is_running():
                found = weakref.WeakMethod(job) if weak else lambda: job
                new = self._jobs[name] = _Job(self._runtime.condition(), name, found, seconds)
                new.start(self._runtime)

    @property
    def loops(self) -> list[LoopProgress]:
        """The progress of the jobs that should run in this process."""
        return (
            [job.progress for job in list(self._jobs.values())] if self._pid == os.getpid() else []
        )

    def stop(self) -> None:
        """Start no more jobs; running ones end by themselves."""
        with self._lock:
            if self._pid == os.getpid():
                for job in self._jobs.values():
                    job.end()
            self._jobs = {}


class _Job:
    def __init__(
        self,
        changed: Condition,
        name: str,
        found: Callable[[], Callable[[], float | None] | None],
        seconds: float,
    ) -> None:
        self.progress = LoopProgress(name)
        self._changed = changed
        self._name = name
        self._found = found
        self._seconds = seconds
        self._due_at = self.progress.due_at = time.monotonic() + seconds
        self._ended = False
        self._running: Running | None = None

    def start(self, runtime: Runtime) -> None:
        try:
            self._running = runtime.start(f"queue-over-sql-{self._name}", self._run, job=True)
        except RuntimeError as error:
            msg = (
                f"The {self._name} cannot start, because this process cannot start another thread: "
                f"{error}. Raise the limit of threads of this process or container, or use fewer "
                "threads, and try again."
            )
            raise RuntimeError(msg) from error

    def is_running(self) -> bool:
        return self._running is not None and self._running.is_alive()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _run(self) -> None:
        self.progress.begin()
        while self._comes_due():
            job = self._found()
            if job is None:
                break
            sooner = None
            try:
                sooner = job()
            except Exception:  # noqa: BLE001 - else nobody would renew or give back anything any more
                _log.exception("The %s continues after an unexpected error.", self._name)
            # While it waits it keeps nothing of the service.
            del job
            self._put_off(sooner)
        self.progress.end()

    def _comes_due(self) -> bool:
        self.progress.due_at = self._due_at
        with self._changed:
            # One bounded wait, without a look at the clock after it: libraries for tests stop and
            # move even this clock.
            if not self._ended:
                left = self._due_at - time.monotonic()
                self._changed.wait(min(self._seconds, max(0.0, left)))
        self.progress.due_at = time.monotonic()
        return not self._ended

    def _put_off(self, sooner: float | None) -> None:
        late = time.monotonic() - self._due_at
        if sooner is not None:
            self._due_at = time.monotonic() + min(sooner, self._seconds)
        elif late >= 0:
            # Runs that came due meanwhile are skipped.
            self._due_at += (late // self._seconds + 1) * self._seconds
        else:
            self._due_at = time.monotonic() + self._seconds
