"""Crash points of a Spark query: a flag in a folder lets who comes by kill the driver or itself.

All of it is the tests' own: subclasses of the product's reader and writer, and functions that are
wrapped in the processes of Spark's Python workers.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

FOLDER = "QUEUE_OVER_SQL_TEST_FLAGS"
"""The environment variable that leads Spark's Python workers to the flags."""

Victim = Literal["driver", "worker"]


class Flags:
    """The crash points of one run, each a file until it has fired."""

    def __init__(self, folder: Path) -> None:
        """`folder` is shared with the driver and all its workers."""
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def arm(self, query: str, point: str, *, victim: Victim = "driver", passes: int = 0) -> None:
        """Kill the victim when the query comes to this point, after letting it pass some times."""
        (self.folder / f"{query}.{point}.{victim}").write_text(str(passes))

    def left(self) -> list[str]:
        """The points that were never reached, or not often enough."""
        return sorted(p.name for p in self.folder.iterdir() if p.suffix in (".driver", ".worker"))

    def fired(self) -> list[str]:
        """The points that have killed somebody."""
        return sorted(p.stem for p in self.folder.glob("*.fired"))

    def driver_is(self, pid: int) -> None:
        """Whom to kill: the leader of the group in which the driver and its JVM run."""
        (self.folder / "driver.pid").write_text(str(pid))


def crash(query: str, point: str) -> None:
    """Die here if that was asked for."""
    if FOLDER not in os.environ:
        return
    folder = Path(os.environ[FOLDER])
    for victim in ("worker", "driver"):
        flag = folder / f"{query}.{point}.{victim}"
        if _due(flag):
            if victim == "driver":
                _kill_driver(folder)
            os.kill(os.getpid(), signal.SIGKILL)


def _due(flag: Path) -> bool:
    """Take one pass off the flag; whoever takes the last one dies."""
    mine = flag.with_suffix(f"{flag.suffix}-{os.getpid()}")
    try:
        flag.rename(mine)  # only one process gets it
    except FileNotFoundError:
        return False
    passes = int(mine.read_text())
    if passes > 0:
        mine.write_text(str(passes - 1))
        mine.rename(flag)
        return False
    mine.rename(flag.with_name(flag.name + ".fired"))
    return True


def _kill_driver(folder: Path) -> None:
    """`kill -9` of the Python driver and of its JVM, which has no chance to end its workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(int((folder / "driver.pid").read_text()), signal.SIGKILL)


def crashing(act: Callable[..., Any], query: Callable[[], str], point: str) -> Callable[..., Any]:
    """The same function with a crash point at its end, of whichever query runs then."""

    def run(*arguments: Any, **options: Any) -> Any:
        result = act(*arguments, **options)
        crash(query(), point)
        return result

    return run
