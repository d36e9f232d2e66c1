"""Files of SQLite that a child must not use, because its parent had them open when it forked.

A child inherits SQLite's notes of the locks on a file, but not the locks of the operating system.
So it takes locks that it does not have, and others do not see it. Its parent, or any other process,
may delete the log into which the child writes, with all that the child has published. And if a
thread of the parent is inside SQLite when it forks, the child waits for it for ever.
https://www.sqlite.org/howtocorrupt.html, section 2.6

So a fork closes all connections first (``database/forks.py``). The child refuses a file that was
open nevertheless.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from queue_over_sql.errors import DatabaseUnavailable

# The system's lists of the files that this process has open.
_OPEN_FILES: Final = (Path("/proc/self/fd"), Path("/dev/fd"))
# The files that a parent had open: their numbers here, with device and inode.
_inherited: dict[int, tuple[int, int]] = {}


def _note_inherited() -> None:
    _inherited.clear()
    _inherited.update(_open_files())


def _open_files() -> dict[int, tuple[int, int]]:
    found = {}
    folder = next((each for each in _OPEN_FILES if each.is_dir()), None)
    for name in [] if folder is None else os.listdir(folder):  # noqa: PTH208 - only numbers
        # One of them is the list itself, which is closed by now.
        with contextlib.suppress(OSError, ValueError):
            about = os.fstat(int(name))
            if stat.S_ISREG(about.st_mode):
                found[int(name)] = about.st_dev, about.st_ino
    return found


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_inherited)


def refuse_inherited(file: str) -> None:
    """Refuse a file that this process's parent had open when it forked.

    Raises:
        DatabaseUnavailable: it had.
    """
    if not _inherited or not file:
        return
    try:
        about = Path(file).stat()
    except OSError:
        return
    wanted = about.st_dev, about.st_ino
    for number in [number for number, known in _inherited.items() if known == wanted]:
        try:
            now = os.fstat(number)
        except OSError:
            now = None
        if now is None or (now.st_dev, now.st_ino) != wanted:
            del _inherited[number]
            continue
        msg = (
            f"The database {file} was open in the parent process when it forked this process. "
            "SQLite's locks do not survive that, so messages would be lost. Start processes with "
            "the start method 'spawn', or let the parent close its connections and transactions "
            "before it forks."
        )
        raise DatabaseUnavailable(msg)
