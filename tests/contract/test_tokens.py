"""Tokens: claims that any process settles, and claims that end with their lease alone."""

from __future__ import annotations

import base64
import pickle
import re
import string
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import column, delete, table, update

from queue_over_sql import ClaimLost, FixedDelay, InvalidToken, NoRetry, Observer
from queue_over_sql.consumers.consumer import HELD_CLAIMS
from queue_over_sql.values.limits import PREFIX_LENGTH
from tests.chaos.processes import Crew
from tests.chaos.roles import puppet
from tests.contract.queue_state import archived, counts, live_rows, set_columns
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService, TestDatabase

VERBS: Final[dict[str, Callable[[Message], None]]] = {
    "ack": lambda message: message.ack(),
    "nack": lambda message: message.nack("no paper", delay=0),
    "release": lambda message: message.release(),
    "reject": lambda message: message.reject("never"),
    "extend": lambda message: message.extend(900),
}

ORDERS: Final[dict[str, Any]] = {"order": int}

both_faces = pytest.mark.driver_decides


class Heard(Observer):
    """What an observer was told of settled messages."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[str, Sequence[int]]] = []
        self.dead: list[Sequence[int]] = []

    def settled(self, queue: str, outcome: str, ids: Sequence[int]) -> None:
        del queue
        self.outcomes.append((outcome, ids))

    def dead_lettered(self, queue: str, ids: Sequence[int], reason: str | None) -> None:
        del queue, reason
        self.dead.append(ids)


def refused(engine: Engine, queue: Queue, held: Message) -> None:
    """Neither its token holds anything any more, nor does a verb of who had it before change it."""
    before, dead = live_rows(engine, queue), len(archived(queue))
    with pytest.raises(ClaimLost):
        queue.held(held.token)
    for verb in VERBS.values():
        with pytest.raises(ClaimLost):
            verb(held)
    assert before == live_rows(engine, queue)
    assert dead == len(archived(queue))


@both_faces
def test_any_service_settles_by_a_token(make_service: MakeService, engine: Engine) -> None:
    """The message is whole, each verb works, and the claimer has lost it then."""
    claimer = make_service().create_queue("jobs", archive="all")
    other = make_service().queue("jobs")
    for name, verb in VERBS.items():
        published = claimer.publish({"for": name}, headers={"a": 1}, max_attempts=2)
        (mine,) = claimer.consume(lease=60)
        held = other.held(mine.token)
        assert published.id == held.id
        assert {"for": name} == held.payload
        assert {"a": 1} == held.headers
        assert 1 == held.attempt
        assert 2 == held.max_attempts
        assert mine.token == held.token
        assert mine.claimed_at == held.claimed_at
        assert mine.lease_expires_at == held.lease_expires_at
        assert other.holds(held)
        verb(held)
        if name == "extend":
            expected = held.lease_expires_at
            assert expected is not None
            (listed,) = other.messages(where=other.table.c.id == held.id).list()
            assert expected == listed.lease_expires_at
            mine.ack()
        else:
            with pytest.raises(ClaimLost):
                mine.ack()
            with pytest.raises(ClaimLost):
                other.held(mine.token)
            other.ack(other.consume(5))
    assert [] == live_rows(engine, other)
    assert ["done", "done", "done", "rejected", "done"] == [str(m.outcome) for m in archived(other)]


def test_the_rules_of_the_queue_hold(make_service: MakeService) -> None:
    """Retries, dead letters, the archive, the dedup window and observers know nothing of tokens."""
    claimer = make_service().create_queue(
        "jobs", retry=FixedDelay(0), max_attempts=2, archive="all", dedup_window=3600
    )
    heard = Heard()
    other = make_service(observer=heard).queue("jobs")
    first = claimer.publish("bad")
    for _ in range(2):
        (message,) = consume_exactly(claimer, 1)
        other.held(message.token).nack("no paper")
    second = claimer.publish("good", key="k")
    (message,) = consume_exactly(claimer, 1)
    other.held(message.token).ack()
    assert [("failed", "no paper"), ("done", None)] == [
        (str(each.outcome), each.last_error) for each in archived(other)
    ]
    assert "skipped" == claimer.publish("again", key="k", on_conflict="skip").outcome
    assert [[first.id]] == [list(ids) for ids in heard.dead]
    assert [("retried", [first.id]), ("failed", [first.id]), ("done", [second.id])] == [
        (outcome, list(ids)) for outcome, ids in heard.outcomes
    ]


def test_one_of_many_wins(make_service: MakeService) -> None:
    """Three services settle each of many claims at once: one does it, the others are told."""
    queue = make_service().create_queue("jobs", archive="all")
    queue.publish_many(range(20))
    tokens = [message.token for message in queue.consume(20, hold_for=60)]
    others = [make_service().queue("jobs") for _ in range(3)]

    def settle(mine: Queue) -> int:
        won = 0
        for token in tokens:
            try:
                mine.held(token).ack()
                won += 1
            except ClaimLost:
                pass
        return won

    with ThreadPoolExecutor(3) as pool:
        won = list(pool.map(settle, others))
    assert 20 == sum(won)
    assert 20 == len(archived(queue))


def test_many_at_once(make_service: MakeService) -> None:
    """Those that are held come back, each with its token; a batch settles those of any claims."""
    service = make_service()
    queue = service.create_queue("jobs")
    queue.publish_many(range(6))
    own, lasting, theirs = queue.consume(2), queue.consume(2, hold_for=60), queue.consume(2)
    tokens = [message.token for message in [*own, *lasting, *theirs]]
    own[0].ack()
    other = make_service().queue("jobs")
    held = other.held_many([*tokens, tokens[1]])
    assert tokens[1:] == [message.token for message in held]
    assert [] == other.held_many([])
    queue.ack([own[1], lasting[0], *other.held_many(tokens[4:])])
    with pytest.raises(ClaimLost) as caught:
        other.ack(held)
    assert {tokens[1], tokens[2], *tokens[4:]} == {m.token for m in caught.value.messages}
    assert (0, 0, 0) == counts(queue)
    with pytest.raises(TypeError):
        other.held_many(tokens[0])


def test_a_claim_that_ended(make_service: MakeService, engine: Engine) -> None:
    """Its token changes nothing, however it ended, and whoever holds the message now keeps it."""
    queue = make_service().create_queue("jobs", archive="all", retry=FixedDelay(0))
    service = make_service()
    other = service.queue("jobs")

    def lease_ends(message: Message) -> None:
        set_columns(engine, queue, message.id, lease_expires_at=1)
        wait_until(lambda: service.reap().restored == 1)

    endings: dict[str, Callable[[Message], object]] = {
        "ack": lambda m: m.ack(),
        "release": lambda m: m.release(),
        "nack": lambda m: m.nack("bad"),
        "lease": lease_ends,
        "delete": lambda m: queue.delete(m.id),
        "cancel": lambda m: queue.cancel(m.id),
        "replace": lambda _: queue.publish("other", key="k", on_conflict="replace"),
        "purge": lambda _: queue.purge(claimed=True),
    }
    for number, (name, end) in enumerate(endings.items()):
        queue.publish(name, key="k")
        (message,) = queue.consume(hold_for=60 if number % 2 else None)
        held = other.held(message.token)
        end(message)
        again = queue.consume()
        refused(engine, other, held)
        queue.ack(again)
    assert (0, 0) == counts(queue)[:2]


def test_edits_of_others_leave_a_claim(queue: Queue) -> None:
    """A purge and an edit skip what is claimed, so its token is still good."""
    queue.publish("x")
    (message,) = queue.consume(hold_for=60)
    assert 0 == queue.purge()
    edited = queue.messages().reschedule(delay=60)
    assert 0 == edited
    assert 1 == edited.skipped
    queue.pause()
    queue.held(message.token).ack()
    assert (0, 0, 0) == counts(queue)


def test_a_new_queue_of_that_name(make_service: MakeService, engine: Engine) -> None:
    """The token of a message of the dropped queue does not hold the new one's with that id."""
    service = make_service()
    old = service.create_queue("jobs")
    other = make_service()
    assert "jobs" == other.queue("jobs").name
    for hold_for in (None, 60):
        old.publish("old")
        (message,) = old.consume(hold_for=hold_for)
        held = other.queue("jobs").held(message.token)
        assert other.drop_queue("jobs")
        new = other.create_queue("jobs")
        new.publish_many(["new", "newer"])
        for queue in (new, service.create_queue("jobs")):
            refused(engine, queue, held)
        fresh = new.consume(2, hold_for=hold_for)
        refused(engine, new, held)
        new.ack(fresh)
        old = service.queue("jobs")


