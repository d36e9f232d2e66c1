"""Why a message does not run: one reason for each, and the one that has to be lifted first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import column, insert, table, update

from queue_over_sql import FixedDelay, Outcome, Publication, Reason, Status
from queue_over_sql.selection import why
from queue_over_sql.selection.why import Explanation
from queue_over_sql.values.humanize import instant_words
from queue_over_sql.values.reasons import REFUSED
from tests.contract.existing_tables.users_tables import Invoice, create_invoices
from tests.contract.payloads.kind_types import ORDERS, Order
from tests.contract.queue_state import ids, set_columns
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

consumers = table(
    "queue_over_sql_consumers",
    *map(column, ("consumer_id", "name", "host", "pid", "started_at", "heartbeat_at")),
    *map(column, ("expires_at", "durable", "table_prefix", "queue", "owner")),
)
NOWHERE = 10**12


class Asked:
    """Asks a queue why, and notes which reasons it gave."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.reasons: set[Reason] = set()

    def __call__(self, message_id: int) -> Explanation:
        found: Explanation = self.queue.why(message_id)
        assert (message_id, self.queue.name) == (found.message_id, found.queue)
        assert found.text.strip()
        self.reasons.add(found.reason)
        return found


@pytest.fixture
def jobs(make_service: MakeService) -> Queue:
    """The queue of somebody who only looks, and so is no consumer."""
    return make_service().create_queue(
        "jobs", priorities=2, archive="all", max_attempts=2, retry=FixedDelay(3600)
    )


def kill(engine: Engine, service: QueueService) -> None:
    """Let a consumer have missed its heartbeats."""
    change = update(consumers).where(consumers.c.consumer_id == service.consumer_id)
    with engine.begin() as connection:
        connection.execute(change.values(heartbeat_at=2, expires_at=2))


def test_who_has_a_message_in_hand_handles_its_queue(
    jobs: Queue, make_service: MakeService, engine: Engine
) -> None:
    """A consumer counts from its first claim, before a heartbeat says so, while it lives."""
    service = make_service()
    service.start()
    _, waits = (jobs.publish(n, kind="Refund").id for n in range(2))
    assert Reason.NO_CONSUMER is jobs.why(waits).reason
    consume_exactly(service.queue("jobs"), 1)
    assert Reason.IN_LINE is jobs.why(waits).reason
    kill(engine, service)
    assert Reason.NO_CONSUMER is jobs.why(waits).reason


def test_each_message_has_exactly_one_reason(
    jobs: Queue, make_service: MakeService, engine: Engine
) -> None:
    """Every reason there is, each at the message that has it, and no reason is never given."""
    ask = Asked(jobs)
    _before_anybody_reads(ask, make_service, engine)
    service = make_service(consumer_name="mailer")
    consumed = service.queue("jobs")
    assert [] == consumed.consume()
    _not_due(ask, consumed, engine)
    _claimed(ask, service, make_service, engine)
    _finished(ask, consumed, engine)
    _expiring(ask, consumed, engine)
    _in_line(ask, consumed, engine)
    of_rules = {reason for reason in Reason if reason.startswith("group_")}
    of_rules |= {Reason.QUEUE_LIMIT, Reason.QUEUE_RATE}
    assert set(Reason) - of_rules == ask.reasons


