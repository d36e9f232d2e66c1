"""The command that puts messages in: `publish`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queue_over_sql.cli import publishing
from queue_over_sql.cli.options import (
    MESSAGES_PANEL,
    AtOption,
    ColumnOption,
    DelayOption,
    HeaderOption,
    KindOption,
    LeaseOption,
    PriorityOption,
    QueueName,
)
from queue_over_sql.cli.session import Session, command
from queue_over_sql.cli.values import parse_pairs
from queue_over_sql.cli.wire import LineFormat, LineReader

PAYLOAD_HELP = (
    "The message: JSON, or for a queue of text the text itself (see --format). "
    "Without it JSON Lines are read from --file or standard input."
)
FORMAT_HELP = (
    "What the argument or a line is. payload: the payload as JSON (bytes: a JSON string of "
    "Base64). text: the payload as plain text. message: a JSON object with payload, key, kind, "
    "headers, priority, delay, at, max_attempts, lease, columns, as peek --json writes it. "
    "Unless given, text for an argument to a queue of text or bytes, payload otherwise."
)


def register(app: typer.Typer) -> None:
    """Add this module's command to `app`."""
    command(app, "publish", panel=MESSAGES_PANEL)(publish)


def publish(
    session: Session,
    *,
    queue: QueueName,
    payload: Annotated[
        str | None, typer.Argument(metavar="PAYLOAD", show_default=False, help=PAYLOAD_HELP)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="PATH", help="Read JSON Lines from here; - is stdin."),
    ] = None,
    line_format: Annotated[
        LineFormat | None,
        typer.Option(
            "--format", metavar="payload|text|message", show_default=False, help=FORMAT_HELP
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="At most one live message has this key."),
    ] = None,
    on_conflict: Annotated[
        str,
        typer.Option(
            "--on-conflict",
            metavar="raise|skip|replace",
            help="When a live message has the key: fail, keep that one, or replace its content.",
        ),
    ] = "raise",
    kind: KindOption = None,
    header: HeaderOption = None,
    priority: PriorityOption = 0,
    delay: DelayOption = None,
    at: AtOption = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            "--max-attempts", metavar="N", min=1, help="Deliveries before the message is dead."
        ),
    ] = None,
    lease: LeaseOption = None,
    column: ColumnOption = None,
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", min=1, help="Lines in one transaction.")
    ] = 1000,
) -> None:
    """Publish one message, or one per line of a file or of standard input.

    Lines go in transaction by transaction (--batch); after an error the message names the line
    where it can, and says from which line on to send again. It says so after SIGINT and SIGTERM,
    too.
    """
    given = {
        "key": key,
        "kind": kind,
        "headers": parse_pairs(header or (), "--header") or None,
        "priority": priority or None,
        "delay": delay,
        "at": at,
        "max_attempts": max_attempts,
        "lease": lease,
        "columns": parse_pairs(column or (), "--column") or None,
    }
    defaults = {name: value for name, value in given.items() if value is not None}
    if payload is not None and file is not None:
        raise typer.BadParameter("give either a PAYLOAD or --file, not both")
    with session.connect() as service:
        target = service.queue(queue)
        if payload is not None:
            reader = LineReader(
                target.settings.payload, line_format or publishing.argument_format(target), defaults
            )
            publishing.publish_one(session.output, target, reader, payload, on_conflict)
            return
        if key is not None:
            raise typer.BadParameter("one --key cannot serve many lines: use --format message")
        reader = LineReader(target.settings.payload, line_format or LineFormat.PAYLOAD, defaults)
        publishing.publish_lines(
            session.output, service, target, reader, file, on_conflict=on_conflict, batch=batch
        )
