"""A row as a message: every verb, and the row's columns afterwards."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.orm import Session

from queue_over_sql import (
    AdoptedQueue,
    ClaimLost,
    FixedDelay,
    NoRetry,
    QueueSchemaMismatch,
    ResultTimeout,
)
from tests.contract.existing_tables.users_tables import (
    Invoice,
    create_invoices,
    own_row,
    state,
    statuses,
)
from tests.contract.queue_state import archived, ids, outcomes
from tests.contract.worker.running_worker import running
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from queue_over_sql import Message, QueueService
    from queue_over_sql.testing.plugin import MakeService

CLEARED = {"consumer_id": None, "consumer_round": None, "lease_expires_at": None}


@pytest.fixture
def billing(service: QueueService, engine: Engine) -> AdoptedQueue:
    """Six invoices, all of them messages, each delivered twice at most."""
    create_invoices(engine, 6)
    queue = service.adopt_queue("billing", Invoice, max_attempts=2, retry=FixedDelay(0))
    assert 6 == queue.enqueue()
    return queue


@pytest.mark.default_on("sqlite", "postgresql")
def test_rows_come_oldest_first(billing: AdoptedQueue) -> None:
    """A batch is claimed in the order of the primary key, and nobody gets a row twice."""
    assert [1, 2, 3, 4] == ids(billing.consume(4))
    assert [5, 6] == ids(billing.consume(4))
    assert [] == billing.consume()


def test_success_stays_in_the_row(billing: AdoptedQueue, engine: Engine) -> None:
    """An ack keeps the row with its status, the attempts and when it was."""
    (message,) = billing.consume()
    assert "NOT_ATTEMPTED" == state(engine, billing, 1)["status"]
    message.ack()
    row = state(engine, billing, 1)
    assert row.pop("last_attempt_at") == row.pop("finished_at") > 0
    assert {
        "status": "SUCCESS",
        "outcome": "done",
        "attempt_count": 1,
        "available_at": None,
        "last_error": None,
        **CLEARED,
    } == row
    (finished,) = archived(billing)
    assert 1 == finished.id
    assert "done" == finished.outcome
    assert 1 == finished.attempt
    assert own_row(message) == own_row(finished)


def test_a_result_stays_in_the_row(billing: AdoptedQueue) -> None:
    """Whoever enqueued the row reads it by its id, until it is requeued."""
    (message,) = billing.consume()
    message.ack(result={"paid": True})
    assert {"paid": True} == billing.result(1)
    assert 1 == billing.archive.messages(status="done").requeue()
    with pytest.raises(ResultTimeout):
        billing.result(1)
    billing.consume(1, where=Invoice.number == 1)[0].ack()
    assert None is billing.result(1)


def test_failure_is_retried_and_then_final(billing: AdoptedQueue, engine: Engine) -> None:
    """ERROR waits for the next attempt while there is one; then it is a dead letter in place."""
    (message,) = billing.consume()
    message.nack(ValueError("no such account"), delay=60)
    row = state(engine, billing, 1)
    assert "ERROR" == row["status"]
    assert "ValueError: no such account" == row["last_error"]
    assert 1 == row["attempt_count"]
    assert row["available_at"] > row["last_attempt_at"] > 0
    assert row["finished_at"] is None
    assert 5 == billing.stats().ready
    assert 1 == billing.stats().delayed
    billing.consume()[0].nack("first", delay=0)
    last = next(m for m in billing.consume(9) if m.id == 2)
    assert 2 == last.attempt
    assert "first" == last.last_error
    last.nack("second")
    row = state(engine, billing, 2)
    assert "ERROR" == row["status"]
    assert "failed" == row["outcome"]
    assert "second" == row["last_error"]
    assert row["available_at"] is None
    assert ["failed"] == outcomes(billing)


@pytest.mark.engines("sqlite")
def test_a_policy_that_ends_and_a_rejection_dead_letter_in_place(
    service: QueueService, engine: Engine
) -> None:
    """No retry left, or never again: ERROR with its outcome."""
    create_invoices(engine, 2)
    queue = service.adopt_queue("billing", "invoices", retry=NoRetry())
    queue.enqueue()
    first, second = queue.consume(2)
    first.nack("boom")
    second.reject("not ours")
    assert {1: "ERROR", 2: "ERROR"} == statuses(engine, queue)
    assert ["failed", "rejected"] == outcomes(queue)
    assert ["boom", "not ours"] == [message.last_error for message in archived(queue)]
    assert 1 == queue.stats().failed
    assert 1 == queue.stats().rejected


@pytest.mark.default_on("sqlite", "postgresql")
def test_release_and_extend(billing: AdoptedQueue, engine: Engine) -> None:
    """Released untouched it is at its place again; extended the claim holds longer."""
    (message,) = billing.consume(lease=5)
    before = message.lease_expires_at
    message.extend(60)
    assert before is not None
    assert message.lease_expires_at is not None
    assert message.lease_expires_at > before
    message.release()
    row = state(engine, billing, 1)
    assert 0 == row["attempt_count"]
    assert row["consumer_id"] is None
    assert [1] == ids(billing.consume())


def test_a_lost_claim_changes_nothing_of_the_row(
    billing: AdoptedQueue, make_service: MakeService, engine: Engine
) -> None:
    """The fence holds for every verb; the row belongs to its present holder."""
    (lost,) = billing.consume()
    with engine.begin() as connection:
        expired = {"lease_expires_at": 1, "claimed_at": 0}
        columns = billing.table.c
        connection.execute(update(billing.table).where(columns.id == 1).values(**expired))
    other = make_service().queue("billing")
    make_service().reap()
    (held,) = consume_exactly(other, 1)
    assert 1 == held.id
    assert 2 == held.attempt
    before = state(engine, billing, 1)
    for verb in ("ack", "nack", "reject", "release", "extend"):
        arguments = ("no",) if verb in {"nack", "reject"} else ()
        with pytest.raises(ClaimLost) as refused:
            getattr(lost, verb)(*arguments)
        assert [lost] == refused.value.messages
        assert before == state(engine, billing, 1), verb
    held.ack()
    assert ["done"] == outcomes(billing)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_batch_names_what_was_lost(billing: AdoptedQueue) -> None:
    """The rest of a batch is finished; the message that was taken out meanwhile is not."""
    messages = billing.consume(4)
    assert billing.delete(3)
    with pytest.raises(ClaimLost) as refused:
        billing.ack(messages)
    assert [3] == ids(refused.value.messages)
    assert [1, 2, 4] == ids(archived(billing))


@pytest.mark.engines("sqlite")
def test_acked_twice_is_lost(billing: AdoptedQueue, engine: Engine) -> None:
    """A finished row is nobody's: neither a second ack nor a later failure changes it."""
    (message,) = billing.consume()
    message.ack()
    before = state(engine, billing, 1)
    for verb in (message.ack, message.nack, message.release):
        with pytest.raises(ClaimLost):
            verb()
    assert before == state(engine, billing, 1)