def _before_anybody_reads(ask: Asked, make_service: MakeService, engine: Engine) -> None:
    jobs = ask.queue
    missing = ask(NOWHERE)
    assert Reason.MISSING is missing.reason
    refund = jobs.publish({"id": 1}, kind="Refund").id
    assert Reason.NO_CONSUMER is ask(refund).reason
    # HTTP's clients share a consumer that never expires; nobody knows whether they are there.
    [held] = make_service().queue("jobs").consume(hold_for=3600)
    held.release()
    nobody = ask(refund)
    assert Reason.NO_CONSUMER is nobody.reason
    assert nobody.text.startswith("No consumer is alive. Start a worker for queue jobs.")
    assert "Clients of held-claims" in nobody.text
    # A service that only publishes is a consumer, but handles nothing.
    make_service().start()
    assert "1 consumer is alive, but none handles queue jobs." in ask(refund).text
    narrow = make_service()
    assert [] == narrow.create_queue("jobs", kinds=ORDERS).consume()
    unknown = ask(refund)
    assert Reason.UNKNOWN_KIND is unknown.reason
    assert "none that is alive knows its kind Refund" in unknown.text
    assert Reason.IN_LINE is ask(jobs.publish({"id": 1}).id).reason
    order = jobs.publish(Order(id=2).model_dump(), kind="Order").id
    assert Reason.IN_LINE is ask(order).reason
    # What stops all comes before what stops one.
    jobs.pause()
    paused = ask(refund)
    assert Reason.QUEUE_PAUSED is paused.reason
    assert paused.since is not None
    jobs.resume()
    kill(engine, narrow)
    assert Reason.NO_CONSUMER is ask(order).reason
    # A durable consumer knows all kinds while a query has it.
    stream = {"consumer_id": "s", "name": "s", "host": "h", "pid": 1, "durable": 1}
    place = {"table_prefix": "queue_", "queue": "jobs", "owner": "h:1"}
    times = {"started_at": 1, "heartbeat_at": 1, "expires_at": 2**52}
    with engine.begin() as connection:
        connection.execute(insert(consumers).values(stream | place | times))
    assert Reason.IN_LINE is ask(refund).reason
    with engine.begin() as connection:
        connection.execute(update(consumers).where(consumers.c.name == "s").values(owner=None))
    assert Reason.NO_CONSUMER is ask(refund).reason
    jobs.purge()


def _not_due(ask: Asked, consumed: Queue, engine: Engine) -> None:
    later = ask(ask.queue.publish("later", delay=3600).id)
    assert (Reason.DUE_LATER, later.until) == (
        later.reason,
        ask.queue.messages().list()[0].available_at,
    )
    retried = ask.queue.publish("retried").id
    [message] = consumed.consume()
    message.nack("mail server\ndown")
    again = ask(retried)
    assert Reason.RETRY_LATER is again.reason
    assert "because attempt 1 of 2 failed: mail server down." in again.text
    assert again.until == ask.queue.messages(where=_is(ask, retried)).list()[0].available_at
    ask.queue.messages(where=_is(ask, retried)).hold()
    held = ask(retried)
    assert Reason.HELD is held.reason
    assert "edit jobs" in held.text
    set_columns(engine, ask.queue, retried, last_error=f"{REFUSED} as done: duplicate key")
    refused = ask(retried)
    assert Reason.REFUSED is refused.reason
    assert "duplicate key" in refused.text
    ask.queue.purge()


def _is(ask: Asked, message_id: int) -> Any:
    return ask.queue.table.c.id == message_id


def _claimed(ask: Asked, service: QueueService, make_service: MakeService, engine: Engine) -> None:
    number = ask.queue.publish("x").id
    [message] = service.queue("jobs").consume(lease=3600)
    hand = ask(number)
    assert Reason.CLAIMED is hand.reason
    assert hand.consumer is not None
    assert (service.consumer_id, "mailer") == (hand.consumer_id, hand.consumer.name)
    assert (message.claimed_at, message.lease_expires_at) == (hand.since, hand.until)
    assert "Consumer mailer (process " in hand.text
    set_columns(engine, ask.queue, number, consumer_round=None)
    assert Reason.CLAIM_BROKEN is ask(number).reason
    set_columns(engine, ask.queue, number, consumer_round=message.consumer_round)
    message.release()
    service.queue("jobs").consume(lease=0.01)
    wait_until(lambda: ask(number).reason is Reason.LEASE_EXPIRED)
    ask.queue.purge(claimed=True)
    suspect = ask.queue.publish("kills").id
    victim = make_service()
    [message] = victim.queue("jobs").consume(lease=3600)
    kill(engine, victim)
    dead = ask(suspect)
    assert Reason.CONSUMER_DIED is dead.reason
    assert dead.consumer_id == message.consumer_id
    with make_service(reaper_interval=0.05):
        wait_until(lambda: ask(suspect).reason is not Reason.CONSUMER_DIED)
    alone = ask(suspect)
    assert (Reason.SUSPECT, 1) == (alone.reason, alone.position)
    # While others are before it, their number says more.
    urgent = ask.queue.publish("urgent", at=message.published_at).id
    ask.queue.messages(where=_is(ask, urgent)).prioritize(front=True)
    behind = ask(suspect)
    assert (Reason.IN_LINE, 2) == (behind.reason, behind.position)
    ask.queue.purge()


