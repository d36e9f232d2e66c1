"""An operator finds, edits and requeues messages of an adopted table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, event, or_, text
from sqlalchemy.orm import Session

from queue_over_sql import AdoptedQueue, FixedDelay, PayloadInvalid
from tests.contract.existing_tables.users_tables import (
    LONG_AGO,
    Invoice,
    create_invoices,
    own_row,
    state,
    statuses,
)
from tests.contract.queue_state import archived, ids, set_columns
from tests.refusals import refused

if TYPE_CHECKING:
    from queue_over_sql import QueueService


@pytest.fixture
def billing(service: QueueService, engine: Engine) -> AdoptedQueue:
    """Six invoices as messages and two that are none."""
    create_invoices(engine, 8)
    queue = service.adopt_queue("billing", Invoice, priorities=2, retry=FixedDelay(0))
    assert 6 == queue.enqueue(Invoice.number <= 6)
    return queue


def test_edits_leave_alone_what_is_held_or_no_message(
    billing: AdoptedQueue, engine: Engine
) -> None:
    """Claimed rows are counted as skipped; rows that were never enqueued are not seen at all."""
    (held,) = billing.consume()
    edited = billing.messages().reschedule(delay=60)
    assert 5 == edited
    assert 1 == edited.skipped
    assert 5 == billing.stats().delayed
    assert {7: None, 8: None} == {n: statuses(engine, billing)[n] for n in (7, 8)}
    held.ack()
    assert 5 == billing.messages().prioritize(priority=1)
    assert [1] == ids(archived(billing))


@pytest.mark.default_on("sqlite", "postgresql")
def test_hold_and_unhold(billing: AdoptedQueue, engine: Engine) -> None:
    """A held row stays a message and is delivered by nobody until it is let go."""
    assert 2 == billing.messages(where=Invoice.company_id == 0).hold()
    assert [1, 4] == ids(billing.messages(status="held").list())
    assert 2 == billing.stats().held
    assert [2, 3, 5, 6] == ids(billing.consume(9))
    assert "NOT_ATTEMPTED" == state(engine, billing, 1)["status"]
    assert 2 == billing.messages(status="held").unhold()
    assert [1, 4] == ids(billing.consume(9))


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_row_sent_by_hand_may_be_held(billing: AdoptedQueue, engine: Engine) -> None:
    """Neither a finished row that was sent again nor a new one leaves the queue by that."""
    billing.ack(billing.consume())
    with engine.begin() as connection:
        by_hand = "UPDATE invoices SET available_at = 5 WHERE number IN (1, 7)"
        connection.execute(text(by_hand))
    wanted = or_(Invoice.number == 1, Invoice.number == 7)
    assert 2 == billing.messages(where=wanted).hold()
    assert 2 == billing.stats().held
    assert 0 == billing.stats().archived
    assert 2 == billing.messages(status="held").unhold()
    assert {1, 7} <= set(ids(billing.consume(9)))


@pytest.mark.engines("sqlite")
def test_front_and_priorities(billing: AdoptedQueue) -> None:
    """A row is put before all others of its level, or into another one."""
    billing.consume(1)
    billing.messages(where=Invoice.number == 5).prioritize(front=True)
    assert [5] == ids(billing.consume())
    billing.messages(where=Invoice.number == 2).prioritize(priority=1)
    assert [3, 4, 6, 2] == ids(billing.consume(9))


@pytest.mark.engines("sqlite")
def test_reschedule_sets_when_it_is_due(billing: AdoptedQueue) -> None:
    """An instant of the past is due at once, before the others."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert 1 == billing.messages(where=Invoice.number == 1).reschedule(at=tomorrow)
    assert 1 == billing.messages(where=Invoice.number == 6).reschedule(at=LONG_AGO)
    assert [6, 2, 3, 4, 5] == ids(billing.consume(9))


def test_removed_rows_are_messages_no_more(billing: AdoptedQueue, engine: Engine) -> None:
    """Live or finished: the row stays in the table, and may be enqueued anew."""
    billing.ack(billing.consume(2))
    assert 2 == billing.messages(where=Invoice.number > 4).remove()
    assert 1 == billing.archive.messages(where=Invoice.number == 1).remove()
    left = {2: "SUCCESS", 3: "NOT_ATTEMPTED", 4: "NOT_ATTEMPTED"}
    assert left == {n: s for n, s in statuses(engine, billing).items() if s is not None}
    assert 8 == len(statuses(engine, billing))
    assert 1 == billing.enqueue(Invoice.number == 1)
    progress: list[int] = []
    assert 3 == billing.messages().remove(progress=progress.append)
    assert [3] == progress


