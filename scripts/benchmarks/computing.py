"""How workers whose handlers compute use the processor: by threads, free threads and processes.

    python -m scripts.benchmarks.computing --free-threaded /path/to/python3.14t

A handler computes for about a millisecond; the queue is on a SQLite file. A worker runs with 1, 2
and 4 threads; as `queue-over-sql worker --processes`; and with threads on a Python without the
global interpreter lock, which must have the package's dependencies. The rate is that of the middle
80 % of the messages, by the times in the archive, so starting and stopping do not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from queue_over_sql import Queue, QueueService
from scripts.benchmarks.harness import origin_of, progress_bar, read_result, write_result

NAME: Final = "computing"
COUNTS: Final = (1, 2, 4)
_ROOT: Final = Path(__file__).parents[2]
_TASKS: Final = """
import os
import sys

from queue_over_sql import QueueService

service = QueueService("sqlite:///work.db")
worker = service.worker(concurrency=int(os.environ["THREADS"]))


@worker.handle("jobs")
def compute(message):
    total = 0
    for number in range(20_000):
        total += number * number % 7


if __name__ == "__main__":
    if sys.argv[1] == "free" and sys._is_gil_enabled():
        sys.exit("the interpreter lock is enabled")
    worker.run(signals=True)
"""


def measure(folder: Path, command: list[str], threads: int, messages: int) -> float:
    """Messages per second of one worker."""
    (folder / "tasks.py").write_text(_TASKS, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "THREADS": str(threads)}
    with QueueService(f"sqlite:///{folder}/work.db") as service:
        queue = service.create_queue("jobs", archive="all")
        queue.load(range(messages))
        with subprocess.Popen(command, cwd=folder, env=environment) as running:
            while queue.stats().live and running.poll() is None:
                time.sleep(0.2)
            running.terminate()
        return _rate(queue, messages)


def _rate(queue: Queue, messages: int) -> float:
    found = queue.archive.messages().list(messages)
    ended: list[datetime] = sorted(each.finished_at for each in found if each.finished_at)
    if len(ended) != messages:
        raise SystemExit(f"{len(ended)} of {messages} messages were handled")
    first, last = messages // 10, messages * 9 // 10
    return round((last - first) / (ended[last] - ended[first]).total_seconds(), 1)


def ways(free: str | None) -> dict[str, tuple[list[str], bool]]:
    """The commands, and whether they run as many processes instead of threads."""
    here = sys.executable
    found = {
        "threads": ([here, "tasks.py", "locked"], False),
        "processes": ([here, "-m", "queue_over_sql", "worker", "tasks:worker"], True),
    }
    return found | ({"free threads": ([free, "tasks.py", "free"], False)} if free else {})


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    lines = [
        "## Handlers that compute",
        "",
        f"""\
Messages per second of a worker on SQLite whose handler computes for about a millisecond, and how
many times the rate of one. *Free threads*: {result["free_version"] or "not measured"}, without the
global interpreter lock; the others: {result["version"]}. Medians of {result["rounds"]} rounds.""",
        "",
        f"| way | {' | '.join(map(str, COUNTS))} |",
        f"|---|{'--:|' * len(COUNTS)}",
    ]
    for way, rates in result["rates"].items():
        one = median(rates["1"])
        cells = [f"{median(each):,.0f}/s ({median(each) / one:.2f})" for each in rates.values()]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", origin_of(result)]) + "\n"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--free-threaded", metavar="PYTHON", help="a Python without the lock")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=4000)
    options = parser.parse_args()
    free = options.free_threaded
    rates: dict[str, dict[str, list[float]]] = {}
    with progress_bar() as progress:
        commands = ways(free)
        task = progress.add_task(NAME, total=options.rounds * len(COUNTS) * len(commands))
        for _ in range(options.rounds):
            for count in COUNTS:
                for way, (command, by_processes) in commands.items():
                    more = ["--processes", str(count)] if by_processes else []
                    with tempfile.TemporaryDirectory(prefix="queue-over-sql-") as folder:
                        found = measure(
                            Path(folder),
                            [*command, *more],
                            1 if by_processes else count,
                            options.messages,
                        )
                    rates.setdefault(way, {}).setdefault(str(count), []).append(found)
                    progress.advance(task)
    result: dict[str, Any] = {
        "rounds": options.rounds,
        "messages": options.messages,
        "version": _version(sys.executable),
        "free_version": _version(free) if free else None,
        "rates": rates,
    }
    named = "--free-threaded python3.14t " if free else ""
    sizes = f"--rounds {options.rounds} --messages {options.messages}"
    write_result(NAME, f"python -m scripts.benchmarks.{NAME} {named}{sizes}", result)
    print(section())


def _version(python: str) -> str:
    asked = [python, "-c", "import sys; print(sys.version.split(' (')[0])"]
    return (
        f"Python {subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()}"
    )


if __name__ == "__main__":
    main()
