"""Exits: whatever ends a message of a group, or changes its state, makes the next one ready.

A group of which something is parked has a message that is not parked and is marked: the carrier.
Each exit keeps that, in its own transaction.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from sqlalchemy import delete, insert, select

from queue_over_sql import ClaimLost, FixedDelay, Publication
from queue_over_sql.claiming import claimer
from queue_over_sql.durable.consumer import AdvanceRequest, DurableConsumer
from queue_over_sql.observability import diagnose
from queue_over_sql.queue import core_of
from queue_over_sql.recovery import recovery
from tests.contract.durable.queries import Query
from tests.contract.queue_state import isolates_snapshots, payloads, set_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.driver_decides


class Line(NamedTuple):
    """A queue whose group ``a`` has a first message, and two that are parked behind it.

    Attributes:
        hand: the first message, if a consumer has it.
        ids: of the three of ``a``, and of the one of another group, ``b``.
    """

    queue: Queue
    service: QueueService
    engine: Engine
    hand: list[Message]
    ids: list[int]

    @property
    def head(self) -> Message:
        """The first message, in hand."""
        return self.hand[0]

    def rows(self) -> dict[int, tuple[bool, bool, bool]]:
        """The live messages by id: whether each is parked, is a carrier, is in hand."""
        c = self.queue.table.c
        found = select(c.id, c.parked_at, c.blocks, c.consumer_id)
        with self.engine.connect() as connection:
            rows = connection.execute(found).all()
        return {row[0]: (row[1] is not None, bool(row[2]), row[3] is not None) for row in rows}

    def parked(self) -> list[int]:
        """Which of the three are parked; if some are, another of them must be a carrier."""
        rows, ours = self.rows(), self.ids[:3]
        parked = [each for each in ours if rows.get(each, (False,))[0]]
        carriers = [each for each in ours if rows.get(each, (True, False))[:2] == (False, True)]
        assert carriers or not parked
        return parked

    def next(self, group: str = "a") -> list[str]:
        """What a consumer gets of a group."""
        return [each.payload for each in self.queue.consume(10) if each.group == group]


def park(engine: Engine, queue: Queue, carrier: int, parked: list[int]) -> None:
    """Park messages behind another one, as a claim does that meets them."""
    set_columns(engine, queue, carrier, blocks=1)
    for message_id in parked:
        set_columns(engine, queue, message_id, parked_at=queue.table.c.available_at)
        set_columns(engine, queue, message_id, available_at=None)


def line(service: QueueService, engine: Engine, **settings: Any) -> Line:
    """Publish the messages, and get the first one in hand."""
    given = waiting(service, engine, **settings)
    given.hand.extend(given.queue.consume(1))
    assert ["a1"] == payloads(given.hand)
    return given


def waiting(service: QueueService, engine: Engine, **settings: Any) -> Line:
    """Publish the messages; nobody has the first one in hand."""
    settings = {"archive": "all", "retry": FixedDelay(0), "group_limit": 1, **settings}
    queue = service.create_queue("jobs", **settings)
    ids = [queue.publish(name, group=name[0], key=name).id for name in ("a1", "a2", "a3", "b1")]
    park(engine, queue, ids[0], ids[1:3])
    return Line(queue, service, engine, [], ids)


# -- ends


def _in_transaction(given: Line) -> None:
    with given.engine.begin() as connection:
        given.head.ack(connection=connection)


def _reaped(given: Line) -> None:
    set_columns(given.engine, given.queue, given.ids[0], lease_expires_at=1)
    given.service.reap()


ENDS: dict[str, Callable[[Line], Any]] = {
    "ack": lambda given: given.head.ack(),
    "ack of a batch": lambda given: given.queue.ack(given.hand),
    "ack by a token": lambda given: given.queue.held(given.head.token).ack(),
    "ack in the caller's transaction": _in_transaction,
    "reject": lambda given: given.head.reject("no"),
    "delete": lambda given: given.queue.delete(given.ids[0]),
    "cancel": lambda given: given.queue.cancel(given.ids[0]),
}
LAST: dict[str, Callable[[Line], Any]] = {
    "nack": lambda given: given.head.nack("no"),
    "reaped": _reaped,
}
"""Those that end it at its last attempt."""


@pytest.mark.parametrize("archive", ["all", "none"])
@pytest.mark.parametrize("end", [*ENDS, *LAST])
def test_an_end_makes_the_next_one_ready(
    end: str, archive: str, service: QueueService, engine: Engine
) -> None:
    """Only the next one of the group leaves its place, and carries the rest; no other group."""
    given = line(service, engine, archive=archive, max_attempts=1 if end in LAST else 5)
    before = given.rows()[given.ids[3]]
    (ENDS | LAST)[end](given)
    assert [given.ids[2]] == given.parked()
    assert before == given.rows()[given.ids[3]]
    assert "a2" == given.next()[0]


def test_a_rollback_of_an_end_changes_nothing(service: QueueService, engine: Engine) -> None:
    """The next one is woken by the transaction that ends the first one, or not at all."""
    given = line(service, engine)
    before = given.rows()
    with engine.connect() as connection, connection.begin() as transaction:
        given.head.ack(connection=connection)
        transaction.rollback()
    assert before == given.rows()
    given.head.release()
    assert "a1" == given.next()[0]


@pytest.mark.engines("mysql", "mariadb")
@pytest.mark.parametrize("verb", ["ack", "nack"])
def test_an_end_in_an_older_snapshot_makes_the_next_one_ready(
    verb: str, service: QueueService, engine: Engine
) -> None:
    """What was parked after the snapshot of the caller's transaction is woken, too.

    ``nack`` makes it due later: an earlier one, which was committed late, need not wait for it.
    """
    queue = service.create_queue("jobs", group_limit=1)
    early = queue.publish("early", group="elsewhere", delay=3600).id
    hand = queue.publish("hand", group="a").id
    [message] = queue.consume()
    repeatable = engine.execution_options(isolation_level="REPEATABLE READ")
    with repeatable.connect() as connection, connection.begin():
        if isolates_snapshots(connection):
            connection.exec_driver_sql("SET SESSION innodb_snapshot_isolation = OFF")
        assert 2 == len(connection.execute(select(queue.table.c.id)).all())
        set_columns(engine, queue, early, group_key="a", available_at=1)
        park(engine, queue, hand, [early])
        if verb == "ack":
            message.ack(connection=connection)
        else:
            message.nack("no", delay=3600, connection=connection)
    assert ["early"] == payloads(queue.consume(5))


FREE_ENDS: dict[str, Callable[[Line], Any]] = {
    "delete": lambda given: given.queue.delete(given.ids[0]),
    "cancel": lambda given: given.queue.cancel(given.ids[0]),
    "remove": lambda given: given.queue.messages(key="a1").remove(),
    "replace": lambda given: given.queue.publish("x", group="c", key="a1", on_conflict="replace"),
}


@pytest.mark.parametrize("end", FREE_ENDS)
def test_the_end_of_a_first_one_in_the_queue_makes_the_next_one_ready(
    end: str, service: QueueService, engine: Engine
) -> None:
    """Also if nobody had it in hand."""
    given = waiting(service, engine)
    FREE_ENDS[end](given)
    assert [given.ids[2]] == given.parked()
    assert "a2" == given.next()[0]


def test_an_expired_first_one_makes_the_next_one_ready(
    service: QueueService, engine: Engine
) -> None:
    """The reaper ends it."""
    given = waiting(service, engine, expires=3600)
    set_columns(engine, given.queue, given.ids[0], expires_at=1)
    assert 1 == service.reap().dead_lettered
    assert [given.ids[2]] == given.parked()
    assert "a2" == given.next()[0]


def test_all_others_end_with_the_first_one(service: QueueService, engine: Engine) -> None:
    """A removal of all leaves nothing that waits, and what comes then is not held up."""
    given = waiting(service, engine)
    assert 4 == given.queue.messages().remove()
    given.queue.publish("a4", group="a")
    assert ["a4"] == given.next()
    assert 0 == given.queue.purge()
    assert 1 == given.queue.purge(claimed=True)


# -- what comes back

BACK: dict[str, Callable[[Line], Any]] = {
    "nack": lambda given: given.head.nack("no"),
    "release": lambda given: given.head.release(),
    "restored": _reaped,
}


@pytest.mark.parametrize("back", BACK)
def test_what_comes_back_is_the_first_again(
    back: str, service: QueueService, engine: Engine
) -> None:
    """Those behind it stay where they are."""
    given = line(service, engine)
    BACK[back](given)
    assert given.ids[1:3] == given.parked()
    assert "a1" == given.next()[0]


LATER: dict[str, Callable[[Line], Any]] = {
    "nack": lambda given: given.head.nack("no", delay=3600),
    "release": lambda given: given.head.release(delay=3600),
}
LATER_FREE: dict[str, Callable[[Line], Any]] = {
    "hold": lambda given: given.queue.messages(key="a1").hold(),
    "reschedule": lambda given: given.queue.messages(key="a1").reschedule(delay=3600),
}


@pytest.mark.parametrize("order", ["fifo", "any"])
@pytest.mark.parametrize("later", [*LATER, *LATER_FREE])
def test_a_first_one_that_waits_holds_up_only_an_ordered_group(
    later: str, order: str, service: QueueService, engine: Engine
) -> None:
    """In any order the next one has its turn. In order nobody overtakes."""
    begin = line if later in LATER else waiting
    given = begin(service, engine, group_order=order)
    (LATER | LATER_FREE)[later](given)
    given.parked()
    assert (["a2"] if order == "any" else []) == given.next()[:1]


@pytest.mark.parametrize("later", LATER)
def test_one_that_waits_does_not_hold_up_an_earlier_one(
    later: str, service: QueueService, engine: Engine
) -> None:
    """A message that was committed late, and so is parked behind a later one, is the next one."""
    queue = service.create_queue("jobs", group_limit=1)
    early = queue.publish("early", group="elsewhere", delay=3600).id
    late = queue.publish("late", group="a").id
    hand = queue.consume()
    set_columns(engine, queue, early, group_key="a", available_at=1)
    park(engine, queue, late, [early])
    LATER[later](Line(queue, service, engine, hand, [early, late]))
    assert ["early"] == payloads(queue.consume(5))


# -- edits of what is parked


def test_a_parked_one_that_is_held_is_not_woken(service: QueueService, engine: Engine) -> None:
    """It is held, not ready; those behind it wait for it, and come after it, in order."""
    given = line(service, engine)
    second = given.queue.messages(key="a2")
    assert (3, 0) == (given.queue.stats().ready, given.queue.stats().held)
    assert 1 == second.hold()
    assert (2, 1) == (given.queue.stats().ready, given.queue.stats().held)
    given.head.ack()
    assert [] == given.next()
    assert 1 == second.unhold()
    assert "a2" == given.next()[0]


def test_parked_messages_look_as_they_are(service: QueueService, engine: Engine) -> None:
    """They are ready, due at their time, and each filter and count finds them as such."""
    given = line(service, engine)
    ready = given.queue.messages(status="ready")
    assert ["a2", "a3", "b1"] == payloads(ready.list())
    assert 0 == given.queue.messages(status="held").count()
    assert 0 == given.queue.messages(status="held").unhold()
    assert all(each.available_at == each.scheduled_at for each in ready.list())
    assert 3 == given.queue.messages().prioritize(front=True)
    assert 1 == given.queue.messages(key="a3").reschedule(delay=3600)
    assert ["a3"] == payloads(given.queue.messages(status="delayed").list())
    given.head.ack()
    assert ["a2"] == given.next()[:1]


# -- what one claim holds


def batch(service: QueueService, engine: Engine, **settings: Any) -> tuple[Line, list[Message]]:
    """Three messages of one group in one claim, in order."""
    settings = {"archive": "all", "retry": FixedDelay(0), "group_limit": 1, **settings}
    queue = service.create_queue("jobs", **settings)
    several = [Publication(name, group=name[0]) for name in ("a1", "a2", "a3", "b1")]
    ids = [each.id for each in queue.publish_many(several)]
    messages = queue.consume(4)
    assert {"a1", "a2", "a3", "b1"} == set(payloads(messages))
    return Line(queue, service, engine, messages, ids), sorted(messages, key=lambda m: m.id)


@pytest.mark.parametrize("back", ["nack", "release"])
def test_one_that_comes_back_takes_along_what_is_behind_it(
    back: str, service: QueueService, engine: Engine
) -> None:
    """Only of its group, and their attempts do not count; they come again in order."""
    given, (first, second, third, other) = batch(service, engine)
    first.ack()
    getattr(second, back)(*(["no"] if back == "nack" else []))
    with pytest.raises(ClaimLost):
        third.ack()
    other.ack()
    again = given.queue.consume(5)
    assert ["a2", "a3"] == payloads(again)
    assert [2 if back == "nack" else 1, 1] == [each.attempt for each in again]


def test_several_that_come_back_together(service: QueueService, engine: Engine) -> None:
    """Each of them is settled as asked, with its own delay."""
    given, messages = batch(service, engine)
    given.queue.nack(messages, error="no")
    again = sorted(given.queue.consume(5), key=lambda message: message.id)
    assert ["a1", "a2", "a3", "b1"] == payloads(again)
    assert {2} == {each.attempt for each in again}


def test_in_any_order_nothing_is_taken_along(service: QueueService, engine: Engine) -> None:
    """The others stay in hand."""
    _, (first, second, third, _) = batch(service, engine, group_limit=3, group_order="any")
    first.nack("no", delay=3600)
    second.ack()
    third.ack()


def test_the_reaper_counts_only_the_first_one(service: QueueService, engine: Engine) -> None:
    """Behind it a consumer that died can have begun nothing."""
    given, messages = batch(service, engine)
    for message in messages:
        set_columns(engine, given.queue, message.id, lease_expires_at=1)
    assert 4 == service.reap().restored
    again = {each.payload: each.attempt for each in given.queue.consume(5)}
    assert {"a1": 2, "a2": 1, "a3": 1, "b1": 2} == again


# -- limits


@pytest.mark.parametrize("order", ["fifo", "any"])
def test_each_end_of_a_limited_group_makes_room_for_one(order: str, service: QueueService) -> None:
    """As many as the limit are in hand, whoever ends first, after consumers have met the others."""
    settings: dict[str, Any] = {"group_limit": 2, "group_order": order}
    queue = service.create_queue("jobs", archive="all", **settings)
    queue.publish_many([Publication(number, group="a") for number in range(8)])
    hand = queue.consume(1) + queue.consume(1)
    for number in range(2, 8):
        # The second look parks what the first one met.
        assert [] == queue.consume(1) + queue.consume(1) + queue.consume(1)
        hand.pop(number % 2).ack()
        hand += queue.consume(1)
        assert number == hand[-1].payload
    queue.ack(hand)
    assert 8 == queue.stats().archived


def test_each_end_of_a_batch_in_order_leaves_the_rest(service: QueueService) -> None:
    """A consumer with several of a group ends them anyhow; the group goes on after the last."""
    queue = service.create_queue("jobs", archive="all", group_limit=1)
    queue.publish_many([Publication(number, group="a") for number in range(6)])
    first, second, third = queue.consume(3)
    assert [] == queue.consume(1) + queue.consume(1) + queue.consume(1)
    third.ack()
    first.ack()
    assert [] == queue.consume(1) + queue.consume(1) + queue.consume(1)
    second.ack()
    for number in (3, 4, 5):
        [message] = queue.consume(1)
        assert number == message.payload
        message.ack()


# -- waiting consumers


@pytest.mark.threads
def test_an_end_wakes_who_waits_elsewhere(
    make_service: MakeService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer of another service, which polls no more, gets the next one at once.

    Where engines do not notify, it is one of the same service.
    """
    monkeypatch.setattr(claimer, "FIRST_POLL", 60.0)
    monkeypatch.setattr(claimer, "LAST_POLL", 60.0)
    given = line(make_service(), engine)
    given.queue.messages(key="b1").remove()
    notified = core_of(given.queue).context.dialect.notifications.notified_by_others
    queue = (make_service() if notified else given.service).queue("jobs")
    looks, look = threading.Semaphore(0), core_of(queue).claimer._delivered

    def noted(*arguments: Any) -> Any:
        found = look(*arguments)
        looks.release()
        return found

    monkeypatch.setattr(core_of(queue).claimer, "_delivered", noted)
    got: list[Message] = []
    # At the end of its wait it would look once more.
    waiter = threading.Thread(target=lambda: got.extend(queue.consume(1, wait=30.0)))
    waiter.start()
    # It looks again when it has begun to listen.
    for _ in range(2 if notified else 1):
        assert looks.acquire(timeout=20.0)
    given.head.ack()
    waiter.join(15)
    woken = payloads(got)
    waiter.join()
    assert ["a2"] == woken


