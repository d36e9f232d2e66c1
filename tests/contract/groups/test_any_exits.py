"""Every way in which a message of a group leaves a consumer's hand, beside every other one."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from sqlalchemy import and_, select

from queue_over_sql import ClaimLost, FixedDelay, Publication
from queue_over_sql.claiming import group_walk
from tests.contract.queue_state import set_columns
from tests.waiting import eventually, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

LIMIT = 2


class Here(NamedTuple):
    """Where an exit happens."""

    queue: Queue
    service: QueueService
    engine: Engine


def _rolled_back(here: Here, message: Message) -> None:
    with here.engine.connect() as connection, connection.begin() as transaction:
        message.ack(connection=connection)
        transaction.rollback()


def _committed(here: Here, message: Message) -> None:
    with here.engine.begin() as connection:
        message.ack(connection=connection)


def _reaped(here: Here, message: Message) -> None:
    set_columns(here.engine, here.queue, message.id, lease_expires_at=1)
    here.service.reap()


def _held(here: Here, message: Message) -> None:
    message.release()
    _chosen(here, message).hold()


def _taken(here: Here, message: Message) -> None:
    message.release()
    with here.engine.begin() as connection:
        here.queue.take(1, connection=connection)


def _taken_back(here: Here, message: Message) -> None:
    message.release()
    with here.engine.connect() as connection, connection.begin() as transaction:
        here.queue.take(1, connection=connection)
        transaction.rollback()


def _requeued(here: Here, message: Message) -> None:
    message.reject("no")
    assert here.queue.archive.messages(where=_archived(here).c.id == message.id).requeue()


def _chosen(here: Here, message: Message) -> Any:
    return here.queue.messages(where=here.queue.table.c.id == message.id)


def _archived(here: Here) -> Any:
    return here.queue.archive.table


def _edited(here: Here, message: Message) -> None:
    message.release()
    _chosen(here, message).prioritize(front=True)


def _removed(here: Here, message: Message) -> None:
    message.release()
    _chosen(here, message).remove()


EXITS: dict[str, Callable[[Here, Message], Any]] = {
    "ack": lambda _, message: message.ack(),
    "ack in a transaction": _committed,
    "ack that is rolled back": _rolled_back,
    "nack": lambda _, message: message.nack("no"),
    "nack for later": lambda _, message: message.nack("no", delay=3600),
    "release": lambda _, message: message.release(),
    "reject": lambda _, message: message.reject("no"),
    "extend": lambda _, message: message.extend(),
    "delete": lambda here, message: here.queue.delete(message.id),
    "cancel": lambda here, message: here.queue.cancel(message.id),
    "reap": _reaped,
    "hold": _held,
    "take": _taken,
    "take that is rolled back": _taken_back,
    "requeue": _requeued,
    "edit": _edited,
    "remove": _removed,
    "purge": lambda here, _: here.queue.purge(),
}
PAIRS = [*itertools.product(EXITS, repeat=2)]


@pytest.mark.parametrize("order", ["fifo", "any"])
@pytest.mark.parametrize("part", range(3))
@pytest.mark.default_on("sqlite")
@pytest.mark.timeout(600)
def test_each_exit_beside_each_other_one(
    order: Any, part: int, service: QueueService, engine: Engine
) -> None:
    """Two of a group leave the two hands that there are: never more are in hand, and none is lost.

    All that is left comes afterwards, however little of it was parked.
    """
    queue = service.create_queue(
        "jobs", group_limit=LIMIT, group_order=order, archive="failed", retry=FixedDelay(0)
    )
    here = Here(queue, service, engine)
    for first, second in PAIRS[part::3]:
        queue.publish_many([Publication(n, group="a") for n in range(5)])
        hands = queue.consume(5)
        # So often that what waits is parked.
        assert [[]] * 3 == [queue.consume(5) for _ in range(3)], (first, second)
        assert LIMIT == len(hands), (first, second)
        for exit_, message in zip((first, second), hands, strict=True):
            try:
                EXITS[exit_](here, message)
            except ClaimLost:
                # In order, a message comes back with one before it.
                assert (order, second) == ("fifo", exit_), (first, second)
            assert _in_hand(here) <= LIMIT, (first, second)
        _drain(here, f"{first}, then {second}")


def _in_hand(here: Here) -> int:
    c = here.queue.table.c
    with here.engine.connect() as connection:
        found = select(c.id).where(c.consumer_id.is_not(None))
        return len(connection.execute(found).all())


def _drain(here: Here, what: str) -> None:
    """All live messages come, never more than the limit allows at once."""
    queue = here.queue
    for claimed in queue.messages(status="claimed").list():
        set_columns(here.engine, queue, claimed.id, lease_expires_at=1)
        here.service.reap()
    queue.messages().unhold()
    queue.messages().reschedule(delay=0)

    def is_empty() -> bool:
        found = queue.consume(5)
        assert len(found) <= LIMIT, what
        queue.ack(found)
        return not queue.messages().count()

    eventually(is_empty, what)


@pytest.mark.parametrize("way", ["where", "kinds", "take"])
@pytest.mark.parametrize("end", ["ack", "release"])
def test_what_fits_a_consumer_waits_for_none_that_does_not(
    service: QueueService,
    engine: Engine,
    make_service: MakeService,
    monkeypatch: pytest.MonkeyPatch,
    *,
    way: str,
    end: str,
) -> None:
    """Without order. What is let out when one ends may be none that this consumer may have."""
    monkeypatch.setattr(group_walk, "_SECONDS_BETWEEN", 0.0)
    jobs = service.create_queue("jobs", group_limit=1, group_order="any")
    kinds = ["b", "b", "c"]
    ids = [jobs.publish(kind, kind=kind, group="a").id for kind in kinds]
    [first] = jobs.consume(1)
    assert ids[0] == first.id
    c = jobs.table.c
    parked = jobs.messages(where=and_(c.parked_at > 0, c.available_at.is_(None)))
    wait_until(lambda: not jobs.consume(9) and 2 == parked.count())
    other = make_service().create_queue("jobs", kinds={"c": str}) if way == "kinds" else jobs
    # It is full: what fits waits, too.
    assert [] == (other.consume(9) if way == "kinds" else jobs.consume(9, where=c.kind == "c"))
    if end == "ack":
        first.ack()
    else:
        first.release()
    if way == "kinds":
        found = other.consume(1)
    elif way == "where":
        found = jobs.consume(1, where=c.kind == "c")
    else:
        with engine.begin() as caller:
            found = jobs.take(1, where=c.kind == "c", connection=caller)
    assert [ids[2]] == [message.id for message in found]
