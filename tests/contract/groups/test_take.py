"""take() and groups: the caller's transaction has the group in hand until it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, select

from queue_over_sql import Publication
from queue_over_sql.groups.statements import rows_of_groups
from queue_over_sql.queue import core_of
from tests.contract.queue_state import live_rows
from tests.waiting import consume_exactly

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

pytestmark = pytest.mark.driver_decides


@pytest.fixture
def jobs(service: QueueService) -> Queue:
    """A queue with ordered groups."""
    return service.create_queue("jobs", group_limit=1)


def publish(queue: Queue, groups: Iterable[str | None]) -> list[int]:
    """Publish a message for each name; returns their ids."""
    made = queue.publish_many([Publication(n, group=group) for n, group in enumerate(groups)])
    return [each.id for each in made]


def ids_of(messages: Sequence[Message]) -> list[int]:
    """The ids, in this order."""
    return [message.id for message in messages]


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
def test_a_take_holds_its_group_and_no_other(jobs: Queue, engine: Engine) -> None:
    """Others wait for the end of the transaction, and then get what it left, in order."""
    a1, a2, b1, a3, none, b2 = publish(jobs, ["a", "a", "b", "a", None, "b"])
    with engine.connect() as caller, caller.begin() as transaction:
        assert [a1, a2] == ids_of(jobs.take(2, connection=caller))
        others = jobs.consume(10)
        assert [b1, b2, none] == sorted(ids_of(others), key=[b1, b2, none].index)
        transaction.rollback()
    jobs.ack(others)
    with engine.connect() as caller, caller.begin() as transaction:
        assert [a1] == ids_of(jobs.take(1, connection=caller))
        assert [] == jobs.consume(10)
        transaction.commit()
    assert [a2, a3] == ids_of(consume_exactly(jobs, 2))


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
def test_takes_that_are_open_get_groups_of_their_own(jobs: Queue, engine: Engine) -> None:
    """Each passes by the groups that others have, and gets the oldest of the next one."""
    a1, _, b1, c1, c2, d1 = publish(jobs, ["a", "a", "b", "c", "c", "d"])
    with engine.begin() as one, engine.begin() as two, engine.begin() as three:
        assert [a1] == ids_of(jobs.take(1, connection=one))
        assert [b1] == ids_of(jobs.take(1, connection=two))
        assert [c1, c2, d1] == ids_of(jobs.take(9, connection=three))


def test_a_take_obeys_the_order_of_groups(jobs: Queue, engine: Engine) -> None:
    """It takes the first ones of groups that are free, and nothing behind what must wait."""
    a1, a2, b1, b2, c1 = publish(jobs, ["a", "a", "b", "b", "c"])
    [in_hand] = jobs.consume(1)
    assert a1 == in_hand.id
    assert 1 == jobs.messages(where=jobs.table.c.id == b1).hold()
    before = live_rows(engine, jobs)
    with engine.connect() as caller, caller.begin() as transaction:
        assert [c1] == ids_of(jobs.take(10, connection=caller))
        transaction.rollback()
    assert before == live_rows(engine, jobs)
    in_hand.ack()
    assert 1 == jobs.messages(where=jobs.table.c.id == b1).unhold()
    with engine.begin() as caller:
        assert {a2, b1, b2, c1} == set(taken := ids_of(jobs.take(10, connection=caller)))
        assert taken.index(b1) < taken.index(b2)
        assert [] == jobs.take(10, connection=caller)
    assert [] == jobs.consume(10)


def test_a_take_sees_what_its_transaction_published(jobs: Queue, engine: Engine) -> None:
    """And what others published after the transaction had begun to read."""
    [first] = publish(jobs, ["a"])
    with engine.begin() as caller:
        caller.execute(select(jobs.table.c.id)).all()
        [theirs] = publish(jobs, ["c"]) if engine.dialect.name != "sqlite" else [0]
        mine = jobs.publish("mine", group="b", connection=caller).id
        taken = ids_of(jobs.take(5, connection=caller))
        assert {first, mine, theirs} - {0} == set(taken)


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
def test_a_take_never_overtakes_what_was_committed_meanwhile(jobs: Queue, engine: Engine) -> None:
    """Not even in a transaction that reads what was committed when it began."""
    [a1] = publish(jobs, ["a"])
    with engine.connect() as caller, caller.begin() as transaction:
        caller.execute(select(jobs.table.c.id)).all()
        in_hand = consume_exactly(jobs, 1)
        publish(jobs, ["a"])
        assert [] == jobs.take(5, connection=caller)
        jobs.ack(in_hand)
        assert [a1 + 1] == ids_of(jobs.take(5, connection=caller))
        transaction.commit()
    assert [] == jobs.consume(10)


def test_a_take_parks_what_is_blocked(jobs: Queue, engine: Engine) -> None:
    """So the next one costs the same whatever waits; what it parked goes on in order."""
    a1, *others, b1 = publish(jobs, [*["a"] * 150, "b"])
    [in_hand] = jobs.consume(1)
    assert a1 == in_hand.id
    with engine.begin() as caller:
        assert [b1] == ids_of(jobs.take(1, connection=caller))
    where = jobs.table.c.parked_at.is_not(None)
    with engine.connect() as connection:
        assert others == sorted(connection.execute(select(jobs.table.c.id).where(where)).scalars())
    in_hand.ack()
    with engine.begin() as caller:
        assert others[:2] == ids_of(jobs.take(2, connection=caller))
    assert others[2:] == ids_of(consume_exactly(jobs, len(others) - 2))


def test_a_limit_of_groups_counts_for_take(service: QueueService, engine: Engine) -> None:
    """In any order, a take gets as many as the limit leaves."""
    queue = service.create_queue("jobs", group_limit=2, group_order="any")
    publish(queue, ["a", "a", "a"])
    [in_hand] = queue.consume(1)
    with engine.begin() as caller:
        assert 1 == len(queue.take(5, connection=caller))
    in_hand.ack()
    assert 1 == len(queue.consume(5))


@pytest.mark.parametrize("settings", [{}, {"group_fair": True, "group_order": "any"}])
def test_a_take_finds_a_group_whose_row_was_removed(
    service: QueueService, engine: Engine, settings: dict[str, Any]
) -> None:
    """The reaper removes rows of idle groups; the process that takes knew it."""
    queue = service.create_queue("jobs", **{"group_limit": 1} | settings)
    for _ in range(2):
        [number] = publish(queue, ["a"])
        with engine.begin() as caller:
            assert [number] == ids_of(queue.take(5, connection=caller))
        with engine.begin() as connection:
            connection.execute(delete(rows_of_groups(core_of(queue).context.tables)))


def test_a_service_that_has_claimed_nothing_takes_past_what_is_blocked(
    service: QueueService, make_service: MakeService, engine: Engine
) -> None:
    """To register would wait for the caller's own transaction, where that alone may write."""
    jobs = service.create_queue("jobs", group_limit=1)
    jobs.publish_many([Publication(n, group="a") for n in range(60)])
    assert [0] == [message.payload for message in jobs.consume(1)]
    jobs.publish("b", group="b")
    other = make_service().queue("jobs")
    for _ in range(3):
        with engine.connect() as caller, caller.begin() as transaction:
            found = other.take(1, connection=caller)
            assert ["b"] == [message.payload for message in found]
            transaction.rollback()
