"""Faults, one kind after the other: how long until work goes on, and whether anything was lost.

Two workers with transactional handlers and a publisher run against a private server. A fault is
done to them several times, at moments that the seed decides. After each kind the work is brought to
its end, and the histories of all processes are checked (``queue_over_sql.testing.history``): lost,
two holders, settled by a non-holder, effects twice. Recovery is the time from the end of the fault
to the next settled message; where a worker died, from its death until all that it held is handled.

``--soak 60`` repeats faults by chance for so many minutes instead, and measures nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import time
import traceback
from statistics import median
from typing import Any, Final

from queue_over_sql.testing.servers import ServerMissing
from scripts.benchmarks.faults_acts import FAULTS, Fault, can, ground_of
from scripts.benchmarks.faults_ground import CONSUMER_TIMEOUT, Ground, NotRecovered
from scripts.benchmarks.harness import (
    ENGINES,
    RESULTS,
    TITLES,
    origin_of,
    read_result,
    write_result,
)

NAME: Final = "faults"
ROUNDS: Final = 5
MISSING: Final = (ServerMissing, subprocess.CalledProcessError)
"""What a machine may lack: PgBouncer, or the right to mount a small disk."""


def once(ground: Ground, fault: Fault) -> float:
    """Do a fault once; returns the seconds of the recovery."""
    ground.go_on()
    time.sleep(ground.luck.uniform(0.0, 0.3))
    ended = fault.act(ground)
    seconds = ground.watch.recovery(ended.at, ended.ids)
    ground.go_on()
    return seconds


def run(fault: Fault, engine: str, seed: int, rounds: int) -> dict[str, Any]:
    """Do a fault several times; returns the recoveries and the account."""
    found: dict[str, Any] = {"seconds": [], "published": 0, "handled": 0, "violations": {}}
    left = rounds
    while left:
        with ground_of(fault, engine, seed + left) as ground:
            for _ in range(1 if fault.afresh else rounds):
                found["seconds"].append(round(once(ground, fault), 3))
                left -= 1
            account = ground.account()
        found["published"] += account["published"]
        found["handled"] += account["handled"]
        for violation in account["violations"]:
            print(violation, file=sys.stderr)
            kind = str(getattr(violation, "kind", None) or str(violation).partition(":")[0])
            found["violations"][kind] = found["violations"].get(kind, 0) + 1
    return found


def measure(fault: str, engine: str, seed: int, rounds: int) -> dict[str, Any]:
    """A fault on an engine; where the work did not go on, the result has the reason."""
    if why := can(FAULTS[fault], engine):
        return {"without": why}
    began = time.monotonic()
    try:
        found = run(FAULTS[fault], engine, seed, rounds)
    except NotRecovered as error:
        found = {"error": str(error)}
    except MISSING as error:
        return {"without": str(error)}
    found["load"] = round(os.getloadavg()[0], 1)
    seconds = time.monotonic() - began
    print(f"{engine} {fault} ({seconds:.0f} s): {found}", file=sys.stderr, flush=True)
    return found


def keep(engine: str, fault: str, found: dict[str, Any], command: str, seed: int) -> None:
    """Add a fault to the result file of its engine."""
    name = f"{NAME}_{engine}"
    there = (RESULTS / f"{name}.json").exists()
    faults = read_result(name)["faults"] if there else {}
    faults[fault] = found | {"title": FAULTS[fault].title, "command": command}
    ordered = {each: faults[each] for each in FAULTS if each in faults}
    others = sorted({each["command"] for each in ordered.values()} - {command})
    write_result(name, command, {"seed": seed, "earlier": others, "faults": ordered})


def soak(engines: list[str], seed: int, minutes: float) -> dict[str, Any]:
    """Faults by chance until the time is over; returns how many of each, and what was wrong.

    Raises:
        NotRecovered: the work did not go on.
    """
    luck, end = random.Random(seed), time.monotonic() + 60 * minutes  # noqa: S311 - no secret
    done: dict[str, int] = {}
    wrong: list[str] = []
    count = {"published": 0, "handled": 0}
    while time.monotonic() < end:
        engine = luck.choice(engines)
        fault = luck.choice([name for name in FAULTS if not can(FAULTS[name], engine)])
        with contextlib.ExitStack() as stack:
            try:
                wanted = ground_of(FAULTS[fault], engine, luck.randrange(1_000_000))
                ground = stack.enter_context(wanted)
            except MISSING as error:
                print(f"{engine} {fault}: {error}", file=sys.stderr, flush=True)
                continue
            for _ in range(1 if FAULTS[fault].afresh else luck.randint(1, 4)):
                once(ground, FAULTS[fault])
                done[f"{engine} {fault}"] = done.get(f"{engine} {fault}", 0) + 1
                if time.monotonic() > end:
                    break
            account = ground.account()
        for name in count:
            count[name] += account[name]
        if engine not in FAULTS[fault].excused:
            wrong += [f"{engine} {fault}: {each}" for each in account["violations"]]
        print(f"{engine} {fault}: {account}", file=sys.stderr, flush=True)
    return {"faults": done, **count, "violations": wrong}


def main(arguments: list[str]) -> None:
    """Run, and write a result file for each engine."""
    parser = argparse.ArgumentParser(prog=f"python -m scripts.benchmarks.{NAME}")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=list(FAULTS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    given = parser.parse_args(arguments)
    if given.soak is not None:
        found = soak(given.engines, given.seed, given.soak)
        print(*found["violations"], {**found, "violations": len(found["violations"])}, sep="\n")
        sys.exit(1 if found["violations"] else 0)
    command = f"python -m scripts.benchmarks.{NAME} {' '.join(arguments)}".strip()
    failed = []
    for engine in given.engines:
        for fault in given.faults:
            try:
                found = measure(fault, engine, given.seed, given.rounds)
            except Exception:  # noqa: BLE001 - the other faults are measured all the same
                traceback.print_exc()
                failed.append(f"{engine} {fault}")
            else:
                keep(engine, fault, found, command, given.seed)
    if failed:
        sys.exit(f"not measured, see above: {', '.join(failed)}")


def _cell(found: dict[str, Any]) -> str:
    if not found:
        return "not run"
    if "without" in found:
        return ""
    if "error" in found:
        return str(found["error"])
    seconds = found["seconds"]
    wrong = sum(found["violations"].values())
    return f"{median(seconds):.2f} / {max(seconds):.2f}" + (f" ({wrong})" if wrong else "")


def section() -> str:
    """The section of the page."""
    results = {
        e: read_result(f"{NAME}_{e}") for e in TITLES if (RESULTS / f"{NAME}_{e}.json").exists()
    }
    lines = ["## Faults, and how long until work goes on", ""]
    lines += [
        "Two workers and a publisher, a private server, each fault at moments by seed. Seconds",
        "from the end of the fault to the next settled message, median / longest. Where a worker",
        "died or stood still: from that until others have handled all that it held; their",
        f"`consumer_timeout` is {CONSUMER_TIMEOUT:.0f} s. Afterwards the histories of all",
        "processes are checked for what was lost, held by two, settled by a non-holder or done",
        "twice; a number in brackets counts it. An empty cell: this fault was not measured on that",
        "engine.",
        "",
        f"| fault | rounds | {' | '.join(TITLES[engine] for engine in results)} |",
        f"|---|---|{'---|' * len(results)}",
    ]
    for name, fault in FAULTS.items():
        found = {e: r["faults"].get(name, {}) for e, r in results.items()}
        if not any(found.values()):
            continue
        rounds = sorted({len(each["seconds"]) for each in found.values() if "seconds" in each})
        cells = " | ".join(_cell(found[e]) if e in fault.engines else "" for e in found)
        lines.append(f"| {fault.title} | {', '.join(map(str, rounds))} | {cells} |")
    losing = [f for f in FAULTS.values() if f.may_lose]
    lines += ["", *[f"- By its nature a {f.title} loses {f.may_lose}." for f in losing]]
    lines += [
        "- Half-open: packets vanish for a second, and the server drops its end when they come",
        "  back; until then it keeps the locks of who has gone.",
        "- Disk full: MySQL's server looks only after a minute whether its log has room again.",
        "  H2's is restarted, as it may refuse its own file until then; and it may report commits",
        "  that are not in the file later ([engines](engines.md#where-the-promises-hold-on-h2)).",
        "- A process that stands still within a transaction keeps its locks: on SQLite the file,",
        "  elsewhere the rows that it acks just then. Others wait until it goes on or dies.",
        "- The clocks of SQLite and H2 cannot be stepped without the timers of their processes;",
        "  `tests/contract/test_clocks.py` has what happens then. `tests/chaos/test_galera.py` has",
        "  two nodes of Galera. Not had here: failover of H2, unplanned failover of MySQL.",
        "",
    ]
    published = sum(
        each.get("published", 0) for r in results.values() for each in r["faults"].values()
    )
    loads = [
        each["load"] for r in results.values() for each in r["faults"].values() if "load" in each
    ]
    lines.append(
        f"{published:,} messages were published in it. The machine's load, which lengthens these "
        f"times, was {min(loads, default=0):.0f} to {max(loads, default=0):.0f} processes."
    )
    lines += [origin_of(result) for result in results.values()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
