"""Any order of what two services may do with one queue, against a plain model of the promises.

Hypothesis chooses the queue's settings, its verbs and their arguments. After each the tables are
compared with the model: which messages live, who holds them, how often they were tried, and how
the others ended. A queue without groups has to give exactly the oldest. With groups, limits and
changing settings the model says what may be claimed, and all that is counted and told has to agree.
Adopted tables need another model: their owner writes the rows, which stay when they are finished.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, select, update

from queue_over_sql import (
    ClaimLost,
    DuplicateKey,
    FixedDelay,
    GroupFull,
    GroupState,
    Message,
    Publication,
    QueueService,
    Reason,
    ScheduleNotFound,
)
from queue_over_sql.inside import system
from queue_over_sql.testing import drain
from queue_over_sql.values.states import DEAD, LiveStatus
from tests.contract.queue_state import set_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Engine

    from queue_over_sql import Queue
    from queue_over_sql.testing.plugin import MakeService

HOUR = 3600.0
# What comes back, or is put before what was claimed already, may be found a little later.
LONGEST_WAIT = 10.0
GROUPS = st.sampled_from([None, "a", "A", "it's"])
KEYS = st.sampled_from([None, None, "k"])
KINDS = st.sampled_from([None, "x", "y"])
SIDES = st.sampled_from([0, 1])
STATUSES: tuple[LiveStatus, ...] = ("ready", "delayed", "claimed", "held")
ENDS = st.sampled_from(["ack", "nack", "release", "count", "reject", "extend"])

# What transactional handlers wrote.
EFFECTS = Table("effects", MetaData(), Column("id", BigInteger, autoincrement=False))

Stamp = tuple[str | None, int | None]
FREE: Stamp = (None, None)
MADE: dict[str, Any] = {"lease": HOUR, "max_attempts": 2, "retry": FixedDelay(0), "priorities": 2}
UNSET: dict[str, Any] = {
    "group_limit": None,
    "group_order": "any",
    "block_on_failure": False,
    "unique": "live",
    **dict.fromkeys(("dedup_window", "group_rate", "queue_rate", "max_length")),
}


@dataclasses.dataclass
class Live:
    """A message that is in the queue."""

    payload: int
    key: str | None
    group: str | None
    kind: str | None
    most: int
    priority: int = 0
    attempts: int = 0
    holder: Stamp = FREE
    begun: bool = False
    late: bool = False
    suspect: bool = False
    available_at: int | None = None


class _Failed(Exception):
    """What a handler raises."""


class Machine(RuleBasedStateMachine):
    """What may happen, and what has to be true after it."""

    services: Sequence[QueueService]
    make_service: MakeService
    engine: Engine
    handles: Bundle[Message] = Bundle("handles")

    @initialize(
        shape=st.sampled_from(["plain", "plain", "fifo", "any", "fair"]),
        limit=st.sampled_from([1, 1, 2, 3]),
        keys=st.sampled_from([{}, {"unique": "waiting"}, {"dedup_window": HOUR}]),
        more=st.fixed_dictionaries(
            {
                "queue_limit": st.sampled_from([None, None, 3]),
                "archive": st.sampled_from(["all", "failed"]),
                "dead_letter_queue": st.sampled_from([None, "dead"]),
            }
        ),
        blocks=st.booleans(),
    )
    def begin(
        self, shape: str, limit: int, keys: dict[str, Any], more: dict[str, Any], *, blocks: bool
    ) -> None:
        """Each example has a queue of its own kind, and begins with none."""
        self.numbers = itertools.count()
        self.made = {**MADE, **more, **keys}
        if shape != "plain":
            self.made |= {
                "group_limit": limit,
                "group_order": "fifo" if shape == "fifo" else "any",
                "group_fair": shape == "fair",
                "block_on_failure": blocks,
            }
        self.create()

    def create(self) -> None:
        """Create the queue anew, and the one of its dead letters."""
        self.services[0].schedules.remove("yearly")
        for name in ("jobs", "dead"):
            self.services[0].drop_queue(name)
        for service in self.services:
            service.create_queue("dead")
            if service is self.services[0] and self.engine.dialect.name == "h2":
                # It adds what groups need only while nobody else is connected.
                service.create_queue("jobs", **{**self.made, "group_limit": 1})
            service.create_queue("jobs", **{"group_limit": None, **self.made})
        self.services[0].create_topic("all").subscribe("jobs", "#")
        self.queues: list[Queue] = [service.queue("jobs") for service in self.services]
        for queue in self.queues:
            queue.refresh()
        self.set = {**UNSET, **self.made}
        with self.engine.begin() as connection:
            connection.execute(EFFECTS.delete())
        self.effects: list[int] = []
        self.live: dict[int, Live] = {}
        self.ended: dict[int, tuple[Live, str]] = {}
        self.gone: set[int] = set()
        self.copied: list[int] = []
        self.kept: dict[str, int] = {}
        self.own_limits: dict[str, int] = {}
        self.stopped: set[str] = set()
        self.blocked: dict[str, int] = {}
        self.paused = False

    # -- the model

    def rows(self) -> dict[int, Any]:
        """The rows of the queue as they are, by id."""
        with self.engine.connect() as connection:
            return {row.id: row for row in connection.execute(select(self.queues[0].table))}

    def in_group(self, group: str | None) -> dict[int, Live]:
        """The live messages of a group, by id."""
        return {number: live for number, live in self.live.items() if live.group == group}

    @property
    def ordered(self) -> bool:
        """Whether messages of a group follow one another."""
        return self.set["group_limit"] is not None and self.set["group_order"] == "fifo"

    def remove(self, number: int) -> None:
        """A message is gone without a trace."""
        del self.live[number]
        self.gone.add(number)

    def end(self, number: int, outcome: str) -> None:
        """A message is finished."""
        live = self.live.pop(number)
        dead = outcome in DEAD
        if dead and self.set["dead_letter_queue"]:
            self.copied.append(number)
        blocks = self.ordered and self.set["block_on_failure"] and outcome != "expired"
        if dead and blocks and live.group is not None:
            self.blocked.setdefault(live.group, number)
        if live.key and self.set["dedup_window"] is not None:
            self.kept[live.key] = number
        if self.set["archive"] == "all" or dead:
            self.ended[number] = (live, outcome)
        else:
            self.gone.add(number)

    def back(self, number: int, *, counted: bool) -> None:
        """A message leaves a hand; those behind it in its group come back with it."""
        live = self.live[number]
        if counted and live.attempts >= live.most:
            self.end(number, "failed")
        else:
            live.attempts -= not counted
            self.freed(number)
            self.follow(number, live)

    def freed(self, number: int) -> None:
        """Nobody holds a message any more."""
        live = self.live[number]
        live.holder, live.late = FREE, True

    def follow(self, number: int, head: Live) -> None:
        """What a consumer held behind a message that came back was never begun."""
        if not self.ordered or head.group is None:
            return
        rows = self.rows()
        for behind, other in self.in_group(head.group).items():
            if behind > number and other.holder != FREE and rows[behind].consumer_id is None:
                other.attempts -= 1
                self.freed(behind)

    def came_back(self, given: Sequence[int], *, died: bool) -> None:
        """What a reaper took from a consumer comes back, or is out of attempts."""
        rows = self.rows()
        for number in sorted(given):
            live = self.live[number]
            if live.holder == FREE:
                continue
            if (row := rows.get(number)) is None:
                assert live.attempts >= live.most, (number, live)
                self.end(number, "failed")
                continue
            assert row.consumer_id is None
            if row.attempt_count == live.attempts:
                # Another one of the consumer's may have killed it, so it gets an attempt more.
                most = row.max_attempts or self.set["max_attempts"]
                assert most == live.most + (died and len(given) > 1 and live.most > 1)
                assert live.attempts < most
                live.most, live.suspect = most, died
            else:
                assert self.ordered
                assert any(other < number for other in self.in_group(live.group))
                live.attempts -= 1
            self.freed(number)
            self.follow(number, live)

    def holds(self, message: Message) -> bool:
        """Whether a claim is good."""
        live = self.live.get(message.id)
        return live is not None and live.holder == _stamp(message) != FREE

    def taken(self, key: str | None) -> list[int]:
        """The ids of live messages that may have a key."""
        waiting = self.set["unique"] == "waiting"
        return [
            number
            for number, live in self.live.items()
            if key and live.key == key and not (waiting and live.holder != FREE)
        ]

    def published(self, item: Publication, number: int) -> None:
        """A message is there, with a number that no other one ever had."""
        assert number not in self.live.keys() | self.ended.keys() | self.gone
        self.live[number] = self.new(item)

    def new(self, item: Publication) -> Live:
        """What the model knows of a new message."""
        most = item.max_attempts or self.set["max_attempts"]
        live = Live(item.payload, item.key, item.group, item.kind, most, item.priority)
        live.late = item.at is not None
        return live

    def is_full(self, more: int = 1) -> bool:
        """Whether the queue has no room for so many messages."""
        most = self.set["max_length"]
        return most is not None and len(self.live) + more > most

    def group_of(self, group: str | None) -> str | None:
        """The group, if the queue has groups."""
        return None if self.set["group_limit"] is None else group

    # -- publishers

    @rule(
        side=SIDES,
        key=KEYS,
        group=GROUPS,
        more=st.fixed_dictionaries(
            {
                "kind": KINDS,
                "headers": st.sampled_from([None, {"h": "\u00e9"}]),
                "priority": st.sampled_from([0, 0, 1]),
                "delay": st.sampled_from([None, None, HOUR]),
                "expires": st.sampled_from([None, 4 * HOUR]),
                "lease": st.sampled_from([None, 2 * HOUR]),
                "max_attempts": st.sampled_from([None, 1, 2, 3]),
            }
        ),
        past=st.sampled_from([False, False, True]),
        on_conflict=st.sampled_from(["raise", "skip", "replace"]),
        commits=st.sampled_from([True, True, None, False]),
    )
    def publish(  # noqa: PLR0917 - Hypothesis names them
        self,
        side: int,
        key: str | None,
        group: str | None,
        more: dict[str, Any],
        past: bool,
        on_conflict: Any,
        commits: bool | None,
    ) -> None:
        """It is there once it is committed, unless its key is taken."""
        options: dict[str, Any] = {"key": key, "group": self.group_of(group), **more}
        if past:
            options |= {"delay": None, "at": datetime.now(UTC) - timedelta(hours=2)}
        item = Publication(next(self.numbers), **options)
        taken, kept = self.taken(key), self.kept.get(key or "")
        known = {*taken, kept} - {None}
        on_conflict = on_conflict if key else "raise"
        try:
            with self.transaction(commits=commits) as connection:
                done = self.queues[side].publish(
                    item.payload, on_conflict=on_conflict, connection=connection, **options
                )
        except DuplicateKey as error:
            assert on_conflict == "raise"
            assert error.id in known  # noqa: PT017 - it may be raised, and has to be true then
            return
        except GroupFull:
            assert self.is_full()
            return
        if done.outcome == "created":
            assert kept is None
            assert not self.is_full()
            if taken:
                assert "waiting" == self.set["unique"]
                assert all(self.live[number].begun for number in taken)
        else:
            assert done.id in known
            wanted = "replaced" if on_conflict == "replace" and taken else "skipped"
            assert (wanted, True) == (done.outcome, on_conflict != "raise")
        if commits is False:
            return
        if done.outcome == "created":
            self.published(item, done.id)
        elif done.outcome == "replaced":
            self.live[done.id] = self.new(item)
            self.live[done.id].late = True

    @rule(
        side=SIDES,
        options=st.lists(st.tuples(GROUPS, KEYS), min_size=1, max_size=6),
        load=st.booleans(),
    )
    def publish_many(
        self, side: int, options: list[tuple[str | None, str | None]], *, load: bool
    ) -> None:
        """Several at once, in order: all or none."""
        items = [
            Publication(next(self.numbers), group=self.group_of(group), key=key)
            for group, key in options
        ]
        keys = [key for _, key in options if key]
        queue, before = self.queues[side], self.rows()
        try:
            (queue.load if load else queue.publish_many)(items)
        except DuplicateKey:
            assert len(set(keys)) < len(keys) or any(
                self.taken(key) or key in self.kept for key in keys
            )
            return
        except GroupFull:
            assert self.is_full(len(items))
            return
        assert not self.is_full(len(items))
        assert len(set(keys)) == len(keys)
        assert not self.kept.keys() & keys
        numbers = sorted(self.rows().keys() - before.keys())
        for item, number in zip(items, numbers, strict=True):
            self.published(item, number)

    @rule(side=SIDES, commits=st.sampled_from([None, True, False]))
    def publish_to_topic(self, side: int, commits: bool | None) -> None:
        """The queue gets a copy."""
        item = Publication(next(self.numbers))
        topic = self.services[side].topic("all")
        try:
            with self.transaction(commits=commits) as connection:
                [copy] = topic.publish(item.payload, routing_key="a.b", connection=connection)
        except GroupFull:
            assert self.is_full()
            return
        assert "jobs" == copy.queue
        if commits is not False:
            self.published(item, copy.id)

    @rule(side=SIDES, verb=st.sampled_from(["add", "run", "run", "pause", "resume", "remove"]))
    def schedule(self, side: int, verb: str) -> None:
        """A schedule adds messages of its own, and removes only those of times to come."""
        schedules, before = self.services[side].schedules, self.rows()
        verbs: dict[str, Callable[[], Any]] = {
            "add": lambda: schedules.add("yearly", "jobs", -1, cron="@yearly"),
            "run": lambda: schedules.run("yearly"),
            "pause": lambda: schedules.pause("yearly"),
            "resume": lambda: schedules.resume("yearly"),
            "remove": lambda: schedules.remove("yearly"),
        }
        try:
            verbs[verb]()
        except ScheduleNotFound:
            assert not any(schedule.name == "yearly" for schedule in schedules.list())
        except GroupFull:
            assert self.is_full()
        after = self.rows()
        assert verb in {"add", "run", "resume"} or after.keys() <= before.keys()
        self.scheduled(before)
        for number in before.keys() - after.keys():
            assert verb in {"pause", "remove", "add"}
            assert (-1, FREE) == (self.live[number].payload, self.live[number].holder)
            self.remove(number)

    def scheduled(self, before: Mapping[int, Any]) -> None:
        """Only the schedule has added messages since then."""
        for number, row in self.rows().items():
            if number not in before:
                item = Publication(int(row.payload), key=row.message_key)
                assert -1 == item.payload
                self.published(item, number)

    def reap(self, side: int) -> None:
        """A pass also brings back the schedule's next message, if it was removed."""
        before = self.rows()
        self.services[side].reap()
        self.scheduled(before)

    @contextlib.contextmanager
    def transaction(self, *, commits: bool | None) -> Any:
        """A transaction of the caller's, or none."""
        if commits is None:
            yield None
            return
        with self.engine.connect() as connection, connection.begin() as transaction:
            # SQLite may not know yet that the table was made anew.
            connection.execute(select(self.queues[0].table.c.id).limit(1))
            yield connection
            if not commits:
                transaction.rollback()

    # -- consumers

    @rule(target=handles, side=SIDES, count=st.integers(1, 5), kind=st.sampled_from([None, "x"]))
    def consume(self, side: int, count: int, kind: str | None) -> Any:
        """Only what the rules allow."""
        queue = self.queues[side]
        where = None if kind is None else queue.table.c.kind == kind
        return multiple(*self.claimed(queue.consume(count, where=where), count, kind))

    def claimed(self, got: list[Message], count: int, kind: str | None = None) -> list[Message]:
        """Note a claim; it breaks no rule."""
        assert len(got) <= count
        assert not (got and self.paused)
        self.oldest_first([message.id for message in got], kind)
        for message in got:
            live = self.live[message.id]
            assert FREE == live.holder, "two have it"
            live.attempts += 1
            live.begun, live.late, live.suspect = True, False, False
            live.holder = _stamp(message)
            assert (live.payload, live.key, live.group, live.attempts) == (
                message.payload,
                message.key,
                message.group,
                message.attempt,
            )
            assert (live.kind, live.most) == (message.kind, message.max_attempts)
            assert kind is None or kind == live.kind
            assert live.group not in self.stopped, "its group is paused"
            assert live.group not in self.blocked, "a dead letter blocks its group"
        for group in {message.group for message in got} - {None}:
            self.group_is_right(group)
        most = self.set["queue_limit"]
        in_hand = sum(live.holder != FREE for live in self.live.values())
        assert not got or most is None or in_hand <= most
        return got

    def oldest_first(self, got: list[int], kind: str | None = None) -> None:
        """Without groups, what is claimed is the first of what is ready, in its order."""
        if self.set["group_limit"] is not None:
            return
        now = time.time() * 1e6
        ready = [
            (live.priority, live.available_at, number)
            for number, live in self.live.items()
            if live.holder == FREE and live.available_at is not None and live.available_at <= now
            if kind is None or live.kind == kind
        ]
        wanted = [number for *_, number in sorted(ready)]
        assert got == [number for number in wanted if number in got]
        most = self.set["queue_limit"]
        in_hand = sum(live.holder != FREE for live in self.live.values())
        may_be_less = (
            self.paused
            or self.set["queue_rate"]
            or (most is not None and in_hand >= most)
            or any(self.live[number].suspect for number in wanted)
        )
        if not may_be_less:
            missing = wanted[: wanted.index(got[-1])] if got else wanted
            skipped = set(missing) - set(got)
            assert all(self.live[number].late for number in skipped), (skipped, got)

    def group_is_right(self, group: str | None) -> None:
        """Not more than its limit are in hand, and in order all that are before them are, too."""
        members = self.in_group(group)
        held = {number: live.holder for number, live in members.items() if live.holder != FREE}
        limit = self.own_limits.get(group or "", self.set["group_limit"])
        ordered = self.ordered
        if ordered:
            assert sorted(held) == sorted(members)[: len(held)], (group, held)
        # A changed limit or order may leave more in hand.
        if ordered and limit == 1:
            assert 1 == len(set(held.values())), (group, held)
        else:
            assert len(held) <= limit, (group, held)

    @rule(side=SIDES, count=st.integers(1, 3), commits=st.booleans())
    def take(self, side: int, count: int, commits: bool) -> None:
        """Finished in the caller's transaction, or nothing was."""
        with self.transaction(commits=commits) as connection:
            got = self.queues[side].take(count, connection=connection)
            ids = {message.id for message in got}
            assert len(ids) == len(got) <= count
            assert not (got and self.paused)
            self.oldest_first([message.id for message in got])
            for message in got:
                live = self.live[message.id]
                assert (FREE, live.payload) == (live.holder, message.payload)
                assert live.attempts + 1 == message.attempt
                assert live.group not in self.stopped | self.blocked.keys()
                if self.ordered and live.group is not None:
                    before = {number for number in self.in_group(live.group) if number < message.id}
                    assert before <= ids
        if commits:
            # The archive has what was claimed before.
            for message in got:
                self.end(message.id, "done")

    @rule(message=handles, how=ENDS, commits=st.sampled_from([True, True, False]))
    def settle(self, message: Message, how: str, commits: bool) -> None:
        """Who holds it does that, in a transaction of its own; who lost it changes nothing."""
        verbs: dict[str, Callable[[Any], Any]] = {
            "ack": message.ack,
            "nack": lambda connection: message.nack("bad", connection=connection),
            "release": message.release,
            "count": lambda connection: message.release(connection, count=True, delay=HOUR),
            "reject": lambda connection: message.reject("no", connection),
            "extend": lambda connection: message.extend(connection=connection),
        }
        with contextlib.ExitStack() as stack:
            if not self.holds(message):
                stack.enter_context(pytest.raises(ClaimLost))
            verb, held = verbs[how], self.holds(message)
            connection = stack.enter_context(self.transaction(commits=commits))
            verb(connection)
        if held and commits:
            self.settled(message.id, how)

    @rule(message=handles, how=ENDS)
    def settle_at_once(self, message: Message, how: str) -> None:
        """The same without a transaction, by the token of the claim."""
        if not self.holds(message):
            with pytest.raises(ClaimLost):
                self.queues[0].held(message.token)
            return
        held = self.queues[0].held(message.token)
        verbs: dict[str, Callable[[], Any]] = {
            "ack": held.ack,
            "nack": lambda: held.nack("bad", delay=HOUR),
            "release": held.release,
            "count": lambda: held.release(count=True),
            "reject": lambda: held.reject("no"),
            "extend": held.extend,
        }
        verbs[how]()
        self.settled(message.id, how)

    @rule(side=SIDES, messages=st.lists(handles, min_size=1, max_size=4), how=ENDS)
    def settle_several(self, side: int, messages: list[Message], how: str) -> None:
        """Those that this consumer holds are settled, the others are named."""
        queue, mine = self.queues[side], self.services[side].consumer_id
        unlike = list({id(message): message for message in messages}.values())
        if how != "ack" and self.ordered:
            # What is behind the first one of a group comes back with it, by either rule.
            unlike = list({message.group or message.id: message for message in unlike}.values())
        verbs: dict[str, Callable[[], None]] = {
            "ack": lambda: queue.ack(unlike),
            "nack": lambda: queue.nack(unlike, error="bad"),
            "release": lambda: queue.release(unlike),
            "count": lambda: queue.release(unlike, count=True),
            "reject": lambda: queue.reject(unlike, "no"),
            "extend": lambda: queue.extend(unlike),
        }
        held = [m for m in unlike if self.holds(m) and m.consumer_id == mine]
        lost = [message for message in unlike if message not in held]
        if lost:
            with pytest.raises(ClaimLost) as refused:
                verbs[how]()
            assert set(map(id, lost)) == set(map(id, refused.value.messages))
        else:
            verbs[how]()
        for message in held:
            self.settled(message.id, how)

    def settled(self, number: int, how: str) -> None:
        """What a verb did."""
        if how == "ack":
            self.end(number, "done")
        elif how == "reject":
            self.end(number, "rejected")
        elif how != "extend":
            self.back(number, counted=how != "release")

    @rule(target=handles, side=SIDES, messages=st.lists(handles, min_size=1, max_size=3))
    def exchange(self, side: int, messages: list[Message]) -> Any:
        """Those that are held are done; the next ones come if none was lost."""
        mine = self.services[side].consumer_id
        unlike = {id(message): message for message in messages}.values()
        held = [m for m in unlike if self.holds(m) and m.consumer_id == mine]
        lost = len(held) < len(unlike)
        got: list[Message] = []
        with pytest.raises(ClaimLost) if lost else contextlib.nullcontext():
            got = self.queues[side].exchange(messages, 2)
        for message in held:
            self.end(message.id, "done")
        return multiple(*self.claimed(got, 2))

    @rule(side=SIDES, fails=st.booleans())
    def work(self, side: int, fails: bool) -> None:
        """A handler's write and the ack are one: both are there, or none of them."""
        worker, got = self.services[side].worker(), list[Message]()

        @worker.handle("jobs", transactional=True)
        def handle(message: Message, connection: Connection) -> None:
            got.append(message)
            connection.execute(EFFECTS.insert().values(id=message.id))
            if fails:
                raise _Failed

        with contextlib.suppress(_Failed):
            drain(worker, limit=1)
        for message in self.claimed(got, 1):
            if not fails:
                self.effects.append(message.id)
            self.settled(message.id, "nack" if fails else "ack")

    @precondition(lambda self: not (self.paused or self.set["queue_limit"]))
    @rule(side=SIDES, other=SIDES)
    def ask(self, side: int, other: int) -> None:
        """A request gets the reply of whoever claimed it."""
        item, before = Publication(next(self.numbers), kind="ask"), self.rows().keys()
        queue = self.queues[other]
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(self.queues[side].request, item.payload, timeout=60, kind="ask")
            while not (new := self.rows().keys() - before or asked.done()):
                time.sleep(0.01)
            if self.is_full():
                with pytest.raises(GroupFull):
                    asked.result()
                return
            assert not isinstance(new, bool)
            self.published(item, *new)
            self.tables_are_as_promised()
            got: list[Message] = []
            while not got:
                got = queue.consume(where=queue.table.c.kind == "ask", wait=1.0)
            [message] = self.claimed(got, 1, "ask")
            message.reply(-item.payload)
            message.ack()
            self.end(message.id, "done")
            assert -item.payload == asked.result().payload

    # -- time, and the dead

    @rule(message=handles, side=SIDES)
    def lease_ends(self, message: Message, side: int) -> None:
        """A reaper gives it back, or buries it."""
        if self.holds(message):
            set_columns(self.engine, self.queues[0], message.id, lease_expires_at=1)
            self.reap(side)
            self.came_back([message.id], died=False)

    @rule(count=st.integers(1, 4))
    def die(self, count: int) -> None:
        """A consumer dies with messages in hand: all of them come back."""
        mortal = self.make_service(consumer_timeout=HOUR, reaper_interval=HOUR)
        got = self.claimed(mortal.queue("jobs").consume(count), count)
        consumers = system(mortal).consumers
        with self.engine.begin() as connection:
            dead = consumers.c.consumer_id == mortal.consumer_id
            connection.execute(update(consumers).where(dead).values(expires_at=1))
        self.reap(0)
        self.came_back([message.id for message in got], died=True)
        mortal.stop()

    @rule(side=SIDES)
    def expire(self, side: int) -> None:
        """What nobody began in time becomes a dead letter."""
        waiting = [
            number
            for number, row in self.rows().items()
            if row.expires_at is not None and row.attempt_count == 0 and row.consumer_id is None
        ]
        late = [n for n in waiting if self.status(n) != "held"][:1]
        for number in late:
            set_columns(self.engine, self.queues[0], number, expires_at=1)
        # A service learns within seconds that messages of a queue expire at all.
        self.queues[side].refresh()
        self.reap(side)
        for number in late:
            self.end(number, "expired")

    def status(self, number: int) -> str:
        """The status by which a live message is listed; it is one only."""
        queue = self.queues[0]
        one = queue.table.c.id == number
        found = [s for s in STATUSES if queue.messages(status=s, where=one).count()]
        assert 1 == len(found), (number, found)
        return found[0]

    # -- the operator

    @rule(
        message=st.data(),
        side=SIDES,
        verb=st.sampled_from(
            ["hold", "unhold", "front", "level", "later", "now", "most", "remove", "payload"]
        ),
    )
    def edit(self, message: Any, side: int, verb: str) -> None:
        """What nobody holds is changed."""
        if not self.live:
            return
        number = message.draw(st.sampled_from(sorted(self.live)))
        queue = self.queues[side]
        one = queue.messages(where=queue.table.c.id == number)
        payload = next(self.numbers)
        verbs: dict[str, Callable[[], Any]] = {
            "hold": one.hold,
            "unhold": one.unhold,
            "front": lambda: one.prioritize(front=True),
            "level": lambda: one.prioritize(priority=1),
            "later": lambda: one.reschedule(delay=HOUR),
            "now": lambda: one.reschedule(delay=0),
            "most": lambda: one.set_max_attempts(3),
            "remove": one.remove,
            "payload": lambda: queue.edit(number, payload=payload),
        }
        was_held = self.live[number].available_at is None
        edited, live = verbs[verb](), self.live[number]
        if live.holder != FREE:
            assert 0 == edited
            return
        if verb == "unhold":
            assert int(was_held) == edited
        elif verb != "front":
            assert 1 == edited
        if verb == "remove":
            self.remove(number)
        elif verb == "payload":
            live.payload = payload
        elif verb == "level":
            live.priority = 1
        elif verb == "most":
            live.most = 3

    @rule(message=handles, side=SIDES, verb=st.sampled_from(["delete", "cancel"]))
    def end_it(self, message: Message, side: int, verb: str) -> None:
        """It ends, whoever holds it."""
        there = message.id in self.live
        assert there == getattr(self.queues[side], verb)(message.id)
        if there and verb == "delete":
            self.remove(message.id)
        elif there:
            self.end(message.id, "rejected")

    @rule(message=handles, side=SIDES, forgets=st.sampled_from([False, False, True]))
    def requeue(self, message: Message, side: int, *, forgets: bool) -> None:
        """What is finished comes again, with another number, or is forgotten."""
        archive = self.queues[side].archive
        chosen = archive.messages(where=archive.table.c.id == message.id)
        verb = chosen.remove if forgets else chosen.requeue
        if message.id not in self.ended:
            assert 0 == verb()
            return
        old, _ = self.ended[message.id]
        before = self.rows()
        try:
            assert 1 == verb()
        except DuplicateKey:
            assert self.taken(old.key)
            return
        del self.ended[message.id]
        self.gone.add(message.id)
        if old.group is not None and self.blocked.get(old.group) == message.id:
            del self.blocked[old.group]
        after = self.rows()
        new = after.keys() - before.keys()
        assert int(not forgets) == len(new)
        for number in new:
            if old.key and self.kept.get(old.key) == message.id:
                del self.kept[old.key]
            item = Publication(old.payload, key=old.key, group=old.group, kind=old.kind)
            self.published(item, number)
            self.live[number].most = after[number].max_attempts or self.set["max_attempts"]
            self.live[number].priority = after[number].priority

    @rule(side=SIDES, claimed=st.booleans())
    def purge(self, side: int, claimed: bool) -> None:
        """What nobody holds is gone, or all."""
        gone = [n for n, live in self.live.items() if claimed or live.holder == FREE]
        assert len(gone) == self.queues[side].purge(claimed=claimed)
        for number in gone:
            self.remove(number)

    @rule(side=SIDES)
    def pause_or_resume(self, side: int) -> None:
        """Nothing is handed out while the queue is paused."""
        (self.queues[side].resume if self.paused else self.queues[side].pause)()
        self.paused = not self.paused

    @precondition(lambda self: self.set["group_limit"] is not None)
    @rule(side=SIDES, group=st.sampled_from(["a", "A", "it's"]), verb=st.sampled_from("prulx"))
    def group(self, side: int, group: str, verb: str) -> None:
        """A group is paused, resumed, unblocked, or gets a limit of its own."""
        one = self.queues[side].groups[group]
        if verb == "p":
            one.pause()
            self.stopped.add(group)
        elif verb == "r":
            one.resume()
            self.stopped.discard(group)
        elif verb == "u":
            one.unblock()
            self.blocked.pop(group, None)
        elif verb == "l":
            one.configure(limit=2)
            self.own_limits[group] = 2
        else:
            one.configure(limit=None)
            self.own_limits.pop(group, None)

    @rule(
        side=SIDES,
        change=st.sampled_from(
            [
                {"group_limit": 1},
                {"group_limit": 3},
                {"group_limit": None, "group_fair": False, "group_rate": None},
                {"group_limit": 2, "group_order": "any"},
                {"group_limit": 1, "group_order": "fifo", "group_fair": False},
                {"queue_limit": 2},
                {"queue_limit": None},
                {"archive": "all"},
                {"archive": "failed"},
                {"dead_letter_queue": "dead"},
                {"dead_letter_queue": None},
                {"block_on_failure": True},
                {"block_on_failure": False},
                {"queue_rate": "1000/s"},
                {"queue_rate": None},
                {"group_rate": "1000/s"},
                {"max_length": 6},
                {"max_length": None},
                {"dedup_window": None},
            ]
        ),
    )
    def change(self, side: int, change: dict[str, Any]) -> None:
        """A setting changes while messages are in hand."""
        if not self.set["group_limit"]:
            change = {
                k: v for k, v in change.items() if k not in {"block_on_failure", "group_rate"}
            }
        try:
            self.services[side].create_queue("jobs", **change)
        except ValueError:
            assert change["group_limit"] is None
            assert any(live.group is not None for live in self.live.values())
            return
        for queue in self.queues:
            queue.refresh()
        self.set.update(change)
        if "group_limit" in change:
            self.change_groups()
        if change.get("dedup_window", 0) is None:
            self.kept.clear()

    def change_groups(self) -> None:
        """What waited for its group may be found a little later."""
        for live in self.live.values():
            live.late = True
        if self.set["group_limit"] is None:
            self.own_limits.clear()
            self.stopped.clear()
            self.blocked.clear()

    @rule()
    def drop_and_create(self) -> None:
        """A new queue of the same name knows nothing of the old one."""
        self.create()

    @precondition(lambda self: len(self.live) > 2)
    @rule(side=SIDES)
    def drain(self, side: int) -> None:
        """Nothing stays out of sight: after all is allowed again, every message comes."""
        queue = self.queues[side]
        queue.resume()
        self.paused = False
        held = [number for number, live in self.live.items() if live.holder != FREE]
        for number in held:
            set_columns(self.engine, queue, number, lease_expires_at=1)
        self.reap(side)
        self.came_back(held, died=False)
        if self.set["group_limit"] is not None:
            for group, verb in itertools.product(("a", "A", "it's"), "ru"):
                self.group(side, group, verb)
        queue.messages().unhold()
        queue.messages().reschedule(delay=0)
        deadline = time.monotonic() + LONGEST_WAIT
        while self.live:
            self.tables_are_as_promised()
            for message in self.claimed(queue.consume(3, wait=0.05), 3):
                message.ack()
                self.end(message.id, "done")
            assert time.monotonic() < deadline, f"{self.live} are never found"

    # -- what is true at all times

    @invariant()
    def tables_are_as_promised(self) -> None:
        """No message is lost, doubled, or held by another than who claimed it."""
        rows = self.rows()
        assert {number: _seen(row) for number, row in rows.items()} == {
            number: (
                *(live.payload, live.key, live.group, live.kind),
                *(live.priority, live.attempts, live.holder),
            )
            for number, live in self.live.items()
        }
        for number, row in rows.items():
            self.live[number].available_at = row.available_at
        with self.engine.connect() as connection:
            kept = connection.execute(select(self.queues[0].archive.table)).all()
        assert {row.id: (int(row.payload), row.outcome, row.attempt_count) for row in kept} == {
            number: (live.payload, outcome, live.attempts)
            for number, (live, outcome) in self.ended.items()
        }
        with self.engine.connect() as connection:
            done = connection.scalars(select(EFFECTS.c.id)).all()
        assert sorted(self.effects) == sorted(done)

    @invariant()
    def counts_agree(self) -> None:
        """What is counted, listed and said of groups is the same."""
        queue = self.queues[0]
        stats = queue.stats()
        listed = [queue.messages(status=status).count() for status in STATUSES]
        assert listed == [stats.ready, stats.delayed, stats.claimed, stats.held]
        assert len(self.live) == stats.live
        assert sum(live.holder != FREE for live in self.live.values()) == stats.claimed
        outcomes = Counter(outcome for _, outcome in self.ended.values())
        names = ("done", "failed", "rejected", "expired")
        assert [outcomes[name] for name in names] == [getattr(stats, name) for name in names]
        assert self.paused == stats.paused
        dead = self.services[0].queue("dead").messages().list()
        assert Counter(self.copied) == Counter(m.headers["dead_letter"]["id"] for m in dead)
        if self.set["group_limit"] is None:
            return
        groups = {info.name: info for info in queue.groups.list()}
        for name in {live.group for live in self.live.values() if live.group is not None}:
            held = [live.holder != FREE for live in self.in_group(name).values()]
            assert (sum(held), len(held) - sum(held)) == (
                groups[name].claimed,
                groups[name].waiting,
            )
            assert self.blocked.get(name) == groups[name].blocked_by
            assert (name in self.stopped) == (groups[name].state is GroupState.PAUSED)

    @rule(data=st.data(), side=SIDES)
    def why(self, data: Any, side: int) -> None:
        """Each message has one reason, and it is true."""
        known = sorted({0, *self.live, *self.ended, *self.gone})
        number = data.draw(st.sampled_from(known))
        reason = self.queues[side].why(number).reason if number else Reason.MISSING
        live = self.live.get(number)
        if live is None:
            assert (number in self.ended) == (reason is Reason.FINISHED), reason
            assert (number not in self.ended) == (reason is Reason.MISSING), reason
            return
        status = self.status(number)
        assert (live.holder != FREE) == (status == "claimed") == (reason is Reason.CLAIMED), reason
        assert (status == "held") == (reason is Reason.HELD), reason
        later = {Reason.DUE_LATER, Reason.RETRY_LATER}
        assert (status == "delayed") == (reason in later), reason
        if status == "ready":
            assert self.paused == (reason is Reason.QUEUE_PAUSED), reason
        if reason is Reason.GROUP_PAUSED:
            assert live.group in self.stopped
        if reason is Reason.GROUP_BLOCKED:
            assert live.group in self.blocked
        if reason is Reason.IN_LINE:
            assert live.group not in self.stopped | self.blocked.keys()


