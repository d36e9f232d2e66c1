"""The command `consume`: print messages, or run a command for each."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from queue_over_sql import ClaimLost, DatabaseUnavailable, Message
from queue_over_sql.cli.lines import payload_bytes, payload_line
from queue_over_sql.cli.options import (
    MESSAGES_PANEL,
    ConsumerTimeoutOption,
    LeaseOption,
    QueueName,
    duration,
    number,
)
from queue_over_sql.cli.output import Output
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.cli.signals import ExitCode, Stop, stop_on_signals
from queue_over_sql.values.backoff import Backoff
from queue_over_sql.values.json_lines import message_fields, to_json

if TYPE_CHECKING:
    from queue_over_sql import Queue
    from queue_over_sql.inside.workers import LeaseKeeper

PREFIX = "QUEUE_OVER_SQL_"
FACTS = {
    "MESSAGE_ID": "id",
    **{name.upper(): name for name in ("queue", "attempt", "max_attempts", "priority")},
    **{name.upper(): name for name in ("key", "kind", "group", "headers")},
}
"""The attribute of the message that each variable shows."""
OF_HEADER = "HEADER_"
LARGEST_VARIABLE = 131_072
"""Linux starts no command with a larger variable, its name, ``=`` and final NUL included."""
CANNOT_START = 126
"""The exit code that a shell gives a command that cannot be started."""
TAIL_BYTES = 4096
POLL_SECONDS = 0.1
DRAIN_SECONDS = 1.0


class CommandStoppedError(Exception):
    """The command was terminated because a second signal asked for an immediate stop."""


@dataclass(frozen=True)
class Finished:
    """The result of a command."""

    exit_code: int
    error_tail: str

    @property
    def error(self) -> str:
        """The reason for the nack: the exit code or signal, and the end of standard error."""
        if self.exit_code < 0:
            how = f"killed by {_signal_name(-self.exit_code)}"
        else:
            how = f"exit code {self.exit_code}"
        return f"{how}: {self.error_tail}" if self.error_tail else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        # Python names only the first and the last of the real-time signals.
        return f"signal {number}"


def message_environment(message: Message) -> dict[str, bytes]:
    """The environment variables that describe `message` to a command; see `consume --help`."""
    facts: Mapping[str, object] = {
        **{name: getattr(message, attribute) for name, attribute in FACTS.items()},
        **{f"{OF_HEADER}{_variable(name)}": value for name, value in message.headers.items()},
    }
    return {PREFIX + name: _encoded(value) for name, value in facts.items() if value is not None}


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII).upper()


def _encoded(value: object) -> bytes:
    """Encode a value for the environment, whatever characters it has and the locale lacks."""
    codec = sys.getfilesystemencoding()
    if isinstance(value, str):
        # An environment variable ends at a NUL, which a header may contain.
        return value.replace("\0", "\\0").encode(codec, "backslashreplace")
    try:
        return to_json(value).encode(codec)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def _inherited() -> dict[str, str]:
    """Our own environment, without the facts of a message of an outer `consume --exec`."""
    outer = {PREFIX + name for name in FACTS}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in outer and not name.startswith(PREFIX + OF_HEADER)
    }


def run_command(
    command: str,
    message: Message,
    payload_type: str,
    stop: Stop,
    *,
    own_output: bool,
    note: Callable[[str], None],
) -> Finished:
    """Run `command` in a shell, with the payload as its standard input, and wait until it ends.

    It runs in its own session, so that Ctrl-C in the terminal does not reach it. `note` tells the
    user what happens meanwhile. Without `own_output` its standard output goes to our standard
    error. If the system starts no command with the facts of this message, the result is a failure.

    Raises:
        CommandStoppedError: an immediate stop was requested, and the command was terminated.
    """
    try:
        facts = message_environment(message)
        for name in [name for name in facts if _is_too_large(name, facts[name])]:
            del facts[name]
            note(f"Message {message.id}: {name} is too large for an environment variable.")
        variables: dict[str, str | bytes] = {**_inherited(), **facts}
        with tempfile.TemporaryFile() as payload:
            payload.write(payload_bytes(message, payload_type))
            payload.seek(0)
            process = subprocess.Popen(  # noqa: S602 - the operator's own command line
                command,
                shell=True,
                stdin=payload,
                stdout=None if own_output else sys.stderr,
                stderr=subprocess.PIPE,
                env=variables,
                start_new_session=True,
            )
    except (OSError, UnicodeError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno != errno.E2BIG:
            raise
        return Finished(CANNOT_START, f"the command cannot be started: {error}")
    tail = _ErrorTail(process.stderr)
    _wait(process, stop, lambda: note("Draining; send the signal again to stop immediately."))
    return Finished(process.returncode, tail.text())


def _is_too_large(name: str, value: bytes) -> bool:
    return len(name) + len(value) + len("=\0") > LARGEST_VARIABLE


def _wait(process: subprocess.Popen[bytes], stop: Stop, on_stop: Callable[[], None]) -> None:
    called = False
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
            return
        if stop.now.is_set():
            stop.awaits_command = True
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            stop.awaits_command = False
            raise CommandStoppedError
        if stop.requested.is_set() and not called:
            called = True
            on_stop()


class _ErrorTail:
    """Copies a command's standard error to ours, and remembers its end."""

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
        """The end of the output. It does not wait for a background child that holds the stream."""
        self._thread.join(DRAIN_SECONDS)
        return self._end.decode(errors="replace").strip()


