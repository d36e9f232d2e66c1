"""Where private servers run: accounts, folders, ports, and the life of one process."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from queue_over_sql.testing.servers.guard import guard

# Below the range from which systems take the ports of outgoing connections: there a client that
# retries while its server is down can connect to itself, or hold the port when it comes back.
_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    while True:
        port = random.choice(_PORTS)  # noqa: S311 - no secret
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@dataclass(frozen=True)
class Account:
    """The system account that a server runs as; without numbers, that of this process."""

    uid: int | None = None
    gid: int | None = None

    @property
    def groups(self) -> list[int] | None:
        """The supplementary groups: none for an account that was switched to."""
        return None if self.uid is None else []


def unprivileged_account(*names: str) -> Account:
    """Return the first existing account of `names` where this process is root, else its own."""
    if os.geteuid() == 0:
        for name in names:
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return Account(entry.pw_uid, entry.pw_gid)
    return Account()


def new_folder(label: str, account: Account) -> Path:
    """Make a private folder that `account` owns and may enter.

    It lies in the folder for temporary files, or in the system's own one where TMPDIR leads to a
    place that `account` may not enter.
    """
    parent = Path(tempfile.gettempdir())
    if account.uid is not None and not open_to_all(parent):
        parent = Path("/var/tmp")  # noqa: S108 - mkdtemp makes a private folder in it
    folder = Path(tempfile.mkdtemp(prefix=f"queue-over-sql-{label}-", dir=parent)).resolve()
    if account.uid is not None and account.gid is not None:
        os.chown(folder, account.uid, account.gid)
    return folder


def open_to_all(folder: Path) -> bool:
    """Return whether every account may enter `folder`."""
    resolved = folder.resolve()
    return all(step.stat().st_mode & 0o001 for step in (resolved, *resolved.parents))


def copied_programs(folder: Path, into: Path) -> Path:
    """Copy the programs of `folder`, and what lies beside it, to where an account may run them."""
    shutil.copytree(folder.parent, into, symlinks=True)
    return into / folder.name


def folder_variable(engine: str) -> str:
    """Return the name of the environment variable that names the folder of an engine's programs."""
    return f"QUEUE_OVER_SQL_TEST_{engine.upper()}_BIN"


def find_binary(engine: str, name: str, *patterns: str) -> Path | None:
    """Return the program `name` of `engine`.

    It comes from the folder that the environment names (see `folder_variable`), or from the PATH,
    or from the folders matching `patterns`, newest first.
    """
    given = os.environ.get(folder_variable(engine))
    if given:
        chosen = Path(given) / name
        return chosen if os.access(chosen, os.X_OK) else None
    on_path = shutil.which(name)
    if on_path is not None:
        return Path(on_path)
    found = [
        candidate
        for pattern in patterns
        for folder in Path("/").glob(pattern.lstrip("/"))
        if os.access(candidate := folder / name, os.X_OK)
    ]
    return max(found, key=lambda path: numbers(path.parent), default=None)


def numbers(path: Path) -> list[int]:
    """Return the numbers in `path`, by which versions order."""
    return [int(number) for number in re.findall(r"\d+", str(path))]


def run(command: Sequence[str | Path], *, account: Account, cwd: Path) -> None:
    """Run a command that prepares a server to its end.

    Raises:
        RuntimeError: it failed; the message has its output.
    """
    done = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=_environment(cwd),
        timeout=120,
        user=account.uid,
        group=account.gid,
        extra_groups=account.groups,
    )
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip()
        raise RuntimeError(f"{command[0]} failed with {done.returncode}:\n{output}")


def _environment(folder: Path) -> dict[str, str]:
    # The caller's TMPDIR may be closed to the server's account.
    return {**os.environ, "TMPDIR": str(folder)}


class Ended(RuntimeError):
    """A server's process ended before the server answered."""


@dataclass
class Process:
    """One run of a server, with its output in a log file."""

    command: list[str]
    folder: Path
    account: Account
    stop_signal: signal.Signals
    _popen: subprocess.Popen[bytes] = field(init=False)
    _log_start: int = field(init=False)

    def __post_init__(self) -> None:
        """Start the process."""
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            self._popen = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=_environment(self.folder),
                start_new_session=True,  # a terminal's Ctrl-C is for the tests, not for the server
                user=self.account.uid,
                group=self.account.gid,
                extra_groups=self.account.groups,
            )
        guard().watch(self.pid, self.stop_signal, self.folder)

    @property
    def pid(self) -> int:
        """The process id of the server itself."""
        return self._popen.pid

    @property
    def log(self) -> Path:
        """The file with the output of all runs in this folder."""
        return self.folder / "server.log"

    @property
    def output(self) -> str:
        """What this run has printed so far."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._popen.poll() is None

    def wait_for_output(self, pattern: str, timeout: float) -> None:
        """Wait until this run has printed `pattern`.

        The log, unlike a look at the port, cannot take somebody else's server for this one.

        Raises:
            Ended: the process ended first.
            TimeoutError: `timeout` seconds went by.
        """
        deadline = time.monotonic() + timeout
        while not re.search(pattern, self.output):
            if not self.running:
                raise Ended(f"{self.command[0]} ended by itself:\n{self.output[-2000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.command[0]} does not answer:\n{self.output[-2000:]}")
            time.sleep(0.02)

    def end(self, number: signal.Signals, timeout: float = 30.0) -> None:
        """Send a signal and wait for the end, by force after `timeout` seconds."""
        if self.running:
            self._popen.send_signal(number)
        try:
            self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        guard().forget(self.pid)
