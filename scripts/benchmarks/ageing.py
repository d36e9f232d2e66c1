"""Shared by the benchmarks of ageing: queues with an account, processes, and statistics.

Each message is ``{"n": number, "fill": "x…"}`` with ``BYTES`` bytes. A queue numbers its messages,
and at the end of a run each number must have come exactly once.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from statistics import mean, median
from typing import Any, Concatenate, Final, ParamSpec

from rich.progress import Progress

from queue_over_sql import Message, Queue, QueueService
from queue_over_sql.claiming import claimer as claiming
from queue_over_sql.claiming.low_watermark import LowWatermark
from queue_over_sql.service import parts_of
from queue_over_sql.testing.servers import DEFAULT_ENGINES
from scripts.benchmarks.harness import ENGINES, progress_bar, run_alone, write_result

BYTES: Final = 200
_EMPTY = len(json.dumps({"n": 1_000_000, "fill": ""}, separators=(",", ":")))
FILL: Final = "x" * (BYTES - _EMPTY)
SETTLE: Final = {"postgresql": ("VACUUM ANALYZE", "CHECKPOINT")}
P = ParamSpec("P")

Figures = dict[str, float]


def figures(seconds: Sequence[float]) -> Figures:
    """Statistics of samples in milliseconds: median, mean, 99th percentile, maximum."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    found = {
        "median": median(ordered),
        "mean": mean(ordered),
        "p99": ordered[round(last * 0.99)],
        "max": ordered[-1],
    }
    return {"count": len(ordered)} | {name: round(1000 * s, 3) for name, s in found.items()}


def message(number: int) -> dict[str, Any]:
    """The payload for a number."""
    return {"n": number, "fill": FILL}


@dataclass
class Account:
    """The published and the received messages.

    Attributes:
        published: how many; their numbers begin at 0.
        numbers: the received numbers, in order.
    """

    published: int = 0
    numbers: list[int] = field(default_factory=list)

    def new(self, count: int) -> Iterable[dict[str, Any]]:
        """The payloads of ``count`` further messages."""
        first, self.published = self.published, self.published + count
        return (message(number) for number in range(first, self.published))

    def check(self, where: str, left: int) -> dict[str, int]:
        """Check the account at the end, with ``left`` messages in the queue, the newest ones.

        Raises:
            SystemExit: a message was lost or came twice.
        """
        came = set(self.numbers)
        expected = self.published - left
        twice = len(self.numbers) - len(came)
        lost = len(set(range(expected)) - came)
        if twice or lost or len(came) != expected:
            msg = f"{where}: of {self.published} {lost=}, {twice=}, {left=}, {len(came)} came"
            raise SystemExit(msg)
        return {"published": self.published, "lost": lost, "twice": twice, "left": left}


@dataclass(frozen=True)
class Taken:
    """The duration of each claim and each ack, in seconds, and the received numbers."""

    numbers: list[int] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)
    acks: list[float] = field(default_factory=list)

    def add(self, other: Taken) -> None:
        """Add the results of another consumer."""
        self.numbers.extend(other.numbers)
        self.claims.extend(other.claims)
        self.acks.extend(other.acks)

    @property
    def both(self) -> list[float]:
        """Claim and ack of the same messages, in seconds."""
        return [claim + ack for claim, ack in zip(self.claims, self.acks, strict=True)]

    def summary(self) -> dict[str, Figures]:
        """Statistics of claims, and of claims with their acks."""
        return {"claim": figures(self.claims), "claim_ack": figures(self.both)}


def claim_and_ack(queue: Queue, batch: int, times: int) -> Taken:
    """Claim and ack a number of times, or until a claim finds nothing, which does not count."""
    taken = Taken()
    for _ in range(times):
        began = time.perf_counter()
        messages = queue.consume(batch)
        claimed = time.perf_counter()
        if not messages:
            break
        queue.ack(messages)
        taken.acks.append(time.perf_counter() - claimed)
        taken.claims.append(claimed - began)
        taken.numbers.extend(number_of(each) for each in messages)
    return taken


def publish_singly(queue: Queue, payloads: Iterable[Any], priority: int = 0) -> list[float]:
    """Publish one by one; returns the duration of each in seconds."""
    seconds = []
    for payload in payloads:
        began = time.perf_counter()
        queue.publish(payload, priority=priority)
        seconds.append(time.perf_counter() - began)
    return seconds


def number_of(delivered: Message) -> int:
    """The number of a message."""
    return int(delivered.payload["n"])


class Unmarked(LowWatermark):
    """No low watermark: each claim searches from the beginning."""

    def bound(self) -> int:
        """Always a full look."""
        return 0


def leave_out_marks() -> None:
    """Let all queues that this process opens from now on work without the watermark."""
    vars(claiming)["LowWatermark"] = Unmarked


