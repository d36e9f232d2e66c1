"""Python files that are watched for changes, for ``worker --reload``."""

from __future__ import annotations

import contextlib
import os
import time

_POLL_SECONDS = 0.5


class SourceFiles:
    """The Python files below the current folder, without those of environments."""

    def __init__(self) -> None:
        self._known = _modification_times()
        self._polled_at = time.monotonic()

    def have_changed(self) -> bool:
        """Whether a file was changed, added or removed; checks twice a second."""
        if time.monotonic() < self._polled_at + _POLL_SECONDS:
            return False
        before, self._known = self._known, _modification_times()
        self._polled_at = time.monotonic()
        return before != self._known


def _modification_times() -> dict[str, int]:
    found: dict[str, int] = {}
    for folder, folders, files in os.walk("."):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = [each for each in folders if not each.startswith((".", "__"))]
        for file in files:
            # It may just have been removed.
            with contextlib.suppress(OSError):
                if file.endswith(".py"):
                    path = os.path.join(folder, file)  # noqa: PTH118 - many, at each poll
                    found[path] = os.stat(path).st_mtime_ns  # noqa: PTH116
    return found
