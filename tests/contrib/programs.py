"""Programs of a test, in Python: run to their end, or killed with all their processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Programs:
    """Programs that run in a folder, and find modules there; `variables` are their environment."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self._folder = folder
        path = os.pathsep.join([str(folder), str(ROOT)])
        self._environment = {**os.environ, **variables, "PYTHONPATH": path}

    def run(self, *arguments: str) -> None:
        """Run a program to its end, which must be a good one."""
        ended = subprocess.run(
            [sys.executable, *arguments],
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert 0 == ended.returncode, ended.stdout + ended.stderr

    @contextlib.contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """A program in a session of its own; at the end all its processes are killed."""
        with subprocess.Popen(
            [sys.executable, *arguments],
            env=self._environment,
            cwd=self._folder,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
