"""The demo's server processes: start, freeze, kill, stop."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from queue_over_sql_demo.plan import Plan, ServerOrder

STOP_SECONDS = 20.0
TAIL_LINES = 8


@dataclass
class Server:
    """One server process and its log."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    killed: bool = False

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    @property
    def failed(self) -> bool:
        """Whether it ended by itself, which servers should not do."""
        return not self.killed and not self.alive

    def freeze(self) -> None:
        """Stop the process temporarily; it keeps what it holds."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue a frozen process."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """``kill -9``: no cleanup, nothing is released; returns when the process has ended."""
        self.killed = True
        self.process.kill()
        self.process.wait()

    def log_tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])


def start_server(plan: Plan, name: str, logs: Path) -> Server:
    """Start the server `name` as a process that logs to a file in `logs`."""
    log = logs / f"{name}.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "queue_over_sql_demo"],
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
            # Ctrl-C in the terminal must reach only the demo, which then stops its servers.
            start_new_session=True,
        )
    if process.stdin is not None:
        # A server that fails at once does not read; its log has the reason.
        with suppress(BrokenPipeError):
            process.stdin.write(ServerOrder.of(plan, name).line())
            process.stdin.flush()
    return Server(name, process, log)


def stop_servers(servers: list[Server]) -> None:
    """Drain all running servers by SIGTERM; ``kill -9`` those that do not end soon."""
    for server in servers:
        if server.alive:
            server.thaw()
            server.process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for server in servers:
        try:
            server.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            server.kill()
        if server.process.stdin is not None:
            # The pipe to a server that failed at once cannot be flushed.
            with suppress(BrokenPipeError):
                server.process.stdin.close()


@contextmanager
def running_servers(plan: Plan, logs: Path) -> Iterator[list[Server]]:
    """The servers of `plan`; always stopped at the end."""
    servers: list[Server] = []
    try:
        for number in range(1, plan.servers + 1):
            servers.append(start_server(plan, plan.server_name(number), logs))  # noqa: PERF401
        yield servers
    finally:
        stop_servers(servers)
