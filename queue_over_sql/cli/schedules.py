"""The commands of `schedule`: messages that are published regularly."""

from __future__ import annotations

import dataclasses
import shlex
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from queue_over_sql.cli.lines import LineReader
from queue_over_sql.cli.operations import add_commands
from queue_over_sql.cli.options import (
    SCHEDULES_PANEL,
    QueueName,
    duration,
    message_options,
)
from queue_over_sql.cli.output import in_yellow
from queue_over_sql.cli.publish import argument_format, explaining_wrong_columns, read_argument
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.cli.values import format_instant
from queue_over_sql.values.durations import exact_duration
from queue_over_sql.values.json_lines import ENCODING_FIELD, in_base64, to_json
from queue_over_sql.values.options import ScheduleOptions

if TYPE_CHECKING:
    from queue_over_sql import Queue, Schedule
    from queue_over_sql.inside import Missed

COLUMNS: Final = ("…name", "…queue", "…when", "next (UTC)")
NONE_YET: Final = (
    "There is no schedule yet. Add one with: queue-over-sql schedule add NAME QUEUE PAYLOAD"
)

ScheduleName = Annotated[
    str, typer.Argument(metavar="NAME", show_default=False, help="Name of the schedule.")
]


commands = Commands(
    SCHEDULES_PANEL,
    "schedule",
    help="Publish messages regularly, at an interval or by cron expression.",
)


@commands.add("add")
@message_options(ScheduleOptions)
def add(
    session: CommandSession,
    *,
    name: ScheduleName,
    queue: QueueName,
    payload: Annotated[
        str,
        typer.Argument(
            metavar="PAYLOAD",
            show_default=False,
            help="Payload of each message: JSON, or plain text for a queue of text or bytes.",
        ),
    ],
    cron: Annotated[
        str | None,
        typer.Option(
            "--cron",
            metavar="LINE",
            help="Cron expression in quotes, such as '30 6 * * 1-5': minute, hour, day of month, "
            "month, day of week. Or @hourly, @daily, @weekly, @monthly, @yearly.",
        ),
    ] = None,
    every: Annotated[
        float | None,
        duration("Interval, counted from now; at least 100ms.", show_default=False),
    ] = None,
    timezone: Annotated[
        str,
        typer.Option(
            "--timezone", metavar="ZONE", help="Time zone for --cron, such as Europe/Zagreb."
        ),
    ] = "UTC",
    missed: Annotated[
        str,
        typer.Option(
            "--missed",
            metavar="one|all|skip",
            help="What to publish for the times that passed while no service and no reaper ran: "
            "one message for the latest of them, one for each, or none.",
        ),
    ] = "one",
    **given: Any,
) -> None:
    """Publish a message regularly, or change the schedule that has this name.

    It is safe to run this at every start of each of your programs. Started services and the reaper
    daemon publish the messages, so at least one of them must run. They put the next message
    into the queue in advance, where it waits until its time.

    Example: queue-over-sql schedule add report mails '{"to": "ada"}' --cron '30 6 * * 1-5'
    --timezone Europe/Zagreb
    """
    with session.connect() as service:
        target = service.queue(queue)
        with explaining_wrong_columns():
            added = service.schedules.add(
                name,
                target,
                _payload(target, payload),
                cron=cron,
                every=every,
                timezone=timezone,
                missed=cast("Missed", missed),
                **given,
            )
    session.output.record(
        fields(added), human=f"Schedule {name} publishes to queue {queue}{_next(added)}."
    )


def fields(schedule: Schedule) -> dict[str, Any]:
    """The fields of a schedule as JSON-ready values; bytes are written in Base64 and marked so."""
    given = {f.name: getattr(schedule, f.name) for f in dataclasses.fields(schedule)}
    given["last_runs"] = [{"at": at, "id": number} for at, number in schedule.last_runs.items()]
    if isinstance(schedule.payload, bytes):
        return {**given, "payload": in_base64(schedule.payload), ENCODING_FIELD: "base64"}
    return given


@commands.add("list")
def list_schedules(session: CommandSession) -> None:
    """List the schedules. Exit code 3: there is none."""
    with session.connect() as service:
        found = service.schedules.list()
    session.output.listing(found, fields, COLUMNS, _listed, nothing=NONE_YET)


@commands.add("show")
def show(
    session: CommandSession,
    *,
    name: ScheduleName,
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=1, help="How many times to show.")
    ] = 5,
) -> None:
    """Show a schedule and the next times at which it publishes, even if it is paused."""
    with session.connect() as service:
        schedule = service.schedules.get(name)
        upcoming = service.schedules.upcoming(name, count)
    if session.output.machine:
        session.output.record({**fields(schedule), "upcoming": upcoming})
        return
    session.output.details(_details(schedule))
    columns = ("UTC", schedule.timezone)
    session.output.line("")
    session.output.table(
        "Next instants", columns, [_both(at, schedule.timezone) for at in upcoming]
    )


add_commands(commands, ScheduleName, "pause-schedule")


@commands.add("resume")
def resume(session: CommandSession, *, name: ScheduleName) -> None:
    """Resume a paused schedule. It publishes again at its next time."""
    with session.connect() as service:
        service.schedules.resume(name)
        resumed = service.schedules.get(name)
    session.output.record(
        {"name": name, "paused": False}, human=f"Schedule {name} is resumed{_next(resumed)}."
    )


@commands.add("run")
def run(session: CommandSession, *, name: ScheduleName) -> None:
    """Publish one message now, even if the schedule is paused. The next times do not change."""
    with session.connect() as service:
        queue, published = service.schedules.get(name).queue, service.schedules.run(name)
    session.output.record(
        {"name": name, "queue": queue, "id": published.id},
        human=f"Schedule {name} published message {published.id} to queue {queue}.",
    )


add_commands(commands, ScheduleName, "remove-schedule")


def _payload(queue: Queue, text: str) -> Any:
    reader = LineReader(queue.settings.payload, argument_format(queue), {})
    return read_argument(reader, text, otherwise=None).payload


def _listed(schedule: Schedule) -> tuple[object, ...]:
    upcoming = format_instant(schedule.next_at) or "-"
    following = in_yellow("paused") if schedule.paused else upcoming
    return schedule.name, schedule.queue, _when(schedule), following


def _details(schedule: Schedule) -> dict[str, str]:
    name, queue, when, following = _listed(schedule)
    return {
        "name": str(name),
        "queue": str(queue),
        "when": str(when),
        "next (UTC)": str(following),
        "missed": schedule.missed,
        "payload": _shown(schedule.payload),
        **{option: _shown(value) for option, value in schedule.options.items()},
    }


def _shown(value: object) -> str:
    if isinstance(value, timedelta):
        return exact_duration(value.total_seconds())
    return value if isinstance(value, str) else to_json(value)


def _when(schedule: Schedule) -> str:
    if schedule.every is not None:
        return f"every {exact_duration(schedule.every.total_seconds())}"
    zone = "" if schedule.timezone == "UTC" else f" {schedule.timezone}"
    return f"{schedule.cron}{zone}"


def _next(schedule: Schedule) -> str:
    if schedule.paused:
        return f", but is paused: queue-over-sql schedule resume {shlex.quote(schedule.name)}"
    return f", next at {format_instant(schedule.next_at)} UTC" if schedule.next_at else ""


def _both(at: datetime, timezone: str) -> tuple[str, str]:
    from queue_over_sql.inside import zone_named

    local = at.astimezone(zone_named(timezone))
    return f"{at:%Y-%m-%d %H:%M:%S}", f"{local:%a %Y-%m-%d %H:%M:%S %Z}"
