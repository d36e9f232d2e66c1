"""The cost of an observer for a publish: the same publishes in turns, without one and with one.

The observer counts messages, as one for metrics does. Three services publish one message after
another to their own queues, in blocks that take turns, in one process: two without an observer,
which show the noise of the measurement, and one with it. A block is measured by the clock and in
processor time of the publisher. The result is the median of the ratios of neighbouring blocks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, Final

from queue_over_sql import Observer, Queue, QueueService
from scripts.benchmarks.ageing import message, parser_of, version_of
from scripts.benchmarks.harness import TITLES, databases_of, origin_of, read_result

NAME: Final = "observer"
BLOCK: Final = 100
WITHOUT: Final = ("without", "without again")
WITH: Final = "with"


class Counting(Observer):
    """Counts published messages."""

    def __init__(self) -> None:
        self.published_by_queue: Counter[str] = Counter()

    def published(self, queue: str, count: int, seconds: float, ids: Sequence[int]) -> None:
        """Count it."""
        del seconds, ids
        self.published_by_queue[queue] += count


def block(queue: Queue) -> list[float]:
    """Microseconds of one publish, as the mean of a block: by the clock, and of processor time."""
    clock, processor = time.perf_counter(), time.process_time()
    for number in range(BLOCK):
        queue.publish(message(number))
    found = time.perf_counter() - clock, time.process_time() - processor
    return [round(each / BLOCK * 1e6, 1) for each in found]


def measure(engine: str, rounds: int) -> dict[str, Any]:
    """The microseconds of each block, on one engine."""
    found: dict[str, list[list[float]]] = {name: [] for name in (*WITHOUT, WITH)}
    with ExitStack() as stack:
        url = stack.enter_context(databases_of(engine))("observer")
        counting = Counting()
        services = {
            **{name: stack.enter_context(QueueService(url)) for name in WITHOUT},
            WITH: stack.enter_context(QueueService(url, observer=counting)),
        }
        queues = {
            name: service.create_queue(f"jobs_{place}", archive="none")
            for place, (name, service) in enumerate(services.items())
        }
        for queue in queues.values():
            block(queue)
        order = list(queues)
        for number in range(rounds):
            # Each comes first, second and last equally often.
            order = order[1:] + order[:1]
            for name in order if number % 2 else reversed(order):
                found[name].append(block(queues[name]))
        if sum(counting.published_by_queue.values()) != BLOCK * (rounds + 1):
            raise SystemExit(f"the observer heard of {counting.published_by_queue}")
        return {"version": version_of(services[WITH]), "microseconds": found}


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    lines = [
        "## What an observer costs",
        "",
        f"""\
One message per publish, {result["rounds"]} blocks of {BLOCK} in turns: twice without an observer,
once with one that counts. Medians: microseconds of a publish, and ratios of neighbouring blocks.
The ratio of the two without one says how much chance there is.""",
        "",
        "| engine | by | without, µs | with, µs | with to without | without to without |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for engine, found in result["engines"].items():
        first, second, observed = (found["microseconds"][name] for name in (*WITHOUT, WITH))
        for place, what in enumerate(("the clock", "processor time")):
            one, other, seen = ([b[place] for b in each] for each in (first, second, observed))
            both = [(a + b) / 2 for a, b in zip(one, other, strict=True)]
            cells = [
                f"{TITLES[engine]} {found['version']}",
                what,
                *(f"{median(each):.1f}" for each in (both, seen)),
                *(f"{_ratio(*pair):.3f}" for pair in ((seen, both), (other, one))),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", origin_of(result)]) + "\n"


def _ratio(some: Sequence[float], others: Sequence[float]) -> float:
    return median(a / b for a, b in zip(some, others, strict=True))


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = parser_of(__doc__, engines=("postgresql", "sqlite"))
    parser.add_argument("--rounds", type=int, default=201, help="blocks of each")
    options = parser.options({"rounds": 5})
    if options.markdown:
        print(section(), end="")
        return
    parser.measure_each(
        NAME, options, {"rounds": options.rounds}, lambda engine, _: measure(engine, options.rounds)
    )
    print(section())


if __name__ == "__main__":
    main()
