"""Suspects: messages that were with a consumer when it died, any of which may have killed it.

A consumer that dies leaves no word about which of its messages it was working on. So the reason in
``last_error`` says how many it held. Few of them are then claimed together, and nothing else with
them: the more deaths, the fewer. In the end a message that kills its consumers dies alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from queue_over_sql.settling.operations import LONGEST_ERROR
from queue_over_sql.values.reasons import CONSUMER_DIED, LAST_BEFORE, LEASE_EXPIRED, SUSPECT

if TYPE_CHECKING:
    from queue_over_sql.recovery.dead_claims import DeadHolder


def may_run_together(last_error: str | None) -> int | None:
    """With how many suspects in all a message may be claimed; None if it is not a suspect."""
    if last_error is None or (found := SUSPECT.match(last_error)) is None:
        return None
    # Of up to 1,023 messages the third consumer to die held one alone.
    return max(1, math.isqrt(1 + int(found[1] or 0)) // 2)


def reason_of_death(consumer_id: str, holder: DeadHolder | None, others: int) -> str:
    """Why a message comes back: its consumer died, and held this many others.

    The SQL API writes the same.
    The messages of a durable consumer are no suspects, because it reads them and runs no handler.
    """
    if holder is None:
        return f"{CONSUMER_DIED}{_and(others)}: {consumer_id}"
    if holder.durable:
        return f"{CONSUMER_DIED} ({holder.name})"
    return (
        f"{CONSUMER_DIED}{_and(others)}: {holder.name}, process {holder.pid} on host {holder.host}"
    )


def _and(others: int) -> str:
    return f" and {others} other{'s' if others > 1 else ''}" if others else ""


def keeping_last_error(reason: str, before: str | None) -> str:
    """The reason, and below it the last error that was not a death or an expired lease."""
    if before is not None and before.startswith((CONSUMER_DIED, LEASE_EXPIRED)):
        _, _, before = before.partition(LAST_BEFORE)
    return f"{reason}{LAST_BEFORE}{before}"[:LONGEST_ERROR] if before else reason
