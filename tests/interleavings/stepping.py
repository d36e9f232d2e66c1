"""Clients that go on one statement at a time, in an order that somebody else decides."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql import DatabaseUnavailable
from tests.interleavings.acts import FAILED
from tests.interleavings.gates import gated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.interleavings.waits import Waits

# How long a statement may take that nothing blocks, until the test gives up.
_GIVE_UP_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.001


class Stuck(Exception):
    """No client can go on, or a schedule cannot be repeated."""


@dataclasses.dataclass
class Call:
    """One operation of a client: what it was, and what the client was told.

    Attributes:
        number: of all calls of this run.
        client: whose it is.
        act: the operation.
        began: the step that let its first statement go.
        ended: the step in which the client was told the result.
        clock: how far the clock was ahead when its first and its last statement were made.
        result: what it returned or raised, in the words of the specification.
    """

    number: int
    client: str
    act: Any
    began: int = -1
    ended: int = -1
    clock: tuple[int, int] = (0, 0)
    result: Any = None

    def overlaps(self, other: Call) -> bool:
        """Whether neither ended before the other one began."""
        return self.began <= other.ended and other.began <= self.ended


@dataclasses.dataclass(frozen=True)
class Step:
    """A statement that a client was let go to send."""

    client: str
    statement: str


@dataclasses.dataclass
class Run:
    """What happened in one schedule.

    Attributes:
        steps: the statements in the order in which they were let go.
        choices: at each step the clients that could have gone, and the one that went.
        calls: what the clients did.
        waits: how often a client waited for the lock of another one when the next step began.
    """

    steps: list[Step] = dataclasses.field(default_factory=list)
    choices: list[tuple[tuple[str, ...], str]] = dataclasses.field(default_factory=list)
    calls: list[Call] = dataclasses.field(default_factory=list)
    waits: int = 0

    @property
    def schedule(self) -> str:
        """The names of the clients in the order in which they went."""
        return "".join(chosen for _, chosen in self.choices)


class Client:
    """One client, in a thread that lasts for many runs, as its connections do."""

    def __init__(self, name: str, stage: Stage) -> None:
        self.name = name
        self.state = "idle"
        self.statement = ""
        self.session = 0
        # How many steps were done when the database was locked; -1 if it was not.
        self.busy_at = -1
        self.hands: Any = None
        self._stage = stage
        self._call: Call | None = None
        self._program: Callable[[Callable[[Any], Any]], None] | None = None
        self.error: BaseException | None = None
        threading.Thread(target=self._work, daemon=True, name=f"client {name}").start()

    def perform(self, program: Callable[[Callable[[Any], Any]], None]) -> None:
        """Begin a program; it is given what makes one call."""
        self.busy_at, self.error, self._program = -1, None, program
        self.state = "running"

    def _work(self) -> None:
        changed = self._stage.changed
        while True:
            with changed:
                changed.wait_for(lambda: self._program is not None)
                program, self._program = self._program, None
            assert program is not None
            try:
                with gated(self):
                    program(self._make)
            except BaseException as error:  # noqa: BLE001 - the test's thread raises it
                self.error = error
            with changed:
                self.state = "done"
                changed.notify_all()

    def _make(self, act: Any) -> Any:
        stage = self._stage
        with stage.changed:
            call = self._call = Call(len(stage.run.calls), self.name, act)
            stage.run.calls.append(call)
            call.clock = stage.clock(), 0
        try:
            call.result = act.run(self.hands, call)
        except DatabaseUnavailable:
            # The checker knows whether it may be.
            call.result = FAILED
        with stage.changed:
            if call.began < 0:
                call.began = len(stage.run.steps)
            call.ended = len(stage.run.steps)
            call.clock = call.clock[0], stage.clock()
        return call.result

    # -- the gate of its thread

    def stop(self, session: Callable[[], int], statement: str) -> None:
        """Wait before a statement."""
        changed, number = self._stage.changed, session()
        with changed:
            self.statement, self.session, self.state = statement, number, "waiting"
            changed.notify_all()
            changed.wait_for(lambda: self.state == "running")
            if self._call is not None and self._call.began < 0:
                self._call.began = len(self._stage.run.steps)

    def busy(self) -> None:
        """Note that only a step of another client can help."""
        self.busy_at = len(self._stage.run.steps)


class Stage:
    """Runs programs of several clients under one schedule.

    Args:
        names: of the clients, a letter each.
        waits: tells which sessions the server keeps waiting.
        clock: how far the clock is ahead.
    """

    def __init__(self, names: str, waits: Waits, clock: Callable[[], int]) -> None:
        self.changed = threading.Condition()
        self.clock = clock
        self.run = Run()
        self._waits = waits
        self.clients = {name: Client(name, self) for name in names}

    def play(
        self,
        programs: dict[str, Callable[[Callable[[Any], Any]], None]],
        choose: Callable[[tuple[str, ...]], str],
    ) -> Run:
        """Run the programs to their ends."""
        run = self.run = Run()
        playing = [self.clients[name] for name in programs]
        with self.changed:
            for client in playing:
                client.perform(programs[client.name])
            self.changed.notify_all()
        while self._settle(playing):
            ready = tuple(each.name for each in playing if self._may_go(each, playing))
            if not ready:
                raise Stuck(self._shown(playing))
            chosen = choose(ready)
            client = self.clients[chosen]
            ahead = [each for each in playing if each.state != "done"]
            run.waits += sum(each.name not in ready for each in ahead)
            with self.changed:
                run.choices.append((ready, chosen))
                run.steps.append(Step(chosen, client.statement))
                client.state, client.busy_at = "running", -1
                self.changed.notify_all()
        for client in playing:
            if client.error is not None:
                raise client.error
        return run

    def _may_go(self, client: Client, playing: Sequence[Client]) -> bool:
        if client.state != "waiting":
            return False
        if client.busy_at < 0:
            return True
        # Only the end of another transaction can help.
        since = self.run.steps[client.busy_at :]
        ends = any(step.statement.startswith(("COMMIT", "ROLLBACK")) for step in since)
        others = any(each.state != "done" for each in playing if each is not client)
        return ends or not others

    def _settle(self, playing: Sequence[Client]) -> bool:
        """Wait until each client waits at its gate, or in the server; False: all have ended."""
        until = time.monotonic() + _GIVE_UP_SECONDS
        with self.changed:
            while True:
                running = [each for each in playing if each.state == "running"]
                at_gate = any(each.state == "waiting" for each in playing)
                if not running:
                    return at_gate
                self.changed.wait(_POLL_SECONDS)
                running = [each for each in playing if each.state == "running"]
                sessions = {each.session for each in running}
                # If nobody is at a gate, the server must end this by itself, as it ends deadlocks.
                if running and at_gate and sessions <= self._waits.waiting():
                    return True
                if time.monotonic() > until:
                    raise Stuck(self._shown(playing))

    def _shown(self, playing: Sequence[Client]) -> str:
        states = [f"{each.name} {each.state}: {each.statement}" for each in playing]
        return "\n".join(["No client can go on.", *states, *shown_steps(self.run)])


def shown_steps(run: Run) -> list[str]:
    """The steps of a run, a line each."""
    return [f"{number:3} {step.client} {step.statement}" for number, step in enumerate(run.steps)]


def following(schedule: str, *, strictly: bool = True) -> Callable[[tuple[str, ...]], str]:
    """Choose as a schedule says; after its end the first client that may go.

    Where the schedule cannot be kept, it fails, or goes on with the first one.
    """
    left = iter(schedule)

    def choose(ready: tuple[str, ...]) -> str:
        wanted = next(left, ready[0])
        if wanted not in ready and not strictly:
            return ready[0]
        if wanted not in ready:
            msg = f"The schedule {schedule} cannot be repeated: {wanted} is not among {ready}."
            raise Stuck(msg)
        return wanted

    return choose


_CHANGES: Final = 3
"""How often a schedule by priorities changes them."""


def by_seed(seed: int, steps: int) -> Callable[[tuple[str, ...]], str]:
    """Choose at random, the same way each time for a seed.

    Every other schedule lets one client go on for as long as it can, and changes this at a few of
    its steps: most faults need few changes at the right places (Burckhardt and others, "A
    Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", 2010).
    """
    chance = random.Random(seed)  # noqa: S311 - a schedule is no secret
    if seed % 2:
        return chance.choice
    ranks: dict[str, float] = {}
    changes = {chance.randrange(steps) for _ in range(_CHANGES)}
    step = itertools.count()

    def choose(ready: tuple[str, ...]) -> str:
        for name in ready:
            ranks.setdefault(name, chance.random())
        first = max(ready, key=ranks.__getitem__)
        if next(step) in changes:
            ranks[first] = min(ranks.values()) - 1
            first = max(ready, key=ranks.__getitem__)
        return first

    return choose


_MOST_OTHERS: Final = 5
"""How often in turn a schedule may turn out otherwise than before."""


def every(play: Callable[[str], Run]) -> Iterator[Run]:
    """Play every schedule, each once."""
    prefix: str | None = ""
    others = 0
    while prefix is not None:
        run = play(prefix)
        yield run
        # What a client sends may hang on how long an earlier statement took.
        if run.schedule.startswith(prefix):
            prefix, others = _next(run), 0
        elif (others := others + 1) > _MOST_OTHERS:
            msg = f"The schedule {prefix} cannot be repeated: it became {run.schedule}."
            raise Stuck(msg)


def how_many(run: Run) -> int:
    """About how many schedules there are, by one of them."""
    own = Counter(step.client for step in run.steps)
    return math.factorial(len(run.steps)) // math.prod(map(math.factorial, own.values()))


def _next(run: Run) -> str | None:
    """How the next schedule begins, in the order of the clients; None after the last one."""
    for at in range(len(run.choices) - 1, -1, -1):
        ready, chosen = run.choices[at]
        later = ready[ready.index(chosen) + 1 :]
        if later:
            return run.schedule[:at] + later[0]
    return None
