"""A queue with a past, and the plans of single statements on it."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from queue_over_sql.claiming import statements as claim
from queue_over_sql.dialects import at_once
from queue_over_sql.dialects.h2 import claim as h2
from queue_over_sql.message import claim_of
from queue_over_sql.queue import core_of
from queue_over_sql.statements.parameters import bucket_of, id_values
from queue_over_sql.statements.requests import ClaimRequest, Settlement
from tests.dialects.plans.explain import EXPLAIN, explain_by_tables, sorts

if TYPE_CHECKING:
    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.sql.compiled import StatementCache

BY_PRIMARY_KEY = ("PKEY", "PRIMARY KEY", '"PRIMARY"', "PRIMARY_KEY")
"""How the engines name the index of the ids."""


@dataclasses.dataclass
class Lived:
    """A queue with a past, and the means to ask the engine for a plan."""

    engine: str
    service: QueueService
    queue: Queue
    held: list[Message]

    @property
    def sql(self) -> StatementCache:
        return core_of(self.queue).context.sql

    def plan(self, builder: Any, *variant: Any, values: dict[str, Any]) -> str:
        """The engine's plan of a statement, in upper case, as text."""
        statement = self.sql.get(builder, *variant)
        text = EXPLAIN[self.engine] + statement.text
        explained = type(statement).__new__(type(statement))
        explained.__dict__.update(statement.__dict__ | {"text": text})
        with self.service._parts.connections.engine.connect() as connection:
            explain_by_tables(connection, self.engine)
            rows = explained.run(connection, values).all()
            connection.rollback()
        return "\n".join(" ".join(map(str, row)) for row in rows).upper()

    def request(self) -> ClaimRequest:
        """A claim of 100 above the mark."""
        newest = self.held[-1].available_at
        assert newest is not None
        low = int(newest.timestamp() * 1e6)
        return ClaimRequest(
            consumer_id="00000000-0000-0000-0000-000000000000",
            consumer_round=1,
            count=100,
            priority=0,
            low=low,
            lease_us=None,
            queue_lease_us=1_000_000,
            edits=0,
            guarded=True,
        )

    def settlement(self, count: int) -> Settlement:
        """``count`` messages of one claim."""
        claim = claim_of(self.held[0])
        assert claim is not None
        return Settlement([message.id for message in self.held[:count]], claim)


def index_of(plan: str, suffix: str) -> bool:
    """Whether the plan names the queue's index of that suffix."""
    return f"QUEUE_JOBS_{suffix}".upper() in plan


def walks_the_claim_index(lived: Lived) -> None:
    request = lived.request()
    forms: dict[str, Any] = {
        "postgresql": at_once.claim_at_once,
        "sqlite": at_once.claim_at_once,
        "mariadb": claim.pick_rows,
        "mysql": claim.pick_rows,
        "h2": claim.pick_rows,
    }
    builder, variant = forms[lived.engine], [None]
    values = request.stamp() | request.wanted()
    if lived.engine == "h2" and not lived.sql.subject.features.skip_locked:
        builder, variant = h2.mark_first, []
    elif builder is claim.pick_rows:
        values = request.wanted()
    plan = lived.plan(builder, *variant, values=values)
    assert index_of(plan, "claim_ix"), plan
    assert not sorts(plan), plan


def goes_by_the_primary_key(lived: Lived, builder: Any, count: int) -> None:
    settlement = lived.settlement(count)
    values = {
        **id_values(settlement.ids),
        **settlement.fence_values(),
        "p_error": None,
        "p_delay": 0,
        "p_expires": 0,
    }
    statement = lived.sql.get(builder, bucket_of(count))
    values = {name: value for name, value in values.items() if name in statement._defaults}
    plan = lived.plan(builder, bucket_of(count), values=values)
    # MariaDB also lists the indexes that it decided against.
    plan = re.sub(r'"POSSIBLE_KEYS": \[.*?\]', "", plan, flags=re.DOTALL)
    assert not index_of(plan, "claim_ix"), plan
    assert not index_of(plan, "lease_ix"), plan
    assert any(word in plan for word in BY_PRIMARY_KEY), plan
