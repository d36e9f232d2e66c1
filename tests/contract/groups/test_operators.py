"""What operators do with single groups: list, pause, resume, configure and unblock them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import ClaimLost, FixedDelay, GroupState
from tests.contract.queue_state import set_columns
from tests.refusals import refused

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService


@pytest.fixture
def jobs(service: QueueService) -> Queue:
    """A queue with ordered groups."""
    return service.create_queue("jobs", group_limit=1, archive="all", retry=FixedDelay(3600))


def _payloads(queue: Queue, count: int = 10) -> list[str]:
    return sorted(message.payload for message in queue.consume(count))


@pytest.mark.driver_decides
def test_the_list_says_how_each_group_stands(
    jobs: Queue, service: QueueService, engine: Engine
) -> None:
    """By backlog and by age: what waits, what is in hand, and what holds each group up."""
    names = ("f1", "a1", "b1", "c1", "d1", "a2", "b2", "a3", "e1")
    ids = {name: jobs.publish(name, group=name[0]).id for name in names}
    jobs.publish("alone")
    assert jobs.delete(ids["f1"])
    [a1] = jobs.consume()
    [b1] = jobs.consume()
    b1.nack("no")
    jobs.groups["c"].pause()
    jobs.groups["new one"].configure(limit=7)
    jobs.messages(where=jobs.table.c.id == ids["d1"]).hold()

    found = {each.name: each for each in jobs.groups.list()}

    assert ["b", "a", "c", "d", "e", "new one"] == list(found)
    set_columns(engine, jobs, ids["e1"], scheduled_at=1)
    assert "e" == jobs.groups.list(by="age", limit=2)[0].name
    waiting = {name: (each.waiting, each.claimed) for name, each in found.items()}
    one = dict.fromkeys(("c", "d", "e"), (1, 0))
    assert {"b": (2, 0), "a": (2, 1), **one, "new one": (0, 0)} == waiting
    assert {
        "a": GroupState.BUSY,
        "b": GroupState.DELAYED,
        "c": GroupState.PAUSED,
        "d": GroupState.HELD,
        "e": GroupState.READY,
        "new one": GroupState.EMPTY,
    } == {name: each.state for name, each in found.items()}
    heads = {name: each.head for name, each in found.items()}
    assert {name: ids.get(f"{name}1") for name in found} == heads
    assert [service.consumer_id] == list(found["a"].consumer_ids)
    assert a1.claimed_at == found["a"].claimed_since
    assert None is found["a"].next_due
    due = jobs.messages(where=jobs.table.c.id == ids["b1"]).first()
    assert due is not None
    assert due.available_at == found["b"].next_due
    assert None is not found["c"].paused_since
    assert (7, 7) == (found["new one"].limit, found["new one"].own_limit)
    assert (1, None) == (found["e"].limit, found["e"].own_limit)
    assert None is not found["e"].oldest_age
    assert found["d"].head == jobs.groups["d"].info().head
    assert GroupState.EMPTY is jobs.groups["none"].info().state


@pytest.mark.driver_decides
def test_a_paused_group_waits_and_no_other_does(jobs: Queue, make_service: MakeService) -> None:
    """In all processes at once, whatever is parked; its order is kept when it goes on."""
    other = make_service().queue("jobs")
    assert [] == other.consume()
    for name in ("a1", "a2", "b1"):
        jobs.publish(name, group=name[0])
    first = jobs.groups["a"]
    first.pause()
    since = first.info().paused_since
    other.groups["a"].pause()
    assert since == first.info().paused_since
    [b1] = other.consume(10)
    assert "b1" == b1.payload
    # So often that what is blocked is parked.
    assert [[]] * 4 == [jobs.consume(10) for _ in range(4)]

    other.groups["a"].resume()
    first.resume()

    found = jobs.consume(10) or other.consume(10)
    assert ["a1", "a2"] == [message.payload for message in found]
    assert None is first.info().paused_since


@pytest.mark.driver_decides
def test_a_limit_of_its_own_counts_at_once(jobs: Queue, make_service: MakeService) -> None:
    """More come in hand without a new publish; less only when some have ended."""
    other = make_service().queue("jobs")
    jobs.groups["a"].configure(limit=2)
    for number in range(6):
        jobs.publish(f"a{number}", group="a")
    held = [*jobs.consume(10), *other.consume(10)]
    assert ["a0", "a1"] == [message.payload for message in held]
    assert [[]] * 4 == [other.consume(10) for _ in range(4)]

    jobs.groups["a"].configure(limit=4)

    more = other.consume(10) or other.consume(10)
    assert ["a2", "a3"] == [message.payload for message in more]
    other.groups["a"].configure(limit=1)
    jobs.groups["a"].configure(limit=1)
    jobs.ack(held)
    other.ack(more[:1])
    assert ([], []) == (jobs.consume(), other.consume())
    other.ack(more[1:])
    assert ["a4"] == [message.payload for message in jobs.consume(1) or other.consume(1)]

    jobs.groups["a"].configure(limit=None)
    assert (1, None) == (jobs.groups["a"].info().limit, jobs.groups["a"].info().own_limit)


@pytest.mark.driver_decides
@pytest.mark.parametrize("way", ["nack", "reject", "unblocked", "requeued", "in a transaction"])
def test_a_dead_letter_blocks_its_group(service: QueueService, engine: Engine, way: str) -> None:
    """If the queue says so, until an operator unblocks the group or requeues the dead letter."""
    jobs = service.create_queue(
        "jobs", group_limit=1, block_on_failure=True, max_attempts=1, retry=FixedDelay(0)
    )
    ids = [jobs.publish(name, group=name[0]).id for name in ("a1", "a2", "a3", "a4", "b1")]
    a1, a2 = jobs.consume(2)
    assert ["a1", "a2"] == [a1.payload, a2.payload]
    if way == "in a transaction":
        with engine.begin() as connection:
            a1.reject("no", connection)
    elif way == "nack":
        a1.nack("no")
    else:
        a1.reject("no")

    group = jobs.groups["a"]
    assert (GroupState.BLOCKED, ids[0], 3) == (
        group.info().state,
        group.info().blocked_by,
        group.info().waiting,
    )
    # What it had in hand behind the dead letter went back, uncounted.
    with pytest.raises(ClaimLost):
        a2.ack()
    assert ["b1"] == _payloads(jobs)
    assert [[]] * 4 == [jobs.consume(10) for _ in range(4)]

    if way == "requeued":
        jobs.archive.messages().requeue()
    else:
        group.unblock()

    assert None is group.info().blocked_by
    found = [*jobs.consume(2), *jobs.consume(2)]
    assert ["a2", "a3"] == [message.payload for message in found]
    assert 1 == found[0].attempt
    jobs.ack(found)
    rest = ["a4", "a1"] if way == "requeued" else ["a4"]
    assert rest == [message.payload for message in [*jobs.consume(2), *jobs.consume(2)]]


def test_what_an_operator_ends_blocks_no_group(service: QueueService) -> None:
    """Nor does what expired: nobody has failed with it."""
    jobs = service.create_queue("jobs", group_limit=1, block_on_failure=True)
    first = jobs.publish("cancelled", group="a").id
    jobs.publish("next", group="a")
    assert jobs.cancel(first)
    assert ["next"] == _payloads(jobs)
    assert None is jobs.groups["a"].info().blocked_by


def test_a_queue_without_groups_says_so(service: QueueService) -> None:
    """So does each verb, and a limit or a name that is none is refused."""
    plain, jobs = service.create_queue("plain"), service.create_queue("jobs", group_limit=1)
    for verb in ("info", "pause", "resume", "unblock"):
        with refused(verb, ValueError, match="queue 'plain' has no groups"):
            getattr(plain.groups["a"], verb)()
    with refused("list", ValueError, match="queue 'plain' has no groups"):
        plain.groups.list()
    limits: list[Any] = [0, -1, "4", True]
    for limit in limits:
        with refused(limit, ValueError, TypeError, match="limit"):
            jobs.groups["a"].configure(limit=limit)
    with refused("x", ValueError, match="group"):
        _ = jobs.groups["x" * 201]
