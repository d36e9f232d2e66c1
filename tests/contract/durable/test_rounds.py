"""Durable consumers: rounds are claimed, read again by any process, and acknowledged by sets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, insert, select

from queue_over_sql import (
    CheckpointBehind,
    ConsumerFenced,
    ConsumerTaken,
    RoundsGone,
    UnsupportedByEngine,
)
from queue_over_sql.durable.consumer import AdvanceRequest, DurableConsumer, Round
from queue_over_sql.queue import core_of
from queue_over_sql.sql.operation import Operation
from tests.contract.durable.queries import Query
from tests.contract.queue_state import counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.threads("a streaming engine reads by threads and processes")


def both_ways(queue: Queue) -> Iterator[Callable[..., Query]]:
    """What makes queries whose driver claims, then, where the engine can, whose readers do.

    The queue is empty after each.
    """
    yield partial(Query, queue, name="driver")
    queue.purge(claimed=True)
    if Query(queue, name="probe", apart=True).apart:
        yield partial(Query, queue, name="apart", apart=True)
        queue.purge(claimed=True)


def test_rounds_hold_all_messages_once_in_order(queue: Queue) -> None:
    """A batch is cut into rounds of about one size, oldest first, and nothing is in two."""
    for query_of in both_ways(queue):
        queue.publish_many(range(10))
        query = query_of()
        batch = query.batch(each=4)
        assert [4, 3, 3] == [len(part) for part in batch]
        assert list(range(10)) == [number for part in batch for number in part]
        assert (0, 10, 0) == counts(queue)
        # As every claim it counts as an attempt when it is claimed, not when it ends.
        assert {1} == {message.attempt for message in queue.messages(status="claimed").list()}


def test_a_batch_is_bounded_and_acknowledges_the_last(queue: Queue) -> None:
    """No more than was asked for; the rest comes with the next batches, then nothing."""
    for query_of in both_ways(queue):
        queue.publish_many(range(5))
        query = query_of()
        batches, left = [], []
        for _ in range(4):
            batches.append(query.batch(most=2))
            left.append(counts(queue))
        assert [[[0, 1]], [[2, 3]], [[4]], []] == batches
        assert [(3, 2, 0), (1, 2, 0), (0, 1, 0), (0, 0, 0)] == left


def test_an_acknowledged_round_is_gone(queue: Queue) -> None:
    """Its messages are done, the others stay claimed, and to acknowledge again does nothing."""
    for query_of in both_ways(queue):
        queue.publish_many(range(6))
        query = query_of()
        query.batch(most=2)
        query.batch(most=2)
        query.consumer.ack(1)
        query.consumer.ack(1)
        assert (2, 2, 0) == counts(queue)
        state = query.consumer.state()
        assert 2 == state.claimed_round
        assert 1 == state.acked_round
        assert "here:1" == state.owner


@pytest.mark.engines("sqlite")
def test_those_rounds_that_are_there_can_be_had(queue: Queue) -> None:
    """Without the done ones and those that were never opened, where the caller says so."""
    queue.publish_many(range(3))
    query = Query(queue)
    opened = query.plan(each=1)
    query.consumer.ack(1)
    assert opened[1:] == query.consumer.rounds(0, 1_000_000, missing_ok=True)
    with pytest.raises(RoundsGone):
        query.consumer.rounds(0, 3)


def test_a_round_is_read_again_as_it_was(queue: Queue, make_service: MakeService) -> None:
    """Whoever takes the query over reads the same messages, in another process or again."""
    other = make_service().queue("jobs")
    for query_of in both_ways(queue):
        queue.publish_many(range(4))
        first = query_of()
        before = [first.read(each) for each in first.plan(each=2)]
        queue.publish_many([4, 5])
        again = Query(other, name=first.consumer.consumer_id, apart=first.apart)
        assert before == [again.read(each) for each in again.plan(each=1)]
        assert [[0, 1], [2, 3]] == before


@pytest.mark.engines("sqlite")
def test_rounds_that_a_checkpoint_missed_come_again(queue: Queue) -> None:
    """A query that died between its claim and its checkpoint gets the same end again."""
    queue.publish_many(range(5))
    first = Query(queue)
    end = first.consumer.advance(0, first.request(most=4, each=2))
    second = Query(queue)
    assert end == second.consumer.advance(0, second.request(most=1, each=1))
    assert 2 == end
    assert (1, 4, 0) == counts(queue)


@pytest.mark.engines("postgresql", "mysql", "mariadb")
def test_a_round_that_found_nothing_stays_empty(queue: Queue) -> None:
    """What a second action on the same batch reads is what the first one read: nothing."""
    queue.publish_many(range(4))
    query = Query(queue, apart=True)
    opened = query.plan(each=2)
    taken = queue.consume(4)
    assert [[], []] == [query.read(each) for each in opened]
    queue.release(taken)
    assert [[], []] == [query.read(each) for each in opened]
    assert [0, 0] == [each.claimed_count for each in query.consumer.rounds(0, 2)]
    query.checkpoint = 2
    assert [[0, 1, 2, 3]] == query.batch()


@pytest.mark.engines("postgresql", "mysql", "mariadb")
def test_a_round_that_nobody_read_leaves_its_messages(queue: Queue) -> None:
    """A batch that was done without one of its parts has not lost what that part was to hold."""
    queue.publish_many(range(4))
    query = Query(queue, apart=True)
    first, _ = query.plan(each=2)
    query.read(first)
    query.consumer.ack(2)
    query.checkpoint = 2
    assert [[2, 3]] == query.batch()


@pytest.mark.engines("sqlite", "h2")
def test_readers_claim_only_where_that_helps(queue: Queue) -> None:
    """Where one write lock orders all claims, a batch is claimed when it is opened."""
    queue.publish(1)
    query = Query(queue)
    with pytest.raises(UnsupportedByEngine):
        query.consumer.advance(0, AdvanceRequest(None, 10, executor=True))


def test_who_was_taken_over_may_do_nothing(queue: Queue) -> None:
    """Neither advance nor ack, read, give up or fail; the error names who has the consumer."""
    for query_of in both_ways(queue):
        queue.publish_many(range(4))
        first = query_of()
        opened = first.plan(each=2)
        second = DurableConsumer(queue, first.consumer.consumer_id, owner="there:2")
        second.take_over()
        for operation in operations_of(first, opened[0]):
            with pytest.raises(ConsumerFenced, match="there:2") as refused:
                operation()
            assert second.epoch == refused.value.epoch
        assert 2 == second.advance(0, first.request())


def operations_of(query: Query, opened: Round) -> list[Callable[[], object]]:
    """All that a query may do."""
    consumer = query.consumer
    return [
        lambda: consumer.advance(0, query.request()),
        lambda: consumer.ack(2),
        lambda: consumer.rounds(0, 2),
        lambda: consumer.recover(0),
        lambda: consumer.nack([(1, 1, "no")]),
        lambda: core_of(query.queue).context.connections.run(
            Operation(lambda c: consumer.claim_round(c, opened, consumer.epoch), atomic=True)
        ),
    ]


@pytest.mark.engines("postgresql", "mysql", "mariadb")
def test_a_zombie_claims_nothing_for_an_acknowledged_round(queue: Queue) -> None:
    """A task that was believed dead and comes late finds its round done."""
    queue.publish_many(range(4))
    query = Query(queue, apart=True)
    late, _ = query.plan(each=2)
    query.consumer.ack(2)
    with pytest.raises(RoundsGone):
        query.read(late)
    assert (4, 0, 0) == counts(queue)


@pytest.mark.engines("sqlite")
def test_an_old_checkpoint_is_refused(queue: Queue) -> None:
    """What lies between it and what is done would be missing without a word."""
    queue.publish_many(range(4))
    query = Query(queue)
    query.batch(most=2)
    query.done()
    with pytest.raises(CheckpointBehind, match=r"round 0.*round 1") as refused:
        query.consumer.advance(0, query.request())
    assert 0 == refused.value.start
    assert 1 == refused.value.acked_round
    assert 1 == query.consumer.recover(0)
    assert 2 == query.consumer.advance(1, query.request())


@pytest.mark.engines("sqlite")
def test_a_checkpoint_of_elsewhere_is_refused(queue: Queue) -> None:
    """One that is ahead of the queue belongs to another database, or to a life that is over."""
    queue.publish_many(range(4))
    query = Query(queue, checkpoint=7)
    with pytest.raises(RoundsGone, match="round 7"):
        query.batch()
    with pytest.raises(RoundsGone):
        query.consumer.ack(7)
    assert 7 == query.consumer.recover(7)
    assert [[0, 1, 2, 3]] == query.batch()
    assert 8 == query.checkpoint


def test_recovering_gives_back_what_the_checkpoint_does_not_know(queue: Queue) -> None:
    """Rounds of another life come again under numbers that the checkpoint has not seen."""
    queue.publish_many(range(2))
    Query(queue).plan()
    query = Query(queue, checkpoint=5)
    assert 5 == query.consumer.recover(5)
    assert (2, 0, 0) == counts(queue)
    assert [[0, 1]] == query.batch()
    assert [1, 1] == [message.attempt for message in queue.messages().list()]


@pytest.mark.engines("sqlite")
def test_what_is_acknowledged_is_kept_as_the_queue_or_the_query_says(service: QueueService) -> None:
    """As an ordinary ack does, or as the query asks."""
    cases: list[tuple[Any, str | None, int]] = [
        ("none", None, 0),
        ("failed", None, 0),
        ("all", None, 3),
        ("all", "delete", 0),
        ("failed", "archive", 3),
    ]
    for number, (archive, on_ack, kept) in enumerate(cases):
        queue = service.create_queue(f"jobs{number}", archive=archive)
        queue.publish_many(range(3))
        query = Query(queue, name=queue.name)
        opened = query.plan()
        query.consumer.ack(opened[-1].consumer_round, on_ack=on_ack)
        assert (0, 0, kept) == counts(queue), queue.name
        assert ["done"] * kept == [m.outcome for m in queue.archive.messages().list()]


@pytest.mark.engines("sqlite")
def test_an_unknown_disposition_is_refused(queue: Queue) -> None:
    """Before anything is changed."""
    query = Query(queue)
    with pytest.raises(ValueError, match="on_ack"):
        query.consumer.ack(0, on_ack="keep")


def test_keys_stay_taken_for_the_dedup_window(service: QueueService) -> None:
    """A key that a round finished is refused, one of a message that failed or waits is not."""
    archives: list[Literal["none", "all"]] = ["none", "all"]
    for archive in archives:
        queue = service.create_queue(archive, dedup_window=3600, archive=archive)
        queue.publish(1, key="a")
        queue.publish(2)
        query = Query(queue, name=archive)
        query.batch()
        query.done()
        assert "skipped" == queue.publish(3, key="a", on_conflict="skip").outcome
        assert "created" == queue.publish(3, key="b", on_conflict="skip").outcome


def test_what_is_due_is_served_by_its_priority(service: QueueService) -> None:
    """A batch takes the urgent messages first, and fills up; delayed and held ones wait."""
    queue = service.create_queue("jobs", priorities=3)
    queue.publish("later", delay=3600)
    queue.publish("held")
    queue.messages(status="ready").hold()
    for number in range(6):
        queue.publish(number, priority=2 - number % 3)
    query = Query(queue)
    assert [[2, 5, 1]] == query.batch(most=3)
    assert [[4, 0, 3]] == query.batch(most=5)


def test_a_paused_queue_gives_nothing(queue: Queue) -> None:
    """Neither new rounds, nor messages to rounds that were opened before."""
    for query_of in both_ways(queue):
        queue.publish_many(range(4))
        query = query_of()
        opened = query.plan(most=2)
        queue.pause()
        before, after = ([], [0, 1, 2, 3]) if query.apart else ([0, 1], [2, 3])
        assert before == query.read(opened[0])
        query.checkpoint = 1
        assert [] == query.batch()
        queue.resume()
        assert [after] == query.batch()


def test_a_target_bounds_what_is_read(queue: Queue) -> None:
    """What is published after a run began waits for the next one."""
    queue.publish_many(range(3))
    query = Query(queue)
    last_id, now = query.consumer.target()
    queue.publish_many([3, 4])
    bounds = {"up_to_id": last_id, "due_by": now}
    assert [[0, 1, 2]] == query.batch(**bounds)
    assert [] == query.batch(**bounds)
    assert [[3, 4]] == query.batch()


@pytest.mark.engines("sqlite")
def test_a_name_reads_one_queue(service: QueueService) -> None:
    """Else the rounds of two queues would share their numbers."""
    Query(service.create_queue("jobs"))
    other = service.create_queue("others")
    with pytest.raises(ConsumerTaken, match="'jobs'"):
        Query(other)


@pytest.mark.engines("sqlite")
def test_a_name_of_an_ordinary_consumer_is_taken(service: QueueService) -> None:
    """Its row is kept by a heartbeat, and goes with its process."""
    queue = service.create_queue("jobs")
    queue.publish(1)
    queue.consume()
    with pytest.raises(ConsumerTaken, match="not a durable consumer"):
        Query(queue, name=str(service.consumer_id))


@pytest.mark.engines("sqlite")
def test_a_bad_name_is_refused(queue: Queue) -> None:
    """It is part of every claim's stamp, and of what operators type."""
    for name in ["", "a b", "x" * 37, "é", "a/b"]:
        try:
            DurableConsumer(queue, name, owner="here:1")
        except ValueError as error:
            assert "consumer_id" in str(error)  # noqa: PT017
        else:
            pytest.fail(f"accepted: {name!r}")


