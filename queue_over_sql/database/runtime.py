"""Whatever waits or runs beside the caller, so that one core serves threads and a loop."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent import futures
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from queue_over_sql.database.sessions import Session, Sessions, ThreadSessions
from queue_over_sql.dialects.engines import OpenedEngine, open_engine

if TYPE_CHECKING:
    from types import TracebackType


JOBS: Final = ("heartbeat", "reaper")
OPTIONS: Final[Mapping[str, Any]] = {
    "timezone": "UTC",
    "job_defaults": {"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
}


class Background:
    """The jobs of one service beside its callers, a thread each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scheduler: Any = None
        self._pid = os.getpid()

    def every(self, seconds: float, name: str, job: Callable[[], object]) -> None:
        """Run a job at an interval from now on; a job of this name that runs already is kept."""
        with self._lock:
            scheduler = self._running()
            if scheduler.get_job(name) is None:
                run = self.runner(lambda: _alone(scheduler, name, job))
                scheduler.add_job(run, "interval", seconds=seconds, id=name, executor=name)

    def stop(self) -> None:
        """Start no further job; one that runs now ends by itself."""
        with self._lock:
            if self._scheduler is not None and self._pid == os.getpid():
                self._scheduler.shutdown(wait=False)
            self._scheduler = None

    def runner(self, job: Callable[[], None]) -> Callable[[], Any]:
        """What the scheduler is given of a job."""
        return job

    def scheduler(self) -> Any:
        """A scheduler that has not begun, with an executor for each job.

        Each job has a thread, and so a connection, of its own: a long pass of the reaper must not
        delay a heartbeat.
        """
        # Loaded here: who only publishes has no jobs.
        from apscheduler.executors.pool import BasePoolExecutor  # noqa: PLC0415
        from apscheduler.schedulers.background import BackgroundScheduler  # noqa: PLC0415

        class OneThread(BasePoolExecutor):  # type: ignore[misc] # its package has no types
            def __init__(self) -> None:
                super().__init__(_Work())

        executors = {name: OneThread() for name in JOBS}
        return BackgroundScheduler(daemon=True, executors=executors, **OPTIONS)

    def _running(self) -> Any:
        # A forked child has none of the threads of its parent.
        if self._scheduler is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._scheduler = self.scheduler()
            self._scheduler.start()
        return self._scheduler


