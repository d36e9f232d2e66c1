"""Edits beside busy consumers: the very next claim sees them, and they block nobody."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import Publication
from queue_over_sql.claiming.claimer import Claimer
from queue_over_sql.claiming.group_walk import GroupWalk
from queue_over_sql.claiming.low_watermark import LowWatermark
from tests.contract.queue_state import has_json_paths, ids
from tests.contract.queues.edits import (
    EDITS,
    LONG_AGO,
    Edit,
    busy_consumer,
    of_kind,
    publish_kinds,
    unhold,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import LiveSelection, Message, Queue
    from queue_over_sql.testing.plugin import MakeService, TestDatabase

PREPARED: dict[str, tuple[dict[str, Any], Edit]] = {
    "rescheduled": ({"delay": 3600}, lambda found: found.reschedule(at=LONG_AGO)),
    "in front": ({"delay": 3600}, lambda found: found.prioritize(front=True)),
    "unheld": ({"at": LONG_AGO}, unhold),
    "more urgent": ({"at": LONG_AGO, "priority": 1}, lambda found: found.prioritize(priority=0)),
}
NEXT: dict[str, Callable[[Queue, Message], list[Message]]] = {
    "consume": lambda queue, _: queue.consume(),
    "batch": lambda queue, _: queue.consume(3),
    "exchange": lambda queue, message: queue.exchange(message),
}


# An exchange on one level and one on several are different operations; each way of editing meets
# both a claim and an exchange.
@pytest.mark.parametrize(
    ("by", "claims"),
    [
        ("itself", ["consume", "exchange", "batch", "consume"]),
        ("another", ["exchange", "consume", "batch", "exchange"]),
    ],
)
def test_an_edit_is_seen_by_the_very_next_claim(
    make_service: MakeService, by: str, claims: list[str]
) -> None:
    """A consumer in the middle of a long queue, whose mark lies above the place, looks there."""
    service = make_service()
    other = service if by == "itself" else make_service()
    service.create_queue("flat")
    service.create_queue("levels", priorities=2)
    for (name, (options, edit)), claim in zip(PREPARED.items(), claims, strict=True):
        where = "levels" if "priority" in options else "flat"
        consumer, editor = service.queue(where), other.queue(where)
        publish_kinds(editor, ["late"], **options)
        if name == "unheld":
            of_kind(editor, "late").hold()
        busy_consumer(consumer, editor)
        (message,) = consumer.consume()
        assert 1 == edit(of_kind(editor, "late")), name
        found = NEXT[claim](consumer, message)
        assert "late" == found[0].payload, (name, claim)
        editor.purge(claimed=True)


def test_front_passes_what_came_back_behind_the_mark(make_service: MakeService) -> None:
    """Before a message that another consumer gave back, which this one need not have seen yet."""
    consumer, other = make_service().create_queue("jobs"), make_service().queue("jobs")
    publish_kinds(other, ["restored"], at=LONG_AGO)
    held = other.consume()
    busy_consumer(consumer, other)
    publish_kinds(other, ["vip", "vip"])
    other.release(held)
    assert 2 == of_kind(other, "vip").prioritize(front=True)
    found = [consumer.consume()[0].payload for _ in range(3)]
    assert ["vip", "vip", "restored"] == found


def test_an_edit_of_a_transaction_is_seen_once_it_is_committed(
    make_service: MakeService, engine: Engine, database: TestDatabase
) -> None:
    """Claims made between the edit and its commit do not use the news up."""
    consumer, editor = make_service().create_queue("jobs"), make_service().queue("jobs")
    publish_kinds(editor, ["late"], delay=3600)
    busy_consumer(consumer, editor)
    # InnoDB's default keeps a lock on every row that an edit looked at.
    committed = database.engine in {"mariadb", "mysql"}
    level = {"isolation_level": "READ COMMITTED"} if committed else {}
    with engine.execution_options(**level).begin() as caller:
        assert 1 == of_kind(editor, "late").reschedule(at=LONG_AGO, connection=caller)
        # Where there is one writer, or no SKIP LOCKED, nobody can claim meanwhile.
        if database.engine != "sqlite" and has_json_paths(engine):
            assert ["load", "load"] == [consumer.consume()[0].payload for _ in range(2)]
    assert "late" == consumer.consume()[0].payload


@pytest.mark.engines("sqlite")
@pytest.mark.threads("threads share what their service knows")
def test_an_edit_is_seen_while_another_thread_learns_of_it(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the new count of edits and the mark that is based on it no claim begins."""
    consumer, editor = make_service().create_queue("jobs"), make_service().queue("jobs")
    publish_kinds(editor, ["late"], delay=3600)
    busy_consumer(consumer, editor)
    beside: list[Any] = []
    other = threading.Thread(target=lambda: beside.extend(consumer.consume()))
    forget, meanwhile = GroupWalk.forget_limits, list[Any]()

    def learning(walk: GroupWalk) -> None:
        if other.ident is None:
            other.start()
            # It waits for this thread, so that this takes as long as it may.
            other.join(1.0)
            meanwhile.extend(message.payload for message in beside)
        forget(walk)

    monkeypatch.setattr(GroupWalk, "forget_limits", learning)
    # However slow this machine is, no full look is due.
    monkeypatch.setattr(LowWatermark, "_pause", lambda _: 1000.0)
    assert 1 == of_kind(editor, "late").reschedule(at=LONG_AGO)
    found = consumer.consume()
    other.join()
    assert {"late", "load"} == {message.payload for message in [*found, *beside]}
    assert "load" not in meanwhile