def test_an_expired_lease_gives_the_row_back(billing: AdoptedQueue, engine: Engine) -> None:
    """What a crash leaves behind: the attempt counts, the row shows ERROR and why."""
    billing.consume(lease=0.05)
    (again,) = consume_exactly(billing, 1)
    while again.id != 1:
        (again,) = consume_exactly(billing, 1)
    assert 2 == again.attempt
    row = state(engine, billing, 1)
    assert "ERROR" == row["status"]
    assert "lease" in row["last_error"]


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_row_that_kills_its_consumers_is_buried(
    make_service: MakeService, engine: Engine
) -> None:
    """Out of attempts by expired leases alone: a dead letter in place."""
    create_invoices(engine, 1)
    service = make_service()
    queue = service.adopt_queue("billing", Invoice, max_attempts=1)
    queue.enqueue()
    queue.consume(lease=0.05)
    wait_until(lambda: service.reap().dead_lettered == 1)
    row = state(engine, queue, 1)
    assert "ERROR" == row["status"]
    assert "failed" == row["outcome"]
    assert [] == queue.consume()


def test_exchange_finishes_and_claims(billing: AdoptedQueue, engine: Engine) -> None:
    """Ack and the next claim in one step, and nothing claimed when something was lost."""
    messages = billing.exchange([], 2)
    messages = billing.exchange(messages, 2)
    assert [3, 4] == ids(messages)
    assert ["SUCCESS", "SUCCESS", "NOT_ATTEMPTED"] == [
        statuses(engine, billing)[number] for number in (1, 2, 3)
    ]
    billing.delete(4)
    with pytest.raises(ClaimLost) as refused:
        billing.exchange(messages, 2)
    assert [4] == ids(refused.value.messages)
    assert [1, 2, 3] == ids(archived(billing))
    assert [5, 6] == ids(billing.consume(9))


