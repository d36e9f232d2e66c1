"""Errors of dead letters: grouped by fingerprint, whoever wrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select, update

from queue_over_sql import NoRetry, inside
from queue_over_sql.values.fingerprints import fingerprint
from tests.contract.existing_tables.users_tables import Invoice, create_invoices

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql.testing.plugin import MakeService


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
    newest = inside.errors(queue, limit=1)
    assert [""] == [each.error for each in newest]

    wanted = fingerprint("KeyError: 'x'")
    some = queue.archive.messages(where=inside.having_error(queue, wanted))
    assert 4 == some.count()
    # A row that SQL wrote is found before the reaper comes.
    again = update(queue.archive.table).values(error_fingerprint=None)
    inside.run(queue, lambda c: c.execute(again), atomic=True)
    assert 4 == queue.archive.messages(where=inside.having_error(queue, wanted)).count()
    some = queue.archive.messages(where=inside.having_error(queue, wanted, mark=True))
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
    same = inside.having_error(billing, wanted, mark=True)
    assert 4 == billing.archive.messages(where=same).requeue()
    assert [] == inside.errors(billing)
