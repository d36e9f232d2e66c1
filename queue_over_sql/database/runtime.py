"""Whatever waits or runs beside the caller, so that one core serves threads and a loop."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeVar

from queue_over_sql.database.sessions import Session, Sessions, ThreadSessions
from queue_over_sql.dialects.engines import OpenedEngine, open_engine

SCHEDULER_OPTIONS: Final[Mapping[str, Any]] = {
    "timezone": "UTC",
    "job_defaults": {"coalesce": True, "misfire_grace_time": None},
}
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Lock(contextlib.AbstractContextManager[object], Protocol):
    """A lock that its holder may take again; it may be held while SQL runs."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...  # noqa: D102
    def release(self) -> None: ...  # noqa: D102


class Condition(contextlib.AbstractContextManager[object], Protocol):
    """What happens now and then, for those who wait for it; used inside its own ``with``."""

    def wait(self, timeout: float | None = None) -> bool: ...  # noqa: D102
    def notify(self, n: int = 1) -> None: ...  # noqa: D102
    def notify_all(self) -> None: ...  # noqa: D102


class Event(Protocol):
    """What happens once; may be set from the handler of a signal."""

    def is_set(self) -> bool: ...  # noqa: D102
    def set(self) -> None: ...  # noqa: D102
    def wait(self, timeout: float | None = None) -> bool: ...  # noqa: D102


class Running(Protocol):
    """Work that was started beside the caller."""

    def is_alive(self) -> bool: ...  # noqa: D102
    def join(self, timeout: float | None = None) -> None: ...  # noqa: D102


class Interruption(Protocol):
    """Ends what one caller does, from elsewhere; the caller goes on after that."""

    def begin(self) -> None:
        """Have the caller's present wait, or its next, raise."""

    def end(self) -> bool:
        """For the caller: it went on. Whether somebody else has told it to stop."""


