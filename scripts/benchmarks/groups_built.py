"""Queues with groups as they are built, against a queue without groups, and against themselves.

All through the public interface, first in first out with one message of a group in hand, in several
processes. Compared queues lie on one server in databases of their own, and run in turns. Every
message must come once and in the order of its group, and none may begin before the one before it
was acked. The parts, of which ``--parts`` chooses:

- ``rates``: 10,000 groups in turns against no groups, claimed by 100 and handled by workers;
- ``shapes``: few large groups and many small ones, and sizes by Zipf's law, by 100;
- ``blocked``: claims beside many messages of a blocked group, against claims beside none, also
  while a transaction is open that has read before;
- ``saturated``: 115 groups beside one of 12,000 messages that waits for a slow consumer, against
  the same groups alone, with statistics of the empty table;
- ``wakes``: from the ack in one process to the claim of the next message of the group in another;
- ``quiet``: what consumers write that wait while the limits of all groups are reached.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count as counter
from itertools import pairwise
from statistics import median
from typing import Any, Final, NamedTuple

from rich.progress import Progress
from sqlalchemy import Connection, text

from queue_over_sql import Message, Publication, Queue, QueueService
from queue_over_sql.service import parts_of
from queue_over_sql.testing.servers import PrivateServer
from scripts.benchmarks.ageing import (
    Helper,
    figures,
    helpers_of,
    message,
    number_of,
    numbers,
    parser_of,
    settle,
)
from scripts.benchmarks.ageing_horizon import begin_reading
from scripts.benchmarks.groups import names_of, processor_of
from scripts.benchmarks.harness import (
    RESULTS,
    TITLES,
    NewDatabase,
    databases_of,
    origin_of,
    progress_bar,
    read_result,
    run_alone,
    write_result,
)

NAME: Final = "groups_built"
PARTS: Final = ("rates", "shapes", "blocked", "saturated", "wakes", "quiet")
PLAIN, GROUPED = "ungrouped", "grouped"
BATCH: Final = 100
THREADS: Final = 4
PROCESSES: Final = 8
"""More consumers are threads of as many processes, each with a service of its own."""
GROUPS: Final = 10_000
ACTIVE: Final = 115
SATURATED: Final = 12_000
GOALS: Final = {"postgresql": 0.7, "sqlite": 0.6, "mariadb": 0.6}
SHAPES: Final = {
    "8,000 x 25": 25,
    "2,000 x 100": 100,
    "200 x 1,000": 1_000,
    "1 x 200,000": 200_000,
    "Zipf": 0,
}
"""Messages of a group; 0: sizes by Zipf's law, half as many groups as messages."""
FULL: Final = 200_000
_LEASE: Final = 86_400
_IDLE: Final = 0.5
_NAMES = counter()
_held: list[Message] = []
_services: list[QueueService] = []


class Taken(NamedTuple):
    """Messages that were begun together, by the machine's monotonic clock.

    They ended before their ack, which was done later: it counts before its return.
    """

    began: float
    ended: float
    done: float
    numbers: list[int]


# ---------------------------------------------------------------- what helpers do


def is_over(queue: Queue, rest: int) -> bool:
    """Whether no more messages than ``rest`` are left."""
    # To count what waits takes as long as many claims.
    return queue.stats().live <= rest if rest else not queue.messages().list(limit=1)


def drain(queue: Queue, rest: int, begin: float, limit: float) -> tuple[list[Taken], float]:
    """Claim and ack by 100 until only ``rest`` are left; also the seconds of the processor."""
    taken: list[Taken] = []
    while time.monotonic() < begin:
        time.sleep(0.001)
    used = time.process_time()
    while time.monotonic() - begin < limit:
        got = queue.consume(BATCH, wait=_IDLE)
        if not got and is_over(queue, rest):
            break
        now = time.monotonic()
        if got:
            queue.ack(got)
            taken.append(Taken(now, now, time.monotonic(), [number_of(each) for each in got]))
    return taken, time.process_time() - used


