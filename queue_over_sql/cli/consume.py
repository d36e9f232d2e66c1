"""The command `consume`: print messages, or run a command for each."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_over_sql.cli.consumption import Consumption, Limits, Printing, Running
from queue_over_sql.cli.exits import ExitCode
from queue_over_sql.cli.options import (
    MESSAGES_PANEL,
    ConsumerTimeoutOption,
    LeaseOption,
    QueueName,
)
from queue_over_sql.cli.session import Session, command
from queue_over_sql.cli.signals import stop_on_signals
from queue_over_sql.cli.values import parse_duration


def register(app: typer.Typer) -> None:
    """Add this module's command to `app`."""
    command(app, "consume", panel=MESSAGES_PANEL)(consume)


def consume(
    session: Session,
    *,
    queue: QueueName,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", metavar="N", min=1, help="Stop after N messages."),
    ] = None,
    exec_: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="Run this shell command for each message, with the payload on its standard "
            "input: exit 0 acknowledges, anything else is a failed attempt.",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="DURATION",
            parser=parse_duration,
            show_default="0",
            help="Stop only when no message came for this long.",
        ),
    ] = 0.0,
    follow: Annotated[
        bool, typer.Option("--follow", help="Never stop for lack of messages.")
    ] = False,
    batch: Annotated[
        int,
        typer.Option("--batch", metavar="N", min=1, help="Claim this many at once: faster."),
    ] = 1,
    lease: LeaseOption = None,
    consumer_timeout: ConsumerTimeoutOption = 30.0,
) -> None:
    """Take messages and print their payloads, or run a command for each; success acknowledges.

    Without --count everything that is due is taken, then it stops (see --wait and --follow).
    Leases are extended for as long as the work takes. SIGINT or SIGTERM finishes the current
    message and gives the others back; a second one stops at once and gives that back, too.

    A terminal shows control characters of a text written out; a pipe or file gets it as it is.

    A command of --exec finds in its environment QUEUE_OVER_SQL_QUEUE, _MESSAGE_ID, _ATTEMPT,
    _MAX_ATTEMPTS, _PRIORITY, _KEY, _KIND, _HEADERS (JSON) and _HEADER_name per header. The end of
    its standard error becomes the message's last_error. With --json its standard output goes to
    standard error, and each message is a JSON line with its result.

    Exit code 3 when there was no message at all, 5 when a command failed.
    """
    limits = Limits(count=count, wait=None if follow else wait, batch=batch, lease=lease)
    made = session.service(consumer_timeout=consumer_timeout)
    with stop_on_signals(at_once=True) as stop, made as service:
        source = service.queue(queue)
        handler = (
            Printing(session.output, source)
            if exec_ is None
            else Running(session.output, source, exec_, stop)
        )
        tally = Consumption(source, handler, limits, stop, session.output.note).run()
    if tally.delivered == 0 and not stop.asked.is_set():
        if not tally.paused:
            session.output.note(f"No message in queue {queue}.")
        raise typer.Exit(ExitCode.NOTHING)
    if exec_ is not None:
        session.output.note(f"{tally.done:,} done, {tally.failed:,} failed.")
    if tally.failed:
        raise typer.Exit(ExitCode.INCOMPLETE)
