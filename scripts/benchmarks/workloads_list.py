"""The workloads, and the ratios to reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

PAYLOAD_BYTES: Final = 200
LARGE_BYTES: Final = 10_000
MILLION: Final = 1_000_000
OURS: Final = "ours"
LIMIT: Final = "limit"
ANCESTOR: Final = "ancestor_h2"
"""Its SQL pattern on one open connection."""
AS_WRITTEN: Final = "ancestor_as_written"
"""The same with a connection for each statement, as in its code."""
BATCH_COMMITTER: Final = "pg_boss"
"""Its transactional handlers get a batch and commit it as one."""
PEER: Final = "peer"
"""The best library that loses nothing: at least once, and each commit reaches the disk."""
NO_PEERS: Final = (OURS, LIMIT, ANCESTOR, AS_WRITTEN)
_WE: Final = (OURS, LIMIT)
_CONCURRENCY: Final = (2, 4, 8)


@dataclass(frozen=True)
class Workload:
    """One thing that contenders are measured at.

    Attributes:
        name: in the result file.
        title: on the page.
        act: the act of the protocol that a contender needs.
        most: the largest number of messages.
        probe: messages of the uncounted first run.
        processes: the number of processes.
        arguments: of the command.
        payload: bytes per message.
        backlog: further messages in the queue.
        only: these contenders; default: all.
        rounds: the number of rounds, instead of the option's.
    """

    name: str
    title: str
    act: str
    most: int
    probe: int
    processes: int = 1
    arguments: tuple[tuple[str, Any], ...] = ()
    payload: int = PAYLOAD_BYTES
    backlog: int = 0
    only: tuple[str, ...] | None = None
    rounds: int | None = None

    @property
    def needs(self) -> str:
        """The abilities that it needs."""
        given = dict(self.arguments)
        if self.act == "publish" and given["batch"] > 1:
            return "publish_many"
        return "work_transactional" if given.get("transactional") else self.act


def _publish(name: str, title: str, batch: int, most: int, **more: Any) -> Workload:
    arguments = (("batch", batch),)
    return Workload(name, title, "publish", most, max(50, batch), arguments=arguments, **more)


def _consume(name: str, title: str, batch: int, most: int, **more: Any) -> Workload:
    arguments = (("batch", batch),)
    return Workload(name, title, "consume", most, max(50, 10 * batch), arguments=arguments, **more)


def _take(processes: int) -> Workload:
    title = f"take by 100, {_many(processes, 'process', 'es')}"
    arguments = (("batch", 100),)
    name = f"take_p{processes}"
    return Workload(name, title, "take", 60_000, 1_000, processes, arguments=arguments, only=_WE)


def _work(
    name: str, title: str, threads: int, *, processes: int = 1, within: bool = False
) -> Workload:
    arguments = (("threads", threads), ("transactional", within))
    return Workload(name, title, "work", 40_000, 50, processes, arguments=arguments)


def _tasks(tasks: int) -> Workload:
    title = f"asyncio worker, {tasks:,} tasks, handler that awaits 5 ms"
    return Workload(f"tasks_{tasks}", title, "tasks", 20_000, 200, arguments=(("tasks", tasks),))


def _many(count: int, one: str, plural: str = "s") -> str:
    return f"{count} {one}{plural if count > 1 else ''}"


WORKLOADS: Final[Sequence[Workload]] = (
    _publish("publish_one", "publish one", 1, 5_000),
    _publish("publish_1000", "publish 1,000 at a time", 1_000, 30_000),
    Workload("load", "bulk load", "load", 50_000, 2_000),
    _consume("consume_one", "consume and ack one by one", 1, 5_000),
    _consume("consume_100", "consume and ack by 100", 100, 30_000),
    *[_work(f"work_t{n}", f"worker, {_many(n, 'thread')}", n) for n in (1, *_CONCURRENCY)],
    Workload(
        "work_b100",
        "worker, 1 thread, claiming 100 at once",
        "work",
        30_000,
        1_000,
        arguments=(("threads", 1), ("transactional", False), ("batch", 100)),
        only=(OURS,),
    ),
    _work("transactional", "worker, 4 threads, transactional handler", 4, within=True),
    Workload(
        "transactional_50",
        "the same, 50 messages to a commit",
        "work",
        40_000,
        50,
        arguments=(("threads", 4), ("transactional", True), ("batch", 50)),
        only=(OURS, BATCH_COMMITTER),
    ),
    *[_tasks(n) for n in (100, 1_000)],
    *[
        _work(f"work_p{n}", f"worker, {n} processes of 1 thread", 1, processes=n)
        for n in _CONCURRENCY
    ],
    *[
        _consume(f"consume_100_p{n}", f"by 100, {n} processes", 100, 60_000, processes=n)
        for n in _CONCURRENCY
    ],
    *[_take(n) for n in (1, 2, 4)],
    _publish("publish_one_10k", "publish one of 10 kB", 1, 3_000, payload=LARGE_BYTES, only=_WE),
    _publish(
        "publish_100_10k",
        "publish 100 of 10 kB at a time",
        100,
        3_000,
        payload=LARGE_BYTES,
        only=_WE,
    ),
    _consume("consume_one_10k", "one by one, 10 kB", 1, 2_000, payload=LARGE_BYTES, only=_WE),
    _consume("consume_100_10k", "by 100, 10 kB", 100, 3_000, payload=LARGE_BYTES, only=_WE),
    _consume(
        "backlog_2000",
        "one by one, of 2,000 that wait",
        1,
        500,
        backlog=2_000,
        only=NO_PEERS,
    ),
)
"""The workloads of each round, in order."""

LOAD_MILLION: Final = "load_million"
LOADED: Final = ("postgresql", "mariadb", "mysql", "sqlite")
"""The engines that load a million; on H2 this would take as long as everything else."""
LATENCY: Final = "latency"
IDLE: Final = "idle"
ONCE: Final[Mapping[str, str]] = {
    LOAD_MILLION: "load of a million",
    LATENCY: "latency of an idle queue",
    IDLE: "statements of an idle worker",
}
"""The workloads that are measured once."""


@dataclass(frozen=True)
class Target:
    """A ratio to reach.

    Attributes:
        title: of the work.
        ours: workloads of which our best rate counts.
        against: a contender, or `PEER`.
        theirs: workloads of which their best rate counts.
        least: the ratio, by engine.
    """

    title: str
    ours: tuple[str, ...]
    against: str
    theirs: tuple[str, ...]
    least: Mapping[str, float]


_BY_100 = ("consume_100", *(f"consume_100_p{n}" for n in _CONCURRENCY))
_ONE = ("consume_one",)
_SQL = ("postgresql", "mariadb", "mysql", "sqlite")
TARGETS: Final[Sequence[Target]] = (
    Target(
        "publish one",
        ("publish_one",),
        LIMIT,
        ("publish_one",),
        {"postgresql": 0.8, "mariadb": 0.8, "sqlite": 0.5},
    ),
    Target("publish one", ("publish_one",), PEER, ("publish_one",), {"postgresql": 1.2}),
    Target(
        "publish 1,000 at a time",
        ("publish_1000",),
        LIMIT,
        ("publish_1000",),
        {"postgresql": 0.7, "mariadb": 0.7, "sqlite": 0.65},
    ),
    Target(
        "publish 1,000 at a time", ("publish_1000",), PEER, ("publish_1000",), {"postgresql": 2}
    ),
    Target(
        "load a million",
        (LOAD_MILLION,),
        LIMIT,
        (LOAD_MILLION,),
        {"postgresql": 0.7, "mariadb": 0.7, "sqlite": 0.6},
    ),
    # PostgreSQL: 0.8 of what two commits allow, times 1.3, because an exchange saves one of them.
    Target(
        "consume and ack one by one",
        _ONE,
        LIMIT,
        _ONE,
        {"postgresql": 1.04, "mariadb": 0.8, "sqlite": 0.5},
    ),
    Target("consume and ack one by one", _ONE, PEER, _ONE, {"postgresql": 1.5, "sqlite": 1.5}),
    Target(
        "consume and ack by 100",
        ("consume_100",),
        LIMIT,
        ("consume_100",),
        {"postgresql": 0.7, "mariadb": 0.7, "sqlite": 0.5},
    ),
    Target(
        "consume and ack by 100", ("consume_100",), "pgmq", ("consume_100",), {"postgresql": 1.2}
    ),
    Target(
        "best concurrency, by 100", _BY_100, LIMIT, _BY_100, {"postgresql": 0.8, "mariadb": 0.8}
    ),
    Target("best concurrency, by 100", _BY_100, "pgmq", _BY_100, {"postgresql": 1.1}),
    Target(
        "best concurrency, take by 100",
        ("take_p1", "take_p2", "take_p4"),
        "pgmq",
        _BY_100,
        {"postgresql": 1.5},
    ),
    Target("take by 100", ("take_p1",), LIMIT, ("take_p1",), dict.fromkeys(_SQL, 0.85)),
    Target("worker, 1 thread", ("work_t1",), PEER, ("work_t1",), {"postgresql": 1}),
    Target("worker, 4 processes", ("work_p4",), PEER, ("work_p4",), {"postgresql": 1}),
    Target("worker, 1 thread", ("work_t1",), LIMIT, ("work_t1",), dict.fromkeys(_SQL, 0.8)),
    Target("worker, 4 threads", ("work_t4",), OURS, ("work_t1",), {"sqlite": 0.9}),
    Target(
        "worker, transactional handler",
        ("transactional",),
        LIMIT,
        ("transactional",),
        {"postgresql": 0.8, "mariadb": 0.8, "mysql": 0.8, "sqlite": 0.6},
    ),
    Target(
        "worker, transactional, many to a commit",
        ("transactional_50",),
        PEER,
        ("transactional_50",),
        {"postgresql": 1},
    ),
    *(
        Target(
            f"asyncio worker, {n:,} tasks",
            (f"tasks_{n}",),
            PEER,
            (f"tasks_{n}",),
            {"postgresql": 1},
        )
        for n in (100, 1_000)
    ),
    Target(
        "best of several consumers, by 100",
        _BY_100[1:],
        OURS,
        ("consume_100",),
        {"sqlite": 0.8},
    ),
    *(
        Target(
            "one by one, of 2,000 that wait",
            ("backlog_2000",),
            ancestor,
            ("backlog_2000",),
            {"h2": 10},
        )
        for ancestor in (AS_WRITTEN, ANCESTOR)
    ),
)

LATENCY_TARGETS: Final[Mapping[str, float]] = {"postgresql": 5, "mariadb": 1_000, "sqlite": 5}
"""Milliseconds that the median may take: on MariaDB the longest pause between two looks."""
