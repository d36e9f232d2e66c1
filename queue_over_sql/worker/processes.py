"""Worker processes: a supervisor starts them, restarts those that die, and stops them together.

The supervisor and a process speak through a socket, which is the standard input of the process. A
byte requests that the process stops, or a report of its health. The process answers with a line.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from queue_over_sql.values.backoff import Backoff
from queue_over_sql.values.durations import duration_text

if TYPE_CHECKING:
    from queue_over_sql.worker.source_files import SourceFiles

_log = logging.getLogger(__name__)

FIRST_RESTART, LAST_RESTART = 0.5, 30.0
# A process that ran for this long restarts after the shortest pause.
_STEADY_SECONDS = 30.0
_POLL_SECONDS = 0.1
# None: it is running. A signal to all processes may come before or after the work of one.
_IN_ORDER = (
    None,
    0,
    128 + signal.SIGTERM,
    128 + signal.SIGINT,
    -signal.SIGTERM,
    -signal.SIGINT,
)
_REQUESTED = {
    1: "All processes of the worker finish their current messages.",
    2: "All processes of the worker stop immediately.",
}
# What the supervisor requests: to stop, and a report of health.
_STOP, _HEALTH = b".", b"?"
# How long they have to answer, how long a report is valid, and how long a start may take.
_ANSWER_SECONDS, _FRESH_SECONDS, _STARTING_SECONDS = 4.0, 1.0, 60.0
# How long ago the last poll of the supervisor may be.
_LATE_SECONDS = 30.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Checks = Mapping[str, str]
"""Names of checks, with what is wrong, or ``ok``."""


class Supervisor:
    """Runs worker processes until it is requested to stop.

    A process that dies is restarted after 0.5 s. The pause doubles up to 30 s, until a process has
    run for 30 s. A process that ends by itself with exit code 0 is not restarted.

    Args:
        command: what each process runs. It must call ``obey_supervisor``.
        count: how many processes.
        sources: drain and restart the processes whenever one of these files changes.
        hopeless: the exit codes with which every other process would end, too. The first start of a
            process is not repeated after one of them.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        sources: SourceFiles | None = None,
        hopeless: Sequence[int] = (),
    ) -> None:
        self._command = command
        self._count = count
        self._sources = sources
        self._hopeless = hopeless
        self._processes: list[WorkerProcess] = []
        self._requested = 0
        self._polled_at = time.monotonic()
        self._lock = threading.Lock()
        self._reported_at = float("-inf")
        self._report: tuple[Checks, Checks] = {}, {}

    def run(self, requested: Callable[[], int]) -> int:
        """Supervise the processes until all of them have ended.

        Args:
            requested: 1 or more if they shall finish their messages and stop, 2 or more if they
                shall stop at once.

        Returns:
            An exit code: 0 if all ended in order, one of ``hopeless``, or 1 if a process failed
            while it stopped.
        """
        try:
            for _ in range(self._count):
                self._processes.append(WorkerProcess(self._command, self._hopeless))
            return self._supervise(requested)
        finally:
            for process in self._processes:
                process.let_go()

    def _supervise(self, requested: Callable[[], int]) -> int:
        result = 0
        while self._restarts or not all(process.is_over for process in self._processes):
            self._polled_at = time.monotonic()
            self._request_stop(max(requested(), int(result in self._hopeless)))
            if self._restarts and self._sources is not None and self._sources.have_changed():
                _log.info("A Python file has changed: the worker starts again.")
                for process in self._processes:
                    process.start_again()
            for process in self._processes:
                code = process.poll(restart=not self._requested)
                final = code in self._hopeless and process.is_over and self._sources is None
                if code is not None and final:
                    result = code
                elif self._requested and code not in _IN_ORDER:
                    result = result or 1
            time.sleep(_POLL_SECONDS)
        return result

    @property
    def _restarts(self) -> bool:
        return self._sources is not None and not self._requested

    def _request_stop(self, times: int) -> None:
        times = min(times, max(_REQUESTED))
        if times <= self._requested:
            return
        _log.info(_REQUESTED[times])
        for process in self._processes:
            process.request_stop(times)
        self._requested = times

    def live(self) -> Checks:
        """The checks whether each process is live, and this one supervises them."""
        checks, _ = self._checks()
        late = time.monotonic() - self._polled_at
        well = late < _LATE_SECONDS
        return {
            "supervisor": "ok" if well else f"it is {duration_text(round(late))} late",
            **checks,
        }

    def ready(self) -> Checks:
        """The checks whether each process is ready."""
        _, checks = self._checks()
        stopping = "its processes are stopping"
        return {"supervisor": stopping if self._requested else "ok", **checks}

    def _checks(self) -> tuple[Checks, Checks]:
        with self._lock:
            if time.monotonic() < self._reported_at + _FRESH_SECONDS:
                return self._report
            processes = list(self._processes)
            for process in processes:
                process.request_health()
            ends_at = time.monotonic() + _ANSWER_SECONDS
            answers = [process.health(ends_at) for process in processes]
            live = {key: value for each, _ in answers for key, value in each.items()}
            ready = {key: value for _, each in answers for key, value in each.items()}
            if len(processes) < self._count:
                ready["process"] = "it starts"
            self._report, self._reported_at = (live, ready), time.monotonic()
            return self._report


