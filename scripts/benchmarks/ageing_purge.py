"""After a mass claim: how long the next claims are slower, until the engine has cleaned up.

InnoDB removes old versions of rows in the background, PostgreSQL by autovacuum. A consumer claims
``--messages`` messages at full speed in large batches, and acks or keeps them. Then it claims
single messages at a steady pace for ``--seconds``. This runs with and without the low watermark, in
turns, each state on its own server and each run in a new database. A run begins when the engine has
cleaned up after the previous one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from rich.progress import Progress
from sqlalchemy import text

from queue_over_sql import Queue, QueueService
from queue_over_sql.service import parts_of
from scripts.benchmarks.ageing import Account, Helper, number_of, parser_of, version_of
from scripts.benchmarks.ageing_horizon import OBSERVED
from scripts.benchmarks.harness import (
    TITLES,
    NewDatabase,
    databases_of,
    origin_of,
    read_result,
)

NAME = "ageing_purge"
STATES: Final = {"mark": True, "no mark": False}
CASES: Final = {"claimed and acked": True, "claimed": False}
MASS_BATCH: Final = 1000
PAUSE: Final = 0.05
# How many seconds of samples make one point of the curve.
BIN: Final = 0.5
LEASE: Final = 3600.0
CLEAN: Final = 500
LATER: Final = 5

Samples = list[tuple[float, float]]


def claim_all(queue: Queue, count: int, ack: bool) -> tuple[float, list[int]]:
    """Claim a number of messages at full speed; returns seconds and numbers."""
    began, came = time.monotonic(), list[int]()
    while len(came) < count:
        messages = queue.consume(min(MASS_BATCH, count - len(came)), lease=LEASE)
        came += [number_of(each) for each in messages]
        if ack:
            queue.ack(messages)
    return time.monotonic() - began, came


def sample(queue: Queue, seconds: float) -> tuple[Samples, list[int]]:
    """Claim and ack one by one at a steady pace; returns start and duration of each claim."""
    began, samples, came = time.monotonic(), Samples(), list[int]()
    while (at := time.monotonic() - began) < seconds:
        messages = queue.consume()
        samples.append((at, time.monotonic() - began - at))
        came += [number_of(each) for each in messages]
        queue.ack(messages)
        time.sleep(PAUSE)
    return samples, came


@dataclass(frozen=True)
class Plan:
    """The options.

    Attributes:
        messages: the size of the mass claim.
        seconds: how long claims are sampled after it.
        rounds: how often each case runs.
    """

    messages: int
    seconds: float
    rounds: int


def run(url: str, plan: Plan, *, ack: bool, marked: bool) -> tuple[float, Samples]:
    """One mass claim and the samples after it; returns its seconds, and the samples.

    Raises:
        SystemExit: a message was lost or came twice.
    """
    with QueueService(url) as service:
        queue, account = service.create_queue("jobs", archive="none"), Account()
        queue.load(account.new(plan.messages + round(plan.seconds / PAUSE) + 1))
        helper = Helper(url, marked=marked)
        try:
            helper.start(claim_all, plan.messages, ack)
            seconds, came = helper.result()
            helper.start(sample, plan.seconds)
            samples, more = helper.result()
            left = queue.stats().ready
        finally:
            helper.stop()
    account.numbers += came + more
    account.check(url, left)
    return seconds, samples


def await_cleaned(engine: str, url: str) -> None:
    """Wait until the engine has cleaned up, at most a minute."""
    if "history list" not in OBSERVED.get(engine, {}):
        return
    with QueueService(url) as service, parts_of(service).connections.engine.connect() as connection:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = connection.execute(text(OBSERVED[engine]["history list"])).scalar()
            if int(found or 0) < CLEAN:
                return
            time.sleep(0.5)


def measure(engine: str, plan: Plan, progress: Progress) -> dict[str, Any]:
    """Run all cases in both states, in turns.

    Raises:
        ServerMissing: the engine has no server here.
        SystemExit: a message was lost or came twice.
    """
    running = progress.add_task(engine, total=plan.rounds * len(CASES) * len(STATES))
    runs: dict[str, dict[str, list[Any]]] = {
        case: {state: [] for state in STATES} for case in CASES
    }
    with ExitStack() as stack:
        servers: dict[str, NewDatabase] = {
            state: stack.enter_context(databases_of(engine)) for state in STATES
        }
        with QueueService(servers["mark"]("version")) as service:
            version = version_of(service)
        for number in range(plan.rounds):
            for place, (case, ack) in enumerate(CASES.items()):
                for state, marked in STATES.items():
                    url = servers[state](f"run_{number}_{place}")
                    await_cleaned(engine, url)
                    seconds, samples = run(url, plan, ack=ack, marked=marked)
                    points = [[round(at, 3), round(1000 * took, 3)] for at, took in samples]
                    runs[case][state].append({"mass_seconds": round(seconds, 2), "claims": points})
                    progress.advance(running)
    return {"version": version, "cases": runs}


def curve(runs: list[Mapping[str, Any]]) -> dict[float, float]:
    """The median claim in milliseconds for each part of a second, over all runs."""
    parts: defaultdict[int, list[float]] = defaultdict(list)
    for each in runs:
        for at, took in each["claims"]:
            parts[int(at / BIN)].append(took)
    return {(part + 0.5) * BIN: median(took) for part, took in sorted(parts.items())}


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    lines = [
        "## After a mass claim",
        "",
        f"""\
One consumer claims {result["messages"]:,} messages by {MASS_BATCH:,} at full speed, then single
ones {1 / PAUSE:g} times a second for {result["seconds"]:g} seconds. Median claims in milliseconds
in the first half second, after five seconds and at the end, over {result["rounds"]} runs in turns,
and the slowest of all. `no mark` is the same code without the low-water mark. Commits reach the
disk.""",
        "",
        "| engine | mass | | messages/s of the mass | at once | after 5 s | at the end | slowest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for engine, found in result["engines"].items():
        label = f"{TITLES[engine]} {found['version']}"
        for case, state, runs in each_case(found):
            rate = result["messages"] / median(each["mass_seconds"] for each in runs)
            points = curve(runs)
            medians = list(points.values())
            later = next((took for at, took in points.items() if at > LATER), medians[-1])
            slowest = max(took for each in runs for _, took in each["claims"])
            cells = [f"{each:.2f}" for each in (medians[0], later, medians[-1], slowest)]
            lines.append(f"| {' | '.join([label, case, state, f'{rate:,.0f}', *cells])} |")
            label = ""
    lines += ["", "None was lost, none came twice.", origin_of(result)]
    return "\n".join(lines) + "\n"


def each_case(found: Mapping[str, Any]) -> Iterator[tuple[str, str, list[Mapping[str, Any]]]]:
    """The case, the state and its runs."""
    for case, states in found["cases"].items():
        for state, runs in states.items():
            yield case, state, runs


# ---------------------------------------------------------------- the command


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = parser_of(__doc__, engines=("mariadb", "postgresql"))
    parser.add_argument("--messages", type=int, default=200_000, help="of the mass claim")
    parser.add_argument("--seconds", type=float, default=20, help="of sampling after it")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each")
    options = parser.options({"messages": 20_000, "seconds": 5.0, "rounds": 1})
    if options.markdown:
        print(section(), end="")
        return
    plan = Plan(options.messages, options.seconds, options.rounds)
    parser.measure_each(
        NAME, options, asdict(plan), lambda engine, progress: measure(engine, plan, progress)
    )
    print(section())


if __name__ == "__main__":
    main()
