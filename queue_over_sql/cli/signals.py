"""Exit codes, and stopping cleanly: SIGINT and SIGTERM as events instead of exceptions."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import IntEnum
from types import FrameType

from queue_over_sql import (
    ConsumerNotFound,
    DatabaseUnavailable,
    QueueError,
    QueueNotFound,
    RequestTimeout,
    ScheduleNotFound,
    TopicNotFound,
)


class ExitCode(IntEnum):
    """The exit codes of all commands."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOTHING = 3
    UNAVAILABLE = 4
    INCOMPLETE = 5
    INTERRUPTED = 130
    READER_GONE = 141
    TERMINATED = 143


_NOT_THERE = (QueueNotFound, TopicNotFound, ScheduleNotFound, ConsumerNotFound, RequestTimeout)


def exit_code_of(kind: type[QueueError]) -> ExitCode:
    """The exit code for a class of errors."""
    if issubclass(kind, _NOT_THERE):
        return ExitCode.NOTHING
    if issubclass(kind, DatabaseUnavailable):
        return ExitCode.UNAVAILABLE
    return ExitCode.FAILED


_POLL_SECONDS = 0.05
# How long a process that must stop at once may continue: enough for a healthy database.
_AT_ONCE_SECONDS = 0.7
_TWICE = 2
_ENDING = (signal.SIGINT, signal.SIGTERM)


class Flag:
    """An event that a signal handler may set at any moment, and the main thread waits for.

    Not ``threading.Event``: the interrupted code may hold its lock, and an untimed wait for it does
    not return to run a handler if another thread got the signal.
    """

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._set

    def set(self) -> None:
        """Set it for good."""
        self._set = True

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until it is set, at most `timeout` seconds; returns whether it is."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._set:
            left = _POLL_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(left, _POLL_SECONDS))
        return self._set


class Stop:
    """Whether this process was asked to stop, and asked again to stop immediately.

    Attributes:
        requested: set by the first request.
        now: set by the second one.
        awaits_command: whether a command was sent a signal to end and has not ended yet.
    """

    def __init__(self) -> None:
        self.requested = Flag()
        self.now = Flag()
        self.awaits_command = False

    def request(self) -> None:
        """Count a request: the first one means finish and stop, the second one stop now."""
        (self.now if self.requested.is_set() else self.requested).set()


@contextmanager
def stop_on_signals(*, at_once: bool = False) -> Iterator[Stop]:
    """Let SIGINT and SIGTERM only set the `Stop` during the block; then restore the old handlers.

    Args:
        at_once: whether a second signal ends a process that waits for a database.
    """
    stop = Stop()

    def note(number: int, frame: FrameType | None) -> None:
        del number, frame
        stop.request()

    before = {number: signal.signal(number, note) for number in _ENDING}
    try:
        with _ending_at_once(stop) if at_once else nullcontext():
            yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Terminated(KeyboardInterrupt):
    """SIGTERM raises this in the main thread, as Ctrl-C raises KeyboardInterrupt."""


@contextmanager
def sigterm_raised() -> Iterator[None]:
    """Let the first SIGTERM raise `Terminated`, unless it is ignored; a second one kills."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    del frame
    signal.signal(number, signal.SIG_DFL)
    raise Terminated


@contextmanager
def _ending_at_once(stop: Stop) -> Iterator[None]:
    """Watch for signals in a thread, too, because the main thread misses them inside Java."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)  # noqa: FBT003 - its only form
    left = threading.Event()
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    listener = threading.Thread(target=_end_at_once, args=(stop, ours, left), daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        left.set()
        theirs.close()
        listener.join()
        ours.close()


def _end_at_once(stop: Stop, signals: socket.socket, left: threading.Event) -> None:
    requests = 0
    while requests < _TWICE:
        numbers = signals.recv(100)
        if not numbers:
            return
        requests += sum(number in _ENDING for number in numbers)
    deadline = time.monotonic() + _AT_ONCE_SECONDS
    while time.monotonic() < deadline:
        if left.wait(_POLL_SECONDS):
            return
        if stop.awaits_command:
            deadline = time.monotonic() + _AT_ONCE_SECONDS
    sys.stderr.write(
        "Stopped immediately. The messages that it held are redelivered when their leases expire.\n"
    )
    os._exit(ExitCode.INTERRUPTED)
