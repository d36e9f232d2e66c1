"""The protocol between the benchmark of workloads and each program that it measures.

A contender is a program that is started with the URL of an empty database. It reads one command per
line from its standard input, a JSON object whose ``do`` is its name, and answers each with one JSON
line: the result, or ``{"error": reason}``. Its standard output has nothing else. All times are
seconds of CLOCK_MONOTONIC, which all processes of a machine share.

======================  ===================================  ======================================
do                      with                                 answer
======================  ===================================  ======================================
describe                                                     name, version, durability, delivery,
                                                             fence, can
prepare                                                      (once for a database)
open                                                         (each process)
publish                 first, count, bytes, batch           seconds
load                    first, count, bytes                  seconds
consume, take           batch, count                         seconds, numbers
prepare_groups                                               (once for a database)
publish_groups          first, count, bytes, groups          seconds
consume_groups          batch, seconds                       seconds, numbers, cut_short
work                    threads, count, transactional,       seconds, numbers
                        batch (where it is a choice)
tasks                   tasks, count                         seconds, numbers
latency                 count                                ready, on a line before; received
publish_spaced          first, count, bytes, pause           sent
idle                    seconds                              statements, or null
remaining                                                    count
quit
======================  ===================================  ======================================

``consume``, ``take``, ``work`` and ``tasks`` end when this process had `count` messages or the
queue stayed empty, for `PATIENCE` seconds if a single poll is not enough; the seconds end with the
last message. ``consume_groups`` ends after some seconds. Message n is of group n modulo `groups`,
in another queue.

A contender in Python is a subclass of `Contender` and a call of `serve`; it supports the acts that
it overrides. Others implement the protocol themselves.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import IO, Any, ClassVar

PATIENCE = 0.5
"""How long, in seconds, a queue must be empty before one of several consumers ends."""
HANDLER_SECONDS = 0.005
"""How long the handler of `tasks` sleeps."""
_PAUSE = 0.002
# Drivers quote the statement, which may have thousands of rows.
_REASON = 1_000

Answer = dict[str, Any]


class Contender:
    """One process of a contender; a subclass overrides the acts of its library.

    Args:
        url: of an empty database: ``postgresql://user:password@host:port/name``, ``mysql://…``,
            ``sqlite:////absolute/path`` or one of H2's in queue_over_sql's form.
    """

    name: ClassVar[str]
    durability: str
    """The durability of a commit: ``each commit reaches the disk``, or another description."""
    delivery: ClassVar[str] = "at least once"
    fence: ClassVar[bool] = False
    """Whether a consumer that lost its claim is refused."""
    batches: ClassVar[bool] = True
    """Whether `publish` uses a batch above 1."""
    transactional: ClassVar[bool] = False
    """Whether `work` can run handlers inside the transaction that acknowledges."""
    asynchronous: bool = True
    """Whether `tasks`, if it is overridden, works on this database."""
    cut_short: bool = False
    """Whether the server broke off a statement of `consume_groups`, because it took too long."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.batch = 1
        """How many messages a thread of `work` claims at once, if there is a choice."""
        self.finished_at: float | None = None
        """When `consume` or `take` had its last message, if it waited for more after that."""

    @property
    def version(self) -> str:
        """The library's version."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Create the queue, once per database, in the first process."""

    def open(self) -> None:
        """Connect and warm up; in every process, after `prepare`."""

    def content(self, payload: str) -> Any:
        """Convert a JSON text for `publish` and `load`, before the clock starts."""
        return payload

    def publish(self, payloads: list[Any], batch: int) -> None:
        """Publish contents in order, `batch` of them per call; the caller measures the time."""
        raise NotImplementedError

    def load(self, payloads: list[Any]) -> None:
        """Publish contents in the fastest way; the caller measures the time."""
        raise NotImplementedError

    def consume(self, batch: int, count: int) -> list[int]:
        """Claim and acknowledge `batch` at a time until `count` or none are left; timed outside.

        Returns:
            The numbers of the messages.
        """
        raise NotImplementedError

    def until_empty(self, get: Callable[[int], list[int]], batch: int, count: int) -> list[int]:
        """For `consume` and `take` while other processes may still have claims.

        Args:
            get: claims and acknowledges up to a number of messages; returns their numbers.
            batch: the number for each call.
            count: the total number.
        """
        numbers: list[int] = []
        self.finished_at = time.monotonic()
        while len(numbers) < count:
            got = get(min(batch, count - len(numbers)))
            if got:
                numbers += got
                self.finished_at = time.monotonic()
            elif time.monotonic() - self.finished_at > PATIENCE:
                break
            else:
                time.sleep(_PAUSE)
        return numbers

    def prepare_groups(self) -> None:
        """Create a queue that keeps the order of groups, once per database."""
        raise NotImplementedError

    def publish_groups(self, payloads: list[Any], groups: list[str]) -> None:
        """Publish contents with their groups, in the fastest way; the caller measures the time."""
        raise NotImplementedError

    def consume_groups(self, batch: int, seconds: float) -> list[int]:
        """Claim and acknowledge `batch` at a time, in the order of groups, for some seconds.

        Returns:
            The numbers of the messages, as they came.
        """
        raise NotImplementedError

    def take(self, batch: int, count: int) -> list[int]:
        """Remove `batch` at a time, each in one transaction of the consumer; see `consume`."""
        raise NotImplementedError

    def work(self, threads: int, count: int, transactional: bool) -> tuple[float, list[int]]:
        """Run the library's worker with a handler that records the number.

        Returns:
            The seconds from its start to the last message, and the numbers.
        """
        raise NotImplementedError

    def tasks(self, tasks: int, count: int) -> tuple[float, list[int]]:
        """As `work` on an event loop; the handler sleeps `HANDLER_SECONDS`."""
        raise NotImplementedError

    def latency(self, count: int, ready: Callable[[], None]) -> dict[int, float]:
        """Wait for messages in the library's default way, and take `count` of them.

        Args:
            count: how many messages will come.
            ready: call it when the consumer is waiting.

        Returns:
            The monotonic time at which the handler got each number.
        """
        raise NotImplementedError

    def idle(self, seconds: float) -> int | None:
        """Run a worker on the empty queue.

        Returns:
            How many statements it ran, if known; otherwise the server is asked.
        """
        raise NotImplementedError

    def remaining(self) -> int:
        """How many messages are left in the queue, including claimed ones."""
        raise NotImplementedError

    def close(self) -> None:
        """Disconnect."""