class Turn:
    """When a loop that runs beside its callers comes round again, for who asks whether it does.

    Attributes:
        name: of the loop, for people.
        due_at: by when it comes round unless it waits for the database, on the monotonic clock.
        thread: that it runs in; None before it begins.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.due_at = math.inf
        self.thread: threading.Thread | None = None

    def begin(self) -> None:
        """The calling thread runs the loop from now on."""
        self.thread, self.due_at = threading.current_thread(), time.monotonic()

    def end(self) -> None:
        """It is over, and nobody shall miss it."""
        self.thread, self.due_at = None, math.inf


class Runtime:
    """How one service waits, and does several things at once: here in threads.

    Whoever calls waits by itself, and the operating system runs the others.
    """

    has_threads = True
    """What runs beside the caller has a thread of its own."""

    def open_engine(self, database: Any) -> OpenedEngine:
        """Make the engine that the service works with."""
        return open_engine(database)

    def sessions(self, make: Callable[[bool], Session], forked: Callable[[], None]) -> Sessions:
        """The long-held connections, which ``make`` opens."""
        return ThreadSessions(make, forked)

    def lock(self) -> Lock:
        """A lock for what lasts."""
        return threading.RLock()

    def condition(self) -> Condition:
        """Something to wait for, again and again."""
        return threading.Condition()

    def event(self) -> Event:
        """Something to wait for once."""
        return threading.Event()

    def sleep(self, seconds: float) -> None:
        """Do nothing for so long."""
        time.sleep(seconds)

    def let_others_run(self) -> None:
        """Called between two acts that may both wait for nothing."""
        # The operating system does.

    def me(self) -> Hashable:
        """Who is calling: one of those that can hold a lock."""
        return threading.get_ident()

    def undisturbed(self, act: Callable[[], T]) -> T:
        """Do it to its end, although the caller may have been told to stop meanwhile."""
        # Nothing but a signal disturbs a thread.
        return act()

    def obtained(self, get: Callable[[], T], give_back: Callable[[T], object]) -> T:
        """Get something; what a caller that was told to stop cannot take is given back.

        What takes too long raises TimeoutError.
        """
        del give_back
        return get()

    def start(
        self, name: str, function: Callable[..., object], *arguments: object, job: bool = False
    ) -> Running:
        """Run a function beside the caller, until it ends or the process does.

        A ``job`` never waits behind callers for a connection.
        """
        del job  # Each thread has its own.
        thread = threading.Thread(target=function, args=arguments, name=name, daemon=True)
        thread.start()
        return thread

    def start_from_outside(self, name: str, function: Callable[[], object]) -> None:
        """As ``start`` of a job, for a thread that is none of the service's.

        Raises:
            RuntimeError: nothing can run any more.
        """
        self.start(name, function)

    def stop(self, running: Running) -> bool:
        """End what was started; returns whether that can be done from outside."""
        # What a thread holds is given back, and it is left.
        del running
        return False

    def interruption(self) -> Interruption | None:
        """What can interrupt the caller from elsewhere; None where nothing can."""
        return None

    def scheduler(self) -> Any:
        """A scheduler of APScheduler that has not begun; it calls what is due by itself."""
        # Loaded here: who only publishes has no jobs.
        from apscheduler.executors.debug import DebugExecutor  # noqa: PLC0415
        from apscheduler.schedulers.background import BackgroundScheduler  # noqa: PLC0415

        return BackgroundScheduler(
            daemon=True, executors={"default": DebugExecutor()}, **SCHEDULER_OPTIONS
        )

    def at_exit(self, function: Callable[[], object]) -> None:
        """Have a function called in the end, where nobody has ended things before."""
        atexit.register(function)

    @contextlib.contextmanager
    def on_signals(
        self, numbers: tuple[signal.Signals, ...], handler: Callable[[int], None]
    ) -> Iterator[None]:
        """Have a function called for signals meanwhile, where this caller can have that."""
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
"""The one runtime of threads; it has no state of its own."""


class Background:
    """The jobs of one service, each beside its callers and the other jobs.

    APScheduler says when a job is due. It runs in a thread or task of its own, on one connection,
    so that a long pass of the reaper delays no heartbeat.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._scheduler: Any = None
        self._jobs: dict[str, _Job] = {}

    def every(self, seconds: float, name: str, job: Callable[[], object]) -> None:
        """Run a job at an interval from now on; a job of this name that runs already is kept."""
        with self._lock:
            # A forked child has none of the threads of its parent.
            if self._scheduler is None or self._pid != os.getpid():
                self._pid, self._jobs = os.getpid(), {}
                self._scheduler = self._runtime.scheduler()
                self._scheduler.start()
            if name not in self._jobs:
                new = self._jobs[name] = _Job(self._runtime.condition(), name, job, seconds)
                self._runtime.start(f"queue-over-sql-{name}", new.run, job=True)
                self._scheduler.add_job(new.fire, "interval", seconds=seconds)

    @property
    def turns(self) -> list[Turn]:
        """Of the jobs that run in this process."""
        return [job.turn for job in list(self._jobs.values())] if self._pid == os.getpid() else []

    def stop(self) -> None:
        """Start no further job; one that runs now ends by itself."""
        with self._lock:
            if self._scheduler is not None and self._pid == os.getpid():
                self._scheduler.shutdown(wait=False)
                for job in self._jobs.values():
                    job.end()
            self._scheduler, self._jobs = None, {}


class _Job:
    def __init__(
        self, changed: Condition, name: str, job: Callable[[], object], seconds: float
    ) -> None:
        self.turn = Turn(name)
        self._changed = changed
        self._name = name
        self._job = job
        self._seconds = seconds
        self._due = self._ended = False

    def fire(self) -> None:
        with self._changed:
            self._due = True
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def run(self) -> None:
        self.turn.begin()
        while self._comes_due():
            try:
                self._job()
            except Exception:  # noqa: BLE001 - else nobody would renew or give back anything any more
                _log.exception("The %s continues after an unexpected error.", self._name)
            # What came due meanwhile is left out.
            self._due = False
        self.turn.end()

    def _comes_due(self) -> bool:
        self.turn.due_at = time.monotonic() + self._seconds
        with self._changed:
            while not (self._due or self._ended):
                self._changed.wait()
        self.turn.due_at = time.monotonic()
        return not self._ended