@pytest.mark.engines("sqlite")
def test_the_longest_token(make_service: MakeService) -> None:
    """Long names make no token longer than documented, and URLs need no quoting."""
    queue = make_service(table_prefix="p" * PREFIX_LENGTH).create_queue("q" * 20)
    queue.publish("x")
    (message,) = queue.consume()
    assert re.fullmatch("[A-Za-z0-9_-]{150,186}", message.token)
    queue.held(message.token).ack()


@pytest.mark.engines("sqlite")
def test_forged_tokens(make_service: MakeService, engine: Engine) -> None:
    """Changed or cut, made from what lists show, or another queue's: it is no token here."""
    service = make_service()
    queue, letters = service.create_queue("jobs"), service.create_queue("letters")
    elsewhere = make_service(table_prefix="other_").create_queue("jobs")
    for each in (queue, letters, elsewhere):
        each.publish_many(["one", "two"])
    (message, another) = queue.consume(2, lease=60)
    token = message.token
    alphabet = string.ascii_letters + string.digits + "-_"
    changed = [
        f"{token[:place]}{alphabet[(alphabet.index(token[place]) + 1) % 64]}{token[place + 1 :]}"
        for place in range(len(token))
    ]
    cut = [token[:place] for place in range(len(token))]
    junk = ["", " ", "é", "=" * 8, f"{token}=", f" {token}", f"{token}A", token * 2, "A" * 10_000]
    before = live_rows(engine, queue)
    for text in (*changed, *cut, *junk):
        # A changed consumer is one that is gone.
        with pytest.raises((InvalidToken, ClaimLost)):
            queue.held(text).ack()
        with pytest.raises((InvalidToken, ClaimLost)):
            queue.ack(queue.held_many([text]) or (_ for _ in ()).throw(ClaimLost("gone", [])))
    for text in (*cut, *junk, *changed[-21:]):
        with pytest.raises(InvalidToken):
            queue.held(text)
    foreign = [each.consume(1, hold_for=60)[0].token for each in (letters, elsewhere)]
    for text in foreign:
        with pytest.raises(InvalidToken, match="belongs to the queue"):
            queue.held(text)
    # All but the signature is known: what it says of one message does not fit another.
    body, other = (base64.urlsafe_b64decode(f"{text}==") for text in (token, another.token))
    forged = base64.urlsafe_b64encode(other[:-16] + body[-16:]).decode().rstrip("=")
    with pytest.raises(InvalidToken):
        queue.held(forged)
    assert before == live_rows(engine, queue)
    with pytest.raises(TypeError):
        queue.held(b"x")  # type: ignore[arg-type]
    for listed in queue.messages().list():
        with pytest.raises(ClaimLost):
            _ = listed.token


