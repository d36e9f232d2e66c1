"""Errors of dead letters: grouped by fingerprint, whoever wrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, insert, select, update

from queue_over_sql import NoRetry, inside
from queue_over_sql.archive import errors as archive_errors
from queue_over_sql.archive.errors import UNMARKED
from queue_over_sql.values.fingerprints import fingerprint
from tests.contract.existing_tables.users_tables import Invoice, create_invoices

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql.testing.plugin import MakeService


@pytest.mark.threads("the database decides")
@pytest.mark.engines("sqlite")
def test_what_the_reaper_marks_meanwhile_is_not_left_out(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes fingerprints between the two reads of a list."""
    service = make_service(reaper_interval=3600)
    queue = service.create_queue("jobs", retry=NoRetry(), archive="all")
    queue.publish("x")
    queue.consume(1)[0].reject("no account")
    for name in ("_without_marks", "_count_hours"):
        read = getattr(archive_errors, name)

        def then_marked(*given: Any, read: Any = read) -> Any:
            found = read(*given)
            service.reap()
            return found

        monkeypatch.setattr(archive_errors, name, then_marked)
    assert [fingerprint("no account")] == [each.fingerprint for each in inside.errors(queue)]


@pytest.mark.threads("the database decides")
def test_errors_are_grouped_by_their_fingerprints(make_service: MakeService) -> None:
    """Numbers and quotes make no groups; the reaper writes what SQL or an old release did not."""
    service = make_service(reaper_interval=3600)
    queue = service.create_queue("jobs", retry=NoRetry(), archive="all")
    queue.publish_many(range(9))
    for place, message in enumerate(queue.consume(9)):
        if place < 4:
            message.nack(KeyError(f"order {place}"))
        elif place < 6:
            message.reject(f"no customer '{place}'")
        elif place < 8:
            message.ack()
        else:
            message.reject("")

    def seen() -> dict[str, tuple[int, int]]:
        found = inside.errors(queue)
        assert all(each.first_at <= each.last_at for each in found)
        assert not any(each.more for each in found)
        return {each.fingerprint: (each.count, sum(each.hours)) for each in found}

    expected = {
        fingerprint("KeyError: 'order 1'"): (4, 4),
        fingerprint("no customer 'x'"): (2, 2),
        fingerprint(None): (1, 1),
    }
    assert expected == seen()
    service.reap()
    stored = select(queue.archive.table.c.error_fingerprint, func.count()).group_by(
        "error_fingerprint"
    )
    rows = inside.run(queue, lambda c: {row[0]: row[1] for row in c.execute(stored)})
    assert {None: 2} | {each: count for each, (count, _) in expected.items()} == rows
    assert expected == seen()
    assert not inside.errors_left_out(queue)
    newest = inside.errors(queue, limit=1)
    assert [""] == [each.error for each in newest]

    wanted = fingerprint("KeyError: 'x'")
    some = queue.archive.messages(where=inside.having_error(queue, wanted))
    assert 4 == some.count()
    # A row that SQL wrote is found before the reaper comes.
    again = update(queue.archive.table).values(error_fingerprint=None)
    inside.run(queue, lambda c: c.execute(again), atomic=True)
    assert 4 == queue.archive.messages(where=inside.having_error(queue, wanted)).count()
    some = queue.archive.messages(where=inside.having_error(queue, wanted, mark=None))
    assert 4 == some.requeue()
    assert 4 == queue.stats().ready
    assert {fingerprint(None), fingerprint("no customer 1")} == set(seen())


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python makes the fingerprints")
def test_errors_of_adopted_tables_are_grouped_when_they_are_read(
    engine: Engine, make_service: MakeService
) -> None:
    """A user's table has no column for them; the reaper leaves it as it is."""
    create_invoices(engine, 5)
    service = make_service(reaper_interval=3600)
    billing = service.adopt_queue("billing", Invoice, retry=NoRetry())
    billing.enqueue(Invoice.number > 0)
    for message in billing.consume(4):
        message.nack(KeyError(f"invoice {message.id}"))
    service.reap()
    wanted = fingerprint("KeyError: 'invoice 1'")
    assert [(wanted, 4)] == [(each.fingerprint, each.count) for each in inside.errors(billing)]
    assert not inside.errors_left_out(billing)
    same = inside.having_error(billing, wanted, mark=None)
    assert 4 == billing.archive.messages(where=same).requeue()
    assert [] == inside.errors(billing)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python counts the portions")
def test_a_request_marks_a_bounded_number(make_service: MakeService) -> None:
    """What it leaves is reported until the reaper has marked it; nothing is requeued unseen."""
    service = make_service(reaper_interval=3600)
    queue = service.create_queue("jobs", retry=NoRetry())
    table, size = queue.archive.table, UNMARKED + 1_500
    row = {"payload": "1", "outcome": "failed", "last_error": "KeyError: 1"}
    times = dict.fromkeys(("published_at", "scheduled_at", "finished_at"), 1)
    rows = [{"id": number, **row, **times} for number in range(1, size + 1)]
    fill = insert(table)
    inside.run(queue, lambda c: c.execute(fill, rows), atomic=True)
    assert inside.errors_left_out(queue)
    wanted = fingerprint("KeyError: 2")
    seen = queue.archive.messages(where=inside.having_error(queue, wanted, mark=600))
    assert UNMARKED + 1_000 == seen.count()
    assert inside.errors_left_out(queue)
    service.reap()
    assert not inside.errors_left_out(queue)
    assert size == queue.archive.messages(where=inside.having_error(queue, wanted)).count()