# The limit of one wait, so that a signal is noticed soon.
LOOK_SECONDS = 0.25
LONGEST_PAUSE = 30.0


@dataclass(frozen=True)
class Limits:
    """Claim `count` messages at most (None: all); wait `wait` seconds for one (None: forever)."""

    count: int | None
    wait: float | None
    batch: int
    lease: float | None


@dataclass
class Tally:
    """Counts the messages that succeeded and that failed."""

    delivered: int = 0
    done: int = 0
    failed: int = 0
    paused: bool = False


Handler = Callable[[Message], str | None]
"""Processes a message: returns None for success, or the reason for the failure."""


def printing(output: Output, queue: Queue) -> Handler:
    """Write each message's payload, or with ``--json`` the whole message, as a line of output."""
    payload_type = queue.settings.payload

    def handle(message: Message) -> None:
        if output.machine:
            output.record(message_fields(message))
        else:
            output.line(payload_line(message, payload_type))

    return handle


def running(output: Output, queue: Queue, command: str, stop: Stop) -> Handler:
    """Run a command for each message; with ``--json`` also report each one on standard output."""
    payload_type = queue.settings.payload

    def handle(message: Message) -> str | None:
        finished = run_command(
            command,
            message,
            payload_type,
            stop,
            own_output=not output.machine,
            note=output.note,
        )
        failure = finished.error if finished.exit_code else None
        result: dict[str, Any] = {"exit_code": finished.exit_code, "error": failure}
        output.record(message_fields(message) | result)
        if failure is not None:
            output.note(f"Message {message.id}, attempt {message.attempt}: {failure}")
        return failure

    return handle


def _lease_keeper() -> LeaseKeeper:
    from queue_over_sql.inside.workers import LeaseKeeper

    return LeaseKeeper()


@dataclass
class Consumption:
    """Claims messages of `queue` within `limits`, calls `handler` for each and settles it."""

    queue: Queue
    handler: Handler
    limits: Limits
    stop: Stop
    warn: Callable[[str], None]
    is_paused: Callable[[], bool]
    tally: Tally = field(default_factory=Tally)
    keeper: LeaseKeeper = field(default_factory=_lease_keeper)
    looked_for_a_pause: bool = False

    def run(self) -> Tally:
        """Work until the count is reached, no message arrives in time, or a stop is requested."""
        try:
            while (size := self._next_size()) > 0:
                messages = self._claim(size)
                if not messages:
                    break
                self._work(messages)
        finally:
            self.keeper.stop()
        return self.tally

    def _next_size(self) -> int:
        if self.stop.requested.is_set():
            return 0
        if self.limits.count is None:
            return self.limits.batch
        return min(self.limits.batch, self.limits.count - self.tally.delivered)

    def _claim(self, size: int) -> list[Message]:
        wait = math.inf if self.limits.wait is None else self.limits.wait
        deadline = time.monotonic() + wait
        backoff = Backoff(1.0, LONGEST_PAUSE)
        while not self.stop.requested.is_set():
            left = max(0.0, deadline - time.monotonic())
            try:
                look = min(left, LOOK_SECONDS)
                messages = self.queue.consume(size, lease=self.limits.lease, wait=look)
                if not messages:
                    self._look_for_a_pause()
            except DatabaseUnavailable as error:
                self._outlast(error, backoff)
                continue
            if messages or left <= 0:
                return messages
        return []

    def _outlast(self, error: DatabaseUnavailable, backoff: Backoff) -> None:
        """Wait for the next try with --follow; without it an outage ends the command."""
        if self.limits.wait is not None:
            raise error
        pause = backoff.pause()
        self.warn(f"{error} Retrying in {pause:.0f} s.")
        self.stop.requested.wait(pause)

    def _look_for_a_pause(self) -> None:
        if not self.looked_for_a_pause:
            self.tally.paused = self.is_paused()
            self.looked_for_a_pause = True
            if self.tally.paused:
                self.warn(f"Queue {self.queue.name} is paused.")

    def _work(self, messages: list[Message]) -> None:
        left = list(messages)
        self.tally.delivered += len(messages)
        try:
            # It skips messages that were settled meanwhile.
            with self.keeper.keeping(self.queue, messages):
                while left and not self.stop.requested.is_set():
                    failure = self.handler(left[0])
                    self._settle(left.pop(0), failure)
        except CommandStoppedError:
            self.warn("Stopped immediately; the message was released.")
        finally:
            self._give_back(left)

    def _settle(self, message: Message, failure: str | None) -> None:
        if failure is None:
            self.tally.done += self._settles(message.ack)
        else:
            self.tally.failed += self._settles(lambda: message.nack(failure))

    def _give_back(self, messages: list[Message]) -> None:
        if messages:
            self.tally.delivered -= len(messages)
            self._settles(lambda: self.queue.release(messages))

    def _settles(self, settle: Callable[[], None]) -> bool:
        """Settle, with --follow also after an outage; returns False if the claim is lost."""
        backoff = Backoff(1.0, LONGEST_PAUSE)
        while True:
            try:
                settle()
            except ClaimLost as error:
                self.warn(str(error))
                return False
            except DatabaseUnavailable as error:
                if self.stop.requested.is_set():
                    raise
                self._outlast(error, backoff)
            else:
                return True