def _finished(ask: Asked, consumed: Queue, engine: Engine) -> None:
    numbers = {name: ask.queue.publish(name, max_attempts=1).id for name in Outcome}
    by_payload = {message.payload: message for message in consume_exactly(consumed, 4)}
    by_payload[Outcome.DONE].ack()
    by_payload[Outcome.FAILED].nack("down")
    by_payload[Outcome.REJECTED].reject("no address")
    by_payload[Outcome.EXPIRED].ack()
    archive = ask.queue.archive.table
    late = update(archive).where(archive.c.id == numbers[Outcome.EXPIRED])
    with engine.begin() as connection:
        connection.execute(late.values(outcome="expired", last_error="too late"))
    said = {}
    for outcome, number in numbers.items():
        found = ask(number)
        assert Reason.FINISHED is found.reason
        assert found.since == ask.queue.archive.messages(status=outcome).list()[0].finished_at
        said[outcome] = found.text
    assert 4 == len({text[:40] for text in said.values()})
    assert "attempt 1 of 1" in said[Outcome.FAILED]
    assert "down" in said[Outcome.FAILED]
    assert "no address" in said[Outcome.REJECTED]


def _expiring(ask: Asked, consumed: Queue, engine: Engine) -> None:
    """Whatever it waits for, it says until when it must be started; once it was, nothing."""
    number = ask.queue.publish("x", expires=3600).id
    [message] = ask.queue.messages().list()
    assert message.expires_at is not None
    until = f"It expires at {instant_words(message.expires_at)} UTC, unless it is started before."
    assert ask(number).text.endswith(until)
    ask.queue.pause()
    assert ask(number).text.endswith(until)
    ask.queue.messages(where=_is(ask, number)).hold()
    assert ask(number).text.endswith(until)
    set_columns(engine, ask.queue, number, expires_at=1_000_000)
    held = ask(number)
    assert Reason.HELD is held.reason
    assert held.text.endswith(
        "It expired at 1970-01-01 00:00:01 UTC, and ends once it is released."
    )
    ask.queue.messages(where=_is(ask, number)).unhold()
    # Neither a pause nor a delay keeps it from its end.
    late = ask(number)
    assert Reason.EXPIRED is late.reason
    assert "It expired at 1970-01-01 00:00:01 UTC" in late.text
    ask.queue.resume()
    assert [] == consumed.consume()
    assert "It is a dead letter. It expired" in ask(number).text
    number = ask.queue.publish("tried", expires=3600).id
    consumed.consume()[0].nack("down", delay=3600)
    assert "expires" not in ask(number).text
    ask.queue.purge()


