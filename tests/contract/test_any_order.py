"""Any order of what two services may do with one queue, against a plain model of the promises.

Hypothesis chooses the operations. After each the tables are compared with the model: which messages
live, who holds them, how often they were tried, and how the others ended.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
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
from sqlalchemy import select, update

from queue_over_sql import ClaimLost, DuplicateKey, FixedDelay, Message, Publication, QueueService
from queue_over_sql.values.states import OnConflict

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Queue
    from queue_over_sql.testing.plugin import MakeService

HOUR = 3600.0
MOST_ATTEMPTS = 3
KEYS = st.sampled_from([None, "a", "b"])
SIDES = st.sampled_from([0, 1])
# What comes back, or is put before what was claimed already, may be found a little later.
LONGEST_WAIT = 5.0

Claim = tuple[str | None, int | None]
FREE: Claim = (None, None)


@dataclasses.dataclass
class Live:
    """A message that is in the queue."""

    payload: int
    key: str | None
    priority: int
    most: int
    attempts: int = 0
    holder: Claim = FREE
    late: bool = False
    available_at: int | None = None


@dataclasses.dataclass(frozen=True)
class Ended:
    """A message in the archive."""

    payload: int
    key: str | None
    outcome: str
    attempts: int


class Machine(RuleBasedStateMachine):
    """What may happen to the queue, and what has to be true after it."""

    services: Sequence[QueueService]
    engine: Engine
    handles: Bundle[Message] = Bundle("handles")

    @initialize()
    def begin(self) -> None:
        """Each example begins with an empty queue."""
        self.numbers = itertools.count()
        self.paused = False
        self.create()

    # -- the model

    def create(self) -> None:
        """Create the queue anew."""
        self.services[0].drop_queue("jobs")
        for service in self.services:
            service.create_queue(
                "jobs",
                lease=HOUR,
                max_attempts=MOST_ATTEMPTS,
                retry=FixedDelay(0),
                priorities=2,
                archive="all",
            )
        self.queues: list[Queue] = [service.queue("jobs") for service in self.services]
        self.live: dict[int, Live] = {}
        self.ended: dict[int, Ended] = {}
        self.paused = False

    def rows(self) -> dict[int, Any]:
        """The rows of the queue as they are, by id."""
        with self.engine.connect() as connection:
            return {row.id: row for row in connection.execute(select(self.queues[0].table))}

    def ready(self) -> list[int]:
        """The ids that may be claimed now, the first one first."""
        now = time.time() * 1e6
        free = [
            (live.priority, live.available_at, number)
            for number, live in self.live.items()
            if live.holder == FREE and live.available_at is not None and live.available_at <= now
        ]
        return [number for _, _, number in sorted(free)]

    def keyed(self, key: str | None) -> int | None:
        """The id of the live message with a key."""
        found = [number for number, live in self.live.items() if key and live.key == key]
        return found[0] if found else None

    def end(self, number: int, outcome: str) -> None:
        """A message goes into the archive."""
        live = self.live.pop(number)
        self.ended[number] = Ended(live.payload, live.key, outcome, live.attempts)

    def holds(self, message: Message) -> bool:
        """Whether a claim is good."""
        live = self.live.get(message.id)
        stamp = (message.consumer_id, message.consumer_round)
        return live is not None and live.holder == stamp != FREE

    def back(self, number: int, *, dead: str | None = None) -> None:
        """A claimed message is free again, or dead if it was tried often enough."""
        live = self.live[number]
        if dead is not None and live.attempts >= live.most:
            self.end(number, dead)
        else:
            live.holder, live.late = FREE, True

    def publication(
        self, key: str | None, priority: int, when: str, most: int | None
    ) -> Publication:
        """A new message."""
        payload = next(self.numbers)
        past = datetime.now(UTC) - timedelta(hours=2)
        return Publication(
            payload,
            key=key,
            priority=priority,
            max_attempts=most,
            delay=HOUR if when == "later" else None,
            at=past if when == "past" else None,
        )

    def published(self, item: Publication, number: int) -> None:
        """A message is there."""
        most = item.max_attempts or MOST_ATTEMPTS
        self.live[number] = Live(
            item.payload, item.key, item.priority, most, late=item.at is not None
        )

    # -- operations

    @rule(
        side=SIDES,
        key=KEYS,
        priority=st.sampled_from([0, 0, 1]),
        when=st.sampled_from(["now", "now", "later", "past"]),
        most=st.sampled_from([None, 1, 2]),
        on_conflict=st.sampled_from(["raise", "skip", "replace"]),
    )
    def publish(  # noqa: PLR0917 - Hypothesis names them
        self,
        side: int,
        key: str | None,
        priority: int,
        when: str,
        most: int | None,
        on_conflict: OnConflict,
    ) -> None:
        """One live message has a key; the others are refused, left out, or take its place."""
        on_conflict = "raise" if key is None else on_conflict
        item = self.publication(key, priority, when, most)
        options = {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
        del options["payload"], options["columns"]
        taken = self.keyed(key)
        if taken is not None and on_conflict == "raise":
            with pytest.raises(DuplicateKey) as refused:
                self.queues[side].publish(item.payload, **options)
            assert taken == refused.value.id
            return
        done = self.queues[side].publish(item.payload, on_conflict=on_conflict, **options)
        if taken is None:
            assert "created" == done.outcome
            assert done.id not in self.live.keys() | self.ended.keys()
        else:
            assert taken == done.id
            assert {"skip": "skipped", "replace": "replaced"}[on_conflict] == done.outcome
        if done.outcome != "skipped":
            self.published(item, done.id)
            self.live[done.id].late |= done.outcome == "replaced"

    @rule(side=SIDES, keys=st.lists(KEYS, min_size=1, max_size=4), priority=st.sampled_from([0, 1]))
    def publish_many(self, side: int, keys: list[str | None], priority: int) -> None:
        """All or none."""
        items = [self.publication(key, priority, "now", None) for key in keys]
        given = [key for key in keys if key]
        if len(set(given)) < len(given) or any(self.keyed(key) for key in given):
            with pytest.raises(DuplicateKey):
                self.queues[side].publish_many(items)
            return
        done = self.queues[side].publish_many(items)
        assert [each.id for each in done] == sorted({each.id for each in done})
        for item, each in zip(items, done, strict=True):
            self.published(item, each.id)

    @rule(target=handles, side=SIDES, count=st.integers(1, 4))
    def consume(self, side: int, count: int) -> Any:
        """The oldest that are free, each by one only; what came back may take a moment."""
        return self.claimed(count, lambda: self.queues[side].consume(count))

    def claimed(self, count: int, first: Callable[[], list[Message]]) -> Any:
        """What a claim got has to be the first of what is ready."""
        wanted = [] if self.paused else self.ready()
        got = first()
        assert len(got) <= count
        missing = wanted[: wanted.index(got[-1].id)] if got else wanted
        skipped = set(missing) - {message.id for message in got}
        assert all(self.live[number].late for number in skipped), (skipped, got)
        assert [m.id for m in got] == [n for n in wanted if n in {m.id for m in got}]
        for message in got:
            live = self.live[message.id]
            live.attempts += 1
            live.late = False
            live.holder = (message.consumer_id, message.consumer_round)
            assert live.payload == message.payload
            assert live.key == message.key
            assert live.attempts == message.attempt
            assert live.most == message.max_attempts
        return multiple(*got)

    @precondition(lambda self: not self.paused)
    @rule(target=handles, side=SIDES)
    def consume_all(self, side: int) -> Any:
        """Nothing that is ready stays out of sight for ever."""
        found: list[Message] = []
        deadline = time.monotonic() + LONGEST_WAIT
        while wanted := self.ready():
            got = self.claimed(50, lambda: self.queues[side].consume(50, wait=0.05))
            found += got.values
            assert got.values or time.monotonic() < deadline, f"{wanted} are never found"
        return multiple(*found)

    def settle(self, message: Message, verb: Callable[[], None]) -> bool:
        """Only who holds the message may do that."""
        if self.holds(message):
            verb()
            return True
        with pytest.raises(ClaimLost):
            verb()
        return False

    @rule(message=handles)
    def ack(self, message: Message) -> None:
        """It is done."""
        if self.settle(message, message.ack):
            self.end(message.id, "done")

    @rule(message=handles, delay=st.sampled_from([None, HOUR]))
    def nack(self, message: Message, delay: float | None) -> None:
        """It comes back unless it is out of attempts."""
        if self.settle(message, lambda: message.nack("bad luck", delay=delay)):
            self.back(message.id, dead="failed")

    @rule(message=handles)
    def release(self, message: Message) -> None:
        """It comes back as if nothing had been."""
        if self.settle(message, message.release):
            self.live[message.id].attempts -= 1
            self.back(message.id)

    @rule(message=handles)
    def reject(self, message: Message) -> None:
        """It never comes back."""
        if self.settle(message, lambda: message.reject("no good")):
            self.end(message.id, "rejected")

    @rule(message=handles)
    def extend(self, message: Message) -> None:
        """It is held for longer."""
        self.settle(message, message.extend)

    @rule(side=SIDES, messages=st.lists(handles, min_size=1, max_size=4))
    def ack_many(self, side: int, messages: list[Message]) -> None:
        """Those that are held are done, the others are named."""
        self.acked(side, messages, lambda: self.queues[side].ack(messages))

    @rule(target=handles, side=SIDES, messages=st.lists(handles, min_size=1, max_size=3))
    def exchange(self, side: int, messages: list[Message]) -> Any:
        """The same, and the next ones are claimed if none was lost."""
        unlike = {id(message): message for message in messages}.values()
        if all(self.may_settle(side, message) for message in unlike):
            for message in unlike:
                self.end(message.id, "done")
            return self.claimed(2, lambda: self.queues[side].exchange(messages, 2))
        self.acked(side, messages, lambda: self.queues[side].exchange(messages, 2))
        return multiple()

    def may_settle(self, side: int, message: Message) -> bool:
        """Whether a claim is good, and of this very service."""
        return self.holds(message) and message.consumer_id == self.services[side].consumer_id

    def acked(self, side: int, messages: list[Message], verb: Callable[[], object]) -> None:
        """A batch of acks, some of them perhaps lost."""
        unlike = {id(message): message for message in messages}.values()
        held = [message for message in unlike if self.may_settle(side, message)]
        lost = [message for message in unlike if not self.may_settle(side, message)]
        if lost:
            with pytest.raises(ClaimLost) as refused:
                verb()
            assert set(map(id, lost)) == set(map(id, refused.value.messages))
        else:
            verb()
        for message in held:
            self.end(message.id, "done")

    @rule(target=handles, message=handles, side=SIDES, again=SIDES)
    def expire(self, message: Message, side: int, again: int) -> Any:
        """A lease runs out, and a reaper gives the message back or buries it.

        Args:
            message: what was claimed.
            side: whose reaper it is.
            again: who claims next.
        """
        if not self.holds(message):
            return multiple()
        table = self.queues[side].table
        with self.engine.begin() as connection:
            over = update(table).where(table.c.id == message.id).values(lease_expires_at=1)
            connection.execute(over)
        self.services[side].reap()
        self.back(message.id, dead="failed")
        return self.claimed(3, lambda: self.queues[again].consume(3))

    # -- the operator

    def chosen(self, message: Message) -> Live | None:
        """The message, if an edit may change it."""
        live = self.live.get(message.id)
        return live if live is not None and live.holder == FREE else None

    @rule(
        message=handles,
        side=SIDES,
        verb=st.sampled_from(["hold", "unhold", "front", "level", "later", "now", "remove"]),
    )
    def edit(self, message: Message, side: int, verb: str) -> None:
        """What nobody holds is changed; what is held is counted and left alone."""
        queue = self.queues[side]
        one = queue.messages(where=queue.table.c.id == message.id)
        verbs: dict[str, Callable[[], Any]] = {
            "hold": one.hold,
            "unhold": one.unhold,
            "front": lambda: one.prioritize(front=True),
            "level": lambda: one.prioritize(priority=1),
            "later": lambda: one.reschedule(delay=HOUR),
            "now": lambda: one.reschedule(delay=0),
            "remove": one.remove,
        }
        is_held = message.id in self.live and self.live[message.id].available_at is None
        edited = verbs[verb]()
        live = self.chosen(message)
        if live is None:
            assert 0 == edited
            if verb != "unhold":
                assert int(message.id in self.live) == edited.skipped
            return
        assert 0 == edited.skipped
        if verb not in {"front", "unhold"}:
            assert 1 == edited
        if verb == "unhold":
            assert int(is_held) == edited
        if verb == "remove":
            del self.live[message.id]
        elif verb == "level":
            live.priority = 1

    @rule(message=handles, side=SIDES)
    def delete(self, message: Message, side: int) -> None:
        """It is gone, whoever held it."""
        assert (message.id in self.live) == self.queues[side].delete(message.id)
        self.live.pop(message.id, None)

    @rule(side=SIDES)
    def pause_or_resume(self, side: int) -> None:
        """Nothing is handed out while the queue is paused."""
        (self.queues[side].resume if self.paused else self.queues[side].pause)()
        self.paused = not self.paused

    @rule(message=handles, side=SIDES)
    def requeue(self, message: Message, side: int) -> None:
        """What is finished gets a new life under a new id."""
        archive = self.queues[side].archive
        chosen = archive.messages(where=archive.table.c.id == message.id)
        ended = self.ended.get(message.id)
        if ended is None:
            assert 0 == chosen.requeue()
            return
        if self.keyed(ended.key) is not None:
            with pytest.raises(DuplicateKey):
                chosen.requeue()
            return
        assert 1 == chosen.requeue()
        [row] = [row for number, row in self.rows().items() if number not in self.live]
        del self.ended[message.id]
        most = row.max_attempts or MOST_ATTEMPTS
        self.live[row.id] = Live(ended.payload, ended.key, row.priority, most)

    @rule(side=SIDES, claimed=st.booleans())
    def purge(self, side: int, claimed: bool) -> None:
        """What nobody holds is gone, or all."""
        gone = [n for n, live in self.live.items() if claimed or live.holder == FREE]
        assert len(gone) == self.queues[side].purge(claimed=claimed)
        for number in gone:
            del self.live[number]

    @rule()
    def drop_and_create(self) -> None:
        """A new queue of the same name knows nothing of the old one and of its claims."""
        self.create()

    # -- what is true at all times

    @invariant()
    def tables_are_as_promised(self) -> None:
        """No message is lost, doubled, or held by another than who claimed it."""
        rows = self.rows()
        assert {number: self.seen(row) for number, row in rows.items()} == {
            number: (live.payload, live.key, live.priority, live.attempts, live.holder)
            for number, live in self.live.items()
        }
        for number, row in rows.items():
            self.live[number].available_at = row.available_at
        with self.engine.connect() as connection:
            kept = connection.execute(select(self.queues[0].archive.table)).all()
        assert {row.id: self.told(row) for row in kept} == {
            number: (ended.payload, ended.key, ended.outcome, ended.attempts)
            for number, ended in self.ended.items()
        }

    @staticmethod
    def seen(row: Any) -> tuple[Any, ...]:
        """What the model says of a live message."""
        holder = (row.consumer_id, row.consumer_round) if row.consumer_id else FREE
        return (int(row.payload), row.message_key, row.priority, row.attempt_count, holder)

    @staticmethod
    def told(row: Any) -> tuple[Any, ...]:
        """What the model says of a finished message."""
        return (int(row.payload), row.message_key, row.outcome, row.attempt_count)


@pytest.mark.full
@pytest.mark.threads("the operations are the same on an event loop")
@pytest.mark.engines("sqlite", "postgresql")
@pytest.mark.timeout(900)
def test_any_order_of_acts_keeps_the_promises(make_service: MakeService, engine: Engine) -> None:
    """Two services, all verbs, any order: the tables are what the promises say."""
    quiet: dict[str, Any] = {"consumer_timeout": HOUR, "reaper_interval": HOUR}
    pair = [make_service(**quiet) for _ in range(2)]
    machine = type("Acts", (Machine,), {"services": pair, "engine": engine})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=100,
            stateful_step_count=40,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
