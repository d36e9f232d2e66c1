"""What queues promise, and what the checker says of it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from queue_over_sql.testing.history.journal import Event

Kind = Literal[
    "lost",
    "came back",
    "two holders",
    "not the holder",
    "effects twice",
    "order",
    "group order",
    "group limit",
    "queue limit",
    "rate",
    "restored late",
]
"""The promise that was broken.

``lost``: published, not finished, and not there. ``came back``: settled for good, and there again.
``two holders``: two valid claims of a message at once. ``not the holder``: a settle was accepted
after the claim was lost. ``effects twice``: a message ended twice, or was delivered after its end.
``order``: a younger message was claimed before an older one that was ready. ``group order``: a
later message of a group ran before an earlier one was finished. ``group limit``, ``queue limit``:
more in hand than allowed. ``rate``: more claims than the rate allows. ``restored late``: what a
dead process held came back too late.
"""
Name = int | str
"""A message: its id, or the name that the application gave it."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """What a queue has promised in this history; a rule that is None is not checked.

    Attributes:
        lease: seconds for which a claim is surely valid: the shortest lease of any claim, or two
            thirds of the ``consumer_timeout`` if that is shorter, because each third of it has a
            heartbeat. Without it a claim that was not settled proves nothing.
        order: oldest first: seconds for which a younger message may overtake an older one that is
            ready. 0 is for a run without faults: a killed claim hides its messages for a moment,
            and so does a slow commit. Messages with groups, and retried ones, are left out. Not for
            consumers that select with ``where=`` or ``groups=``.
        restored_within: seconds after the death of a process (``dead`` of ``check``) within which
            what it held is ready again: the ``consumer_timeout``, the interval of the reaper and
            some seconds.
        group_limit, group_order, group_rate, queue_limit, queue_rate: as the queue's settings.
    """

    lease: float | None = None
    order: float | None = None
    restored_within: float | None = None
    group_limit: int | None = None
    group_order: Literal["fifo", "any"] = "fifo"
    group_rate: str | None = None
    queue_limit: int | None = None
    queue_rate: str | None = None


@dataclasses.dataclass(frozen=True)
class Violation:
    """A promise that was not kept.

    Attributes:
        kind: which promise.
        queue: name of the queue.
        message: id or name of the message, or name of the group.
        what: what happened, as a sentence.
        events: what was noted about it, in order.
    """

    kind: Kind
    queue: str
    message: Name
    what: str
    events: tuple[Event, ...]

    def __str__(self) -> str:
        """The sentence and the events, with times after the first."""
        first = self.events[0].at if self.events else 0.0
        lines = [f"  {each.at - first:+10.6f} s  {_shown(each)}" for each in self.events]
        return "\n".join(
            [f"{self.kind}: message {self.message} of queue {self.queue!r}: {self.what}", *lines]
        )


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the checker found.

    Attributes:
        violations: broken promises; empty if all that was checked was kept.
        counts: how many events of each act there are.
        unchecked: what could not be decided, and why.
    """

    violations: list[Violation]
    counts: Mapping[str, int]
    unchecked: list[str]

    def __str__(self) -> str:
        """All of it, for people."""
        counts = ", ".join(f"{count} {act}" for act, count in sorted(self.counts.items()))
        found = f"{len(self.violations)} violations" if self.violations else "no violation"
        return "\n".join(
            [*map(str, self.violations), *self.unchecked, f"{counts or 'no events'}: {found}"]
        )


def _shown(event: Event) -> str:
    facts = {
        "id": event.id or None,
        "name": event.name,
        "verb": event.verb or None,
        "attempt": event.attempt or None,
        "claim": f"{event.consumer}/{event.round}" if event.consumer else None,
        "group": event.group,
    }
    told = " ".join(f"{name}={value}" for name, value in facts.items() if value is not None)
    return f"{event.act:<10} {told}  (by {event.writer})"
