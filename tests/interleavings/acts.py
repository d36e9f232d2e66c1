"""What clients do, each with its specification: what they may be told, and what then is stored.

``run`` does it with the library. ``follow`` knows nothing of the library: from one state of the
queue it gives each state that may follow, if what the client was told is true there.
"""

# An act uses of what all are given only what it needs.
# ruff: noqa: ARG002

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from queue_over_sql import ClaimLost, DatabaseUnavailable, DuplicateKey
from queue_over_sql.queue import core_of
from tests.interleavings.gates import stop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection, Engine

    from queue_over_sql import Message, Queue, QueueService
    from tests.interleavings.stepping import Call

LEASE: Final = 60
"""The seconds of a lease, and of its extension."""
ADVANCE: Final = 90
"""How far the clock goes at once: no lease lasts as long."""


FAILED: Final = "failed"
"""What a client is told whose connection was cut: nothing has happened."""
DELAY: Final = 100_000
"""The seconds of a delay, which no clock here gets to."""


class Item(NamedTuple):
    """One message in the specification.

    Attributes:
        status: ready, delayed, held, claimed, gone, or the outcome in the archive.
        attempts: how often it was claimed, without released claims.
        holder: the call that claimed it.
        ends: when its lease ends, in seconds of the clock.
        back: 1 if it came back from the archive: then it is behind all others.
        front: how often others were put in front before it was; 0 if never.
        due: when it was published, in seconds of the clock.
        by: of the state of a group, the dead letter that blocks it.
        returned: whether it was given back.
    """

    status: str = "ready"
    attempts: int = 0
    holder: int = -1
    ends: int = 0
    back: int = 0
    front: int = 0
    due: int = 0
    by: str = ""
    returned: bool = False

    def freed(self, status: str = "ready") -> Item:
        """The same in nobody's hands."""
        returned = self.returned or self.holder >= 0
        return self._replace(status=status, holder=-1, ends=0, returned=returned)


State = Mapping[str, Item]


def of_group(name: str) -> str:
    """The label under which a state has what operators and dead letters did to a group.

    Its status says whether it is paused or blocked, its attempts are its own limit, or 0.
    """
    return f"group {name}"


PAUSED: Final = "paused"
BLOCKED: Final = "blocked"


def _marked(item: Item, mark: str, *, on: bool) -> Item:
    marks = {*item.status.split()} - {"open", mark} | ({mark} if on else set())
    return item._replace(status=" ".join(sorted(marks)) or "open")


@dataclasses.dataclass
class World:
    """What one run is about.

    Attributes:
        grouped: how many messages of a group may be in hand at once; 0: there are no groups.
        ordered: whether groups are in order; then one claim may have several of a group.
        blocks: whether a dead letter blocks its group.
        limit: how many messages of the queue may be in hand at once.
        length: how many messages the queue, or with groups each group, may have until a publish
            replaces one.
        waiting: whether only messages that wait keep their keys from others.
        most_attempts: how often a message is tried.
        overruns: whether a claim that finds too few locks the message behind what it looked for,
            too, as InnoDB does.
        places: when each message was due first, and its id, once that is known. MySQL does not tell
            a publisher: of what was replaced before a consumer had it, nobody knows.
        ids: the id of each message.
        groups: the group of each message.
        stamps: the call of each claim.
        keys: the key of each message that has one.
        advance: moves the clock.
        cut: ends the session that a client uses; returns whether there was one to end.
    """

    grouped: int = 0
    ordered: bool = True
    blocks: bool = False
    limit: int | None = None
    length: int | None = None
    waiting: bool = False
    most_attempts: int = 5
    overruns: bool = False
    places: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    ids: dict[str, int] = dataclasses.field(default_factory=dict)
    groups: dict[str, str] = dataclasses.field(default_factory=dict)
    stamps: dict[tuple[str, int], int] = dataclasses.field(default_factory=dict)
    keys: dict[str, str] = dataclasses.field(default_factory=dict)
    advance: Callable[[], None] = lambda: None
    cut: Callable[[str], bool] = lambda _: False

    def seen(self, message: Message) -> str:
        """Note what a message says of itself; returns its label."""
        label = str(message.kind)
        self.note_place(label, message.scheduled_at, message.id)
        return label

    def note_place(self, label: str, due: datetime, number: int) -> None:
        """Note when a message was due first, and its id."""
        self.places.setdefault(label, (round(due.timestamp() * 1_000_000), number))

    def labels(self, number: int) -> list[str]:
        """The messages that have had an id: one that replaces another has that one's."""
        return [label for label, each in self.ids.items() if each == number]

    def failed(self, state: State, label: str, outcome: str) -> dict[str, Item]:
        """What changes when a message becomes a dead letter."""
        changed = {label: state[label].freed(outcome)}
        name = of_group(self.groups.get(label, ""))
        if self.blocks and name in state and not state[name].by:
            changed[name] = _marked(state[name], BLOCKED, on=True)._replace(by=label)
        return changed

    def place(self, label: str, item: Item) -> tuple[int, int, int, int]:
        """Where a message is in the order of the queue."""
        due, number = self.places.get(label, (_UNKNOWN, self.ids.get(label, 0)))
        return item.back, -item.front, due, number


