"""Run queue_over_sql, the limit of its SQL, and other libraries with the same workloads.

    python -m scripts.benchmarks.workloads --engine postgresql
    python -m scripts.benchmarks.workloads --engine sqlite --workloads publish_one,consume_100

``./scripts/benchmarks/run workloads --engine postgresql`` installs the other libraries first. A run
starts a private server in its default configuration, which writes each commit to the disk, and
gives each contender its own database and processes. In each round all contenders run every workload
in turn; after each run it checks that all messages came exactly once. The number of messages of a
run follows from uncounted first runs, so that it takes about a third of a second, and two thirds
with a worker. A larger load, the latency of an idle queue and the statements of an idle worker are
measured once, at the end.

The result is ``scripts/benchmarks/results/workloads_<engine>.json``. It includes failures of
contenders; if ours or the limit fails, the run ends with an error.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from scripts.benchmarks.harness import (
    ENGINES,
    NewDatabase,
    databases_of,
    progress_bar,
    read_result,
    write_result,
)
from scripts.benchmarks.workloads_list import (
    IDLE,
    LATENCY,
    LIMIT,
    LOAD_MILLION,
    LOADED,
    MILLION,
    ONCE,
    OURS,
    WORKLOADS,
    Workload,
)
from scripts.benchmarks.workloads_page import section
from scripts.benchmarks.workloads_processes import KINDS, ContenderFailed, Contestant, Kind
from scripts.benchmarks.workloads_running import (
    MessagesLost,
    idle,
    latency,
    load_once,
    measure,
    observer_of,
)

__all__ = ["main", "section"]
NAME = "workloads"
# The duration of one run in seconds, at scale 1.
_RUN_SECONDS = 0.3
# A worker has to find out first how long its handlers take.
_WORK_SECONDS = 0.6
_ADAPTING = ("work", "tasks")
# How long it may take to fill a queue for that.
_FILL_SECONDS = 1.0
_LEAST = 50
_LATENCY_MESSAGES = 100
_IDLE_SECONDS = 3.0
_FAILURES = (ContenderFailed, MessagesLost)


@dataclass
class Run:
    """A run on one engine: its contestants, and the measurements so far.

    Attributes:
        kinds: the contenders.
        new_database: makes a database.
        scale: the factor for the numbers of messages.
    """

    kinds: Sequence[Kind]
    new_database: NewDatabase
    scale: float
    contestants: dict[str, Contestant] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    workloads: dict[str, Any] = field(default_factory=dict)
    once: dict[str, Any] = field(default_factory=dict)
    failures: list[dict[str, str]] = field(default_factory=list)
    _names: Iterator[int] = field(default_factory=itertools.count)

    def start(self, kind: Kind) -> Contestant:
        """A contestant on a new database."""
        contestant = Contestant(kind, self.new_database(f"workloads_{next(self._names)}"))
        about = {key: value for key, value in contestant.about.items() if key != "can"}
        self.about[kind.name] = about
        return contestant

    def failed(self, kind: Kind, workload: str, error: Exception) -> None:
        """Record a failure, and start a new contestant."""
        self.failures.append({"contender": kind.name, "workload": workload, "reason": str(error)})
        print(f"{workload}: {error}", file=sys.stderr)
        old = self.contestants.pop(kind.name, None)
        if old is not None:
            old.end()
            with contextlib.suppress(*_FAILURES):
                self.contestants[kind.name] = self.start(kind)

    def end(self) -> None:
        """End all processes."""
        for contestant in self.contestants.values():
            contestant.end()
        self.contestants.clear()

    def of(self, workload: Workload) -> list[Contestant]:
        """The contestants of a workload."""
        return [
            contestant
            for contestant in self.contestants.values()
            if contestant.can(workload.needs)
            and (workload.only is None or contestant.name in workload.only)
        ]

    # -- the rounds

    def calibrate(self, workload: Workload) -> None:
        """Run each contestant uncounted, to know how many messages it gets."""
        counts: dict[str, int] = {}
        wanted = _WORK_SECONDS if workload.act in _ADAPTING else _RUN_SECONDS
        self._keep(workload.processes)
        for contestant in self.of(workload):
            # A contender that fills its queue slowly gets fewer messages.
            most = min(workload.most, contestant.fill_rate * _FILL_SECONDS)
            probe = _rounded(max(_LEAST, min(workload.probe, most)), workload)
            try:
                rate = measure(contestant, workload, probe)
                # The first call of a library is no measure of the others, and a worker that
                # adapts how much it claims is slow at first.
                while probe / rate < wanted / 2 and probe < most:
                    probe = _rounded(min(most, rate * wanted), workload)
                    rate = max(rate, measure(contestant, workload, probe))
            except _FAILURES as error:
                self.failed(contestant.kind, workload.name, error)
                continue
            counts[contestant.name] = _rounded(
                max(min(rate * wanted, most) * self.scale, probe), workload
            )
        if workload.act not in _ADAPTING and OURS in counts and LIMIT in counts:
            counts[OURS] = counts[LIMIT] = max(counts[OURS], counts[LIMIT])
        if counts:
            facts = {"title": workload.title, "bytes": workload.payload}
            self.workloads[workload.name] = {**facts, "counts": counts, "rounds": []}

    def round(self, workload: Workload, turn: int) -> None:
        """Run each contestant once; the first one changes from round to round."""
        measured = self.workloads.get(workload.name)
        if measured is None:
            return
        self._keep(workload.processes)
        contestants = self.of(workload)
        shift = turn % max(1, len(contestants))
        rates: dict[str, float] = {}
        for contestant in contestants[shift:] + contestants[:shift]:
            count = measured["counts"].get(contestant.name)
            if count is None:
                continue
            try:
                rates[contestant.name] = round(measure(contestant, workload, count), 1)
            except _FAILURES as error:
                self.failed(contestant.kind, workload.name, error)
                del measured["counts"][contestant.name]
        measured["rounds"].append(rates)

    def _keep(self, processes: int) -> None:
        """End processes that are not needed now, because they have connections and poll."""
        for contestant in self.contestants.values():
            contestant.keep(max(1, processes))

    # -- measured once

    def load_million(self) -> None:
        """Load a million messages into databases of their own."""
        for kind in self.kinds:
            if kind.name in {OURS, LIMIT}:
                self._alone(
                    kind,
                    LOAD_MILLION,
                    lambda each: round(load_once(each, int(MILLION * self.scale)), 1),
                )

    def latencies(self) -> None:
        """The latency of each contender that supports it."""
        count = max(10, int(_LATENCY_MESSAGES * min(1.0, self.scale)))
        for kind in self.kinds:
            self._alone(kind, LATENCY, lambda each: latency(each, count))

    def idles(self, engine: str) -> None:
        """The statements of each contender's idle worker."""
        with observer_of(engine, self.new_database("workloads_observer")) as observer:
            for kind in self.kinds:
                self._alone(kind, IDLE, lambda each: idle(each, _IDLE_SECONDS, observer))

    def _alone(self, kind: Kind, name: str, act: Any) -> None:
        """Measure a contender while no other has a process."""
        if kind.name not in self.about:
            return  # it did not even start
        try:
            contestant = self.start(kind)
        except _FAILURES as error:
            self.failed(kind, name, error)
            return
        try:
            if contestant.can("load" if name == LOAD_MILLION else name):
                measured = act(contestant)
                if measured is not None:
                    self.once.setdefault(name, {})[kind.name] = measured
        except _FAILURES as error:
            self.failed(kind, name, error)
        finally:
            contestant.end()


