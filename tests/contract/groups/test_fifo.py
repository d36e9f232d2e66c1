"""Groups in order: who gets which message, and what blocks which."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

import pytest
from sqlalchemy import create_engine, select, update

from queue_over_sql import ClaimLost, DatabaseUnavailable, Publication, Reason
from queue_over_sql.queue import core_of
from queue_over_sql.testing import Clock
from tests.contract.payloads.kind_types import BOTH, ORDERS, Order, Refund, knowing
from tests.contract.queue_state import live_rows, set_columns
from tests.waiting import consume_exactly, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService, TestDatabase


@pytest.fixture
def jobs(service: QueueService) -> Queue:
    """A queue in which one message of a group is in hand at once, in order."""
    return service.create_queue("jobs", group_limit=1)


def publish(queue: Queue, groups: Iterable[str | None]) -> list[int]:
    """Publish a message for each name, in one transaction; returns their ids."""
    made = queue.publish_many([Publication(n, group=group) for n, group in enumerate(groups)])
    return [each.id for each in made]


def hold(queue: Queue, message_id: int) -> None:
    """Hold one message."""
    assert 1 == queue.messages(where=queue.table.c.id == message_id).hold()


def named(messages: Iterable[Message]) -> list[tuple[int, str | None]]:
    """Ids and groups."""
    return [(message.id, message.group) for message in messages]


def parked(queue: Queue, engine: Engine) -> int:
    """How many messages wait out of the claim index."""
    live = core_of(queue).context.tables.live
    with engine.connect() as connection:
        found = connection.execute(select(live.c.id).where(live.c.parked_at.is_not(None)))
        return len(found.all())


def test_a_group_is_in_one_hand_and_in_order(jobs: Queue, make_service: MakeService) -> None:
    """Each claim gets the first ones of free groups; others wait until all of these ended."""
    a1, b1, a2, none1, b2, a3 = publish(jobs, ["a", "b", "a", None, "b", "a"])
    other = make_service().queue("jobs")
    [first] = jobs.consume(1)
    assert (a1, "a") == (first.id, first.group)
    rest = other.consume(10)
    assert {(b1, "b"), (b2, "b"), (none1, None)} == set(named(rest))
    assert [b1, b2] == [message.id for message in rest if message.group]
    assert [] == jobs.consume(10) == other.consume(10)
    first.ack()
    behind = other.consume(10)
    assert [(a2, "a"), (a3, "a")] == named(behind)
    behind[0].ack()
    assert [] == jobs.consume(10), "one of the group is still in hand"
    behind[1].ack()
    [b4] = publish(jobs, ["b"])
    assert [] == jobs.consume(10)
    other.ack(rest)
    assert [(b4, "b")] == named(jobs.consume(10))


def _claimed(queue: Queue, head: int) -> None:
    [message] = queue.consume(1)
    assert head == message.id


def _retrying(queue: Queue, head: int) -> None:
    [message] = queue.consume(1)
    assert head == message.id
    message.nack(delay=3600)


def _delayed(queue: Queue, head: int) -> None:
    [message] = queue.consume(1)
    assert head == message.id
    message.release(delay=3600)


def _held(queue: Queue, head: int) -> None:
    hold(queue, head)


@pytest.mark.parametrize("blocks", [_claimed, _retrying, _delayed, _held])
def test_a_head_blocks_its_group_alone(
    jobs: Queue, make_service: MakeService, engine: Engine, blocks: Callable[[Queue, int], None]
) -> None:
    """Its followers wait, out of the way of claims; others flow; its end lets the next one out."""
    head, *followers = publish(jobs, ["a"] * 40)
    blocks(jobs, head)
    other = make_service().queue("jobs")
    assert [] == other.consume(5)
    eventually(lambda: not other.consume(5) and 39 == parked(jobs, engine), "all are parked")
    [elsewhere] = publish(jobs, ["b"])
    [late] = publish(jobs, ["a"])
    assert [(elsewhere, "b")] == named(other.consume(5))
    assert [] == other.consume(5)
    assert jobs.delete(head)
    consumed: list[int] = []
    while len(consumed) < 40:
        found = consume_exactly(other, 1)
        consumed += [message.id for message in found]
        other.ack(found)
    assert [*followers, late] == consumed


def test_a_claim_after_one_of_first_messages_alone_keeps_the_rules(jobs: Queue) -> None:
    """A claim that took one message of each group lets the next be a shorter one, if it can be.

    That gets no other messages: several of a group together, none beside one in hand, behind one
    that is not due, or of a paused group.
    """
    names = itertools.count()

    def after_first_ones(count: int) -> None:
        """Take the first message of each of ``count`` groups, and leave the queue empty."""
        for _ in range(2):
            firsts = publish(jobs, [f"first {next(names)}" for _ in range(count)])
            found = jobs.consume(count)
            assert firsts == [message.id for message in found]
            jobs.ack(found)

    after_first_ones(4)
    a1, b1, a2, none, b2 = publish(jobs, ["a", "b", "a", None, "b"])
    batch = jobs.consume(5)
    assert {a1, b1, a2, none, b2} == {message.id for message in batch}
    for first, second in [(a1, a2), (b1, b2)]:
        got = [message.id for message in batch]
        assert got.index(first) < got.index(second)
    c1, d1 = publish(jobs, ["a", "d"])
    assert [(d1, "d")] == named(jobs.consume(2))
    jobs.ack(batch)
    assert [(c1, "a")] == named(jobs.consume(1))
    jobs.purge(claimed=True)

    after_first_ones(2)
    jobs.publish(0, group="e", delay=3600)
    _, f1 = publish(jobs, ["e", "f"])
    assert [(f1, "f")] == named(jobs.consume(2))
    jobs.purge(claimed=True)

    after_first_ones(2)
    jobs.groups["g"].pause()
    _, h1 = publish(jobs, ["g", "h"])
    assert [(h1, "h")] == named(jobs.consume(2))
    jobs.purge(claimed=True)

    after_first_ones(2)
    jobs.groups["i"].configure(limit=2)
    i1, j1, i2, j2, i3 = publish(jobs, ["i", "j", "i", "j", "i"])
    one_by_one = [message.id for _ in range(4) for message in jobs.consume(1)]
    assert [i1, j1, i2] == one_by_one
    assert i3 not in one_by_one
    assert j2 not in one_by_one


def test_a_claim_of_first_messages_keeps_to_the_limit_of_the_queue(service: QueueService) -> None:
    """The limit, or what a higher level has given, makes it a claim of fewer messages."""
    jobs = service.create_queue("limited", group_limit=1, queue_limit=3)
    levels = service.create_queue("levels", group_limit=1, priorities=2)
    numbers = itertools.count()

    def first_ones(queue: Queue, count: int, priority: int = 0) -> None:
        for _ in range(count):
            queue.publish(0, group=f"first {next(numbers)}", priority=priority)

    for _ in range(3):
        first_ones(jobs, 5)
        held = jobs.consume(2)
        assert 2 == len(held)
        assert 1 == len(jobs.consume(2))
        jobs.purge(claimed=True)

    for priority in (0, 1):
        first_ones(levels, 3, priority)
        levels.ack(levels.consume(3))
    first_ones(levels, 2, 0)
    first_ones(levels, 4, 1)
    held = levels.consume(1)
    assert 3 == len(levels.exchange(held, 3))


def test_a_retry_comes_before_what_is_behind_it(jobs: Queue) -> None:
    """A failed head comes again first, however late it is due; what came back keeps its place."""
    ids = publish(jobs, ["a"] * 3)
    for _ in range(2):
        [head] = jobs.consume(1)
        assert ids[0] == head.id
        head.nack(delay=0)
    batch = jobs.consume(10)
    assert ids == [message.id for message in batch]
    jobs.release(batch[1:])
    batch[0].ack()
    assert ids[1:] == [message.id for message in jobs.consume(10)]


def test_a_thousand_of_one_transaction_come_by_id(jobs: Queue) -> None:
    """They are due at one instant; batches of any size get them in order, and nothing else."""
    ids = publish(jobs, ["a"] * 1000)
    came: list[int] = []
    for size in (1, 7, 100, 300, 1000):
        batch = jobs.consume(size)
        came += [message.id for message in batch]
        jobs.ack(batch)
    assert ids == came


def test_more_of_a_group_in_hand_up_to_its_limit(service: QueueService) -> None:
    """With a limit of 3 three are in hand, by as many consumers; an end lets one more out."""
    queue = service.create_queue("jobs", group_limit=3)
    ids = publish(queue, ["a"] * 5 + ["b"])
    two = queue.consume(2)
    assert ids[:2] == [message.id for message in two]
    assert [(ids[2], "a"), (ids[5], "b")] == named(queue.consume(10))
    assert [] == queue.consume(10)
    two[1].ack()
    assert [(ids[3], "a")] == named(consume_exactly(queue, 1))
    assert [] == queue.consume(10)
    two[0].nack(delay=3600)
    assert [] == queue.consume(10), "the head blocks, although there would be room"


def test_without_order_nothing_blocks_but_the_limit(service: QueueService) -> None:
    """What is delayed lets others pass; no more than the limit is in hand."""
    queue = service.create_queue("jobs", group_limit=2, group_order="any")
    first, *ids = publish(queue, ["a"] * 5)
    hold(queue, first)
    two = queue.consume(10)
    assert ids[:2] == [message.id for message in two]
    assert [] == queue.consume(10)
    two[0].nack(delay=3600)
    assert [ids[2]] == [message.id for message in consume_exactly(queue, 1)]
    assert [] == queue.consume(10)


def test_a_smaller_limit_counts_what_is_in_hand(make_service: MakeService) -> None:
    """After 4 to 1 nothing comes until all four ended; other services notice at once."""
    queue = make_service().create_queue("jobs", group_limit=4)
    other = make_service().queue("jobs")
    ids = publish(queue, ["a"] * 12)
    four = other.consume(4)
    assert ids[:4] == [message.id for message in four]
    make_service().create_queue("jobs", group_limit=1)
    for message in four:
        assert [] == queue.consume(10) == other.consume(10)
        message.ack()
    [fifth] = consume_exactly(other, 1)
    assert ids[4] == fifth.id
    assert [] == queue.consume(10)


def test_a_row_of_the_group_has_its_own_limit_and_pause(jobs: Queue, engine: Engine) -> None:
    """A group's own limit goes over the queue's; a paused or blocked one hands out nothing."""
    rows = core_of(jobs).context.tables.groups
    assert rows is not None
    ids = publish(jobs, ["a", "b", "c", "d"] * 3)
    [a] = jobs.consume(1)
    assert ids[0] == a.id
    with engine.begin() as connection:
        for group, values in {
            "b": {"paused_at": 1},
            "c": {"blocked_by": 1},
            "d": {"own_limit": 2},
        }.items():
            change = update(rows).where(rows.c.group_key == group).values(values)
            if not connection.execute(change).rowcount:
                connection.execute(rows.insert().values(group_key=group, seq=0, **values))
    assert [(ids[3], "d"), (ids[7], "d")] == named(jobs.consume(10))
    assert [] == jobs.consume(10)
    eventually(lambda: not jobs.consume(10) and 9 == parked(jobs, engine), "all are parked")


def test_priorities_do_not_break_the_order_of_a_group(service: QueueService) -> None:
    """An urgent message brings its group to the front; the group's first message comes first."""
    queue = service.create_queue("jobs", group_limit=1, priorities=3)
    [low] = queue.publish_many([Publication("low", group="a", priority=2)])
    [high] = queue.publish_many([Publication("high", group="a", priority=0)])
    [other] = queue.publish_many([Publication("other", group="b", priority=1)])
    batch = queue.consume(1)
    assert [low.id] == [message.id for message in batch]
    assert [other.id] == [message.id for message in queue.consume(10)]
    assert [high.id] == [message.id for message in queue.exchange(batch, 10)]