def test_a_lasting_claim_outlives_its_service(make_service: MakeService, engine: Engine) -> None:
    """Neither its end nor a reaper gives the messages back before their leases end."""
    service = make_service()
    queue = service.create_queue("jobs")
    queue.publish_many(["lasting", "too"])
    first, second = queue.consume(2, hold_for=timedelta(minutes=5))
    # It needs no consumer of its own, and no heartbeat.
    assert service.consumer_id is None
    assert HELD_CLAIMS == first.consumer_id
    assert queue.holds(first)
    tokens = [first.token, second.token]
    service.stop()
    other = make_service()
    assert 0 == other.reap().restored
    (listed,) = [each for each in other.consumers() if each.consumer_id == HELD_CLAIMS]
    assert listed.permanent
    jobs = other.queue("jobs")
    held = jobs.held(tokens[0])
    held.extend()
    length = held.lease_expires_at, held.claimed_at
    held.extend()
    assert held.lease_expires_at is not None
    assert held.claimed_at is not None
    # Extensions do not add up.
    assert timedelta(minutes=6) > held.lease_expires_at - held.claimed_at, length
    held.ack()
    set_columns(engine, jobs, second.id, lease_expires_at=1)
    assert not jobs.holds(jobs.held(tokens[1]))
    (again,) = consume_exactly(jobs, 1)
    assert second.id == again.id
    assert 2 == again.attempt
    with pytest.raises(ClaimLost):
        jobs.held(tokens[1])
    again.ack()


