"""The cost of wake-ups for a publisher, and their gain for a waiting consumer.

Two measurements in turns, with ``notify`` on and off. First, 1 and 4 processes publish one message
after another while nobody else works; a NOTIFY costs the same with and without listeners. Second,
one process publishes a message about every 50 ms to a queue where another waits; the time is from
the return of ``publish`` to the return of the claim, by the machine's monotonic clock.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from statistics import median
from typing import Any, Final

from queue_over_sql import Queue, QueueService
from scripts.benchmarks.ageing import (
    Helper,
    figures,
    helpers_of,
    message,
    number_of,
    numbers,
    parser_of,
    publish_singly,
    together,
    version_of,
)
from scripts.benchmarks.harness import (
    TITLES,
    databases_of,
    origin_of,
    read_result,
)

NAME: Final = "wakeups"
STATES: Final = {"notify": True, "no notify": False}
PAUSE: Final = 0.05
PATIENCE: Final = 20.0


def publish_spaced(queue: Queue, count: int) -> dict[int, float]:
    """Publish with pauses that cannot coincide with polls; returns when each publish returned."""
    sent = {}
    for number in range(count):
        time.sleep(PAUSE * random.uniform(0.8, 1.6))  # noqa: S311 - spreads, guards nothing
        queue.publish(message(number))
        sent[number] = time.monotonic()
    return sent


def receive(queue: Queue, count: int) -> dict[int, float]:
    """Wait for a number of messages, one after another; returns when each came."""
    received: dict[int, float] = {}
    while len(received) < count:
        for each in queue.consume(1, wait=PATIENCE):
            received[number_of(each)] = time.monotonic()
            each.ack()
    return received


def publish_rate(publishers: list[Helper], queue: Queue, count: int) -> float:
    """Messages per second of all publishers together.

    Raises:
        SystemExit: some messages are missing.
    """
    began = time.monotonic()
    together(publishers, publish_singly, [message(number) for number in range(count)])
    seconds = time.monotonic() - began
    wanted = count * len(publishers)
    if (purged := queue.purge()) != wanted:
        raise SystemExit(f"{wanted} were published, {purged} are there")
    return wanted / seconds


def latencies(publisher: Helper, consumer: Helper, count: int) -> list[float]:
    """Seconds from publish to claim of each message.

    Raises:
        SystemExit: some were lost.
    """
    consumer.start(receive, count)
    publisher.start(publish_spaced, count)
    sent, received = publisher.result(), consumer.result()
    if sent.keys() != received.keys():
        raise SystemExit(f"{len(sent)} were published, {len(received)} came")
    return [max(0.0, received[number] - sent[number]) for number in sent]


def measure(engine: str, rounds: int, count: int, processes: list[int]) -> dict[str, Any]:
    """Run both measurements on one engine."""
    rates: dict[str, dict[str, list[float]]] = {}
    waits: dict[str, list[float]] = {state: [] for state in STATES}
    with ExitStack() as stack:
        url = stack.enter_context(databases_of(engine))("wakeups")
        service = stack.enter_context(QueueService(url, notify=False))
        queue = service.create_queue("jobs", archive="none")
        helpers = {
            state: helpers_of(stack, url, max(processes), notify=notify)
            for state, notify in STATES.items()
        }
        for them in helpers.values():
            publish_rate(them, queue, 50)
        for _ in range(rounds):
            for each in processes:
                for state, them in helpers.items():
                    found = publish_rate(them[:each], queue, count)
                    rates.setdefault(str(each), {}).setdefault(state, []).append(found)
            for state, them in helpers.items():
                waits[state] += latencies(them[0], them[1], 30)
        return {
            "version": version_of(service),
            "rates": rates,
            "waits": {state: figures(found) for state, found in waits.items()},
        }


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    lines = [
        "## What wake-ups cost and spare",
        "",
        f"""\
Publishers send one message per commit, each state in turns, {result["rounds"]} rounds; the ratio is
the median of those of single rounds. The wait is from a publish to the claim of a consumer in
another process, messages about {PAUSE * 1000:.0f} ms apart, in milliseconds. MariaDB and H2 have no
wake-ups between processes: their consumers poll.""",
        "",
        "| | | published | | | wait, p50 / p99 | |",
        "|---|--:|--:|--:|--:|--:|--:|",
        "| engine | publishers | no notify | notify | ratio | no notify | notify |",
    ]
    for engine, found in result["engines"].items():
        waits = [
            "{median:.1f} / {p99:.1f}".format(**found["waits"][state])
            for state in ("no notify", "notify")
        ]
        label = f"{TITLES[engine]} {found['version']}"
        for processes, rates in found["rates"].items():
            pairs = zip(rates["notify"], rates["no notify"], strict=True)
            ratio = median(on / off for on, off in pairs)
            off, on = median(rates["no notify"]), median(rates["notify"])
            cells = [label, processes, f"{off:,.0f}/s", f"{on:,.0f}/s", f"{ratio:.2f}", *waits]
            lines.append(f"| {' | '.join(cells)} |")
            label, waits = "", ["", ""]
    return "\n".join([*lines, "", origin_of(result)]) + "\n"


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = parser_of(__doc__, engines=("postgresql", "sqlite"))
    parser.add_argument("--processes", default="1,4", help="numbers of publishers")
    parser.add_argument("--count", type=int, default=1500, help="messages of each publisher")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each")
    options = parser.options({"count": 200, "rounds": 1})
    if options.markdown:
        print(section(), end="")
        return
    processes = numbers(options.processes)
    parser.measure_each(
        NAME,
        options,
        {"rounds": options.rounds},
        lambda engine, _: measure(engine, options.rounds, options.count, processes),
    )
    print(section())


if __name__ == "__main__":
    main()
