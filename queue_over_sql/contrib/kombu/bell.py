"""A bell: tells an event loop of kombu that messages may have arrived."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from queue_over_sql.inside import Arrivals

# How soon its thread notices that the service was stopped.
_LOOK_SECONDS: Final = 30.0


class Bell:
    """A pipe that an event loop reads, and a thread that writes to it at each arrival.

    Only the process that made it may close it: a child of a fork shares the loop's files.
    """

    def __init__(self, arrivals: Arrivals, loop: Any, heard: Callable[[Bell], None]) -> None:
        self._arrivals = arrivals
        self._loop = loop
        self._heard = heard
        self._timer: Any = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        loop.add_reader(self._reader, self._on_readable)
        threading.Thread(target=self._watch, name="queue-over-sql-bell", daemon=True).start()

    def ring(self) -> None:
        """Let the loop look for messages; any thread may ring."""
        with self._lock:
            if not self._closed:
                # A full pipe rings already.
                with contextlib.suppress(BlockingIOError):
                    os.write(self._writer, b"!")

    def ring_after(self, seconds: float) -> None:
        """Ring after a pause, unless it rings before."""
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, self.ring)

    def close(self) -> None:
        """Take it from the loop, and end its thread."""
        if self._pid != os.getpid():
            return
        self._stop_timer()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._loop.remove_reader(self._reader)
            os.close(self._reader)
            os.close(self._writer)
        self._arrivals.notify()

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _on_readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)
        self._stop_timer()
        self._heard(self)

    def _watch(self) -> None:
        seen = self._arrivals.count
        while not self._closed and not self._arrivals.ended:
            self._arrivals.wait(seen, _LOOK_SECONDS)
            if (count := self._arrivals.count) != seen:
                seen = count
                self.ring()