def drain_beside(
    queue: Queue, rest: int, begin: float, limit: float, *, url: str, threads: int
) -> tuple[list[Taken], float]:
    """As ``drain``, by several consumers of one process: each is a service with a thread."""
    while len(_services) < threads:
        _services.append(QueueService(url))
    queues = [service.queue(queue.name) for service in _services[:threads]]
    used = time.process_time()
    with ThreadPoolExecutor(threads) as pool:
        taken = [*pool.map(lambda each: drain(each, rest, begin, limit)[0], queues)]
    return [each for one in taken for each in one], time.process_time() - used


def work(queue: Queue, rest: int, url: str, limit: float) -> tuple[list[Taken], float]:
    """Run a worker until only ``rest`` are left; also the seconds of the processor."""
    taken: list[Taken] = []
    begun, used, ended = time.monotonic(), time.process_time(), threading.Event()
    with QueueService(url) as service:
        worker = service.worker(concurrency=THREADS)

        @worker.handle(queue.name)
        def handle(delivered: Message) -> None:
            now = time.monotonic()
            taken.append(Taken(now, now, now, [number_of(delivered)]))

        def watch() -> None:
            seen = -1
            while not ended.wait(_IDLE):
                idle, seen = seen == len(taken), len(taken)
                if time.monotonic() - begun > limit or (idle and is_over(queue, rest)):
                    worker.stop()

        watching = threading.Thread(target=watch)
        watching.start()
        worker.run()
        ended.set()
        watching.join()
    return taken, time.process_time() - used


def hold(queue: Queue) -> float:
    """Claim a message and keep it; returns when it came."""
    _held[:] = queue.consume(1, wait=20.0)
    if not _held:
        raise RuntimeError("no message came within 20 s")
    return time.monotonic()


def let_go(queue: Queue) -> float:
    """Ack what is kept; returns when that was done."""
    queue.ack(_held)
    return time.monotonic()


def stand_by(queue: Queue, seconds: float) -> int:
    """Wait for messages; returns how many came."""
    came, end = 0, time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        came += len(queue.consume(BATCH, wait=left))
    return came


# ---------------------------------------------------------------- queues


