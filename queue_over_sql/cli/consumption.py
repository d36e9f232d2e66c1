"""The loop behind `consume`: claim, handle, settle, until a limit or a signal ends it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from queue_over_sql import ClaimLost, DatabaseUnavailable, Message, Queue
from queue_over_sql.cli.execution import CommandStoppedError, run_command
from queue_over_sql.cli.output import Output
from queue_over_sql.cli.signals import Stop
from queue_over_sql.cli.wire import payload_line
from queue_over_sql.json_lines import message_fields
from queue_over_sql.leases import LeaseKeeper

# One look may last this long, so that a signal is noticed soon.
LOOK_SECONDS = 0.25
LONGEST_PAUSE = 30.0


@dataclass(frozen=True)
class Limits:
    """How much to take: `count` messages (None: all); `wait` seconds for one (None: for ever)."""

    count: int | None
    wait: float | None
    batch: int
    lease: float | None


@dataclass
class Tally:
    """What became of the messages that were taken."""

    delivered: int = 0
    done: int = 0
    failed: int = 0
    lost: int = 0
    paused: bool = False


class Handler(Protocol):
    """What is done with a message."""

    def handle(self, message: Message) -> str | None:
        """Do the work; returns None for success, else the reason of the failure."""
        ...


class Printing:
    """Writes each payload, or with ``--json`` each message, on a line of standard output."""

    def __init__(self, output: Output, queue: Queue) -> None:
        self._output = output
        self._payload_type = queue.settings.payload

    def handle(self, message: Message) -> None:
        """Print `message` and flush it."""
        if self._output.machine:
            self._output.record(message_fields(message))
        else:
            self._output.line(payload_line(message, self._payload_type))


class Running:
    """Runs a command for each message; with ``--json`` reports each on standard output."""

    def __init__(self, output: Output, queue: Queue, command: str, stop: Stop) -> None:
        self._output = output
        self._payload_type = queue.settings.payload
        self._command = command
        self._stop = stop

    def handle(self, message: Message) -> str | None:
        """Run the command; its failure in words, or None."""
        finished = run_command(
            self._command,
            message,
            self._payload_type,
            self._stop,
            own_output=not self._output.machine,
            on_stop=self._say_that_it_stops,
        )
        failure = finished.error if finished.exit_code else None
        result: dict[str, Any] = {"exit_code": finished.exit_code, "error": failure}
        self._output.record(message_fields(message) | result)
        if failure is not None:
            self._output.note(f"Message {message.id}, attempt {message.attempt}: {failure}")
        return failure

    def _say_that_it_stops(self) -> None:
        self._output.note("Finishing what runs; once more stops at once.")


class Consumption:
    """Takes messages of `queue` within `limits`, hands each to `handler` and settles it."""

    def __init__(
        self,
        queue: Queue,
        handler: Handler,
        limits: Limits,
        stop: Stop,
        warn: Callable[[str], None],
    ) -> None:
        self._queue = queue
        self._handler = handler
        self._limits = limits
        self._stop = stop
        self._warn = warn
        self._tally = Tally()
        self._looked_for_a_pause = False
        self._keeper = LeaseKeeper()

    def run(self) -> Tally:
        """Work until the count is reached, no message comes in time, or a stop is asked for."""
        try:
            while (size := self._next_size()) > 0:
                messages = self._claim(size)
                if not messages:
                    break
                self._work(messages)
        finally:
            self._keeper.stop()
        return self._tally

    def _next_size(self) -> int:
        if self._stop.asked.is_set():
            return 0
        if self._limits.count is None:
            return self._limits.batch
        return min(self._limits.batch, self._limits.count - self._tally.delivered)

    def _claim(self, size: int) -> list[Message]:
        wait = math.inf if self._limits.wait is None else self._limits.wait
        deadline = time.monotonic() + wait
        pause = 1.0
        while not self._stop.asked.is_set():
            left = max(0.0, deadline - time.monotonic())
            try:
                look = min(left, LOOK_SECONDS)
                messages = self._queue.consume(size, lease=self._limits.lease, wait=look)
            except DatabaseUnavailable as error:
                if self._limits.wait is not None:
                    raise
                self._warn(f"{error} Trying again in {pause:.0f} s.")
                self._stop.asked.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            if not messages:
                self._look_for_a_pause()
            if messages or left <= 0:
                return messages
        return []

    def _look_for_a_pause(self) -> None:
        # Once only: it counts messages, which is more than a look for one costs.
        if not self._looked_for_a_pause:
            self._looked_for_a_pause = True
            self._tally.paused = self._queue.stats().paused
            if self._tally.paused:
                self._warn(f"Queue {self._queue.name} is paused.")

    def _work(self, messages: list[Message]) -> None:
        left = list(messages)
        self._tally.delivered += len(messages)
        try:
            # It leaves alone what is settled meanwhile.
            with self._keeper.keeping(self._queue, messages):
                while left and not self._stop.asked.is_set():
                    failure = self._handler.handle(left[0])
                    self._settle(left.pop(0), failure)
        except CommandStoppedError:
            self._warn("Stopped at once; the message goes back.")
        finally:
            self._give_back(left)

    def _settle(self, message: Message, failure: str | None) -> None:
        try:
            if failure is None:
                message.ack()
                self._tally.done += 1
            else:
                message.nack(failure)
                self._tally.failed += 1
        except ClaimLost as error:
            self._warn(str(error))
            self._tally.lost += 1

    def _give_back(self, messages: list[Message]) -> None:
        if not messages:
            return
        self._tally.delivered -= len(messages)
        try:
            self._queue.release(messages)
        except ClaimLost as error:
            self._warn(str(error))
