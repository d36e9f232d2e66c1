"""Edits of live messages: their effects, and no effect on holders and consumers."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, String

from queue_over_sql import ClaimLost, DuplicateKey, PayloadInvalid, Status
from tests.contract.caller_transactions import OPENERS, opened
from tests.contract.queue_state import ARGUMENT_ERRORS, close, ids, live_rows, payloads
from tests.contract.queues.edits import EDITS, LONG_AGO, Edit, of_kind, publish_kinds, unhold
from tests.waiting import consume_exactly

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService


@pytest.fixture
def jobs(service: QueueService) -> Queue:
    """A queue with three levels."""
    return service.create_queue("jobs", priorities=3, lease=60)


def claimed_among_others(jobs: Queue) -> Message:
    """A claimed message; beside it a ready and a delayed one. All are of the kind ``x``."""
    jobs.publish("claimed", kind="x")
    (message,) = jobs.consume()
    jobs.publish("ready", kind="x")
    jobs.publish("delayed", kind="x", delay=3600)
    return message


def state(queue: Queue) -> tuple[int, int, int, int]:
    """``(ready, delayed, claimed, held)``."""
    stats = queue.stats()
    return stats.ready, stats.delayed, stats.claimed, stats.held


def drained(queue: Queue) -> list[Any]:
    """The payloads of all that is due, in the order of their delivery."""
    return payloads(queue.consume(100))


# ---------------------------------------------------------------- states


def test_a_listed_message_says_how_it_stands(jobs: Queue, service: QueueService) -> None:
    """``status`` is what ``messages(status=…)`` finds it by; a consumed one has none."""
    lines = service.create_queue("lines", group_limit=1)
    consumed = claimed_among_others(jobs)
    jobs.publish("held", kind="h")
    of_kind(jobs, "h").hold()
    for n in range(3):
        lines.publish(n, group="g")
    # The others of the group are parked, which is no status of its own.
    (first,) = lines.consume()
    assert [None, None] == [consumed.status, first.status]
    for queue, states in ((jobs, "claimed ready delayed held"), (lines, "claimed ready ready")):
        assert states.split() == [message.status for message in queue.messages().list()]
        for state in Status:
            found = {message.status for message in queue.messages(status=state.value).list()}
            assert found <= {state}, (queue.name, state)
    jobs.reject([consumed], "no")
    assert "rejected" == jobs.archive.messages().list()[0].status


# ---------------------------------------------------------------- counts and holders


def test_edits_count_what_they_did_and_what_they_skipped(jobs: Queue, engine: Engine) -> None:
    """A number that also says how many were left alone; what a consumer holds is untouched."""
    for name, edit in EDITS.items():
        holder = claimed_among_others(jobs)
        before = live_rows(engine, jobs)
        nothing, claimed = edit(of_kind(jobs, "y")), edit(jobs.messages(status="claimed"))
        assert 0 == nothing, name
        assert 0 == nothing.skipped, name
        assert 0 == claimed, name
        assert 1 == claimed.skipped, name
        assert before == live_rows(engine, jobs), name
        edited = edit(of_kind(jobs, "x"))
        assert isinstance(edited, int)
        assert 2 == edited, name
        assert 1 == edited.skipped, name
        assert before[:1] == live_rows(engine, jobs)[:1], name
        holder.extend()
        holder.ack()
        with pytest.raises(ClaimLost):
            holder.ack()
        jobs.purge()


def test_an_edit_reaches_only_what_matches(jobs: Queue) -> None:
    """Status, kind, key and condition all have to hold."""
    claimed_among_others(jobs)
    jobs.publish("keyed", kind="x", key="k")
    jobs.publish("other", kind="y")
    columns = jobs.table.c
    assert 0 == jobs.messages(status="ready", kind="x", key="k", where=columns.priority == 1).hold()
    assert 1 == jobs.messages(status="ready", kind="x", key="k", where=columns.priority == 0).hold()
    assert 1 == jobs.messages(status="delayed", kind="x").remove()
    assert 1 == jobs.messages(status="ready", where=columns.kind == "y").remove()
    assert ["claimed", "ready", "keyed"] == payloads(jobs.messages().list())
    assert (1, 0, 1, 1) == state(jobs)


def test_edits_belong_to_the_callers_transaction(jobs: Queue, engine: Engine) -> None:
    """Unseen before the commit, gone with a rollback, and never committed by themselves."""
    openers = itertools.cycle(OPENERS.values())
    for (name, edit), opener in zip(EDITS.items(), openers, strict=False):
        holder = claimed_among_others(jobs)
        before = live_rows(engine, jobs)
        with opened(opener, engine) as caller:
            assert 2 == edit(of_kind(jobs, "x"), caller)
            assert before == live_rows(engine, jobs), name
            caller.rollback()
            assert before == live_rows(engine, jobs), name
            assert 2 == edit(of_kind(jobs, "x"), caller)
            caller.commit()
        assert before != live_rows(engine, jobs), name
        holder.ack()
        jobs.purge()


def test_an_unhold_belongs_to_the_callers_transaction(jobs: Queue, engine: Engine) -> None:
    """What the transaction itself held is released by it, or by nothing."""
    publish_kinds(jobs, ["a"])
    with engine.connect() as caller:
        assert 1 == of_kind(jobs, "a").hold(connection=caller)
        assert 1 == unhold(of_kind(jobs, "a"), caller)
        assert 1 == of_kind(jobs, "a").hold(connection=caller)
        caller.commit()
        assert 1 == unhold(of_kind(jobs, "a"), caller)
        caller.rollback()
    assert (0, 0, 0, 1) == state(jobs)


def test_an_edit_of_many_is_one_act(jobs: Queue) -> None:
    """More than any batch: each verb acts on all of them at once and counts them."""
    jobs.load(range(1200))
    every = jobs.messages()
    assert 1200 == every.hold()
    assert 1200 == every.unhold()
    assert 1200 == every.prioritize(priority=2)
    assert 1200 == every.prioritize(front=True)
    assert list(range(50)) == payloads(jobs.consume(50))
    removed = every.remove()
    assert 1150 == removed
    assert 50 == removed.skipped


# ---------------------------------------------------------------- what each verb does


def test_removed_messages_are_gone_and_their_keys_are_free(jobs: Queue) -> None:
    """Neither delivered nor archived."""
    jobs.publish("a", key="k")
    assert 1 == jobs.messages(key="k").remove()
    assert 0 == jobs.messages().count()
    assert 0 == jobs.stats().archived
    assert "created" == jobs.publish("b", key="k").outcome


def test_reschedule_moves_the_due_time_and_nothing_else(jobs: Queue) -> None:
    """At an instant exactly, or after a delay; when it was first due stays a fact."""
    jobs.publish("a", kind="a")
    (before,) = jobs.messages().list()
    later = before.scheduled_at + timedelta(hours=2)
    assert 1 == of_kind(jobs, "a").reschedule(at=later)
    (moved,) = jobs.messages(status="delayed").list()
    assert later == moved.available_at
    assert before.scheduled_at == moved.scheduled_at
    assert before.published_at == moved.published_at
    assert 1 == of_kind(jobs, "a").reschedule(delay=timedelta(hours=1))
    (again,) = jobs.messages(status="delayed").list()
    assert close(again.available_at, before.scheduled_at + timedelta(hours=1))


def test_rescheduled_messages_are_due_when_it_says_and_held_no_more(jobs: Queue) -> None:
    """The earliest is the oldest, a delay of nothing is now; a new time ends a hold."""
    publish_kinds(jobs, ["first"])
    publish_kinds(jobs, ["now", "past", "later"], delay=3600)
    assert 2 == jobs.messages(where=jobs.table.c.kind.in_(["past", "later"])).hold()
    assert 1 == of_kind(jobs, "past").reschedule(at=LONG_AGO)
    assert 1 == of_kind(jobs, "now").reschedule(delay=0)
    assert 1 == of_kind(jobs, "later").reschedule(delay=60)
    messages = consume_exactly(jobs, 3)
    assert ["past", "first", "now"] == payloads(messages)
    assert LONG_AGO == messages[0].available_at
    assert (0, 1, 3, 0) == state(jobs)


def test_attempts_and_reason_survive_edits(jobs: Queue) -> None:
    """A retry that is brought forward is still the second attempt."""
    jobs.publish("a", kind="a")
    jobs.consume()[0].nack("paper jam", delay=3600)
    assert 1 == of_kind(jobs, "a").hold()
    assert 1 == of_kind(jobs, "a").prioritize(priority=2)
    assert 1 == of_kind(jobs, "a").reschedule(delay=0)
    (message,) = consume_exactly(jobs, 1)
    assert 2 == message.attempt
    assert 2 == message.priority
    assert "paper jam" == message.last_error


def test_a_message_is_allowed_other_attempts(jobs: Queue) -> None:
    """More than its publisher allowed; what a consumer holds stays as it is."""
    published = jobs.publish("a", max_attempts=1).id
    assert 1 == jobs.messages().set_max_attempts(2)
    (message,) = jobs.consume()
    assert (0, 1) == ((edited := jobs.messages().set_max_attempts(9)), edited.skipped)
    message.nack("no", delay=0)
    (message,) = jobs.consume()
    assert (published, 2, 2) == (message.id, message.attempt, message.max_attempts)
    message.nack("no", delay=0)
    assert 0 == jobs.messages().count()
    for wrong in (0, 2**31, "2"):
        with pytest.raises(ARGUMENT_ERRORS):
            jobs.messages().set_max_attempts(wrong)  # type: ignore[arg-type]


def test_a_held_message_is_delivered_to_nobody(
    jobs: Queue, make_service: MakeService, engine: Engine
) -> None:
    """Not by consume, not by exchange, not by take, on no service; its key stays taken."""
    jobs.publish("held", key="k", kind="x")
    jobs.publish("done")
    assert 1 == of_kind(jobs, "x").hold()
    other = make_service().queue("jobs")
    (message,) = other.consume(2)
    assert [] == other.exchange(message)
    assert [] == jobs.consume(where=jobs.table.c.kind == "x")
    with engine.begin() as caller:
        assert [] == jobs.take(connection=caller)
    with pytest.raises(DuplicateKey):
        jobs.publish("again", key="k")
    assert (0, 0, 0, 1) == state(jobs)


def test_unhold_gives_back_the_first_due_time(jobs: Queue) -> None:
    """Only held messages; each returns to the place and the time it was published for."""
    publish_kinds(jobs, ["a", "b", "c"])
    jobs.publish("later", kind="later", delay=3600)
    retried = jobs.consume()[0]
    retried.nack(delay=3600)
    assert 2 == jobs.messages(where=jobs.table.c.kind.in_(["b", "later"])).hold()
    assert 2 == jobs.messages().unhold()
    assert (2, 2, 0, 0) == state(jobs)
    (later,) = of_kind(jobs, "later").list()
    assert later.scheduled_at == later.available_at
    assert ["b", "c"] == drained(jobs)


# ---------------------------------------------------------------- priorities


def test_another_priority_is_served_at_its_turn(jobs: Queue) -> None:
    """Changed to any level, up or down, messages keep their time within it."""
    publish_kinds(jobs, ["a", "b", "c", "d"], priority=1)
    assert 1 == of_kind(jobs, "c").prioritize(priority=0)
    assert 1 == of_kind(jobs, "a").prioritize(priority=2)
    assert ["c", "b", "d", "a"] == drained(jobs)


def test_messages_in_front_keep_their_order_by_id(jobs: Queue) -> None:
    """Whatever their times were; and the last call comes before the earlier ones."""
    publish_kinds(jobs, ["a"])
    publish_kinds(jobs, ["vip"], delay=3600)
    publish_kinds(jobs, ["b", "vip", "c", "vip", "last"])
    numbers = ids(of_kind(jobs, "vip").list())
    assert 3 == of_kind(jobs, "vip").prioritize(front=True)
    assert 1 == of_kind(jobs, "last").prioritize(front=True)
    messages = jobs.consume(10)
    assert ["last", "vip", "vip", "vip", "a", "b", "c"] == payloads(messages)
    assert numbers == ids(messages[1:4])


def test_front_stays_in_its_priority(jobs: Queue) -> None:
    """First among the equals, and behind all that is more urgent."""
    for level in (2, 1, 0):
        publish_kinds(jobs, [f"old {level}", "vip"], priority=level)
    assert 3 == of_kind(jobs, "vip").prioritize(front=True)
    messages = jobs.consume(10)
    assert ["vip", "old 0", "vip", "old 1", "vip", "old 2"] == payloads(messages)
    assert [0, 0, 1, 1, 2, 2] == [message.priority for message in messages]


def test_front_makes_a_delayed_message_due(jobs: Queue) -> None:
    """Also where there is nothing due to be in front of: nothing, or what nobody may have now."""
    others: dict[str, Callable[[], object]] = {
        "none": jobs.purge,
        "delayed": lambda: jobs.messages().reschedule(delay=60),
        "held": lambda: jobs.messages().hold(),
        "claimed": jobs.consume,
    }
    for name, put_aside in others.items():
        publish_kinds(jobs, ["other"])
        put_aside()
        publish_kinds(jobs, ["vip", "vip"], delay=3600)
        numbers = ids(of_kind(jobs, "vip").list())
        assert 2 == of_kind(jobs, "vip").prioritize(front=True)
        assert numbers == ids(jobs.consume(5)), name
        jobs.purge(claimed=True)


# ---------------------------------------------------------------- arguments


BAD: dict[str, Edit] = {
    "neither": lambda found: found.reschedule(),
    "both": lambda found: found.reschedule(at=LONG_AGO, delay=1),
    "naive": lambda found: found.reschedule(at=LONG_AGO.replace(tzinfo=None)),
    "negative": lambda found: found.reschedule(delay=-1),
    "no level": lambda found: found.prioritize(),
    "level and front": lambda found: found.prioritize(priority=1, front=True),
    "level too high": lambda found: found.prioritize(priority=3),
    "level below zero": lambda found: found.prioritize(priority=-1),
    "level is a flag": lambda found: found.prioritize(priority=True),
}


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses them")
def test_bad_arguments_change_nothing(jobs: Queue, engine: Engine) -> None:
    """They are the caller's mistake, also when nothing matches."""
    publish_kinds(jobs, ["a"])
    before = live_rows(engine, jobs)
    for name, edit in BAD.items():
        for selection in (jobs.messages(), of_kind(jobs, "none")):
            try:
                edit(selection)
            except ARGUMENT_ERRORS:
                continue
            pytest.fail(f"accepted: {name}")
    assert before == live_rows(engine, jobs)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python decides")
