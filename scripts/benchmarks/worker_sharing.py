"""The share of time that a worker's threads spend in handlers, and how workers share the work.

Two measurements, on one engine after another, in rounds. First, a worker of 8 threads handles
messages of 5 ms each: the share of the threads' time, from the first call to the end of the last,
that was spent in the handler. Second, 4 workers of one thread each, in separate processes, handle
messages of up to 1 s, log-normally distributed: the time until the last one has finished, divided
by the time of perfect sharing. All messages are published at once, while the workers wait for them.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from statistics import median
from typing import Any, Final, NamedTuple

from queue_over_sql import Message, Queue, QueueService
from scripts.benchmarks.ageing import Helper, helpers_of, parser_of, version_of
from scripts.benchmarks.contenders.ours import run_until_idle
from scripts.benchmarks.harness import (
    TITLES,
    databases_of,
    origin_of,
    read_result,
)

NAME: Final = "worker_sharing"
THREADS: Final = 8
SHORT: Final = 0.005
WORKERS: Final = 4
LONGEST: Final = 1.0
# The median of the long calls, and their spread: their mean is about 0.2 s.
_MEDIAN, _SPREAD = 0.12, 1.0
# How long workers wait for their first message, and for each next one.
_READY, _PATIENCE = 1.0, 3.0


class Call(NamedTuple):
    """One call of a handler, by the machine's monotonic clock."""

    number: int
    began: float
    ended: float


def work(queue: Queue, url: str, threads: int) -> list[Call]:
    """Run a worker until no more messages come."""
    calls: list[Call] = []
    with QueueService(url) as service:
        worker = service.worker(concurrency=threads)

        @worker.handle(queue.name)
        def handle(message: Message) -> None:
            began = time.monotonic()
            time.sleep(message.payload["seconds"])
            calls.append(Call(message.payload["number"], began, time.monotonic()))

        run_until_idle(
            worker, lambda: calls[-1].ended if calls else None, _READY + _PATIENCE, _PATIENCE
        )
    return calls


def handled(helpers: list[Helper], queue: Queue, url: str, threads: int, takes: list[float]) -> Any:
    """Let workers handle messages of these durations; returns all calls.

    Raises:
        SystemExit: a message was lost, or handled twice.
    """
    for helper in helpers:
        helper.start(work, url, threads)
    time.sleep(_READY)
    queue.publish_many([{"number": i, "seconds": seconds} for i, seconds in enumerate(takes)])
    calls = [Call(*call) for helper in helpers for call in helper.result()]
    if sorted(call.number for call in calls) != list(range(len(takes))):
        raise SystemExit(f"{len(takes)} were published, {len(calls)} were handled")
    return calls


def long_takes(count: int, seed: int) -> list[float]:
    """The durations of messages in seconds; the same for the same seed."""
    luck = random.Random(seed)  # noqa: S311 - spreads, guards nothing
    return [min(LONGEST, _MEDIAN * luck.lognormvariate(0, _SPREAD)) for _ in range(count)]


def measure(engine: str, rounds: int, short: int, long: int) -> dict[str, Any]:
    """Run both measurements on one engine."""
    useful, finish = [], []
    with ExitStack() as stack:
        url = stack.enter_context(databases_of(engine))(NAME)
        service = stack.enter_context(QueueService(url))
        queue = service.create_queue("jobs", archive="none")
        helpers = helpers_of(stack, url, WORKERS)
        for turn in range(rounds):
            calls = handled(helpers[:1], queue, url, THREADS, [SHORT] * short)
            useful.append(sum(c.ended - c.began for c in calls) / (THREADS * _span(calls)))
            calls = handled(helpers, queue, url, 1, long_takes(long, turn))
            perfect = sum(c.ended - c.began for c in calls) / WORKERS
            finish.append(_span(calls) / perfect)
        return {"version": version_of(service), "useful": useful, "finish": finish}


def _span(calls: list[Call]) -> float:
    return max(call.ended for call in calls) - min(call.began for call in calls)


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    lines = [
        "## How workers share the work",
        "",
        f"""\
*Useful* is the share of their time that the {THREADS} threads of a worker spend in a handler of
{SHORT * 1000:.0f} ms, of {result["short"]:,} messages: at least 0.97 is to be reached. *Finish* is
when the last of {WORKERS} workers of one thread has finished, divided by perfect sharing, of
{result["long"]} messages that take up to 1 s, log-normally distributed: at most 1.1. Medians of
{result["rounds"]} rounds, and the worst.""",
        "",
        "| engine | useful | worst | finish | worst |",
        "|---|--:|--:|--:|--:|",
    ]
    for engine, found in result["engines"].items():
        useful, finish = found["useful"], found["finish"]
        lines.append(
            f"| {TITLES[engine]} {found['version']} | {median(useful):.3f} | {min(useful):.3f} "
            f"| {median(finish):.3f} | {max(finish):.3f} |"
        )
    return "\n".join([*lines, "", origin_of(result)]) + "\n"


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each")
    parser.add_argument("--short", type=int, default=3000, help="messages of 5 ms")
    parser.add_argument("--long", type=int, default=120, help="messages of up to 1 s")
    options = parser.options({"rounds": 1, "short": 800, "long": 40})
    if options.markdown:
        print(section(), end="")
        return
    sizes = {"rounds": options.rounds, "short": options.short, "long": options.long}
    parser.measure_each(NAME, options, sizes, lambda engine, _: measure(engine, **sizes))
    print(section())


if __name__ == "__main__":
    main()
