"""Child processes of a test: started (never forked), controlled by JSON lines, and ended."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.chaos.account import Account

REPOSITORY = Path(__file__).resolve().parents[2]
LONGEST_WAIT = 60.0
"""Seconds until a child that says nothing fails the test: a bound, never a measure of speed."""


def _first_in_path(folder: Path) -> str:
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


class Process:
    """One running role: events come from its standard output, commands go to its standard input."""

    def __init__(self, arguments: Any, stderr: Path, code: Path = REPOSITORY) -> None:
        """Start the role whose module defines the dataclass of `arguments`.

        `code`: the folder in which the package is that it runs.
        """
        self.role: str = type(arguments).__module__
        self._stderr = stderr
        self.killed_at: float | None = None
        with stderr.open("wb") as errors:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", self.role, json.dumps(dataclasses.asdict(arguments))],
                # Python looks there first.
                cwd=code,
                env={**os.environ, "PYTHONPATH": _first_in_path(REPOSITORY)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether the child has not ended yet (a stopped one is alive)."""
        return self._popen.poll() is None

    def expect(self, event: str, within: float = LONGEST_WAIT) -> dict[str, Any]:
        """Wait for the child's next event, which must be the named one."""
        said = self.hear(within, event)
        if said["event"] != event:
            raise AssertionError(self.complaint(f"said {said!r} instead of {event!r}"))
        return said

    def hear(self, within: float = LONGEST_WAIT, wanted: str = "event") -> dict[str, Any]:
        """Wait for the child's next event, whatever it is."""
        try:
            said = self._events.get(timeout=within)
        except queue.Empty:
            raise AssertionError(self.complaint(f"no {wanted!r} within {within} s")) from None
        if said is None:
            raise AssertionError(self.complaint(f"ended before {wanted!r}"))
        return said

    def tell(self, command: str, **details: Any) -> None:
        """Send one command, without waiting for an answer."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps({"command": command, **details}) + "\n")
        self._popen.stdin.flush()

    def ask(self, command: str, **details: Any) -> dict[str, Any]:
        """Send one command and wait for its reply."""
        self.tell(command, **details)
        return self.expect("reply")

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this child alone, without waiting for its effect."""
        self._popen.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP, and wait until the kernel has really stopped every thread of the child."""
        self._popen.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def thaw(self) -> None:
        """SIGCONT: the child goes on where it was."""
        self._popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL and reap: the child gets no chance to say or undo anything."""
        self.killed_at = time.monotonic()
        self._popen.kill()
        self._popen.wait(LONGEST_WAIT)

    def join(self, within: float = LONGEST_WAIT) -> int:
        """Wait for the child to end by itself; its exit code, negative for a signal."""
        try:
            return self._popen.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.complaint(f"still running after {within} s")) from None

    def close(self) -> None:
        """Kill the child if it still runs, and free its pipes."""
        if self.alive:
            self.kill()
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # what was unsent, the dead no longer need
            self._popen.stdin.close()
        self._reader.join(LONGEST_WAIT)
        self._popen.stdout.close()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            if line.startswith("{"):
                self._events.put(json.loads(line))
        self._events.put(None)

    def check_alive(self) -> None:
        """Fail, with what the child wrote last, when it has ended."""
        if not self.alive:
            raise AssertionError(self.complaint("ended too early"))

    def errors(self) -> str:
        """All that the child wrote to its standard error."""
        return self._stderr.read_text(errors="replace")

    def complaint(self, what: str) -> str:
        """What to say when the child did not do what it should: with what it wrote last."""
        told = self.errors()[-4000:]
        return f"{self.role} (pid {self.pid}, exit {self._popen.poll()}): {what}\n{told}"


class Crew:
    """All children of one test; whoever leaves the test leaves none of them behind."""

    def __init__(self, folder: Path) -> None:
        """`folder` takes the journals and the standard error of every child."""
        self.journals = folder / "journals"
        self.journals.mkdir()
        self._errors = folder / "errors"
        self._errors.mkdir()
        self._members: list[Process] = []

    def spawn(self, arguments: Any, code: Path = REPOSITORY) -> Process:
        """Start the role to which this arguments dataclass belongs; `code` as of `Process`."""
        number = len(self._members)
        process = Process(arguments, self._errors / f"child-{number}", code)
        self._members.append(process)
        return process

    def account(self) -> Account:
        """What all children have written into their journals until now."""
        dead = {
            f"process-{member.pid}": member.killed_at
            for member in self._members
            if member.killed_at is not None
        }
        return Account(self.journals, dead)

    def close(self) -> None:
        """Kill and reap every child that still runs."""
        for member in self._members:
            member.close()