def test_each_side_has_only_verbs_that_make_sense(jobs: Queue) -> None:
    """Finished messages cannot be held or moved, live ones are in the queue already."""
    edits = {"reschedule", "prioritize", "hold", "unhold"}
    assert not edits & set(dir(jobs.archive.messages()))
    assert edits <= set(dir(jobs.messages()))
    assert not hasattr(jobs.messages(), "requeue")


# ---------------------------------------------------------------- payload and own columns


def test_the_content_of_one_message_is_changed_by_its_id(
    service: QueueService, engine: Engine
) -> None:
    """What a consumer holds stays; so does everything if the caller's transaction rolls back."""
    own: list[Column[Any]] = [Column("shop", String(20), nullable=False), Column("sum", Integer)]
    queue = service.create_queue("orders", columns=own)
    first, second = (
        queue.publish(name, key=name, columns={"shop": "north", "sum": 1}).id for name in "ab"
    )
    assert 1 == queue.edit(first, payload={"new": "Žito"}, columns={"sum": None})
    with opened(OPENERS["connection"], engine) as caller:
        assert 1 == queue.edit(second, columns={"shop": "south"}, connection=caller)
        caller.rollback()
    one, two = queue.messages().list()
    assert ({"new": "Žito"}, "a", {"shop": "north", "sum": None}) == (
        one.payload,
        one.key,
        one.columns,
    )
    assert ("b", {"shop": "north", "sum": 1}) == (two.payload, two.columns)
    (held,) = queue.consume()
    edited = queue.edit(held.id, payload="late")
    assert (0, 1) == (edited, edited.skipped)
    edited = queue.edit(10**6, payload="nobody")
    assert (0, 0) == (edited, edited.skipped)
    refused: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"payload": object()}, PayloadInvalid),
        ({"columns": {"shop": None}}, TypeError),
        ({"columns": {"nowhere": 1}}, TypeError),
        ({}, ValueError),
    ]
    for change, error in refused:
        with pytest.raises(error):
            queue.edit(second, **change)
    held.ack()
    assert ["b"] == drained(queue)
