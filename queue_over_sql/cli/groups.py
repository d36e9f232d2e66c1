"""The command `groups`, and those on one group of a queue's messages."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from queue_over_sql import GroupState
from queue_over_sql.cli.options import MONITORING_PANEL, QUEUES_PANEL, QueueName, argument, number
from queue_over_sql.cli.output import in_yellow
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.cli.values import format_age
from queue_over_sql.management.operations import OPERATIONS
from queue_over_sql.values.humanize import format_duration
from queue_over_sql.values.limits import MOST_IN_HAND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from queue_over_sql import GroupInfo

GROUP_COLUMNS = (
    *("…group", "state", "#waiting", "#oldest", "#in hand", "#limit", "#weight", "rate"),
    *("waits for", "…consumer"),
)

GroupName = Annotated[str, argument("GROUP", "Name of the group; may be empty.")]
commands = Commands(MONITORING_PANEL)
group_commands = Commands(
    QUEUES_PANEL,
    "group",
    help="Pause, resume, unblock and configure a group of a queue's messages (see `groups`).",
)


@commands.add("groups")
def groups(
    session: CommandSession,
    *,
    queue: QueueName,
    by: Annotated[
        Literal["waiting", "age", "blocked"],
        typer.Option(
            help="What comes first: the largest backlog, the oldest message, or what is blocked."
        ),
    ] = "waiting",
    limit: Annotated[int, number("The largest number of groups.")] = 50,
) -> None:
    """List the groups of a queue, and what each waits for. Exit code 3: there is none.

    A group is listed if it has messages, or if an operator paused or configured it. The column
    "oldest" says for how long its oldest waiting message has been due.
    """
    names: dict[str, str] = {}
    with session.connect() as service:
        listed = service.queue(queue).groups.list(by=by, limit=limit)
        if any(each.consumer_ids for each in listed):
            names = {each.consumer_id: each.name for each in service.consumers()}
    session.output.listing(
        listed,
        lambda each: {"queue": queue, **dataclasses.asdict(each), "state": each.state.value},
        GROUP_COLUMNS,
        lambda each: _row(each, names),
        nothing=f"No message of queue {queue} has a group.",
    )


def _row(group: GroupInfo, names: Mapping[str, str]) -> tuple[object, ...]:
    state = group.state.value
    stopped = group.state in {GroupState.PAUSED, GroupState.BLOCKED}
    age, own = group.oldest_age, " (own)" if group.own_limit is not None else ""
    return (
        group.name or "''",
        in_yellow(state) if stopped else state,
        f"{group.waiting:,}",
        "-" if age is None else format_duration(age.total_seconds()),
        f"{group.claimed:,}",
        "-" if group.limit == MOST_IN_HAND else f"{group.limit:,}{own}",
        f"{group.weight:,}",
        _rate(group),
        _waits_for(group),
        ", ".join(names.get(each, each) for each in group.consumer_ids),
    )


def _rate(group: GroupInfo) -> str:
    own = "" if group.own_rate is None else " (own)"
    return f"{group.rate or '-'}{own}"


def _waits_for(group: GroupInfo) -> str:
    head = "" if group.head is None else f"message {group.head}"
    if group.paused_since is not None:
        return f"resume, paused {format_age(group.paused_since)} ago"
    if group.blocked_by is not None:
        return f"dead letter {group.blocked_by}"
    if group.claimed_since is not None:
        return ", ".join(filter(None, (head, f"claimed {format_age(group.claimed_since)} ago")))
    if group.next_due is not None:
        left = max(0.0, (group.next_due - datetime.now(UTC)).total_seconds())
        return ", ".join(filter(None, (head, f"due in {format_duration(left)}")))
    if group.state is GroupState.THROTTLED and group.next_token is not None:
        left = max(0.0, (group.next_token - datetime.now(UTC)).total_seconds())
        return ", ".join(filter(None, (head, f"rate, next in {format_duration(left)}")))
    return f"{head}, held" if group.state is GroupState.HELD else ""


def _change(
    session: CommandSession, verb: str, queue: str, group: str, human: str, **given: Any
) -> None:
    with session.connect() as service:
        OPERATIONS[verb].run(service, queue, group=group, **given)
    fields = {"queue": queue, "group": group, **given}
    session.output.record(fields, human=human.format(queue=queue, group=group or "''"))


@group_commands.add("pause")
def pause(session: CommandSession, *, queue: QueueName, group: GroupName) -> None:
    """Stop delivering the messages of one group. Publishing is still possible."""
    _change(session, "pause-group", queue, group, "Group {group} of queue {queue} is paused.")


@group_commands.add("resume")
def resume(session: CommandSession, *, queue: QueueName, group: GroupName) -> None:
    """Deliver the messages of a paused group again."""
    _change(session, "resume-group", queue, group, "Group {group} of queue {queue} is resumed.")


@group_commands.add("unblock")
def unblock(session: CommandSession, *, queue: QueueName, group: GroupName) -> None:
    """Deliver the messages behind the dead letter that blocks a group.

    The dead letter stays in the archive. To run it again instead, requeue it: that unblocks the
    group, too, and the message goes to the end of its group.
    """
    _change(session, "unblock-group", queue, group, "Group {group} of queue {queue} is unblocked.")


@group_commands.add("configure")
def configure(
    session: CommandSession,
    *,
    queue: QueueName,
    group: GroupName,
    limit: Annotated[
        str | None,
        typer.Option(
            metavar="N|none",
            help="How many of its messages are in hand at once; none: as many as the queue says.",
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="RATE|none|unlimited",
            help="How fast its messages may start, as 100/min; none: as fast as the queue says.",
        ),
    ] = None,
    weight: Annotated[
        str | None,
        typer.Option(
            metavar="N|none",
            help="Its share in a queue with `--group-fair yes`: with 3 it gets three times as many "
            "messages as a group with 1; none: 1.",
        ),
    ] = None,
) -> None:
    """Give a group a limit, a rate or a weight of its own."""
    given: dict[str, Any] = {}
    words: list[str] = []
    if limit is not None:
        given["limit"] = own = _positive(limit, "--limit")
        words.append("the limit of the queue" if own is None else f"the limit {own:,}")
    if rate is not None:
        given["rate"] = None if rate == "none" else rate
        words.append("the rate of the queue" if rate == "none" else f"the rate {rate}")
    if weight is not None:
        given["weight"] = own = _positive(weight, "--weight")
        words.append(f"the weight {own or 1:,}")
    if not given:
        raise typer.BadParameter("give --limit, --rate or --weight")
    human = f"Group {{group}} of queue {{queue}} has {' and '.join(words)}."
    _change(session, "configure-group", queue, group, human, **given)


def _positive(text: str, option: str) -> int | None:
    if text == "none":
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise typer.BadParameter(
            f"{text!r} is neither a number above zero nor none", param_hint=option
        )
    return int(text)