class Helper:
    """A process with its own service and queue, which runs functions on that queue.

    Args:
        url: of the database; the queue ``jobs`` exists.
        marked: whether it uses the low watermark.
        notify: whether it notifies others of messages, and gets their notifications.
    """

    def __init__(self, url: str, *, marked: bool = True, notify: bool = True) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, url, marked, notify), daemon=True
        )
        self._process.start()
        theirs.close()

    def start(
        self, function: Callable[Concatenate[Queue, P], Any], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Start to run a function of a module on the queue."""
        self._pipe.send((function, args, kwargs))

    def result(self) -> Any:
        """Wait for its result.

        Raises:
            SystemExit: it failed, or the process died.
        """
        try:
            result, error = self._pipe.recv()
        except EOFError:
            result, error = None, "the process died"
        if error is not None:
            raise SystemExit(f"a helper failed: {error}")
        return result

    def stop(self) -> None:
        """End the process, gracefully if possible."""
        try:
            self._pipe.send(None)
        except OSError:
            self._process.kill()
        self._process.join(20)
        self._process.kill()


def _serve(pipe: Pipe, url: str, marked: bool, notify: bool) -> None:
    if not marked:
        leave_out_marks()
    with QueueService(url, notify=notify) as service:
        queue = service.queue("jobs")
        while (wanted := pipe.recv()) is not None:
            function, args, kwargs = wanted
            answer: tuple[Any, str | None]
            try:
                answer = (function(queue, *args, **kwargs), None)
            except Exception as error:  # noqa: BLE001 - it is told to who asked
                answer = (None, f"{type(error).__name__}: {error}")
            pipe.send(answer)


def together(
    helpers: Sequence[Helper],
    function: Callable[Concatenate[Queue, P], Any],
    *args: P.args,
    **kwargs: P.kwargs,
) -> list[Any]:
    """Run a function in all helpers at once; returns their results."""
    for helper in helpers:
        helper.start(function, *args, **kwargs)
    return [helper.result() for helper in helpers]


def helpers_of(
    stack: ExitStack, url: str, count: int, *, marked: bool = True, notify: bool = True
) -> list[Helper]:
    """A number of helpers on one database, ended together with the stack."""
    helpers = [Helper(url, marked=marked, notify=notify) for _ in range(count)]
    for helper in helpers:
        stack.callback(helper.stop)
    return helpers


def settle(service: QueueService) -> None:
    """Let the server do now the maintenance that new rows would soon cause."""
    run_alone(service, SETTLE.get(parts_of(service).connections.engine.dialect.name, ()))


def version_of(service: QueueService) -> str:
    """The version of the engine."""
    version = parts_of(service).connections.engine.dialect.server_version_info or ()
    return ".".join(str(part) for part in version)


# ---------------------------------------------------------------- the command


def parser_of(description: str | None, *, engines: Sequence[str] = DEFAULT_ENGINES) -> Parser:
    """A parser with the options of all these benchmarks."""
    parser = Parser(description=description, formatter_class=_Raw)
    parser.add_argument("--engines", default=",".join(engines), help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try whether it runs")
    parser.add_argument("--markdown", action="store_true", help="print the last result instead")
    return parser


class Parser(argparse.ArgumentParser):
    """Checks engines, and gives the command to run the same again."""

    def options(self, quick: dict[str, Any]) -> argparse.Namespace:
        """The options; with ``--quick``, other defaults."""
        options = self.parse_args()
        for name, value in quick.items() if options.quick else ():
            if getattr(options, name) == self.get_default(name):
                setattr(options, name, value)
        if unknown := set(options.engines.split(",")) - set(ENGINES):
            self.error(f"no such engine: {', '.join(sorted(unknown))}")
        return options

    def command(self, name: str, options: argparse.Namespace) -> str:
        """The command that runs the same."""
        given = {k: v for k, v in vars(options).items() if k not in {"quick", "markdown"}}
        words = [
            f"--{key.replace('_', '-')}" + ("" if value is True else f" {value}")
            for key, value in given.items()
            if value is not False
        ]
        return f"python -m scripts.benchmarks.{name} {' '.join(words)}"

    def measure_each(
        self,
        name: str,
        options: argparse.Namespace,
        sizes: dict[str, Any],
        measure: Callable[[str, Progress], dict[str, Any]],
        file: str | None = None,
    ) -> None:
        """Measure one engine after another, and write the result after each.

        Args:
            name: of the benchmark.
            options: the given options.
            sizes: further facts for the result file.
            measure: gets an engine and the progress bar; returns the values for the result file.
            file: the name of the result file; default: that of the benchmark.
        """
        result: dict[str, Any] = {**sizes, "engines": {}}
        with progress_bar() as progress:
            for engine in options.engines.split(","):
                result["engines"][engine] = measure(engine, progress)
                path = write_result(file or name, self.command(name, options), result)
                progress.print(f"{engine} is in {path}")


class _Raw(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the description's layout, and shows defaults."""


def numbers(text: str) -> list[int]:
    """Parse the numbers of an option."""
    return [int(number) for number in text.split(",")]
