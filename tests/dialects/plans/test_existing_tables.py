"""Hot statements on an existing table of 102,400 rows of which few are messages."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert, select

from queue_over_sql.recovery import dead_claims as reaper
from queue_over_sql.selection import why_statements as why
from queue_over_sql.settling import statements as settle
from tests.dialects.plans.explain import analyze
from tests.dialects.plans.lived_queue import (
    Lived,
    goes_by_the_primary_key,
    index_of,
    walks_the_claim_index,
)

if TYPE_CHECKING:
    from queue_over_sql import QueueService
    from queue_over_sql.testing.plugin import TestDatabase

DOUBLINGS = 10
ROWS, QUEUED, CLAIMED, DONE = 100 * 2**DOUBLINGS, 500, 200, 500

entities = Table(
    "entities",
    MetaData(),
    Column("entity_id", Integer, primary_key=True),
    Column("name", String(50)),
)


@pytest.fixture
def lived(database: TestDatabase, service: QueueService) -> Lived:
    """Rows that are no messages, 500 that are done, 200 claimed and 500 ready ones."""
    engine = create_engine(database.url)
    entities.create(engine)
    with engine.begin() as connection:
        connection.execute(insert(entities).values([{"name": f"entity {n}"} for n in range(100)]))
        for _ in range(DOUBLINGS):
            connection.execute(insert(entities).from_select(["name"], select(entities.c.name)))
    queue = service.adopt_queue("jobs", entities, lease=3600)
    key = entities.c.entity_id
    queue.enqueue(key % (ROWS // (QUEUED + CLAIMED + DONE)) == 0)
    queue.ack(queue.consume(DONE))
    held = queue.consume(CLAIMED)
    with engine.connect() as connection:
        analyze(connection, database.engine, "entities")
    engine.dispose()
    return Lived(database.engine, service, queue, held)


def test_few_messages_among_many_rows(lived: Lived) -> None:
    """No statement reads the rows that are no messages, and each message is delivered, in order.

    One test, because the rows take longer than all that is looked at.
    """
    walks_the_claim_index(lived)
    for builder, count in itertools.product(
        (settle.remove, settle.release, settle.retry, settle.extend), (1, 100)
    ):
        goes_by_the_primary_key(lived, builder, count)
    values = {"p_max_attempts": 5, "p_count": 500}
    plan = lived.plan(reaper.claims_with_expired_leases, 0, values=values)
    assert index_of(plan, "lease_ix") or index_of(plan, "claim_ix"), plan
    place = {"p_id_0": 10**6, "p_priority": 0, "p_due": 2**52, "p_level": 0, "p_count": 10_001}
    plan = lived.plan(why.count_ahead, *(True,), values=place)
    assert index_of(plan, "claim_ix"), plan
    rest = [message.id for _ in range(6) for message in lived.queue.consume(100)]
    assert sorted(rest) == rest
    assert not set(rest) & {message.id for message in lived.held}
    stats = lived.queue.stats()
    assert 0 == stats.ready
    assert DONE == stats.done
    assert len(rest) + CLAIMED == stats.claimed
