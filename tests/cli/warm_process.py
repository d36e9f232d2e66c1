"""A process that has imported the command line, and becomes a command whenever it is asked to.

Starting Python and importing everything costs most of the processor time of a short command. A fork
of a process that has done so costs some milliseconds, and is a process like any other: its streams,
folder, environment, signals, exit code and end are its own. Nothing of an earlier command is in it,
since each is forked from the process that has run none.

What is about starting a process, or has one running beside the test, uses
``python -m queue_over_sql`` instead: see ``started`` and ``command`` in ``command_line.py``.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import typer

from queue_over_sql.cli.app import build_app, main

_NUMBER = struct.Struct("q")


class Warm:
    """The process, started when it is made, and what asks it; ends with this object or process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs.fileno()],
            )

    def run(
        self,
        arguments: Sequence[str],
        *,
        stdin: bytes,
        environment: Mapping[str, str],
        cwd: Path | None,
        seconds: float,
    ) -> subprocess.CompletedProcess[bytes]:
        """As ``subprocess.run`` of the command with its output captured.

        Raises:
            subprocess.TimeoutExpired: it did not end in time, and was killed.
        """
        with ExitStack() as stack:
            order, given, out, err = (stack.enter_context(TemporaryFile()) for _ in range(4))
            order.write(json.dumps([arguments, environment, str(cwd or Path.cwd())]).encode())
            given.write(stdin)
            code = self._run([order, given, out, err], arguments, seconds)
            return subprocess.CompletedProcess(arguments, code, _all(out), _all(err))

    def _run(self, files: list[IO[bytes]], arguments: Sequence[str], seconds: float) -> int:
        for file in files:
            file.seek(0)
        socket.send_fds(self._socket, [b"run"], [file.fileno() for file in files])
        pid = self._number()
        self._socket.settimeout(seconds)
        try:
            return self._number()
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            self._socket.settimeout(None)
            self._number()
            raise subprocess.TimeoutExpired(list(arguments), seconds) from None
        finally:
            self._socket.settimeout(None)

    def _number(self) -> int:
        received = self._socket.recv(_NUMBER.size, socket.MSG_WAITALL)
        number: int = _NUMBER.unpack(received)[0]
        return number

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.wait()


@functools.cache
def warm(environment: tuple[tuple[str, str], ...]) -> Warm:
    """The one of this process that was started with `environment`."""
    started = Warm(dict(environment))
    atexit.register(started.close)
    return started


def _all(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


# ---------------------------------------------------------------- in that process


def become_commands(asked: socket.socket) -> None:
    """Fork a process for each order, in which this returns; exit when nobody can ask any more."""
    while True:
        _, files, _, _ = socket.recv_fds(asked, 3, 4)
        if not files:
            sys.exit()
        pid = os.fork()
        if pid == 0:
            asked.close()
            _take(files)
            return
        for file in files:
            os.close(file)
        asked.sendall(_NUMBER.pack(pid))
        _, status = os.waitpid(pid, 0)
        asked.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _take(files: Sequence[int]) -> None:
    """Make an order's streams, arguments, environment and folder those of this process."""
    with os.fdopen(files[0], "rb") as order:
        arguments, environment, folder = json.load(order)
    for stream, file in enumerate(files[1:]):
        os.dup2(file, stream)
        os.close(file)
    sys.argv[1:] = arguments
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)


def _import() -> None:
    """Import what commands import when they run, too."""
    drivers = ("apscheduler.triggers.cron", "psycopg", "pymysql")
    for name in (*drivers, "queue_over_sql.service", "queue_over_sql.worker.worker", "rich.table"):
        importlib.import_module(name)
    typer.main.get_command(build_app()).make_context("queue-over-sql", ["list"])


if __name__ == "__main__":
    _import()
    # What there is now is left alone by the collector, which would copy all of it into each fork.
    gc.freeze()
    become_commands(socket.socket(fileno=int(sys.argv[1])))
    main()
