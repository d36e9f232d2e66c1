"""``unique="waiting"``: a key is taken only while a message with it waits."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer

from queue_over_sql import (
    DatabaseUnavailable,
    DuplicateKey,
    FixedDelay,
    Publication,
    QueueSchemaMismatch,
)
from queue_over_sql.schema.queue_tables import OLDEST_BESIDE, OLDEST_BESIDE_WAITING
from tests.contract.caller_transactions import OPENERS, opened
from tests.contract.queue_state import (
    add_effect,
    counts,
    effects,
    isolates_snapshots,
    live_rows,
    payloads,
)
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.settings import Unique
    from queue_over_sql.testing.plugin import MakeService
    from queue_over_sql.values.states import OnConflict


def make_jobs(service: QueueService, **settings: Any) -> Queue:
    """A queue in which one message of a key may wait while others are in work."""
    wanted = {"unique": "waiting", "archive": "all", "retry": FixedDelay(0), **settings}
    return service.create_queue("jobs", **wanted)


@pytest.fixture
def jobs(service: QueueService) -> Queue:
    """Such a queue."""
    return make_jobs(service)


@pytest.mark.engines("sqlite")
def test_a_queue_that_is_made_anew_may_have_the_other_rule(make_service: MakeService) -> None:
    """Services that had it open publish by its new rule, and not by the constraint of the old."""
    services = [make_service() for _ in range(2)]
    for rule, in_work in [("waiting", "created"), ("live", "skipped"), ("waiting", "created")]:
        services[0].drop_queue("jobs")
        queues = [make_jobs(service, unique=rule) for service in services]
        queues[1].refresh()
        for queue in queues:
            assert "created" == queue.publish("x", key="k", on_conflict="skip").outcome
            assert 1 == len(queue.consume())
            assert in_work == queue.publish("y", key="k", on_conflict="skip").outcome, rule
            queue.purge(claimed=True)


def one_by_one(queue: Queue, payload: Any, way: OnConflict) -> tuple[str, int]:
    published = queue.publish(payload, key="k", on_conflict=way)
    return str(published.outcome), published.id


def in_a_batch(queue: Queue, payload: Any, way: OnConflict) -> tuple[str, int]:
    items = ["plain", Publication(payload, key="k"), Publication("other", key="other")]
    published = queue.publish_many(items, on_conflict=way)
    return str(published[1].outcome), published[1].id


PUBLISHES: dict[str, Callable[[Queue, Any, OnConflict], tuple[str, int]]] = {
    "publish": one_by_one,
    "publish_many": in_a_batch,
}
STATES: dict[str, Callable[[Queue, int], object]] = {
    "ready": lambda _, __: None,
    "delayed": lambda queue, _: queue.messages(key="k").reschedule(delay=600),
    "held": lambda queue, _: queue.messages(key="k").hold(),
}


def test_a_message_that_waits_keeps_its_key_taken(jobs: Queue) -> None:
    """Ready, delayed or held; for one message, for a batch, and for a load."""
    for name, publish in PUBLISHES.items():
        for state, move in STATES.items():
            first = jobs.publish("first", key="k")
            move(jobs, first.id)
            with pytest.raises(DuplicateKey) as caught:
                publish(jobs, "second", "raise")
            assert first.id == caught.value.id, (name, state)
            with pytest.raises(DuplicateKey):
                jobs.load([Publication("second", key="k")])
            assert ("skipped", first.id) == publish(jobs, "second", "skip"), (name, state)
            assert ["first"] == payloads(jobs.messages(key="k").list())
            assert ("replaced", first.id) == publish(jobs, "second", "replace"), (name, state)
            assert ["second"] == payloads(jobs.messages(key="k").list())
            jobs.purge()


def test_one_message_waits_while_others_are_in_work(jobs: Queue) -> None:
    """The claim frees the key, however the next one is published; all settle with their key."""
    ways: list[Callable[[str], str]] = [
        lambda n: one_by_one(jobs, n, "raise")[0],
        lambda n: one_by_one(jobs, n, "skip")[0],
        lambda n: one_by_one(jobs, n, "replace")[0],
        lambda n: in_a_batch(jobs, n, "raise")[0],
        lambda n: in_a_batch(jobs, n, "skip")[0],
        lambda n: "created" if jobs.load([Publication(n, key="k")]) else "",
    ]
    held: list[Message] = []
    for number, way in enumerate(ways):
        assert "created" == way(str(number)), number
        assert ("skipped", jobs.messages(key="k", status="ready").list()[0].id) == one_by_one(
            jobs, "late", "skip"
        )
        held += jobs.consume(10)
        jobs.ack([message for message in held if message.key != "k"])
        held = [message for message in held if message.key == "k"]
    assert [str(number) for number in range(len(ways))] == payloads(held)
    assert {"k"} == {message.key for message in jobs.messages().list()}
    jobs.ack(held)
    assert len(ways) == jobs.archive.messages(key="k").count()
    assert "created" == one_by_one(jobs, "again", "raise")[0]


RETURNS: dict[str, Callable[[QueueService, Queue, Message], object]] = {
    "nack": lambda _, __, message: message.nack("bad", delay=0),
    "release": lambda _, __, message: message.release(),
    "batch release": lambda _, queue, message: queue.release([message]),
}


def test_a_message_that_comes_back_stays_beside_the_one_that_waits(
    service: QueueService, jobs: Queue
) -> None:
    """Neither is lost or refused; the older one runs first, and both keep the key taken."""
    for name, give_back in RETURNS.items():
        old = jobs.publish("old", key="k")
        (message,) = jobs.consume()
        new = jobs.publish("new", key="k")
        give_back(service, jobs, message)
        assert [old.id, new.id] == [m.id for m in jobs.messages(key="k").list()], name
        # Of two that wait, the one that was published last is replaced.
        assert ("skipped", new.id) == one_by_one(jobs, "third", "skip"), name
        assert ("replaced", new.id) == one_by_one(jobs, "newer", "replace"), name
        again = consume_exactly(jobs, 2)
        assert {"old", "newer"} == set(payloads(again)), name
        jobs.ack(again)
        assert 0 == jobs.messages().count()


def test_a_release_runs_before_what_waits(jobs: Queue) -> None:
    """It has its old place, as it would without a key."""
    jobs.publish("old", key="k")
    (message,) = jobs.consume()
    jobs.publish("new", key="k")
    message.release()
    assert ["old", "new"] == payloads(consume_exactly(jobs, 2))


def test_the_reaper_brings_back_what_another_has_the_key_of(
    service: QueueService, jobs: Queue
) -> None:
    """An expired lease returns beside the message that waits, and neither is refused."""
    jobs.publish("old", key="k")
    (lost,) = jobs.consume(lease=0.05)
    jobs.publish("new", key="k")
    wait_until(lambda: service.reap() is not None and jobs.stats().ready == 2)
    again = consume_exactly(jobs, 2)
    assert {("old", "k"), ("new", "k")} == {(m.payload, m.key) for m in again}
    assert lost.id in {message.id for message in again}


def test_a_message_that_came_back_keeps_the_key_taken_alone(jobs: Queue) -> None:
    """Although another one had taken the key meanwhile, and is in work or gone."""
    for name, publish in PUBLISHES.items():
        for ends in (False, True):
            first = jobs.publish("first", key="k")
            (message,) = jobs.consume()
            jobs.publish("second", key="k")
            (second,) = jobs.consume()
            message.nack("bad", delay=600)
            if ends:
                second.ack()
            with pytest.raises(DuplicateKey) as caught:
                publish(jobs, "third", "raise")
            assert first.id == caught.value.id, (name, ends)
            with pytest.raises(DuplicateKey):
                jobs.load([Publication("third", key="k")])
            assert ("skipped", first.id) == publish(jobs, "third", "skip"), (name, ends)
            assert ("replaced", first.id) == publish(jobs, "third", "replace"), (name, ends)
            waiting = jobs.messages(key="k", status="ready").list()
            assert [(first.id, "third")] == [(m.id, m.payload) for m in waiting], (name, ends)
            assert ("unchanged", first.id) == publish(jobs, "third", "replace"), (name, ends)
            jobs.purge(claimed=True)


def test_a_value_of_ones_own_column_is_compared_with_that_of_the_message(
    service: QueueService,
) -> None:
    """Also of a message that came back without the key."""
    queue = make_jobs(service, columns=[Column("tenant", Integer)])
    publish = partial(queue.publish, 1, key="k", on_conflict="replace")
    publish(columns={"tenant": 1})
    (first,) = queue.consume()
    publish(columns={"tenant": 1})
    (second,) = queue.consume()
    first.release()
    second.ack()
    assert "unchanged" == publish(columns={"tenant": 1}).outcome
    assert "replaced" == publish(columns={"tenant": 2}).outcome
    assert [2] == [m.columns["tenant"] for m in queue.messages().list()]


def test_a_replace_does_not_touch_what_is_in_work(jobs: Queue) -> None:
    """Its holder keeps the claim, and the new content runs after it."""
    jobs.publish("old", key="k")
    (message,) = jobs.consume()
    assert "created" == one_by_one(jobs, "new", "replace")[0]
    message.extend()
    message.ack()
    assert ["new"] == payloads(consume_exactly(jobs, 1))


def test_a_delay_and_a_replace_debounce(jobs: Queue) -> None:
    """Each publish puts the one message off; while it runs the next one waits for its turn."""

    def changed(number: int, delay: float) -> tuple[str, int]:
        published = jobs.publish(number, key="k", delay=delay, on_conflict="replace")
        return str(published.outcome), published.id

    outcome, first = changed(1, 60)
    assert "created" == outcome
    [before] = jobs.messages().list()
    assert ("replaced", first) == changed(2, 120)
    [after] = jobs.messages().list()
    assert before.available_at is not None
    assert after.available_at is not None
    assert (after.available_at - before.available_at).total_seconds() > 55
    assert [] == jobs.consume()
    assert ("replaced", first) == changed(3, 0.05)
    [running] = jobs.consume(wait=10)
    assert 3 == running.payload
    outcome, second = changed(4, 60)
    assert "created" == outcome
    assert ("replaced", second) == changed(5, 0)
    running.ack()
    [last] = jobs.consume(wait=10)
    assert (5, second) == (last.payload, last.id)


def test_other_ways_to_publish(service: QueueService, jobs: Queue) -> None:
    """Topics, requeue, and the handler that publishes its own key and acks in one transaction."""
    topic = service.create_topic("news")
    topic.subscribe("jobs")
    send = partial(topic.publish, routing_key="a", key="k", on_conflict="skip")
    assert ["created", "skipped"] == [str(send(n)[0].outcome) for n in range(2)]
    (first,) = jobs.consume()
    assert ["created", "skipped"] == [str(send(n)[0].outcome) for n in range(2)]
    first.ack()
    with pytest.raises(DuplicateKey):
        jobs.archive.messages(key="k").requeue()
    (second,) = jobs.consume()
    assert 1 == jobs.archive.messages(key="k").requeue()
    assert 1 == jobs.stats().ready
    second.ack()


# ---------------------------------------------------------------- transactions of callers


def test_in_the_callers_transaction(jobs: Queue, effects_engine: Engine) -> None:
    """A rollback leaves the key to the message in work; a commit lets the new one wait."""
    for number, opener in enumerate(OPENERS.values()):
        jobs.publish("old", key="k")
        (message,) = jobs.consume()
        before = live_rows(effects_engine, jobs)
        with opened(opener, effects_engine) as caller:
            jobs.publish("lost", key="k", connection=caller)
            caller.rollback()
        assert before == live_rows(effects_engine, jobs)
        with opened(opener, effects_engine) as caller:
            add_effect(caller, number)
            jobs.publish("new", key="k", connection=caller)
            with pytest.raises(DuplicateKey):
                jobs.publish("newer", key="k", connection=caller)
            with pytest.raises(DuplicateKey):
                jobs.publish_many(["x", Publication("newer", key="k")], connection=caller)
            message.ack(connection=caller)
            caller.commit()
        assert ["new"] == payloads(jobs.messages().list())
        jobs.purge()


def test_a_claim_after_the_callers_transaction_began_counts(
    jobs: Queue, effects_engine: Engine
) -> None:
    """A snapshot that is older than the claim does not hide it, or the publish is refused."""
    jobs.publish("old", key="k")
    with effects_engine.connect() as caller:
        assert [] == caller.execute(effects.select()).all()
        (message,) = jobs.consume()
        publish = partial(jobs.publish, "new", key="k", connection=caller)
        if isolates_snapshots(caller):
            with pytest.raises(DatabaseUnavailable):
                publish()
            caller.rollback()
        assert "created" == publish().outcome
        caller.commit()
    message.ack()
    assert ["new"] == payloads(consume_exactly(jobs, 1))


@pytest.mark.engines("postgresql", "mysql", "mariadb", "h2")
def test_open_transactions_with_new_keys_do_not_wait(jobs: Queue, effects_engine: Engine) -> None:
    """A look for messages of a key locks no place in the index that others need."""
    with effects_engine.connect() as first, effects_engine.connect() as second:
        for key, caller in (("a", first), ("c", second), ("b", first), ("d", second)):
            jobs.publish("new", key=key, connection=caller)
            jobs.publish_many([Publication("new", key=key * 2)], connection=caller)
        first.commit()
        second.commit()
    assert 8 == jobs.stats().ready


# ---------------------------------------------------------------- settings


def test_it_is_chosen_when_the_queue_is_created(make_service: MakeService, engine: Engine) -> None:
    """Another choice later is refused, and other services open the queue with what it has."""
    service, other = make_service(), make_service()
    assert "live" == service.create_queue("usual").settings.unique
    make_jobs(service)
    seen = other.queue("jobs")
    assert "waiting" == seen.settings.unique
    assert "waiting" == other.create_queue("jobs", lease=30).settings.unique
    choices: dict[str, Unique] = {"jobs": "live", "usual": "waiting"}
    for name, unique in choices.items():
        with pytest.raises(QueueSchemaMismatch, match=f"{unique!r} was requested"):
            other.create_queue(name, unique=unique)
    refused: list[dict[str, Any]] = [
        {"dedup_window": 5, "unique": "waiting"},
        {"unique": "always"},
    ]
    for settings in refused:
        with pytest.raises(ValueError, match="unique"):
            service.create_queue("more", **settings)
    with pytest.raises(ValueError, match="dedup_window"):
        service.create_queue("jobs", dedup_window=5)
    seen.publish("x", key="k")
    (message,) = seen.consume()
    assert "created" == seen.publish("y", key="k").outcome
    message.ack()
    with engine.connect() as connection:
        wanted = "SELECT name, schema_release FROM queue_over_sql_queues"
        said = {str(row[0]): row[1] for row in connection.exec_driver_sql(wanted)}
    oldest = {name: json.loads(text)["oldest"] for name, text in said.items()}
    assert {"jobs": OLDEST_BESIDE_WAITING, "usual": OLDEST_BESIDE} == oldest


def test_the_column_is_not_one_of_a_users(service: QueueService) -> None:
    """The name is taken in such a queue, and free in others."""
    columns = [Column("key_released", Integer)]
    with pytest.raises(ValueError, match="key_released"):
        make_jobs(service, columns=columns)
    queue = service.create_queue("usual", columns=columns)
    queue.publish("x", key="k", columns={"key_released": 3})
    assert "skipped" == queue.publish("y", key="k", on_conflict="skip").outcome


# ---------------------------------------------------------------- at the same moment

WAYS: tuple[OnConflict, ...] = ("raise", "skip", "replace")
KEYS = ("a", "b", "c")


def publish_all(queue: Queue, rounds: int, way: OnConflict) -> Counter[str]:
    """Publish each key again and again; how often each was created."""
    created: Counter[str] = Counter()
    for number in range(rounds):
        key = KEYS[number % len(KEYS)]
        try:
            if number % 5:
                outcome = queue.publish(number, key=key, on_conflict=way).outcome
            else:
                items = [Publication(number, key=key)]
                outcome = queue.publish_many(items, on_conflict=way)[0].outcome
        except DuplicateKey:
            continue
        created[key] += outcome == "created"
    return created


def settle_all(queue: Queue, over: threading.Event, *, returns: bool) -> int:
    """Claim and settle whatever comes, until it is over; how many were acknowledged."""
    turn = acked = 0
    while True:
        ending = over.is_set()
        messages = queue.consume(2)
        if ending and not messages:
            return acked
        turn += 1
        if returns and turn % 3 == 0:
            queue.nack(messages, error="bad", delay=0)
        elif returns and turn % 3 == 1:
            queue.release(messages)
        else:
            queue.ack(messages)
            acked += len(messages)


def most_waiting(queue: Queue, over: threading.Event) -> int:
    """The largest number of messages of one key that waited at one moment."""
    most = 0
    while not over.is_set():
        found = Counter(message.key for message in queue.messages(status="ready").list())
        most = max([most, *found.values()])
    return most


@pytest.mark.default_on("sqlite", "postgresql", "mariadb")
@pytest.mark.parametrize("returns", [False, True], ids=["acks", "returns"])
def test_publishers_and_consumers_at_once(make_service: MakeService, *, returns: bool) -> None:
    """Each message that was created is done once, and while none returns only one of a key waits.

    No claim, settle or publish fails.
    """
    queues = [make_jobs(make_service(), max_attempts=10_000) for _ in range(5)]
    over = threading.Event()
    with ThreadPoolExecutor(6) as pool:
        watching = pool.submit(most_waiting, queues[0], over)
        settling = [pool.submit(settle_all, q, over, returns=returns) for q in queues[3:]]
        try:
            publishing = [
                pool.submit(publish_all, queue, 90, way)
                for queue, way in zip(queues, WAYS, strict=False)
            ]
            created = sum((one.result(90) for one in publishing), Counter[str]())
        finally:
            over.set()
        acked = sum(one.result(60) for one in settling)
        most = watching.result(60)
    rest = finish_rest(queues[0])
    assert (0, 0, created.total()) == counts(queues[0])
    assert created.total() == acked + rest
    if not returns:
        assert most <= 1


def finish_rest(queue: Queue) -> int:
    """Acknowledge what a consumer gave back last."""
    done = 0
    while messages := queue.consume(10):
        queue.ack(messages)
        done += len(messages)
    return done