@pytest.mark.engines("sqlite")
def test_nothing_is_done_before_taking_over(queue: Queue) -> None:
    """A program that forgot to is told so."""
    consumer = DurableConsumer(queue, "query", owner="here:1")
    with pytest.raises(RuntimeError, match="take_over"):
        consumer.ack(1)
    with pytest.raises(RoundsGone, match="not registered"):
        consumer.state()


@pytest.mark.default_on("sqlite", "postgresql")
def test_messages_that_were_removed_are_missing_from_their_round(queue: Queue) -> None:
    """An operator may delete, and replace by key; the round is acknowledged all the same."""
    queue.publish_many(range(3))
    queue.publish("old", key="k")
    query = Query(queue)
    (opened,) = query.plan()
    queue.delete(query.ids(opened)[0])
    queue.publish("new", key="k", on_conflict="replace")
    assert [1, 2] == query.read(opened)
    query.checkpoint = 1
    assert [["new"]] == query.batch()


def test_an_existing_table_is_read_in_rounds(service: QueueService, engine: Engine) -> None:
    """Its rows end in place, as those that workers finish."""
    table = Table(
        "orders", MetaData(), Column("id", Integer, primary_key=True), Column("name", String(20))
    )
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(insert(table), [{"name": f"n{number}"} for number in range(8)])
    queue = service.adopt_queue("jobs", table)
    half = queue.table.c.id <= 4
    for name, apart, where, done in (("one", False, half, 4), ("two", True, None, 8)):
        assert 4 == queue.enqueue(where)
        query = Query(queue, name=name, apart=apart)
        assert [2, 2] == [len(part) for part in query.batch(each=2)]
        query.done()
        assert (0, 0, done) == counts(queue)
    with engine.connect() as connection:
        rows = connection.execute(select(queue.table.c.status)).scalars().all()
    assert ["SUCCESS"] * 8 == list(rows)


def test_own_columns_come_with_a_round(service: QueueService) -> None:
    """And go to the archive with it."""
    queue = service.create_queue("jobs", columns=[Column("company", Integer)])
    queue.publish(1, columns={"company": 7})
    query = Query(queue)
    (opened,) = query.plan()
    (row,) = service._parts.connections.run(
        lambda c: query.consumer.read_round(c, opened.consumer_round)
    )
    assert {"company": 7} == dict(row.columns)
    query.consumer.ack(1, on_ack="archive")
    assert [1] == archived_payloads(queue)


def archived_payloads(queue: Queue) -> list[Any]:
    """What the archive has."""
    return [message.payload for message in queue.archive.messages().list()]
