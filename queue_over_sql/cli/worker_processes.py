"""`worker --processes N`: starts worker processes, restarts those that die, ends them together."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from queue_over_sql.backoff import Backoff
from queue_over_sql.cli.signals import ExitCode, stop_on_signals
from queue_over_sql.worker.worker import stop_at_once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queue_over_sql import Worker
    from queue_over_sql.cli.signals import Stop

SUPERVISED = "--supervised"
"""The option that tells a worker that a supervisor started it."""
FIRST_RESTART, LAST_RESTART = 0.5, 30.0
_LOOK_SECONDS = 0.1
# A process that ran for so long starts again after the shortest pause.
_STEADY_SECONDS = 30.0
# Wrong usage, or no such queue: where the first process ends so, another would, too.
_WRONG_CALL = (ExitCode.USAGE, ExitCode.NOTHING)
# None: it runs. The last one: it was told to stop before it could drain.
_IN_ORDER = (None, ExitCode.OK, ExitCode.TERMINATED)
_HOW = {1: "finish what they are handling", 2: "stop at once"}
_log = logging.getLogger(__name__)


def supervise(arguments: Sequence[str], count: int) -> int:
    """Run worker processes until SIGTERM or SIGINT; returns the exit code.

    The first signal drains the processes, the second stops them at once. A process that dies is
    started again after 0.5 s. The pause doubles up to 30 s, until one has run for 30 s. A process
    that ends by itself with exit code 0 is not started again.

    Args:
        arguments: of ``queue-over-sql`` in each process.
        count: how many processes.
    """
    with stop_on_signals() as stop:
        processes = [_WorkerProcess(arguments) for _ in range(count)]
        try:
            return _watch(processes, stop)
        finally:
            for process in processes:
                process.let_go()


def _watch(processes: Sequence[_WorkerProcess], stop: Stop) -> int:
    told, result = 0, ExitCode.OK
    while not all(process.is_over for process in processes):
        asked = 2 if stop.now.is_set() else int(stop.asked.is_set() or result in _WRONG_CALL)
        if asked > told:
            _log.info("The worker processes %s.", _HOW[asked])
            for process in processes:
                process.tell(asked - told)
            told = asked
        for process in processes:
            code = process.look(restart=not told)
            if code in _WRONG_CALL and process.is_over:
                result = ExitCode(code)
            elif told and code not in _IN_ORDER:
                result = result or ExitCode.FAILED
        time.sleep(_LOOK_SECONDS)
    return result


class _WorkerProcess:
    """One process, and those that are started in its place."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._command = [sys.executable, "-m", "queue_over_sql", *arguments, SUPERVISED]
        self._backoff = Backoff(FIRST_RESTART, LAST_RESTART)
        self._running: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._start_at: float | None = None
        self._starts = 0
        self._start()

    @property
    def is_over(self) -> bool:
        """Whether it has ended and is not started again."""
        return self._running is None and self._start_at is None

    def look(self, *, restart: bool) -> int | None:
        """Start a process in place of one that died; the exit code of one that has just ended."""
        if not restart:
            self._start_at = None
        if self._start_at is not None and time.monotonic() >= self._start_at:
            self._start()
        if self._running is None or (code := self._running.poll()) is None:
            return None
        number = self._running.pid
        self.let_go()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        final = code in _WRONG_CALL and self._starts == 1
        if not code or not restart or final:
            level = logging.INFO if code in _IN_ORDER else logging.ERROR
            _log.log(level, "Process %s ended: %s.", number, how)
        else:
            self._start_later(f"Process {number} died: {how}")
        return code

    def tell(self, times: int) -> None:
        """Tell it to drain; told twice, it stops at once."""
        if self._running is not None and self._running.stdin is not None:
            # One that has just died is noticed by the next look.
            with contextlib.suppress(OSError):
                os.write(self._running.stdin.fileno(), b"." * times)

    def let_go(self) -> None:
        """Close the pipe that holds it: a process that still runs then drains."""
        if self._running is not None and self._running.stdin is not None:
            self._running.stdin.close()
        self._running = None

    def _start(self) -> None:
        self._start_at, self._began = None, time.monotonic()
        try:
            # In a group of its own: Ctrl-C reaches the supervisor alone.
            self._running = subprocess.Popen(self._command, stdin=subprocess.PIPE, process_group=0)
        except OSError as error:
            self._start_later(f"No process could be started: {error}")
            return
        self._starts += 1
        _log.info("Process %s starts.", self._running.pid)

    def _start_later(self, reason: str) -> None:
        if time.monotonic() - self._began >= _STEADY_SECONDS:
            self._backoff.reset()
        pause = self._backoff.pause()
        self._start_at = time.monotonic() + pause
        _log.error("%s. Another starts in %.1f s.", reason, pause)


def obey_supervisor(worker: Worker) -> None:
    """Drain once the supervisor says so or is gone; stop at once when it says so again."""
    # Programs that handlers start must neither read what it says nor wait for it.
    pipe, nothing = os.dup(sys.stdin.fileno()), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)

    def wait() -> None:
        told = len(os.read(pipe, 2))
        if not told:
            _log.warning("The supervisor is gone.")
        _log.info("This process finishes what it is handling.")
        worker.stop()
        if told == 2 or os.read(pipe, 1):  # noqa: PLR2004 - both at once
            _log.warning("This process stops at once.")
            stop_at_once(worker)

    threading.Thread(target=wait, name="queue-over-sql-supervisor", daemon=True).start()