def test_a_condition_waits_for_the_head(jobs: Queue, engine: Engine) -> None:
    """A head that does not match blocks its group for this consumer, not for others."""
    ids = publish(jobs, ["a", "a", "b"])
    live = core_of(jobs).context.tables.live
    set_columns(engine, jobs, ids[0], kind="x")
    other = live.c.kind.is_(None)
    assert [(ids[2], "b")] == named(jobs.consume(10, where=other))
    assert [] == jobs.consume(10, where=other)
    both = jobs.consume(10)
    assert [(ids[0], "a"), (ids[1], "a")] == named(both)


def test_a_head_of_an_unknown_kind_holds_up_its_group(make_service: MakeService) -> None:
    """Its followers wait for who knows it, others flow, and the reason is named."""
    narrow = knowing(make_service, ORDERS, group_limit=1)
    wide = knowing(make_service, BOTH)
    made = wide.publish_many(
        [
            Publication(Refund(id=0), group="a"),
            Publication(Order(id=1), group="a"),
            Publication(Order(id=2), group="b"),
        ]
    )
    head, follower, elsewhere = (each.id for each in made)
    found = [message for _ in range(4) for message in narrow.consume(5)]
    assert [elsewhere] == [message.id for message in found]
    waits = narrow.why(follower)
    assert (Reason.GROUP_HEAD, head) == (waits.reason, waits.waits_for)
    [refund] = consume_exactly(wide, 1)
    refund.ack()
    assert [follower] == [message.id for message in consume_exactly(narrow, 1)]