@dataclass
class Side:
    """A queue in its own database, and processes that consume from it."""

    url: str
    service: QueueService
    queue: Queue
    helpers: list[Helper]
    server: Callable[[], float]
    rest: int = 0
    published: int = 0
    has_many: bool = False
    groups: dict[int, str | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls, stack: ExitStack, new: NewDatabase, processes: int, *, grouped: bool = True
    ) -> Side:
        """A new one; it ends with the stack."""
        url = new(f"groups_{next(_NAMES)}")
        service = stack.enter_context(QueueService(url))
        groups: dict[str, Any] = {"group_limit": 1} if grouped else {}
        queue = service.create_queue("jobs", archive="none", lease=_LEASE, **groups)
        server = getattr(new, "__self__", None)
        pid = server.pid if isinstance(server, PrivateServer) else None
        used = partial(processor_of, pid) if pid is not None else float
        helpers = helpers_of(stack, url, min(processes, PROCESSES))
        return cls(url, service, queue, helpers, used)

    def publish(self, groups: Iterable[str | None]) -> int:
        """Publish a message for each of these groups, in order; returns how many."""
        items = []
        for group in groups:
            self.groups[self.published] = group
            items.append(Publication(message(self.published), group=group))
            self.published += 1
        return self.queue.load(items)

    def together(
        self, count: int, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> list[Any]:
        """Run a function in a number of processes at once."""
        for helper in self.helpers[:count]:
            helper.start(function, *args, **kwargs)
        return [helper.result() for helper in self.helpers[:count]]

    def rate(
        self,
        groups: Sequence[str | None],
        consumers: int,
        limit: float,
        *,
        worker: bool = False,
        settled: bool = True,
    ) -> dict[str, Any]:
        """Messages a second of consuming these, and what was wrong.

        With ``settled`` the server does first the maintenance that new rows would soon cause.
        """
        self.groups.clear()
        self.publish(groups)
        if settled:
            settle(self.service)
        begin, used = time.monotonic() + 0.1, self.server()
        processes, threads = min(consumers, PROCESSES), max(consumers // PROCESSES, 1)
        if worker:
            answers = self.together(consumers, work, self.rest, self.url, limit)
        elif threads > 1:
            # The first time their services must begin.
            begin += 1.0 if self.has_many else 30.0
            self.has_many = True
            many = {"url": self.url, "threads": threads}
            answers = self.together(processes, drain_beside, self.rest, begin, limit, **many)
        else:
            answers = self.together(consumers, drain, self.rest, begin, limit)
        used = self.server() - used + sum(answer[1] for answer in answers)
        taken = [Taken(*each) for answer in answers for each in answer[0]]
        if worker:
            begin = min((each.began for each in taken), default=begin)
        seconds = max((each.done for each in taken), default=begin) - begin
        came = sum(len(each.numbers) for each in taken)
        wrong = faults(taken, self.groups)
        if wrong["lost"] and self.queue.stats().live > self.rest:
            wrong["unfinished"] = wrong.pop("lost")
            self.queue.purge()
        return {
            "rate": round(came / max(seconds, 1e-9)),
            "processor_us": round(1e6 * used / max(came, 1), 1),
            **{name: number for name, number in wrong.items() if number},
        }


def faults(taken: Sequence[Taken], groups: Mapping[int, str | None]) -> dict[str, int]:
    """What consumers got wrong: lost, twice, out of order, begun before the earlier one ended."""
    came = [number for each in taken for number in each.numbers]
    last: dict[str, tuple[int, Taken]] = {}
    disorder = beside = 0
    for each in sorted(taken):
        for number in each.numbers:
            group = groups[number]
            if group is None:
                continue
            if group in last:
                before, earlier = last[group]
                disorder += number < before
                beside += earlier is not each and each.began < earlier.ended
            last[group] = (number, each)
    return {
        "lost": len(groups.keys() - set(came)),
        "twice": len(came) - len(set(came)),
        "disorder": disorder,
        "beside": beside,
    }


# ---------------------------------------------------------------- the parts


@dataclass
class Bench:
    """The measurements of one engine."""

    engine: str
    new: NewDatabase
    options: Any
    progress: Progress

    def _note(self, what: str, found: Any) -> None:
        self.progress.print(f"{self.engine} {what}: {found}")

    def rates(self, stack: ExitStack) -> dict[str, Any]:
        """Grouped against ungrouped."""
        options, most = self.options, max(self.options.consumers)
        sides = {
            PLAIN: Side.of(stack, self.new, most, grouped=False),
            GROUPED: Side.of(stack, self.new, most),
        }
        names = [f"g{number % GROUPS}" for number in range(options.messages)]
        of: dict[str, Sequence[str | None]] = {PLAIN: [None] * len(names), GROUPED: names}
        found: dict[str, Any] = {"messages": options.messages, "cases": {}}
        for name, side in sides.items():
            # Statements are prepared, and groups have their rows.
            side.rate(of[name][: 2 * GROUPS], most, options.limit)
        for consumers in options.consumers:
            for worker in (False, True) if consumers <= PROCESSES else (False,):
                case: dict[str, list[Any]] = {name: [] for name in sides}
                for turn in range(options.rounds):
                    for name in list(sides)[:: -1 if turn % 2 else 1]:
                        case[name].append(
                            sides[name].rate(of[name], consumers, options.limit, worker=worker)
                        )
                how = "worker" if worker else f"by {BATCH}"
                found["cases"][f"{how} x {consumers}"] = case
                self._note(f"{how} x {consumers}", case)
        return found

    def shapes(self, stack: ExitStack) -> dict[str, Any]:
        """Numbers and sizes of groups."""
        options, most = self.options, max(self.options.consumers)
        side, plain = (Side.of(stack, self.new, most, grouped=g) for g in (True, False))
        count = round(FULL * options.scale)
        found: dict[str, Any] = {"messages": count, "cases": {}}
        plain.rate([None] * 5_000, most, options.limit)
        side.rate(names_of("turns:5", 5_000), most, options.limit)
        for consumers in options.consumers:
            case: dict[str, list[Any]] = {name: [] for name in (PLAIN, *SHAPES)}
            for turn in range(options.shape_rounds):
                for name in list(case)[:: -1 if turn % 2 else 1]:
                    if name == PLAIN:
                        got = plain.rate([None] * count, consumers, options.limit)
                    else:
                        each = round(SHAPES[name] * options.scale) if SHAPES[name] == FULL else 0
                        size = each or SHAPES[name]
                        shape = f"turns:{size}" if size else f"zipf:{count // 2}"
                        groups = [f"{name} {group}" for group in names_of(shape, count)]
                        got = side.rate(groups, consumers, options.limit)
                    case[name].append(got)
                    self._note(f"{name} x {consumers}", got)
            found["cases"][str(consumers)] = case
        return found

    def blocked(self, _: ExitStack) -> dict[str, Any]:
        """Claims beside blocked messages, and beside none."""
        options = self.options
        found: dict[str, Any] = {"messages": options.blocked, "cases": {}}
        for held in (False, True):
            for batch in (1, BATCH):
                with ExitStack() as inner:
                    empty, loaded = (Side.of(inner, self.new, 0) for _ in range(2))
                    for side in (empty, loaded) if held else ():
                        inner.enter_context(begin_reading(side.url, self.engine))
                    for number in range(10):
                        self._claim(empty, batch, f"warm{number}")
                        self._claim(loaded, batch, f"warm{number}")
                    loaded.publish(["blocked"] * options.blocked)
                    loaded.queue.consume(1)
                    times: dict[str, list[float]] = {"empty": [], "blocked": []}
                    for number in range(options.claims):
                        times["empty"].append(self._claim(empty, batch, f"o{number}"))
                        times["blocked"].append(self._claim(loaded, batch, f"o{number}"))
                case = self._compared(times)
                name = f"by {batch}{', held' if held else ''}"
                found["cases"][name] = case
                self._note(f"blocked {name}", case)
        return found

    @staticmethod
    def _claim(side: Side, batch: int, name: str) -> float:
        """Milliseconds until a claim has got what was published last."""
        side.publish([f"{name} {place}" for place in range(batch)])
        began, left = time.monotonic(), batch
        got: list[Message] = []
        while left > 0:
            some = side.queue.consume(left)
            left -= len(some)
            got += some
        lasted = 1000 * (time.monotonic() - began)
        side.queue.ack(got)
        return lasted

    @staticmethod
    def _compared(times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        """Claims at the end, when what is blocked has been moved aside, and those until then."""
        last = {name: median(each[len(each) // 2 :]) for name, each in times.items()}
        slow = [each for each in times["blocked"] if each > 3 * last["blocked"]]
        return {
            **{name: round(each, 3) for name, each in last.items()},
            "worst": round(max(times["blocked"]), 1),
            "slow": len(slow),
        }

    def saturated(self, stack: ExitStack) -> dict[str, Any]:
        """Groups beside a large one that waits."""
        options, most = self.options, max(self.options.consumers)
        alone, beside = (Side.of(stack, self.new, most) for _ in range(2))
        for side in (alone, beside):
            keep_stale(self.engine, side.service)
        beside.publish(["busy"] * SATURATED)
        beside.queue.consume(1)
        beside.rest = SATURATED
        names = [f"g{number % ACTIVE}" for number in range(options.active)]
        found: dict[str, Any] = {"messages": options.active, "alone": [], "beside": []}
        for turn in range(options.rounds + 1):
            for name, side in (("alone", alone), ("beside", beside))[:: -1 if turn % 2 else 1]:
                got = side.rate(names, most, options.limit, settled=False)
                if turn or name == "beside":
                    found[name].append(got)
        found["first"] = found["beside"].pop(0)
        self._note("saturated", found)
        return found

    def wakes(self, stack: ExitStack) -> dict[str, Any]:
        """From an ack to a claim in another process."""
        options, side = self.options, Side.of(stack, self.new, 2)
        side.publish(["g"] * (options.wakes + 11))
        holder, waiter = side.helpers
        holder.start(hold)
        holder.result()
        waits: list[float] = []
        for turn in range(options.wakes + 10):
            waiter.start(hold)
            # Until it has looked a few times, at changing distances from its looks.
            time.sleep(0.04 + 0.0007 * (turn % 50))
            holder.start(let_go)
            done = holder.result()
            waits.append(max(0.0, waiter.result() - done))
            holder, waiter = waiter, holder
        found = figures(waits[10:])
        self._note("wake", found)
        return found

    def quiet(self, stack: ExitStack) -> dict[str, Any]:
        """What consumers write that wait in vain."""
        options, most = self.options, min(max(self.options.consumers), PROCESSES)
        side = Side.of(stack, self.new, most)
        empty = Side.of(stack, self.new, most)
        side.publish([f"g{number % 10}" for number in range(10_000)])
        held = side.queue.consume(10)
        if len({each.group for each in held}) != len(held):
            raise RuntimeError("it was to hold one message of each group")
        with parts_of(side.service).connections.engine.connect() as connection:
            watch_writes(self.engine, connection)
            # Meanwhile they move aside what is blocked.
            came = sum(side.together(most, stand_by, 5.0))
            before = state_of(self.engine, connection)
            logged = [log_of(self.engine, connection)]
            came += sum(side.together(most, stand_by, options.seconds))
            after = state_of(self.engine, connection)
            logged.append(log_of(self.engine, connection))
            came += sum(empty.together(most, stand_by, options.seconds))
            logged.append(log_of(self.engine, connection))
        found = {
            "seconds": options.seconds,
            "consumers": most,
            "came": came,
            "writes": after[1] - before[1] if self.engine != "h2" else None,
            "changed": sum(a != b for a, b in zip(before[0], after[0], strict=True)),
            "log": [b - a for a, b in pairwise(logged)],
        }
        self._note("quiet", found)
        return found


# ---------------------------------------------------------------- what differs by engine


def keep_stale(engine: str, service: QueueService) -> None:
    """Let the planner believe for ever that the queue is empty."""
    statements = {
        "postgresql": [
            "ANALYZE queue_jobs",
            "ANALYZE queue_jobs_groups",
            "ALTER TABLE queue_jobs SET (autovacuum_enabled = false)",
            "ALTER TABLE queue_jobs_groups SET (autovacuum_enabled = false)",
        ],
        "mariadb": ["ALTER TABLE queue_jobs STATS_AUTO_RECALC = 0", "ANALYZE TABLE queue_jobs"],
        "mysql": ["ALTER TABLE queue_jobs STATS_AUTO_RECALC = 0", "ANALYZE TABLE queue_jobs"],
    }
    run_alone(service, statements.get(engine, ()))


def watch_writes(engine: str, connection: Connection) -> None:
    """Count from now on each row of the queue and of its groups that is written."""
    if engine == "h2":
        return
    run = connection.exec_driver_sql
    run("CREATE TABLE writes_seen (one INTEGER)")
    note = "INSERT INTO writes_seen VALUES (1)"
    if engine == "postgresql":
        run(
            "CREATE FUNCTION note_write() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN {note}; RETURN NULL; END $$"
        )
    each = {"postgresql": "EXECUTE FUNCTION note_write()", "sqlite": f"BEGIN {note}; END"}
    for table in ("queue_jobs", "queue_jobs_groups"):
        for act in ("INSERT", "UPDATE", "DELETE"):
            name, then = f"seen_{table}_{act}".lower(), each.get(engine, note)
            run(f"CREATE TRIGGER {name} AFTER {act} ON {table} FOR EACH ROW {then}")
    connection.commit()


def state_of(engine: str, connection: Connection) -> tuple[list[Any], int]:
    """All rows of the queue and its groups, and how many were written since ``watch_writes``."""
    rows: list[Any] = []
    for table in ("queue_jobs", "queue_jobs_groups"):
        rows += sorted(map(str, connection.execute(text(f"SELECT * FROM {table}"))))
    written = 0
    if engine != "h2":
        written = connection.execute(text("SELECT count(*) FROM writes_seen")).scalar_one()
    connection.commit()
    return rows, written


def log_of(engine: str, connection: Connection) -> int:
    """The bytes that PostgreSQL has written to its log, for all that it does; else 0."""
    if engine != "postgresql":
        return 0
    asked = connection.execute(text("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))
    written = int(asked.scalar_one())
    connection.commit()
    return written


def measure(
    engine: str, options: Any, progress: Progress, keep: Callable[[str, Any], None]
) -> None:
    """Measure the chosen parts on one engine; ``keep`` gets each when it was measured."""
    with databases_of(engine) as new:
        bench = Bench(engine, new, options, progress)
        for part in options.parts.split(","):
            # A reader in the same server would keep the rows of other parts.
            with ExitStack() as stack:
                keep(part, getattr(bench, part)(stack))


# ---------------------------------------------------------------- the page


def section() -> str:
    """The part of the page that shows the results."""
    results = {
        engine: read_result(f"{NAME}_{engine}")
        for engine in TITLES
        if (RESULTS / f"{NAME}_{engine}.json").exists()
    }
    lines = ["## Groups: what is built", ""]
    for part, show in _SHOWN.items():
        measured = {e: each["parts"][part] for e, each in results.items() if part in each["parts"]}
        if measured:
            lines += [*show(measured), ""]
    lines += [f"- {TITLES[engine]}: {origin_of(each)}" for engine, each in results.items()]
    return "\n".join(lines) + "\n"


def _rates(measured: Mapping[str, Any]) -> list[str]:
    goals = ", ".join(f"{TITLES[engine]} {goal}" for engine, goal in GOALS.items())
    lines = [
        f"""\
First in first out in {GROUPS:,} groups, published in turns, against a queue without groups; both
run in turns. Messages a second; the ratio is the median of those of single rounds. Goals of it by
{BATCH}: {goals}. Workers have {THREADS} threads in each process, and handlers that do nothing. The
last columns are the same for the processor's time of server and consumers, which other work on the
machine disturbs less: microseconds of a message, ungrouped and grouped, and how many messages for
as much of it.""",
        "",
        "| engine | claimed | messages | ungrouped | grouped | ratio | rounds | µs | µs | |",
        "|---|---|--:|--:|--:|--:|---|--:|--:|--:|",
    ]
    for engine, found in measured.items():
        for name, case in found["cases"].items():
            plain, grouped = ([one["rate"] for one in case[side]] for side in (PLAIN, GROUPED))
            ratios = [g / p for g, p in zip(grouped, plain, strict=True)]
            cells = [TITLES[engine], name, f"{found['messages']:,}", f"{median(plain):,.0f}"]
            cells += [f"{median(grouped):,.0f}", f"{median(ratios):.2f}"]
            cells += [" ".join(f"{ratio:.2f}" for ratio in sorted(ratios)) + _wrong(case[GROUPED])]
            spent = [[one["processor_us"] for one in case[side]] for side in (PLAIN, GROUPED)]
            cells += [f"{median(each):.1f}" for each in spent]
            cells += [f"{median(p / g for p, g in zip(*spent, strict=True)):.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _shapes(measured: Mapping[str, Any]) -> list[str]:
    lines = [
        f"""\
Shapes, by {BATCH}: messages a second in all, and in brackets how much slower than the fastest
shape (the goal is 2.0). Sizes are scaled with the number of messages: of {FULL:,} messages the
shapes are as named. In Zipf the sizes of half as many groups as messages are by Zipf's law.""",
        "",
        f"| engine | processes | messages | ungrouped | {' | '.join(SHAPES)} |",
        f"|---|--:|--:|--:|{'--:|' * len(SHAPES)}",
    ]
    for engine, found in measured.items():
        for consumers, case in found["cases"].items():
            rates = {name: median(one["rate"] for one in each) for name, each in case.items()}
            best = max(rates[name] for name in SHAPES)
            cells = [TITLES[engine], consumers, f"{found['messages']:,}", f"{rates[PLAIN]:,.0f}"]
            cells += [
                f"{rates[name]:,.0f} ({best / max(rates[name], 1):.1f}){_wrong(case[name])}"
                for name in SHAPES
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _blocked(measured: Mapping[str, Any]) -> list[str]:
    lines = [
        """\
Milliseconds of a claim of messages of other groups, beside the messages of a blocked group, and
beside none: in turns, the median when what is blocked has been moved aside. Before that, single
claims move it aside: how many of them were slower than three times that, and the slowest. `held`:
in both databases a transaction is open that has read before. The goal is a ratio of 2.0.""",
        "",
        "| engine | blocked | claim | beside none | beside blocked | ratio | slow | slowest |",
        "|---|--:|---|--:|--:|--:|--:|--:|",
    ]
    for engine, found in measured.items():
        for name, case in found["cases"].items():
            ratio = case["blocked"] / case["empty"]
            cells = [TITLES[engine], f"{found['messages']:,}", name, f"{case['empty']:.2f}"]
            cells += [f"{case['blocked']:.2f}", f"{ratio:.2f}", str(case["slow"])]
            lines.append(f"| {' | '.join([*cells, format(case['worst'], ',.0f')])} |")
    return lines


def _saturated(measured: Mapping[str, Any]) -> list[str]:
    lines = [
        f"""\
{ACTIVE} groups, alone and beside a group of {SATURATED:,} messages whose first one is in hand;
messages a second by {BATCH}, with statistics of the empty table. The first round moves aside what
waits.""",
        "",
        "| engine | messages | alone | beside | ratio | first round |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for engine, found in measured.items():
        alone, beside = ([one["rate"] for one in found[side]] for side in ("alone", "beside"))
        ratio = median(b / a for a, b in zip(alone, beside, strict=True))
        cells = [TITLES[engine], f"{found['messages']:,}", f"{median(alone):,.0f}"]
        cells += [f"{median(beside):,.0f}{_wrong(found['beside'])}", f"{ratio:.2f}"]
        cells.append(f"{found['first']['rate']:,}{_wrong([found['first']])}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _wakes(measured: Mapping[str, Any]) -> list[str]:
    lines = [
        """\
From the return of an ack to the return of the claim of the next message of the group, by a
consumer of another process that waits; in milliseconds. The goal is a p99 of 50 on PostgreSQL and
SQLite; other engines poll.""",
        "",
        "| engine | acks | median | p99 | longest |",
        "|---|--:|--:|--:|--:|",
    ]
    for engine, found in measured.items():
        cells = [TITLES[engine], str(found["count"])]
        cells += [f"{found[name]:.1f}" for name in ("median", "p99", "max")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _quiet(measured: Mapping[str, Any]) -> list[str]:
    lines = ["Consumers that wait while ten groups of a thousand have a message in hand:", ""]
    for engine, found in measured.items():
        said = f"{found['consumers']} consumers in {found['seconds']:.0f} s"
        written = found["writes"]
        if written is not None:
            said += f" wrote {written} rows of the queue and its groups"
        said += f", and {found['changed'] or 'no'} rows were changed."
        if found["log"][0]:
            waiting, empty = (f"{each // 1024:,} KiB" for each in found["log"])
            said += f" The server's log grew by {waiting}, and by {empty} beside an empty queue."
        lines.append(f"- {TITLES[engine]}: {said}")
    return lines


_SHOWN: Final[Mapping[str, Callable[[Mapping[str, Any]], list[str]]]] = {
    "rates": _rates,
    "shapes": _shapes,
    "blocked": _blocked,
    "saturated": _saturated,
    "wakes": _wakes,
    "quiet": _quiet,
}


def _wrong(rounds: Sequence[Mapping[str, Any]]) -> str:
    """What went wrong in any of the rounds."""
    names = sorted({name for one in rounds for name in one} - {"rate", "processor_us"})
    return "".join(f", {name}" for name in names)


# ---------------------------------------------------------------- the command


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = parser_of(__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="by commas")
    parser.add_argument("--consumers", type=numbers, default=[1, 8], help="numbers of processes")
    parser.add_argument("--messages", type=int, default=20_000, help="of a run of rates")
    parser.add_argument("--rounds", type=int, default=3, help="of rates and saturated")
    parser.add_argument("--scale", type=float, default=1.0, help=f"of shapes of {FULL:,} messages")
    parser.add_argument("--shape-rounds", type=int, default=1, help="of shapes")
    parser.add_argument("--blocked", type=int, default=100_000, help="messages of a blocked group")
    parser.add_argument("--claims", type=int, default=120, help="beside blocked messages")
    parser.add_argument("--active", type=int, default=11_500, help="messages beside a large group")
    parser.add_argument("--wakes", type=int, default=300, help="acks that are waited for")
    parser.add_argument("--seconds", type=float, default=60.0, help="of waiting in vain")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a run")
    small: dict[str, Any] = {"consumers": [1, 2], "messages": 2_000, "rounds": 1, "scale": 0.01}
    small |= {"blocked": 2_000, "claims": 20, "active": 575, "wakes": 20, "seconds": 5.0}
    options = parser.options(small)
    if options.markdown:
        print(section(), end="")
        return
    with progress_bar() as progress:
        for engine in options.engines.split(","):
            options.engines = engine
            command = _command(parser, options)

            def keep(part: str, found: Any, engine: str = engine, command: str = command) -> None:
                result = _beside(engine, command, part, found)
                path = write_result(f"{NAME}_{engine}", command, result)
                progress.print(f"{part} is in {path}")

            measure(engine, options, progress, keep)
    print(section())


def _command(parser: Any, options: Any) -> str:
    """The command that runs the same: only what is not usual."""
    words = [f"--engines {options.engines}"]
    for name, value in vars(options).items():
        if name not in {"quick", "markdown", "engines"} and value != parser.get_default(name):
            shown = ",".join(map(str, value)) if isinstance(value, list) else value
            words.append(f"--{name.replace('_', '-')} {shown}")
    return f"python -m scripts.benchmarks.{NAME} {' '.join(words)}"


def _beside(engine: str, command: str, part: str, found: Any) -> dict[str, Any]:
    """The result, with the other parts of the last one."""
    if not (RESULTS / f"{NAME}_{engine}.json").exists():
        return {"parts": {part: found}}
    last = read_result(f"{NAME}_{engine}")
    commands = [*last.get("earlier", ()), last["command"]]
    earlier = [each for each in dict.fromkeys(commands) if each != command]
    return {"earlier": earlier, "parts": last["parts"] | {part: found}}


if __name__ == "__main__":
    main()
