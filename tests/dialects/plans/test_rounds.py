"""Rounds of a durable consumer on a queue with a large backlog and a past: never all of it is read.

The table holds 20,000 ready messages behind 3,000 that rounds hold, the dead rows of 2,000 that
rounds finished, and 500 that an ordinary consumer holds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql.dialects import at_once
from queue_over_sql.durable import statements as rounds
from queue_over_sql.durable.consumer import AdvanceRequest, DurableConsumer
from queue_over_sql.durable.requests import RoundRequest, rounds_values
from queue_over_sql.message import Claim
from tests.dialects.plans.explain import analyze, sorts
from tests.dialects.plans.lived_queue import Lived, index_of

if TYPE_CHECKING:
    from queue_over_sql import QueueService
    from queue_over_sql.testing.plugin import TestDatabase

READY, HELD, DONE = 20_000, 3_000, 2_000
EACH = 500
WHOLE_TABLE = {
    "sqlite": r"SCAN QUEUE_JOBS\b",
    "postgresql": r"SEQ SCAN ON QUEUE_JOBS\b",
    "mariadb": r'"TABLE_NAME": "QUEUE_JOBS",\s*"ACCESS_TYPE": "(ALL|INDEX)"',
    "mysql": r'"TABLE_NAME": "QUEUE_JOBS",\s*"ACCESS_TYPE": "(ALL|INDEX)"',
    "h2": r"QUEUE_JOBS\.TABLESCAN",
}


@pytest.fixture
def lived(database: TestDatabase, service: QueueService) -> Lived:
    """A queue that a durable consumer and an ordinary one have read for a while."""
    queue = service.create_queue("jobs", lease=3600, dedup_window=3600)
    queue.load(range(DONE + HELD + EACH + READY))
    consumer = DurableConsumer(queue, "query", owner="here:1")
    consumer.take_over()
    done = consumer.advance(0, AdvanceRequest(DONE, EACH))
    consumer.ack(done)
    consumer.advance(done, AdvanceRequest(HELD, EACH))
    held = queue.consume(EACH)
    with service._parts.connections.engine.connect() as connection:
        analyze(connection, database.engine, "queue_jobs")
    return Lived(database.engine, service, queue, held)


def spared(lived: Lived, plan: str) -> bool:
    """Whether not all of the queue's table is read."""
    return not re.search(WHOLE_TABLE[lived.engine], plan)


def values(up_to: int) -> dict[str, Any]:
    """The rounds that are held up to one, with all that their statements may name."""
    past = DONE // EACH
    ends = {"p_error": None, "p_attempted": None, "p_outcome": "done", "p_dedup": 1}
    return rounds_values("query", past, past + up_to) | ends


def test_a_round_is_read_by_its_stamp(lived: Lived) -> None:
    """By the index on its lease, or by its consumer's place in the claim index."""
    plan = lived.plan(rounds.read_round, values=values(1))
    assert index_of(plan, "lease_ix") or index_of(plan, "claim_ix"), plan
    assert spared(lived, plan), plan


def test_rounds_end_without_a_look_at_the_others(lived: Lived) -> None:
    """Whether one round is acknowledged or all that are held."""
    joins = lived.engine in {"mariadb", "mysql"}
    for builder in (
        rounds.remove_picked if joins else rounds.remove_rounds,
        rounds.unclaim_picked if joins else rounds.unclaim_rounds,
        rounds.lock_rounds,
        rounds.count_rounds,
        rounds.copy_rounds_to_archive,
        rounds.remember_keys,
    ):
        for many in (1, HELD // EACH):
            plan = lived.plan(builder, values=values(many))
            assert spared(lived, plan), plan


def test_a_round_is_claimed_along_the_claim_index(lived: Lived) -> None:
    """In its order, without a sort and without a look at the whole backlog."""
    forms: dict[str, Any] = {
        "postgresql": at_once.claim_round_at_once,
        "sqlite": at_once.claim_round_at_once,
        "mariadb": rounds.mark_picked,
        "mysql": rounds.mark_picked,
        "h2": rounds.lock_ids,
    }
    request = RoundRequest(Claim("query", 99), EACH, 0)
    plan = lived.plan(forms[lived.engine], values=request.values())
    assert index_of(plan, "claim_ix"), plan
    assert not sorts(plan), plan
    assert spared(lived, plan), plan


def test_counting_what_is_due_stays_in_the_index(lived: Lived) -> None:
    """A query asks often whether there is anything."""
    request = RoundRequest(Claim("", 0), 1, 0)
    plan = lived.plan(rounds.count_eligible, values=request.values())
    assert index_of(plan, "claim_ix"), plan
    assert spared(lived, plan), plan