def test_an_exchange_gets_what_its_ack_sets_free(jobs: Queue, make_service: MakeService) -> None:
    """The next ones of the group come with the ack of the last one, in one transaction."""
    ids = publish(jobs, ["a"] * 30)
    batch = jobs.consume(1)
    other = make_service().queue("jobs")
    for _ in range(3):
        assert [] == other.consume(2)
    came = [message.id for message in batch]
    while batch:
        batch = jobs.exchange(batch, 4)
        came += [message.id for message in batch]
    assert ids == came


@pytest.mark.parametrize("archive", ["all", "none"])
def test_an_exchange_after_one_of_first_messages_alone_keeps_the_rules(
    service: QueueService, make_service: MakeService, archive: Literal["all", "none"]
) -> None:
    """It may be one statement, for which what it acks is not in hand any more.

    It gets the next ones of the same groups, also those that were parked, but none of a group in
    other hands. If a claim was lost, it acks the others and gets nothing.
    """
    jobs = service.create_queue("jobs", group_limit=1, archive=archive)
    other = make_service().queue("jobs")
    publish(jobs, "ab")
    batch = jobs.consume(2)
    for _ in range(3):
        following = publish(jobs, "ab")
        batch = jobs.exchange(batch, 2)
        assert following == [message.id for message in batch]

    publish(jobs, "c")
    (elsewhere,) = other.consume(1)
    _, a5, _ = publish(jobs, "cab")
    batch = jobs.exchange(batch, 2)
    assert [(a5, "a")] == named(batch)
    other.ack(elsewhere)
    jobs.purge(claimed=True)

    publish(jobs, "ab")
    batch = jobs.consume(2)
    a7, a8 = publish(jobs, "aa")
    for _ in range(3):
        assert [] == other.consume(2)
    batch = jobs.exchange(batch, 2)
    assert [a7, a8] == [message.id for message in batch]

    publish(jobs, "bc")
    batch = jobs.exchange(batch, 2)
    lost, kept = (message.id for message in batch)
    jobs.delete(lost)
    waiting = publish(jobs, "bc")
    with pytest.raises(ClaimLost) as caught:
        jobs.exchange(batch, 2)
    assert [lost] == [message.id for message in caught.value.messages]
    assert kept not in [message.id for message in jobs.messages(status="claimed").list()]
    assert waiting == [message.id for message in other.consume(2)]