def _stamp(message: Message) -> Stamp:
    return (message.consumer_id, message.consumer_round)


def _seen(row: Any) -> tuple[Any, ...]:
    holder = (row.consumer_id, row.consumer_round) if row.consumer_id else FREE
    own = (row.message_key, getattr(row, "group_key", None), row.kind, row.priority)
    return (int(row.payload), *own, row.attempt_count, holder)


def play(make_service: MakeService, engine: Engine, examples: int, acts: int) -> None:
    """Play the same examples each time; one that fails is printed as a program."""
    quiet: dict[str, Any] = {"consumer_timeout": HOUR, "reaper_interval": HOUR}
    pair = [make_service(**quiet) for _ in range(2)]
    EFFECTS.create(engine)
    own = {"services": pair, "engine": engine, "make_service": staticmethod(make_service)}
    run_state_machine_as_test(
        type("Acts", (Machine,), own),
        settings=settings(
            max_examples=examples,
            stateful_step_count=acts,
            deadline=None,
            derandomize=True,
            database=None,
            # To make an example smaller on a server takes longer than to read it.
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.threads("the operations are the same on an event loop")
@pytest.mark.engines("sqlite")
def test_a_few_orders_of_acts_keep_the_promises(make_service: MakeService, engine: Engine) -> None:
    """Two services, all verbs, some orders: the tables are what the promises say."""
    play(make_service, engine, 6, 25)


@pytest.mark.full
@pytest.mark.threads("the operations are the same on an event loop")
@pytest.mark.timeout(900)
def test_any_order_of_acts_keeps_the_promises(make_service: MakeService, engine: Engine) -> None:
    """Many orders, and on servers."""
    play(make_service, engine, 8, 40)