@pytest.mark.engines("sqlite")
def test_a_requeue_of_nothing_deletes_nothing(billing: AdoptedQueue) -> None:
    """It only asks whether the server writes: the rows are the user's, who may forbid a DELETE."""
    sent: list[str] = []

    def note(*given: Any) -> None:
        sent.append(given[2])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        assert 0 == billing.archive.messages().requeue()
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert "UPDATE" in {statement.partition(" ")[0] for statement in sent}
    assert not [statement for statement in sent if "DELETE" in statement]


def test_a_finished_row_is_sent_again(billing: AdoptedQueue, engine: Engine) -> None:
    """In place, with all attempts before it and the old reason in its headers."""
    done, failed = billing.consume(2)
    done.ack()
    failed.reject("no such account")
    assert 2 == billing.archive.messages().requeue()
    assert [] == archived(billing)
    row = state(engine, billing, failed.id)
    assert "NOT_ATTEMPTED" == row["status"]
    assert 0 == row["attempt_count"]
    assert row["last_error"] is None
    assert row["finished_at"] is None
    assert row["outcome"] is None
    again = {message.id: message for message in billing.consume(9)}
    assert {} == again[done.id].headers
    assert {"previous_error": "no such account"} == again[failed.id].headers
    assert 1 == again[failed.id].attempt
    assert own_row(failed) == own_row(again[failed.id])
    billing.ack(list(again.values()))
    assert 6 == billing.stats().done


@pytest.mark.engines("sqlite")
def test_the_error_names_whose_headers_cannot_be_read(
    billing: AdoptedQueue, engine: Engine
) -> None:
    """Another client stored something else; no row is requeued."""
    bad, _ = (message.id for message in billing.consume(2))
    assert all(billing.cancel(number) for number in (1, 2))
    set_columns(engine, billing, bad, headers="[1]")
    with pytest.raises(PayloadInvalid, match=f"Message {bad} cannot be .* its headers"):
        billing.archive.messages().requeue()
    assert 2 == len(archived(billing))


@pytest.mark.default_on("sqlite", "postgresql")
def test_only_the_chosen_rows_are_sent_again(billing: AdoptedQueue) -> None:
    """By outcome and by any condition."""
    first, second, third = billing.consume(3)
    first.ack()
    second.reject("a")
    third.reject("b")
    assert 1 == billing.archive.messages(status="rejected", where=Invoice.number == 3).requeue()
    assert [1, 2] == ids(archived(billing))
    assert 1 == billing.archive.messages(status="done").count()


def test_edits_in_the_callers_transaction(billing: AdoptedQueue, engine: Engine) -> None:
    """Nothing is changed when it rolls back."""
    billing.ack(billing.consume())
    with engine.connect() as caller:
        assert 5 == billing.messages().hold(connection=caller)
        assert 1 == billing.archive.messages().requeue(connection=caller)
        caller.rollback()
    assert 5 == billing.stats().ready
    assert 0 == billing.stats().held
    assert 1 == billing.stats().done
    with Session(engine) as session:
        assert 1 == billing.archive.messages().requeue(connection=session)
        session.commit()
    assert 6 == billing.stats().ready


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_filters_of_other_queues_point_to_where(billing: AdoptedQueue) -> None:
    """A row has no key, kind or payload to look into: its columns are all there to choose by."""
    wrong: list[dict[str, Any]] = [{"key": "k"}, {"kind": "k"}, {"payload": {"company_id": 5}}]
    for filters in wrong:
        for select in (billing.messages, billing.archive.messages):
            with refused((select, filters), ValueError, match="where="):
                select(**filters)


@pytest.mark.engines("sqlite")
def test_rows_with_negative_ids(service: QueueService, engine: Engine) -> None:
    """They are paged, cancelled and deleted like all others."""
    create_invoices(engine, 0)
    queue = service.adopt_queue("billing", Invoice)
    first = -(2**63)
    queue.publish_many([{"number": n, "company_id": 1} for n in (first, -3, -2, 0)])
    assert [-3, -2] == ids(queue.messages().list(2, after=first))
    assert [first] == ids(queue.messages().list(after=-3, newest_first=True))
    assert queue.cancel(-3, "no")
    assert queue.last_traceback(-3) is None
    assert [-3] == ids(queue.archive.messages().list(after=-4))
    assert queue.delete(-2)
    assert not queue.delete(-2)
    assert [first, 0] == ids(queue.consume(9))
    assert 1 == queue.archive.messages().requeue()


@pytest.mark.default_on("sqlite", "postgresql")
def test_pages(billing: AdoptedQueue) -> None:
    """Live rows and finished ones are listed by primary key, a page at a time."""
    live = billing.messages()
    first = live.first()
    assert first is not None
    assert 1 == first.id
    assert [2, 3] == ids(live.list(2, after=1))
    billing.ack(billing.consume(4))
    finished = billing.archive.messages()
    assert [1, 2, 3] == ids(finished.list(3))
    assert [4] == ids(finished.list(3, after=3))
    assert 4 == finished.count()
