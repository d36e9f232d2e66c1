"""Plays scenarios on a database, each schedule from the same beginning, and checks each."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from sqlalchemy import create_engine, delete, update

from queue_over_sql import QueueService
from queue_over_sql.claiming.group_walk import GroupWalk
from queue_over_sql.queue import core_of
from queue_over_sql.testing import Clock
from tests.interleavings import gates
from tests.interleavings.acts import (
    ADVANCE,
    BLOCKED,
    LEASE,
    PAUSED,
    Claim,
    Group,
    Hands,
    Observe,
    Publish,
    Restore,
    Settle,
    Transaction,
    World,
    of_group,
)
from tests.interleavings.checker import Checker
from tests.interleavings.stepping import (
    Call,
    Stage,
    by_seed,
    every,
    following,
    how_many,
    shown_steps,
)
from tests.interleavings.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from queue_over_sql import Queue
    from queue_over_sql.claiming.claimer import Claimer
    from queue_over_sql.testing.plugin import TestDatabase
    from tests.interleavings.acts import Act
    from tests.interleavings.scenarios import Scenario
    from tests.interleavings.stepping import Run, Step

CLIENTS: Final = "abcd"
# What falls due by the clock of this process would not come again at the same step.
_BY_THE_CLOCK: Final = (
    "queues.context._LONGEST_REFRESH",
    "database.sessions._IDLE_SECONDS",
    "database.notify._BURST_SECONDS",
    "claiming.low_watermark._CHEAP_SECONDS",
    "claiming.low_watermark._LOADED_PAUSE",
)
_TOGETHER: Final = 10
_MARKS: Final = {"resume": PAUSED, "unblock": BLOCKED}
_AFTER: Final = 1_000_000


class Wrong(AssertionError):
    """A run that the promises do not allow."""


class Theatre:
    """Clients with services and connections of their own, which all schedules share."""

    def __init__(self, database: TestDatabase, stack: contextlib.ExitStack) -> None:
        self._kind = database.engine
        self._engine = create_engine(database.url)
        stack.callback(self._engine.dispose)
        waits = Waits(self._engine, database.engine)
        stack.callback(waits.close)
        self._services = {name: _service(database, stack) for name in (*CLIENTS, "z")}
        self._clock = Clock(*self._services.values())
        self._clock._join()
        self._own = {name: create_engine(database.url) for name in CLIENTS}
        for engine in self._own.values():
            stack.callback(engine.dispose)
        with self._engine.connect() as own:
            raw: Any = own.connection.dbapi_connection
            self._levels = own.dialect.get_isolation_level_values(raw)
        self._waits = waits
        self._stage = Stage(CLIENTS, waits, lambda: self._clock.microseconds)
        self.is_all = False
        """Whether the last schedules that were asked for are all that there are."""
        self._queues: dict[tuple[str, str], Queue] = {}
        self._titles: dict[str, str] = {}

    def play(self, scenario: Scenario, choose: Callable[[tuple[str, ...]], str]) -> Run:
        """Play one schedule.

        Raises:
            Wrong: the promises do not allow what came of it.
        """
        world = self._begin(scenario)
        programs: dict[str, Callable[[Callable[[Any], Any]], None]] = {}
        for name, acts in scenario.programs.items():
            self._stage.clients[name].hands = self._hands(name, scenario, world)

            def program(make: Callable[[Any], Any], acts: Any = acts) -> None:
                for act in acts:
                    make(act)

            programs[name] = program
        run = self._stage.play(programs, choose)
        self._end(scenario, world, run)
        checker = Checker(run.calls, world, [each.label for each in scenario.start])
        if not checker.explained():
            raise Wrong(_shown(run))
        return run

    def schedules(self, scenario: Scenario, most: int) -> Iterator[Run]:
        """Play every schedule of a scenario, or so many of them by seed if there are more."""
        rehearsed = self.rehearse(scenario)
        self.is_all = False
        if how_many(rehearsed) <= most:
            found = every(lambda begins: self.play(scenario, following(begins, strictly=False)))
            # On H2 a statement that waited is sent again, which makes ever more schedules.
            yield from itertools.islice(found, most)
            self.is_all = next(found, None) is None
            return
        for seed in range(most):
            yield self.play(scenario, by_seed(seed, len(rehearsed.steps)))

    def rehearse(self, scenario: Scenario) -> Run:
        """Play until what is done only once is done, such as to register."""
        steps: list[Step] = []
        while True:
            run = self.repeat(scenario, "")
            if len(steps) == len(run.steps):
                return run
            steps = run.steps

    def repeat(self, scenario: Scenario, schedule: str) -> Run:
        """Play the schedule that begins with these clients."""
        return self.play(scenario, following(schedule))

    # -- the beginning

    def _queue(self, name: str, scenario: Scenario) -> Queue:
        rules = "".join(f"_{key}_{rule}" for key, rule in scenario.settings.items())
        title = self._titles.setdefault(rules, f"jobs_{len(self._titles)}")
        key = title, name
        if key not in self._queues:
            service = self._services[name]
            self._queues[key] = service.create_queue(title, lease=LEASE, **scenario.settings)
        return self._queues[key]

    def _hands(self, name: str, scenario: Scenario, world: World) -> Hands:
        queue = self._queue(name, scenario)
        engine = self._own.get(name, self._engine)
        return Hands(self._services[name], queue, engine, world, levels=self._levels)

    def _begin(self, scenario: Scenario) -> World:
        self._clock._time.microseconds = 0
        queue = self._queue("z", scenario)
        queue.purge(claimed=True)
        groups = core_of(queue).context.tables.groups
        with self._engine.begin() as connection:
            connection.execute(delete(queue.archive.table))
            if groups is not None:
                plain = {"paused_at": None, "blocked_by": None, "own_limit": None}
                connection.execute(update(groups).values(plain))
        for name in self._services:
            _forget(core_of(self._queue(name, scenario)).claimer)
        world = _world(scenario.settings)
        world.advance, world.cut = self._advance, self._cut
        world.overruns = self._kind in {"mysql", "mariadb"}
        everything = [*scenario.start]
        for acts in scenario.programs.values():
            for act in acts:
                everything += [each for each in _parts(act) if isinstance(each, Publish)]
        for each in everything:
            if each.group is not None:
                world.groups[each.label] = each.group
            if each.key is not None:
                world.keys[each.label] = each.key
        hands = self._hands("z", scenario, world)
        for each in scenario.start:
            each.run(hands, Call(-1, "z", each))
        Observe().run(hands, Call(-1, "z", Observe()))
        return world

    def _advance(self) -> None:
        self._clock._time.microseconds += ADVANCE * 1_000_000

    def _cut(self, name: str) -> bool:
        client = self._stage.clients[name]
        # What has ended left its connection for other runs.
        return client.state != "done" and self._waits.end(client.session)

    def _end(self, scenario: Scenario, world: World, run: Run) -> None:
        """Read the tables, and get what is left when all leases are over; nothing may stay."""
        hands = self._hands("z", scenario, world)
        together = 1 if scenario.settings else _TOGETHER

        def make(act: Act) -> Any:
            # Each comes after all that was before.
            at, moment = _AFTER + len(run.calls), self._clock.microseconds
            call = Call(len(run.calls), "z", act, at, at, (moment, moment))
            run.calls.append(call)
            call.result = act.run(hands, call)
            return call.result

        left = make(Observe())
        self._advance()
        make(Restore())
        for name in {*world.groups.values()}:
            # What still waits then nobody would ever get.
            for verb in ("resume", "unblock"):
                if _MARKS[verb] in dict(left)[of_group(name)].status:
                    make(Group(name, verb))
        while make(Claim(together)):
            make(Settle("ack"))
        make(Observe())


def _world(settings: Mapping[str, Any]) -> World:
    of_group = settings.get("group_limit") if settings.get("when_full") == "replace" else None
    return World(
        grouped=settings.get("group_limit", 0),
        ordered=settings.get("group_order", "fifo") == "fifo",
        blocks=settings.get("block_on_failure", False),
        limit=settings.get("queue_limit"),
        length=settings.get("max_length", of_group),
        waiting=settings.get("unique") == "waiting",
        most_attempts=settings.get("max_attempts", 5),
    )


def _parts(act: Act) -> Iterator[Act]:
    yield from act.acts if isinstance(act, Transaction) else (act,)


def _forget(claimer: Claimer) -> None:
    """Let its claims depend on nothing that it saw in earlier runs."""
    claimer._marks.clear()
    claimer._walk = GroupWalk(claimer._context)
    claimer._edits = claimer._edit_count()
    claimer._at_most = None


def _service(database: TestDatabase, stack: contextlib.ExitStack) -> QueueService:
    service = QueueService(database.url, consumer_timeout=36_000, reaper_interval=3600)
    stack.callback(service.stop)
    return service


@contextlib.contextmanager
def opened(database: TestDatabase) -> Iterator[Theatre]:
    """A theatre on a database, whose clients bring nothing that comes by the clock."""
    with contextlib.ExitStack() as stack:
        for name in _BY_THE_CLOCK:
            stack.enter_context(mock.patch(f"queue_over_sql.{name}", math.inf))
        stack.enter_context(gates.at(database.engine))
        yield Theatre(database, stack)


def _shown(run: Run) -> str:
    calls = [f"{each.client} {each.act}: {each.result}" for each in run.calls]
    return "\n".join(
        [
            "No order of these calls explains what they returned:",
            *calls,
            "in this schedule:",
            *shown_steps(run),
            f"Repeat it with --schedule={run.schedule}",
        ]
    )
