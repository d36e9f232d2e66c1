"""What `edit` can do to messages: exactly one of its options, in words and as a deed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import datetime

import typer

from queue_over_sql import Edited, LiveSelection
from queue_over_sql.cli.values import exact_duration, format_instant


@dataclasses.dataclass(frozen=True)
class Action:
    """One thing to do with messages.

    Attributes:
        name: as ``--json`` names it.
        verb: the beginning of the question, such as ``Move``.
        past: the beginning of the report, such as ``Moved``.
        how: what follows the messages in both.
        act: does it; None for removal, which goes in parts.
        status: the only status of which it changes anything.
    """

    name: str
    verb: str
    past: str
    how: str = ""
    act: Callable[[LiveSelection], Edited] | None = None
    status: str | None = None


REMOVE = Action("remove", "Remove", "Removed")
HOLD = Action("hold", "Hold", "Held", act=LiveSelection.hold)
UNHOLD = Action("unhold", "Unhold", "Unheld", act=LiveSelection.unhold, status="held")
FRONT = Action("front", "Move", "Moved", " to the front", lambda c: c.prioritize(front=True))


def chosen_action(
    *,
    remove: bool,
    hold: bool,
    unhold: bool,
    front: bool,
    priority: int | None,
    delay: float | None,
    at: datetime | None,
) -> Action:
    """The one action that was asked for; a usage error where it was none or several."""
    flags = {REMOVE: remove, HOLD: hold, UNHOLD: unhold, FRONT: front}
    actions = [action for action, asked in flags.items() if asked]
    if priority is not None:
        actions.append(_to_priority(priority))
    if delay is not None:
        actions.append(_after(delay))
    if at is not None:
        actions.append(_until(at))
    if len(actions) != 1:
        raise typer.BadParameter(
            "give exactly one of --remove, --hold, --unhold, --front, --priority, --delay, --at"
        )
    return actions[0]


def _to_priority(priority: int) -> Action:
    how = f" to priority {priority}"
    return Action("priority", "Move", "Moved", how, lambda c: c.prioritize(priority=priority))


def _after(delay: float) -> Action:
    how = f" to {exact_duration(delay)} from now"
    return Action("delay", "Reschedule", "Rescheduled", how, lambda c: c.reschedule(delay=delay))


def _until(at: datetime) -> Action:
    how = f" to {format_instant(at)} UTC"
    return Action("at", "Reschedule", "Rescheduled", how, lambda c: c.reschedule(at=at))
