"""Which way of finding groups is the fastest: prototypes in plain SQL, raced on every engine.

The designs are described in ``groups_designs``. Each keeps groups first in, first out. Processes
claim and ack by 100; every message that came is checked: once, in the order of its group, none
begun before the one before it was acked. The shapes are numbers of groups, with messages in turns,
in a row, or by Zipf's law. ``--messages`` scales all of them.

Then: claims beside a blocked group of many messages against claims from an empty queue, also
while a transaction is open that has read before; and late commits, after which no later message of
the group may come first.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count, pairwise
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.progress import Progress

from queue_over_sql.testing.servers import PrivateServer
from scripts.benchmarks.ageing import parser_of
from scripts.benchmarks.groups_designs import DESIGNS, Claimed, create, publish
from scripts.benchmarks.groups_sessions import Session
from scripts.benchmarks.harness import (
    RESULTS,
    TITLES,
    NewDatabase,
    databases_of,
    origin_of,
    read_result,
)

NAME: Final = "groups"
PLAIN: Final = "none"
BATCH: Final = 100
MANY: Final = 10_000
_IDLE: Final = 1.5
_NAMES = count()
Record = tuple[str | None, int, float, float]


def names_of(shape: str, messages: int) -> list[str | None]:
    """The group of each message of a shape, in the order of publishing."""
    dice = random.Random(7)  # noqa: S311 - the same shape each time
    kind, _, size = shape.partition(":")
    if kind == "zipf":
        names = int(size)
        weights = [1 / place for place in range(1, names + 1)]
        return [f"g{number}" for number in dice.choices(range(names), weights, k=messages)]
    if kind == "saturated":
        many = messages * 4 // 5
        saturated: list[str | None] = ["busy"] * many
        return saturated + [f"g{number % 115}" for number in range(messages - many)]
    each = int(size)
    groups = max(1, messages // each)
    if kind == "turns":
        return [f"g{number % groups}" for number in range(messages)]
    return [f"g{number // each}" for number in range(messages)]


def consume(
    url: str, design: str, who: int, begin: float, limit: float
) -> tuple[list[Record], float]:
    """Claim and ack by 100 until nothing comes any more; also the seconds of the processor."""
    session = Session(url)
    claimer = DESIGNS[design](session, f"c{who}")
    records: list[Record] = []
    while time.monotonic() < begin:
        time.sleep(0.001)
    used, last = time.process_time(), time.monotonic()
    while time.monotonic() - last < _IDLE and last - begin < limit:
        got = claimer.claim(BATCH)
        if not got:
            time.sleep(0.002)
            continue
        last = time.monotonic()
        claimer.ack(got)
        done = time.monotonic()
        records += [(one.group, one.id, last, last) for one in got[:-1]]
        records.append((got[-1].group, got[-1].id, last, done))
    used = time.process_time() - used
    session.close()
    return records, used


def processor_of(pid: int) -> float:
    """The seconds of the processor that a server used, with the processes that it started."""
    total = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text(encoding="utf-8")
        except OSError:
            continue
        parts = text[text.rindex(")") + 2 :].split()
        if int(folder.name) == pid:
            total += sum(int(part) for part in parts[11:15])
        elif int(parts[1]) == pid:
            total += int(parts[11]) + int(parts[12])
    return total / os.sysconf("SC_CLK_TCK")


def warm(number: int) -> int:
    """Import this module in a process, before something is measured."""
    time.sleep(0.05)
    return number


def faults(records: Sequence[Record], published: int) -> dict[str, int]:
    """What a run did wrong: lost, twice, begun out of order or before the earlier one ended."""
    ids = [record[1] for record in records]
    groups: dict[str | None, list[tuple[float, int, float]]] = {}
    for group, row_id, begun, ended in records:
        groups.setdefault(group, []).append((begun, row_id, ended))
    disorder = 0
    for group, each in groups.items():
        each.sort()
        for (_, earlier, _), (_, later, _) in pairwise(each):
            disorder += group is not None and later < earlier
    return {
        "lost": published - len(set(ids)),
        "twice": len(ids) - len(set(ids)),
        "disorder": disorder,
    }


class Race:
    """The measurements on one server."""

    def __init__(self, new_database: NewDatabase, pool: Pool, limit: float) -> None:
        self._new, self._pool, self._limit = new_database, pool, limit

    @contextmanager
    def fresh(self) -> Generator[tuple[str, Session]]:
        """An empty database with the tables."""
        url = self._new(f"groups_{next(_NAMES)}")
        session = Session(url)
        create(session)
        yield url, session
        session.close()

    def rate(self, design: str, shape: str, messages: int, consumers: int) -> dict[str, Any]:
        """Messages a second."""
        names = names_of(shape, messages)
        if design == PLAIN:
            names = [None] * messages
        with self.fresh() as (url, session):
            publish(session, names)
            if session.engine == "postgresql":
                session.run("VACUUM ANALYZE live")
            before = self._server()
            begin = time.monotonic() + 0.2
            tasks = [
                self._pool.apply_async(consume, (url, design, who, begin, self._limit))
                for who in range(consumers)
            ]
            answers = [task.get(600) for task in tasks]
        records = [record for answer in answers for record in answer[0]]
        lasted = max((record[3] for record in records), default=begin) - begin
        used = sum(answer[1] for answer in answers) + self._server() - before
        wrong = {k: v for k, v in faults(records, messages).items() if v}
        if lasted > self._limit:
            wrong["unfinished"] = wrong.pop("lost", 0)
        return {
            "rate": round(len(records) / max(lasted, 1e-9)),
            "processor_us": round(1e6 * used / max(len(records), 1), 1),
            **wrong,
        }

    def _server(self) -> float:
        server = getattr(self._new, "__self__", None)
        return processor_of(server.pid) if isinstance(server, PrivateServer) else 0.0

    def blocked(
        self, design: str, messages: int, batch: int, *, held: bool, groups: int = 1
    ) -> dict[str, Any]:
        """Milliseconds of a claim: from an empty queue, and beside blocked groups."""
        with self.fresh() as (url, session), ExitStack() as stack:
            if held:
                reader = Session(url)
                stack.callback(reader.close)
                if session.engine != "postgresql":
                    reader.run("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                stack.enter_context(reader.transaction())
                if session.engine == "postgresql":
                    reader.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                reader.run("SELECT count(*) FROM live")
            claimer = DESIGNS[design](session, "c")
            empty = self._claims(session, claimer, batch)
            publish(session, [f"blocked{number % groups}" for number in range(messages)])
            holder = DESIGNS[design](session, "holder", most=1)
            left = groups
            while left:
                left -= len(holder.claim(min(left, BATCH)))
            loaded = self._claims(session, claimer, batch)
        return {
            "empty": round(median(empty[1:]), 3),
            "first": round(loaded[0], 3),
            "blocked": round(median(loaded[1:]), 3),
        }

    @staticmethod
    def _claims(session: Session, claimer: Any, batch: int) -> list[float]:
        lasted: list[float] = []
        for number in range(21):
            publish(session, [f"other{number}_{place}" for place in range(batch)])
            begun = time.monotonic()
            got: list[Claimed] = []
            while not got:
                got = claimer.claim(batch)
            lasted.append(1000 * (time.monotonic() - begun))
            claimer.ack(got)
        return lasted

    def late(self, design: str, rounds: int) -> int:
        """How often a later message of a group came before one that was committed before."""
        overtaken = 0
        with self.fresh() as (url, session):
            early = Session(url)
            claimer = DESIGNS[design](session, "c")
            for number in range(rounds):
                group = f"g{number % 5}"
                text = "INSERT INTO live (group_key, payload, available_at) VALUES (?, 'x', ?)"
                at = time.time_ns() // 1000
                with early.transaction():
                    # Long before the mark of the claimer, but committed after it.
                    early.run(text, (group, at - 5_000_000))
                    if session.engine != "sqlite":
                        publish(session, [f"other{number}"])
                        claimer.ack(claimer.claim(1))
                publish(session, [group])
                came = [message.id for message in claimer.claim(1)]
                ids = came[:]
                if not came:
                    ids = [message.id for message in claimer.claim(1)]
                rest = self._drain(claimer, ids, group)
                overtaken += rest != sorted(rest)
            early.close()
        return overtaken

    @staticmethod
    def _drain(claimer: Any, ids: list[int], group: str) -> list[int]:
        came, held = list(ids), [Claimed(row_id, group, 0) for row_id in ids]
        if held:
            claimer.ack(held)
        for _ in range(4):
            if len(came) > 1:
                break
            got = claimer.claim(1)
            if got:
                came += [one.id for one in got]
                claimer.ack(got)
        return came


def measure(engine: str, options: Any, progress: Progress) -> dict[str, Any]:
    """Race all designs on one engine."""
    shapes = options.shapes.split(",")
    designs = options.designs.split(",")
    counts = [int(each) for each in options.consumers.split(",")]
    found: dict[str, Any] = {"rates": {}, "blocked": {}, "late": {}}
    left = len(shapes) * len(counts) * options.rounds * len(designs)
    running = progress.add_task(f"{engine}: rates", total=left)
    with databases_of(engine) as new, get_context("spawn").Pool(max(counts)) as pool:
        pool.map(warm, range(4 * max(counts)), chunksize=1)
        race = Race(new, pool, options.limit)
        for shape in shapes:
            for consumers in counts:
                case = found["rates"].setdefault(f"{shape} x {consumers}", {})
                for _ in range(options.rounds):
                    for design in designs:
                        case.setdefault(design, []).append(
                            _noted(lambda: race.rate(design, shape, options.messages, consumers))  # noqa: B023
                        )
                        progress.advance(running)
                progress.print(f"{engine} {shape} x {consumers}: {case}")
        for design in designs:
            if design == PLAIN:
                continue
            for held in (False, True):
                if held and engine in {"sqlite", "h2"}:
                    continue
                for batch in (1, 100):
                    name = f"by {batch}{', held' if held else ''}"
                    case = found["blocked"].setdefault(name, {})
                    case[design] = _noted(
                        lambda: race.blocked(design, options.blocked, batch, held=held)  # noqa: B023
                    )
                    progress.print(f"{engine} {name} {design}: {case[design]}")
            many = found["blocked"].setdefault(f"by 1, {MANY:,} groups", {})
            many[design] = _noted(
                lambda: race.blocked(design, 2 * MANY, 1, held=False, groups=MANY)  # noqa: B023
            )
            progress.print(f"{engine} {MANY} groups {design}: {many[design]}")
            found["late"][design] = _noted(lambda: race.late(design, options.late))  # noqa: B023
            progress.print(f"{engine} late {design}: {found['late'][design]}")
    return found


def _noted(act: Any) -> Any:
    try:
        return act()
    except Exception as error:  # noqa: BLE001 - a design that fails has lost
        return {"failed": f"{type(error).__name__}: {error}"[:200]}


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the results."""
    results = {
        engine: read_result(f"{NAME}_{engine}")
        for engine in TITLES
        if (RESULTS / f"{NAME}_{engine}.json").exists()
    }
    names = [name for name in DESIGNS if name != PLAIN]
    lines = [
        "## Groups: how a claim finds them",
        "",
        f"""\
Prototypes in plain SQL; [the design notes](design.md#the-race-of-designs) tell them apart.
Messages are claimed and acked by {BATCH}. A cell compares with ungrouped messages and as many
consumers, in turns, the median of the rounds: how many messages for as much of the processor's
time, client and server together; in brackets for as much time, on a machine with other work.
`turns:20` are groups of 20 messages in turns, `rows:25` groups of 25 in a row. `lost`: nobody came
for some messages; `unfinished`: stopped at the limit of time; `-`: not measured.""",
        "",
        f"| engine | shape, consumers | messages | ungrouped/s | {' | '.join(names)} |",
        f"|---|---|---|---|{'---|' * len(names)}",
    ]
    for engine, result in results.items():
        for case, by_design in result["engines"][engine]["rates"].items():
            plain = by_design[PLAIN]
            usual = median(one["rate"] for one in plain)
            cells = [TITLES[engine], case, f"{result['messages']:,}", f"{usual:,.0f}"]
            cells += [_cell(by_design.get(name, ()), plain) for name in names]
            lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        """\
A claim beside one blocked group, against one from an empty queue: the median of 20, as a ratio; in
brackets the first one, in milliseconds.""",
        "",
        f"| engine | blocked | claim | {' | '.join(names)} |",
        f"|---|---|---|{'---|' * len(names)}",
    ]
    for engine, result in results.items():
        for case, by_design in result["engines"][engine]["blocked"].items():
            cells = [TITLES[engine], f"{result['blocked']:,}", case]
            cells += [_against(by_design.get(name, {})) for name in names]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Overtakings after late commits:", ""]
    for engine, result in results.items():
        if not result["engines"][engine]["late"]:
            lines.append(f"- {TITLES[engine]}: not measured. {origin_of(result)}")
            continue
        late = ", ".join(
            f"{name} {'fails' if isinstance(found, dict) else found}"
            for name, found in result["engines"][engine]["late"].items()
        )
        lines.append(f"- {TITLES[engine]}, {result['late']} rounds: {late}. {origin_of(result)}")
    return "\n".join(lines) + "\n"


