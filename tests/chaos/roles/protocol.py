"""The common part of every role: arguments, events, commands, and ending with the test."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

A = TypeVar("A")

PR_SET_PDEATHSIG = 1


def play(main: Callable[[A], None], arguments: Callable[..., A]) -> None:
    """Run a role: its arguments dataclass is filled from the JSON of the command line."""
    _die_with_parent()
    main(arguments(**json.loads(sys.argv[1])))


def emit(event: str, **details: Any) -> None:
    """Tell the test something: one line, written at once and whole."""
    os.write(1, (json.dumps({"event": event, **details}) + "\n").encode())


def commands() -> Iterator[dict[str, Any]]:
    """The test's commands, until it closes the pipe."""
    for line in sys.stdin:
        yield json.loads(line)


class Reins:
    """The commands `go` and `stop` as events, for roles that are busy with something else."""

    def __init__(self) -> None:
        """Begin to listen; the end of the pipe counts as `stop`."""
        self.go = threading.Event()
        self.stop = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for command in commands():
            if command["command"] == "go":
                self.go.set()
            else:
                break
        self.stop.set()
        self.go.set()


def _die_with_parent() -> None:
    """Ask Linux to kill this process with its parent, even while it is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