def test_what_is_behind_an_unreadable_message_is_not_delivered(jobs: Queue, engine: Engine) -> None:
    """It goes back, uncounted, because the unreadable one will be tried again first."""
    ids = publish(jobs, ["a", "a", "a", "b"])
    set_columns(engine, jobs, ids[1], headers="[1]")
    assert [(ids[0], "a"), (ids[3], "b")] == named(jobs.consume(10))
    [third] = jobs.messages(where=jobs.table.c.id == ids[2]).list()
    assert 0 == third.attempt


@pytest.mark.engines("sqlite")
@pytest.mark.threads("replaces a method of the synchronous core")
def test_a_claim_is_not_forgotten_if_its_unreadable_message_cannot_be_given_back(
    jobs: Queue, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next claim gives all of it back first."""
    ids = publish(jobs, ["a", "a", "b"])
    set_columns(engine, jobs, ids[0], headers="[1]")

    def unavailable(*_: object) -> None:
        raise DatabaseUnavailable("the database is gone")

    with monkeypatch.context() as patched:
        patched.setattr(core_of(jobs).claimer, "_undisturbed", unavailable)
        with pytest.raises(DatabaseUnavailable):
            jobs.consume(10)
    assert [(ids[2], "b")] == named(jobs.consume(10))


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
@pytest.mark.threads("its transaction is a synchronous one")
def test_a_claim_that_is_held_open_hides_no_other_group(
    jobs: Queue, make_service: MakeService, database: TestDatabase
) -> None:
    """Neither a locked row of a group, nor locked messages of it: no claim waits for them."""
    tables = core_of(jobs).context.tables
    assert tables.groups is not None
    [first] = publish(jobs, ["a"])
    jobs.ack(jobs.consume(1))
    ids = publish(jobs, ["a"] * 300)
    holder = create_engine(database.url)
    other = make_service().queue("jobs")
    with holder.begin() as connection:
        rows = select(tables.groups).where(tables.groups.c.group_key == "a")
        connection.execute(rows.with_for_update())
        held = select(tables.live.c.id).where(tables.live.c.id == ids[0])
        connection.execute(held.with_for_update())
        [elsewhere] = publish(jobs, ["b"])
        found = eventually(lambda: other.consume(1), "the other group's message")
        assert [(elsewhere, "b")] == named(found)
        assert [] == other.consume(10)
    holder.dispose()
    assert ids[:10] == [message.id for message in consume_exactly(other, 10)]
    assert first < ids[0]


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
def test_a_claim_takes_more_of_the_groups_that_others_left(
    jobs: Queue, make_service: MakeService
) -> None:
    """What is wanted is divided among the groups that it may have, not among all that it meets."""
    names = [f"g{number}" for number in range(16)]
    ids = publish(jobs, names * 10)
    assert ids[:14] == [message.id for message in jobs.consume(14)]
    messages = consume_exactly(make_service().queue("jobs"), 16)
    assert [*ids[14:128:16], *ids[15:128:16]] == [message.id for message in messages]


@pytest.mark.parametrize("order", ["fifo", "any"])
def test_parking_leaves_no_place_empty(
    service: QueueService, make_service: MakeService, order: Any
) -> None:
    """Whoever ends one of three lets another one out, also if all three were parked before."""
    queue = service.create_queue("jobs", group_limit=3, group_order=order)
    other = make_service().queue("jobs")
    ids = publish(queue, ["a"] * 40)
    hand = queue.consume(3)
    came: list[int] = []
    while hand:
        assert 3 == len(hand) or len(came) > 30
        for _ in range(3):
            assert [] == other.consume(5)
        first = hand.pop(0)
        first.ack()
        came.append(first.id)
        if len(came) <= 37:
            hand += consume_exactly(queue, 1)
    assert ids == sorted(came)
    assert order == "any" or ids == came


def test_a_queue_that_stands_still_is_not_written(
    jobs: Queue, make_service: MakeService, engine: Engine
) -> None:
    """Eight consumers that find every group in hand write nothing, and count no attempt."""
    groups = [f"g{number}" for number in range(8)]
    published = [publish(jobs, groups) for _ in range(10)]
    held = [message for _ in groups for message in jobs.consume(1)]
    assert groups == sorted(str(message.group) for message in held)
    others = [make_service().queue("jobs") for _ in range(8)]

    def look(times: int) -> None:
        with ThreadPoolExecutor(len(others)) as threads:
            for _ in range(times):
                assert [[]] * len(others) == [*threads.map(lambda q: q.consume(5), others)]

    look(6)
    assert 72 == parked(jobs, engine)
    before = live_rows(engine, jobs), _rows_of_groups(engine, jobs)
    look(10)
    assert before == (live_rows(engine, jobs), _rows_of_groups(engine, jobs))
    assert [0] * 72 == [each.attempt for each in jobs.messages(status="ready").list()]
    jobs.ack(held)
    following = [message.id for queue in others for message in queue.consume(1)]
    assert sorted(published[1]) == sorted(following)


def _rows_of_groups(engine: Engine, queue: Queue) -> list[Any]:
    rows = core_of(queue).context.tables.groups
    assert rows is not None
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(select(rows).order_by(rows.c.group_key))]


@pytest.mark.threads
@pytest.mark.parametrize(("of_queue", "own"), [(1, None), (2, 1)])
def test_what_its_consumer_cannot_have_begun_is_no_dead_letter(
    service: QueueService, of_queue: int, own: int | None
) -> None:
    """Behind the first one of a group with the limit 1, which may be the group's own."""
    jobs = service.create_queue("jobs", group_limit=of_queue, max_attempts=1)
    if own is not None:
        jobs.groups["a"].configure(limit=own)
    a1, a2, a3 = publish(jobs, "aaa")
    assert [a1, a2, a3] == [message.id for message in jobs.consume(3)]
    Clock(service).advance(3600)
    assert [a1] == [message.id for message in jobs.archive.messages().list()]
    assert [a2, a3] == [message.id for message in jobs.messages(status="ready").list()]


@pytest.mark.threads
def test_each_of_those_that_run_at_once_has_had_its_attempt(service: QueueService) -> None:
    """In a group whose own limit lets several of it run."""
    jobs = service.create_queue("jobs", group_limit=1)
    jobs.groups["a"].configure(limit=3)
    publish(jobs, "aaa")
    assert 3 == len(jobs.consume(3))
    Clock(service).advance(3600)
    assert [1, 1, 1] == [message.attempt for message in jobs.messages().list()]