def test_take_ends_rows_with_the_callers_transaction(billing: AdoptedQueue, engine: Engine) -> None:
    """Rolled back they were never taken; committed they are done, and it was an attempt."""
    with engine.connect() as caller:
        assert [1, 2] == ids(billing.take(2, connection=caller))
        caller.rollback()
    assert 6 == billing.stats().ready
    with Session(engine) as session:
        (taken,) = billing.take(connection=session)
        assert 1 == taken.attempt
        assert "no 1" == own_row(taken)["title"]
        session.commit()
    row = state(engine, billing, 1)
    assert "SUCCESS" == row["status"]
    assert "done" == row["outcome"]
    assert 1 == row["attempt_count"]
    assert row["last_attempt_at"] == row["finished_at"]


def test_effects_on_the_row_commit_with_the_ack(billing: AdoptedQueue, engine: Engine) -> None:
    """The handler changes the very row that it was given, and acks, in one transaction."""
    paid = update(Invoice).where(Invoice.number == 1).values(paid=True)
    (message,) = billing.consume()
    with Session(engine) as session:
        session.execute(paid)
        message.ack(connection=session)
        session.rollback()
    assert [] == archived(billing)
    with engine.connect() as caller:
        caller.execute(paid)
        billing.ack(message, connection=caller)
        caller.commit()
    (finished,) = archived(billing)
    assert 1 == finished.id
    assert own_row(finished)["paid"]


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_transactional_worker_updates_the_row(make_service: MakeService, engine: Engine) -> None:
    """Effects and ack commit together; a handler that raises leaves neither."""
    create_invoices(engine, 4)
    service = make_service(reaper_interval=0.1)
    queue = service.adopt_queue("billing", Invoice, retry=NoRetry())
    queue.enqueue()
    worker = service.worker(concurrency=2, poll_interval=(0.005, 0.05))

    @worker.handle("billing", transactional=True)
    def bill(message: Message, connection: Connection) -> None:
        row = own_row(message)
        change = update(Invoice).where(Invoice.number == row["number"])
        connection.execute(change.values(paid=True))
        if row["number"] == 3:
            raise ValueError("not this one")

    with running(worker):
        wait_until(lambda: queue.stats().archived == 4)
    with Session(engine) as session:
        unpaid = session.scalars(select(Invoice.number).where(Invoice.paid.is_(False))).all()
    assert [3] == list(unpaid)
    assert {1: "SUCCESS", 2: "SUCCESS", 3: "ERROR", 4: "SUCCESS"} == statuses(engine, queue)


@pytest.mark.default_on("sqlite", "postgresql", "mysql", "mariadb", "h2")
@pytest.mark.parametrize("together", [1, 3])
def test_a_handler_may_delete_its_row(
    make_service: MakeService, engine: Engine, together: int
) -> None:
    """The deletion finishes the message, and commits; nothing is delivered twice."""
    create_invoices(engine, 4)
    service = make_service()
    queue = service.adopt_queue("billing", Invoice, retry=NoRetry())
    queue.enqueue()
    worker = service.worker(concurrency=1, poll_interval=(0.005, 0.05))
    seen: list[int] = []

    @worker.handle("billing", transactional=True, commit_every=together)
    def bill(message: Message, connection: Connection) -> None:
        seen.append(message.id)
        if message.id != 3:
            connection.execute(delete(Invoice).where(Invoice.number == message.id))

    with running(worker):
        wait_until(lambda: statuses(engine, queue) == {3: "SUCCESS"})
    assert [1, 2, 3, 4] == seen


