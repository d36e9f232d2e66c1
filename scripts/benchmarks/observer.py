"""What an observer costs a publish: the same publishes in turns, without one and with one.

The observer counts messages, as one for metrics does. Both services publish one message after the
other to a queue of their own, in blocks that take turns, in one process. A publish is timed in
processor time, which other programs on the machine change little.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import quantiles
from typing import Any, Final

from queue_over_sql import Observer, Queue, QueueService
from scripts.benchmarks.ageing import message, parser_of, version_of
from scripts.benchmarks.harness import TITLES, databases_of, origin_of, read_result

NAME: Final = "observer"
BLOCK: Final = 200


class Counting(Observer):
    """Counts what is published."""

    def __init__(self) -> None:
        self.published_by_queue: Counter[str] = Counter()

    def published(self, queue: str, count: int, seconds: float, ids: Sequence[int]) -> None:
        """Count it."""
        del seconds, ids
        self.published_by_queue[queue] += count


def microseconds(queue: Queue) -> float:
    """Processor time of one publish, in the mean of a block."""
    began = time.process_time()
    for number in range(BLOCK):
        queue.publish(message(number))
    return (time.process_time() - began) / BLOCK * 1e6


def measure(engine: str, rounds: int) -> dict[str, Any]:
    """The microseconds of each block, on one engine."""
    found: dict[str, list[float]] = {"without": [], "with": []}
    with ExitStack() as stack:
        url = stack.enter_context(databases_of(engine))("observer")
        counting = Counting()
        services = {
            "without": stack.enter_context(QueueService(url)),
            "with": stack.enter_context(QueueService(url, observer=counting)),
        }
        queues = {
            name: service.create_queue(name, archive="none") for name, service in services.items()
        }
        for queue in queues.values():
            microseconds(queue)
        for number in range(rounds):
            order = list(queues.items())
            for name, queue in order if number % 2 else reversed(order):
                found[name].append(microseconds(queue))
        if counting.published_by_queue["with"] != BLOCK * (rounds + 1):
            raise SystemExit(f"the observer heard of {counting.published_by_queue}")
        return {"version": version_of(services["with"]), "microseconds": found}


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    lines = [
        "## What an observer costs",
        "",
        f"""\
One message per publish, {result["rounds"]} blocks of {BLOCK} in turns, without an observer and with
one that counts. Processor time of the publisher in microseconds per message: of the block at the
lower quartile, because other programs only add to it.""",
        "",
        "| engine | without | with | ratio |",
        "|---|--:|--:|--:|",
    ]
    for engine, found in result["engines"].items():
        without, observed = (found["microseconds"][name] for name in ("without", "with"))
        low, high = (quantiles(times, n=4)[0] for times in (without, observed))
        label = f"{TITLES[engine]} {found['version']}"
        cells = [label, f"{low:.1f}", f"{high:.1f}", f"{high / low:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", origin_of(result)]) + "\n"


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = parser_of(__doc__, engines=("postgresql", "sqlite"))
    parser.add_argument("--rounds", type=int, default=101, help="blocks of each")
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