def _in_line(ask: Asked, consumed: Queue, engine: Engine) -> None:
    """Positions are the order in which the messages are then claimed."""
    # Those of a batch are due at the same instant, so their ids decide.
    usual = [each.id for each in ask.queue.publish_many([Publication(n, priority=1) for n in "ab"])]
    urgent = [each.id for each in ask.queue.publish_many(["c", "d"])]
    ask.queue.publish("later", delay=3600)
    ask.queue.messages(where=_is(ask, usual[1])).prioritize(front=True)
    found = {number: ask(number) for number in usual + urgent}
    assert {Reason.IN_LINE} == {each.reason for each in found.values()}
    last = found[usual[0]]
    assert (4, True) == (last.position, "2 of them more urgent" in last.text)
    odd = ask.queue.publish("odd").id
    set_columns(engine, ask.queue, odd, priority=7)
    assert Reason.NO_SUCH_PRIORITY is ask(odd).reason
    places = sorted(found, key=lambda number: found[number].position or 0)
    assert places == ids(consume_exactly(consumed, 4))


def test_at_most_ten_thousand_are_counted(
    jobs: Queue, make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then no position is claimed to be known; up to there it is exact."""
    monkeypatch.setattr("queue_over_sql.selection.why_statements.MOST_COUNTED", 3)
    monkeypatch.setattr(why, "MOST_COUNTED", 3)
    assert [] == make_service().queue("jobs").consume()
    numbers = [jobs.publish(n, priority=n % 2).id for n in range(6)]
    found = {number: jobs.why(number) for number in numbers}
    order = [*numbers[::2], *numbers[1::2]]
    assert [1, 2, 3, 4, None, None] == [found[number].position for number in order]
    assert "More than 3 ready messages come before it, 3 of them more urgent" in (
        found[order[4]].text
    )


def test_rows_of_an_adopted_table_have_reasons(service: QueueService, engine: Engine) -> None:
    """From a row that is no message to one that ends in place, and begins again."""
    create_invoices(engine, 3)
    billing = service.adopt_queue("billing", Invoice, max_attempts=1, priorities=2)
    billing.enqueue(Invoice.number < 3)
    reasons = [billing.why(number).reason for number in (1, 3, NOWHERE)]
    assert [Reason.NO_CONSUMER, Reason.MISSING, Reason.MISSING] == reasons
    [message] = billing.consume()
    assert Reason.CLAIMED is billing.why(1).reason
    assert (Reason.IN_LINE, 1) == (billing.why(2).reason, billing.why(2).position)
    message.reject("no address")
    ended = billing.why(1)
    assert Reason.FINISHED is ended.reason
    assert "It was rejected" in ended.text
    assert "no address" in ended.text
    billing.archive.messages().requeue()
    assert (Reason.IN_LINE, 2) == (billing.why(1).reason, billing.why(1).position)
    billing.messages().hold()
    assert [Reason.HELD] * 2 == [billing.why(number).reason for number in (1, 2)]
    billing.messages().reschedule(delay=3600)
    assert Reason.DUE_LATER is billing.why(2).reason


@pytest.mark.threads("it changes the queue between two looks of one call")
def test_what_changes_between_two_looks_is_looked_at_again(
    service: QueueService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that was requeued meanwhile is not missing, and one that was claimed is not in line."""
    create_invoices(engine, 1)
    billing = service.adopt_queue("billing", Invoice)
    billing.enqueue()
    look = why._Why._live

    def meanwhile(change: Callable[[], object]) -> Reason:
        def then(asked: Any) -> Any:
            found = look(asked)
            monkeypatch.undo()
            change()
            return found

        monkeypatch.setattr(why._Why, "_live", then)
        return billing.why(1).reason

    assert [] == billing.consume(where=billing.table.c.id == 0)
    assert Reason.CLAIMED is meanwhile(billing.consume)
    billing.purge(claimed=True)
    billing.enqueue()
    billing.ack(billing.consume())
    assert Reason.IN_LINE is meanwhile(billing.archive.messages().requeue)


def test_each_status_and_outcome_has_a_reason() -> None:
    """Nobody adds a state of messages without a reason for it."""
    assert set(Status) == set(why._BY_STATUS)
    assert set(Outcome) == set(why._BY_OUTCOME)
