"""The one face of every server, and what private servers have in common."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from sqlalchemy import URL

from queue_over_sql.testing.servers.databases import Databases, rendered
from queue_over_sql.testing.servers.process import (
    Account,
    Ended,
    Process,
    free_port,
    new_folder,
    unprivileged_account,
)


class ServerMissing(RuntimeError):
    """There is no way to get a server of this engine here; the message says what to install."""


class Server(ABC):
    """A database server: its life cycle, its databases and their URLs."""

    engine: str
    """The engine's name: ``postgresql``, ``mariadb``, ``mysql`` or ``h2``."""
    databases: Databases
    origin: str
    """Where the server comes from, for people."""

    @property
    @abstractmethod
    def address(self) -> URL:
        """The URL of the server, whatever database it names."""

    @abstractmethod
    def start(self) -> None:
        """Start the server and return once it answers; again on the same port and data."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the server in an orderly way and return once it is gone."""

    @abstractmethod
    def kill(self) -> None:
        """End the server as ``kill -9`` does and return once it is gone."""

    @abstractmethod
    def close(self) -> None:
        """Stop the server for good and remove its data."""

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of the database named `database`."""
        return rendered(self.databases.url(self.address, database))

    def create_database(self, name: str) -> str:
        """Create the empty database `name` and return its URL."""
        self.databases.create(self.address, name)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop the database `name` if there is one, whoever is still connected to it."""
        self.databases.drop(self.address, name)

    def clear_database(self, name: str, keep: Callable[[str], bool]) -> None:
        """Empty the database `name`, whoever is still connected to it.

        Tables whose names `keep` accepts lose their rows; all else is dropped.
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
        """Stop the server for good."""
        self.close()


class PrivateServer(Server):
    """A server of this process alone, from local binaries, on a free port of 127.0.0.1.

    It ends with this process, even if that is killed, and its data with it.

    Args:
        durable: commits reach the disk, as in production (benchmarks). Without it they reach the
            operating system, which survives `kill` but no power cut, and is much faster.

    Raises:
        ServerMissing: the binaries are not there.
    """

    accounts: ClassVar[tuple[str, ...]] = ()
    """Accounts to run as where this process is root, by preference."""
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    ready: ClassVar[str]
    """A pattern that the server prints when it answers."""

    _START_TIMEOUT = 60.0
    _ATTEMPTS = 20

    def __init__(self, *, durable: bool = False) -> None:
        self.durable = durable
        self.locate()
        self.account: Account = self.choose_account()
        self.port = free_port()
        self._process: Process | None = None
        self._initialised = False

    @abstractmethod
    def locate(self) -> None:
        """Find the binaries, or raise `ServerMissing`."""

    def choose_account(self) -> Account:
        """Return the account that the server runs as."""
        return unprivileged_account(*self.accounts)

    @abstractmethod
    def initialise(self) -> None:
        """Prepare the data in `folder`, once before the first start."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""

    @cached_property
    def folder(self) -> Path:
        """The folder of the data, the log and all else, made when first needed."""
        return new_folder(self.engine, self.account)

    @property
    def running(self) -> bool:
        """Whether the server's process is there."""
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        """The process id of the running server.

        Raises:
            RuntimeError: it is not running.
        """
        return self._running_process().pid

    def start(self) -> None:
        """Start the server and return once it answers; again on the same port and data."""
        if self.running:
            return
        fresh = not self._initialised
        if fresh:
            self._initialised = True
            self.initialise()
        for _ in range(self._ATTEMPTS):
            with contextlib.suppress(Ended):
                self._launch()
                return
            # The port went to somebody else, or remains of a killed server are still going away.
            time.sleep(0.25)
            if fresh:
                self.port = free_port()
        self._launch()

    def stop(self) -> None:
        """Stop the server in an orderly way and return once it is gone."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """End the server as ``kill -9`` does and return once it is gone."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Stop the server for good and remove its data."""
        self.stop()
        if self._initialised:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _launch(self) -> None:
        self._process = Process(self.command(), self.folder, self.account, self.stop_signal)
        try:
            self._process.wait_for_output(self.ready, self._START_TIMEOUT)
        except BaseException:
            self._end(signal.SIGKILL)
            raise

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.end(number)
            self._process = None

    def _running_process(self) -> Process:
        if self._process is None:
            raise RuntimeError(f"the {self.engine} server is not running")
        return self._process
