"""The contenders of the workloads benchmark, and their processes."""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from scripts.benchmarks.harness import RESULTS

ROOT = RESULTS.parents[2]
PEERS = Path(os.environ.get("QUEUE_OVER_SQL_PEERS", ROOT / ".cache" / "peers"))
"""The environments that `ensure_peers` installed: one of Python and one of Node.js."""
_PACKAGES = PEERS / "node" / "node_modules"
_CONTENDERS = "scripts/benchmarks/contenders"
# The slowest command loads a million messages.
_PATIENCE_SECONDS = 600.0
_SERVERS = ("postgresql", "mariadb", "mysql", "sqlite", "h2")
# Names of databases in the other libraries' own URLs.
_SCHEMES = {"mariadb": "mysql"}


class ContenderFailed(Exception):
    """A contender did not start, did not answer, or answered with an error."""


@dataclass(frozen=True)
class Kind:
    """A contender that the benchmark knows.

    Attributes:
        name: of its program.
        engines: that it runs on.
        peer: whether it is another library, with its own environment.
    """

    name: str
    engines: tuple[str, ...]
    peer: bool = True

    def command(self) -> list[str]:
        """Its command, without the URL.

        Raises:
            ContenderFailed: it is not installed.
        """
        if not self.peer:
            return [sys.executable, "-m", self.module]
        script = ROOT / _CONTENDERS / f"{self.name}.mjs"
        if script.exists():
            program, arguments = _PACKAGES / ".bin" / "node", [str(script)]
        else:
            program, arguments = PEERS / "venv" / "bin" / "python", ["-m", self.module]
        if not program.exists():
            msg = f"{self.name} is not installed: ./scripts/benchmarks/run installs the peers"
            raise ContenderFailed(msg)
        return [str(program), *arguments]

    @property
    def module(self) -> str:
        """Its module, if it is written in Python."""
        return f"{_CONTENDERS}/{self.name}".replace("/", ".")

    def url(self, url: str) -> str:
        """The URL in the contender's form, because libraries choose their own drivers."""
        if not self.peer:
            return url
        parsed = make_url(url)
        scheme = parsed.get_backend_name()
        named = parsed.set(drivername=_SCHEMES.get(scheme, scheme))
        return named.render_as_string(hide_password=False)


KINDS: Sequence[Kind] = (
    Kind("ours", _SERVERS, peer=False),
    Kind("limit", _SERVERS, peer=False),
    Kind("ancestor_h2", ("h2",), peer=False),
    Kind("ancestor_as_written", ("h2",), peer=False),
    Kind("pgmq", ("postgresql",)),
    Kind("procrastinate", ("postgresql",)),
    Kind("pgqueuer", ("postgresql",)),
    Kind("pg_boss", ("postgresql",)),
    Kind("graphile_worker", ("postgresql",)),
    Kind("huey", ("sqlite",)),
    Kind("litequeue", ("sqlite",)),
    Kind("persist_queue", ("sqlite",)),
    Kind("kombu", ("postgresql", "mariadb", "sqlite")),
)
"""All contenders, in the order of the tables."""


class Running:
    """One process of a contender.

    Args:
        kind: the contender.
        url: of its database.
    """

    def __init__(self, kind: Kind, url: str) -> None:
        self._kind, self._said = kind, ""
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - until end()
        self._process = subprocess.Popen(
            [*kind.command(), kind.url(url)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"NODE_PATH": str(_PACKAGES)},
            text=True,
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise TypeError  # they were asked for
        self._input, self._output = self._process.stdin, self._process.stdout
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def _read(self) -> None:
        with self._output:
            for line in self._output:
                self._answers.put(line)
        self._answers.put("")

    def tell(self, do: str, **arguments: Any) -> None:
        """Send a command."""
        try:
            self._input.write(json.dumps({"do": do, **arguments}) + "\n")
            self._input.flush()
        except (OSError, ValueError) as error:
            raise ContenderFailed(f"{self._kind.name} ended: {self._last_words()}") from error

    def answer(self) -> dict[str, Any]:
        """The next answer.

        Raises:
            ContenderFailed: there is none, or it is an error.
        """
        try:
            line = self._answers.get(timeout=_PATIENCE_SECONDS)
        except queue.Empty:
            self.end()
            msg = f"{self._kind.name} did not answer for {_PATIENCE_SECONDS:.0f} s"
            raise ContenderFailed(msg) from None
        if not line:
            raise ContenderFailed(f"{self._kind.name} ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderFailed(f"{self._kind.name}: {answer['error']}")
        return answer

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self.tell(do, **arguments)
        return self.answer()

    def end(self) -> None:
        """Let it quit; kill it if it does not."""
        with contextlib.suppress(ContenderFailed):
            self.tell("quit")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError):
            self._input.close()
        self._last_words()
        self._errors.close()

    def _last_words(self) -> str:
        # It may have been ended because it did not answer.
        if not self._errors.closed:
            self._errors.seek(0)
            lines = self._errors.read().strip().splitlines()
            self._said = " ".join(lines[-3:])[-500:] or "without a word"
        return self._said


class Contestant:
    """A contender with its own database and as many processes as a workload needs.

    Args:
        kind: which.
        url: of an empty database.

    Raises:
        ContenderFailed: it does not start.
    """

    def __init__(self, kind: Kind, url: str) -> None:
        self.kind = kind
        self.url = url
        self.fill_rate = math.inf
        """Its last rate of publishing in messages per second, in its fastest way."""
        self._processes: list[Running] = []
        self._next = 0
        try:
            first = Running(kind, url)
            self._processes.append(first)
            first.ask("prepare")
            first.ask("open")
            self.about: dict[str, Any] = first.ask("describe")
        except ContenderFailed:
            self.end()
            raise

    @property
    def name(self) -> str:
        """The program's name."""
        return self.kind.name

    @property
    def first(self) -> Running:
        """The process for acts of one process."""
        return self._processes[0]

    def can(self, act: str) -> bool:
        """Whether its library supports an act."""
        return act in self.about["can"]

    def numbers(self, count: int) -> int:
        """The first of ``count`` new message numbers."""
        first = self._next
        self._next += count
        return first

    def processes(self, count: int) -> Sequence[Running]:
        """A number of open processes; new ones start at the same time."""
        new = [Running(self.kind, self.url) for _ in range(count - len(self._processes))]
        self._processes += new
        for process in new:
            process.tell("open")
        for process in new:
            process.answer()
        return self._processes[:count]

    def keep(self, count: int) -> None:
        """End all processes except the first ones."""
        for process in self._processes[count:]:
            process.end()
        del self._processes[count:]

    def end(self) -> None:
        """End all."""
        self.keep(0)