def test_all_ways_to_consume_hold(queue: Queue) -> None:
    """A stream and a block hold alike, and settle as usual; two lengths are one too many."""
    queue.publish_many(range(3))
    with queue.receive(hold_for=60) as message:
        assert message is not None
        assert HELD_CLAIMS == message.consumer_id
    assert [1] == [each.payload for each in _one_of(queue)]
    # What was prefetched and not yielded was given back.
    (left,) = consume_exactly(queue, 1)
    assert 2 == left.payload
    assert 1 == left.attempt
    queue.exchange([left])
    assert (0, 0, 0) == counts(queue)
    wrong: dict[str, Any]
    for wrong in ({"lease": 5, "hold_for": 5}, {"hold_for": 0}, {"hold_for": "x"}):
        with pytest.raises((ValueError, TypeError)):
            queue.consume(1, **wrong)


def _one_of(queue: Queue) -> list[Message]:
    stream = queue.stream(prefetch=2, hold_for=60)
    for message in stream:
        message.ack()
        stream.close()
        return [message]
    return []


def test_in_the_callers_transaction(queue: Queue, engine: Engine) -> None:
    """The claim holds if the caller rolls back, and is settled if the caller commits."""
    queue.publish("x")
    (message,) = queue.consume(hold_for=60)
    held = queue.held(message.token)
    with engine.connect() as connection:
        held.ack(connection=connection)
        connection.rollback()
    held = queue.held(message.token)
    with engine.begin() as connection:
        held.ack(connection=connection)
    with pytest.raises(ClaimLost):
        queue.held(message.token)


def test_what_cannot_be_read_can_be_settled(
    make_service: MakeService, queue: Queue, engine: Engine
) -> None:
    """A payload that fits no kind is held as it is stored; one that fits is decoded."""
    queue.publish_many(["plain", "odd"])
    plain, odd = queue.consume(2, hold_for=60)
    set_columns(engine, queue, odd.id, kind="unknown")
    other: Queue = make_service().create_queue("jobs", kinds=ORDERS, retry=NoRetry())
    assert "plain" == other.held(plain.token).payload
    other.held(odd.token).nack("what is it?")
    assert ["what is it?"] == [each.last_error for each in archived(other)]


@pytest.mark.engines("sqlite")
@pytest.mark.threads("proxies are not pickled")
def test_a_pickled_message_is_settled_by_its_token(queue: Queue) -> None:
    """The copy has no service, but its token."""
    queue.publish("x")
    message: Message[Any] = pickle.loads(pickle.dumps(queue.consume()[0]))  # noqa: S301 - our own
    queue.held(message.token).ack()
    assert (0, 0, 0) == counts(queue)