class WorkerProcess:
    """One process, and its replacements.

    Args:
        command: what it runs.
        hopeless: the exit codes after which the first start is not repeated.
    """

    def __init__(self, command: Sequence[str], hopeless: Sequence[int] = ()) -> None:
        self._command = command
        self._hopeless = hopeless
        self._backoff = Backoff(FIRST_RESTART, LAST_RESTART)
        self._running: subprocess.Popen[bytes] | None = None
        self._pipe: socket.socket | None = None
        self._has_answered = self._awaits_health = False
        self._unsent = b""
        # How often its stop was requested, by whomever.
        self._asked = 0
        self._began = 0.0
        self._start_at: float | None = None
        self._starts = 0
        self._again = False
        self._start()

    @property
    def is_over(self) -> bool:
        """Whether it has ended and will not be restarted."""
        return self._running is None and self._start_at is None

    def poll(self, *, restart: bool) -> int | None:
        """Start a replacement if it died; returns the exit code if it has just ended."""
        self._send(b"")
        if not restart:
            self._start_at = None
        if self._start_at is not None and time.monotonic() >= self._start_at:
            self._start()
        if self._running is None or (code := self._running.poll()) is None:
            return None
        number = self._running.pid
        self.let_go()
        again, self._again = self._again and restart, False
        if again:
            self._start()
            return None
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        final = code in self._hopeless and self._starts == 1
        if not code or not restart or final:
            level = logging.INFO if code in _IN_ORDER else logging.ERROR
            _log.log(level, "Process %s ended: %s.", number, how)
        else:
            self._start_later(f"Process {number} died: {how}")
        return code

    def start_again(self) -> None:
        """Drain it and start another, at once if none is running."""
        if self._running is None:
            self._backoff.reset()
            self._start()
        elif not self._again:
            self._again = True
            self.request_stop(1)

    def request_stop(self, times: int) -> None:
        """Request that it drains (1) or stops at once (2), unless it was requested before."""
        self._send(_STOP * (times - self._asked))
        self._asked = max(self._asked, times)

    def request_health(self) -> None:
        """Request a report of its health, and forget the last one."""
        if self._pipe is None:
            return
        with contextlib.suppress(OSError):
            while self._pipe.recv(65_536):
                self._awaits_health = False
        if not self._awaits_health:
            # Only then, so that the requests to a process that does not read do not pile up.
            self._awaits_health = True
            with contextlib.suppress(OSError):
                self._pipe.send(_HEALTH)

    def health(self, ends_at: float) -> tuple[Checks, Checks]:
        """The reasons why it is not live, and why it is not ready; empty if it is."""
        running, pipe = self._running, self._pipe
        if running is None or pipe is None:
            return {}, {"process": "it has ended" if self.is_over else "it is being restarted"}
        name, received = f"process {running.pid}", b""
        try:
            while not received.endswith(b"\n"):
                _await_bytes(pipe, ends_at)
                if not (more := pipe.recv(65_536)):
                    return {}, {name: "it has ended"}
                received += more
        except OSError:
            if not self._has_answered and time.monotonic() < self._began + _STARTING_SECONDS:
                return {}, {name: "it starts"}
            silent = {name: f"it does not answer within {duration_text(_ANSWER_SECONDS)}"}
            return silent, silent
        self._has_answered, self._awaits_health = True, False
        live, ready = json.loads(received.splitlines()[-1])
        return {f"{name}: {k}": v for k, v in live.items()}, {
            f"{name}: {k}": v for k, v in ready.items()
        }

    def let_go(self) -> None:
        """Close the pipe to it, so that a running process drains."""
        if self._pipe is not None:
            # What is unread would reset the connection, so that requests might be lost.
            with contextlib.suppress(OSError):
                while self._pipe.recv(65_536):
                    pass
            self._pipe.close()
        self._running = self._pipe = None

    def _send(self, request: bytes) -> None:
        self._unsent += request
        if self._pipe is not None and self._unsent:
            # The next poll tries again if the socket is full, and notices a process that has died.
            with contextlib.suppress(OSError):
                self._unsent = self._unsent[self._pipe.send(self._unsent) :]

    def _start(self) -> None:
        self._start_at, self._began = None, time.monotonic()
        # Its standard input, through which it also answers.
        self._pipe, theirs = socket.socketpair()
        # Its other end keeps waiting for requests.
        self._pipe.setblocking(False)  # noqa: FBT003 - its only form
        self._has_answered = self._awaits_health = False
        self._unsent, self._asked = b"", 0
        try:
            # In its own process group, so that Ctrl-C only reaches the supervisor.
            with _blocked_signals():
                self._running = subprocess.Popen(
                    self._command, stdin=theirs.fileno(), process_group=0
                )
        except OSError as error:
            self.let_go()
            self._start_later(f"No process could be started: {error}")
            return
        finally:
            theirs.close()
        self._starts += 1
        _log.info("Process %s starts.", self._running.pid)

    def _start_later(self, reason: str) -> None:
        if time.monotonic() - self._began >= _STEADY_SECONDS:
            self._backoff.reset()
        pause = self._backoff.pause()
        self._start_at = time.monotonic() + pause
        _log.error("%s. Another starts in %.1f s.", reason, pause)