def _rounded(count: float, workload: Workload) -> int:
    """Round to whole batches."""
    batch = int(dict(workload.arguments).get("batch", 1))
    return max(1, round(count / batch)) * batch


def run(engine: str, kinds: Sequence[Kind], names: Sequence[str], rounds: int, scale: float) -> Run:
    """Measure everything on one engine."""
    workloads = [each for each in WORKLOADS if each.name in names]
    with contextlib.ExitStack() as stack:
        new_database = stack.enter_context(databases_of(engine))
        progress = stack.enter_context(progress_bar())
        running = Run(kinds, new_database, scale)
        stack.callback(running.end)
        for kind in kinds:
            try:
                running.contestants[kind.name] = running.start(kind)
            except _FAILURES as error:
                running.failed(kind, "start", error)
        task = progress.add_task(engine, total=len(workloads) * (rounds + 1))
        for workload in workloads:
            running.calibrate(workload)
            progress.advance(task)
        for turn in range(rounds):
            for workload in workloads:
                running.round(workload, turn)
                progress.advance(task)
        running.end()
        acts: dict[str, Callable[[], None]] = {
            LOAD_MILLION: running.load_million,
            LATENCY: running.latencies,
            IDLE: lambda: running.idles(engine),
        }
        if engine not in LOADED:
            del acts[LOAD_MILLION]
        for name, act in acts.items():
            if name in names:
                act()
    return running