def _ratio(rounds: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]], what: str) -> str:
    if any("failed" in one for one in rounds):
        return "fails"
    ratio = median(one[what] / base[what] for one, base in zip(rounds, plain, strict=True))
    return f"{ratio if what == 'rate' else 1 / ratio:.2f}"


def _cell(rounds: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]]) -> str:
    if not rounds:
        return "-"
    wrong = {name for one in rounds for name in one if name in {"lost", "twice", "disorder"}}
    slow = {name for one in rounds for name in one if name == "unfinished"}
    cell = f"{_ratio(rounds, plain, 'processor_us')} ({_ratio(rounds, plain, 'rate')})"
    return ", ".join([cell, *sorted(wrong | slow)])


def _against(case: dict[str, Any]) -> str:
    if not case:
        return "-"
    if "failed" in case:
        return "fails"
    return f"{case['blocked'] / case['empty']:.1f} ({case['first']:,.0f})"


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = parser_of(__doc__)
    parser.add_argument("--designs", default=",".join(DESIGNS), help="by commas")
    parser.add_argument("--messages", type=int, default=20_000, help="of each shape")
    parser.add_argument("--blocked", type=int, default=100_000, help="messages of a blocked group")
    parser.add_argument("--limit", type=float, default=30, help="seconds of a run")
    parser.add_argument("--late", type=int, default=200, help="rounds with a late commit")
    parser.add_argument("--rounds", type=int, default=3, help="of each rate")
    parser.add_argument("--consumers", default="1,8", help="numbers of processes")
    shapes = "turns:20,rows:25,rows:100,rows:1000,rows:1000000,zipf:100000,saturated:115"
    parser.add_argument("--shapes", default=shapes, help="by commas")
    options = parser.options({"messages": 2000, "blocked": 2000, "late": 20, "rounds": 1})
    if options.markdown:
        print(section(), end="")
        return
    sizes = {name: getattr(options, name) for name in ("messages", "blocked", "late")}
    for engine in options.engines.split(","):
        options.engines = engine
        parser.measure_each(
            NAME,
            options,
            sizes,
            lambda engine, progress: measure(engine, options, progress),
            f"{NAME}_{engine}",
        )
    print(section())


if __name__ == "__main__":
    main()