def _await_bytes(pipe: socket.socket, ends_at: float) -> None:
    ready = select.poll()
    ready.register(pipe, select.POLLIN)
    if not ready.poll(max(0.0, ends_at - time.monotonic()) * 1000):
        raise TimeoutError


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Start processes in the block with SIGINT and SIGTERM pending until ``unblock_signals``.

    In an interpreter that starts, a signal ends in a crash or in an exception anywhere.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_signals() -> None:
    """Receive the signals that the supervisor started this process without."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def obey_supervisor(
    drain: Callable[[], None],
    stop_at_once: Callable[[], None],
    checks: Callable[[], tuple[Checks, Checks]],
) -> None:
    """Stop this process when its supervisor requests it, or is gone.

    Args:
        drain: called at the first request.
        stop_at_once: called at the second one.
        checks: the reasons why this process is not live, and why it is not ready, for reports.
    """
    # Programs that handlers start must neither read these requests nor wait for them.
    pipe, nothing = os.dup(sys.stdin.fileno()), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)

    def answer() -> None:
        report = json.dumps([dict(each) for each in checks()])
        # The supervisor may be gone.
        with contextlib.suppress(OSError):
            os.write(pipe, report.encode() + b"\n")

    def requests() -> Iterator[bytes]:
        # Its end resets the connection if it had not read an answer.
        with contextlib.suppress(ConnectionResetError):
            while request := os.read(pipe, 1):
                yield request

    def receive() -> None:
        requested = 0
        for request in requests():
            if request == _HEALTH:
                threading.Thread(target=answer, name="queue-over-sql-answer", daemon=True).start()
                continue
            requested += 1
            if requested == 1:
                _log.info("This process finishes its current messages and stops.")
                drain()
            else:
                _log.warning("This process stops immediately.")
                stop_at_once()
        if not requested:
            _log.warning(
                "The process that started this one has ended. This process finishes its current "
                "messages and stops."
            )
            drain()

    threading.Thread(target=receive, name="queue-over-sql-supervisor", daemon=True).start()
