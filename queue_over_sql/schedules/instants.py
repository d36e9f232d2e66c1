"""Instants: which messages of a schedule are to be published at a moment, and when to look again.

Messages are published ahead of their instants, so that they are due to the microsecond and come
even while no reaper runs: always the next one, and all of the next seconds.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from queue_over_sql.schedules.triggers import latest

if TYPE_CHECKING:
    from queue_over_sql.schedules.triggers import Trigger

MISSED: Final = ("one", "all", "skip")
"""What may be done about instants at which nobody fired."""

AHEAD: Final = 5_000_000
"""How far ahead messages are published, in microseconds; the next one always is."""

MOST: Final = 100
"""How many messages one transaction publishes."""

# A pass that is only a little late has missed nothing.
_LATE: Final = 5_000_000
_NEVER: Final = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Firing:
    """What to do about one schedule.

    Attributes:
        instants: those to publish a message for, in order.
        next_at: the first instant after them; None where none will ever come.
        wake_at: from when on there is something to do again, in microseconds.
    """

    instants: tuple[int, ...]
    next_at: int | None
    wake_at: int


def plan(trigger: Trigger, next_at: int | None, now: int, missed: str) -> Firing:
    """What to publish at a moment.

    Args:
        trigger: of the schedule.
        next_at: the first instant that has no message yet; None where none will ever come.
        now: the database's clock.
        missed: one of ``MISSED``.
    """
    late, next_at = _late(trigger, next_at, now, missed)
    # There may be more of them than one transaction takes.
    if next_at is not None and next_at <= now:
        return Firing(tuple(late), next_at, now)
    following = trigger.after(now) or _NEVER
    instants = list(late)
    while next_at is not None and next_at <= max(following, now + AHEAD) and len(instants) < MOST:
        instants.append(next_at)
        next_at = trigger.after(next_at)
    # Until the last one that was published is over, or the next one comes near.
    near = _NEVER if next_at is None else min(following, next_at - AHEAD)
    return Firing(tuple(instants), next_at, near)


def _late(
    trigger: Trigger, next_at: int | None, now: int, missed: str
) -> tuple[list[int], int | None]:
    """Which of the instants up to now to make up for, and the first one after them."""
    late: list[int] = []
    if next_at is None or next_at > now:
        return late, next_at
    if missed == "one":
        return [latest(trigger, next_at, now)], trigger.after(now)
    following: int | None = next_at
    if missed == "skip" and next_at <= now - _LATE:
        following = trigger.after(now - _LATE)
    while following is not None and following <= now and len(late) < MOST:
        late.append(following)
        following = trigger.after(following)
    return late, following