@pytest.mark.engines("sqlite")
@pytest.mark.threads("threads share what their service knows")
def test_an_edit_is_seen_while_another_thread_asks_for_the_first_time(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its count, which comes late, does not replace the one that the mark is based on."""
    consumer, editor = make_service().create_queue("jobs"), make_service().queue("jobs")
    publish_kinds(editor, ["late"], delay=3600)
    beside: list[Any] = []
    first = threading.Thread(target=lambda: beside.extend(consumer.consume()))
    asks, edited = threading.Event(), threading.Event()
    count: Callable[[Claimer], int] = Claimer._edit_count

    def slowly(claimer: Claimer) -> int:
        if threading.current_thread() is first:
            asks.set()
            assert edited.wait(30)
        return count(claimer)

    monkeypatch.setattr(Claimer, "_edit_count", slowly)
    first.start()
    assert asks.wait(30)
    busy_consumer(consumer, editor)
    # However slow this machine is, no full look is due.
    monkeypatch.setattr(LowWatermark, "_pause", lambda _: 1000.0)
    assert 1 == of_kind(editor, "late").reschedule(at=LONG_AGO)
    edited.set()
    first.join()
    assert "late" == beside[0].payload


def disturb(selections: list[LiveSelection], over: threading.Event) -> int:
    """Edit again and again until it is over; how many were removed."""
    removed = 0
    while not over.is_set():
        for number, found in enumerate(selections):
            found.hold()
            found.reschedule(at=LONG_AGO + timedelta(seconds=number))
            found.prioritize(priority=number % 3)
            found.prioritize(front=True)
            found.hold()
            found.unhold()
        removed += selections[0].remove()
    return removed


def work(queue: Queue, over: threading.Event) -> list[int]:
    """Consume and ack until it is over and nothing is left; the ids in hand."""
    mine: list[int] = []
    while True:
        ending = over.is_set()
        messages = queue.consume(3)
        queue.ack(messages)
        mine += ids(messages)
        if ending and not messages:
            return mine


@pytest.mark.default_on("sqlite", "postgresql", "mysql")
def test_edits_and_consumers_never_disturb_each_other(make_service: MakeService) -> None:
    """Every message is delivered once or removed, never both; no holder loses its claim."""
    editor = make_service().create_queue("jobs", priorities=3)
    consumers = [make_service().queue("jobs") for _ in range(2)]
    selections = [of_kind(editor, f"k{n}") for n in range(4)]
    over = threading.Event()
    published: list[int] = []
    with ThreadPoolExecutor(3) as pool:
        edits = pool.submit(disturb, selections, over)
        working = [pool.submit(work, queue, over) for queue in consumers]
        try:
            for _ in range(40):
                published += publish_kinds(editor, [f"k{n}" for n in range(4)], priority=1)
        finally:
            over.set()
        removed = edits.result(60)
        delivered = [number for one in working for number in one.result(60)]
    delivered += ids(editor.consume(1000))
    assert len(delivered) == len(set(delivered))
    assert set(delivered) <= set(published)
    assert len(published) == len(delivered) + removed
    assert 0 == editor.stats().held


def test_an_exchange_serves_no_later_priority_first(make_service: MakeService) -> None:
    """An edit in the first level does not let an exchange pass over it."""
    consumer = make_service().create_queue("jobs", priorities=2)
    editor = make_service().queue("jobs")
    editor.publish_many([Publication(f"high{n}") for n in range(30)])
    editor.publish_many([Publication(f"low{n}", priority=1) for n in range(10)])
    editor.publish("vip", kind="late", delay=3600)
    held = consumer.consume(5)
    for _ in range(2):
        held = consumer.exchange(held, 5)
    assert 1 == of_kind(editor, "late").prioritize(front=True)
    found = consumer.exchange(held, 5)
    assert "vip" == found[0].payload
    assert all(message.priority == 0 for message in found)


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
@pytest.mark.threads("the locks are the database's")
def test_an_edit_that_has_not_ended_keeps_nobody_from_other_messages(
    make_service: MakeService, engine: Engine
) -> None:
    """Neither consumers nor publishers, at the isolation that the caller's engine has by default.

    InnoDB locks every row that an UPDATE reads. So an edit of one message hid all others.
    """
    service = make_service()
    for name, edit in {**EDITS, "unhold": unhold}.items():
        queue = service.create_queue(name, priorities=2)
        publish_kinds(queue, ["first", "chosen", "last"])
        if name == "unhold":
            of_kind(queue, "chosen").hold()
        with engine.connect() as connection:
            assert 1 == edit(of_kind(queue, "chosen"), connection)
            assert ["first", "last"] == [message.payload for message in queue.consume(3)], name
            queue.publish("more")
            assert ["more"] == [message.payload for message in queue.consume()], name
            connection.rollback()
        assert ["chosen"] == [message.payload for message in queue.messages(kind="chosen").list()]
