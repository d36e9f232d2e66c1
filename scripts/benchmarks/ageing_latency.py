"""The time from publish to claim at steady rates, especially the slowest ones.

Four publisher processes publish one message after another, each at a quarter of the rate and at its
own times. 1 or 4 consumer processes claim and ack with the low watermark, by up to 10, and wait as
the library does if there is nothing. The latency is from the return of ``publish``, when the
message is committed, to the return of its claim, by the monotonic clock of the machine. At the end
each message must have come exactly once.

If an engine cannot publish at the rate, the run shows the reached rate. Consumers without the low
watermark run in turns: the difference shows what the watermark adds to the slowest claims.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from rich.progress import Progress

from queue_over_sql import Queue, QueueService
from scripts.benchmarks.ageing import (
    Helper,
    claim_and_ack,
    figures,
    helpers_of,
    message,
    number_of,
    numbers,
    parser_of,
    version_of,
)
from scripts.benchmarks.harness import (
    TITLES,
    databases_of,
    origin_of,
    read_result,
)

NAME = "ageing_latency"
PUBLISHERS: Final = 4
BATCH: Final = 10
WARM_UP: Final = 20
# A consumer ends when nothing has arrived for this long after the publishers ended.
PATIENCE: Final = 1.0

STATES: Final = {"mark": True, "no mark": False}

Times = dict[int, float]


def publish_at(queue: Queue, began: float, first: int, count: int, pause: float) -> Times:
    """Publish one by one, each at its time; returns when each publish returned.

    Args:
        queue: the queue.
        began: when the first is due, on the monotonic clock.
        first: the first number.
        count: how many.
        pause: seconds between the times of two messages; late messages are published at once.
    """
    sent = {}
    for position in range(count):
        time.sleep(max(0.0, began + position * pause - time.monotonic()))
        queue.publish(message(first + position))
        sent[first + position] = time.monotonic()
    return sent


def receive(queue: Queue, until: float) -> list[tuple[int, float]]:
    """Claim and ack until nothing arrives any more; returns numbers and times.

    Args:
        queue: the queue.
        until: the earliest end, on the monotonic clock.
    """
    received = []
    while messages := queue.consume(BATCH, wait=PATIENCE + max(0.0, until - time.monotonic())):
        now = time.monotonic()
        received += [(number_of(each), now) for each in messages]
        queue.ack(messages)
    return received


def run(
    publishers: Sequence[Helper], consumers: Sequence[Helper], rate: int, seconds: float
) -> dict[str, Any]:
    """One run at one rate.

    Raises:
        SystemExit: a message was lost or came twice.
    """
    count, began = round(rate * seconds / PUBLISHERS), time.monotonic() + 0.3
    for consumer in consumers:
        consumer.start(receive, began + seconds)
    for place, publisher in enumerate(publishers):
        shift = place / rate
        publisher.start(publish_at, began + shift, place * count, count, PUBLISHERS / rate)
    sent: Times = {}
    for publisher in publishers:
        sent |= publisher.result()
    reached = len(sent) / (max(sent.values()) - began)
    received = [pair for consumer in consumers for pair in consumer.result()]
    at = dict(received)
    if len(received) != len(at) or at.keys() != sent.keys():
        lost, twice = len(sent.keys() - at.keys()), len(received) - len(at)
        raise SystemExit(f"{len(sent)} published at {rate}/s: {lost=}, {twice=}")
    latencies = [max(0.0, at[number] - sent[number]) for number in sent]
    return figures(latencies) | {"reached": round(reached, 1)}


@dataclass(frozen=True)
class Plan:
    """The options for each engine.

    Attributes:
        rates: messages per second.
        consumers: numbers of consumer processes.
        seconds: how long each run publishes.
        rounds: the number of runs of each case.
    """

    rates: Sequence[int]
    consumers: Sequence[int]
    seconds: float
    rounds: int

    @property
    def cases(self) -> list[tuple[int, int, str]]:
        """Rate, number of consumers and state of each case of a round."""
        return list(itertools.product(self.rates, self.consumers, STATES))


def measure(engine: str, plan: Plan, progress: Progress) -> dict[str, Any]:
    """Run all rates with all numbers of consumers, in turns.

    Raises:
        ServerMissing: the engine has no server here.
        SystemExit: a message was lost or came twice.
    """
    running = progress.add_task(engine, total=plan.rounds * len(plan.cases))
    with ExitStack() as stack:
        url = stack.enter_context(databases_of(engine))("latency")
        service = QueueService(url)
        stack.callback(service.stop)
        queue = service.create_queue("jobs", archive="none")
        publishers = helpers_of(stack, url, PUBLISHERS)
        most = max(plan.consumers)
        consumers = {
            state: helpers_of(stack, url, most, marked=marked) for state, marked in STATES.items()
        }
        warm_up(queue, publishers, [each for them in consumers.values() for each in them])
        runs: dict[str, dict[str, dict[str, list[Any]]]] = {}
        for _ in range(plan.rounds):
            for rate, count, state in plan.cases:
                found = run(publishers, consumers[state][:count], rate, plan.seconds)
                by_count = runs.setdefault(str(rate), {}).setdefault(str(count), {})
                by_count.setdefault(state, []).append(found)
                progress.advance(running)
        if left := queue.stats().live:
            raise SystemExit(f"{left} messages are left")
        return {"version": version_of(service), "runs": runs}


def warm_up(queue: Queue, publishers: Sequence[Helper], consumers: Sequence[Helper]) -> None:
    """Prepare the first statements of a connection, and register a consumer."""
    for publisher in publishers:
        publisher.start(publish_at, time.monotonic(), 0, WARM_UP, 0.0)
        publisher.result()
    for consumer in consumers:
        consumer.start(claim_and_ack, 2, WARM_UP // 4)
        consumer.result()
    claim_and_ack(queue, 100, WARM_UP)


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    lines = [
        "## From publish to claim, at steady rates",
        "",
        f"""\
{PUBLISHERS} publisher processes, one message per commit, for {result["seconds"]:g} seconds a run,
{result["rounds"]} runs in turns; consumers claim up to {BATCH} at once. The latency of a message
is from its commit to the claim that has it, in milliseconds: p50, p99 and most, each the middle
one of the runs. `no mark` is the same code without the low-water mark, in turns with it. `reached`
is how many messages per second were published: where that is less than wanted, the machine was
full, and the latencies are those of a full machine. Commits reach the disk.""",
        "",
        "| engine | wanted/s | consumers | | reached/s | p50 | p99 | most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    published = 0
    for engine, found in result["engines"].items():
        label = f"{TITLES[engine]} {found['version']}"
        for rate, count, state, runs in each_case(found):
            cells = [f"{middle(runs, name):.1f}" for name in ("median", "p99", "max")]
            reached = f"{middle(runs, 'reached'):,.0f}"
            lines.append(f"| {' | '.join([label, f'{rate:,}', count, state, reached, *cells])} |")
            label = ""
            published += round(sum(run["count"] for run in runs))
    lines += [
        "",
        f"{published:,} messages went through; none was lost, none came twice.",
        origin_of(result),
    ]
    return "\n".join(lines) + "\n"


def each_case(found: Mapping[str, Any]) -> Iterator[tuple[int, str, str, list[dict[str, float]]]]:
    """Rate, number of consumers, state and runs of each case."""
    for rate, by_count in found["runs"].items():
        for count, states in by_count.items():
            for state, runs in states.items():
                yield int(rate), count, state, runs


def middle(runs: Sequence[Mapping[str, float]], name: str) -> float:
    """The middle one of several runs."""
    return sorted(run[name] for run in runs)[len(runs) // 2]


# ---------------------------------------------------------------- the command


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = parser_of(__doc__)
    parser.add_argument("--rates", default="50,500,2000", help="messages per second, by commas")
    parser.add_argument("--consumers", default="1,4", help="numbers of consumer processes")
    parser.add_argument("--seconds", type=float, default=6, help="how long each run publishes")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each")
    options = parser.options({"seconds": 3.0, "rounds": 1})
    if options.markdown:
        print(section(), end="")
        return
    rates, consumers = numbers(options.rates), numbers(options.consumers)
    plan = Plan(rates, consumers, options.seconds, options.rounds)
    sizes = {"seconds": options.seconds, "rounds": options.rounds}
    parser.measure_each(
        NAME, options, sizes, lambda engine, progress: measure(engine, plan, progress)
    )
    print(section())


if __name__ == "__main__":
    main()