@dataclasses.dataclass
class Hands:
    """What a client has: a service, a queue, an engine, and the messages of its last claim.

    Attributes:
        levels: the levels of isolation that the engine has.
    """

    service: QueueService
    queue: Queue
    engine: Engine
    world: World
    held: list[Message] = dataclasses.field(default_factory=list)
    claim: int = -1
    levels: Sequence[str] = ()

    def keep(self, messages: Sequence[Message], call: Call) -> tuple[tuple[str, int], ...]:
        """Note a claim; returns what the client was told."""
        self.held, self.claim = list(messages), call.number
        for message in messages:
            stamp = str(message.consumer_id), int(message.consumer_round or 0)
            self.world.stamps[stamp] = call.number
        return tuple((self.world.seen(each), each.attempt) for each in messages)


@dataclasses.dataclass(frozen=True)
class Context:
    """What a call overlapped.

    Attributes:
        touched: messages that overlapping calls may have locked, or not yet committed.
        late: messages below the low watermark of its client.
        overlapped: whether any call did overlap.
        cut: whether the client's connection was cut before the end.
    """

    world: World
    touched: frozenset[str]
    late: frozenset[str]
    overlapped: bool
    cut: bool = False


class Act:
    """One operation of a client."""

    def run(self, hands: Hands, call: Call, connection: Connection | None = None) -> Any:
        """Do it, alone or in a transaction; returns what the client was told."""
        raise NotImplementedError

    def follow(
        self, state: State, result: Any, call: Call, context: Context
    ) -> Iterator[dict[str, Item]]:
        """The states that may follow, if the result is true; none if it cannot be."""
        raise NotImplementedError

    def touches(self, result: Any, world: World) -> frozenset[str]:
        """The messages that it may have locked."""
        del result, world
        return frozenset()


