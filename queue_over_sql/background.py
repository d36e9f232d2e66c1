"""The jobs of a service that nobody asked for: heartbeat and reaper, at their intervals."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any, Final

from apscheduler.executors.pool import BasePoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler

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
        executors = {name: _Thread() for name in JOBS}
        return BackgroundScheduler(daemon=True, executors=executors, **OPTIONS)

    def _running(self) -> Any:
        # A forked child has none of the threads of its parent.
        if self._scheduler is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._scheduler = self.scheduler()
            self._scheduler.start()
        return self._scheduler


class _Thread(BasePoolExecutor):  # type: ignore[misc] # its package has no types
    """Runs a job in one thread, which does not keep the process from ending.

    Those of a pool do: a process could not end while its job waits for a silent database.
    """

    def __init__(self) -> None:
        super().__init__(_Work())


class _Work(futures.Executor):
    """What one thread has to do, one after the other."""

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
    with contextlib.suppress(JobLookupError):
        scheduler.pause_job(name)
    try:
        job()
    finally:
        with contextlib.suppress(JobLookupError):
            scheduler.resume_job(name)
