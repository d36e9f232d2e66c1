"""`worker --processes N`: starts worker processes, restarts those that die, passes signals on."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from queue_over_sql.backoff import Backoff
from queue_over_sql.cli.signals import ExitCode, stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from queue_over_sql.cli.signals import Stop

SUPERVISED = "--supervised"
"""The option that tells a worker that a supervisor started it."""
FIRST_RESTART, LAST_RESTART = 0.5, 30.0
_LOOK_SECONDS = 0.1
# A process that ran for so long starts again after the shortest pause.
_STEADY_SECONDS = 30.0
# Another process would end with these, too.
_WRONG_CALL = (ExitCode.USAGE, ExitCode.NOTHING)
# None: it runs. The others: it was told to stop before it could drain.
_ENDED_BY_US = (None, ExitCode.OK, ExitCode.TERMINATED, -signal.SIGTERM)
_HOW = {1: "finish what they are handling", 2: "stop at once"}
_log = logging.getLogger(__name__)


def supervise(arguments: Sequence[str], count: int) -> int:
    """Run worker processes until SIGTERM or SIGINT; returns the exit code.

    Signals are passed on: the first drains the processes, the second stops them at once. A process
    that dies is started again after 0.5 s. The pause doubles up to 30 s, until one has run for
    30 s. A process that ends by itself with exit code 0 is not started again.

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
    passed, result = 0, ExitCode.OK
    while not all(process.is_over for process in processes):
        asked = stop.asked.is_set() + stop.now.is_set()
        if asked > passed:
            _log.info("Told to stop: the worker processes %s.", _HOW[asked])
            for process in processes:
                process.signal(asked - passed)
            passed = asked
        for process in processes:
            code = process.look(restart=not passed)
            if code in _WRONG_CALL:
                result = ExitCode(code)
                stop.asked.set()
            elif passed and code not in _ENDED_BY_US:
                result = result or ExitCode.FAILED
        (stop.now if passed else stop.asked).wait(_LOOK_SECONDS)
    return result


class _WorkerProcess:
    """One process, and those that are started in its place."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._command = [sys.executable, "-m", "queue_over_sql", *arguments, SUPERVISED]
        self._backoff = Backoff(FIRST_RESTART, LAST_RESTART)
        self._running: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._start_at: float | None = 0.0
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
        if not code or not restart or code in _WRONG_CALL:
            level = logging.INFO if code in _ENDED_BY_US else logging.ERROR
            _log.log(level, "Process %s ended: %s.", number, how)
            return code
        if time.monotonic() - self._began >= _STEADY_SECONDS:
            self._backoff.reset()
        pause = self._backoff.pause()
        self._start_at = time.monotonic() + pause
        _log.error("Process %s died: %s. Another starts in %.1f s.", number, how, pause)
        return code

    def signal(self, times: int) -> None:
        """Pass SIGTERM on."""
        if self._running is not None:
            for _ in range(times):
                self._running.send_signal(signal.SIGTERM)

    def let_go(self) -> None:
        """Close what holds it: one that still runs finishes its messages and stops."""
        if self._running is not None and self._running.stdin is not None:
            self._running.stdin.close()
        self._running = None

    def _start(self) -> None:
        self._start_at, self._began = None, time.monotonic()
        # In a group of its own: Ctrl-C reaches the supervisor alone, which passes it on once.
        self._running = subprocess.Popen(self._command, stdin=subprocess.PIPE, process_group=0)
        _log.info("Process %s starts.", self._running.pid)


def stop_without_supervisor(stop: Callable[[], None]) -> None:
    """Call ``stop`` once the supervisor is gone, however it died: its pipe then ends."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        _log.warning("The supervisor is gone: this process finishes what it is handling and stops.")
        stop()

    threading.Thread(target=wait, name="queue-over-sql-supervisor", daemon=True).start()
