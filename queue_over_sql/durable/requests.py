"""Requests for the rounds of durable consumers, as bind parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.message import Claim
from queue_over_sql.statements.requests import wanted
from queue_over_sql.values.durations import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable

    Converters = Sequence[Callable[[Any], Any] | None]


_LARGEST: Final = 2**63 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class RoundRequest:
    """The claim of one round as the database needs it, for one level.

    Attributes:
        up_to_id: the largest id; None for any.
        due_by: the latest due time in microseconds; None for now.
    """

    claim: Claim
    count: int
    priority: int
    up_to_id: int | None = None
    due_by: int | None = None

    def values(self) -> dict[str, Any]:
        """The bind parameters of the stamp, the eligibility predicate and the limit."""
        return wanted(self.priority, self.count) | {
            "p_consumer": self.claim.consumer_id,
            "p_round": self.claim.consumer_round,
            "p_expires": lease_of_round(self.claim.consumer_round),
            "p_up_to": _LARGEST if self.up_to_id is None else self.up_to_id,
            "p_due": NEVER if self.due_by is None else self.due_by,
        }


LAST_ROUND: Final = 10**12
"""With a larger number, a round's lease would not lie in the far future any more."""


def lease_of_round(consumer_round: int) -> int:
    """The lease of a round's messages: it never ends, and differs between rounds.

    So the index on the lease leads directly to the messages of one round, not over the dead entries
    of former rounds.
    """
    return NEVER - consumer_round


def rounds_values(consumer_id: str, after: int, up_to: int) -> dict[str, Any]:
    """The bind parameters of the rounds after ``after`` up to ``up_to``."""
    return {
        "p_consumer": consumer_id,
        "p_round": after + 1,
        "p_last_round": up_to,
        "p_expires": lease_of_round(after + 1),
        "p_last_expires": lease_of_round(up_to),
        "p_count": _LARGEST,
    }
