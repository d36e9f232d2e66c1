"""The command that changes messages which nobody holds: `edit`."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Annotated

import typer

from queue_over_sql import Edited, Queue, Status
from queue_over_sql.cli.actions import REMOVE, Action, chosen_action
from queue_over_sql.cli.exits import ExitCode
from queue_over_sql.cli.filters import LIVE_STATUS, Filters, filtered
from queue_over_sql.cli.many import end_with_nothing, insist_on_choice, progress_bar, removed_how
from queue_over_sql.cli.options import MESSAGES_PANEL, AllOption, QueueName, YesOption, confirm
from queue_over_sql.cli.session import Session, command
from queue_over_sql.cli.values import counted, parse_duration, parse_instant

ACTIONS_PANEL = "What to do with them (exactly one)"


def register(app: typer.Typer) -> None:
    """Add this module's command to `app`."""
    command(app, "edit", panel=MESSAGES_PANEL)(filtered(edit, status=LIVE_STATUS))


def edit(
    session: Session,
    *,
    queue: QueueName,
    filters: Filters,
    everything: AllOption = False,
    remove: Annotated[
        bool,
        typer.Option(
            "--remove",
            rich_help_panel=ACTIONS_PANEL,
            help="Remove them for ever, 500 in one transaction; their keys are free from then on.",
        ),
    ] = False,
    hold: Annotated[
        bool,
        typer.Option(
            "--hold",
            rich_help_panel=ACTIONS_PANEL,
            help="Take them out of delivery until --unhold, --delay or --at.",
        ),
    ] = False,
    unhold: Annotated[
        bool,
        typer.Option(
            "--unhold",
            rich_help_panel=ACTIONS_PANEL,
            help="Put held ones back to where they were due first.",
        ),
    ] = False,
    front: Annotated[
        bool,
        typer.Option(
            "--front",
            rich_help_panel=ACTIONS_PANEL,
            help="Let them be due now, before all others of their priority.",
        ),
    ] = False,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority",
            metavar="N",
            min=0,
            rich_help_panel=ACTIONS_PANEL,
            help="Move them to this priority; 0 is the most urgent.",
        ),
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option(
            "--delay",
            metavar="DURATION",
            parser=parse_duration,
            show_default=False,
            rich_help_panel=ACTIONS_PANEL,
            help="Let them be due so long from now.",
        ),
    ] = None,
    at: Annotated[
        datetime | None,
        typer.Option(
            "--at",
            metavar="INSTANT",
            parser=parse_instant,
            show_default=False,
            rich_help_panel=ACTIONS_PANEL,
            help="Let them be due at this instant: ISO 8601 with an offset.",
        ),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Change messages that nobody holds: remove, hold, move or reschedule them.

    Says how many it would change, and asks. What a consumer holds is left alone and counted; exit
    code 5 when there was such a message, 3 when nothing matched.

    Example: queue-over-sql edit orders --payload customer=7 --front
    """
    insist_on_choice(filters, everything=everything)
    action = chosen_action(
        remove=remove,
        hold=hold,
        unhold=unhold,
        front=front,
        priority=priority,
        delay=delay,
        at=at,
    )
    with session.queue(queue) as edited:
        if action is REMOVE:
            action = dataclasses.replace(action, how=removed_how(edited))
        done = _edit(session, edited, filters, action, yes=yes)
    _report(session, queue, action, done)


def _edit(session: Session, queue: Queue, filters: Filters, action: Action, *, yes: bool) -> Edited:
    selection = filters.live(queue)
    if not yes:
        free, claimed = _reach(queue, filters, action)
        if not free:
            return Edited(0, claimed)
        held = f" ({_left_alone(claimed)})" if claimed else ""
        confirm(f"{action.verb} {_what(free, queue.name)}{action.how}{held}?", yes=False)
    if action.act is not None:
        return action.act(selection)
    with progress_bar(
        session.output, "Removing", lambda: _reach(queue, filters, action)[0]
    ) as progress:
        return selection.remove(progress=progress)


def _reach(queue: Queue, filters: Filters, action: Action) -> tuple[int, int]:
    """How many messages an edit would change now, and how many it would leave to their holders."""
    if action.status is not None:
        return _count(queue, filters, action.status), 0
    claimed = _count(queue, filters, Status.CLAIMED)
    return filters.live(queue).count() - claimed, claimed


def _count(queue: Queue, filters: Filters, status: str) -> int:
    if filters.status not in (None, status):
        return 0
    return dataclasses.replace(filters, status=status).live(queue).count()


def _report(session: Session, queue: str, action: Action, done: Edited) -> None:
    left = f"; {_left_alone(done.skipped)}" if done.skipped else ""
    nothing = not done and not done.skipped
    session.output.record(
        {"queue": queue, "action": action.name, "changed": int(done), "skipped": done.skipped},
        human=None if nothing else f"{action.past} {_what(done, queue)}{action.how}{left}.",
    )
    if nothing:
        end_with_nothing(session.output, f"queue {queue}")
    if done.skipped:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _what(count: int, queue: str) -> str:
    return f"{counted(count, 'message')} of queue {queue}"


def _left_alone(claimed: int) -> str:
    holders = "a consumer holds is" if claimed == 1 else "consumers hold are"
    return f"{claimed:,} that {holders} left alone"
