"""The jobs of a service that nobody asked for: heartbeat and reaper, at their intervals."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from apscheduler.executors.pool import ThreadPoolExecutor
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
        executors = {name: ThreadPoolExecutor(1) for name in JOBS}
        return BackgroundScheduler(daemon=True, executors=executors, **OPTIONS)

    def _running(self) -> Any:
        # A forked child has none of the threads of its parent.
        if self._scheduler is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._scheduler = self.scheduler()
            self._scheduler.start()
        return self._scheduler


def _alone(scheduler: Any, name: str, job: Callable[[], object]) -> None:
    """Run a job, paused meanwhile, so that a long run is not reported as a missed one."""
    with contextlib.suppress(JobLookupError):
        scheduler.pause_job(name)
    try:
        job()
    finally:
        with contextlib.suppress(JobLookupError):
            scheduler.resume_job(name)