def test_who_lost_its_claim_cannot_delete_the_row(
    billing: AdoptedQueue, make_service: MakeService, engine: Engine
) -> None:
    """Its transaction rolls back; and what another transaction deleted is lost, too."""
    lost, gone = billing.consume(2)
    with engine.begin() as connection:
        columns = billing.table.c
        expired = {"lease_expires_at": 1, "claimed_at": 0}
        connection.execute(update(billing.table).where(columns.id == 1).values(**expired))
        connection.execute(delete(Invoice).where(Invoice.number == 2))
    make_service().reap()
    (held,) = make_service().queue("billing").consume()
    assert 1 == held.id
    assert 2 == held.attempt
    for message in (lost, gone):
        with engine.connect() as connection:
            connection.execute(delete(Invoice).where(Invoice.number == message.id))
            with pytest.raises(ClaimLost) as refused:
                message.ack(connection=connection)
        assert [message] == refused.value.messages
    held.ack()


@pytest.mark.engines("sqlite")
def test_a_plain_worker_works_on_rows(billing: AdoptedQueue, make_service: MakeService) -> None:
    """Handlers, batches and exchanges serve existing tables as any other."""
    worker = make_service(reaper_interval=0.1).worker(concurrency=2, prefetch=2)
    seen: list[int] = []

    @worker.handle("billing")
    def bill(message: Message) -> None:
        seen.append(own_row(message)["number"])

    with running(worker):
        wait_until(lambda: billing.stats().done == 6)
    assert [1, 2, 3, 4, 5, 6] == sorted(seen)


def test_an_operator_takes_rows_out_of_the_queue(billing: AdoptedQueue, engine: Engine) -> None:
    """Delete and purge leave the user's row, as if it had never been enqueued."""
    (held,) = billing.consume()
    assert billing.delete(2)
    assert not billing.delete(2)
    assert not billing.delete(99)
    assert 4 == billing.purge()
    assert {1: "NOT_ATTEMPTED", **dict.fromkeys(range(2, 7))} == statuses(engine, billing)
    held.ack()
    assert not billing.delete(1)
    assert 0 == billing.purge(claimed=True)
    assert 1 == billing.stats().done
    with engine.connect() as connection:
        assert 6 == len(connection.execute(select(Invoice.number)).all())
    assert 5 == billing.enqueue()


def test_a_row_of_plain_sql_is_a_message(billing: AdoptedQueue, engine: Engine) -> None:
    """Whoever sets ``available_at``, in any language, has enqueued the row or sent it again."""
    billing.ack(billing.consume(6))
    now = 1_700_000_000_000_000
    with engine.begin() as connection:
        connection.execute(insert(Invoice).values(company_id=8, title="by hand"))
        connection.execute(
            text(f"UPDATE invoices SET available_at = {now} WHERE title = 'by hand' OR number = 2")
        )
    assert 2 == billing.stats().ready
    assert 5 == billing.stats().done
    again, by_hand = billing.consume(9)
    assert 2 == again.id
    assert "by hand" == own_row(by_hand)["title"]
    assert 2_023 == by_hand.published_at.year
    by_hand.nack("not yet", delay=60)
    assert "ERROR" == statuses(engine, billing)[by_hand.id]
    again.ack()
    assert 1 == billing.stats().delayed
    assert 6 == billing.stats().done


@pytest.mark.engines("sqlite")
def test_pause_and_resume(billing: AdoptedQueue) -> None:
    """A paused queue hands out nothing, as any other."""
    billing.pause()
    assert [] == billing.consume()
    billing.resume()
    assert [1] == ids(billing.consume())


