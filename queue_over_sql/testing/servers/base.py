"""The interface of all servers, and the base class of private servers."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Self

from sqlalchemy import URL

from queue_over_sql.testing.servers import guard
from queue_over_sql.testing.servers.databases import Databases, rendered
from queue_over_sql.testing.servers.process import (
    Account,
    free_port,
    new_folder,
    surroundings,
    unprivileged_account,
)
from queue_over_sql.values.cached import cached_property


class ServerMissing(RuntimeError):
    """No server of this engine is available here; the message says what to install."""


class Server(ABC):
    """A database server: its life cycle, its databases and their URLs."""

    engine: str
    """The engine's name: ``postgresql``, ``mariadb``, ``mysql`` or ``h2``."""
    databases: Databases
    origin: str
    """The origin of the server, as text for people."""

    @property
    @abstractmethod
    def address(self) -> URL:
        """The URL of the server; its database does not matter."""

    @abstractmethod
    def start(self) -> None:
        """Start the server; returns when it answers. A restart keeps port and data."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the server gracefully; returns when it has ended."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the server as ``kill -9`` does; returns when it has ended."""

    @abstractmethod
    def close(self) -> None:
        """Stop the server permanently and remove its data."""

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of the database named `database`."""
        return rendered(self.databases.url(self.address, database))

    def create_database(self, name: str) -> str:
        """Create the empty database `name` and return its URL."""
        self.databases.create(self.address, name)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop the database `name` if it exists, even if others are connected to it."""
        self.databases.drop(self.address, name)

    def clear_database(self, name: str, keep: Callable[[str], bool]) -> None:
        """Empty the database `name`, even if others are connected to it.

        Tables whose names `keep` accepts lose their rows; everything else is dropped.
        """
        self.databases.clear(self.address, name, keep)

    def __enter__(self) -> Self:
        """Start the server."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server permanently."""
        self.close()


class _Ended(RuntimeError):
    """A server's process ended before the server answered."""


# Copies of fresh data, each in the folder of the server that made it: by what made it, and by whom
# it can be read.
_fresh_data: dict[tuple[str, str, Account], Path] = {}


class PrivateServer(Server):
    """A private server from local programs, on a free port of 127.0.0.1.

    It and its data end with this process, even if the process is killed.

    Args:
        durable: whether commits reach the disk, as in production (for benchmarks). Otherwise they
            only reach the operating system, which is much faster; they survive `kill` but not a
            power failure.

    Raises:
        ServerMissing: the programs are not installed.
    """

    login: ClassVar[URL]
    """The URL of the server without host and port."""
    accounts: ClassVar[tuple[str, ...]] = ()
    """Accounts to run as if this process is root, the preferred one first."""
    stop_signal: signal.Signals = signal.SIGTERM
    ready: ClassVar[str]
    """A pattern that the server prints when it answers."""

    _START_TIMEOUT = 60.0
    _STOP_TIMEOUT = 30.0
    _ATTEMPTS = 20

    def __init__(self, *, durable: bool = False) -> None:
        self.durable = durable
        self.locate()
        self.account = unprivileged_account(*self.accounts)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._initialised = False

    @abstractmethod
    def locate(self) -> None:
        """Find the programs, or raise `ServerMissing`."""

    @abstractmethod
    def initialise(self) -> None:
        """Prepare the data in `folder`, once before the first start."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""

    @property
    def address(self) -> URL:
        return self.login.set(host="127.0.0.1", port=self.port)

    @cached_property
    def folder(self) -> Path:
        """The folder of the data, the log and other files; created at its first use."""
        return new_folder(self.engine, self.account)

    @property
    def data(self) -> Path:
        """The folder of the data."""
        return self.folder / "data"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise RuntimeError(f"the {self.engine} server is not running")
        return self._process.pid

    def prepare(self, *command: str | Path) -> None:
        """Run a command that prepares the server; an error includes its output."""
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            **surroundings(self.account, self.folder),
        )
        if done.returncode != 0:
            output = (done.stdout + done.stderr).strip()
            raise RuntimeError(f"{command[0]} failed with {done.returncode}:\n{output}")

    def make_data(self, *command: str | Path) -> None:
        """Run the command that makes `data`, or copy what it made for another server.

        A copy takes less than a second, and making data takes many.
        """
        key = (self.origin, Path(command[0]).name, self.account)
        made = _fresh_data.get(key)
        if made is not None and made.exists():
            self.prepare("cp", "-Rp", made, self.data)
            return
        self.prepare(*command)
        self.prepare("cp", "-Rp", self.data, self.folder / "fresh")
        _fresh_data[key] = self.folder / "fresh"

    def start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        fresh = not self._initialised
        if fresh:
            self._initialised = True
            self.initialise()
        for _ in range(self._ATTEMPTS):
            with contextlib.suppress(_Ended):
                self._launch()
                return
            # Another process took the port, or remains of a killed server are still being removed.
            time.sleep(0.25)
            if fresh:
                self.port = free_port()
        self._launch()

    def stop(self) -> None:
        self._end(self.stop_signal)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def close(self) -> None:
        self.stop()
        if self._initialised:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _launch(self) -> None:
        log = self.folder / "server.log"
        command = self.command()
        with log.open("ab") as output:
            before = output.tell()
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in a terminal must not stop the server
                **surroundings(self.account, self.folder),
            )
        guard.watch(self.pid, self.stop_signal, self.folder)
        try:
            self._wait_until_ready(self._process, command[0], log, before)
        except BaseException:
            self._end(signal.SIGKILL)
            raise

    def _wait_until_ready(
        self, process: subprocess.Popen[bytes], program: str, log: Path, before: int
    ) -> None:
        # Read the log, because another server might answer on the port.
        deadline = time.monotonic() + self._START_TIMEOUT
        while True:
            ended = process.poll() is not None
            output = log.read_bytes()[before:].decode(errors="replace")
            if re.search(self.ready, output):
                return
            if ended:
                raise _Ended(f"{program} ended unexpectedly:\n{output[-2000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{program} does not answer:\n{output[-2000:]}")
            time.sleep(0.02)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(self._STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        guard.forget(process.pid)