def test_a_consumer_without_a_key(make_service: MakeService, engine: Engine) -> None:
    """What an earlier release registered gets one; an ordinary consumer's claims have no token."""
    first = make_service().create_queue("jobs")
    first.publish_many(range(3))
    (before, ordinary) = first.consume(hold_for=60)[0], first.consume()[0]
    consumers = table("queue_over_sql_consumers", column("token_key"))
    with engine.begin() as connection:
        connection.execute(update(consumers).values(token_key=None))
    second = make_service().queue("jobs")
    for token in (before.token, ordinary.token):
        with pytest.raises(ClaimLost):
            second.held(token).ack()
    (message,) = second.consume(hold_for=60)
    third = make_service().queue("jobs")
    third.held(message.token).ack()
    with pytest.raises(InvalidToken):
        third.held(before.token)


def test_a_registration_that_was_lost(make_service: MakeService, engine: Engine) -> None:
    """After a failover or a restore without it, its claims are safe again, in all processes."""
    service, other = make_service(consumer_timeout=0.3), make_service()
    queue, jobs = service.create_queue("jobs"), other.queue("jobs")
    queue.publish_many(range(5_000))
    (before,), (theirs,) = queue.consume(hold_for=60), jobs.consume(hold_for=60)
    consumers = table("queue_over_sql_consumers", column("consumer_id"))

    def forget() -> None:
        with engine.begin() as connection:
            connection.execute(delete(consumers))

    forget()
    message = before
    while HELD_CLAIMS not in {consumer.consumer_id for consumer in other.consumers()}:
        (message,) = queue.consume(hold_for=60)
    assert 0 == other.reap().restored
    # It has the same key, so the tokens of earlier claims are good.
    for held in (before, theirs, message):
        make_service().queue("jobs").held(held.token).ack()
    forget()
    # A new process registers it with a new key, which the others learn.
    (latest,) = make_service().queue("jobs").consume(hold_for=60)
    assert latest.token != before.token
    jobs.held(latest.token).ack()
    with pytest.raises(InvalidToken):
        jobs.held(before.token)


@pytest.mark.chaos
@pytest.mark.threads("the processes are synchronous")
def test_its_claimer_is_killed(
    make_service: MakeService, database: TestDatabase, engine: Engine, tmp_path: Path
) -> None:
    """SIGKILL after the claim: nobody else gets the message, and another process settles it."""
    service = make_service(consumer_timeout=2.0)
    queue = service.create_queue("jobs", archive="all")
    queue.publish_many(["lasting", "ordinary"])
    crew = Crew(tmp_path)
    try:
        claimer, other = (
            crew.spawn(puppet.Arguments(database.url, consumer_timeout=1.0)) for _ in range(2)
        )
        claimer.expect("ready")
        (lasting,) = claimer.ask("consume", hold_for=600)["messages"]
        (ordinary,) = claimer.ask("consume", lease=600)["messages"]
        claimer.kill()
        other.expect("ready")
        # The ordinary claim ends with its process, and its token with the claim.
        (heir,) = consume_exactly(queue, 1)
        assert ordinary["id"] == heir.id
        assert "ordinary" == heir.payload
        for token in (ordinary["token"], "x"):
            assert other.ask("settle", token=token, verb="ack")["error"] in {
                "ClaimLost",
                "InvalidToken",
            }
        assert [] == queue.consume()
        settled = other.ask("settle", token=lasting["token"], verb="ack")
        assert settled["error"] is None
        assert "lasting" == settled["payload"]
        assert "ClaimLost" == other.ask("settle", token=lasting["token"], verb="ack")["error"]
        heir.ack()
    finally:
        crew.close()
    assert [] == live_rows(engine, queue)
    assert 2 == len(archived(queue))


def test_two_register_at_once(make_service: MakeService) -> None:
    """Many services make the first lasting claim of a database at the same time."""
    queue = make_service().create_queue("jobs")
    queue.publish_many(range(8))
    services: list[QueueService] = [make_service() for _ in range(8)]
    queues = [service.queue("jobs") for service in services]
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda each: each.consume(hold_for=60), queues))
    found = [message for claim in claims for message in claim]
    assert 8 == len({message.id for message in found})
    queue.ack(queue.held_many([message.token for message in found]))
    assert (0, 0, 0) == counts(queue)