@pytest.mark.threads("both faces raise the same text")
def test_the_error_has_the_statement_that_deletes_old_finished_rows(
    billing: AdoptedQueue, service: QueueService, engine: Engine
) -> None:
    """The library never deletes rows. The statement leaves whatever is a message again."""
    live = billing.table
    billing.ack(billing.consume(5))
    with engine.begin() as connection:
        connection.execute(update(live).where(live.c.id <= 4).values(finished_at=1))
        # Its owner sends it again.
        connection.execute(update(live).where(live.c.id == 3).values(available_at=0))
    assert 2 == billing.archive.messages(where=live.c.id.in_([2, 4])).requeue()
    assert 1 == billing.messages(where=live.c.id == 4).hold()
    with pytest.raises(QueueSchemaMismatch, match=r"archive_ttl.*never deletes"):
        service.create_queue("billing", archive_ttl=timedelta(days=7))
    with pytest.raises(QueueSchemaMismatch, match=r"archive_limit.*never deletes") as told:
        service.create_queue("billing", archive_limit=5)
    statement = str(told.value).partition(", run: ")[2]
    with engine.begin() as connection:
        assert 1 == connection.exec_driver_sql(statement).rowcount
    assert {2, 3, 4, 5, 6} == set(statuses(engine, billing))
    assert {2, 3, 6} == set(ids(billing.consume(9)))
    assert [5] == ids(billing.archive.messages().list())


@pytest.mark.default_on("sqlite", "postgresql")
def test_priorities(service: QueueService, engine: Engine) -> None:
    """A more urgent level comes first; levels that hold rows cannot be taken away."""
    create_invoices(engine, 4)
    queue = service.adopt_queue("billing", Invoice, priorities=3)
    queue.enqueue(Invoice.number <= 2, priority=2)
    queue.enqueue(priority=1)
    with pytest.raises(ValueError, match="priorities"):
        service.create_queue("billing", priorities=2)
    assert [3, 4, 1, 2] == ids(queue.consume(4))


@pytest.mark.default_on("sqlite", "postgresql")
def test_conditions_choose_among_rows(billing: AdoptedQueue) -> None:
    """In terms of the user's model or of the queue's table; also for take and for a look."""
    wanted: Any = Invoice.company_id == 1
    assert [2] == ids(billing.consume(where=wanted))
    assert [5] == ids(billing.consume(9, where=Invoice.__table__.c.company_id == 1))
    assert [6] == ids(billing.consume(9, where=billing.table.c.id == 6))
    assert [1, 4] == ids(billing.messages(status="ready", where=Invoice.company_id == 0).list())
    assert 2 == billing.messages(where=wanted).count()


def test_a_cancelled_row_says_so(billing: AdoptedQueue, engine: Engine) -> None:
    """Waiting or claimed, its row stays, rejected, with the attempts that it had."""
    (held,) = billing.consume()
    assert billing.cancel(held.id, "paid twice")
    assert billing.cancel(2)
    assert not billing.cancel(2)
    assert not billing.cancel(7)
    with pytest.raises(ClaimLost):
        held.ack()
    for key, attempts, reason in ((1, 1, ": paid twice"), (2, 0, "")):
        row = state(engine, billing, key)
        ended = {"status": "ERROR", "outcome": "rejected", "attempt_count": attempts}
        assert ended | CLEARED == {name: row[name] for name in (*ended, *CLEARED)}
        assert f"cancelled by operator{reason}" == row["last_error"]
    assert [3, 4, 5, 6] == ids(billing.consume(6))


def test_a_snoozed_row_is_due_later(billing: AdoptedQueue, engine: Engine) -> None:
    """A release with a delay counts no attempt."""
    (message,) = billing.consume()
    message.release(delay=900)
    assert 0 == state(engine, billing, 1)["attempt_count"]
    assert state(engine, billing, 1)["last_error"] is None
    assert [2, 3, 4, 5, 6] == ids(billing.consume(6))


@pytest.mark.engines("mysql", "mariadb")
@pytest.mark.threads("the server decides")
def test_a_reason_in_a_table_of_another_charset_is_kept(
    service: QueueService, engine: Engine
) -> None:
    """The columns of the queue hold every text, also where those of the table are latin1."""
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE old (id INT AUTO_INCREMENT PRIMARY KEY) CHARACTER SET latin1")
        )
    queue = service.adopt_queue("old", "old", max_attempts=1)
    queue.publish({})
    queue.consume()[0].nack("żółw 😀")
    [dead] = queue.archive.messages().list()
    assert "żółw 😀" == dead.last_error