def _seconds(call: Call) -> range:
    """What the clock may have shown to a call."""
    first, last = (moment // 1_000_000 for moment in call.clock)
    return range(first, last + 1, ADVANCE)


# Stands for a due time that is not known. The message counts as the youngest.
_UNKNOWN: Final = 2**63

WAITING: Final = ("ready", "delayed", "held")
LIVE: Final = (*WAITING, "claimed")
REPLACEABLE: Final = ("ready", "delayed")


@dataclasses.dataclass(frozen=True)
class Publish(Act):
    """Publish a message; with a key only if no live message has it.

    Attributes:
        ago: for how many seconds it has been due; None: due from now on.
        replaces: whether it replaces the message that has its key.
    """

    label: str
    group: str | None = None
    key: str | None = None
    ago: float | None = None
    replaces: bool = False

    def run(
        self, hands: Hands, call: Call, connection: Connection | None = None
    ) -> str | tuple[str, int]:
        options: dict[str, Any] = {} if self.group is None else {"group": self.group}
        if self.key is not None:
            options |= {"key": self.key, "on_conflict": "replace" if self.replaces else "raise"}
        if self.ago is not None:
            options["at"] = datetime.now(UTC) - timedelta(seconds=self.ago)
        try:
            published = hands.queue.publish({}, kind=self.label, connection=connection, **options)
        except DuplicateKey:
            return "duplicate"
        hands.world.ids[self.label] = published.id
        if published.outcome != "created":
            return "replaced", published.id
        if (due := options.get("at", published.published_at)) is not None:
            hands.world.note_place(self.label, due, published.id)
        return "published"

    def follow(
        self, state: State, result: Any, call: Call, context: Context
    ) -> Iterator[dict[str, Item]]:
        world = context.world
        holders = [
            label
            for label, item in state.items()
            if self.key is not None and world.keys.get(label) == self.key
            if item.status in (WAITING if world.waiting else LIVE)
        ]
        # What came back after the publish had begun waits beside the new message.
        beside = world.waiting and context.overlapped
        sure = [label for label in holders if not (beside and state[label].returned)]
        news = [Item(due=now) for now in _seconds(call)]
        live = [
            item.status
            for label, item in state.items()
            if item.status in LIVE and world.groups.get(label) == self.group
        ]
        full = world.length is not None and len(live) >= world.length
        # If all are in hand or held, one more is added.
        full = full and any(status in REPLACEABLE for status in live)
        # What has not ended may hold the key, or be one message less, or one more.
        if result == "published" and not sure and (not full or context.overlapped):
            yield from ({**state, self.label: new} for new in news)
        elif result == "duplicate" and (holders or context.overlapped):
            yield dict(state)
        elif isinstance(result, tuple):
            left = [each for each in world.labels(result[1]) if each != self.label]
            makes_room = not holders and world.length is not None and (full or context.overlapped)
            for label in left:
                item = state.get(label, Item("gone"))
                room = item.status in REPLACEABLE and world.groups.get(label) == self.group
                if label in holders or (makes_room and room):
                    gone = {label: item.freed("gone")}
                    yield from ({**state, **gone, self.label: new} for new in news)

    def touches(self, result: Any, world: World) -> frozenset[str]:
        same = {
            label for label, key in world.keys.items() if self.key is not None and key == self.key
        }
        replaced = world.labels(result[1]) if isinstance(result, tuple) else []
        # It may have tried to replace any.
        tried = world.ids if world.length is not None else ()
        return frozenset({self.label, *same, *replaced, *tried})


# -- claim, take


def _claimable(state: State, world: World, now: int) -> list[str]:
    """What a consumer may get at a time, in order; of a group its next ones, one after another."""
    found = [key for key, item in state.items() if item.status == "ready" and item.due <= now]
    found.sort(key=lambda label: world.place(label, state[label]))
    if not world.grouped:
        return found
    return [each for each in found if each not in _blocked(state, world, now)]


def _in_group(state: State, world: World, name: str) -> list[str]:
    live = [k for k, item in state.items() if world.groups.get(k) == name and item.status in LIVE]
    return sorted(live, key=lambda label: (state[label].back, world.ids[label]))


def _room(state: State, world: World, name: str) -> int:
    """How many claims of a group may get something, besides those that have."""
    own = state.get(of_group(name), Item("open"))
    if own.status != "open":
        return 0
    in_hand = [each for each in _in_group(state, world, name) if state[each].status == "claimed"]
    return (own.attempts or world.grouped) - len(in_hand)


def _blocked(state: State, world: World, now: int) -> set[str]:
    blocked: set[str] = set()
    for name in {*world.groups.values()}:
        waits = _room(state, world, name) <= 0
        for label in _in_group(state, world, name):
            item = state[label]
            if item.status == "claimed":
                continue
            waits |= world.ordered and not (item.status == "ready" and item.due <= now)
            if waits:
                blocked.add(label)
    return blocked


def _keeps_groups(state: State, got: Sequence[str], claimable: list[str], world: World) -> bool:
    """Whether what somebody gets of each group is the first of it, or no more than it may."""
    for name in {world.groups[label] for label in got if label in world.groups}:
        some = [label for label in got if world.groups.get(label) == name]
        if world.ordered:
            run = [each for each in _in_group(state, world, name) if each in claimable]
            if some != run[: len(some)]:
                return False
        elif len(some) > _room(state, world, name):
            return False
    return True


def _gets(state: State, got: Sequence[str], count: int, now: int, context: Context) -> bool:
    """Whether a consumer may get these then: the oldest, except what others have locked."""
    world = context.world
    claimable = _claimable(state, world, now)
    if not set(got) <= set(claimable):
        return False
    places = [world.place(label, state[label]) for label in got]
    missed = [label for label in claimable if label not in got]
    if world.grouped:
        # What its group blocked is due when it is woken: between groups there is no order. Who got
        # something need not look past what is blocked.
        if not _keeps_groups(state, got, claimable, world):
            return False
        missed = [] if got else missed
    elif places != sorted(places):
        return False
    elif len(got) == count:
        missed = [each for each in missed if world.place(each, state[each]) < places[-1]]
    if world.limit is not None:
        in_hand = sum(item.status == "claimed" for item in state.values()) + len(got)
        if in_hand > world.limit and got:
            return False
        if in_hand >= world.limit or context.touched:
            # There is no room, or somebody is just making or taking it.
            return True
    groups = {world.groups[label] for label in context.touched if label in world.groups}
    excused = context.touched | context.late
    return all(label in excused or world.groups.get(label) in groups for label in missed)


def _read(world: World, got: Sequence[str], count: int) -> frozenset[str]:
    """What a claim may have locked that got these."""
    return frozenset(world.ids if world.overruns and len(got) < count else got)


@dataclasses.dataclass(frozen=True)
class Claim(Act):
    """Claim the next messages; the client then has these in its hands."""

    count: int = 1

    def run(self, hands: Hands, call: Call, connection: Connection | None = None) -> Any:
        return hands.keep(hands.queue.consume(self.count), call)

    def follow(
        self, state: State, result: Any, call: Call, context: Context
    ) -> Iterator[dict[str, Item]]:
        for now in _seconds(call):
            if not _gets(state, [label for label, _ in result], self.count, now, context):
                continue
            if any(attempt != state[label].attempts + 1 for label, attempt in result):
                continue
            claimed = {
                label: state[label]._replace(
                    status="claimed", attempts=attempt, holder=call.number, ends=now + LEASE
                )
                for label, attempt in result
            }
            yield {**state, **claimed}

    def touches(self, result: Any, world: World) -> frozenset[str]:
        return _read(world, [label for label, _ in result], self.count)


@dataclasses.dataclass(frozen=True)
class Take(Act):
    """Take the next messages in a transaction."""

    count: int = 1

    def run(self, hands: Hands, call: Call, connection: Connection | None = None) -> Any:
        assert connection is not None
        taken = hands.queue.take(self.count, connection=connection)
        return tuple(hands.world.seen(each) for each in taken)

    def follow(
        self, state: State, result: Any, call: Call, context: Context
    ) -> Iterator[dict[str, Item]]:
        if any(_gets(state, result, self.count, now, context) for now in _seconds(call)):
            yield {**state, **{label: state[label].freed("gone") for label in result}}

    def touches(self, result: Any, world: World) -> frozenset[str]:
        return _read(world, result, self.count)


# -- settle


@dataclasses.dataclass(frozen=True)
class Settle(Act):
    """Settle what the client has in its hands, all at once.

    Attributes:
        verb: ack, nack, release, reject or extend.
    """

    verb: str

    def run(self, hands: Hands, call: Call, connection: Connection | None = None) -> Any:
        options: dict[str, Any] = {} if connection is None else {"connection": connection}
        if self.verb == "nack":
            options["delay"] = DELAY
        elif self.verb == "reject":
            options["reason"] = "no good"
        lost: set[int] = set()
        try:
            if hands.held:
                getattr(hands.queue, self.verb)(hands.held, **options)
        except ClaimLost as error:
            lost = {each.id for each in error.messages}
        # What, by which claim, and whether it was settled.
        return tuple((str(each.kind), hands.claim, each.id not in lost) for each in hands.held)

    def follow(
        self, state: State, result: Any, call: Call, context: Context
    ) -> Iterator[dict[str, Item]]:
        if any(settled != (state[label].holder == claim) for label, claim, settled in result):
            return
        for now in _seconds(call):
            after = dict(state)
            for label, _, done in result:
                if done:
                    after |= self._after(after, label, now, context.world)
            yield after

    def _after(self, state: State, label: str, now: int, world: World) -> dict[str, Item]:
        item = state[label]
        if self.verb == "reject":
            return world.failed(state, label, "rejected")
        if self.verb == "nack" and item.attempts >= world.most_attempts:
            return world.failed(state, label, "failed")
        return {label: self._kept(item, now)}

    def _kept(self, item: Item, now: int) -> Item:
        if self.verb == "extend":
            return item._replace(ends=now + LEASE)
        if self.verb == "release":
            return item.freed()._replace(attempts=item.attempts - 1)
        ends = {"ack": "gone", "nack": "delayed"}
        return item.freed(ends[self.verb])

    def touches(self, result: Any, world: World) -> frozenset[str]:
        return frozenset(label for label, _, _ in result)


@dataclasses.dataclass(frozen=True)
class Exchange(Act):
    """Ack what the client has in its hands, and claim the next ones, at once."""

    count: int = 1

    def run(self, hands: Hands, call: Call, connection: Connection | None = None) -> Any:
        claim, finished = hands.claim, hands.held
        lost: set[int] = set()
        told: Any = ()
        try:
            found = hands.queue.exchange(finished, self.count)
        except ClaimLost as error:
            lost = {each.id for each in error.messages}
            hands.held = []
        else:
            told = hands.keep(found, call)
        return tuple((str(each.kind), claim, each.id not in lost) for each in finished), told

    def follow(
        self, state: State, result: Any, call: Call, context: Context
    ) -> Iterator[dict[str, Item]]:
        acked, told = result
        for after in Settle("ack").follow(state, acked, call, context):
            if all(done for _, _, done in acked):
                yield from Claim(self.count).follow(after, told, call, context)
            else:
                # Then it claims nothing.
                yield after

    def touches(self, result: Any, world: World) -> frozenset[str]:
        return Settle("ack").touches(result[0], world) | Claim(self.count).touches(result[1], world)


# -- the clock, and what expires


@dataclasses.dataclass(frozen=True)
class Advance(Act):
    """Time passes: every lease of before is over."""

    def run(self, hands: Hands, call: Call, connection: Connection | None = None) -> None:
        stop(lambda: 0, "time passes")
        hands.world.advance()

    def follow(
        self, state: State, result: Any, call: Call, context: Context
    ) -> Iterator[dict[str, Item]]:
        # Each call knows by itself what the clock may have shown.
        yield dict(state)


@dataclasses.dataclass(frozen=True)
class Cut(Act):
    """The session of another client ends, wherever it is; that client goes on with a new one."""

    client: str

    def run(self, hands: Hands, call: Call, connection: Connection | None = None) -> bool:
        stop(lambda: 0, f"the connection of {self.client} is cut")
        return hands.world.cut(self.client)

    def follow(
        self, state: State, result: Any, call: Call, context: Context
    ) -> Iterator[dict[str, Item]]:
        yield dict(state)


def _some(labels: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for count in range(len(labels) + 1):
        yield from itertools.combinations(labels, count)


@dataclasses.dataclass(frozen=True)
class Restore(Act):
    """Give back the messages whose leases are over, as a pass of the reaper does."""

    def run(self, hands: Hands, call: Call, connection: Connection | None = None) -> int:
        return core_of(hands.queue).recovery.restore()

    def follow(
        self, state: State, result: Any, call: Call, context: Context
    ) -> Iterator[dict[str, Item]]:
        for now in _seconds(call):
            over = [key for key, item in state.items() if item.holder >= 0 and item.ends <= now]
            must, world = set(over) - context.touched, context.world
            for some in _some(over):
                # What was tried for the last time does not come back.
                dead = [label for label in some if state[label].attempts >= world.most_attempts]
                if must <= set(some) and len(some) - len(dead) == result:
                    after = {**state, **{label: state[label].freed() for label in some}}
                    for label in sorted(dead, key=lambda each: world.ids[each]):
                        after |= world.failed(after, label, "failed")
                    yield after


# -- what operators do


@dataclasses.dataclass(frozen=True)
class Delete(Act):
    """Remove a message, whoever has it."""

    label: str

    def run(self, hands: Hands, call: Call, connection: Connection | None = None) -> bool:
        number = hands.world.ids[self.label]
        return hands.queue.delete(number, connection=connection)

    def follow(
        self, state: State, result: Any, call: Call, context: Context
    ) -> Iterator[dict[str, Item]]:
        item = state[self.label]
        # What came back from the archive has another id.
        if result == (item.status in LIVE and not item.back):
            yield {**state, self.label: item.freed("gone") if result else item}

    def touches(self, result: Any, world: World) -> frozenset[str]:
        return frozenset({self.label})


@dataclasses.dataclass(frozen=True)
class Edit(Act):
    """Hold a message, let it go again, or put it in front; not if a consumer has it.

    Attributes:
        verb: hold, unhold or front.
    """

    label: str
    verb: str

    def run(self, hands: Hands, call: Call, connection: Connection | None = None) -> int:
        chosen = hands.queue.messages(kind=self.label)
        if self.verb == "front":
            return int(chosen.prioritize(front=True, connection=connection))
        edited = getattr(chosen, self.verb)(connection=connection)
        return int(edited)

    def follow(
        self, state: State, result: Any, call: Call, context: Context
    ) -> Iterator[dict[str, Item]]:
        item = state.get(self.label, Item("gone"))
        before = {"hold": ("ready", "delayed"), "unhold": ("held",), "front": ("ready", "delayed")}
        if result != (item.status in before[self.verb]):
            return
        if not result:
            yield dict(state)
        elif self.verb == "front":
            fronts = max(each.front for each in state.values())
            yield {**state, self.label: item.freed()._replace(front=fronts + 1)}
        else:
            status = "held" if self.verb == "hold" else "ready"
            yield {**state, self.label: item.freed(status)}

    def touches(self, result: Any, world: World) -> frozenset[str]:
        return frozenset({self.label})


@dataclasses.dataclass(frozen=True)
class Requeue(Act):
    """Bring a finished message back from the archive."""

    label: str

    def run(self, hands: Hands, call: Call, connection: Connection | None = None) -> int:
        return int(hands.queue.archive.messages(kind=self.label).requeue())

    def follow(
        self, state: State, result: Any, call: Call, context: Context
    ) -> Iterator[dict[str, Item]]:
        item = state[self.label]
        if result != (item.status in ("rejected", "failed")):
            # It asks for what had ended when it began.
            if not result and len(_seconds(call)) > 1:
                yield dict(state)
            return
        after = dict(state)
        name = of_group(context.world.groups.get(self.label, ""))
        if result:
            after[self.label] = Item(back=1)
            if name in state and state[name].by == self.label:
                after[name] = _marked(state[name], BLOCKED, on=False)._replace(by="")
        yield after

    def touches(self, result: Any, world: World) -> frozenset[str]:
        return frozenset({self.label})


@dataclasses.dataclass(frozen=True)
class Group(Act):
    """Pause or resume a group, let it go on after a dead letter, or give it a limit of its own.

    Attributes:
        verb: pause, resume, unblock or configure.
        limit: of its own; 0: that of the queue.
    """

    name: str
    verb: str
    limit: int = 0

    def run(self, hands: Hands, call: Call, connection: Connection | None = None) -> None:
        options = {"limit": self.limit or None} if self.verb == "configure" else {}
        getattr(hands.queue.groups[self.name], self.verb)(**options)

    def follow(
        self, state: State, result: Any, call: Call, context: Context
    ) -> Iterator[dict[str, Item]]:
        name = of_group(self.name)
        item = state[name]
        if self.verb == "configure":
            yield {**state, name: item._replace(attempts=self.limit)}
        elif self.verb == "unblock":
            yield {**state, name: _marked(item, BLOCKED, on=False)._replace(by="")}
        else:
            yield {**state, name: _marked(item, PAUSED, on=self.verb == "pause")}

    def touches(self, result: Any, world: World) -> frozenset[str]:
        return frozenset(label for label, name in world.groups.items() if name == self.name)


@dataclasses.dataclass(frozen=True)
class Row:
    """What the tables have of a message.

    Attributes:
        status: ready, delayed, held, claimed, or the outcome in the archive.
        attempts: how often it was claimed, without released claims.
        holder: the call whose stamp the row has; -1 if nobody has it, -2 if no call made it.
    """

    status: str
    attempts: int
    holder: int = -1


def _status(row: Any, due: int | None) -> str:
    if due is None:
        return "held"
    return "delayed" if due - row.published_at > DELAY * 500_000 else "ready"


@dataclasses.dataclass(frozen=True)
class Observe(Act):
    """Read the tables, all rows that there are."""

    def run(self, hands: Hands, call: Call, connection: Connection | None = None) -> Any:
        queue, world = hands.queue, hands.world
        tables = core_of(queue).context.tables
        with hands.engine.connect() as own:
            live = list(own.execute(select(queue.table)))
            archived = list(own.execute(select(queue.archive.table)))
            groups: list[Any] = []
            if tables.groups is not None:
                groups = list(own.execute(select(tables.groups)))
        rows: list[tuple[str, Row]] = []
        for row in live:
            world.places.setdefault(row.kind, (row.scheduled_at, row.id))
            holder = -1
            if row.consumer_id is not None:
                stamp = row.consumer_id, row.consumer_round
                status, holder = "claimed", world.stamps.get(stamp, -2)
            else:
                # What its group blocks is parked; then its due time is elsewhere.
                parked_at = getattr(row, "parked_at", None)
                status = _status(row, row.available_at if parked_at is None else parked_at)
            rows.append((row.kind, Row(status, row.attempt_count, holder)))
        rows += [(row.kind, Row(row.outcome, row.attempt_count)) for row in archived]
        found = {row.group_key: row for row in groups}
        for name in {*world.groups.values()}:
            marks = []
            if name in found:
                marks = [BLOCKED] if found[name].blocked_by is not None else []
                marks += [PAUSED] if found[name].paused_at is not None else []
            own_limit = (found[name].own_limit or 0) if name in found else 0
            rows.append((of_group(name), Row(" ".join(marks) or "open", own_limit)))
        return tuple(sorted(rows, key=lambda each: each[0]))

    def follow(
        self, state: State, result: Any, call: Call, context: Context
    ) -> Iterator[dict[str, Item]]:
        expected = tuple(
            (label, Row(item.status, item.attempts, item.holder))
            for label, item in sorted(state.items())
            if item.status != "gone"
        )
        if expected == result:
            yield dict(state)


# -- a transaction of the client's own


@dataclasses.dataclass(frozen=True)
class Transaction(Act):
    """Do it all in a transaction of the client's own, which may be rolled back at its end.

    Attributes:
        isolation: its level, where the engine has it; None: the server's default.
    """

    acts: tuple[Act, ...]
    isolation: str | None = None
    commits: bool = True

    def run(self, hands: Hands, call: Call, connection: Connection | None = None) -> Any:
        engine = hands.engine
        results: list[Any] = []
        if self.isolation in hands.levels:
            engine = engine.execution_options(isolation_level=self.isolation)
        with engine.connect() as own:
            try:
                results.extend(act.run(hands, call, own) for act in self.acts)
                if not self.commits:
                    own.rollback()
                    return "rolled back", tuple(results)
                own.commit()
            except (DatabaseUnavailable, DBAPIError):
                own.rollback()
                return "failed", tuple(results)
        return "committed", tuple(results)

    def follow(
        self, state: State, result: Any, call: Call, context: Context
    ) -> Iterator[dict[str, Item]]:
        how, results = result
        if how != "committed":
            # Only what others do at the same time may make it fail.
            if how == "rolled back" or context.overlapped or context.cut:
                yield dict(state)
            return
        states = [dict(state)]
        for act, told in zip(self.acts, results, strict=True):
            states = [
                after for before in states for after in act.follow(before, told, call, context)
            ]
        yield from states

    def touches(self, result: Any, world: World) -> frozenset[str]:
        if len(result[1]) < len(self.acts):
            # One that did not end does not say what it has locked.
            return frozenset(world.ids)
        touched = [act.touches(told, world) for act, told in zip(self.acts, result[1], strict=True)]
        return frozenset().union(*touched)