commands = Commands(MESSAGES_PANEL)


@commands.add("consume")
def consume(
    session: CommandSession,
    *,
    queue: QueueName,
    count: Annotated[int | None, number("Stop after N messages.", "--count", "-n")] = None,
    exec_: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="Run this shell command for each message, with the payload on its standard "
            "input. Exit code 0 acknowledges the message; any other code is a failed attempt.",
        ),
    ] = None,
    wait: Annotated[
        float, duration("Stop when no message has arrived for this long.", show_default="0")
    ] = 0.0,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep running when the queue is empty.")
    ] = False,
    batch: Annotated[
        int, number("Claim this many messages at a time. Larger batches are faster.")
    ] = 1,
    lease: LeaseOption = None,
    consumer_timeout: ConsumerTimeoutOption = 30.0,
) -> None:
    """Claim messages and print their payloads, or run a command for each.

    It acknowledges each message that it printed, or whose command succeeded. Without --count it
    consumes all due messages and then stops (see --wait and --follow). It extends leases while a
    command runs. On SIGINT or SIGTERM it finishes the current message and releases the others. A
    second signal stops it immediately and releases the current message, too.

    On a terminal, control characters in a text payload are shown as text. A pipe or a file gets the
    payload unchanged.

    The --exec command gets environment variables. QUEUE_OVER_SQL_QUEUE is the queue,
    QUEUE_OVER_SQL_MESSAGE_ID the id of the message, and QUEUE_OVER_SQL_HEADER_name the header with
    this name. More variables have the prefix QUEUE_OVER_SQL_: ATTEMPT, MAX_ATTEMPTS, PRIORITY, KEY,
    KIND, GROUP and HEADERS (all headers as JSON). If the command fails, the end of its standard
    error becomes the message's last_error.

    With --json, consume prints one JSON line per message, with its result. The standard output of
    the --exec command then goes to standard error.

    Exit code 3: there was no message. Exit code 5: a command failed.
    """
    from queue_over_sql import inside

    limits = Limits(count=count, wait=None if follow else wait, batch=batch, lease=lease)
    made = session.service(consumer_timeout=consumer_timeout)
    with stop_on_signals(at_once=True) as stop, made as service:
        source = service.queue(queue)
        handler = (
            printing(session.output, source)
            if exec_ is None
            else running(session.output, source, exec_, stop)
        )
        tally = Consumption(
            source,
            handler,
            limits,
            stop,
            session.output.note,
            lambda: inside.record(service, source.name).paused,
        ).run()
    if tally.delivered == 0 and not stop.requested.is_set():
        if not tally.paused:
            session.output.note(f"No message in queue {queue}.")
        raise typer.Exit(ExitCode.NOTHING)
    if exec_ is not None:
        session.output.note(f"{tally.done:,} done, {tally.failed:,} failed.")
    if tally.failed:
        raise typer.Exit(ExitCode.INCOMPLETE)
