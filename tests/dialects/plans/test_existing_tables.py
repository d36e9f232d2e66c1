"""Hot statements on an existing table of 100,000 rows of which few are messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert

from queue_over_sql.dialects.statements import settle
from queue_over_sql.store import recovery as reaper
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

ROWS, QUEUED, CLAIMED, DONE = 100_000, 500, 200, 500

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
        for start in range(0, ROWS, 1000):
            rows = [{"name": f"entity {start + n}"} for n in range(1000)]
            connection.execute(insert(entities).values(rows))
    queue = service.adopt_queue("jobs", entities, lease=3600)
    key = entities.c.entity_id
    queue.enqueue(key % (ROWS // (QUEUED + CLAIMED + DONE)) == 0)
    queue.ack(queue.consume(DONE))
    held = queue.consume(CLAIMED)
    with engine.connect() as connection:
        analyze(connection, database.engine, "entities")
    engine.dispose()
    return Lived(database.engine, service, queue, held)


def test_a_claim_walks_its_index(lived: Lived) -> None:
    """The pick follows the claim index, in its order, past all that is no message."""
    walks_the_claim_index(lived)


@pytest.mark.parametrize("count", [1, 100])
def test_settling_goes_by_the_primary_key(lived: Lived, count: int) -> None:
    """Neither an ack in place nor another verb looks at more than the rows that it names."""
    for builder in (settle.remove, settle.release, settle.retry, settle.extend):
        goes_by_the_primary_key(lived, builder, count)


def test_expired_leases_are_found_by_an_index(lived: Lived) -> None:
    """The reaper's look does not read the user's table."""
    values = {"p_max_attempts": 5, "p_count": 500}
    plan = lived.plan(reaper.claims_with_expired_leases, 0, values=values)
    assert index_of(plan, "lease_ix") or index_of(plan, "claim_ix"), plan


def test_the_life_of_few_among_many(lived: Lived) -> None:
    """All that was enqueued is delivered once, in order, and nothing else."""
    rest = [message.id for _ in range(6) for message in lived.queue.consume(100)]
    assert sorted(rest) == rest
    assert not set(rest) & {message.id for message in lived.held}
    stats = lived.queue.stats()
    assert (0, DONE, len(rest) + CLAIMED) == (stats.ready, stats.done, stats.claimed)
