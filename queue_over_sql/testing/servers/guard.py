"""A guard process: servers die with the process that started them, even if that one is killed.

The guard holds the reading end of a pipe whose only writing end is in the guarded process. When
that process ends, however it ends, the pipe closes: the guard stops every server that it was told
of and removes their folders. The parent-death signal of Linux would not do, because it fires when
the starting *thread* ends.

The lower half runs as a script of its own and therefore imports the standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import IO

_GRACE = 5.0
"""Seconds that an orphaned server has to stop by itself."""


@dataclass(frozen=True)
class Order:
    """One line from the guarded process: begin or cease to watch a server."""

    action: str
    """``watch`` or ``forget``."""
    pid: int
    stop_signal: int = signal.SIGTERM
    folder: str = ""
    """Removed once the server is gone; empty where there is none."""


class Guard:
    """The guarded process's end of the pipe."""

    def __init__(self) -> None:
        """Start the guard in a session of its own, out of reach of a terminal's Ctrl-C."""
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        self._owner = os.getpid()

    def watch(self, pid: int, stop_signal: signal.Signals, folder: Path) -> None:
        """Have `pid` stopped by `stop_signal` and `folder` removed when this process ends."""
        self._send(Order("watch", pid, stop_signal, str(folder)))

    def forget(self, pid: int) -> None:
        """Leave `pid` alone: it has ended in an orderly way."""
        self._send(Order("forget", pid))

    def close(self) -> None:
        """Close the pipe, which ends everything still watched, and wait for the guard."""
        with self._lock, contextlib.suppress(OSError):
            _pipe(self._process).close()
        if os.getpid() == self._owner:
            self._process.wait(timeout=4 * _GRACE)

    def release_in_child(self) -> None:
        """Close a forked child's copy of the pipe, which would keep the servers alive."""
        with contextlib.suppress(OSError):
            _pipe(self._process).close()

    def _send(self, order: Order) -> None:
        with self._lock:
            pipe = _pipe(self._process)
            pipe.write(json.dumps(asdict(order)) + "\n")
            pipe.flush()


def _pipe(process: subprocess.Popen[str]) -> IO[str]:
    if process.stdin is None:
        raise RuntimeError("the guard was started without a pipe")
    return process.stdin


@cache
def guard() -> Guard:
    """Return this process's guard, started on first use."""
    started = Guard()
    atexit.register(started.close)
    os.register_at_fork(after_in_child=started.release_in_child)
    return started


# ---------------------------------------------------------------- the guard process


class _Watched:
    """A server process, held by a descriptor where the system has one: pids are used again."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._ended = False
        self._descriptor: int | None = None
        try:
            self._descriptor = os.pidfd_open(order.pid)
        except ProcessLookupError:
            self._ended = True
        except (AttributeError, OSError):  # not Linux, or an old kernel: go by the pid
            return

    def ask(self) -> None:
        """Ask the server to stop."""
        self._signal(self.order.stop_signal)

    def end(self, deadline: float) -> None:
        """Wait for the server until `deadline`, then stop it by force; remove its folder."""
        while self._alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._signal(signal.SIGKILL)
        if self.order.folder:
            shutil.rmtree(self.order.folder, ignore_errors=True)

    def _alive(self) -> bool:
        if self._descriptor is not None:
            readable, _, _ = select.select([self._descriptor], [], [], 0)
            return not readable
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.order.pid, 0)
            return not self._ended
        return False

    def _signal(self, number: int) -> None:
        if self._ended:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._descriptor is None:
                os.kill(self.order.pid, number)
            else:
                signal.pidfd_send_signal(self._descriptor, number)


def _main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched: dict[int, _Watched] = {}
    for line in sys.stdin:
        order = Order(**json.loads(line))
        if order.action == "watch":
            watched[order.pid] = _Watched(order)
        else:
            watched.pop(order.pid, None)
    for server in watched.values():
        server.ask()
    deadline = time.monotonic() + _GRACE
    for server in watched.values():
        server.end(deadline)


if __name__ == "__main__":
    _main()