# -- edits by SQL


@pytest.mark.threads
def test_the_reaper_mends_what_an_edit_by_sql_broke(
    service: QueueService, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody would wake the others; the pass does, counts it and says so. The doctor sees it."""
    given = waiting(service, engine)
    with engine.begin() as connection:
        connection.execute(delete(given.queue.table).where(given.queue.table.c.id == given.ids[0]))
    said = [finding.text for finding in diagnose(service) if finding.text.startswith("jobs: ")]
    assert "messages of 1 group wait" in said[0]
    assert 1 == service.reap().repaired
    assert "group 'a'" in caplog.text
    assert [given.ids[2]] == given.parked()
    assert 0 == service.reap().repaired
    assert "a2" == given.next()[0]


@pytest.mark.threads
def test_the_reaper_removes_rows_of_idle_groups(service: QueueService, engine: Engine) -> None:
    """Not those that are new, have messages, settings of their own, or tokens to come back."""
    given = waiting(service, engine)
    rows = core_of(given.queue).context.tables.groups
    assert rows is not None
    in_hand = {message.key: message for message in given.queue.consume(10)}
    dead = in_hand.pop("b1")
    dead.reject("no")
    in_hand["a1"].release()
    with engine.begin() as connection:
        connection.execute(delete(rows))
        own = ("own_limit", "own_rate_us", "weight", "paused_at", "blocked_by")
        old: dict[str, Any] = {"seq": 1, "created_at": 1, **dict.fromkeys((*own, "tat_us"))}
        # Only a dead letter that is there blocks a group.
        kept = [{"group_key": "a"} | old]
        kept += [{"group_key": name} | old | {name: dead.id} for name in own]
        later = 4_000_000_000_000_000
        kept += [{"group_key": name} | old | {name: later} for name in ("created_at", "tat_us")]
        connection.execute(
            insert(rows), [*kept, *({"group_key": name} | old for name in ("", "idle"))]
        )
    service.reap()
    with engine.connect() as connection:
        left = connection.execute(select(rows.c.group_key)).scalars().all()
    assert sorted(row["group_key"] for row in kept) == sorted(left)


@pytest.mark.threads
def test_the_end_of_a_round_makes_the_next_ones_ready(
    service: QueueService, engine: Engine
) -> None:
    """A durable consumer ends its messages as sets; the next round has those that they held up."""
    given = waiting(service, engine)
    consumer = DurableConsumer(given.queue, "stream", owner="here:1")
    consumer.take_over()
    request = AdvanceRequest(None, 10)
    assert 1 == consumer.advance(0, request)
    assert given.ids[1:3] == given.parked()
    assert 2 == consumer.advance(1, request)
    assert [given.ids[2]] == given.parked()


@pytest.mark.threads
def test_a_target_of_rounds_has_what_was_parked(service: QueueService, engine: Engine) -> None:
    """It was due before it was woken; what comes or fails after the target is not read."""
    given = waiting(service, engine)
    query = Query(given.queue)
    up_to_id, due_by = query.consumer.target()
    given.queue.publish("a4", group="a")
    [failed] = given.queue.consume(1, where=given.queue.table.c.id == given.ids[3])
    failed.nack("no", delay=0.01)
    read = list[str]()
    while parts := query.batch(up_to_id=up_to_id, due_by=due_by):
        read += [payload for part in parts for payload in part]
    assert ["a1", "a2", "a3"] == read


@pytest.mark.threads
@pytest.mark.engines("sqlite")
def test_looks_through_a_long_queue_are_rare(
    service: QueueService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All services look, so one that had much to read rests before its next look."""
    monkeypatch.setattr(recovery, "_LONG_LOOK_SECONDS", 3600.0)
    given = waiting(service, engine)
    given.queue.load(Publication(number, group=f"{number}") for number in range(10_000))
    service.reap()
    with engine.begin() as connection:
        connection.execute(delete(given.queue.table).where(given.queue.table.c.id == given.ids[0]))
    assert 0 == service.reap().repaired
    own = core_of(given.queue).recovery
    own._repair_at = 0.0
    assert 1 == service.reap().repaired
    # So it does if a turn of the reaper is over after each page.
    monkeypatch.setattr(recovery, "_TURN_SECONDS", 0.0)
    own._repair_at = 0.0
    for _ in range(5):
        recovery.take_turn(own.groups(), lambda _: None)
    assert own._repair_at > 0.0
