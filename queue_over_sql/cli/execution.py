"""Running a command for a message: payload on its standard input, facts in its environment."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO

from queue_over_sql import Message
from queue_over_sql.cli.signals import Stop
from queue_over_sql.cli.wire import payload_bytes
from queue_over_sql.json_lines import to_json

PREFIX = "QUEUE_OVER_SQL_"
TAIL_BYTES = 4096
POLL_SECONDS = 0.1
DRAIN_SECONDS = 1.0


class CommandStoppedError(Exception):
    """The command was ended because this process was told to stop at once."""


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    exit_code: int
    error_tail: str

    @property
    def error(self) -> str:
        """The reason for the nack: the exit code or signal, and the end of standard error."""
        if self.exit_code < 0:
            how = f"killed by {signal.Signals(-self.exit_code).name}"
        else:
            how = f"exit code {self.exit_code}"
        return f"{how}: {self.error_tail}" if self.error_tail else how


def message_environment(message: Message) -> dict[str, str]:
    """The environment variables that describe `message` to a command; see `consume --help`."""
    facts: Mapping[str, object] = {
        "QUEUE": message.queue,
        "MESSAGE_ID": message.id,
        "ATTEMPT": message.attempt,
        "MAX_ATTEMPTS": message.max_attempts,
        "PRIORITY": message.priority,
        "KEY": message.key,
        "KIND": message.kind,
        "HEADERS": to_json(message.headers),
        **{f"HEADER_{_variable(name)}": value for name, value in message.headers.items()},
    }
    return {PREFIX + name: _as_text(value) for name, value in facts.items() if value is not None}


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII).upper()


def _as_text(value: object) -> str:
    # An environment variable ends at a NUL; a header may hold one.
    text = value if isinstance(value, str) else to_json(value)
    return text.replace("\0", "\\0")


def run_command(
    command: str,
    message: Message,
    payload_type: str,
    stop: Stop,
    *,
    own_output: bool,
    on_stop: Callable[[], None],
) -> Finished:
    """Run `command` by the shell for one message and wait for its end.

    It runs in a session of its own, so that Ctrl-C in the terminal lets it finish.

    Args:
        command: a command line of the system's shell.
        message: its payload is the command's standard input.
        payload_type: of the queue.
        stop: when this says now, the command is terminated.
        own_output: False sends the command's standard output to our standard error.
        on_stop: called once when `stop` is asked for while the command runs.

    Raises:
        CommandStoppedError: it was terminated on `stop`.
    """
    with tempfile.TemporaryFile() as payload:
        payload.write(payload_bytes(message, payload_type))
        payload.seek(0)
        process = subprocess.Popen(  # noqa: S602 - the operator's own command line
            command,
            shell=True,
            stdin=payload,
            stdout=None if own_output else sys.stderr,
            stderr=subprocess.PIPE,
            env={**os.environ, **message_environment(message)},
            start_new_session=True,
        )
    tail = _ErrorTail(process.stderr)
    _wait(process, stop, on_stop)
    return Finished(process.returncode, tail.text())


def _wait(process: subprocess.Popen[bytes], stop: Stop, on_stop: Callable[[], None]) -> None:
    told = False
    while True:
        try:
            process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if stop.now.is_set():
                stop.awaits_command = True
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
                stop.awaits_command = False
                raise CommandStoppedError from None
            if stop.asked.is_set() and not told:
                told = True
                on_stop()
        else:
            return


class _ErrorTail:
    """Passes a command's standard error on to ours, and remembers its end."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        self._stream = stream
        self._end = b""
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        if self._stream is None:
            return
        with self._stream as stream:
            while chunk := os.read(stream.fileno(), TAIL_BYTES):
                sys.stderr.buffer.write(chunk)
                sys.stderr.buffer.flush()
                self._end = (self._end + chunk)[-TAIL_BYTES:]

    def text(self) -> str:
        """The end of what was written. A background child that holds the stream is not awaited."""
        self._thread.join(DRAIN_SECONDS)
        return self._end.decode(errors="replace").strip()