def payload_of(number: int, size: int) -> str:
    """The JSON text of message `number`, padded to `size` bytes."""
    text = json.dumps({"n": number, "fill": ""}, separators=(",", ":"))
    return text[:-2] + "x" * (size - len(text)) + text[-2:]


def number_of(payload: str | bytes | Mapping[str, Any]) -> int:
    """The number of a message, from its payload as text or object."""
    content = json.loads(payload) if isinstance(payload, str | bytes) else payload
    return int(content["n"])


def serve(contender: type[Contender]) -> None:
    """Answer the commands on standard input until `quit` or its end."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    serving = _Serving(contender(sys.argv[1]), answers)
    for line in sys.stdin:
        if serving.answer(json.loads(line)):
            break


class _Serving:
    """Dispatches commands to the methods of a contender."""

    def __init__(self, contender: Contender, answers: IO[str]) -> None:
        self._contender = contender
        self._answers = answers

    def answer(self, command: Mapping[str, Any]) -> bool:
        """Answer one command; True when it was the last."""
        arguments = {name: value for name, value in command.items() if name != "do"}
        try:
            self._write(getattr(self, f"_do_{command['do']}")(**arguments))
        except Exception as error:  # noqa: BLE001 - whatever a library raises is the parent's matter
            traceback.print_exc()
            self._write({"error": f"{type(error).__name__}: {error}"[:_REASON]})
        return bool(command["do"] == "quit")

    def _write(self, answer: Answer) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    def _do_describe(self) -> Answer:
        facts = ("name", "version", "durability", "delivery", "fence")
        return {**{fact: getattr(self._contender, fact) for fact in facts}, "can": self._can()}

    def _can(self) -> list[str]:
        kind = type(self._contender)
        gets = ("consume", "consume_groups", "take", "work", "tasks")
        acts = ("publish", "load", *gets, "latency", "idle")
        can = [act for act in acts if getattr(kind, act) is not getattr(Contender, act)]
        if "tasks" in can and not self._contender.asynchronous:
            can.remove("tasks")
        if "publish" in can and kind.batches:
            can.append("publish_many")
        if "work" in can and kind.transactional:
            can.append("work_transactional")
        return can

    def _do_prepare(self) -> Answer:
        self._contender.prepare()
        return {}

    def _do_open(self) -> Answer:
        self._contender.open()
        return {}

    def _do_publish(self, first: int, count: int, bytes: int, batch: int) -> Answer:  # noqa: A002
        payloads = self._contents(first, count, bytes)
        begun = time.monotonic()
        self._contender.publish(payloads, batch)
        return {"seconds": time.monotonic() - begun}

    def _do_load(self, first: int, count: int, bytes: int, batch: int = 0) -> Answer:  # noqa: A002
        del batch  # the library's own matter
        payloads = self._contents(first, count, bytes)
        begun = time.monotonic()
        self._contender.load(payloads)
        return {"seconds": time.monotonic() - begun}

    def _contents(self, first: int, count: int, size: int) -> list[Any]:
        numbers = range(first, first + count)
        return [self._contender.content(payload_of(number, size)) for number in numbers]

    def _do_consume(self, batch: int, count: int) -> Answer:
        return self._timed(self._contender.consume, batch, count)

    def _do_prepare_groups(self) -> Answer:
        self._contender.prepare_groups()
        return {}

    def _do_publish_groups(self, first: int, count: int, bytes: int, groups: int) -> Answer:  # noqa: A002
        payloads = self._contents(first, count, bytes)
        names = [f"g{number % groups}" for number in range(first, first + count)]
        begun = time.monotonic()
        self._contender.publish_groups(payloads, names)
        return {"seconds": time.monotonic() - begun}

    def _do_consume_groups(self, batch: int, seconds: float) -> Answer:
        begun = time.monotonic()
        numbers = self._contender.consume_groups(batch, seconds)
        seconds, cut_short = time.monotonic() - begun, self._contender.cut_short
        return {"seconds": seconds, "numbers": numbers, "cut_short": cut_short}

    def _do_take(self, batch: int, count: int) -> Answer:
        return self._timed(self._contender.take, batch, count)

    def _timed(self, consume: Callable[[int, int], list[int]], batch: int, count: int) -> Answer:
        self._contender.finished_at = None
        begun = time.monotonic()
        numbers = consume(batch, count)
        ended = self._contender.finished_at or time.monotonic()
        return {"seconds": ended - begun, "numbers": numbers}

    def _do_work(
        self, threads: int, count: int, transactional: bool = False, batch: int = 1
    ) -> Answer:
        self._contender.batch = batch
        seconds, numbers = self._contender.work(threads, count, transactional)
        return {"seconds": seconds, "numbers": numbers}

    def _do_tasks(self, tasks: int, count: int) -> Answer:
        seconds, numbers = self._contender.tasks(tasks, count)
        return {"seconds": seconds, "numbers": numbers}

    def _do_latency(self, count: int) -> Answer:
        received = self._contender.latency(count, lambda: self._write({"ready": True}))
        return {"received": {str(number): moment for number, moment in received.items()}}

    def _do_publish_spaced(self, first: int, count: int, bytes: int, pause: float) -> Answer:  # noqa: A002
        sent = {}
        for number, content in enumerate(self._contents(first, count, bytes), first):
            self._contender.publish([content], 1)
            sent[str(number)] = time.monotonic()
            time.sleep(pause)
        return {"sent": sent}

    def _do_idle(self, seconds: float) -> Answer:
        return {"statements": self._contender.idle(seconds)}

    def _do_remaining(self) -> Answer:
        return {"count": self._contender.remaining()}

    def _do_quit(self) -> Answer:
        self._contender.close()
        return {}