class _Work(futures.Executor):
    """Runs what it gets in one thread, which does not keep the process from ending.

    Those of a pool do: a process could not end while its job waits for a silent database.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(
        self, function: Callable[..., Any], /, *arguments: Any, **options: Any
    ) -> futures.Future[Any]:
        """Have it done."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="queue-over-sql-job", daemon=True
            )
            self._thread.start()
        future: futures.Future[Any] = futures.Future()

        def work() -> None:
            try:
                future.set_result(function(*arguments, **options))
            except BaseException as error:  # noqa: BLE001 - it is told to who asked
                future.set_exception(error)

        self._work.put(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread when it has done what it has to."""
        del wait, cancel_futures
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _alone(scheduler: Any, name: str, job: Callable[[], object]) -> None:
    """Run a job, paused meanwhile, so that a long run is not reported as a missed one."""
    from apscheduler.jobstores.base import JobLookupError  # noqa: PLC0415 - as above

    with contextlib.suppress(JobLookupError):
        scheduler.pause_job(name)
    try:
        job()
    finally:
        with contextlib.suppress(JobLookupError):
            scheduler.resume_job(name)


T = TypeVar("T")


class Held(Protocol):
    """What is held inside a ``with``."""

    def __enter__(self) -> object: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


class Lock(Held, Protocol):
    """A lock that its holder may take again; it may be held while SQL runs."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...  # noqa: D102
    def release(self) -> None: ...  # noqa: D102


class Condition(Held, Protocol):
    """What happens now and then, for those who wait for it; used inside its own ``with``."""

    def wait(self, timeout: float | None = None) -> bool: ...  # noqa: D102
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


class Runtime(Protocol):
    """How one service waits, and does several things at once."""

    def open_engine(self, database: Any) -> OpenedEngine:
        """Make the engine that the service works with."""
        ...

    def sessions(self, make: Callable[[bool], Session], forked: Callable[[], None]) -> Sessions:
        """The long-held connections, which ``make`` opens."""
        ...

    def lock(self) -> Lock:
        """A lock for what lasts."""
        ...

    def condition(self) -> Condition:
        """Something to wait for, again and again."""
        ...

    def event(self) -> Event:
        """Something to wait for once."""
        ...

    def sleep(self, seconds: float) -> None:
        """Do nothing for so long."""
        ...

    def me(self) -> Hashable:
        """Who is calling: one of those that can hold a lock."""
        ...

    def undisturbed(self, act: Callable[[], T]) -> T:
        """Do it to its end, although the caller may have been told to stop meanwhile."""
        ...

    def obtained(self, get: Callable[[], T], give_back: Callable[[T], object]) -> T:
        """Get something; what a caller that was told to stop cannot take is given back.

        Raises:
            TimeoutError: it took too long.
        """
        ...

    def start(self, name: str, function: Callable[..., object], *arguments: object) -> Running:
        """Run a function beside the caller, until it ends or the process does."""
        ...

    def stop(self, running: Running) -> bool:
        """End what was started; returns whether that can be done from outside."""
        ...

    def background(self) -> Background:
        """What runs jobs at their intervals."""
        ...

    def at_exit(self, function: Callable[[], object]) -> None:
        """Have a function called in the end, where nobody has ended things before."""
        ...

    def on_signals(
        self, numbers: tuple[signal.Signals, ...], handler: Callable[[int], None]
    ) -> contextlib.AbstractContextManager[None]:
        """Have a function called for signals meanwhile, where this caller can have that."""
        ...


class Threads:
    """Threads: whoever calls waits by itself, and the operating system runs the others."""

    def open_engine(self, database: Any) -> OpenedEngine:
        """An engine of a synchronous driver."""
        return open_engine(database)

    def sessions(self, make: Callable[[bool], Session], forked: Callable[[], None]) -> Sessions:
        """Each thread has its own."""
        return ThreadSessions(make, forked)

    def lock(self) -> Lock:
        """Held by a thread."""
        return threading.RLock()

    def condition(self) -> Condition:
        """Notified from any thread."""
        return threading.Condition()

    def event(self) -> Event:
        """Set from any thread."""
        return threading.Event()

    def sleep(self, seconds: float) -> None:
        """Let this thread do nothing for so long."""
        time.sleep(seconds)

    def me(self) -> Hashable:
        """The thread."""
        return threading.get_ident()

    def undisturbed(self, act: Callable[[], T]) -> T:
        """Nothing but a signal disturbs a thread."""
        return act()

    def obtained(self, get: Callable[[], T], give_back: Callable[[T], object]) -> T:
        """The caller takes what it got."""
        del give_back
        return get()

    def start(self, name: str, function: Callable[..., object], *arguments: object) -> Running:
        """A thread that does not keep the process from ending."""
        thread = threading.Thread(target=function, args=arguments, name=name, daemon=True)
        thread.start()
        return thread

    def stop(self, running: Running) -> bool:
        """Nobody can end a thread from outside: what it holds is given back, and it is left."""
        del running
        return False

    def background(self) -> Background:
        """Jobs in threads."""
        return Background()

    def at_exit(self, function: Callable[[], object]) -> None:
        """Call it when the process ends."""
        atexit.register(function)

    @contextlib.contextmanager
    def on_signals(
        self, numbers: tuple[signal.Signals, ...], handler: Callable[[int], None]
    ) -> Iterator[None]:
        """Only the main thread can have that; any other goes without."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {n: signal.signal(n, lambda number, _: handler(number)) for n in numbers}
        try:
            yield
        finally:
            for number, former in before.items():
                signal.signal(number, former)


THREADS = Threads()
"""The one runtime of threads; it has no state of its own."""
