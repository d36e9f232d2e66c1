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
    """

    status: str = "ready"
    attempts: int = 0
    holder: int = -1
    ends: int = 0
    back: int = 0
    front: int = 0
    due: int = 0

    def freed(self, status: str = "ready") -> Item:
        """The same in nobody's hands."""
        return self._replace(status=status, holder=-1, ends=0)


State = Mapping[str, Item]


@dataclasses.dataclass
class World:
    """What one run is about.

    Attributes:
        grouped: whether the queue keeps groups in order, one message of each in hand.
        limit: how many messages of the queue may be in hand at once.
        places: when each message was due first, and its id, once a consumer has seen it.
        ids: the id of each message.
        groups: the group of each message.
        stamps: the call of each claim.
        keys: the key of each message that has one.
        advance: moves the clock.
        cut: ends the session that a client uses; returns whether there was one to end.
    """

    grouped: bool = False
    limit: int | None = None
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
        due = round(message.scheduled_at.timestamp() * 1_000_000)
        self.places.setdefault(label, (due, message.id))
        return label

    def place(self, label: str, item: Item) -> tuple[int, int, int, int]:
        """Where a message is in the order of the queue."""
        due, number = self.places.get(label, (0, self.ids.get(label, 0)))
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


LIVE: Final = ("ready", "delayed", "held", "claimed")


@dataclasses.dataclass(frozen=True)
class Publish(Act):
    """Publish a message; with a key only if no live message has it.

    Attributes:
        ago: for how many seconds it has been due; None: due from now on.
    """

    label: str
    group: str | None = None
    key: str | None = None
    ago: float | None = None

    def run(self, hands: Hands, call: Call, connection: Connection | None = None) -> str:
        options: dict[str, Any] = {} if self.group is None else {"group": self.group}
        if self.key is not None:
            options["key"] = self.key
        if self.ago is not None:
            options["at"] = datetime.now(UTC) - timedelta(seconds=self.ago)
        try:
            published = hands.queue.publish({}, kind=self.label, connection=connection, **options)
        except DuplicateKey:
            return "duplicate"
        hands.world.ids[self.label] = published.id
        return "published"

    def follow(
        self, state: State, result: Any, call: Call, context: Context
    ) -> Iterator[dict[str, Item]]:
        keys = context.world.keys
        taken = self.key is not None and any(
            keys.get(label) == self.key and item.status in LIVE for label, item in state.items()
        )
        if result == "published" and not taken:
            for now in _seconds(call):
                yield {**state, self.label: Item(due=now)}
        # A transaction that has not ended may hold the key, too.
        if result == "duplicate" and (taken or context.overlapped):
            yield dict(state)

    def touches(self, result: Any, world: World) -> frozenset[str]:
        same = {label for label, key in world.keys.items() if key == self.key}
        return frozenset({self.label, *same})


# -- claim, take


def _claimable(state: State, world: World, now: int) -> list[str]:
    """What a consumer may get at a time, in order."""
    found = [key for key, item in state.items() if item.status == "ready" and item.due <= now]
    found.sort(key=lambda label: world.place(label, state[label]))
    if not world.grouped:
        return found
    heads: dict[str, str] = {}
    for label, item in state.items():
        group = world.groups.get(label)
        if group is not None and item.status in LIVE:
            first = heads.setdefault(group, label)
            if world.ids[label] < world.ids[first]:
                heads[group] = label
    return [each for each in found if heads.get(world.groups.get(each, ""), each) == each]


def _gets(state: State, got: Sequence[str], count: int, now: int, context: Context) -> bool:
    """Whether a consumer may get these then: the oldest, except what others have locked."""
    world = context.world
    claimable = _claimable(state, world, now)
    if not set(got) <= set(claimable):
        return False
    places = [world.place(label, state[label]) for label in got]
    if places != sorted(places):
        return False
    missed = [label for label in claimable if label not in got]
    if len(got) == count and world.grouped:
        # What its group blocked is due when it is woken: between groups there is no order.
        missed = []
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
        return frozenset(label for label, _ in result)


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
        return frozenset(result)


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
            after = {label: self._after(state[label], now) for label, _, done in result if done}
            yield {**state, **after}

    def _after(self, item: Item, now: int) -> Item:
        if self.verb == "extend":
            return item._replace(ends=now + LEASE)
        if self.verb == "release":
            return item.freed()._replace(attempts=item.attempts - 1)
        ends = {"ack": "gone", "nack": "delayed", "reject": "rejected"}
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
        return Settle("ack").touches(result[0], world) | Claim().touches(result[1], world)


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
            must = set(over) - context.touched
            for some in itertools.combinations(over, result):
                if must <= set(some):
                    yield {**state, **{label: state[label].freed() for label in some}}


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
        if result == (item.status == "rejected"):
            yield {**state, self.label: Item(back=1) if result else item}

    def touches(self, result: Any, world: World) -> frozenset[str]:
        return frozenset({self.label})


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
        with hands.engine.connect() as own:
            live = list(own.execute(select(queue.table)))
            archived = list(own.execute(select(queue.archive.table)))
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
        touched = [
            act.touches(told, world) for act, told in zip(self.acts, result[1], strict=False)
        ]
        return frozenset().union(*touched)