def main() -> None:
    """Run the benchmark on one engine."""
    known = [*(workload.name for workload in WORKLOADS), *ONCE]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="times as many messages")
    parser.add_argument("--workloads", default="all", help=", ".join(known))
    parser.add_argument("--contenders", default="all", help=", ".join(kind.name for kind in KINDS))
    parser.add_argument(
        "--missing", choices=("fail", "skip"), default="fail", help="contenders not installed"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the last results of the other workloads"
    )
    parser.add_argument("--markdown", action="store_true", help="print the last results instead")
    options = parser.parse_args()
    if options.markdown:
        print(section(), end="")
        return
    kinds = [kind for kind in KINDS if options.engine in kind.engines]
    if options.contenders != "all":
        kinds = [kind for kind in kinds if kind.name in _chosen(options.contenders, KINDS, parser)]
    names = known if options.workloads == "all" else options.workloads.split(",")
    if unknown := set(names) - set(known):
        parser.error(f"no such workload: {', '.join(sorted(unknown))}")
    missing = _missing(kinds)
    for name, reason in missing.items():
        print(f"missing: {name}: {reason}", file=sys.stderr)
    if missing and options.missing == "fail":
        sys.exit(1)
    present = [kind for kind in kinds if kind.name not in missing]
    measured = run(options.engine, present, names, options.rounds, options.scale)
    result: dict[str, Any] = {
        "engine": options.engine,
        "scale": options.scale,
        "missing": missing,
        "contenders": measured.about,
        "workloads": measured.workloads,
        "once": measured.once,
        "failures": measured.failures,
    }
    file = f"{NAME}_{options.engine}"
    if options.keep:
        result = _beside(result, read_result(file), names)
    path = write_result(file, _command(options), result)
    print(f"{options.engine} is in {path}", file=sys.stderr)
    print(section([options.engine]))
    if any(failure["contender"] in {OURS, LIMIT} for failure in measured.failures):
        sys.exit(1)


def _beside(result: dict[str, Any], last: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The result with what the last one has of other workloads, in the usual order."""
    found = {**last["workloads"], **result["workloads"]}
    ordered = {each.name: found[each.name] for each in WORKLOADS if each.name in found}
    failures = [each for each in last["failures"] if each["workload"] not in names]
    return {
        **result,
        "earlier": [*last.get("earlier", ()), last["command"]],
        "contenders": last["contenders"] | result["contenders"],
        "workloads": ordered,
        "once": last["once"] | result["once"],
        "failures": failures + result["failures"],
    }


def _chosen(names: str, kinds: Sequence[Kind], parser: argparse.ArgumentParser) -> Sequence[str]:
    chosen = names.split(",")
    if unknown := set(chosen) - {kind.name for kind in kinds}:
        parser.error(f"no such contender: {', '.join(sorted(unknown))}")
    return chosen


def _missing(kinds: Sequence[Kind]) -> dict[str, str]:
    """The contenders that are not installed, and why."""
    missing: dict[str, str] = {}
    for kind in kinds:
        try:
            kind.command()
        except ContenderFailed as error:
            missing[kind.name] = str(error)
    return missing


def _command(options: argparse.Namespace) -> str:
    """The command that was run."""
    given = {
        "rounds": options.rounds,
        "scale": f"{options.scale:g}",
        "workloads": options.workloads,
        "contenders": options.contenders,
        "missing": options.missing,
    }
    plain = {"scale": "1", "workloads": "all", "contenders": "all", "missing": "fail"}
    words = [f"--{name} {value}" for name, value in given.items() if plain.get(name) != value]
    words += ["--keep"] if options.keep else []
    return f"./scripts/benchmarks/run {NAME} --engine {options.engine} {' '.join(words)}"


class _Raw(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the description's layout, and shows defaults."""


if __name__ == "__main__":
    main()
