"""A guard process for each server, which stops it when the process that started it ends.

The guard reads from a pipe whose only writing end belongs to the guarded process. When that process
ends in any way, the pipe closes, and the guard stops the server and removes its folder. Linux's
parent-death signal would not work, because it fires when the starting *thread* ends.

This file is also the guard's script, so it imports only the standard library.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_GRACE = 5.0
"""Seconds that an orphaned server has to stop by itself before it is killed."""
_guards: dict[int, subprocess.Popen[bytes]] = {}


def watch(pid: int, stop_signal: signal.Signals, folder: Path) -> None:
    """Stop `pid` with `stop_signal` and remove `folder` when this process ends."""
    arguments = (pid, int(stop_signal), folder)
    _guards[pid] = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).resolve()), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        # So that Ctrl-C in a terminal does not reach it.
        start_new_session=True,
    )


def forget(pid: int) -> None:
    """Stop watching `pid`, because it has ended gracefully."""
    _guards.pop(pid).communicate(b"it has ended")


def _close_pipes() -> None:
    for guard in _guards.values():
        if guard.stdin is not None:
            guard.stdin.close()


@atexit.register
def _end_all() -> None:
    _close_pipes()
    for guard in _guards.values():
        guard.wait(timeout=4 * _GRACE)


def _leave_to_parent() -> None:
    """Close a forked child's copies of the pipes, which would keep the servers running."""
    _close_pipes()
    _guards.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


# ---------------------------------------------------------------- the guard process


def _main(pid: int, stop_signal: int, folder: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    descriptor: int | None = None
    # Not available everywhere. With a pidfd, a reused process id cannot be confused.
    with contextlib.suppress(AttributeError, OSError):
        descriptor = os.pidfd_open(pid)
    if sys.stdin.buffer.read():
        return
    with contextlib.suppress(ProcessLookupError):
        if descriptor is None:
            _end_by_number(pid, stop_signal)
        else:
            signal.pidfd_send_signal(descriptor, stop_signal)
            select.select([descriptor], [], [], _GRACE)
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def _end_by_number(pid: int, stop_signal: int) -> None:
    os.kill(pid, stop_signal)
    deadline = time.monotonic() + _GRACE
    while time.monotonic() < deadline:
        os.kill(pid, 0)
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
